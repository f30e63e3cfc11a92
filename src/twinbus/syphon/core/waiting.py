"""Where the messages of one pump wait: in memory to be sent, or deferred in the backlog queue.

With strict session order, messages of a session wait in the session's lane and go one by one.
"""

from __future__ import annotations

from twinbus.syphon.core.backlog_message import BacklogMessage
from twinbus.syphon.core.deferred import DeferredMessages
from twinbus.syphon.core.destination import Destination, Destinations
from twinbus.syphon.core.intake import Intake
from twinbus.syphon.core.session_lanes import PeekedEntry, SessionLanes


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
