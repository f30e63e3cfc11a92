"""The cost on the page: what counts, and the document made of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from twinbus.cost import prices
from twinbus.page.core.cost import ChargeSums, charged_units, cost_document, sums_of

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
