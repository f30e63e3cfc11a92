"""A status from another process: the same again, or a sentence that says what does not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.status.statuses import entity, queue, side, status, syphon
from twinbus.status.document import (
    VERSION,
    HostStatus,
    SyphonQueueStatus,
    TwinStatus,
)
from twinbus.status.reading import StatusUnreadable, read_status

WHOLE = status(
    entity("orders", "failed over", since_s=5.5, next_ping_in_s=0),
    entity("events", last_error="refused", last_error_at=1.0),
    entity("audit", twinned=2, twin=TwinStatus("pulled", "full", 3.0, verified=True)),
    backlog_queues={"q/0": queue("pulled", reason="full", returns_in_s=3.0, not_verified=["ttl"])},
    sides=side("faulted", "by hand"),
    syphon={"q/0": SyphonQueueStatus(held={"orders": "full"}, gives_up_in_s={"orders": 9.5})},
    pings={"answered": 2},
)


def sent(found: HostStatus, **changes: Any) -> dict[str, Any]:
    """Return the JSON of a status as it arrives, with some fields changed."""
    document: dict[str, Any] = json.loads(json.dumps(found.as_dict()))
    return {**document, **changes}


@pytest.mark.parametrize("found", [WHOLE, status(), replace(syphon(), waiting=3, only=["orders"])])
def test_a_status_is_the_same_after_its_journey(found: HostStatus) -> None:
    assert read_status(sent(found)) == found


def test_fields_of_later_releases_are_left_out_and_those_of_earlier_ones_have_defaults() -> None:
    document = sent(WHOLE, colour="blue")
    document["entities"]["orders"]["mood"] = [1]
    for name in ("raising", "held_at"):
        del document["entities"]["orders"][name]
    del document["version"]
    assert read_status(document) == WHOLE


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (None, "None is no object"),
        ({}, "queues is missing"),
        ({"entities": {}}, "backlog_queues, primary, protected, searching, secondary is missing"),
        (sent(WHOLE, protected="yes"), "protected: 'yes' is no bool"),
        (sent(WHOLE, entities=[1]), "entities: [1] is no object"),
        (sent(WHOLE, entities={"x": {"state": "later"}}), "entities: state: 'later' is not one of"),
        (sent(WHOLE, ledger_unrecorded=1.5), "ledger_unrecorded: 1.5 is no such number"),
        (sent(WHOLE, faults_in_s=float("nan")), "faults_in_s: nan is no such number"),
        (sent(WHOLE, version=VERSION + 1), f"it has version {VERSION + 1}, this release reads"),
        (sent(syphon(), only="orders"), "only: 'orders' is no list"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(document: object, why: str) -> None:
    with pytest.raises(StatusUnreadable, match="use the same release of Twinbus") as refused:
        read_status(document)
    assert why in str(refused.value)
