"""When a syphon lists the backlog queues, to find those that were made after its start. Pure.

    no backlog queue is known                                  every 30 s
    the primary is down, or was within the last 15 minutes     every minute
    messages move, or did within the last 15 minutes           every minute
    otherwise                                                  every 15 minutes, as an idle poll

An application that joins a pair later, or with more queues, creates them in an outage too: what it
diverts must not wait for the end of an idle interval.
"""

from __future__ import annotations

from typing import Final

FIRST_S: Final = 30.0
BUSY_S: Final = 60.0
IDLE_S: Final = 900.0


class ListingTimes:
    """The time of the next search."""

    def __init__(self) -> None:
        self._searched_at = float("-inf")
        self._busy_at = float("-inf")
        self._moved = 0

    def observe(self, *, is_down: bool, moved: int, now: float) -> None:
        """Take whether the primary is down, and the messages moved so far."""
        if is_down or moved != self._moved:
            self._busy_at = now
        self._moved = moved

    def searched(self, now: float) -> None:
        """Note that a search began; whether it is answered does not matter."""
        self._searched_at = now

    def due_at(self, now: float, *, has_queues: bool = True) -> float:
        """Return when to search next, as far as is known now."""
        if not has_queues:
            return self._searched_at + FIRST_S
        is_busy = now < self._busy_at + IDLE_S
        return self._searched_at + (BUSY_S if is_busy else IDLE_S)
