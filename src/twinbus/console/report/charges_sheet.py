"""`twinbus report charges` in words: what was done, and what it costs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from twinbus.console.drill.text import CAUSES, cause_name
from twinbus.console.report import charts as report_charts
from twinbus.console.report.sheet import (
    ROWS_SHOWN,
    Figure,
    Sheet,
    Table,
    Tile,
    count,
    counted,
    figures,
    read_line,
    rest,
)
from twinbus.console.terminal.table import money, size, visible

if TYPE_CHECKING:
    from twinbus.pipeline.reports.documents import ChargesReport

__all__ = ["charges_sheet"]


def charges_sheet(report: ChargesReport) -> Sheet:
    """The report in words."""
    return Sheet(
        title="Charges",
        headline=_headline(report),
        verdict=report.verdict,
        judges=False,
        lines=tuple(_lines(report)),
        tiles=tuple(_tiles(report)),
        tables=tuple(_tables(report)),
        charts=tuple(_charts(report)),
        unknown=report.unknown,
        assumed=report.assumed,
        read=read_line(report.scope),
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
    settled = (
        f"{counted(bill.settlement_units, 'settlement')} (complete, defer, dead-letter) counted"
        if bill.settlement_counted
        else f"{counted(bill.settlement_units, 'settlement')} (complete, defer, dead-letter) not"
        " counted: --settlement counted has them in"
    )
    yield f"prices: {visible(bill.price_book)}; {settled}"
    out = f"{size(report.bytes_out)} out of the namespaces"
    if bill.egress_amount is None:
        yield f"{out}: not priced, the book has no price for traffic out of the region"
    else:
        yield f"{out}: {money(bill.egress_amount, bill.currency)} if all of it left the region"


def _tiles(report: ChargesReport) -> Iterator[Tile]:
    bill = report.bill
    yield Tile("calls", count(report.operations))
    yield Tile("billed operations (64 KB each)", count(bill.units))
    yield Tile("past the free operations", money(bill.amount_past_free, bill.currency))
    yield Tile("as the month's only ones", money(bill.amount, bill.currency))
    yield Tile("in", size(report.bytes_in))
    yield Tile("out", size(report.bytes_out))


def _tables(report: ChargesReport) -> Iterator[Table]:
    yield _by_kind(report)
    if report.prices:
        yield _prices(report)
    if report.model:
        yield _model(report)
    if report.by_entity:
        yield _by_entity(report)


def _by_kind(report: ChargesReport) -> Table:
    order = {cause: place for place, cause in enumerate(CAUSES)}
    kinds = sorted(
        report.by_kind,
        key=lambda kind: (order.get(kind.cause, len(order)), kind.cause, -kind.operations),
    )
    names = ("cause", "operation", "calls", "units of 64 KB")
    rows = [
        (
            visible(cause_name(kind.cause)),
            visible(kind.operation) + (" (assumed)" if kind.assumed else ""),
            f"{kind.operations:,}",
            f"{kind.units:,}",
        )
        for kind in kinds
    ]
    rows.append(("all", "", f"{report.operations:,}", f"{report.units:,}"))
    return Table(
        title="By cause",
        columns=names,
        rows=tuple(rows),
        numbers=figures("calls", "units of 64 KB", of=names),
    )


def _prices(report: ChargesReport) -> Table:
    names = ("tier", "what", "quantity", "amount", "")
    return Table(
        title="Money by tier",
        columns=names,
        rows=tuple(
            (
                visible(line.tier),
                visible(line.meter),
                visible(line.quantity),
                money(line.amount, report.bill.currency),
                visible(line.note),
            )
            for line in report.prices
        ),
        numbers=figures("quantity", "amount", of=names),
    )


def _model(report: ChargesReport) -> Table:
    names = ("what", "by the model", "in the ledger", "")
    return Table(
        title="The documented arithmetic, and the fact",
        columns=names,
        rows=tuple(
            (visible(line.name), f"{line.model:,}", count(line.fact), visible(line.note))
            for line in report.model
        ),
        numbers=figures("by the model", "in the ledger", of=names),
    )


def _by_entity(report: ChargesReport) -> Table:
    names = ("entity", "calls", "units of 64 KB")
    shown = report.by_entity[:ROWS_SHOWN]
    return Table(
        title="By entity",
        columns=names,
        rows=tuple(
            (visible(row.entity) or "(none)", f"{row.operations:,}", f"{row.units:,}")
            for row in shown
        ),
        numbers=figures(*names[1:], of=names),
        note=rest(len(shown), report.entities, "more entities"),
    )


def _charts(report: ChargesReport) -> Iterator[Figure]:
    causes = {cause: cause_name(cause) for cause in CAUSES}
    causes |= {row.cause: row.cause for row in report.by_day if row.cause not in causes}
    if report.by_day:
        yield Figure(
            "Billed operations by cause",
            lambda: report_charts.amounts(_by_cause(report), causes),
        )
        days: dict[str, dict[str, int]] = {}
        for row in report.by_day:
            units = days.setdefault(row.day.isoformat(), {})
            units[row.cause] = units.get(row.cause, 0) + row.units
        if len(days) > 1:
            yield Figure(
                "Billed operations by day (UTC)",
                lambda: report_charts.columns(sorted(days.items()), causes),
            )


def _by_cause(report: ChargesReport) -> list[tuple[str, int]]:
    sums: dict[str, int] = {}
    for row in report.by_day:
        sums[row.cause] = sums.get(row.cause, 0) + row.units
    known = [cause for cause in CAUSES if cause in sums]
    return [(cause, sums[cause]) for cause in [*known, *sorted(sums.keys() - CAUSES.keys())]]
