"""What happened in one simulation, line by line: the same for the same seed, byte for byte."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from tests.simulation.machine import PROCESS

WORLD: Final = "world"


class Timeline(logging.Handler):
    """Collects lines; also what the product itself logs."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(logging.INFO)
        self._now = now
        self._lines: list[tuple[float, str, str, tuple[object, ...]]] = []

    def note(self, text: str, *args: object, who: str = WORLD) -> None:
        """One line; `args` are put in only when somebody reads it."""
        self._lines.append((self._now(), who, text, args))

    def emit(self, record: logging.LogRecord) -> None:
        """A line that the product logged."""
        process = PROCESS.get()
        who = WORLD if process is None else process.name
        args = record.args if isinstance(record.args, tuple) else (record.args,)
        # As text, because an error may change before anybody reads of it.
        shown = tuple(arg if isinstance(arg, int | float | str) else str(arg) for arg in args)
        self._lines.append((self._now(), who, str(record.msg), shown))

    def __str__(self) -> str:
        lines = []
        for at, who, text, args in self._lines:
            shown = text % args if args else text
            lines.append(f"{at:9.3f}  {who:<10} {shown}")
        return "\n".join(lines)
