"""The cost of a ledger that several pairs write to, before any table is made of it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from twinbus.console.page.cost import PageCost
from twinbus.cost import prices
from twinbus.errors import MissingPackageError
from twinbus.ledger.record import encode


def test_the_month_is_of_all_pairs_and_the_outage_of_the_chosen_one(tmp_path: Path) -> None:
    at_ms = int(time.time() * 1000)
    for label, diverts in (("contoso", 3), ("fabrikam", 5)):
        common = {"pair": f"{label}+dr", "outcome": "ok", "size_bytes": 10}
        lines = [
            encode(f"{label}-1-1", at_ms, "send", {**common, "cause": "application"}),
            *[encode(f"{label}-1-1", at_ms, "divert", {**common, "cause": "failover"})] * diverts,
            encode(f"{label}-1-1", at_ms, "backlog_receive", syphon_record(label)),
        ]
        (tmp_path / f"{label}-1-1-00000.jsonl").write_bytes(b"".join(lines))
    cost = PageCost(tmp_path, prices.standard())
    outages = {}
    for label in ("contoso", "fabrikam", "nobody"):
        document = cost.document(label, at_ms / 1000 - 60, 0)
        counted = {one["cause"]: one["operations"] for one in document["month"]["by_cause"]}
        assert counted == {"application": 2, "failover": 8, "syphon": 2}
        assert document["complete_from"] is None
        outages[label] = document["outage"]["operations"]
    assert outages == {"contoso": 3 + 1, "fabrikam": 5 + 1, "nobody": 0}


def syphon_record(label: str) -> dict[str, object]:
    """What a syphon writes of a message: it serves queues and names no pair."""
    queue = f"{label}/x-servicebus-transfer/0"
    return {"cause": "syphon", "backlog_queue": queue, "outcome": "ok", "size_bytes": 10}


def test_tables_that_need_a_missing_extra_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "_tables" / "sets").mkdir(parents=True)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackageError, match=r"the cost of .* needs the extra `spark`"):
        PageCost(tmp_path, prices.standard()).document("contoso", None, 0)
