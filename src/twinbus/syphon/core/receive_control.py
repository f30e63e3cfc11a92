"""What a pump asks its backlog queue for: credit, deferred messages, peeks, renewals of locks.

A pump receives nothing while nothing can be delivered (docs/guarantees.md). If all messages in
memory are for held destinations, the pump does not know what comes after them. So it peeks there,
which locks nothing, and defers the messages in between only if it finds one for another
destination.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from twinbus.syphon.core.actions import (
    Action,
    GrantCredit,
    LookAhead,
    ReceiveDeferred,
    Reconnect,
    Renew,
)
from twinbus.syphon.core.destination import (
    ANY_NUMBER,
    DeferredMessages,
    Destination,
    Destinations,
    WaitingMessages,
)
from twinbus.syphon.core.intake import RENEW_AFTER, Intake, Settlements
from twinbus.syphon.core.pacing import Pace
from twinbus.syphon.core.session_lanes import PeekedEntry
from twinbus.transfer.unpacking import BacklogMessage

PAGES_MAX: Final = 40
"""Pages peeked in a row; after a pause, the next peeks go on from there. This bounds the requests
of a pump that can deliver nothing."""

AGAIN_S: Final = 10.0
AGAIN_MAX_S: Final = 60.0
"""Pause between two rounds of peeks; doubled each time the whole queue held nothing of use."""

TARGET_WAIT_S: Final = 10.0
"""Time for a message that was found to be delivered; then another receiver has it."""

NOT_NEEDED_S: Final = 1.0
"""Pause after messages arrived without a peek."""


class LookAheadState:
    """How far one queue was peeked, and the message that was found."""

    def __init__(self) -> None:
        self.peek_at = 0.0
        """No peek before that time."""
        self.is_peeking = False
        """A page is being peeked."""
        self.target: int | None = None
        """Sequence number of a message that can be delivered once those before it are deferred."""
        self._next = 1
        self._pages = 0
        self._target_until = 0.0
        self._again_s = AGAIN_S

    @property
    def due_at(self) -> float | None:
        """When `tick` or the next peek is due; None: a page is being peeked."""
        if self.target is not None:
            return self._target_until
        return None if self.is_peeking else self.peek_at

    def next_start(self, now: float) -> int | None:
        """Return the sequence number to peek from, and expect the page; None: not now."""
        if self.is_peeking or self.target is not None or now < self.peek_at:
            return None
        self.is_peeking = True
        return self._next

    def found(self, number: int, now: float) -> None:
        """Wait for this message: it can be delivered."""
        self.is_peeking = False
        self.target = number
        self._target_until = now + TARGET_WAIT_S
        self._again_s = AGAIN_S
        self._pages, self._next = 0, 1

    def found_nothing(self, last: int | None, now: float) -> None:
        """Go on after a page that held nothing of use and ended with `last`; None: it was empty."""
        self.is_peeking = False
        self._pages += 1
        if last is not None and self._pages < PAGES_MAX:
            self._next = last + 1
            return
        self._pages = 0
        self._next = 1 if last is None else last + 1
        self.peek_at = now + self._again_s
        if last is None:
            self._again_s = min(2 * self._again_s, AGAIN_MAX_S)

    def cut_off(self, now: float) -> None:
        """Start over after a pause: the peek failed, or the target did not come."""
        self.is_peeking = False
        self.target = None
        self._pages = 0
        self.peek_at = now + AGAIN_S

    def delivered(self, number: int, now: float) -> None:
        """Note a delivery; at the target, the look-ahead is over."""
        if self.target is None:
            return
        self._target_until = now + TARGET_WAIT_S
        if number >= self.target:
            self.target = None

    def tick(self, now: float) -> None:
        """Give up a target that was not delivered in time."""
        if self.target is not None and now >= self._target_until:
            self.cut_off(now)


class ReceiveControl:
    """Decides what one pump asks its backlog queue for."""

    def __init__(
        self,
        intake: Intake,
        settlements: Settlements,
        destinations: Destinations,
        waiting: WaitingMessages,
        deferred: DeferredMessages,
        pace: Pace | None,
    ) -> None:
        self.pace = pace
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
        is_up = self._destinations.is_primary_up and self._settlements.is_open
        return is_up and not self.paused

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
        """Return how many messages may come; 0 while nothing can be delivered."""
        if not self.is_possible:
            return 0
        destinations = self._destinations
        home = destinations.home
        if home is not None and not (home.attached and home.credit):
            return 0
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
        progress = (destination.is_progressing(now) for destination in self._destinations)
        return self.look_ahead.target is not None or any(progress)

    # Peeking ahead

    def is_stalled(self, now: float) -> bool:
        """Return whether held destinations are the only reason to receive nothing.

        Never for a twin: behind a message for its home are only more of them.
        """
        if self._destinations.home is not None:
            return False
        return self.is_possible and bool(self._destinations.held) and not self.allowed(now)

    def peek_ahead(self, now: float) -> list[Action]:
        """If only messages of held destinations are in memory, peek at what comes after them."""
        look_ahead = self.look_ahead
        if not self.is_stalled(now):
            # Messages arrive, or the queue cannot be asked.
            look_ahead.peek_at = max(look_ahead.peek_at, now + NOT_NEEDED_S)
            return []
        start = look_ahead.next_start(now)
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
        """Receive deferred messages of a destination, as room allows.

        It takes them again, or was missing for the whole grace period: they are dead-lettered then.
        """
        is_given_up = destination.is_given_up(self._destinations.grace_s, now)
        if not self.is_possible or (destination.is_held and not is_given_up):
            return []
        room = self._intake.fetch_room()
        if destination.window == 1 and not is_given_up:
            # One message is enough to try the destination.
            is_tried = destination.waiting or destination.sent or self._intake.fetching
            room = min(room, 0 if is_tried else 1)
        numbers = self._waiting.take_deferred(destination, room)
        self._intake.fetching += len(numbers)
        return [ReceiveDeferred(numbers)] if numbers else []

    def find_deferred_at(self) -> float | None:
        """Return when to search for deferred messages; None: not in the present state.

        Never in a twin: its consumers deferred them, and receive them by number.
        """
        if not self.is_possible or self._destinations.home is not None:
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
