"""Bar charts as SVG text: pure functions of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

from twinbus.console.sheet.sheet import Figure
from twinbus.console.sheet.svg import (
    CHAR_WIDTH,
    LEFT,
    RIGHT,
    WIDTH,
    AmountAxis,
    legend,
    series_class,
    svg,
)
from twinbus.console.terminal.table import aligned, visible

PANEL: Final = 220
ROW: Final = 34
NAMES_WIDTH: Final = 190
BAR_NAMES_WIDTH: Final = 270
BAR_ROW: Final = 28
BAR_LABEL_WIDTH: Final = 150
"""Space for the value behind the longest bar."""
TEXT_BAR_LENGTH: Final = 40
COLUMN_WIDTH_MAX: Final = 60.0
NAME_WIDTH: Final = 80
"""Of a day below a column."""
WIDTH_MIN: Final = 4.0
"""Of a part that is not 0: small parts stay visible."""


class NamedBar(NamedTuple):
    """One bar: its name, its length, and the value as it is written."""

    name: str
    value: float
    label: str
    is_marked: bool = False


def bar_figure(title: str, found: Sequence[NamedBar], *, in_text: bool = False) -> Figure:
    """The bars as a chart of a sheet."""
    text = tuple(_text_bars(found)) if in_text else ()
    return Figure(title, lambda width: bars(title, found, width), text)


def bars(title: str, found: Sequence[NamedBar], width: int = WIDTH) -> str:
    """Horizontal bars in the order given; a marked one stands out."""
    longest = max((bar.value for bar in found), default=0) or 1.0
    left = min(BAR_NAMES_WIDTH, width * 36 // 100)
    room = width - left - min(BAR_LABEL_WIDTH, width * 26 // 100)
    parts = []
    for row, bar in enumerate(found):
        y, length = 8 + row * BAR_ROW, room * bar.value / longest
        kind = "backlog" if bar.is_marked else "plain"
        name = _short(bar.name, left)
        parts += [
            f'<text x="{left - 10}" y="{y + 15}" text-anchor="end">{name}</text>',
            f'<rect class="{kind}" x="{left}" y="{y}" width="{length:.1f}" height="20"/>',
            f'<text x="{left + length + 8:.1f}" y="{y + 15}">{escape(bar.label)}</text>',
        ]
    return svg(16 + BAR_ROW * len(found), title, parts, width)


def _text_bars(found: Sequence[NamedBar]) -> list[str]:
    longest = max((bar.value for bar in found), default=0) or 1.0
    rows = [
        [
            bar.name,
            "█" * (round(bar.value / longest * TEXT_BAR_LENGTH) or int(bar.value > 0)),
            bar.label,
        ]
        for bar in found
    ]
    return aligned(rows, right={0})


def shares(
    rows: Sequence[tuple[str, Sequence[tuple[str, int]]]],
    names: Mapping[str, str],
    width: int = WIDTH,
) -> str:
    """A bar of full length for each row, divided as its parts are."""
    some = {key for _, pieces in rows for key, amount in pieces if amount}
    parts, top = legend([key for key in names if key in some], names, width)
    left = min(NAMES_WIDTH, width * 36 // 100)
    room = width - left - RIGHT - 80
    for row, (name, pieces) in enumerate(rows):
        y = top + row * ROW
        whole = sum(amount for _, amount in pieces)
        parts.append(
            f'<text x="{left - 10}" y="{y + 15}" text-anchor="end">{_short(name, left)}</text>'
        )
        x = float(left)
        for key, length in _widths(pieces, room):
            amount = dict(pieces)[key]
            parts.append(
                f'<rect class="{series_class(key, names)}" x="{x:.1f}" y="{y}" width="{length:.1f}"'
                f' height="20"><title>{escape(names[key])}: {amount:,} of {whole:,}</title></rect>'
            )
            x += length
        parts.append(f'<text x="{left + room + 8}" y="{y + 15}">{whole:,}</text>')
    return svg(top + ROW * len(rows), "Shares by entity", parts, width)


def columns(
    rows: Sequence[tuple[str, Mapping[str, int]]], names: Mapping[str, str], width: int = WIDTH
) -> str:
    """A stacked column for each row (a day), with an axis of amounts."""
    present = [key for key in names if any(row.get(key) for _, row in rows)]
    parts, top = legend(present, names, width)
    most = max((sum(row.values()) for _, row in rows), default=0) or 1
    axis = AmountAxis(top, PANEL, most, width)
    parts += axis.lines()
    slot = (width - LEFT - RIGHT) / len(rows)
    thick = max(1.0, min(slot * 0.8, COLUMN_WIDTH_MAX))
    every = -(-len(rows) * NAME_WIDTH // (width - LEFT - RIGHT))
    for index, (name, row) in enumerate(rows):
        middle = LEFT + (index + 0.5) * slot
        low = 0
        for key in present:
            amount = row.get(key, 0)
            if amount:
                y = axis.y(low + amount)
                parts.append(
                    f'<rect class="{series_class(key, names)}" x="{middle - thick / 2:.1f}"'
                    f' y="{y:.1f}" width="{thick:.1f}" height="{axis.y(low) - y:.1f}">'
                    f"<title>{escape(name)}, {escape(names[key])}: {amount:,}</title></rect>"
                )
                low += amount
        if index % every == 0:
            parts.append(
                f'<text x="{middle:.1f}" y="{top + PANEL + 18}" text-anchor="middle">'
                f"{escape(name)}</text>"
            )
    return svg(top + PANEL + 28, "Amounts by day", parts, width)


def _widths(pieces: Sequence[tuple[str, int]], room: float) -> list[tuple[str, float]]:
    """The width of each part that is not 0; together they fill the room."""
    some = [(key, amount) for key, amount in pieces if amount]
    whole = sum(amount for _, amount in some) or 1
    raw = [(key, max(WIDTH_MIN, room * amount / whole)) for key, amount in some]
    over = sum(width for _, width in raw) - room
    largest = max(raw, key=lambda piece: piece[1], default=("", 0.0))[0]
    return [(key, width - over if key == largest else width) for key, width in raw]


def _short(name: str, room: float) -> str:
    """As much of the end of a name as there is room for."""
    shown, letters = visible(name), int((room - 10) / CHAR_WIDTH)
    return escape(shown if len(shown) <= letters else "…" + shown[-letters + 1 :])
