"""What a pump asks its backlog queue for: credit, deferred messages, peeks, renewals of locks.

A pump receives nothing while nothing can be delivered (SPEC 6).
"""

from __future__ import annotations

from collections.abc import Iterable

from twinbus.syphon.core.actions import (
    Action,
    GrantCredit,
    LookAhead,
    ReceiveDeferred,
    Reconnect,
    Renew,
)
from twinbus.syphon.core.backlog_message import BacklogMessage
from twinbus.syphon.core.deferred import DeferredMessages
from twinbus.syphon.core.destination import ANY_NUMBER, Destination, Destinations
from twinbus.syphon.core.intake import RENEW_AFTER, Intake
from twinbus.syphon.core.look_ahead import LookAheadState
from twinbus.syphon.core.pacing.pace import Pace
from twinbus.syphon.core.session_lanes import PeekedEntry
from twinbus.syphon.core.settlements import Settlements
from twinbus.syphon.core.waiting import WaitingMessages


class ReceiveControl:
    """Decides what one pump asks its backlog queue for."""

    def __init__(
        self,
        intake: Intake,
        settlements: Settlements,
        destinations: Destinations,
        waiting: WaitingMessages,
        deferred: DeferredMessages,
    ) -> None:
        self.pace: Pace | None = None
        """The pump's part in a rate that it shares with others."""
        self.paused: set[str] = set()
        """Reasons to receive nothing; empty: the pump receives."""
        self.look_ahead = LookAheadState()
        self._intake = intake
        self._settlements = settlements
        self._destinations = destinations
        self._waiting = waiting
        self._deferred = deferred

    @property
    def is_possible(self) -> bool:
        """Whether both namespaces can be reached and the pump is not paused."""
        if not (self._destinations.is_primary_up and self._settlements.is_open):
            return False
        return not self.paused

    @property
    def is_quiet(self) -> bool:
        """Whether no message is in memory, and none is being received by number."""
        return not self._intake and not self._intake.fetching

    # Credit

    def grant(self, now: float) -> list[Action]:
        """Change the credit of the backlog queue if the change is worth a frame."""
        intake, most = self._intake, self.allowed(now)
        if self.pace is not None:
            self.pace.is_working = bool(intake)
            intake.limit_to(self.pace.share)
        wanted = intake.wanted() if most else 0
        if most < ANY_NUMBER:
            # A small number must be exact, although it is less than is usually worth a frame.
            wanted = min(wanted, most)
            is_worth_it = wanted != intake.credit
        else:
            is_worth_it = intake.is_worth_a_frame(wanted)
        if is_worth_it:
            intake.credit = wanted
            return [GrantCredit(wanted)]
        return []

    def allowed(self, now: float) -> int:
        """Return how many messages may come; 0 while nothing can be delivered (SPEC 6)."""
        if not self.is_possible:
            return 0
        destinations = self._destinations
        if not destinations.held or self.others_progress(now):
            return ANY_NUMBER
        waited_for = [
            held
            for held in destinations.held_ones()
            if not held.is_given_up(destinations.grace_s, now)
        ]
        if not waited_for:
            return ANY_NUMBER
        if not all(each.is_on_trial for each in waited_for):
            return 0
        # One message is enough to try the destinations.
        return 1 if self.is_quiet else 0

    def others_progress(self, now: float) -> bool:
        """Return whether messages arrive, or would if those of held destinations were deferred."""
        return self.look_ahead.target is not None or self._destinations.any_progress(now)

    # Peeking ahead

    def is_stalled(self, now: float) -> bool:
        """Return whether held destinations are the only reason to receive nothing."""
        return self.is_possible and bool(self._destinations.held) and not self.allowed(now)

    def peek_ahead(self, now: float) -> list[Action]:
        """If only messages of held destinations are in memory, peek at what comes after them."""
        if not self.is_stalled(now):
            self.look_ahead.not_needed(now)
            return []
        start = self.look_ahead.next_start(now)
        return [] if start is None else [LookAhead(start)]

    def is_worth_receiving(self, entry: PeekedEntry) -> bool:
        """Return whether a peeked message could be delivered, or could try a held destination."""
        if entry.is_deferred or not self._destinations.is_selected(entry.path):
            return False
        if entry.path.lower() not in self._destinations.held:
            return True
        destination = self._destinations.by_key[entry.path.lower()]
        if not destination.is_on_trial or destination.sent:
            return False
        return not (self._waiting.has_any(destination) or self._waiting.has_deferred(destination))

    # Deferred messages

    def fetch_all(self, now: float) -> list[Action]:
        """Receive deferred messages of all destinations, as room allows."""
        actions: list[Action] = []
        for destination in self._destinations:
            actions += self.fetch(destination, now)
        return actions

    def fetch(self, destination: Destination, now: float) -> list[Action]:
        """Receive deferred messages of a destination that takes them again, as room allows."""
        if not self._waiting.has_deferred(destination) or destination.is_held:
            return []
        if not self.is_possible:
            return []
        room = self._intake.fetch_room()
        if destination.window == 1 and not destination.is_given_up(self._destinations.grace_s, now):
            # One message is enough to try the destination.
            is_tried = destination.waiting or destination.sent or self._intake.fetching
            room = min(room, 0 if is_tried else 1)
        numbers = self._waiting.take_deferred(destination, room)
        self._intake.fetching += len(numbers)
        return [ReceiveDeferred(numbers)] if numbers else []

    def find_deferred_at(self) -> float | None:
        """Return when to search for deferred messages; None: not in the present state."""
        if not self.is_possible:
            return None
        return self._deferred.due_at if self.is_quiet else self._deferred.forced_at

    # Locks

    @property
    def messages(self) -> Iterable[BacklogMessage]:
        """What is received and not settled yet."""
        return self._intake

    def renew_locks(self, answer_s: float, now: float) -> list[Action]:
        """Renew the locks that are due; release instead what cannot be sent now."""
        destinations = self._destinations.by_key
        renewed: list[BacklogMessage] = []
        actions: list[Action] = []
        for message in self._intake.due(now):
            # If the renewal is not answered, the message comes up again before the lock ends.
            self._intake.renew_later(message, now + max(1.0, message.lock_s * RENEW_AFTER / 2))
            if message.outcome is not None:
                if self._settlements.is_open and now >= message.settling_at + answer_s:
                    text = f"a settlement was not answered for {answer_s:g} s"
                    actions = [Reconnect("secondary", text)]
            elif self._waiting.withdraw_undeliverable(message, destinations[message.destination]):
                actions += self._settlements.release([message], now)
            else:
                renewed.append(message)
        if renewed and self._settlements.is_open:
            actions.append(Renew(renewed))
        return actions
