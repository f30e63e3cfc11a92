"""What a person reads of a report, a drill or a plan: one form, as text or as a page. Pure.

The page is one HTML file that loads nothing, light and dark. It has the style of the browser page,
and the page's JavaScript draws an outage: both are in the file, with the data as JSON. A policy in
the file allows no other script, and no request. On a phone a table of many columns becomes a list
of its rows, each value with the name of its column.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Final, NamedTuple, TypeVar

from twinbus.console.output import UNKNOWN, aligned, cell, paint
from twinbus.pipeline.reports.documents import ReportVerdict
from twinbus.wording import duration, visible

T = TypeVar("T")

ROWS_SHOWN: Final = 20
"""Rows of a table that a person reads; JSON and CSV have all of them."""

INDENT: Final = "  "
BAR_LENGTH: Final = 40

_LOOKS: Final = {
    ReportVerdict.GOOD: ("green", "healthy"),
    ReportVerdict.BAD: ("red", "unprotected"),
    ReportVerdict.UNKNOWN: ("yellow", "attention"),
}
"""Colour of a verdict as text, and its level on a page."""


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
    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
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
    if length_ms < 1_000:
        return f"{length_ms:.0f} ms"
    seconds = length_ms / 1_000
    return f"{seconds:.1f} s" if seconds < 60 else re.sub(r" 0 \w+$", "", duration(seconds))


def clock(at_ms: int | None) -> str:
    if at_ms is None:
        return "–"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def text_of(sheet: Sheet) -> str:
    return "\n".join(_text(sheet)) + "\n"


def _text(sheet: Sheet) -> Iterator[str]:
    colour = [_LOOKS[sheet.verdict][0]] if sheet.judges else []
    yield paint(sheet.headline, "bold", *colour)
    yield from (paint(alert, "red") for alert in sheet.alerts)
    yield from sheet.lines
    yield from sheet.story
    for table in sheet.tables:
        if table.in_text and table.rows:
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


STYLES: Final = ("page.css", "report.css")
SCRIPTS: Final = ("dom.js", "format.js", "sends.js", "outage.js")
"""The modules of the outage, each after those that it imports."""

_SERIES_COUNT: Final = 8
"""Colours of series in report.css."""

_OF_ITS_OWN: Final = frozenset({"lost", "marked"})
"""Series that must not be overlooked, and look like no other."""

_COLUMNS_ON_PHONE: Final = 2
"""A table with more columns does not fit a phone."""

_PROSE_LENGTH: Final = 40
"""Cells longer than this may break over lines."""


def page_of(sheet: Sheet, made: str = "") -> str:
    """The whole page; `made` is its last line: which program made it, and when."""
    title = f"Twinbus {sheet.title}"
    script = _script() if any(isinstance(chart, OutageChart) for chart in sheet.charts) else ""
    parts = [
        f'<p class="kind">{escape(title)}</p>',
        _answer(sheet),
        _tiles(sheet),
        *([_section("What happened", _list(sheet.story, "ol"))] if sheet.story else []),
        *(_section(chart.title, _chart(chart)) for chart in sheet.charts),
        *(
            _section(table.title, _html_table(table))
            for table in sheet.tables
            if table.on_page and table.rows
        ),
        *(_section(section.title, _list(section.lines)) for section in sheet.sections),
        *([f'<p class="muted">{escape(made)}</p>'] if made else []),
    ]
    return (
        '<!doctype html>\n<html lang="en" data-zone="UTC"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">'
        f"<title>{escape(f'{title}: {sheet.headline}')}</title>"
        f'<style>{"".join(map(_static, STYLES))}</style></head>\n<body><main class="report">\n'
        + "\n".join(parts)
        + (f'\n<script type="module">{script}</script>' if script else "")
        + "\n</main></body></html>\n"
    )


def _policy(script: str) -> str:
    digest = b64encode(sha256(script.encode()).digest()).decode()
    allowed = f"; script-src 'sha256-{digest}'" if script else ""
    return f"default-src 'none'; style-src 'unsafe-inline'{allowed}"


@cache
def _script() -> str:
    """The modules as one: without imports and exports their names are in one scope."""
    texts = "".join(map(_static, SCRIPTS))
    return re.sub(r"^import .*;\n|^export ", "", texts, flags=re.MULTILINE)


def _static(name: str) -> str:
    return (files("twinbus.page") / "static" / name).read_text(encoding="utf-8")


def _answer(sheet: Sheet) -> str:
    level = _LOOKS[sheet.verdict][1] if sheet.judges else "none"
    alerts = _list(sheet.alerts) if sheet.alerts else ""
    lines = "".join(f"<p>{escape(line)}</p>" for line in sheet.lines)
    answer = f"<h1>{escape(sheet.headline)}</h1>{alerts}{lines}"
    return f'<div class="headline" data-level="{level}"><div>{answer}</div></div>'


def _tiles(sheet: Sheet) -> str:
    bad = ' data-level="unprotected"'
    tiles = [
        f"<div><dt>{escape(tile.name)}</dt>"
        f"<dd{bad if tile.is_bad else ''}>{escape(tile.value)}</dd></div>"
        for tile in sheet.tiles
    ]
    return f'<div class="card"><dl class="tiles">{"".join(tiles)}</dl></div>' if tiles else ""


def _section(title: str, inner: str) -> str:
    return f'<section class="card"><h2>{escape(title)}</h2>{inner}</section>'


def _list(lines: Iterable[str], tag: str = "ul") -> str:
    return f"<{tag}>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</{tag}>"


def _chart(chart: Bars | OutageChart) -> str:
    if isinstance(chart, Bars):
        return _html_bars(chart)
    # No text of the data can end the element, or begin a comment.
    data = json.dumps(chart.data).replace("<", "\\u003c")
    return (
        f'<div id="outage"></div><script type="application/json" id="outage-data">{data}</script>'
        "<noscript>The chart needs JavaScript; the tables have the numbers.</noscript>"
    )


def _html_bars(chart: Bars) -> str:
    longest = max((row.total for row in chart.rows), default=0) or 1
    present = {key for row in chart.rows for key, amount in row.parts if amount}
    keys = "".join(
        f'<span><i class="key {_series(chart, key)}"></i>{escape(words)}</span>'
        for key, words in chart.names.items()
        if key in present
    )
    rows = "".join(
        f"<span>{escape(visible(row.name))}</span>"
        f'<span><span class="stack" style="width:{_width(chart, row, longest):.1f}%">'
        f"{''.join(_parts(chart, row))}</span></span><span>{escape(row.label)}</span>"
        for row in chart.rows
    )
    legend = f'<div class="legend">{keys}</div>' if keys else ""
    return f'{legend}<div class="bars">{rows}</div>'


def _width(chart: Bars, row: BarRow, longest: float) -> float:
    return 100 if chart.is_share else 100 * row.total / longest


def _parts(chart: Bars, row: BarRow) -> Iterator[str]:
    for key, amount in row.parts:
        if amount:
            words = f"{chart.names[key]}: {amount:,} of {row.total:,}" if chart.names else ""
            title = f' title="{escape(words)}"' if words else ""
            grows = f"flex:{100 * amount / row.total:.4f}"
            yield f'<i class="{_series(chart, key)}" style="{grows}"{title}></i>'


def _series(chart: Bars, key: str) -> str:
    """The colour of a series: of its own, or by its place among the names."""
    if key in _OF_ITS_OWN:
        return f"series-{key}"
    return f"series-{list(chart.names).index(key) % _SERIES_COUNT if chart.names else 0}"


def _html_table(table: Table) -> str:
    head = "".join(
        f"<th{_class(column, table)}>{escape(name)}</th>" if name else "<td></td>"
        for column, name in enumerate(table.columns)
    )
    body = "".join(
        f"<tr{_row_class(index, table)}>"
        + "".join(
            f"<td{_class(column, table, cell)}{_name(column, table)}>{escape(cell)}</td>"
            for column, cell in enumerate(row)
        )
        + "</tr>"
        for index, row in enumerate(table.rows)
    )
    note = f'<p class="muted">{escape(table.note)}</p>' if table.note else ""
    heading = f'<tr class="names">{head}</tr>' if head else ""
    kind = ' class="listed"' if len(table.columns) > _COLUMNS_ON_PHONE else ""
    return f"<table{kind}>{heading}{body}</table>{note}"


def _row_class(index: int, table: Table) -> str:
    if index in table.bad:
        return " class=bad"
    return " class=marked" if index in table.marked else ""


def _name(column: int, table: Table) -> str:
    """The name of a column where a phone shows it before each value."""
    if len(table.columns) <= _COLUMNS_ON_PHONE:
        return ""
    return f' data-name="{escape(table.columns[column])}"'


def _class(column: int, table: Table, cell: str = "") -> str:
    if column in table.numbers:
        return ' class="n"'
    return ' class="prose"' if len(cell) > _PROSE_LENGTH else ""
