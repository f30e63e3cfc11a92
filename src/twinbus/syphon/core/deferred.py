"""Messages that were deferred in the backlog queue, and when to look for more of them.

Those that this process deferred are known by number. Others, of a process that died, are found by
peeking; that is done when the queue has gone quiet, for in a full one it would mean to peek at all
of it. One that never goes quiet is peeked at all the same, a minute later; but only at its front,
where they lie.
"""

from __future__ import annotations

from typing import Final

from twinbus.syphon.core.destination import Destination

__all__ = ["DeferredMessages"]

KNOWN_MAX: Final = 100_000
"""Numbers kept for one destination; further ones are found by peeking."""

SEARCH_AFTER_S: Final = 2.0
"""Quiet time before a look."""

SEARCH_AGAIN_S: Final = 10.0

FORCED_SEARCH_S: Final = 60.0
FORCED_SEARCH_MAX_S: Final = 3_600.0
"""How long a look waits for quiet. Each time that one did not reach the end, twice as long, up to
the second."""

VALID_S: Final = 3_600.0
"""How long a look that found all is relied on: another process may have deferred some since, and
died, or was a drain of some destinations only. One peek an hour is little beside four polls."""


class DeferredMessages:
    """What is set aside, as far as it is known."""

    __slots__ = ("_forced_s", "_valid_until", "forced_at", "search_at")

    def __init__(self) -> None:
        self.search_at: float | None = 0.0
        """When to look for deferred messages; None: all are known. At first nothing is."""
        self.forced_at = float("inf")
        """When to look although the queue is not quiet."""
        self._forced_s = FORCED_SEARCH_S
        self._valid_until = float("-inf")

    @property
    def due_at(self) -> float:
        """When to look if it is quiet, whether some are known to be missing or not."""
        return self._valid_until if self.search_at is None else min(self.search_at, self.forced_at)

    def connected(self, now: float) -> None:
        """The queue can be looked at from now on."""
        self.forced_at = min(self.forced_at, now + FORCED_SEARCH_S)

    def message_arrived(self, now: float) -> None:
        """The queue is not quiet."""
        if self.search_at is not None:
            self.search_at = now + SEARCH_AFTER_S

    def may_hold_more(self, now: float) -> None:
        """Some that were known are known no more."""
        self.search_at = now + SEARCH_AGAIN_S
        self.forced_at = min(self.forced_at, now + self._forced_s)

    def search_started(self, now: float) -> None:
        """A look is asked for; if it comes to nothing there is another."""
        self.search_at = now + SEARCH_AGAIN_S
        self.forced_at = now + self._forced_s

    def search_ended(self, now: float, *, is_all: bool) -> None:
        """A look ended."""
        self._valid_until = now + VALID_S
        if is_all:
            self.search_at, self._forced_s = None, FORCED_SEARCH_S
            self.forced_at = self._valid_until + FORCED_SEARCH_S
        else:
            self.search_at = now + SEARCH_AGAIN_S
            self._forced_s = min(2 * self._forced_s, FORCED_SEARCH_MAX_S)
            self.forced_at = now + self._forced_s

    def add(self, destination: Destination, number: int, now: float) -> None:
        """One more is set aside."""
        if len(destination.deferred) < KNOWN_MAX:
            destination.deferred[number] = None
        elif self.search_at is None:
            self.may_hold_more(now)

    @staticmethod
    def take(destination: Destination, count: int) -> list[int]:
        """The next numbers to receive, which are then known no more."""
        known = destination.deferred
        return [known.popitem(last=False)[0] for _ in range(min(count, len(known)))]
