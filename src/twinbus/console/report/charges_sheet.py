"""`twinbus report charges`: what was done, and what it costs; text that all reports share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from twinbus.console.output import cell, money
from twinbus.console.sheet import BarRow, Bars, Section, Sheet, Table, Tile, clock, sections, table
from twinbus.pipeline.reports.documents import ChargesReport, LedgerReport, ReportScope
from twinbus.wording import counted, size, visible

CAUSES: Final = {
    "application": "sends to the primary",
    "failover": "sends to the backlog and to twins",
    "ping": "pings",
    "syphon": "syphon: receive, forward, complete",
    "poll": "syphon: polls that found nothing",
    "lease": "syphon: leases",
    "administration": "administration",
    "consumer": "receivers: receive, settle, renew",
    "board": "notice board: looks and posts",
}
"""Names of the ledger's causes, in the order in which a message meets them."""

DUPLICATE_CAUSES: Final = {
    "ambiguous": "a send that had no answer was done again elsewhere",
    "twin": "a send that had no answer was stored, and the twin took the message too",
    "syphon": "the syphon forwarded it twice",
    "stored_twice": "the broker stored it twice, and no record says why",
    "redelivered": "a consumer did not complete it, or lost its lock",
    "unexplained": "the ledger does not say why",
}


class OfEntity(Protocol):
    @property
    def entity(self) -> str: ...

    @property
    def primary_label(self) -> str: ...


def entity_names(rows: Sequence[OfEntity]) -> Callable[[OfEntity], str]:
    """How rows name their entity: with its primary, if two primaries have one of the same name."""
    places = {(row.entity, row.primary_label) for row in rows}
    if len(places) == len({entity for entity, _ in places}):
        return lambda row: row.entity
    return lambda row: (
        f"{row.entity} ({row.primary_label})" if row.entity and row.primary_label else row.entity
    )


def closing_sections(report: LedgerReport, *more_read: str) -> tuple[Section, ...]:
    """What is unknown, what is assumed, and what was read."""
    return sections(
        ("Unknown", report.unknown),
        ("Assumed", report.assumed),
        ("Read", (*_read(report.scope), *more_read)),
    )


def _read(scope: ReportScope) -> Iterator[str]:
    yield f"ledger {visible(scope.ledger)}"
    if scope.first_ms is None:
        yield "no record is in scope"
    else:
        records = counted(scope.records, "record")
        yield f"{records} from {clock(scope.first_ms)} to {clock(scope.last_ms)} UTC"
    requested = ", ".join(_requested(scope))
    if requested:
        yield f"asked for {requested}"
    if any(scope.rejected.values()):
        by_count = sorted(scope.rejected.items(), key=lambda reason: (-reason[1], reason[0]))
        reasons = ", ".join(f"{number:,} {visible(name)}" for name, number in by_count)
        yield f"{counted(sum(scope.rejected.values()), 'line')} rejected: {reasons}"
    # Files and writers that leave nothing unknown; the others are in the section Unknown.
    yield from map(visible, scope.remarks)
    yield from (visible(gap.sentence) for gap in scope.gaps if not gap.is_open)


def _requested(scope: ReportScope) -> Iterator[str]:
    if scope.entity is not None:
        yield f"entity {visible(scope.entity)}"
    if scope.since_ms is not None:
        yield f"from {clock(scope.since_ms)}"
    if scope.until_ms is not None:
        yield f"before {clock(scope.until_ms)}"


DAYS_SHOWN: Final = 62
"""Days of the chart, the last ones; JSON and CSV have all."""


def charges_sheet(report: ChargesReport) -> Sheet:
    return Sheet(
        title="charges report",
        headline=_headline(report),
        verdict=report.verdict,
        judges=False,
        lines=tuple(_lines(report)),
        tiles=tuple(_tiles(report)),
        tables=tuple(_tables(report)),
        charts=tuple(_charts(report)),
        sections=closing_sections(report),
    )


def _headline(report: ChargesReport) -> str:
    if not report.operations:
        return "nothing was done, nothing is charged"
    bill = report.bill
    return (
        f"{money(bill.amount_past_free, bill.currency)} for"
        f" {counted(bill.units, 'billed operation')} once the month's free ones are used up;"
        f" {money(bill.amount, bill.currency)} if these were its only ones"
    )


