"""What commands print: a result as text or JSON, usage errors, and the live line on stderr."""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from collections.abc import Iterable
from enum import StrEnum
from typing import IO, Annotated, Any, Final, Self

import typer

from twinbus.errors import TwinbusError

SHOW_AFTER_S: Final = 1.0
"""A step that ends sooner is not shown."""

REFRESH_S: Final = 0.2
BAR_WIDTH: Final = 24


class Output(StrEnum):
    """Output format of a command."""

    TEXT = "text"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", help="Output format.")]


class WrongUse(TwinbusError):
    """A usage error: nothing was done. The text says what to give instead."""


def print_json(document: Any) -> None:
    """Print one JSON document on stdout: indented on a terminal, else on one line."""
    indent = 2 if sys.stdout.isatty() else None
    print(json.dumps(document, indent=indent), flush=True)


def show(output: Output, document: Any, lines: Iterable[str]) -> None:
    """Print a result: the document as JSON, or the lines as text."""
    if output is Output.JSON:
        print_json(document)
    else:
        print("\n".join(lines), flush=True)


def progress_bar(share: float) -> str:
    """Return a bar of constant width and the share, from 0 to 1, as a percentage."""
    return f"[{'#' * int(share * BAR_WIDTH):.<{BAR_WIDTH}}] {share:4.0%}"


class LiveLine:
    """The last line of a terminal. Any thread may call its methods.

    As a context manager it refreshes itself. Without a terminal it shows nothing.
    """

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream or sys.stderr
        self.is_live = self._stream.isatty()
        """False for a file or a pipe: then nothing but `print` writes."""
        self._step = ""
        self._began = time.monotonic()
        self._is_shown = False
        self._lock = threading.RLock()
        self._done = threading.Event()
        self._refreshing = threading.Thread(
            target=self._refresh, name="twinbus-live-line", daemon=True
        )

    def __enter__(self) -> Self:
        if self.is_live:
            self._refreshing.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        if self.is_live:
            self._refreshing.join()
        self.clear()

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

    def _refresh(self) -> None:
        while not self._done.wait(REFRESH_S):
            with self._lock:
                if text := self.text():
                    self.show(text)
