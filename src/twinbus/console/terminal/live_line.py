"""One line on the terminal that says what takes so long, and goes when it is done."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO, Final

__all__ = ["LiveLine", "live_line"]

PATIENCE_S: Final = 1.0
"""What is over before this needs no words."""

BEAT_S: Final = 0.2


class LiveLine:
    """The line; say what is going on, and it is shown once that takes long."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._what = ""
        self._began = time.monotonic()
        self._is_shown = False

    def say(self, what: str) -> None:
        """What is being done now."""
        self._what, self._began = what, time.monotonic()
        self.clear()

    def print(self, line: str) -> None:
        """A line on stdout that stays, without the live one in it."""
        self.clear()
        print(line, flush=True)

    def clear(self) -> None:
        """Take the line away; it comes back by itself while something goes on."""
        if self._is_shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._is_shown = False

    def beat(self) -> None:
        """Show the line anew, with the time that has passed."""
        took_s = time.monotonic() - self._began
        if self._what and took_s >= PATIENCE_S:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write("\r\x1b[K" + f"… {self._what}, {took_s:.0f} s"[:width])
            self._stream.flush()
            self._is_shown = True


@asynccontextmanager
async def live_line(stream: IO[str] | None = None) -> AsyncIterator[LiveLine]:
    """A live line for the block; where nobody looks at a terminal it shows nothing."""
    stream = stream or sys.stderr
    line = LiveLine(stream)
    beating = asyncio.create_task(_beat(line)) if stream.isatty() else None
    try:
        yield line
    finally:
        if beating is not None:
            beating.cancel()
        line.clear()


async def _beat(line: LiveLine) -> None:
    while True:
        await asyncio.sleep(BEAT_S)
        line.beat()
