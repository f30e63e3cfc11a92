"""How a benchmark is measured: ours and a peer in one run, in interleaved rounds.

Machines are noisy, and noise drifts. Each round therefore measures both sides one after the other,
in alternating order, and the ratio of a benchmark is the median of its rounds' ratios.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

ROUNDS = 7
"""Odd, so that the median is a round that was run."""


class NotMeasured(Exception):
    """The benchmark cannot run on this machine; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Sides:
    """The two things compared; each call is one round and returns its rate."""

    ours: Callable[[], float]
    peer: Callable[[], float]
    note: str | Callable[[], str] = ""
    """What a reader must know of the peer: its version and how it was set up. Called after the
    rounds where it is known only then."""


class Benchmark(Protocol):
    """What a benchmark module offers."""

    UNIT: str
    """Of a rate: more is better."""

    def sides(self, progress: Progress) -> AbstractContextManager[Sides]:
        """Start both sides, and stop them at the end of the block."""


@dataclass(frozen=True, slots=True)
class Result:
    """One entry of `latest.json`. All numbers are None when it was not measured."""

    ratio: float | None
    ours: float | None
    peer: float | None
    unit: str
    note: str


class Progress:
    """One line that says what is going on: rewritten on a terminal, printed once elsewhere."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._terminal = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        line = f"{self._name}: {text}"
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{line}")
        else:
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def measure(name: str, benchmark: Benchmark, rounds: int | None = None) -> Result:
    """Run one benchmark; its result says why if it could not be measured.

    A module that wants more rounds than others says so in a `ROUNDS` of its own.
    """
    progress = Progress(name)
    count: int = getattr(benchmark, "ROUNDS", ROUNDS) if rounds is None else rounds
    try:
        with benchmark.sides(progress) as sides:
            progress("warming up")
            sides.ours()
            sides.peer()
            pairs = [_round(sides, number, count, progress) for number in range(count)]
            note = sides.note if isinstance(sides.note, str) else sides.note()
    except NotMeasured as why:
        return Result(None, None, None, benchmark.UNIT, f"not measured: {why}")
    finally:
        progress.clear()
    return summarise(pairs, benchmark.UNIT, note)


def _round(sides: Sides, number: int, rounds: int, progress: Progress) -> tuple[float, float]:
    progress(f"round {number + 1} of {rounds}")
    if number % 2:
        peer = sides.peer()
        return sides.ours(), peer
    ours = sides.ours()
    return ours, sides.peer()


def summarise(pairs: Sequence[tuple[float, float]], unit: str, note: str) -> Result:
    """Median of the rounds, with the spread (lowest to highest) in the note."""
    ours, peer = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    ratios = [pair[0] / pair[1] for pair in pairs]
    spread = (
        f"{len(pairs)} rounds; ours {_span(ours)}, peer {_span(peer)}, ratio "
        f"{min(ratios):.2f}..{max(ratios):.2f}"
    )
    return Result(
        ratio=round(statistics.median(ratios), 3),
        ours=round(statistics.median(ours), 1),
        peer=round(statistics.median(peer), 1),
        unit=unit,
        note=f"{spread}; {note}" if note else spread,
    )


def _span(rates: Sequence[float]) -> str:
    return f"{min(rates):,.0f}..{max(rates):,.0f}"


def table(results: dict[str, Result]) -> str:
    """The results as a person reads them."""
    rows = [("benchmark", "ratio", "ours", "peer", "unit")]
    for name, result in results.items():
        if result.ratio is None or result.ours is None or result.peer is None:
            rows.append((name, "-", "-", "-", result.unit))
        else:
            numbers = (f"{result.ratio:.2f}", f"{result.ours:,.0f}", f"{result.peer:,.0f}")
            rows.append((name, *numbers, result.unit))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(_cells(row, widths)).rstrip() for row in rows]
    notes = [f"{name}: {result.note}" for name, result in results.items()]
    return "\n".join([*lines, "", *notes])


def _cells(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    last = len(row) - 1
    return [
        cell.ljust(width) if column in (0, last) else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def write(path: Path, results: dict[str, Result], known: Sequence[str]) -> None:
    """Put the results into `path`; what earlier runs left there for other benchmarks stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = {k: v for k, v in _read(path).items() if k in known}
    entries |= {name: asdict(result) for name, result in results.items()}
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(entries, indent=2) + "\n")
    partial.replace(path)


def _read(path: Path) -> dict[str, object]:
    try:
        entries = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}
