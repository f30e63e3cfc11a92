"""One pump's part of a governor's rate.

    rate = Rate(); pace = Pace(rate)               one rate for a host, one pace for each pump
    pace.allowed("orders", 40, now) -> how many of the 40 may be sent now; the rest waits

A pump reserves the next free slice of time, and may send so many messages when it begins. Slices
are reserved in order of request, so pumps with work take turns, and so do the destinations of a
pump. A pump without work reserves nothing.

Pure: `now` is an argument, and `wake_at` is when a reserved slice begins.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from twinbus.syphon.core.pacing.governor import SLICE_S, Governor

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
        """Reserve anew at the next request."""
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
