"""A report as a reader gets it, before it is text or a page: answer, figures, tables, doubts. Pure.

Both forms are made of the same sheet, so that they cannot say different things.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from twinbus.console.terminal.table import visible
from twinbus.pipeline.reports.documents import ReportVerdict

if TYPE_CHECKING:
    from twinbus.pipeline.reports.documents import ReportScope

__all__ = [
    "ROWS_SHOWN",
    "UNKNOWN",
    "Figure",
    "Sheet",
    "Table",
    "Tile",
    "clock",
    "count",
    "counted",
    "figures",
    "read_line",
    "rest",
    "span",
]

ROWS_SHOWN: Final = 20
"""Rows of a table that a person reads; JSON and CSV have them all."""

UNKNOWN: Final = "unknown"

_SECOND_MS, _MINUTE_MS = 1_000, 60_000
_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000


class Tile(NamedTuple):
    """One number in large letters."""

    name: str
    value: str
    is_bad: bool = False


class Figure(NamedTuple):
    """A chart, drawn only where it is looked at."""

    title: str
    draw: Callable[[], str]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under a title; `numbers` are the columns that are aligned to the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()
    bad: frozenset[int] = frozenset()
    """Rows that say something is wrong."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """One report in words."""

    title: str
    headline: str
    """The answer, in one line: the first thing that anyone reads."""
    verdict: ReportVerdict
    judges: bool = True
    """False: it tells and judges nothing, and must not look like praise."""
    lines: tuple[str, ...] = ()
    """What the answer rests on, or what to do about it."""
    tiles: tuple[Tile, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[Figure, ...] = ()
    unknown: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    """Which records it was made of."""


def count(number: int | None) -> str:
    """A number, or that it is not known."""
    return UNKNOWN if number is None else f"{number:,}"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def figures(*names: str, of: Sequence[str]) -> frozenset[int]:
    """The places of some columns among all."""
    return frozenset(of.index(name) for name in names)


def rest(shown: int, total: int, what: str = "more") -> str:
    """What a table leaves out, or nothing."""
    return f"{total - shown:,} {what}: --output json or csv has them" if total > shown else ""


def span(length_ms: float | None) -> str:
    """A time span as people say it, also one of milliseconds."""
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
    """A moment in UTC, to the second."""
    if at_ms is None:
        return "–"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def read_line(scope: ReportScope) -> tuple[str, ...]:
    """Which records a report was made of, and what was not a record."""
    lines = [f"ledger {visible(scope.ledger)}"]
    if scope.first_ms is None:
        lines.append("no record is in scope")
    else:
        lines.append(
            f"{counted(scope.records, 'record')} from {clock(scope.first_ms)} to"
            f" {clock(scope.last_ms)} UTC"
        )
    asked = _asked(scope)
    if asked:
        lines.append(f"asked for {asked}")
    aside = sum(scope.set_aside.values())
    if aside:
        reasons = ", ".join(f"{number:,} {visible(name)}" for name, number in _sorted(scope))
        lines.append(f"{counted(aside, 'line')} set aside: {reasons}")
    return tuple(lines)


def _asked(scope: ReportScope) -> str:
    parts: list[str] = []
    if scope.entity is not None:
        parts.append(f"entity {visible(scope.entity)}")
    if scope.since_ms is not None:
        parts.append(f"from {clock(scope.since_ms)}")
    if scope.until_ms is not None:
        parts.append(f"before {clock(scope.until_ms)}")
    return ", ".join(parts)


def _sorted(scope: ReportScope) -> Iterable[tuple[str, int]]:
    return sorted(scope.set_aside.items(), key=lambda reason: (-reason[1], reason[0]))
