"""`twinbus report reconciliation`: do the clients and the broker say the same. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from twinbus.console.report.scope_text import closing_sections, entity_names
from twinbus.console.sheet.sheet import Sheet, Table, Tile, table
from twinbus.console.terminal.table import cell, counted, visible
from twinbus.pipeline.reports.documents import ReconciliationReport, ReportVerdict


def reconciliation_sheet(report: ReconciliationReport) -> Sheet:
    """The content of the report."""
    return Sheet(
        title="reconciliation report",
        headline=_headline(report),
        verdict=report.verdict,
        lines=tuple(_lines(report)),
        tiles=tuple(_tiles(report)),
        tables=tuple(_tables(report)),
        sections=closing_sections(report),
    )


def _headline(report: ReconciliationReport) -> str:
    if not report.broker_records:
        return "not known: the ledger has no record of the broker's view"
    both = sum(row.clients for row in report.rows)
    if report.verdict is ReportVerdict.UNKNOWN:
        differ = counted(report.unexplained, "difference")
        return f"not known: {differ} in {counted(both, 'operation')}, and records are missing"
    if report.verdict is ReportVerdict.BAD:
        return (
            f"{counted(report.unexplained, 'difference')} between the clients' view and the"
            f" broker's, in {counted(both, 'operation')}"
        )
    if not any(row.explained for row in report.rows):
        return f"both views agree on {counted(both, 'operation')}, entity by entity"
    more = sum(row.explained for row in report.rows)
    of = ", ".join(sorted({row.operation for row in report.rows if row.explained}))
    return (
        f"both views agree on {counted(both, 'operation')}; the broker counts {more:,} more ({of}),"
        " explained below"
    )


def _lines(report: ReconciliationReport) -> Iterator[str]:
    if not report.broker_records:
        yield "the embedded broker writes its view with: twinbus serve ... --ledger DIR"


def _tiles(report: ReconciliationReport) -> Iterator[Tile]:
    yield Tile("operations, by clients", cell(sum(row.clients for row in report.rows)))
    yield Tile("operations, by the broker", cell(sum(row.broker for row in report.rows)))
    yield Tile("explained differences", cell(report.explained))
    yield Tile("not explained", cell(report.unexplained), is_bad=bool(report.unexplained))


def _tables(report: ReconciliationReport) -> Iterator[Table]:
    name = entity_names(report.rows)
    if report.rows:
        yield table(
            "By place and operation",
            (
                *("place", "operation", ">clients", ">broker"),
                *(">only clients", ">only broker", ">explained"),
            ),
            report.rows,
            lambda row: (name(row), *row[1:-1]),
            is_bad=lambda row: row.only_clients or row.only_broker,
        )
    if report.differences:
        yield table(
            "Differences",
            ("place", "operation", "message id", ">clients ahead by", ">unanswered", "why"),
            report.differences,
            lambda one: (
                name(one),
                one.operation,
                one.message_id,
                f"{one.ahead:+,}",
                one.unanswered,
                visible(one.explanation) or "not explained",
            ),
            total=len(report.differences) + report.differences_left_out,
        )
