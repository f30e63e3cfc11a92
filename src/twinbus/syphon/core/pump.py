"""Decides for one backlog queue: what is received, sent and completed, and when.

    received --> waiting --Forward--> sent --accepted--> settling --confirmed--> gone
        |           ^                  |                    ^
        |           '--- link lost, ---'                    |
        |                entity refuses                     |
        '-- no destination, refused for what it is: DeadLetter; destination held: Defer, Release

A message is completed only after the primary accepted it. An event at the wrong moment can cost a
duplicate, never a message: the lock in the backlog queue is the only state that has to survive a
crash. To have fewer duplicates, the pump also remembers which messages the primary has accepted
whose completion was not confirmed.

Pure: the relay calls one method for each event, with the time, performs the actions that it
returns, and calls `tick` at `timer_at`. The parts of a pump:

    Intake, Settlements         messages in memory, and what was decided about them
    Destinations                the entities of the primary, and which of them are held
    WaitingMessages             what waits to be sent, in memory or deferred
    ReceiveControl, SendControl       what is asked of the backlog queue, and what is sent
    StrictOrder                 if the order of sessions is strict: whose turn it is

The pump of a twin has a home: one destination for all messages. Consumers receive from the twin
too, so the pump keeps nothing from them that it cannot deliver. It receives only while the link to
its home is open, one message until that was accepted, and releases what its home does not take. It
defers nothing, and never touches what consumers deferred.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from twinbus.syphon.core.actions import (
    Action,
    Complete,
    DeadLetter,
    Defer,
    EmptyPoll,
    FindDeferred,
)
from twinbus.syphon.core.destination import (
    DeferredMessages,
    Destination,
    Destinations,
    WaitingMessages,
)
from twinbus.syphon.core.intake import RENEW_AFTER, Intake, IntakeLimits, Settlements
from twinbus.syphon.core.pacing import DrainMeter, Pace
from twinbus.syphon.core.receive_control import ReceiveControl
from twinbus.syphon.core.send_control import SendControl
from twinbus.syphon.core.session_lanes import PeekedEntry, SessionLanes
from twinbus.syphon.core.strict_order import IN_MEMORY_SHARE, StrictOrder
from twinbus.transfer.unpacking import BacklogMessage

__all__ = ["IntakeLimits", "Pump"]

ASKED: Final = "a person asked for it"
"""The usual reason for a pause."""

LEFT: Final = "a message in front is left to the consumers"

LEFT_S: Final = 900.0
"""Pause of a twin's pump after a message that it must not move. The queue would deliver it again at
once."""


class Pump:
    """Takes the events of one backlog queue and returns the actions that follow."""

    def __init__(
        self,
        *,
        limits: IntakeLimits | None = None,
        undeliverable_grace_s: float = 21_600.0,
        poll_s: float = 900.0,
        is_strict: bool = False,
        home: str | None = None,
        only: frozenset[str] | None = None,
        pace: Pace | None = None,
        draw: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`is_strict`: the messages of each session are sent in order, one by one.

        `home` is the destination of all messages, if the queue is a twin. It is never given up.
        `only` are the destinations to serve, in lower case; None: all. `pace` is the pump's part in
        a rate that it shares with others. `draw` returns random numbers from 0 to 1, by which
        back-offs vary.
        """
        self.limits = limits or IntakeLimits()
        self.forwarded = self.completed = self.dead_lettered = self.deferred = 0
        self.not_served = 0
        """Deferred messages whose destination is not selected: a later syphon finds them."""
        self.meter = DrainMeter()
        """How fast messages leave the backlog queue."""
        lanes = SessionLanes(self.limits.messages // IN_MEMORY_SHARE) if is_strict else None
        self._poll_s = poll_s
        self._poll_at = 0.0
        self.intake = Intake(self.limits)
        self._settlements = Settlements(self.intake)
        self._deferred = DeferredMessages()
        grace_s = undeliverable_grace_s if home is None else float("inf")
        self.destinations = Destinations(grace_s, only, draw)
        if home is not None:
            self.destinations.set_home(home)
        self.left = ""
        """Why a message in a twin is not moved; empty: none is in the way."""
        self._left_until = float("inf")
        self._waiting = WaitingMessages(self.destinations, self.intake, self._deferred, lanes)
        self.pace = pace
        self._receiving = ReceiveControl(
            self.intake, self._settlements, self.destinations, self._waiting, self._deferred, pace
        )
        self._sending = SendControl(
            self.destinations, self._settlements, self._waiting, self._receiving, self.intake
        )
        self.order: StrictOrder | None = None
        if lanes is not None:
            self.intake.on_removed = lanes.removed
            self.order = StrictOrder(
                lanes,
                destinations=self.destinations,
                intake=self.intake,
                settlements=self._settlements,
                deferred=self._deferred,
                receiving=self._receiving,
                sending=self._sending,
            )

    def __repr__(self) -> str:
        return f"<pump, {self.in_flight} in flight, credit {self.credit}, {[*self.destinations]}>"

    # State

    @property
    def in_flight(self) -> int:
        """Messages received and not yet settled."""
        return len(self.intake)

    @property
    def bytes_in_flight(self) -> int:
        return self.intake.size_bytes

    @property
    def credit(self) -> int:
        """Messages that the backlog queue may still send."""
        return self.intake.credit

    @property
    def held(self) -> dict[str, str]:
        """The destinations that take nothing now, and why."""
        # One on trial that has no message to be tried with may have recovered: leave it out.
        held = self.destinations.held_ones()
        return {d.path: d.reason for d in held if d.reason and (d.is_held or d.sent or d.waiting)}

    @property
    def given_up_at(self) -> dict[str, float]:
        """The destinations that are missing, and when their messages are dead-lettered."""
        return {
            destination.path: destination.missing_since + self.destinations.grace_s
            for destination in self.destinations
            if destination.missing_since is not None and destination is not self.destinations.home
        }

    def attaches_to(self, path: str) -> bool:
        """Return whether the pump waits for a link to this destination."""
        destination = self.destinations.find(path)
        return destination is not None and destination.attach_at is not None

    @property
    def is_paused(self) -> bool:
        """Whether a person asked for a pause."""
        return ASKED in self._receiving.paused

    @property
    def timer_at(self) -> float | None:
        """When to call `tick` next; None: nothing is due."""
        moments = [d.due_at(self.limits.answer_s) for d in self.destinations]
        moments += [next((message.renew_at for message in self.intake), None)]
        moments += [self._receiving.find_deferred_at()]
        moments += [self._poll_at] if self.credit else []
        moments += [self._left_until] if self.left else []
        if self.destinations.held:
            moments.append(self._receiving.look_ahead.due_at)
        if self.order is not None:
            moments.append(self.order.check_at)
        return min((moment for moment in moments if moment is not None), default=None)

    # Connections

    def primary_up(self, now: float) -> list[Action]:
        """Send what waits: the primary can be reached."""
        self.destinations.is_primary_up = True
        self.destinations.primary_answered_at = now
        if self.pace is not None:
            self.pace.governor.restart(now)
        actions: list[Action] = []
        for destination in self.destinations:
            if destination.waiting or destination is self.destinations.home:
                actions += self._sending.serve(destination, now)
        return actions + self._receiving.grant(now)

    def primary_down(self, now: float) -> list[Action]:
        """Stop sending: the primary is gone, and may or may not have what was in flight."""
        self.destinations.is_primary_up = False
        for destination in self.destinations:
            destination.drop_link()
        actions: list[Action] = []
        if self.destinations.home is not None:
            self.destinations.doubt_home()
            actions = self._release_waiting(now)
        return actions + self._receiving.grant(now)

    def secondary_up(self, now: float) -> list[Action]:
        """Receive, and settle what was decided meanwhile: the backlog queue can be reached."""
        self.intake.credit = 0
        self._deferred.connected(now)
        if now >= self._poll_at:  # Else the link was detached inside a poll, which goes on
            self._poll_at = now + self._poll_s
        actions = self._settlements.open(now)
        # Their locks may be gone, and then they are delivered once more: both would be sent.
        actions += self._release_waiting(now)
        return self._advanced(actions + self._receiving.grant(now), now)

    def secondary_down(self, now: float) -> list[Action]:
        """Stop receiving: the link to the backlog queue is gone. Locks and sends live on."""
        if self.intake.fetching or self.intake:
            # Whether they came, or were deferred as decided, is unknown; a search finds them.
            self._deferred.may_hold_more(now)
        self.intake.credit = self.intake.fetching = 0
        self._receiving.look_ahead.cut_off(now)
        self._settlements.close()
        if self.order is not None:
            self.order.disconnected()
        return []

    def pause(self, now: float, why: str = ASKED) -> list[Action]:
        """Receive nothing more and release what was not sent; what was sent is completed."""
        self._receiving.paused.add(why)
        return self._release_waiting(now) + self._receiving.grant(now)

    def resume(self, now: float, why: str = ASKED) -> list[Action]:
        """Receive again, once no other reason to pause is left."""
        self._receiving.paused.discard(why)
        return self._advanced(self._receiving.grant(now), now)

    def _release_waiting(self, now: float) -> list[Action]:
        taken = [self._waiting.take_all(destination) for destination in self.destinations]
        return [action for one in taken for action in self._settlements.release(one, now)]

    def _advanced(self, actions: list[Action], now: float) -> list[Action]:
        """Return the actions and, with strict order, what each session may do now."""
        return actions if self.order is None else actions + self.order.advance(now)

    # The backlog queue

    def received(self, messages: list[BacklogMessage], now: float) -> list[Action]:
        """Send the messages that one read brought from the backlog queue, or let them wait."""
        intake, destinations, waiting = self.intake, self.destinations, self._waiting
        look_ahead, order = self._receiving.look_ahead, self.order
        settlements, remembered = self._settlements, intake.remembered
        self._poll_at = now + self._poll_s
        self._deferred.message_arrived(now)
        actions: list[Action] = []
        served: dict[str, Destination] = {}
        is_unexpectedly_large = is_left = False
        for message in messages:
            if order is not None:
                order.lanes.delivered(message.sequence_number)
            if intake.add(message, now):
                is_unexpectedly_large = True
            if look_ahead.target is not None and not message.is_deferred:
                look_ahead.delivered(message.sequence_number, now)
            if message.is_left:
                is_left = True
                actions += self._leave(message, now)
                continue
            if message.fault is not None and destinations.is_selected(message.path):
                actions += settlements.dead_letter(message, *message.fault, now)
                continue
            if remembered and (known := settlements.complete_known(message, now)) is not None:
                actions += known
                continue
            destination = destinations.by_key.get(message.destination)
            if destination is None:
                destination = destinations.add(message.path)
            if destination.is_selected:
                waiting.add(message, destination)
            else:
                destination.waiting.append(message)
            served[message.destination] = destination
        for destination in served.values():
            actions += self._sending.serve(destination, now)
        if is_left:
            actions += self.pause(now, LEFT)
        if is_unexpectedly_large:
            actions += self._receiving.grant(now)
        return self._advanced(actions, now)

    def _leave(self, message: BacklogMessage, now: float) -> list[Action]:
        """Give a message of a twin back to the consumers, and say why."""
        assert message.fault is not None, message
        self.left = message.fault[1]
        self._left_until = now + LEFT_S
        return self._settlements.release([message], now)

    def settled(self, messages: list[BacklogMessage], now: float) -> list[Action]:
        """Forget these: the backlog queue confirmed what was decided about them."""
        gone, has_room = 0, False
        for message in messages:
            outcome = message.outcome
            if not self.intake.forget(message):
                continue
            if outcome is Complete:
                self.completed += 1
                gone += 1
            elif isinstance(outcome, DeadLetter):
                self.dead_lettered += 1
                gone += 1
                has_room = True
            elif isinstance(outcome, Defer):
                self.deferred += 1
                if self.destinations.is_selected(message.path):
                    self._waiting.was_deferred(message, now)
                else:
                    self.not_served += 1
            elif message.is_deferred:
                # Received by number and released: the queue never delivers it by itself.
                self._waiting.was_deferred(message, now)
        self.meter.moved(gone, now)
        actions = self._sending.use_room(now) + self._receiving.grant(now)
        if has_room:
            # No accepted message asks for the next of a destination that is given up.
            actions += self._receiving.fetch_all(now)
        return actions if self.order is None else actions + self.order.settled(messages, now)

    def settle_failed(self, messages: list[BacklogMessage], now: float) -> list[Action]:
        """Forget these: the backlog queue refused the decision, and will deliver them again."""
        for message in messages:
            if self.intake.forget(message):
                if message.accepted:
                    self.intake.remember(message)
                if message.is_deferred:
                    self._waiting.was_deferred(message, now)
        actions = self._sending.use_room(now) + self._receiving.grant(now)
        if self.order is not None:
            actions += self.order.settle_failed(messages, now)
        return actions

    def renewed(self, messages: list[BacklogMessage], now: float) -> list[Action]:
        """Schedule the next renewal of these: their locks were renewed."""
        for message in messages:
            self.intake.renew_later(message, now + message.lock_s * RENEW_AFTER)
        return []

    def lock_lost(self, messages: list[BacklogMessage], now: float) -> list[Action]:
        """Forget those of these that were not sent: they lost their locks and come again."""
        if messages:
            self.intake.lock_was_lost()
        for message in messages:
            destination = self.destinations.by_key.get(message.destination)
            if destination is None or message.lock_token in destination.sent:
                continue
            if self._waiting.withdraw(message, destination):
                self.intake.forget(message)
                if message.is_deferred:
                    self._waiting.was_deferred(message, now)
        actions = self._sending.use_room(now) + self._receiving.grant(now)
        return self._advanced(actions, now)

    # The destinations

    def attached(self, path: str, limit_bytes: int, now: float) -> list[Action]:
        """Note that the link to a destination is open; its credit comes as an event of its own."""
        self.destinations.primary_answered_at = now
        destination = self.destinations.find(path)
        if destination is not None and destination.attach_at is not None:
            destination.attach_at = None
            destination.attached = True
            destination.attached_at = now
            destination.limit_bytes = limit_bytes
            destination.missing_since = None
        return []

    def authorized(self, now: float) -> list[Action]:
        """Note that the primary allowed a link; the attach comes next."""
        self.destinations.primary_answered_at = now
        return []

    def unanswered(self, path: str, text: str, now: float) -> list[Action]:
        """Give up an attach whose authorization was not answered in time."""
        destination = self.destinations.find(path)
        if destination is None or destination.attach_at is None:
            return []
        return self._sending.give_up_attach(destination, text, now)

    def granted(self, path: str, credit: int, now: float) -> list[Action]:
        """Send what waits, as far as the destination's new credit goes."""
        destination = self.destinations.find(path)
        if destination is None or not destination.attached:
            return []
        destination.credit = credit
        return self._home_changed(self._sending.serve(destination, now), now)

    def detached(self, path: str, condition: str | None, text: str, now: float) -> list[Action]:
        """Handle the end of a link: refused, or closed with messages that may have arrived."""
        self.destinations.primary_answered_at = now
        destination = self.destinations.find(path)
        if destination is None or not (destination.attached or destination.attach_at is not None):
            return []
        return self._home_changed(self._sending.detached(destination, condition, text, now), now)

    def _home_changed(self, actions: list[Action], now: float) -> list[Action]:
        """Return the actions and, for a twin, the credit that the state of its home allows."""
        is_twin = self.destinations.home is not None
        return actions + self._receiving.grant(now) if is_twin else actions

    def accepted(self, messages: list[BacklogMessage], now: float) -> list[Action]:
        """Complete these: the primary has them."""
        destinations = self.destinations
        destinations.primary_answered_at = now
        taken: list[BacklogMessage] = []
        served: Counter[Destination] = Counter()
        for message in messages:
            if message.accepted or message not in self.intake:
                continue
            destination = destinations.by_key[message.destination]
            if destination.sent.pop(message.lock_token, None) is None:
                # Its link was lost, so it waits to be sent again.
                destination.waiting.remove(message)
            message.accepted = True
            message.wire = b""
            taken.append(message)
            served[destination] += 1
        if not taken:
            return []
        self.forwarded += len(taken)
        if self.pace is not None:
            self.pace.governor.accepted(len(taken), now - taken[0].sent_at, now)
        actions = self._settlements.complete(taken, now)
        for destination, count in served.items():
            destination.succeeded(count, now)
            if destination.held_until is None:
                destinations.held.discard(destination.path.lower())
            if destination.waiting or self._waiting.has_deferred(destination):
                actions += self._sending.serve(destination, now)
        return actions

    def refused(
        self, message: BacklogMessage, condition: str | None, text: str, now: float
    ) -> list[Action]:
        """Dead-letter a message that was refused for its content; else hold its destination."""
        self.destinations.primary_answered_at = now
        destination = self.destinations.by_key.get(message.destination)
        if destination is None or destination.sent.pop(message.lock_token, None) is None:
            return []
        return self._sending.refused(message, destination, condition, text, now)

    # Answers to peeks, and to requests by number

    def fetched(self, numbers: list[int], now: float, *, failed: bool = False) -> list[Action]:
        """Take the end of a `ReceiveDeferred`, after `received` for each message that came."""
        if self.order is not None:
            self.order.lanes.fetch_ended(numbers)
        self.intake.fetching = max(0, self.intake.fetching - len(numbers))
        if failed:
            self._deferred.may_hold_more(now)
            return self._advanced(self._receiving.grant(now), now)
        return self._advanced(self._receiving.fetch_all(now), now)

    def found_deferred(self, found: list[PeekedEntry], now: float, *, is_all: bool) -> list[Action]:
        """Take the deferred messages that a search found. `is_all`: the queue has no others."""
        self._deferred.search_ended(now, is_all=is_all)
        # If the queue is busy, some of them are already in memory.
        in_memory = {message.sequence_number for message in self.intake}
        for entry in found:
            if self.destinations.is_selected(entry.path) and entry.number not in in_memory:
                self._waiting.found_deferred(entry, now)
        return self._advanced(self._receiving.fetch_all(now), now)

    def looked_ahead(self, page: list[PeekedEntry], now: float, *, failed: bool) -> list[Action]:
        look_ahead = self._receiving.look_ahead
        if not look_ahead.is_peeking:
            return []
        if failed or not self._receiving.is_stalled(now):
            look_ahead.cut_off(now)
            return []
        for entry in page:
            if self._receiving.is_worth_receiving(entry):
                look_ahead.found(entry.number, now)
                return self._sending.defer_all_held(now)
        look_ahead.found_nothing(page[-1].number if page else None, now)
        return self._receiving.peek_ahead(now)

    def peeked_for_order(
        self, page: list[PeekedEntry], now: float, *, failed: bool
    ) -> list[Action]:
        return [] if self.order is None else self.order.peeked(page, now, failed=failed)

    # Time

    def rate_due(self, now: float) -> list[Action]:
        """Send what waited for the rate."""
        return [] if self.pace is None else self._sending.woken(self.pace, now)

    def tick(self, now: float) -> list[Action]:
        actions: list[Action] = []
        if self.left and now >= self._left_until:
            self.left = ""
            actions += self.resume(now, LEFT)
        if self.destinations.home is not None and not self.destinations.home.is_progressing(now):
            # It was idle: an outage may have begun meanwhile.
            self.destinations.doubt_home()
        for key, destination in self.destinations.by_key.items():
            if destination.is_late(now):
                destination.doubt(now)
                self.destinations.held.add(key)
                if destination is self.destinations.home:
                    actions += self._release_waiting(now)
        for destination in self.destinations:
            actions += self._sending.tick(destination, self.limits.answer_s, now)
        actions += self._sending.use_room(now)
        actions += self._receiving.renew_locks(self.limits.answer_s, now)
        if self.credit and now >= self._poll_at:
            self._poll_at = now + self._poll_s
            actions.append(EmptyPoll())
        actions += self._sending.close_idle(now)
        if self.pace is not None:
            actions += self._sending.serve_by_rate(self.pace, now)
        find_at = self._receiving.find_deferred_at()
        if find_at is not None and now >= find_at:
            self._deferred.search_started(now)
            actions.append(FindDeferred(to_the_end=self._receiving.is_quiet))
        self._receiving.look_ahead.tick(now)
        actions += self._receiving.grant(now) + self._receiving.peek_ahead(now)
        return actions if self.order is None else actions + self.order.tick(now)
