"""The chart of an outage over time, as SVG text: sends, the backlog and its age. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Final

from twinbus.console.sheet.svg import CHAR_WIDTH, LEFT, RIGHT, WIDTH, AmountAxis, nice, svg

LABELS_TOP: Final = 30
LABEL_ROW: Final = 16
PANEL: Final = 170
GAP: Final = 46

CLOCK_MARKS: Final = 8
"""Maximum number of times below a chart."""

_STEPS_S: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1_800),
    *(3_600, 7_200, 10_800, 21_600, 43_200),
    *(86_400, 172_800, 604_800, 1_209_600, 2_592_000),
)
_DAY_S: Final = 86_400


@dataclass(frozen=True)
class Bar:
    """A bucket of time and what was sent in it."""

    at_s: float
    to_primary: int
    to_backlog: int


@dataclass(frozen=True)
class Marker:
    """A moment that the reader should see."""

    at_s: float
    label: str


@dataclass(frozen=True)
class Band:
    """A stretch of time that the reader should see."""

    from_s: float
    to_s: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Sends and backlog on one time axis, in seconds from the first send."""

    bucket_s: float
    bars: Sequence[Bar]
    depth: Sequence[tuple[float, int]]
    """Messages in the backlog at a time; it is flat up to the bucket in which it changed."""
    bands: Sequence[Band]
    markers: Sequence[Marker]
    until_s: float
    origin_s: int | None = None
    """Unix time of second 0: the axis shows the clock, in UTC. None: it shows the seconds."""
    ages: Sequence[tuple[float, int]] = ()
    """Age in seconds of the oldest message in the backlog at a time: a third panel, if any."""
    width: int = WIDTH

    @property
    def titles_left(self) -> int:
        """Where titles of panels begin: on a phone they need all the room."""
        return LEFT if self.width == WIDTH else 8

    def x(self, at_s: float) -> float:
        """The place of a time on the axis."""
        share = min(max(at_s / self.until_s, 0.0), 1.0) if self.until_s else 0.0
        return LEFT + (self.width - LEFT - RIGHT) * share


def timeline(data: Timeline, *, alone: bool = False) -> str:
    """Panels over one axis: sends by where they went, the backlog's depth, and its age if given."""
    top = LABELS_TOP + LABEL_ROW * (1 + max(_label_rows(data), default=0)) + 6
    sends = _Panel(data, top, max((b.to_primary + b.to_backlog for b in data.bars), default=0))
    below = top + PANEL + GAP
    depths = _Panel(data, below, max((depth for _, depth in data.depth), default=0))
    tops = [top, below, *([below + PANEL + GAP] if data.ages else [])]
    height = tops[-1] + PANEL + 40
    per = {1: "second", 60: "minute"}.get(round(data.bucket_s), f"{data.bucket_s:g} s")
    left = data.titles_left
    parts = [
        f'<text class="title" x="{left}" y="16">Sends per {per}</text>',
        *_legend(data.width),
        *_marks(data, tops),
        *sends.amounts.lines(),
        *(part for bar in data.bars for part in sends.bar(bar)),
        f'<text class="title" x="{left}" y="{below - 12}">Messages in the backlog</text>',
        *depths.amounts.lines(),
        depths.area(data.depth),
        *(_ages(data, tops[-1]) if data.ages else depths.axis()),
    ]
    label = "Sends to the primary and to the backlog over time, and the depth of the backlog"
    return svg(height, label, parts, data.width, alone=alone)


