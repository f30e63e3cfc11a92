"""The page's commands: how it is started, and the costs that it shows."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from twinbus.console.options import PageOptions
from twinbus.console.output import WrongUse
from twinbus.console.page.commands import run
from twinbus.console.page.cost import ChargeSums, PageCost, charged_units, cost_document, sums_of
from twinbus.cost import prices
from twinbus.errors import MissingPackageError
from twinbus.ledger.record import encode
from twinbus.page.live import PeerAddress


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"host": "0.0.0.0"}, "beyond loopback"),
        ({"host": "10.0.0.1", "operator_token_file": Path("token")}, "beyond loopback"),
        ({"tls_cert": Path("cert.pem")}, "TLS needs both"),
        ({"peer": ["ftp://x"]}, "a peer is a URL like"),
        ({"peer": ["http://10.0.0.1/?token=s3cret"]}, "needs https"),
        ({"peer": ["https://10.0.0.1:x/?token=s3cret"]}, "a peer is a URL like"),
        ({"peer": ["https://10.0.0.1/"]}, "a peer is a URL like"),
        ({"peer": ["http://localhost/?token=a"] * 51}, "at most 50 peers"),
        ({"ledger": "/nowhere"}, "--ledger must be a directory"),
        ({"operator_token_file": Path("/nowhere")}, "cannot be read"),
    ],
)
def test_an_unsafe_page_is_not_served(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(WrongUse, match=complaint) as refused:
        run(PageOptions(**options))
    assert "s3cret" not in str(refused.value)


def test_tokens_must_be_long_and_two(tmp_path: Path) -> None:
    short, long = tmp_path / "short", tmp_path / "long"
    short.write_text("guess\n")
    long.write_text("0123456789abcdefghij\n")
    with pytest.raises(WrongUse, match="20 characters or more"):
        run(PageOptions(operator_token_file=short))
    with pytest.raises(WrongUse, match="are the same"):
        run(PageOptions(operator_token_file=long, viewer_token_file=long))


def test_no_text_of_the_options_or_of_a_peer_has_a_secret() -> None:
    address = PeerAddress.parse("https://ops.example/?token=s3cret")
    options = PageOptions(secondary="Endpoint=sb://x/;SharedAccessKey=s3cret")
    assert "s3cret" not in f"{address} {address.url} {address.place} {options!r}"


NOON = 1_794_916_800.0
"""2026-11-17 12:00 UTC."""

BOOK = prices.standard()


def record(operation: str, cause: str, **more: Any) -> dict[str, Any]:
    return {"operation": operation, "cause": cause, "at_ms": int(NOON * 1000), **more}


@pytest.mark.parametrize(
    ("one", "units"),
    [
        (record("send", "application", size_bytes=100), 1),
        (record("send", "application", size_bytes=64 * 1024 + 1), 2),
        (record("send", "application", outcome="unknown"), 1),
        (record("send", "application", outcome="failed"), 0),
        (record("ping", "ping", outcome="failed"), 1),
        (record("send", "application", view="broker"), 0),
        (record("divert", "failover", size_bytes=200_000), 4),
        (record("backlog_receive", "syphon", size_bytes=200_000), 4),
        (record("backlog_receive", "poll", size_bytes=200_000), 1),
        (record("complete", "syphon"), 0),
        (record("manage", "administration", size_bytes=200_000), 1),
        (record("renew", "lease"), 1),
        (record("state", ""), 0),
        (record("action", ""), 0),
        (record("expire", ""), 0),
        (record("writer", ""), 0),
    ],
)
def test_what_a_record_costs(one: dict[str, Any], units: int) -> None:
    assert charged_units(one) == units


def test_sums_are_by_day_in_utc_and_by_cause() -> None:
    last_night = {"at_ms": int((NOON - 43_201) * 1000)}
    sums = sums_of(
        [
            record("send", "application"),
            record("divert", "failover"),
            {**record("send", "application"), **last_night},
            record("complete", "syphon"),
        ]
    )
    assert sums == {
        ("2026-11-17", "application"): 1,
        ("2026-11-17", "failover"): 1,
        ("2026-11-16", "application"): 1,
    }


def test_the_document_has_today_the_month_the_outage_and_idling() -> None:
    sums: ChargeSums = Counter(
        {
            ("2026-11-16", "application"): 5_000_000,
            ("2026-11-17", "application"): 1_000_000,
            ("2026-11-17", "failover"): 250_000,
        }
    )
    made = cost_document(
        sums, BOOK, NOON, complete_from=None, outage=(NOON - 60, 250_000, True), idle_queues=10
    )
    meter = BOOK.meter("operations")
    assert made["month"]["operations"] == 6_250_000
    assert made["month"]["money"] == pytest.approx(float(meter.cost_past_free(6_250_000) or 0))
    assert made["month"]["money_with_free"] == 0.0
    assert [row["cause"] for row in made["month"]["by_cause"]] == ["application", "failover"]
    assert made["today"]["operations"] == 1_250_000
    assert made["outage"]["operations"] == 250_000
    assert made["outage"]["is_all"] is True
    # The documented 960 polls a day of 10 queues, and the searches of a syphon.
    assert made["idle_per_day"]["operations"] == 960 + 250 + 97
    idle = cost_document(Counter(), BOOK, NOON, complete_from=NOON - 5, outage=None, idle_queues=0)
    assert (idle["outage"], idle["idle_per_day"]["operations"]) == (None, 0)
    assert idle["complete_from"] == NOON - 5


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
