"""Limits the messages per second of all pumps of a host.

    rate = Rate(500); pace = Pace(rate)            one pace for each pump
    pace.allowed("orders", 40, now) -> how many of the 40 may be sent now; the rest waits

A pump reserves the next free slice of time, and may send so many messages when it begins. Slices
are reserved in order of request, so pumps with work take turns, and so do the destinations of a
pump. A pump without work reserves nothing.

Pure: `now` is an argument, and `wake_at` is when a reserved slice begins.
"""

from __future__ import annotations

from math import ceil
from typing import Final

STANDARD_PER_S: Final = 250.0
"""Rate for a Standard namespace, which has 1,000 credits a second. A moved message costs two in the
primary (the syphon's send, the consumer's receive) and at most two in the secondary (receive and
settlement). So 250 messages a second use half of each namespace, and leave half to the
application."""

SLICE_S: Final = 0.1
"""Length of the slice that a pump reserves: long enough to send in groups, short enough that ten
busy pumps each get a slice every second. Also the most unused time that is made up for."""

IN_MEMORY_S: Final = 2.0
"""How many seconds' worth of messages all pumps together hold in memory. It is far below the usual
lock duration, so that no lock is renewed only because its message waits for a slice."""

IN_MEMORY_MIN: Final = 2
"""For one pump at any rate: one message that the queue delivers, one received by number."""

LOWEST_PER_S: Final = 0.01
HIGHEST_PER_S: Final = 1_000_000.0


class Rate:
    """The messages per second that all paces together may send."""

    __slots__ = ("_free_at", "_paces", "per_s", "slice_messages")

    def __init__(self, per_s: float) -> None:
        if not LOWEST_PER_S <= per_s <= HIGHEST_PER_S:
            raise ValueError(
                f"a rate is {LOWEST_PER_S:g} to {HIGHEST_PER_S:,.0f} messages a second; "
                f"got {per_s:g}"
            )
        self.per_s = per_s
        self.slice_messages = max(1, int(per_s * SLICE_S))
        self._free_at = float("-inf")
        self._paces: list[Pace] = []

    def __repr__(self) -> str:
        return f"<rate {self.per_s:g}/s, {len(self._paces)} paces, free at {self._free_at:.3f}>"

    def reserve(self, count: int, now: float) -> float:
        """Reserve a slice for `count` messages; return when it begins."""
        # Unused time is made up for, but one slice only: no burst after a quiet time.
        starts_at = max(self._free_at, now - SLICE_S)
        self._free_at = starts_at + count / self.per_s
        return starts_at

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
        working = sum(other.is_working for other in self._paces)
        parts = working if pace.is_working else len(self._paces)
        return max(IN_MEMORY_MIN, ceil(self.per_s * IN_MEMORY_S / max(1, parts)))


class Pace:
    """One pump's share of a rate."""

    __slots__ = ("_from", "_queue", "_rate", "_unused", "is_working")

    def __init__(self, rate: Rate) -> None:
        self.is_working = False
        """The pump has messages in memory."""
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

    def allowed(self, destination: str, wanted: int, now: float) -> int:
        """Return how many messages may be sent now; if fewer than wanted, the destination waits."""
        if next(iter(self._queue), destination) != destination:
            # Others wait already; asking more often gets no larger share.
            self._queue[destination] = None
            return 0
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
        self._unused = min(wanted, self._rate.slice_messages)
        self._from = self._rate.reserve(self._unused, now)

    def next_destination(self) -> str | None:
        """Return the destination to serve next."""
        return next(iter(self._queue), None)

    def remove(self, destination: str) -> None:
        """Remove a destination that has nothing to send."""
        self._queue.pop(destination, None)
