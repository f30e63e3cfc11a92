"""The content of a report, a drill or a plan, and its form as text for a terminal or a log. Pure.

The page (`page.py`) is rendered from the same sheet, so text and page cannot contradict each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeVar

from twinbus.console.terminal.table import UNKNOWN, aligned, cell, paint
from twinbus.pipeline.reports.documents import ReportVerdict

T = TypeVar("T")

ROWS_SHOWN: Final = 20
"""Rows of a table that a person reads; JSON and CSV have all of them."""

INDENT: Final = "  "
BAR_LENGTH: Final = 40

_COLOURS: Final = {
    ReportVerdict.GOOD: "green",
    ReportVerdict.BAD: "red",
    ReportVerdict.UNKNOWN: "yellow",
}

_SECOND_MS, _MINUTE_MS = 1_000, 60_000
_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000


class Tile(NamedTuple):
    """One number in large letters, on a page only."""

    name: str
    value: str
    is_bad: bool = False


class BarRow(NamedTuple):
    """A bar of one or more parts: each with its series and its amount."""

    name: str
    parts: tuple[tuple[str, float], ...]
    label: str

    @property
    def total(self) -> float:
        return sum(amount for _, amount in self.parts)


class Bars(NamedTuple):
    """A chart of bars, as long as their amounts."""

    title: str
    rows: tuple[BarRow, ...]
    names: Mapping[str, str] = {}
    """Text of each series, in order; empty: the bars have one part, plain or marked."""
    is_share: bool = False
    """All bars are equally long: they show shares."""
    in_text: bool = False


class OutageChart(NamedTuple):
    """The chart of an outage over time, on a page only."""

    title: str
    data: Mapping[str, object]
    """JSON for the page's `outage.js`."""


class Section(NamedTuple):
    """Lines under a title."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under a title."""

    title: str
    columns: tuple[str, ...] = ()
    """Headings; empty: the table has none."""
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()
    """Columns that are aligned to the right."""
    bad: frozenset[int] = frozenset()
    """Rows that report a problem."""
    marked: frozenset[int] = frozenset()
    """Rows that stand out on a page."""
    note: str = ""
    in_text: bool = True
    on_page: bool = True


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """The content in the order in which it is read."""

    title: str
    """What it is, such as "charges report"."""
    headline: str
    """The answer in one line."""
    verdict: ReportVerdict
    judges: bool = True
    """False: the sheet states facts without a verdict and gets no colour of one."""
    alerts: tuple[str, ...] = ()
    """What is wrong or missing."""
    lines: tuple[str, ...] = ()
    """What the answer rests on, or what to do about it."""
    story: tuple[str, ...] = ()
    """What happened, in order."""
    tiles: tuple[Tile, ...] = ()
    charts: tuple[Bars | OutageChart, ...] = ()
    tables: tuple[Table, ...] = ()
    sections: tuple[Section, ...] = ()


def sections(*titled: tuple[str, Sequence[str]]) -> tuple[Section, ...]:
    """The sections that have lines."""
    return tuple(Section(title, tuple(lines)) for title, lines in titled if lines)


def table(
    title: str,
    columns: Sequence[str],
    found: Sequence[T],
    row: Callable[[T], Sequence[object]],
    *,
    is_bad: Callable[[T], object] = lambda _: False,
    total: int | None = None,
    more: str = "more",
    limit: int = ROWS_SHOWN,
) -> Table:
    """Return a table with a row for each of the first things that were found.

    A column whose name begins with > is aligned to the right. A note says how many of `total` are
    left out.
    """
    shown = found[:limit]
    left_out = (len(found) if total is None else total) - len(shown)
    return Table(
        title=title,
        columns=tuple(column.lstrip(">") for column in columns),
        rows=tuple(tuple(map(cell, row(one))) for one in shown),
        numbers=frozenset(i for i, column in enumerate(columns) if column.startswith(">")),
        bad=frozenset(place for place, one in enumerate(shown) if is_bad(one)),
        note=f"{left_out:,} {more}: --output json or csv has them" if left_out > 0 else "",
    )


def span(length_ms: float | None) -> str:
    """A time span in its two largest units, down to milliseconds."""
    if length_ms is None:
        return UNKNOWN
    if length_ms < _SECOND_MS:
        return f"{length_ms:.0f} ms"
    if length_ms < _MINUTE_MS:
        return f"{length_ms / _SECOND_MS:.1f} s"
    for large, large_ms, small, small_ms in (
        ("d", _DAY_MS, "h", _HOUR_MS),
        ("h", _HOUR_MS, "min", _MINUTE_MS),
        ("min", _MINUTE_MS, "s", _SECOND_MS),
    ):
        if length_ms >= large_ms:
            left = int(length_ms % large_ms // small_ms)
            return f"{length_ms // large_ms:.0f} {large}" + (f" {left} {small}" if left else "")
    raise AssertionError(f"a span of {length_ms} ms")


def clock(at_ms: int | None) -> str:
    """A time in UTC, to the second."""
    if at_ms is None:
        return "–"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


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
