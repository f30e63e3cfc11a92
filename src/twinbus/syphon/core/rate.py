"""At most so many messages a second, over all pumps of a host, one after another.

    rate = Rate(500); pace = Pace(rate)            one pace for each pump
    pace.allowed("orders", 40, now) -> how many of the 40 may be sent now; the rest waits in line

A pump takes its messages by the slice: it reserves the next free slice of time, and what it sends
then is paid. Whoever reserves first is first, so pumps with work take turns; inside a pump the
destinations with work do the same. Nobody's share is kept for those who have nothing to send.

Pure: `now` is an argument, and `wake_at` is when a reserved slice begins.
"""

from __future__ import annotations

from math import ceil
from typing import Final

__all__ = ["STANDARD_PER_S", "Pace", "Rate"]

STANDARD_PER_S: Final = 250.0
"""What a Standard namespace has left for a syphon. It gives 1,000 credits a second; a moved message
takes two of them in the primary (the syphon's send, the consumer's receive) and at most two in the
secondary (receive and settlement). So 250 a second takes half of each namespace, and the other half
is the application's own."""

SLICE_S: Final = 0.1
"""Of the rate that a pump reserves at once: long enough to send in groups, short enough that ten
busy pumps each have their turn every second. Also the most that is made up for after a pause."""

IN_MEMORY_S: Final = 2.0
"""Of the rate that all pumps together have received and not sent. A lock runs for a minute, so that
none has to be renewed only because its message waits for its slice."""

IN_MEMORY_MIN: Final = 2
"""For one pump, however low the rate: one that the queue delivers, one that is asked for."""

LOWEST_PER_S: Final = 0.01
HIGHEST_PER_S: Final = 1_000_000.0


class Rate:
    """How many messages a second all paces together may send."""

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
        """From when on `count` messages may be sent that nobody else was promised."""
        # What nobody used is made up for, but for one slice only: no burst after a quiet time.
        starts_at = max(self._free_at, now - SLICE_S)
        self._free_at = starts_at + count / self.per_s
        return starts_at

    def add(self, pace: Pace) -> None:
        """One more takes part."""
        self._paces.append(pace)

    def remove(self, pace: Pace) -> None:
        """One takes part no more."""
        if pace in self._paces:
            self._paces.remove(pace)

    def share(self, pace: Pace) -> int:
        """How many messages a pump may have in hand: as many as it can send in a short time.

        Those who have work share it among them; one that has none gets ready with an equal part.
        """
        working = sum(other.is_working for other in self._paces)
        parts = working if pace.is_working else len(self._paces)
        return max(IN_MEMORY_MIN, ceil(self.per_s * IN_MEMORY_S / max(1, parts)))


class Pace:
    """One pump's part in a rate."""

    __slots__ = ("_from", "_queue", "_rate", "_unused", "is_working")

    def __init__(self, rate: Rate) -> None:
        self.is_working = False
        """The pump has messages in hand."""
        self._rate = rate
        self._unused = 0
        """Messages of the reserved slice that were not sent yet."""
        self._from = float("-inf")
        self._queue: dict[str, None] = {}
        """The destinations that wait for this pump's next slice, in their order."""
        rate.add(self)

    def __repr__(self) -> str:
        return f"<pace, {self._unused} from {self._from:.3f} on, {list(self._queue)} in line>"

    @property
    def wake_at(self) -> float | None:
        """When the destinations in line can be served; None: none is in line."""
        return self._from if self._queue else None

    @property
    def share(self) -> int:
        """How many messages the pump may have in hand."""
        return self._rate.share(self)

    def leave(self) -> None:
        """Take part no more."""
        self._rate.remove(self)

    def allowed(self, destination: str, wanted: int, now: float) -> int:
        """How many of the wanted messages may be sent now; with fewer, it is put in line."""
        if next(iter(self._queue), destination) != destination:
            # Others wait already; who asks oftener gets no more for it.
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
            # It had its slice: behind those that wait.
            self._queue[destination] = None
        if self._queue and not self._unused:
            self._reserve(wanted - count or 1, now)
        return count

    def _reserve(self, wanted: int, now: float) -> None:
        self._unused = min(wanted, self._rate.slice_messages)
        self._from = self._rate.reserve(self._unused, now)

    def next_destination(self) -> str | None:
        """The destination that is to be served next."""
        return next(iter(self._queue), None)

    def remove(self, destination: str) -> None:
        """It has nothing to send after all."""
        self._queue.pop(destination, None)
