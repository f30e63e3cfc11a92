"""`twinbus report charges`: what was done, and what it costs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from twinbus.console.report.scope_text import CAUSES, cause_name, closing_sections
from twinbus.console.sheet import bars
from twinbus.console.sheet.sheet import (
    ROWS_SHOWN,
    Figure,
    Sheet,
    Table,
    Tile,
    column_indexes,
    count,
    rest,
)
from twinbus.console.terminal.table import counted, money, size, visible

if TYPE_CHECKING:
    from twinbus.pipeline.reports.documents import ChargesReport


def charges_sheet(report: ChargesReport) -> Sheet:
    """The content of the report."""
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
    yield by_kind_table(report)
    if report.prices:
        yield _prices(report)
    if report.model:
        yield _model(report)
    if report.by_entity:
        yield _by_entity(report)


def by_kind_table(report: ChargesReport) -> Table:
    """Calls and units by cause and operation."""
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
        numbers=column_indexes("calls", "units of 64 KB", of=names),
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
        numbers=column_indexes("quantity", "amount", of=names),
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
        numbers=column_indexes("by the model", "in the ledger", of=names),
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
        numbers=column_indexes(*names[1:], of=names),
        note=rest(len(shown), report.entities, "more entities"),
    )


def _charts(report: ChargesReport) -> Iterator[Figure]:
    if not report.by_day:
        return
    names = CAUSES | {row.cause: row.cause for row in report.by_day if row.cause not in CAUSES}
    causes: Counter[str] = Counter()
    days: dict[str, Counter[str]] = {}
    for row in report.by_day:
        causes[row.cause] += row.units
        days.setdefault(row.day.isoformat(), Counter())[row.cause] += row.units
    yield cause_figure("Billed operations by cause", causes)
    if len(days) > 1:
        yield Figure(
            "Billed operations by day (UTC)", lambda: bars.columns(sorted(days.items()), names)
        )


def cause_figure(title: str, amounts: Mapping[str, int]) -> Figure:
    """A bar for each cause, in the order in which a message meets them."""
    known = [cause for cause in CAUSES if amounts.get(cause)]
    order = [*known, *sorted(amounts.keys() - CAUSES.keys())]
    return bars.bar_figure(
        title,
        [
            bars.NamedBar(cause_name(cause), amounts[cause], f"{amounts[cause]:,}")
            for cause in order
        ],
    )
