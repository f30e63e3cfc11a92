"""What commands print: aligned columns, a result as text or JSON, and the live line on stderr.

Width and colour matter only on a terminal.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from decimal import Decimal
from enum import StrEnum
from itertools import zip_longest
from textwrap import wrap
from typing import IO, Annotated, Any, Final, Self

import typer

from twinbus.errors import TwinbusError
from twinbus.wording import visible

SHOW_AFTER_S: Final = 1.0
"""A step that ends sooner is not shown."""

REFRESH_S: Final = 0.2
BAR_WIDTH: Final = 24


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", help="Output format.")]


class WrongUse(TwinbusError):
    """A usage error: nothing was done. The text says what to give instead."""


def print_json(document: Any) -> None:
    """Print one JSON document on stdout: indented on a terminal, else on one line."""
    indent = 2 if sys.stdout.isatty() else None
    print(json.dumps(document, indent=indent), flush=True)


def show(output: Output, document: Any, lines: Iterable[str]) -> int:
    """Print a result: the document as JSON, or the lines as text; return 0, the exit status."""
    if output is Output.JSON:
        print_json(document)
    else:
        print("\n".join(lines), flush=True)
    return 0


def progress_bar(share: float) -> str:
    """Return a bar of constant width and the share, from 0 to 1, as a percentage."""
    return f"[{'#' * int(share * BAR_WIDTH):.<{BAR_WIDTH}}] {share:4.0%}"


class LiveLine:
    """The last line of a terminal. Any thread may call its methods.

    As a context manager it refreshes itself. Without a terminal it shows nothing, or prints a line
    after each `SILENT_S` without one.
    """

    SILENT_S: float | None = None

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream or sys.stderr
        self.is_live = self._stream.isatty()
        """False for a file or a pipe."""
        self._step = ""
        self._began = self._printed = time.monotonic()
        self._is_shown = False
        self._lock = threading.RLock()
        self._done = threading.Event()
        self._refreshing = threading.Thread(
            target=self._refresh, name="twinbus-live-line", daemon=True
        )

    def __enter__(self) -> Self:
        if self._refreshes:
            self._refreshing.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        if self._refreshes:
            self._refreshing.join()
        self.clear()

    @property
    def _refreshes(self) -> bool:
        return self.is_live or self.SILENT_S is not None

    def say(self, step: str) -> None:
        """Begin a step, which is shown, with its age, once it takes long."""
        with self._lock:
            self._step, self._began = step, time.monotonic()
            self.clear()

    def show(self, text: str) -> None:
        """Replace the line at once; it is cut to the width of the terminal."""
        if self.is_live:
            with self._lock:
                width = shutil.get_terminal_size().columns - 1
                self._stream.write("\r\x1b[K" + text[:width])
                self._stream.flush()
                self._is_shown = True

    def print(self, line: str, stream: IO[str] | None = None) -> None:
        """Print a line on stdout, or on `stream`, that stays above the live line."""
        with self._lock:
            self.clear()
            print(line, file=stream, flush=True)
            self._printed = time.monotonic()

    def clear(self) -> None:
        """Remove the line until it is shown again."""
        with self._lock:
            if self._is_shown:
                self._stream.write("\r\x1b[K")
                self._stream.flush()
                self._is_shown = False

    def text(self) -> str:
        """Return the text of a refresh: the current step with its age, if it takes long."""
        took_s = time.monotonic() - self._began
        return f"… {self._step}, {took_s:.0f} s" if self._step and took_s >= SHOW_AFTER_S else ""

    def refresh(self, now: float) -> None:
        """Show the line; without a terminal print it, if there was none for `SILENT_S`."""
        with self._lock:
            if not (text := self.text()):
                return
            if self.is_live:
                self.show(text)
            elif self.SILENT_S is not None and now - self._printed >= self.SILENT_S:
                self.print(text, self._stream)

    def _refresh(self) -> None:
        while not self._done.wait(REFRESH_S):
            self.refresh(time.monotonic())


GAP: Final = "  "
LAST_WIDTH_MIN: Final = 16
"""Columns that the last cell of a row needs to be wrapped beside the others."""

UNPRICED: Final = "not priced"
UNKNOWN: Final = "unknown"

_CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


def aligned(
    rows: Sequence[Sequence[str]], *, right: frozenset[int] | set[int] = frozenset()
) -> list[str]:
    """Return the rows as lines with aligned columns; columns in `right` are right-aligned."""
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    return [
        GAP.join(
            text.rjust(widths[index]) if index in right else text.ljust(widths[index])
            for index, text in enumerate(row)
        ).rstrip()
        for row in rows
    ]


def table_lines(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, width: int | None = None
) -> list[str]:
    """Return headings and rows with aligned columns; a name with > in front is right-aligned.

    A table that is wider than `width`, by default the terminal's without an indent, wraps its last
    column between words; where that leaves no room, each row becomes a paragraph.
    """
    right = {index for index, column in enumerate(columns) if column.startswith(">")}
    headings = [column.lstrip(">") for column in columns]
    cells = [headings, *([cell(value) for value in row] for row in rows)]
    lines = aligned(cells, right=right)
    if width is None and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - len(GAP)
    if width is None or max(map(len, lines)) <= width:
        return lines
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    start = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
    words = [word for row in cells for word in row[-1].split()]
    if start + max([LAST_WIDTH_MIN, *map(len, words)]) <= width and len(columns) - 1 not in right:
        wrapped = [_wrapped(row[-1], width - start) for row in cells]
        firsts = aligned([[*row[:-1], last[0]] for row, last in zip(cells, wrapped, strict=True)],
                         right=right)  # fmt: skip
        return [
            line
            for first, last in zip(firsts, wrapped, strict=True)
            for line in (first, *(" " * start + more for more in last[1:]))
        ]
    return [line for row in cells[1:] for line in _paragraph(headings, row, width)]


def dim_headed(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    headings, *lines = table_lines(columns, rows)
    return [paint(headings, "dim"), *lines]


def _paragraph(headings: Sequence[str], row: Sequence[str], width: int) -> list[str]:
    """Return the first cell, and below it the others, each after its heading."""
    lines: list[str] = []
    for heading, text in zip(headings[1:], row[1:], strict=True):
        if not text:
            continue
        named = f"{heading.lower()} {text}"
        if lines and len(lines[-1]) + len(GAP) + len(named) <= width:
            lines[-1] += GAP + named
        else:
            lines += [GAP + part for part in _wrapped(named, width - len(GAP))]
    return [row[0], *lines] if row[0] else lines


def _wrapped(text: str, width: int) -> list[str]:
    """Return the text in lines of this width; a word that is longer is left whole."""
    return wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def cell(value: object) -> str:
    """Return a number with separators, visible text, or "unknown" for None."""
    if value is None:
        return UNKNOWN
    return f"{value:,}" if isinstance(value, int) else visible(value)


def paint(text: str, *styles: str, stream: IO[str] | None = None) -> str:
    """Return the text in colour if the stream is a terminal and NO_COLOR is not set."""
    stream = stream or sys.stdout
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return text
    return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"


def money(amount: Decimal | None, currency: str) -> str:
    """Return an amount with two decimals, or six if it is less than 1."""
    if amount is None:
        return UNPRICED
    digits = 2 if amount >= 1 or not amount else 6
    return f"{amount:,.{digits}f} {currency}"
