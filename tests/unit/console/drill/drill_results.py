"""Results of drills that were never held: for tests of what is made of them."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from twinbus.console.drill.result import DrillPlan, DrillResult, Moments, TookTime
from twinbus.pipeline.report import Bill, Charge, Depth, Report, Sends, StateChange

BEGAN_S = 1_800_000_000
BEGAN_MS = BEGAN_S * 1000
ENTITIES = ("orders", "payments", "events")

BILL = Bill(
    price_book="standard-uksouth-2026-10-05",
    currency="USD",
    units=9_040,
    settlement_units=4_500,
    settlement_counted=False,
    amount=Decimal(0),
    amount_past_free=Decimal("0.007232"),
    bytes_in=3_000_000,
    bytes_out=3_000_000,
    egress_amount=None,
)

TABLES = Report(
    accepted=3_000,
    delivered=3_000,
    received=3_000,
    not_received=0,
    not_received_ids=(),
    received_unaccepted=0,
    waiting=0,
    dead_lettered=0,
    expired=0,
    lost=0,
    lost_at_least=0,
    lost_ids=(),
    undecided=0,
    duplicates=0,
    duplicate_windows={},
    duplicate_ids=(),
    diverted=1_500,
    ambiguous=4,
    raised=0,
    charges=(
        Charge("application", "send", False, 1_500, 1_500),
        Charge("failover", "divert", False, 1_500, 1_500),
        Charge("ping", "ping", False, 3, 3),
        Charge("syphon", "backlog_receive", False, 1_500, 1_500),
        Charge("syphon", "forward", False, 1_500, 1_500),
        Charge("syphon", "complete", False, 1_500, 1_500),
        Charge("poll", "backlog_receive", False, 4, 4),
        Charge("administration", "manage", False, 8, 8),
        Charge("consumer", "receive", False, 3_000, 3_000),
        Charge("consumer", "complete", False, 3_000, 3_000),
    ),
    operations_by_cause={
        "application": 1_500,
        "failover": 1_500,
        "ping": 3,
        "syphon": 4_500,
        "poll": 4,
        "administration": 8,
        "consumer": 6_000,
    },
    bill=BILL,
    states=(
        *(StateChange(BEGAN_MS + 3_010, name, "suspect", "host-1") for name in ENTITIES),
        *(StateChange(BEGAN_MS + 5_100, name, "failed over", "host-1") for name in ENTITIES),
        *(StateChange(BEGAN_MS + 12_400, name, "healthy", "host-1") for name in ENTITIES),
    ),
    drain_began_ms=BEGAN_MS + 19_000,
    drain_ended_ms=BEGAN_MS + 21_000,
    forwarded=1_500,
    bucket_s=1,
    sends=(
        *(Sends(BEGAN_S + second, 188, 0) for second in range(3)),
        Sends(BEGAN_S + 5, 0, 560),
        *(Sends(BEGAN_S + second, 0, 157) for second in range(6, 12)),
        *(Sends(BEGAN_S + second, 188, 0) for second in range(12, 17)),
    ),
    backlog=(
        Depth(BEGAN_S + 5, 560),
        *(Depth(BEGAN_S + second, 560 + 157 * (second - 5)) for second in range(6, 12)),
        Depth(BEGAN_S + 19, 700),
        Depth(BEGAN_S + 20, 0),
    ),
    records=16_000,
    set_aside=0,
    unrecorded=0,
    unknown=(),
    assumed=(),
)

MOMENTS = Moments(
    began_ms=BEGAN_MS + 100,
    killed_ms=BEGAN_MS + 3_000,
    back_ms=BEGAN_MS + 11_800,
    ended_ms=BEGAN_MS + 26_000,
)

PASSED = DrillResult(
    plan=DrillPlan(),
    moments=MOMENTS,
    tables=TABLES,
    told_accepted=3_000,
    took=(TookTime("start", 0.9), TookTime("send", 16.0), TookTime("drain", 4.0)),
    version="0.1.0",
)


def drilled(told_accepted: int | None = None, **changes: Any) -> DrillResult:
    """The drill that passed, but with these fields of its tables."""
    told = PASSED.told_accepted if told_accepted is None else told_accepted
    return replace(PASSED, tables=replace(TABLES, **changes), told_accepted=told)
