"""How fast a backlog drains, and when it will be empty."""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_S: Final = 30
"""Window of the rate: long enough to be steady, short enough to show a standstill."""

LEAST_S: Final = 1.0
"""Shortest span to divide by, so that a first batch does not count as a rate."""


class DrainMeter:
    """Counts the messages that leave a backlog, for each second of the window."""

    def __init__(self) -> None:
        self._began_at: float | None = None
        self._seconds: deque[list[int]] = deque(maxlen=WINDOW_S)
        """Each second in which messages left, and how many."""

    def moved(self, count: int, now: float) -> None:
        """Count messages that left now."""
        if self._began_at is None:
            self._began_at = now
        if not count:
            return
        second, seconds = int(now // 1), self._seconds
        if seconds and seconds[-1][0] == second:
            seconds[-1][1] += count
        else:
            seconds.append([second, count])

    def per_s(self, now: float) -> float:
        """Return the messages per second over the window, or since the first call if shorter."""
        if self._began_at is None:
            return 0.0
        first = int(now // 1) - WINDOW_S
        moved = sum(count for second, count in self._seconds if second > first)
        # The present second is not over, and the first one of the window counts as a whole.
        span_s = min(now - self._began_at, WINDOW_S - 1 + now % 1)
        return moved / max(LEAST_S, span_s)


def time_to_empty_s(waiting: int, per_s: float) -> float | None:
    """Return how long the rest takes at that rate; None: nothing moves."""
    if waiting <= 0:
        return 0.0
    return waiting / per_s if per_s > 0 else None