def _lines(report: ChargesReport) -> Iterator[str]:
    bill = report.bill
    settlements = counted(bill.settlement_units, "settlement")
    settled = f"{settlements} (complete, defer, dead-letter, abandon, release)"
    rule = "" if bill.settlement_counted else "not counted: --settlement counted has them in"
    yield f"prices: {visible(bill.price_book)}; {settled} {rule or 'counted'}"
    if report.recorded_receives and report.broker_receives > report.recorded_receives:
        more = report.broker_receives - report.recorded_receives
        yield (
            f"receives: {report.broker_receives:,} as the broker recorded them, {more:,} more than"
            " the receivers: a message that a receiver gives back is billed again"
        )
    out = f"{size(report.bytes_out)} out of the namespaces"
    if bill.egress_amount is None:
        yield f"{out}: not priced, the book has no price for traffic out of the region"
    else:
        yield f"{out}: {money(bill.egress_amount, bill.currency)} if all of it left the region"


def _tiles(report: ChargesReport) -> Iterator[Tile]:
    bill = report.bill
    yield Tile("calls", cell(report.operations))
    yield Tile("billed operations (64 KB each)", cell(bill.units))
    yield Tile("past the free operations", money(bill.amount_past_free, bill.currency))
    yield Tile("as the month's only ones", money(bill.amount, bill.currency))
    yield Tile("in", size(report.bytes_in))
    yield Tile("out", size(report.bytes_out))


def _tables(report: ChargesReport) -> Iterator[Table]:
    yield by_kind_table(report)
    yield table(
        "Money by tier",
        ("tier", "what", ">quantity", ">amount", ""),
        report.prices,
        lambda line: (
            line.tier,
            line.meter,
            line.quantity,
            money(line.amount, report.bill.currency),
            line.note,
        ),
        limit=len(report.prices),
    )
    yield table(
        "The documented arithmetic, and the fact",
        ("what", ">by the model", ">in the ledger", ""),
        report.model,
        lambda line: (line.name, line.model, line.fact, line.note),
        limit=len(report.model),
    )
    name = entity_names(report.by_entity)
    yield table(
        "By entity",
        ("entity", ">calls", ">units of 64 KB"),
        report.by_entity,
        lambda row: (visible(name(row)) or "(none)", row.operations, row.units),
        total=report.entities,
        more="more entities",
    )


def by_kind_table(report: ChargesReport) -> Table:
    order = {cause: place for place, cause in enumerate(CAUSES)}
    kinds = sorted(
        report.by_kind,
        key=lambda kind: (order.get(kind.cause, len(order)), kind.cause, -kind.operations),
    )
    rows: list[tuple[str, str, int, int]] = [
        (
            CAUSES.get(kind.cause, kind.cause),
            kind.operation + (" (assumed)" if kind.assumed else ""),
            kind.operations,
            kind.units,
        )
        for kind in kinds
    ]
    rows.append(("all", "", report.operations, report.units))
    columns = ("cause", "operation", ">calls", ">units of 64 KB")
    return table("By cause", columns, rows, lambda row: row, limit=len(rows))


def _charts(report: ChargesReport) -> Iterator[Bars]:
    if not report.by_day:
        return
    names = CAUSES | {row.cause: row.cause for row in report.by_day if row.cause not in CAUSES}
    causes: Counter[str] = Counter()
    days: dict[str, Counter[str]] = {}
    for row in report.by_day:
        causes[row.cause] += row.units
        days.setdefault(row.day.isoformat(), Counter())[row.cause] += row.units
    yield cause_bars("Billed operations by cause", causes)
    if len(days) > 1:
        rows = [
            BarRow(day, tuple((cause, units[cause]) for cause in names), f"{units.total():,}")
            for day, units in sorted(days.items())[-DAYS_SHOWN:]
        ]
        yield Bars("Billed operations by day (UTC)", tuple(rows), names)


def cause_bars(title: str, amounts: Mapping[str, int]) -> Bars:
    """A bar for each cause, in the order in which a message meets them."""
    known = [cause for cause in CAUSES if amounts.get(cause)]
    order = [*known, *sorted(amounts.keys() - CAUSES.keys())]
    rows = [
        BarRow(CAUSES.get(cause, cause), (("plain", amounts[cause]),), f"{amounts[cause]:,}")
        for cause in order
    ]
    return Bars(title, tuple(rows))
