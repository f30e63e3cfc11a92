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

LOOK_AFTER_S: Final = 2.0
"""Quiet time before a look."""

LOOK_AGAIN_S: Final = 10.0

LATEST_S: Final = 60.0
LONGEST_LATEST_S: Final = 3_600.0
"""How long a look waits for quiet. Each time that one did not reach the end, twice as long, up to
the second."""

SURE_S: Final = 3_600.0
"""How long a look that found all is relied on: another process may have deferred some since, and
died, or was a drain of some destinations only. One peek an hour is little beside four polls."""


class DeferredMessages:
    """What is set aside, as far as it is known."""

    __slots__ = ("_latest_s", "_sure_until", "latest_at", "look_at")

    def __init__(self) -> None:
        self.look_at: float | None = 0.0
        """When to look for deferred messages; None: all are known. At first nothing is."""
        self.latest_at = float("inf")
        """When to look although the queue is not quiet."""
        self._latest_s = LATEST_S
        self._sure_until = float("-inf")

    @property
    def due_at(self) -> float:
        """When to look if it is quiet, whether some are known to be missing or not."""
        return self._sure_until if self.look_at is None else min(self.look_at, self.latest_at)

    def begin(self, now: float) -> None:
        """The queue can be looked at from now on."""
        self.latest_at = min(self.latest_at, now + LATEST_S)

    def something_came(self, now: float) -> None:
        """The queue is not quiet."""
        if self.look_at is not None:
            self.look_at = now + LOOK_AFTER_S

    def may_hold_more(self, now: float) -> None:
        """Some that were known are known no more."""
        self.look_at = now + LOOK_AGAIN_S
        self.latest_at = min(self.latest_at, now + self._latest_s)

    def looking(self, now: float) -> None:
        """A look is asked for; if it comes to nothing there is another."""
        self.look_at = now + LOOK_AGAIN_S
        self.latest_at = now + self._latest_s

    def looked(self, now: float, *, is_all: bool) -> None:
        """A look ended."""
        self._sure_until = now + SURE_S
        if is_all:
            self.look_at, self._latest_s = None, LATEST_S
            self.latest_at = self._sure_until + LATEST_S
        else:
            self.look_at = now + LOOK_AGAIN_S
            self._latest_s = min(2 * self._latest_s, LONGEST_LATEST_S)
            self.latest_at = now + self._latest_s

    def add(self, destination: Destination, number: int, now: float) -> None:
        """One more is set aside."""
        if len(destination.deferred) < KNOWN_MAX:
            destination.deferred[number] = None
        elif self.look_at is None:
            self.may_hold_more(now)

    @staticmethod
    def take(destination: Destination, count: int) -> list[int]:
        """The next numbers to receive, which are then known no more."""
        known = destination.deferred
        return [known.popitem(last=False)[0] for _ in range(min(count, len(known)))]
