"""Messages that were deferred in the backlog queue, and when to look for more of them.

Those that this process deferred are known by number. Others, of a process that died, are found by
peeking; that is done when the queue has gone quiet, for in a full one it would mean to peek at all
of it.
"""

from __future__ import annotations

from typing import Final

from twinbus.syphon.destination import Destination

__all__ = ["Aside"]

KNOWN_MAX: Final = 100_000
"""Numbers kept for one destination; further ones are found by peeking."""

LOOK_AFTER_S: Final = 2.0
"""Quiet time before a look."""

LOOK_AGAIN_S: Final = 10.0

SURE_S: Final = 3_600.0
"""How long a look that found all is relied on: another process may have deferred some since, and
died, or was a drain of some destinations only. One peek an hour is little beside four polls."""


class Aside:
    """What is set aside, as far as it is known."""

    __slots__ = ("_sure_until", "look_at")

    def __init__(self) -> None:
        self.look_at: float | None = 0.0
        """When to look for deferred messages; None: all are known. At first nothing is."""
        self._sure_until = float("-inf")

    @property
    def due_at(self) -> float:
        """When to look, whether some are known to be missing or not."""
        return self._sure_until if self.look_at is None else self.look_at

    def something_came(self, now: float) -> None:
        """The queue is not quiet."""
        if self.look_at is not None:
            self.look_at = now + LOOK_AFTER_S

    def may_hold_more(self, now: float) -> None:
        """Some that were known are known no more."""
        self.look_at = now + LOOK_AGAIN_S

    def looked(self, now: float, *, is_all: bool) -> None:
        """A look ended."""
        self.look_at = None if is_all else now + LOOK_AGAIN_S
        self._sure_until = now + SURE_S

    def add(self, destination: Destination, number: int, now: float) -> None:
        """One more is set aside."""
        if len(destination.deferred) < KNOWN_MAX:
            destination.deferred[number] = None
        elif self.look_at is None:
            self.may_hold_more(now)

    @staticmethod
    def take(destination: Destination, count: int) -> list[int]:
        """The next numbers to receive, which are then known no more."""
        numbers = list(destination.deferred)[: max(0, count)]
        for number in numbers:
            del destination.deferred[number]
        return numbers