def _ages(data: Timeline, top: float) -> list[str]:
    oldest_s = max(age_s for _, age_s in data.ages)
    unit, length_s = next(
        (name, length_s)
        for name, length_s in (("days", _DAY_S), ("hours", 3_600), ("minutes", 60), ("seconds", 1))
        if oldest_s >= 3 * length_s or length_s == 1
    )
    panel = _Panel(data, top, -(-oldest_s // length_s))
    title = f"Age of the oldest message in the backlog, {unit}"
    return [
        f'<text class="title" x="{data.titles_left}" y="{top - 12}">{title}</text>',
        *panel.amounts.lines(),
        panel.area([(at_s, age_s / length_s) for at_s, age_s in data.ages]),
        *panel.axis(),
    ]


class _Panel:
    """One plot: where a second and an amount lie in the picture."""

    def __init__(self, data: Timeline, top: float, most: int) -> None:
        self._data, self.x = data, data.x
        self._top = top
        self.amounts = AmountAxis(top, PANEL, most, data.width)

    def axis(self) -> list[str]:
        """The time below the panel."""
        y = self._top + PANEL + 18
        if self._data.origin_s is not None:
            most = CLOCK_MARKS * self._data.width // WIDTH
            marks = _clock_marks(self._data.origin_s, self._data.until_s, most)
        else:
            step = nice(self._data.until_s / (10 * self._data.width // WIDTH))
            marks = [(at_s, f"{at_s} s") for at_s in range(0, int(self._data.until_s) + 1, step)]
        return [
            f'<text x="{self.x(at_s):.1f}" y="{y}" text-anchor="{self._anchor(at_s)}">'
            f"{words}</text>"
            for at_s, words in marks
        ]

    def _moment(self, at_s: float) -> str:
        if self._data.origin_s is None:
            return f"{at_s:.0f} s"
        return datetime.fromtimestamp(self._data.origin_s + at_s, UTC).strftime("%d %b %H:%M:%S")

    def _anchor(self, at_s: float) -> str:
        """In the middle below its place, but for what would not fit into the picture."""
        return "end" if self.x(at_s) > self._data.width - RIGHT - 20 else "middle"

    def bar(self, bar: Bar) -> list[str]:
        left = self.x(bar.at_s)
        width = max(1.0, self.x(bar.at_s + self._data.bucket_s) - left - 1.5)
        parts = []
        floor = 0
        for kind, words, count in (
            ("primary", "to the primary", bar.to_primary),
            ("backlog", "to the backlog", bar.to_backlog),
        ):
            if count:
                high, low = self.amounts.y(floor + count), self.amounts.y(floor)
                parts.append(
                    f'<rect class="{kind}" x="{left:.1f}" y="{high:.1f}" width="{width:.1f}"'
                    f' height="{low - high:.1f}">'
                    f"<title>{self._moment(bar.at_s)}: {count:,} {words}</title></rect>"
                )
                floor += count
        return parts

    def area(self, depth: Sequence[tuple[float, float]]) -> str:
        if not depth:
            middle = self._top + PANEL / 2
            return f'<text x="{self._data.width / 2}" y="{middle}" text-anchor="middle">none</text>'
        points: list[tuple[float, float]] = [(0.0, 0.0)]
        for at_s, amount in depth:
            if at_s - self._data.bucket_s > points[-1][0]:
                points.append((at_s - self._data.bucket_s, points[-1][1]))
            points.append((at_s, amount))
        points.append((self._data.until_s, points[-1][1]))
        path = " ".join(
            f"{self.x(at_s):.1f},{self.amounts.y(amount):.1f}" for at_s, amount in points
        )
        first, last = self.x(points[0][0]), self.x(points[-1][0])
        floor = self.amounts.y(0)
        return (
            f'<polygon class="depth" points="{first:.1f},{floor:.1f} {path}'
            f' {last:.1f},{floor:.1f}"/><polyline class="line" points="{path}"/>'
        )


def _clock_marks(origin_s: int, until_s: float, most: int = CLOCK_MARKS) -> list[tuple[int, str]]:
    """Round times in UTC, with the date where a day begins and on the first."""
    step = next((step for step in _STEPS_S if until_s / step <= most), _STEPS_S[-1])
    form = "%H:%M:%S" if step < 60 else "%H:%M"
    marks: list[tuple[int, str]] = []
    for at_s in range(-(-origin_s // step) * step, int(origin_s + until_s) + 1, step):
        moment = datetime.fromtimestamp(at_s, UTC)
        is_new_day = at_s % _DAY_S == 0
        words = f"{moment.day} {moment:%b}" if is_new_day else moment.strftime(form)
        if not marks and not is_new_day:
            words = f"{moment.day} {moment:%b} {words}"
        marks.append((at_s - origin_s, words))
    return marks


def _legend(width: int) -> list[str]:
    x = width - RIGHT - 230
    return [
        f'<rect class="primary" x="{x}" y="6" width="11" height="11" rx="2"/>',
        f'<text x="{x + 17}" y="16">to the primary</text>',
        f'<rect class="backlog" x="{x + 120}" y="6" width="11" height="11" rx="2"/>',
        f'<text x="{x + 137}" y="16">to the backlog</text>',
    ]


def _label_rows(data: Timeline) -> list[int]:
    """The row of each marker's label: the first in which it does not touch its neighbour."""
    ends: list[float] = []
    rows = []
    for marker in data.markers:
        x = data.x(marker.at_s)
        left = _label_left(x, marker.label, data.width)
        row = next((row for row, end in enumerate(ends) if end < left), len(ends))
        ends[row : row + 1] = [left + len(marker.label) * CHAR_WIDTH + 10]
        rows.append(row)
    return rows


def _label_left(x: float, label: str, width: int) -> float:
    """Where a label begins: right of its marker, or left of it where the picture ends."""
    length = len(label) * CHAR_WIDTH
    return x + 4 if x + 4 + length <= width - RIGHT else max(0.0, x - 4 - length)


def _marks(data: Timeline, tops: Sequence[float]) -> list[str]:
    """Bands as a shade and each marker as a line, in every panel; labels above the first."""
    parts = []
    for band in data.bands:
        left, right = data.x(band.from_s), data.x(band.to_s)
        place = f'x="{left:.1f}" width="{max(1.0, right - left):.1f}" height="{PANEL}"'
        title = f"<title>{escape(band.label)}</title>"
        parts += [f'<rect class="outage" {place} y="{top}">{title}</rect>' for top in tops]
    for marker, row in zip(data.markers, _label_rows(data), strict=True):
        x = data.x(marker.at_s)
        y = LABELS_TOP + LABEL_ROW * (row + 1)
        label = escape(marker.label)
        left = _label_left(x, marker.label, data.width)
        parts.append(f'<text x="{left:.1f}" y="{y}">{label}</text>')
        parts += [
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{begins}" y2="{top + PANEL}"/>'
            for top, begins in zip(tops, [y - 10, *tops[1:]], strict=True)
        ]
    return parts
