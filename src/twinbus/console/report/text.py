"""A report as text for a terminal or a log, and its one table as CSV. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from twinbus.console.terminal.table import aligned, paint
from twinbus.pipeline.reports.documents import (
    Agreement,
    AvailabilityReport,
    Balance,
    ChargeLine,
    ChargesReport,
    ConservationReport,
    FailoverWindow,
    ReconciliationReport,
    ReportVerdict,
    iso,
)

if TYPE_CHECKING:
    from twinbus.console.report.sheet import Sheet, Table
    from twinbus.pipeline.reports.documents import LedgerReport

__all__ = ["csv_of", "text_of"]

INDENT: Final = "  "

_COLOURS: Final = {
    ReportVerdict.GOOD: "green",
    ReportVerdict.BAD: "red",
    ReportVerdict.UNKNOWN: "yellow",
}


def text_of(sheet: Sheet) -> str:
    """The sheet as lines: the answer first, then what it rests on, tables, doubts, sources."""
    return "\n".join(_text(sheet)) + "\n"


def _text(sheet: Sheet) -> Iterator[str]:
    colour = [_COLOURS[sheet.verdict]] if sheet.judges else []
    yield paint(sheet.headline, "bold", *colour)
    yield from sheet.lines
    for table in sheet.tables:
        yield ""
        yield paint(table.title, "bold")
        yield from _table(table)
    for title, lines in (
        ("Unknown", sheet.unknown),
        ("Assumed", sheet.assumed),
        ("Read", sheet.read),
    ):
        if lines:
            yield ""
            yield paint(title, "bold")
            yield from (f"{INDENT}{line}" for line in lines)


def _table(table: Table) -> Iterator[str]:
    lines = aligned([table.columns, *table.rows], right=table.numbers)
    yield paint(INDENT + lines[0], "dim")
    for place, line in enumerate(lines[1:]):
        yield paint(INDENT + line, "red") if place in table.bad else INDENT + line
    if table.note:
        yield f"{INDENT}{table.note}"


def csv_of(report: LedgerReport) -> str:
    """The report's main table with all its rows; the header is always the same.

    Numbers are plain, times ISO 8601 in UTC, and an empty cell is not known.
    """
    header, rows = _rows(report)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _rows(report: LedgerReport) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
    match report:
        case ChargesReport():
            return ChargeLine._fields, report.lines
        case AvailabilityReport():
            return _WINDOW_HEADER, (_window(window) for window in report.windows)
        case ConservationReport():
            return Balance._fields, report.entities
        case ReconciliationReport():
            return Agreement._fields, report.rows
        case _:
            raise AssertionError(f"no table for {report.kind}")


_WINDOW_HEADER: Final = (
    "entity",
    "pair",
    "process",
    "suspect_at",
    "failed_over_at",
    "recovered_at",
    "detect_ms",
    "lasted_ms",
    "sends_saved",
    "reason",
)


def _window(window: FailoverWindow) -> tuple[object, ...]:
    return (
        window.entity,
        window.pair,
        window.process,
        iso(window.suspect_ms),
        iso(window.failed_over_ms),
        iso(window.recovered_ms),
        window.detect_ms,
        window.lasted_ms,
        window.sends_saved,
        window.reason,
    )


def _cell(value: object) -> object:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case date():
            return value.isoformat()
        case str() if value[:1] in {"=", "+", "-", "@", "\t", "\r"}:
            # A spreadsheet would take an id like "=1+1" for a formula.
            return "'" + value
        case _:
            return value
