"""One line on stderr that shows what a command is doing, and disappears when it is done."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final

SHOW_AFTER_S: Final = 1.0
"""A step that ends sooner is not shown."""

REFRESH_S: Final = 0.2


class LiveLine:
    """The last line of a terminal. Any thread may call its methods."""

    def __init__(self, stream: IO[str]) -> None:
        self.is_live = stream.isatty()
        """False for a file or a pipe: then nothing but `print` writes."""
        self._stream = stream
        self._step = ""
        self._began = time.monotonic()
        self._is_shown = False
        self._lock = threading.RLock()

    def say(self, step: str) -> None:
        """Begin a step. `refresh` shows it, with its age, once it takes long."""
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

    def print(self, line: str) -> None:
        """Print a line on stdout that stays, above the live line."""
        with self._lock:
            self.clear()
            print(line, flush=True)

    def clear(self) -> None:
        """Remove the line until the next `show` or `refresh`."""
        with self._lock:
            if self._is_shown:
                self._stream.write("\r\x1b[K")
                self._stream.flush()
                self._is_shown = False

    def refresh(self) -> None:
        """Show the current step with its age, if it takes long."""
        with self._lock:
            took_s = time.monotonic() - self._began
            if self._step and took_s >= SHOW_AFTER_S:
                self.show(f"… {self._step}, {took_s:.0f} s")


@contextmanager
def live_line(stream: IO[str] | None = None) -> Iterator[LiveLine]:
    """Yield a live line that a thread refreshes; without a terminal it shows nothing."""
    line = LiveLine(stream or sys.stderr)
    done = threading.Event()

    def refresh() -> None:
        while not done.wait(REFRESH_S):
            line.refresh()

    refreshing = threading.Thread(target=refresh, name="twinbus-live-line", daemon=True)
    if line.is_live:
        refreshing.start()
    try:
        yield line
    finally:
        done.set()
        if refreshing.ident is not None:
            refreshing.join()
        line.clear()
