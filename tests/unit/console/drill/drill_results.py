"""Results of drills that were never held: for tests of what is made of them."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from twinbus.console.drill.result import DrillPlan, DrillResult, Moments
from twinbus.pipeline.reports.documents import (
    AvailabilityReport,
    BacklogPoint,
    Balance,
    ChargesReport,
    ConservationReport,
    FailoverWindow,
    ReportScope,
    Sends,
)
from twinbus.pipeline.reports.outage import OutageReport
from twinbus.pipeline.reports.values import Bill, Charge

BEGAN_S = 1_800_000_000
BEGAN_MS = BEGAN_S * 1000
ENTITIES = ("orders", "payments", "events")
RECEIVE_GAPS_MS = {"orders": 2_240, "payments": 9_780, "events": 2_310}

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

SCOPE = ReportScope(ledger="ledger", first_ms=BEGAN_MS, records=16_000)

KINDS = (
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
)


def window(
    entity: str, failed_over_ms: int = 5_100, recovered_ms: int | None = 12_400
) -> FailoverWindow:
    """A failover, in milliseconds from the first send."""
    return FailoverWindow(
        entity=entity,
        pair="contoso",
        process="host-1",
        suspect_ms=BEGAN_MS + 3_010,
        failed_over_ms=BEGAN_MS + failed_over_ms,
        recovered_ms=None if recovered_ms is None else BEGAN_MS + recovered_ms,
        reason="no success for 2 s",
        sends_saved=500,
        receive_gap_ms=RECEIVE_GAPS_MS.get(entity),
    )


WINDOWS = tuple(window(name) for name in ENTITIES)

TOTAL = Balance(
    entity="",
    accepted=3_000,
    delivered=3_000,
    waiting=0,
    dead_lettered=0,
    expired=0,
    lost=0,
    undecided=0,
    received=3_000,
    duplicates=0,
    raised=0,
)

REPORT = OutageReport(
    conservation=ConservationReport(
        scope=SCOPE,
        total=TOTAL,
        entities=(TOTAL._replace(entity="orders"),),
        lost_at_least=0,
        messages=(),
        duplicate_windows={},
        duplicates=(),
    ),
    charges=ChargesReport(
        scope=SCOPE,
        operations=13_515,
        units=13_515,
        bytes_in=3_000_000,
        bytes_out=3_000_000,
        by_kind=KINDS,
        by_day=(),
        by_entity=(),
        entities=0,
        lines=(),
        bill=BILL,
    ),
    availability=AvailabilityReport(
        scope=SCOPE,
        entities=(),
        windows=WINDOWS,
        detect=None,
        recover=None,
        bucket_s=1,
        sends=(
            *(Sends(BEGAN_S + second, 188, 0) for second in range(3)),
            Sends(BEGAN_S + 5, 0, 186, 372),
            *(Sends(BEGAN_S + second, 0, 53, 104) for second in range(6, 12)),
            *(Sends(BEGAN_S + second, 188, 0) for second in range(12, 17)),
        ),
        backlog=(
            BacklogPoint(BEGAN_S + 5, 560, 0),
            *(
                BacklogPoint(BEGAN_S + second, 560 + 157 * (second - 5), second - 5)
                for second in range(6, 12)
            ),
            BacklogPoint(BEGAN_S + 19, 700, 14),
            BacklogPoint(BEGAN_S + 20, 0, None),
        ),
        drained=1_500,
        drain_ms=2_000,
    ),
    drain_began_ms=BEGAN_MS + 19_000,
    drain_ended_ms=BEGAN_MS + 21_000,
    forwarded=1_500,
    not_received_ids=(),
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
    report=REPORT,
    sends_returned=3_000,
    twins=("orders", "events"),
    without_twin=("payments",),
    took_s={"start": 0.9, "send": 16.0, "drain": 4.0},
    version="0.1.0",
)

BALANCE_FIELDS = frozenset(Balance._fields)
SCOPE_FIELDS = frozenset({"rejected", "unrecorded", "missing", "gaps"})


def drilled(**changes: Any) -> DrillResult:
    """The drill that passed, with other figures: of its balance, or fields of its reports."""
    total = TOTAL._replace(**{key: changes.pop(key) for key in BALANCE_FIELDS & changes.keys()})
    conservation, charges, availability = REPORT.conservation, REPORT.charges, REPORT.availability
    scope = {key: changes.pop(key) for key in SCOPE_FIELDS & changes.keys()}
    if "windows" in changes:
        availability = replace(availability, windows=changes.pop("windows"))
    if "sends" in changes:
        availability = replace(availability, sends=changes.pop("sends"))
    if "by_kind" in changes:
        charges = replace(charges, by_kind=changes.pop("by_kind"))
    conservation = replace(
        conservation,
        scope=replace(SCOPE, **scope),
        total=total,
        entities=(total._replace(entity="orders"),),
        duplicate_windows=changes.pop("duplicate_windows", {}),
    )
    report = replace(
        REPORT,
        conservation=conservation,
        charges=charges,
        availability=availability,
        **changes,
    )
    return replace(PASSED, report=report)
