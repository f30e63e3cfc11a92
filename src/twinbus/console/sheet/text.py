"""Renders a sheet as text for a terminal or a log. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from twinbus.console.sheet.sheet import Bars, Sheet, Table
from twinbus.console.terminal.table import aligned, paint
from twinbus.pipeline.reports.documents import ReportVerdict

INDENT: Final = "  "
BAR_LENGTH: Final = 40

_COLOURS: Final = {
    ReportVerdict.GOOD: "green",
    ReportVerdict.BAD: "red",
    ReportVerdict.UNKNOWN: "yellow",
}


def text_of(sheet: Sheet) -> str:
    """The sheet as lines, the answer first."""
    return "\n".join(_text(sheet)) + "\n"


def _text(sheet: Sheet) -> Iterator[str]:
    colour = [_COLOURS[sheet.verdict]] if sheet.judges else []
    yield paint(sheet.headline, "bold", *colour)
    yield from (paint(alert, "red") for alert in sheet.alerts)
    yield from sheet.lines
    yield from sheet.story
    for table in sheet.tables:
        if table.in_text:
            yield from _titled(table.title, _table(table))
    for chart in sheet.charts:
        if isinstance(chart, Bars) and chart.in_text:
            yield from _titled(chart.title, _bars(chart))
    for section in sheet.sections:
        yield from _titled(section.title, section.lines)


def _titled(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield ""
    yield paint(title, "bold")
    yield from (INDENT + line for line in lines)


def _table(table: Table) -> Iterator[str]:
    heading = [table.columns] if table.columns else []
    lines = aligned([*heading, *table.rows], right=table.numbers)
    if heading:
        yield paint(lines.pop(0), "dim")
    for row, line in enumerate(lines):
        yield paint(line, "red") if row in table.bad else line
    if table.note:
        yield table.note


def _bars(chart: Bars) -> list[str]:
    longest = max((row.total for row in chart.rows), default=0) or 1.0
    rows = [
        [row.name, "█" * (round(row.total / longest * BAR_LENGTH) or int(row.total > 0)), row.label]
        for row in chart.rows
    ]
    return aligned(rows, right={0})
