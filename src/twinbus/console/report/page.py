"""A report as one HTML file that needs nothing else, made of its sheet. Pure.

The reader may hold a phone: tables scroll inside their card, and the answer stays on top.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from twinbus.console.report import charts as report_charts
from twinbus.console.web.page import listed, section, whole_page
from twinbus.pipeline.reports.documents import ReportVerdict

if TYPE_CHECKING:
    from twinbus.console.report.sheet import Sheet, Table

__all__ = ["page_of"]

_KINDS: Final = {
    ReportVerdict.GOOD: "good",
    ReportVerdict.BAD: "bad",
    ReportVerdict.UNKNOWN: "doubt",
}

_STYLE: Final = """
.kind{color:var(--soft);font-size:13px;letter-spacing:.04em;text-transform:uppercase;
margin:0 0 10px}
td,th{white-space:nowrap}td.prose{white-space:normal;min-width:12em;overflow-wrap:anywhere}
th{color:var(--soft);font-weight:600;font-size:13px}
section ul{margin:0;padding-left:20px}section li{overflow-wrap:anywhere}
.tile b{overflow-wrap:anywhere;font-size:19px}
.answer.plain{background:var(--card);border-color:var(--soft)}
@media (max-width:600px){main{padding:12px 10px 32px}.answer{padding:14px 16px}
.answer h1{font-size:21px}.tiles{grid-template-columns:repeat(2,1fr);gap:8px}
.tile b{font-size:20px}section{padding:12px 14px}table{font-size:14px}
svg{min-width:760px}}
"""

_PROSE_LENGTH: Final = 40
"""From here on a cell may be broken over lines."""


def page_of(sheet: Sheet, made: str) -> str:
    """The whole page; `made` says by what and when."""
    parts = [
        f'<p class="kind">Twinbus report: {escape(sheet.title.lower())}</p>',
        _answer(sheet),
        _tiles(sheet),
        *(section(chart.title, chart.draw()) for chart in sheet.charts),
        *(section(table.title, _table(table)) for table in sheet.tables),
    ]
    for title, lines in (("Unknown", sheet.unknown), ("Assumed", sheet.assumed)):
        if lines:
            parts.append(section(title, listed(lines, ordered=False)))
    parts.append(section("Read", listed([*sheet.read, made], ordered=False)))
    title = f"Twinbus {sheet.title.lower()}: {sheet.headline}"
    return whole_page(title, "\n".join(parts), style=report_charts.STYLE + _STYLE)


def _answer(sheet: Sheet) -> str:
    lines = "".join(f"<p>{escape(line)}</p>" for line in sheet.lines)
    kind = _KINDS[sheet.verdict] if sheet.judges else "plain"
    return f'<div class="answer {kind}"><h1>{escape(sheet.headline)}</h1>{lines}</div>'


def _tiles(sheet: Sheet) -> str:
    tiles = [
        f'<div class="tile{" bad" if tile.is_bad else ""}"><b>{escape(tile.value)}</b>'
        f"<span>{escape(tile.name)}</span></div>"
        for tile in sheet.tiles
    ]
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _table(table: Table) -> str:
    head = "".join(
        f"<th{_number(place, table)}>{escape(name)}</th>"
        for place, name in enumerate(table.columns)
    )
    body = "".join(
        f"<tr{' class=bad' if line in table.bad else ''}>"
        + "".join(
            f"<td{_number(place, table) or _prose(cell)}>{escape(cell)}</td>"
            for place, cell in enumerate(row)
        )
        + "</tr>"
        for line, row in enumerate(table.rows)
    )
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return f"<table><tr>{head}</tr>{body}</table>{note}"


def _number(place: int, table: Table) -> str:
    return ' class="number"' if place in table.numbers else ""


def _prose(cell: str) -> str:
    return ' class="prose"' if len(cell) > _PROSE_LENGTH else ""
