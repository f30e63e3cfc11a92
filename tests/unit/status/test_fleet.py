"""What a status says of other processes, of hosts and of who pings."""

from __future__ import annotations

import json

import pytest

from tests.unit.status.statuses import NOW, entity, status
from twinbus.status.document import PairStatus
from twinbus.status.fleet import PINGED_ELSEWHERE, FleetStatus
from twinbus.status.judgement import judgement_of
from twinbus.status.reading import read_status

EVIDENCE = "4 other hosts since 17:00:12 UTC"


@pytest.mark.parametrize(
    ("fleet", "text"),
    [
        (FleetStatus(), ""),
        (FleetStatus(host_id="0" * 16, processes=1), "hears 1 other process of this host"),
        (
            FleetStatus(processes=2, hosts=3),
            "hears 2 other processes of this host; 3 other hosts on the notice board",
        ),
        (
            FleetStatus(files_off="no room", board_off="refused", hosts=3),
            "shares nothing with other processes of this host: no room; notice board off: refused",
        ),
    ],
)
def test_it_says_whom_it_hears_and_why_not(fleet: FleetStatus, text: str) -> None:
    assert str(fleet) == text
    lines = str(status(fleet=fleet)).splitlines()
    assert (f"  {text}" in lines) is bool(text)


def test_an_entity_names_its_evidence_and_its_pinger() -> None:
    down = entity("orders", "failed over", evidence=EVIDENCE, pinger=PINGED_ELSEWHERE)
    found = status(down, entity("billing"), fleet=FleetStatus(hosts=4))
    assert f"; {EVIDENCE}; pinged by another host" in str(found)
    assert f"failed over: orders (also: {EVIDENCE})" in judgement_of(found, NOW).attention
    assert read_status(json.loads(json.dumps(found.as_dict()))) == found


def test_a_document_of_an_earlier_release_has_none_of_it() -> None:
    document = json.loads(json.dumps(status(entity()).as_dict()))
    del document["fleet"]
    for name in ("evidence", "pinger"):
        del document["entities"]["orders"][name]
    read = read_status(document)
    assert isinstance(read, PairStatus)
    assert (read.fleet, read.entities["orders"].evidence) == (None, "")
