"""Messages that are deferred in the backlog queue, and when to search for more of them.

This process knows the sequence numbers of the messages that it deferred. Messages that another
process deferred before it died are found by peeking, when the queue is quiet: in a full queue the
search would peek at every message. If the queue is never quiet, a forced search peeks only at its
front, where deferred messages are.
"""

from __future__ import annotations

from typing import Final

from twinbus.syphon.core.destination import Destination

KNOWN_MAX: Final = 100_000
"""Sequence numbers kept for one destination; a search finds the others."""

SEARCH_AFTER_S: Final = 2.0
"""Quiet time before a search."""

SEARCH_AGAIN_S: Final = 10.0

FORCED_SEARCH_S: Final = 60.0
FORCED_SEARCH_MAX_S: Final = 3_600.0
"""How long a search waits for the queue to be quiet; doubled, up to the maximum, after each search
that did not reach the end of the queue."""

VALID_S: Final = 3_600.0
"""How long the result of a complete search is valid. After it, another process may have deferred
messages and died, or drained only some destinations. A search an hour costs less than the polls."""


class DeferredMessages:
    """The known deferred messages of one pump, and the times of its searches."""

    def __init__(self) -> None:
        self.search_at: float | None = 0.0
        """When to search if the queue is quiet; None: all deferred messages are known."""
        self.forced_at = float("inf")
        """When to search even if the queue is busy."""
        self._forced_s = FORCED_SEARCH_S
        self._valid_until = float("-inf")

    @property
    def due_at(self) -> float:
        """When to search next if the queue is quiet."""
        return self._valid_until if self.search_at is None else min(self.search_at, self.forced_at)

    def connected(self, now: float) -> None:
        """Schedule the first forced search: the queue can be reached."""
        self.forced_at = min(self.forced_at, now + FORCED_SEARCH_S)

    def message_arrived(self, now: float) -> None:
        """Put off the search: the queue is not quiet."""
        if self.search_at is not None:
            self.search_at = now + SEARCH_AFTER_S

    def may_hold_more(self, now: float) -> None:
        """Schedule a search: some deferred messages may be unknown."""
        self.search_at = now + SEARCH_AGAIN_S
        self.forced_at = min(self.forced_at, now + self._forced_s)

    def search_started(self, now: float) -> None:
        """Schedule the next search, in case this one fails."""
        self.search_at = now + SEARCH_AGAIN_S
        self.forced_at = now + self._forced_s

    def search_ended(self, now: float, *, is_all: bool) -> None:
        """Schedule the next search. `is_all`: this one reached the end of the queue."""
        self._valid_until = now + VALID_S
        if is_all:
            self.search_at, self._forced_s = None, FORCED_SEARCH_S
            self.forced_at = self._valid_until + FORCED_SEARCH_S
        else:
            self.search_at = now + SEARCH_AGAIN_S
            self._forced_s = min(2 * self._forced_s, FORCED_SEARCH_MAX_S)
            self.forced_at = now + self._forced_s

    def add(self, destination: Destination, number: int, now: float) -> None:
        """Remember a deferred message of a destination."""
        if len(destination.deferred) < KNOWN_MAX:
            destination.deferred[number] = None
        elif self.search_at is None:
            self.may_hold_more(now)

    @staticmethod
    def take(destination: Destination, count: int) -> list[int]:
        """Remove and return the next numbers to receive."""
        known = destination.deferred
        return [known.popitem(last=False)[0] for _ in range(min(count, len(known)))]
