"""The progress of a drill on stderr: the phases that run in the live line, each end as a line.

Without a terminal (a CI log, a pipe) each phase prints a line when it begins and one when it ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from twinbus.console.terminal.live_line import LiveLine, progress_bar


class Phase:
    """One phase of a drill: a name, a note, and its progress."""

    def __init__(self, name: str, note: str, total: float | None) -> None:
        self.name = f"{name:<8}"
        self.note = note
        self.total = total
        """The value at the end of the phase; None: not known."""
        self._done = 0.0
        self._began = time.monotonic()

    @property
    def took_s(self) -> float:
        return time.monotonic() - self._began

    def reach(self, done: float, note: str | None = None) -> None:
        """Set the progress, in the unit of the total."""
        self._done, self.note = done, note or self.note

    def __str__(self) -> str:
        bar = f"  {progress_bar(min(1.0, self._done / self.total))}" if self.total else ""
        return f"{self.name}{bar} {self.took_s:5.1f} s  {self.note}"


class DrillScreen(LiveLine):
    """Shows the phases of a drill; a context manager."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        super().__init__(stream)
        self.took_s: dict[str, float] = {}
        self.told: Callable[[str], None] = lambda _: None
        """Gets the line of each phase that begins or ends, too."""
        self._running: list[Phase] = []

    def text(self) -> str:
        """Return all phases that run, in one line."""
        return "  |  ".join(map(str, self._running.copy()))

    @contextmanager
    def phase(self, name: str, note: str, total: float | None = None) -> Iterator[Phase]:
        """Show a phase for the `with` block; `total` is the value of a full bar."""
        phase = Phase(name, note, total)
        self._running.append(phase)
        self.told(f"{name}: {note}")
        if not self.is_live:
            self.print(f"{phase.name} {note} ...", self._stream)
        try:
            yield phase
        except BaseException:
            phase.note = "stopped"
            raise
        else:
            self.took_s[name] = phase.took_s
        finally:
            self._running.remove(phase)
            self.told(f"{name} ended after {phase.took_s:.1f} s: {phase.note}")
            self.print(f"{phase.name} {phase.took_s:5.1f} s  {phase.note}", self._stream)
