"""What the console's pages share: one HTML file that needs nothing else, light and dark. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

from twinbus.console.web import charts

__all__ = ["listed", "section", "whole_page"]

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
main{max-width:960px;margin:0 auto;padding:24px 16px 48px}
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
h2{font-size:17px;margin:0 0 10px}svg{display:block;width:100%;height:auto;min-width:560px}
table{border-collapse:collapse;width:100%;font-size:15px}
th,td{text-align:left;padding:6px 10px 6px 0;border-bottom:1px solid var(--line)}
tr:last-child td{border-bottom:0}td.number,th.number{text-align:right;white-space:nowrap;
font-variant-numeric:tabular-nums;padding-right:20px}
td.soft,.note{color:var(--soft)}tr.bad td{color:var(--bad);font-weight:600}
.note{font-size:14px;margin:10px 0 0}ol{margin:0;padding-left:22px}
code{font:14px ui-monospace,Menlo,Consolas,monospace}
"""


def whole_page(title: str, body: str, *, style: str = "") -> str:
    """The file, which loads nothing from elsewhere; `style` is what this page has of its own."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{charts.STYLE}{style}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def section(title: str, inner: str) -> str:
    """A card with a heading."""
    return f"<section><h2>{escape(title)}</h2>{inner}</section>"


def listed(lines: Iterable[str], *, ordered: bool = True) -> str:
    """Lines as a list, numbered or not."""
    kind = "ol" if ordered else "ul"
    return f"<{kind}>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</{kind}>"
