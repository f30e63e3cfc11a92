"""Renders a sheet as one HTML file that loads nothing, light and dark. Pure.

It fits a phone: charts are drawn for both widths, and a table of many columns becomes a list of
its rows, each value with the name of its column.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

from twinbus.console.sheet import svg
from twinbus.console.sheet.sheet import Figure, Sheet, Table
from twinbus.pipeline.reports.documents import ReportVerdict

STYLE: Final = """
:root{color-scheme:light dark;--ink:#1b2130;--soft:#51586a;--ground:#f4f6fa;--card:#fff;
--line:#d9dee8;--good:#14804a;--good-ground:#e5f5ec;--bad:#b3261e;--bad-ground:#fdeceb;
--doubt:#8a5a00;--doubt-ground:#fdf3dc}
@media (prefers-color-scheme:dark){:root{--ink:#eef1f7;--soft:#a9b2c6;--ground:#12161f;
--card:#1a202c;--line:#2c3444;--good:#5fd39a;--good-ground:#15301f;--bad:#ff8f8f;
--bad-ground:#3a1b1b;--doubt:#f0c060;--doubt-ground:#33280f}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}
main{max-width:1180px;margin:0 auto;padding:24px 16px 48px}
.answer{border-radius:10px;padding:20px 24px;border-left:8px solid}
.answer.good{background:var(--good-ground);border-color:var(--good)}
.answer.bad{background:var(--bad-ground);border-color:var(--bad)}
.answer.doubt{background:var(--doubt-ground);border-color:var(--doubt)}
.answer h1{margin:0;font-size:30px;line-height:1.2}
.answer.good h1{color:var(--good)}.answer.bad h1{color:var(--bad)}
.answer.doubt h1{color:var(--doubt)}
.answer p{margin:8px 0 0}.answer li{overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:12px;margin:16px 0}
.tile,section{background:var(--card);border:1px solid var(--line);border-radius:10px}
.tile{padding:12px 14px}.tile b{display:block;font-size:26px;line-height:1.2}
.tile span{color:var(--soft);font-size:13px}.tile.bad b{color:var(--bad)}
section{padding:16px 20px;margin:16px 0;overflow-x:auto}
h2{font-size:17px;margin:0 0 10px}svg{display:block;width:100%;height:auto;max-width:1000px}
.phone{display:none}
table{border-collapse:collapse;width:100%;font-size:15px}
th,td{text-align:left;padding:6px 10px 6px 0;border-bottom:1px solid var(--line)}
tr:last-child td{border-bottom:0}td.number,th.number{text-align:right;white-space:nowrap;
font-variant-numeric:tabular-nums;padding-right:14px}
td.soft,.note{color:var(--soft)}tr.bad td{color:var(--bad);font-weight:600}
.note{font-size:14px;margin:10px 0 0}ol{margin:0;padding-left:22px}
.kind{color:var(--soft);font-size:13px;letter-spacing:.04em;text-transform:uppercase;
margin:0 0 10px}
td{white-space:nowrap}td.prose{white-space:normal;min-width:12em;overflow-wrap:anywhere}
th.number{white-space:normal}th{color:var(--soft);font-weight:600;font-size:13px}
tr.marked td{font-weight:600}
section ul{margin:0;padding-left:20px}section li{overflow-wrap:anywhere}
.tile b{overflow-wrap:anywhere;font-size:19px}
.answer.plain{background:var(--card);border-color:var(--soft)}
@media (max-width:600px){main{padding:12px 10px 32px}.answer{padding:14px 16px}
.answer h1{font-size:21px}.tiles{grid-template-columns:repeat(2,1fr);gap:8px}
.tile b{font-size:20px}section{padding:12px 14px}table{font-size:14px}
.desk{display:none}.phone{display:block}
td,td.number,td.prose{white-space:normal;min-width:0;overflow-wrap:anywhere;padding-right:0}
table.listed,.listed tbody,.listed tr,.listed td{display:block}.listed tr.names{display:none}
.listed tr{padding:6px 0;border-bottom:1px solid var(--line)}.listed tr:last-child{border:0}
.listed td,.listed td.number{display:flex;justify-content:space-between;gap:12px;
border:0;padding:2px 0;text-align:right}
.listed td::before{content:attr(data-name);color:var(--soft);font-weight:400;text-align:left;
white-space:nowrap}td:first-child{overflow-wrap:break-word;padding-right:10px}
.listed td:first-child{font-weight:600;padding-right:0}}
"""

_VERDICT_CLASSES: Final = {
    ReportVerdict.GOOD: "good",
    ReportVerdict.BAD: "bad",
    ReportVerdict.UNKNOWN: "doubt",
}

_COLUMNS_ON_PHONE: Final = 2
"""A table with more columns does not fit a phone."""

_PROSE_LENGTH: Final = 40
"""Cells longer than this may break over lines."""


def page_of(sheet: Sheet, made: str = "") -> str:
    """The whole page; `made` is its last line: which program made it, and when."""
    title = f"Twinbus {sheet.title}"
    parts = [
        f'<p class="kind">{escape(title)}</p>',
        _answer(sheet),
        _tiles(sheet),
        *([_section("What happened", _list(sheet.story, "ol"))] if sheet.story else []),
        *(_section(chart.title, _chart(chart)) for chart in sheet.charts),
        *(_section(table.title, _table(table)) for table in sheet.tables if table.on_page),
        *(_section(section.title, _list(section.lines)) for section in sheet.sections),
        *([f'<p class="note">{escape(made)}</p>'] if made else []),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(f'{title}: {sheet.headline}')}</title>"
        f"<style>{STYLE}{svg.STYLE}</style></head>\n<body><main>\n"
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )


def _answer(sheet: Sheet) -> str:
    kind = _VERDICT_CLASSES[sheet.verdict] if sheet.judges else "plain"
    alerts = _list(sheet.alerts) if sheet.alerts else ""
    lines = "".join(f"<p>{escape(line)}</p>" for line in sheet.lines)
    return f'<div class="answer {kind}"><h1>{escape(sheet.headline)}</h1>{alerts}{lines}</div>'


def _tiles(sheet: Sheet) -> str:
    tiles = [
        f'<div class="tile{" bad" if tile.is_bad else ""}"><b>{escape(tile.value)}</b>'
        f"<span>{escape(tile.name)}</span></div>"
        for tile in sheet.tiles
    ]
    return f'<div class="tiles">{"".join(tiles)}</div>' if tiles else ""


def _section(title: str, inner: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{inner}</section>"


def _list(lines: Iterable[str], tag: str = "ul") -> str:
    return f"<{tag}>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</{tag}>"


def _chart(chart: Figure) -> str:
    wide, narrow = chart.draw(svg.WIDTH), chart.draw(svg.NARROW_WIDTH)
    return f'<div class="desk">{wide}</div><div class="phone">{narrow}</div>'


def _table(table: Table) -> str:
    head = "".join(
        f"<th{_class(column, table)}>{escape(name)}</th>"
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
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
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
        return ' class="number"'
    return ' class="prose"' if len(cell) > _PROSE_LENGTH else ""
