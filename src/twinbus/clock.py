"""Time as the shells see it: a clock to read, and the event that a timer has come due.

Core code never reads a clock. It gets `now` with every event and says in `timer_at` when it wants
to be called next; a shell reads a `Clock`, arms one timer, and hands in a `TimerFired`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Clock", "MonotonicClock", "TimerFired"]


class Clock(Protocol):
    """Something that knows the time: seconds that never go back, from an arbitrary start."""

    @property
    def now(self) -> float:
        """The time, in seconds."""


class MonotonicClock:
    """The machine's own clock, which no change of the date disturbs."""

    __slots__ = ()

    @property
    def now(self) -> float:
        """The time, in seconds since an arbitrary start."""
        return time.monotonic()


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time that a machine asked for in `timer_at` has come."""
