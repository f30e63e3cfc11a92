"""Charts of the four reports, as SVG text: pure functions, in the manner of `charts`.

Series get colours by their place among the words that the caller gives, so that a fate or a cause
has the same colour in every chart and in its legend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Final

from twinbus.console.terminal.table import visible
from twinbus.console.web import charts
from twinbus.console.web.charts import WIDTH, Band, Bar, Marker, Timeline, nice, svg

if TYPE_CHECKING:
    from twinbus.pipeline.reports.documents import AvailabilityReport

__all__ = ["STYLE", "amounts", "columns", "over_time", "shares"]

LEFT: Final = 64
RIGHT: Final = 12
PANEL: Final = 220
ROW: Final = 34
NAMES_WIDTH: Final = 190
NAME_LENGTH: Final = 28
"""Letters of a name that fit beside a bar."""
CHAR_WIDTH: Final = 6.6
COLUMN_WIDTH_MAX: Final = 60.0
NAME_WIDTH: Final = 80
"""Of a day below a column."""
MARKED_WINDOWS: Final = 4
"""With more failovers than these the bands speak for themselves."""

_LIGHT: Final = "#2f7fd6 #e08a00 #8a5bd1 #6f7b91 #b8c0ce #a3712f #1f9d8a #4c566a".split()
_DARK: Final = "#5aa2f0 #f3a93c #b18cf0 #8f9bb3 #55607a #c9a36a #4fd0bb #c3cbda".split()
_OF_ITS_OWN: Final = {"lost": ("#c62f2f", "#ff6b6b")}
"""What must not be overlooked, and looks like nothing else."""

STYLE: Final = "\n".join(
    [
        *(f".chart .series-{place}{{fill:{colour}}}" for place, colour in enumerate(_LIGHT)),
        *(f".chart .series-{name}{{fill:{light}}}" for name, (light, _) in _OF_ITS_OWN.items()),
        "@media (prefers-color-scheme:dark){",
        *(f".chart .series-{place}{{fill:{colour}}}" for place, colour in enumerate(_DARK)),
        *(f".chart .series-{name}{{fill:{dark}}}" for name, (_, dark) in _OF_ITS_OWN.items()),
        "}",
    ]
)


def amounts(rows: Sequence[tuple[str, int]], words: Mapping[str, str]) -> str:
    """A bar for each name, as long as its number is large."""
    return charts.cause_bars((visible(words.get(name, name)), amount) for name, amount in rows)


def shares(rows: Sequence[tuple[str, Sequence[tuple[str, int]]]], words: Mapping[str, str]) -> str:
    """A bar of full length for each row, divided as its parts are; small parts stay visible."""
    some = {key for _, pieces in rows for key, amount in pieces if amount}
    present = [key for key in words if key in some]
    legend, top = _legend(present, words)
    parts = list(legend)
    room = WIDTH - NAMES_WIDTH - RIGHT - 80
    for place, (name, pieces) in enumerate(rows):
        y = top + place * ROW
        whole = sum(amount for _, amount in pieces)
        parts.append(
            f'<text x="{NAMES_WIDTH - 10}" y="{y + 15}" text-anchor="end">{_short(name)}</text>'
        )
        x = float(NAMES_WIDTH)
        for key, width in _widths(pieces, room):
            amount = dict(pieces)[key]
            parts.append(
                f'<rect class="{_colour(key, words)}" x="{x:.1f}" y="{y}" width="{width:.1f}"'
                f' height="20"><title>{escape(words[key])}: {amount:,} of {whole:,}</title></rect>'
            )
            x += width
        parts.append(f'<text x="{NAMES_WIDTH + room + 8}" y="{y + 15}">{whole:,}</text>')
    return svg(top + ROW * len(rows), "Shares by entity", parts)


def columns(rows: Sequence[tuple[str, Mapping[str, int]]], words: Mapping[str, str]) -> str:
    """A stacked column for each row (a day), with an axis of amounts."""
    present = [key for key in words if any(row.get(key) for _, row in rows)]
    legend, top = _legend(present, words)
    most = max((sum(row.values()) for _, row in rows), default=0) or 1
    step = nice(most / 4)
    highest = -(-most // step) * step
    parts = list(legend)
    for amount in range(0, highest + 1, step):
        y = top + PANEL * (1 - amount / highest)
        kind = "grid" if amount else "axis"
        parts.append(
            f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_brief(amount)}</text>'
        )
    slot = (WIDTH - LEFT - RIGHT) / len(rows)
    width = max(1.0, min(slot * 0.8, COLUMN_WIDTH_MAX))
    every = -(-len(rows) * NAME_WIDTH // (WIDTH - LEFT - RIGHT))
    for place, (name, row) in enumerate(rows):
        middle = LEFT + (place + 0.5) * slot
        low = 0
        for key in present:
            amount = row.get(key, 0)
            if amount:
                y, tall = top + PANEL * (1 - (low + amount) / highest), PANEL * amount / highest
                parts.append(
                    f'<rect class="{_colour(key, words)}" x="{middle - width / 2:.1f}"'
                    f' y="{y:.1f}" width="{width:.1f}" height="{tall:.1f}">'
                    f"<title>{escape(name)}, {escape(words[key])}: {amount:,}</title></rect>"
                )
                low += amount
        if place % every == 0:
            parts.append(
                f'<text x="{middle:.1f}" y="{top + PANEL + 18}" text-anchor="middle">'
                f"{escape(name)}</text>"
            )
    return svg(top + PANEL + 28, "Amounts by day", parts)


def over_time(report: AvailabilityReport) -> str:
    """Sends, depth of the backlog and its age on one clock, with the failovers as bands."""
    bucket_s = report.bucket_s
    starts = [*(point.at_s for point in report.sends), *(point.at_s for point in report.backlog)]
    origin_s = min(starts)
    until_s = max(starts) + bucket_s - origin_s

    def after(at_ms: int) -> float:
        return at_ms / 1000 - origin_s

    bands = [
        Band(
            after(window.failed_over_ms),
            until_s if window.ended_ms is None else after(window.ended_ms),
            f"{visible(window.entity)} failed over",
        )
        for window in report.windows
    ]
    return charts.timeline(
        Timeline(
            bucket_s=bucket_s,
            bars=[
                Bar(point.at_s - origin_s, point.to_primary, point.to_backlog)
                for point in report.sends
            ],
            depth=[(point.at_s + bucket_s - origin_s, point.depth) for point in report.backlog],
            bands=_merged(bands),
            markers=_markers(report, after) if len(report.windows) <= MARKED_WINDOWS else [],
            until_s=float(until_s),
            origin_s=origin_s,
            ages=[
                (point.at_s + bucket_s - origin_s, point.oldest_age_s or 0)
                for point in report.backlog
            ]
            if any(point.oldest_age_s is not None for point in report.backlog)
            else [],
        )
    )


def _markers(report: AvailabilityReport, after: Callable[[int], float]) -> list[Marker]:
    marks: list[Marker] = []
    for window in report.windows:
        name = visible(window.entity)[:NAME_LENGTH]
        marks.append(Marker(after(window.failed_over_ms), f"{name} failed over"))
        if window.recovered_ms is not None:
            marks.append(Marker(after(window.recovered_ms), f"{name} back"))
    return sorted(marks, key=lambda mark: mark.at_s)


def _merged(bands: Sequence[Band]) -> list[Band]:
    """Bands that overlap as one: their shades would add up."""
    merged: list[Band] = []
    for band in sorted(bands, key=lambda band: band.from_s):
        if merged and band.from_s <= merged[-1].to_s:
            last = merged.pop()
            label = last.label if last.label == band.label else "several entities failed over"
            merged.append(Band(last.from_s, max(last.to_s, band.to_s), label))
        else:
            merged.append(band)
    return merged


def _widths(pieces: Sequence[tuple[str, int]], room: float) -> list[tuple[str, float]]:
    """The width of each piece that is not nothing: at least a few pixels, and all fill the room."""
    least = 4.0
    some = [(key, amount) for key, amount in pieces if amount]
    whole = sum(amount for _, amount in some) or 1
    raw = [(key, max(least, room * amount / whole)) for key, amount in some]
    over = sum(width for _, width in raw) - room
    largest = max(raw, key=lambda piece: piece[1], default=("", 0.0))[0]
    return [(key, width - over if key == largest else width) for key, width in raw]


def _legend(present: Sequence[str], words: Mapping[str, str]) -> tuple[list[str], int]:
    """The legend, over as many rows as it takes, and where it ends."""
    parts: list[str] = []
    x, y = 8.0, 6
    for key in present:
        width = 17 + len(words[key]) * CHAR_WIDTH + 18
        if x + width > WIDTH and x > 8:
            x, y = 8.0, y + 20
        parts.append(
            f'<rect class="{_colour(key, words)}" x="{x:.1f}" y="{y}" width="11" height="11"'
            ' rx="2"/>'
            f'<text x="{x + 17:.1f}" y="{y + 10}">{escape(words[key])}</text>'
        )
        x += width
    return parts, y + 30


def _colour(key: str, words: Mapping[str, str]) -> str:
    if key in _OF_ITS_OWN:
        return f"series-{key}"
    return f"series-{list(words).index(key) % len(_LIGHT)}"


def _short(name: str) -> str:
    shown = visible(name)
    return escape(shown if len(shown) <= NAME_LENGTH else "…" + shown[-NAME_LENGTH + 1 :])


def _brief(amount: int) -> str:
    """A number for an axis, in as few signs as it takes."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if amount >= 10 * size or (amount >= size and amount % size == 0):
            return f"{amount / size:g}{unit}"
    return f"{amount:,}"
