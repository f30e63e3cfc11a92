"""Where the messages of one pump wait: in memory to be sent, or deferred in the backlog queue.

With strict session order, messages of a session wait in the session's lane and go one by one.

This process knows the sequence numbers of the messages that it deferred. Messages that another
process deferred before it died are found by peeking, when the queue is quiet: in a full queue the
search would peek at every message. If the queue is never quiet, a forced search peeks only at its
front, where deferred messages are.
"""

from __future__ import annotations

from typing import Final

from twinbus.syphon.core.destination import Destination, Destinations
from twinbus.syphon.core.intake import Intake
from twinbus.syphon.core.session_lanes import PeekedEntry, SessionLanes
from twinbus.transfer.unpacking import BacklogMessage

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


class WaitingMessages:
    """The waiting messages of one pump, by destination."""

    def __init__(
        self,
        destinations: Destinations,
        intake: Intake,
        deferred: DeferredMessages,
        lanes: SessionLanes | None,
    ) -> None:
        """`lanes` are given if the order of each session is strict."""
        self._destinations = destinations
        self._intake = intake
        self._deferred = deferred
        self._lanes = lanes

    def add(self, message: BacklogMessage, destination: Destination) -> None:
        """Let a received message wait to be sent."""
        if self._lanes is None or message.session is None:
            destination.waiting.append(message)
            return
        older = self._lanes.add(message)
        if older is not None:
            self._intake.forget(older)

    def has_any(self, destination: Destination) -> bool:
        """Return whether a message to this destination waits in memory."""
        if destination.waiting or self._lanes is None:
            return bool(destination.waiting)
        return self._lanes.has_waiting(destination.path.lower())

    def take_all(self, destination: Destination) -> list[BacklogMessage]:
        """Remove and return the messages to this destination that wait in memory."""
        taken = destination.take_waiting()
        if self._lanes is not None:
            taken += self._lanes.take_waiting(destination.path.lower())
        return taken

    def withdraw(self, message: BacklogMessage, destination: Destination) -> bool:
        """Remove one message; return whether it was waiting."""
        if message in destination.waiting:
            destination.waiting.remove(message)
            return True
        return self._lanes is not None and self._lanes.withdraw(message)

    def withdraw_undeliverable(self, message: BacklogMessage, destination: Destination) -> bool:
        """Remove a message that cannot be sent now; return whether it was removed."""
        is_up = self._destinations.is_primary_up
        if self._lanes is None or not self._lanes.is_waiting(message):
            return destination.remove_unsendable(message, is_up=is_up)
        if is_up and not destination.is_held:
            return False
        return self._lanes.withdraw(message)

    # Deferred in the backlog queue

    def has_deferred(self, destination: Destination) -> bool:
        """Return whether deferred messages of it are known that may be received by number."""
        if destination.deferred or self._lanes is None:
            return bool(destination.deferred)
        return self._lanes.has_deferred(destination.path.lower())

    def take_deferred(self, destination: Destination, room: int) -> list[int]:
        """Return the numbers to receive next, at most `room`; they are then no longer known."""
        if self._lanes is None:
            return self._deferred.take(destination, room)
        numbers = self._lanes.take_deferred(destination.path.lower(), room)
        return numbers + self._deferred.take(destination, room - len(numbers))

    def was_deferred(self, message: BacklogMessage, now: float) -> None:
        """Note that a message is deferred in the backlog queue and no longer in memory."""
        if self._lanes is None or message.session is None:
            destination = self._destinations.add(message.path)
            self._deferred.add(destination, message.sequence_number, now)
        else:
            self._lanes.was_deferred(message)

    def found_deferred(self, entry: PeekedEntry, now: float) -> None:
        """Note a deferred message that a peek found; any process may have deferred it."""
        if self._lanes is None or entry.session is None:
            self._deferred.add(self._destinations.add(entry.path), entry.number, now)
        else:
            self._lanes.seen(entry)
