"""How fast a backlog drains: one pump's part of a governor's rate, a meter, reconnect delays.

    rate = Rate(); pace = Pace(rate)               one rate for a host, one pace for each pump
    pace.allowed("orders", 40, now) -> how many of the 40 may be sent now; the rest waits

A pump reserves the next free slice of time, and may send its messages when it begins. Slices
are reserved in order of request, so pumps with work take turns, and so do the destinations of a
pump. A pump without work reserves nothing.

Pure: `now` is an argument, and `wake_at` is when a reserved slice begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import ceil
from typing import Final

from twinbus.syphon.core.governor import SLICE_S, Governor

IN_MEMORY_S: Final = 2.0
"""How many seconds' worth of messages all pumps together hold in memory. It is far below the usual
lock duration, so that no lock is renewed only because its message waits for a slice."""

IN_MEMORY_MIN: Final = 2
"""For one pump at any rate: one message that the queue delivers, one received by number."""

ANY_NUMBER: Final = 1 << 30


class Rate:
    """The messages per second that all paces together may send, as the governor allows."""

    def __init__(self, most_per_s: float | None = None) -> None:
        """`most_per_s` is never exceeded; None: the primary's answers alone decide."""
        self.governor = Governor(most_per_s)
        self._free_at = float("-inf")
        self._paces: list[Pace] = []

    def __repr__(self) -> str:
        return f"<{self.governor}, {len(self._paces)} paces, free at {self._free_at:.3f}>"

    def reserve(self, count: int, now: float) -> float:
        """Reserve a slice for `count` messages; return when it begins."""
        # Unused time is made up for, but one slice only: no burst after a quiet time.
        starts_at = max(self._free_at, now - SLICE_S)
        self._free_at = starts_at + count / self.governor.per_s
        return starts_at

    def limit_to(self, most_per_s: float | None) -> None:
        """Change the highest rate; slices that were reserved at the old one are given up."""
        self.governor.limit_to(most_per_s)
        self._free_at = float("-inf")
        for pace in self._paces:
            pace.give_up_slice()

    def add(self, pace: Pace) -> None:
        """Let one more pace share the rate."""
        self._paces.append(pace)

    def remove(self, pace: Pace) -> None:
        """Let a pace no longer share the rate."""
        if pace in self._paces:
            self._paces.remove(pace)

    def share(self, pace: Pace) -> int:
        """Return how many messages a pump may have in memory: what it can send in a short time.

        The pumps with work share the rate; a pump without work gets an equal part of all pumps.
        """
        if self.governor.is_open:
            return ANY_NUMBER
        working = sum(other.is_working for other in self._paces)
        parts = working if pace.is_working else len(self._paces)
        return max(IN_MEMORY_MIN, ceil(self.governor.per_s * IN_MEMORY_S / max(1, parts)))


class Pace:
    """One pump's share of a rate."""

    def __init__(self, rate: Rate) -> None:
        self.is_working = False
        """The pump has messages in memory."""
        self.governor = rate.governor
        self._rate = rate
        self._unused = 0
        """Messages of the reserved slice that are not sent yet."""
        self._from = float("-inf")
        self._queue: dict[str, None] = {}
        """The destinations that wait for this pump's next slice, in order."""
        rate.add(self)

    def __repr__(self) -> str:
        return f"<pace, {self._unused} from {self._from:.3f} on, {list(self._queue)} waiting>"

    @property
    def wake_at(self) -> float | None:
        """When the waiting destinations can be served; None: none waits."""
        return self._from if self._queue else None

    @property
    def share(self) -> int:
        """How many messages the pump may have in memory."""
        return self._rate.share(self)

    def leave(self) -> None:
        """Give up the share of the rate."""
        self._rate.remove(self)

    def give_up_slice(self) -> None:
        """Make a new reservation at the next request."""
        self._unused, self._from = 0, float("-inf")

    def allowed(self, destination: str, wanted: int, now: float) -> int:
        """Return how many messages may be sent now; if fewer than wanted, the destination waits."""
        if next(iter(self._queue), destination) != destination:
            # Others wait already; asking more often gets no larger share.
            self._queue[destination] = None
            return 0
        # A slice that was reserved before the rate was cut may be too large by now.
        self._unused = min(self._unused, self.governor.slice_messages)
        if not self._unused:
            self._reserve(wanted, now)
        if now < self._from:
            self._queue[destination] = None
            return 0
        self._queue.pop(destination, None)
        count = min(wanted, self._unused)
        self._unused -= count
        if count < wanted:
            # It had its slice: others come first.
            self._queue[destination] = None
        if self._queue and not self._unused:
            self._reserve(wanted - count or 1, now)
        return count

    def _reserve(self, wanted: int, now: float) -> None:
        self._unused = min(wanted, self.governor.slice_messages)
        self._from = self._rate.reserve(self._unused, now)

    def next_destination(self) -> str | None:
        """Return the destination to serve next."""
        return next(iter(self._queue), None)

    def remove(self, destination: str) -> None:
        """Remove a destination that has nothing to send."""
        self._queue.pop(destination, None)


DRAIN_WINDOW_S: Final = 30
"""Window of the rate: long enough to be steady, short enough to show a standstill."""

DRAIN_LEAST_S: Final = 1.0
"""Shortest span to divide by, so that a first batch does not count as a rate."""


class DrainMeter:
    """Counts the messages that leave a backlog, for each second of the window."""

    def __init__(self) -> None:
        self._began_at: float | None = None
        self._seconds: deque[list[int]] = deque(maxlen=DRAIN_WINDOW_S)
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
        first = int(now // 1) - DRAIN_WINDOW_S
        moved = sum(count for second, count in self._seconds if second > first)
        # The present second is not over, and the first one of the window counts as a whole.
        span_s = min(now - self._began_at, DRAIN_WINDOW_S - 1 + now % 1)
        return moved / max(DRAIN_LEAST_S, span_s)


def time_to_empty_s(waiting: int, per_s: float) -> float | None:
    """Return how long the rest takes at that rate; None: nothing moves."""
    if waiting <= 0:
        return 0.0
    return waiting / per_s if per_s > 0 else None


FIRST_RECONNECT_S: Final = 0.5
LONGEST_RECONNECT_S: Final = 5.0
"""Maximum reconnect delay after recovery."""

LONGEST_MISSING_S: Final = 60.0
"""The same while the namespace answers that the backlog queue does not exist: it may be gone for
good, and a queue that is made again is served within this time."""

RECONNECT_JITTER: Final = 0.5
"""Up to this share of a delay is left out by chance, so that clients do not come back together."""


class ReconnectBackoff:
    """Delays that double, and start over once a connection has lasted for a while."""

    def __init__(self, draw: Callable[[], float]) -> None:
        """`draw` returns random numbers from 0 to 1."""
        self._draw = draw
        self._pause_s = 0.0

    def after(self, held_s: float, *, is_missing: bool = False) -> float:
        """Return the delay after a connection (or an attempt) that lasted `held_s` seconds.

        `is_missing`: it ended because the queue does not exist.
        """
        is_new = held_s > LONGEST_RECONNECT_S
        grown_s = FIRST_RECONNECT_S if is_new else max(FIRST_RECONNECT_S, self._pause_s * 2)
        self._pause_s = min(grown_s, LONGEST_MISSING_S if is_missing else LONGEST_RECONNECT_S)
        return self._pause_s * (1 - RECONNECT_JITTER * self._draw())
