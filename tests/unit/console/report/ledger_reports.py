"""Reports of ledgers that were never written: for tests of what is made of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

from twinbus.pipeline.reports.documents import (
    AgedBacklog,
    Agreement,
    AvailabilityReport,
    BacklogPoint,
    Balance,
    ChargeLine,
    ChargesReport,
    ConservationReport,
    DayUnits,
    Difference,
    DuplicateMessage,
    EntityAvailability,
    EntityUnits,
    FailoverWindow,
    ModelLine,
    NamedMessage,
    Percentiles,
    PriceLine,
    ReconciliationReport,
    ReportScope,
    Sends,
)
from twinbus.pipeline.reports.values import Bill, Charge

BEGAN_S = 1_794_787_200
"""2026-11-16 00:00:00 UTC."""
BEGAN_MS = BEGAN_S * 1000

SCOPE = ReportScope(
    ledger="/var/lib/app/ledger",
    first_ms=BEGAN_MS,
    last_ms=BEGAN_MS + 3_600_000,
    records=48_120,
    rejected={"torn": 1, "foreign": 2},
)


def balance(entity: str, accepted: int, **fates: Any) -> Balance:
    """A balance whose fates are 0 unless said, and all others delivered."""
    known = {"waiting": 0, "dead_lettered": 0, "expired": 0, "lost": 0, "undecided": 0, **fates}
    parts = ("waiting", "dead_lettered", "expired", "lost", "undecided")
    rest = accepted - sum(known[name] or 0 for name in parts)
    further = {"received": None, "duplicates": None, "raised": 0}
    return Balance(entity=entity, accepted=accepted, **{"delivered": rest, **further, **known})


CONSERVED = ConservationReport(
    scope=replace(SCOPE, rejected={}),
    total=balance("", 12_034, waiting=4),
    entities=(balance("orders", 10_000, waiting=4), balance("payments", 2_034)),
    lost_at_least=0,
    messages=(NamedMessage("orders", "o-17", "waiting", BEGAN_MS + 5_000),),
    messages_left_out=3,
    duplicate_windows={},
    duplicates=(),
    peeked_ms=BEGAN_MS + 3_601_000,
    unknown=("received, duplicates: no consumer kept a ledger",),
)

NOT_KNOWN = "not known whether anything is lost: 12,034 accepted = 12,030 delivered + 4 waiting"
"""What is said of the same figures in a ledger with holes."""

LOST = ConservationReport(
    scope=SCOPE,
    total=balance(
        "", 12_034, lost=2, dead_lettered=2, expired=1, received=12_029, duplicates=3, raised=7
    ),
    entities=(
        balance("orders", 10_000, lost=2, dead_lettered=2, received=9_996, duplicates=3, raised=7),
        balance("payments", 2_034, expired=1, received=2_033, duplicates=0),
    ),
    lost_at_least=2,
    messages=(
        NamedMessage("orders", "o-17", "lost", BEGAN_MS + 5_000),
        NamedMessage("orders", "o-18", "lost", BEGAN_MS + 5_100),
        NamedMessage("payments", "p-3", "expired", BEGAN_MS + 6_000),
        NamedMessage("orders", "o-99", "dead_lettered", BEGAN_MS + 7_000),
        NamedMessage("orders", "\x1b[31m<b>", "dead_lettered", None),
    ),
    duplicate_windows={"ambiguous": 1, "syphon": 2},
    duplicates=(
        DuplicateMessage("orders", "o-5", 2, "ambiguous"),
        DuplicateMessage("orders", "o-6", 2, "syphon"),
        DuplicateMessage("orders", "o-7", 3, "syphon"),
    ),
    aged=(AgedBacklog("orders", 120, 5_400_000, 600_000),),
    peeked_ms=BEGAN_MS + 3_601_000,
)

UNDECIDED = replace(
    CONSERVED,
    total=balance("", 12_034, waiting=None, dead_lettered=None, lost=None, undecided=34),
    entities=(
        balance("orders", 10_000, waiting=None, dead_lettered=None, lost=None, undecided=34),
        balance("payments", 2_034, waiting=None, dead_lettered=None),
    ),
    messages=(),
    messages_left_out=0,
    peeked_ms=None,
    unknown=("waiting and dead-lettered: no process peeked into the backlog queues",),
)

CHARGES = ChargesReport(
    scope=replace(SCOPE, entity="orders", since_ms=BEGAN_MS, until_ms=BEGAN_MS + 2 * 86_400_000),
    operations=30_040,
    units=30_100,
    bytes_in=18_000_000,
    bytes_out=9_000_000,
    by_kind=(
        Charge("application", "send", False, 10_000, 10_060),
        Charge("consumer", "receive", True, 10_000, 10_000),
        Charge("poll", "backlog_receive", False, 40, 40),
        Charge("syphon", "complete", False, 5_000, 5_000),
        Charge("syphon", "forward", False, 5_000, 5_000),
    ),
    by_day=(
        DayUnits(date(2026, 11, 16), "application", 6_060),
        DayUnits(date(2026, 11, 16), "syphon", 10_000),
        DayUnits(date(2026, 11, 17), "application", 4_000),
        DayUnits(date(2026, 11, 17), "consumer", 10_000),
        DayUnits(date(2026, 11, 17), "poll", 40),
    ),
    by_entity=(EntityUnits("orders", 30_000, 30_060), EntityUnits("", 40, 40)),
    entities=2,
    lines=(
        ChargeLine(
            date(2026, 11, 16), "contoso", "orders", "application", "send_primary", "in", "send",
            False, 10_000, 10_060, 18_000_000,
        ),
        ChargeLine(
            date(2026, 11, 17), "", "orders", "consumer", "receive_primary", "out", "receive",
            True, 10_000, 10_000, 9_000_000,
        ),
    ),
    bill=Bill(
        price_book="standard-uksouth-2026-10-05",
        currency="USD",
        units=25_100,
        settlement_units=5_000,
        settlement_counted=False,
        amount=Decimal(0),
        amount_past_free=Decimal("0.02008"),
        bytes_in=18_000_000,
        bytes_out=9_000_000,
        egress_amount=None,
    ),
    prices=(
        PriceLine("Standard", "Messaging Operations", "25,100", Decimal("0.02008"), "past free"),
        PriceLine("Premium", "Messaging Unit", "2 x 730 h", Decimal("1354.15"), "a month, 1 unit"),
    ),
    model=(ModelLine("idle polls of 10 queues in 1 h", 40, 40, "one in 15 minutes and queue"),),
    assumed=("one receive for each delivered message",),
)  # fmt: skip

AVAILABLE = AvailabilityReport(
    scope=SCOPE,
    entities=(
        EntityAvailability("orders", 1, 900_000, False, 1_500, 3, receive_gap_ms=71_500),
        EntityAvailability("payments", 1, 840_000, False, 500, 0),
        EntityAvailability("events", 0, 0, False, 0, 0),
    ),
    windows=(
        FailoverWindow(
            "orders", "contoso", "web-1", BEGAN_MS + 600_000, BEGAN_MS + 660_000,
            BEGAN_MS + 1_560_000, "no success for 60 s", 1_500, receive_gap_ms=71_500,
        ),
        FailoverWindow(
            "payments", "contoso", "web-1", None, BEGAN_MS + 720_000, BEGAN_MS + 1_560_000, "", 500
        ),
    ),
    detect=Percentiles(1, 60_000, 60_000, 60_000, 60_000),
    recover=Percentiles(2, 840_000, 900_000, 900_000, 900_000),
    bucket_s=60,
    sends=tuple(
        Sends(BEGAN_S + 60 * at, 0 if 11 <= at < 26 else 120, 133 if 11 <= at < 26 else 0)
        for at in range(60)
    ),
    backlog=tuple(
        BacklogPoint(
            BEGAN_S + 60 * at,
            133 * (at - 10) if at < 26 else max(0, 2_000 - 500 * (at - 30)) if at >= 30 else 2_000,
            60 * (at - 10) if at < 34 else None,
        )
        for at in range(11, 36)
    ),
    drained=2_000,
    drain_ms=240_000,
)  # fmt: skip

STILL_OVER = replace(
    AVAILABLE,
    entities=(EntityAvailability("orders", 1, 900_000, True, 1_500, 3),),
    windows=(AVAILABLE.windows[0]._replace(recovered_ms=None),),
    recover=None,
)

ENDED_OVER = replace(
    STILL_OVER,
    entities=(EntityAvailability("orders", 1, 900_000, False, 1_500, 3),),
    windows=(STILL_OVER.windows[0]._replace(process_ended_ms=BEGAN_MS + 1_500_000),),
)

AGREED = ReconciliationReport(
    scope=replace(SCOPE, rejected={}),
    rows=(
        Agreement("orders", "send", 10_000, 10_000, 0, 0),
        Agreement("orders", "divert", 1_500, 1_501, 0, 0, 1),
    ),
    differences=(Difference("orders", "divert", "o-5", -1, 1, "the client had no answer"),),
    explained=1,
    broker_records=11_501,
)

DIFFERENT = replace(
    AGREED,
    rows=(AGREED.rows[0], Agreement("orders", "divert", 1_500, 1_500, 1, 0)),
    differences=(
        *AGREED.differences,
        Difference("orders", "divert", "o-6", 1, 0, ""),
    ),
)

ONE_VIEW = replace(AGREED, rows=(), differences=(), explained=0, broker_records=0)
