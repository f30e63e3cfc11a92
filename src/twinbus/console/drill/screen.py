"""The progress of a drill on stderr: a live line for each phase, several at once.

Without a terminal (a CI log, a pipe) each phase prints a line when it begins and one when it ends.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
)
from rich.table import Column
from rich.text import Text

from twinbus.console.drill.result import TookTime

if TYPE_CHECKING:
    from collections.abc import Iterator

BAR_WIDTH: Final = 16
NAME_WIDTH: Final = 8


class DrillScreen:
    """The lines of all phases so far; a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self.took: list[TookTime] = []
        self._progress: Progress | None = None
        if self._console.is_terminal:
            self._progress = Progress(
                SpinnerColumn(finished_text="[green]✓[/]"),
                TextColumn("[bold]{task.description}"),
                BarColumn(BAR_WIDTH, pulse_style="bar.back"),
                _Took(),
                # A note can be any text, also an error's: no markup, and one line.
                TextColumn(
                    "{task.fields[note]}",
                    markup=False,
                    table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
                ),
                console=self._console,
                expand=True,
            )

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    @contextmanager
    def phase(self, name: str, note: str, total: float | None = None) -> Iterator[PhaseLine]:
        """A line for the `with` block; `total` is the value of a full bar."""
        phase = PhaseLine(self._console, self._progress, name, note, total)
        began = time.monotonic()
        try:
            yield phase
        except BaseException:
            phase.end("stopped", is_done=False)
            raise
        phase.end()
        self.took.append(TookTime(name, time.monotonic() - began))


class _Took(ProgressColumn):
    """Seconds since the phase began, to a tenth."""

    def render(self, task: Task) -> Text:
        took_s = task.finished_time if task.finished else task.elapsed
        return Text(f"{took_s or 0.0:5.1f} s", style="dim")


class PhaseLine:
    """One line: a name, a bar, and a note."""

    def __init__(
        self,
        console: Console,
        progress: Progress | None,
        name: str,
        note: str,
        total: float | None,
    ) -> None:
        self._console = console
        self._progress = progress
        self._name = f"{name:<{NAME_WIDTH}}"
        self._note = note
        self._began = time.monotonic()
        self._task = TaskID(0)
        if progress is None:
            self._print(f"{self._name} {note} ...")
        else:
            self._task = progress.add_task(self._name, total=total, note=note)

    @property
    def _took(self) -> str:
        return f"{time.monotonic() - self._began:5.1f} s"

    def say(self, note: str) -> None:
        """Replace the note."""
        self._note = note
        self._update()

    def expect(self, total: float) -> None:
        """Set the value of a full bar, if it was unknown before."""
        if self._progress is not None:
            self._progress.update(self._task, total=total)

    def reach(self, done: float, note: str | None = None) -> None:
        """Set the progress, in the unit of the total."""
        if note is not None:
            self._note = note
        self._update(done)

    def end(self, note: str | None = None, *, is_done: bool = True) -> None:
        """End the line; the bar is full if the phase is done."""
        if note is not None:
            self._note = note
        if self._progress is None:
            self._print(f"{self._name} {self._took}  {self._note}")
            return
        self._update()
        if is_done:
            task = next(task for task in self._progress.tasks if task.id == self._task)
            total = task.total or 1.0
            self._progress.update(self._task, total=total, completed=total)
        self._progress.stop_task(self._task)

    def _print(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, markup=False)

    def _update(self, done: float | None = None) -> None:
        if self._progress is not None:
            self._progress.update(self._task, completed=done, note=self._note)
