"""Parts of every chart: colours, the picture, its amount axis and legend. SVG text, pure.

Colours are classes with a value for light and one for dark; `STYLE` has them, and a chart that
stands alone (an image in a README) carries it inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

WIDTH: Final = 880
NARROW_WIDTH: Final = 400
"""Of the same chart on a phone: a wide one would be cut, or its letters too small to read."""
LEFT: Final = 64
RIGHT: Final = 12
CHAR_WIDTH: Final = 6.6
"""Of a letter at 12 px, to keep labels apart; fonts differ, so it is on the wide side."""

_LIGHT: Final = "#2f7fd6 #e08a00 #8a5bd1 #6f7b91 #b8c0ce #a3712f #1f9d8a #4c566a".split()
_DARK: Final = "#5aa2f0 #f3a93c #b18cf0 #8f9bb3 #55607a #c9a36a #4fd0bb #c3cbda".split()
_OF_ITS_OWN: Final = {"lost": ("#c62f2f", "#ff6b6b")}
"""What must not be overlooked, and looks like nothing else."""


_LINES_STYLE: Final = """
.chart{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}
.chart text{fill:#51586a}.chart .title{fill:#1b2130;font-weight:600;font-size:13px}
.chart .grid{stroke:#d9dee8;stroke-width:1}.chart .axis{stroke:#9aa3b5;stroke-width:1}
.chart .primary{fill:#2f7fd6}.chart .backlog{fill:#e08a00}.chart .plain{fill:#5b7cb8}
.chart .depth{fill:#e08a00;fill-opacity:.25}
.chart .line{fill:none;stroke:#e08a00;stroke-width:2}
.chart .outage{fill:#d64545;fill-opacity:.11}.chart .mark{stroke:#7b8498;stroke-dasharray:3 3}
@media (prefers-color-scheme:dark){
.chart text{fill:#a9b2c6}.chart .title{fill:#eef1f7}
.chart .grid{stroke:#2c3444}.chart .axis{stroke:#55607a}
.chart .primary{fill:#5aa2f0}.chart .backlog{fill:#f3a93c}.chart .plain{fill:#7f9fd8}
.chart .depth{fill:#f3a93c}.chart .line{stroke:#f3a93c}
.chart .outage{fill:#ff6b6b;fill-opacity:.13}.chart .mark{stroke:#77829b}}
"""

STYLE: Final = _LINES_STYLE + "\n".join(
    [
        *(f".chart .series-{place}{{fill:{colour}}}" for place, colour in enumerate(_LIGHT)),
        *(f".chart .series-{name}{{fill:{light}}}" for name, (light, _) in _OF_ITS_OWN.items()),
        "@media (prefers-color-scheme:dark){",
        *(f".chart .series-{place}{{fill:{colour}}}" for place, colour in enumerate(_DARK)),
        *(f".chart .series-{name}{{fill:{dark}}}" for name, (_, dark) in _OF_ITS_OWN.items()),
        "}",
    ]
)


class AmountAxis:
    """A vertical axis from 0 to a round number that is not below `most`."""

    def __init__(self, top: float, height: float, most: int, width: int = WIDTH) -> None:
        self._top, self._height, self._width = top, height, width
        self._step = nice(most / 4)
        self._highest = self._step * (-(-most // self._step) if most else 4)

    def y(self, amount: float) -> float:
        """The place of an amount."""
        return self._top + self._height * (1 - amount / self._highest)

    def lines(self) -> list[str]:
        """The grid with its numbers."""
        parts = []
        for amount in range(0, self._highest + 1, self._step):
            y, kind = self.y(amount), "grid" if amount else "axis"
            parts.append(
                f'<line class="{kind}" x1="{LEFT}" x2="{self._width - RIGHT}" y1="{y:.1f}"'
                f' y2="{y:.1f}"/>'
                f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_brief(amount)}</text>'
            )
        return parts


def legend(
    present: Sequence[str], names: Mapping[str, str], width: int = WIDTH
) -> tuple[list[str], int]:
    """The legend of the series that are present, on as many rows as it needs, and its height."""
    parts: list[str] = []
    x, y = 8.0, 6
    for key in present:
        room = 17 + len(names[key]) * CHAR_WIDTH + 18
        if x + room > width and x > 8:
            x, y = 8.0, y + 20
        parts.append(
            f'<rect class="{series_class(key, names)}" x="{x:.1f}" y="{y}" width="11" height="11"'
            ' rx="2"/>'
            f'<text x="{x + 17:.1f}" y="{y + 10}">{escape(names[key])}</text>'
        )
        x += room
    return parts, y + 30


def series_class(key: str, names: Mapping[str, str]) -> str:
    """The colour of a series: the same in every chart, by its position among the names."""
    if key in _OF_ITS_OWN:
        return f"series-{key}"
    return f"series-{list(names).index(key) % len(_LIGHT)}"


def svg(
    height: float, label: str, parts: Iterable[str], width: int = WIDTH, *, alone: bool = False
) -> str:
    """The parts as one picture; `alone`: with its style inside."""
    style = f"<style>{STYLE}</style>" if alone else ""
    return (
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}"'
        f' role="img" aria-label="{escape(label)}">{style}\n' + "\n".join(parts) + "\n</svg>"
    )


def nice(value: float) -> int:
    """The smallest number of 1, 2, 5, 10, 20, 50, ... that is not below the value."""
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power >= value:
                return digit * power
        power *= 10


def _brief(amount: int) -> str:
    """A number with as few characters as possible."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if amount >= 10 * size or (amount >= size and amount % size == 0):
            return f"{amount / size:g}{unit}"
    return f"{amount:,}"
