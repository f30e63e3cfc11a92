"""The syphon of an explored world: one shipped pump for each backlog queue, and its connections.

What is here performs the actions of the pumps, as syphon/relay does, and answers as the two
namespaces would.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.exploration.application import no_chance
from tests.exploration.explorer import QUESTIONS, Violation
from twinbus.syphon.core.actions import (
    Action,
    CloseDestination,
    Complete,
    DeadLetter,
    Defer,
    EmptyPoll,
    FindDeferred,
    Forward,
    GrantCredit,
    LookAhead,
    OpenDestination,
    PeekForOrder,
    ReceiveDeferred,
    Reconnect,
    Release,
    Renew,
)
from twinbus.syphon.core.pump import IntakeLimits, Pump
from twinbus.syphon.core.session_lanes import PeekedEntry
from twinbus.transfer.unpacking import BacklogMessage

if TYPE_CHECKING:
    from tests.exploration.world import Stored, World

LINK_CREDIT = 10
LOCK_S = 20.0
AGAIN_S = 5.0
"""A timer that is still due after a tick fires again after this time (syphon: 0.01 s)."""


@dataclass(eq=False)
class Memory:
    """What one relay has in memory: its pump, and what is in flight."""

    pump: Pump
    sent: list[BacklogMessage] = field(default_factory=list)
    settling: list[tuple[str, BacklogMessage]] = field(default_factory=list)


class Relay:
    """One pump, and what it has asked of the namespaces.

    Most steps change no pump: its memory stays pickled until something happens to it.
    """

    def __init__(self, world: World, program: str, queue: str) -> None:
        self.world = world
        self.program = program
        self.queue = queue
        self.start()

    def start(self) -> None:
        """Begin with nothing in memory, as a process does."""
        self.is_over = False
        """Nothing will ever be in its queue again."""
        limits = IntakeLimits(messages=8, answer_s=10.0)
        pump = Pump(limits=limits, is_strict=self.world.settings.strict, draw=no_chance)
        self._memory: Memory | None = Memory(pump)
        self.pickled = b""
        self.connected: set[str] = set()
        self.attaching: set[str] = set()
        """Destinations."""
        self.attached: set[str] = set()
        self.credit = 0
        self.lost: set[str] = set()
        """Sides whose answers to what is in flight do not come."""
        self.ticked_at = float("-inf")
        self._note()

    def _note(self) -> None:
        """Keep what every step asks, so that the pump need not be unpickled for it."""
        memory = self.memory
        self.timer_at = memory.pump.timer_at
        self.in_flight = memory.pump.in_flight
        self.sending, self.to_settle = len(memory.sent), len(memory.settling)

    @property
    def is_idle(self) -> bool:
        """Whether it has no message in memory, and none that may arrive."""
        return not (self.in_flight or self.sending)

    def end(self) -> None:
        """Forget all of it: there will be nothing to do."""
        self.is_over, self.pickled = True, b""
        self.connected, self.lost = {"primary", "secondary"}, set()
        self.attaching, self.attached = set(), set()
        self.credit = self.to_settle = 0
        self.timer_at, self.ticked_at = None, float("-inf")

    @property
    def memory(self) -> Memory:
        if self._memory is None:
            self._memory = pickle.loads(self.pickled)
        return self._memory

    @property
    def pump(self) -> Pump:
        return self.memory.pump

    def pickle_memory(self) -> None:
        """After a step that may have changed it."""
        if self._memory is not None:
            self._note()
            self.pickled = pickle.dumps(self._memory, pickle.HIGHEST_PROTOCOL)
            self._memory = None

    # Actions

    def actions(self) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        if self.is_over:
            return found
        if self._answers("primary"):
            found += [("attach", path) for path in sorted(self.attaching)]
            found += [("accept",)] if self.sending else []
            if self.sending and self.world.left["answer"]:
                found.append(("FAULT_lose_accept",))
            if self.sending and self.world.left["refusal"]:
                found.append(("FAULT_refuse_forward",))
        if self._answers("secondary"):
            if self.credit and self._next() is not None:
                found.append(("receive",))
            if self.to_settle:
                found.append(("settle",))
                if self.world.left["answer"]:
                    found.append(("FAULT_lose_settlement",))
        due = self.timer_at
        if due is not None and due <= self.world.now and self.ticked_at < self.world.now:
            found.append(("tick",))
        return found

    def deadlines(self) -> list[float]:
        due = self.timer_at
        if due is None:
            return []
        return [due if due > self.world.now else self.ticked_at + AGAIN_S]

    @property
    def expects_answers(self) -> bool:
        """Whether answers are on their way; they come before time passes."""
        primary = self._answers("primary") and bool(self.attaching or self.sending)
        return primary or (self._answers("secondary") and bool(self.to_settle))

    def _answers(self, side: str) -> bool:
        is_there = self.world.is_reachable(self.program, side)
        return side in self.connected and side not in self.lost and is_there

    def _next(self) -> Stored | None:
        stored = self.world.queues[self.queue].stored
        return next((each for each in stored if each.state == "active"), None)

    # The connections

    def is_cut_off(self, side: str) -> bool:
        """Whether the connection may be found to be dead."""
        is_dead = side in self.lost or not self.world.is_reachable(self.program, side)
        return side in self.connected and is_dead and not self.is_over

    def connect(self, side: str) -> None:
        self.connected.add(side)
        self.lost.discard(side)
        now = self.world.now
        if side == "primary":
            self._perform(self.pump.primary_up(now))
        else:
            self.credit = 0
            self._perform(self.pump.secondary_up(now))

    def disconnect(self, side: str) -> None:
        """The connection ended; what was in flight may have arrived."""
        self.connected.discard(side)
        self.lost.discard(side)
        now = self.world.now
        if side == "primary":
            self._sent_may_be_stored()
            self.attaching, self.attached = set(), set()
            self._perform(self.pump.primary_down(now))
        else:
            self._settlements_may_be_done()
            self._leave_locks()
            self.credit = 0
            self._perform(self.pump.secondary_down(now))

    def crash(self) -> None:
        self._sent_may_be_stored()
        self._settlements_may_be_done()
        self._leave_locks()
        self.start()

    def _leave_locks(self) -> None:
        """Locks of a connection that is gone may end."""
        for stored in self.world.queues[self.queue].stored:
            stored.is_renewed = False

    def _sent_may_be_stored(self, path: str | None = None) -> None:
        """Forget what was sent to a destination, or to all of them."""
        sent, self.memory.sent = self.memory.sent, []
        for message in sent:
            if path is not None and message.path != path:
                self.memory.sent.append(message)
            elif QUESTIONS.ask(2):
                self._arrive(message)

    def _settlements_may_be_done(self) -> None:
        settling, self.memory.settling = self.memory.settling, []
        for outcome, message in settling:
            if QUESTIONS.ask(2):
                self._carry_out(outcome, message)

    # The primary

    def attach(self, path: str) -> None:
        now = self.world.now
        self.attaching.discard(path)
        self.attached.add(path)
        self._perform(self.pump.attached(path, 0, now))
        self._perform(self.pump.granted(path, LINK_CREDIT, now))

    def _arrive(self, message: BacklogMessage) -> None:
        self.world.take(int(message.message_id or 0))

    def accept(self) -> None:
        message = self.memory.sent.pop(0)
        self._arrive(message)
        self._perform(self.pump.accepted([message], self.world.now))
        self._perform(self.pump.granted(message.path, LINK_CREDIT, self.world.now))

    def lose_accept(self) -> None:
        """The primary takes the message, or does not, and its connection is silent from now on."""
        self.world.left["answer"] -= 1
        self.lost.add("primary")

    def refuse_forward(self) -> None:
        self.world.left["refusal"] -= 1
        message = self.memory.sent.pop(0)
        now = self.world.now
        self._perform(self.pump.refused(message, "com.microsoft:server-busy", "busy", now))

    # The backlog queue

    def receive(self) -> None:
        stored = self._next()
        assert stored is not None
        self._perform(self.pump.received([self._lock(stored)], self.world.now))

    def _lock(self, stored: Stored) -> BacklogMessage:
        token = self.world.new_token()
        stored.state, stored.token, stored.is_renewed = "locked", token, True
        if not stored.was_deferred:
            self.credit -= 1
        message = BacklogMessage(token, 100)
        message.sequence_number, message.enqueued_ms = stored.number, 1_000 + stored.number
        message.path = message.destination = self.world.entity_of(stored.serial)
        message.session, message.message_id = stored.session, str(stored.serial)
        message.wire, message.lock_s = b"wire", LOCK_S
        return message

    def _stored(self, message: BacklogMessage) -> Stored | None:
        stored = self.world.queues[self.queue].stored
        return next((each for each in stored if each.number == message.sequence_number), None)

    def settle(self) -> None:
        outcome, message = self.memory.settling.pop(0)
        now = self.world.now
        if self._carry_out(outcome, message):
            self._perform(self.pump.settled([message], now))
        else:
            self._perform(self.pump.settle_failed([message], now))

    def lose_settlement(self) -> None:
        self.world.left["answer"] -= 1
        self.lost.add("secondary")

    def _carry_out(self, outcome: str, message: BacklogMessage) -> bool:
        stored = self._stored(message)
        if stored is None or stored.token != message.lock_token:
            return False
        if outcome == "complete":
            if int(message.message_id or 0) not in self.world.primary:
                raise Violation(f"early: {message.message_id} is completed and not in the primary")
            self.world.queues[self.queue].stored.remove(stored)
        elif outcome == "dead letter":
            raise Violation(f"dead letter: {message.message_id} is given up without a reason")
        else:
            stored.state, stored.token = outcome, b""
            stored.was_deferred = stored.was_deferred or outcome == "deferred"
        return True

    def _entries(self, start: int) -> list[PeekedEntry]:
        return [
            PeekedEntry(
                each.number, self.world.entity_of(each.serial), each.session, each.is_deferred
            )
            for each in self.world.queues[self.queue].stored
            if each.number >= start
        ]

    # The pump

    def tick(self) -> None:
        self.ticked_at = self.world.now
        self._perform(self.pump.tick(self.world.now))

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            self._perform_one(action)
        for action in actions:
            if isinstance(action, Reconnect) and action.side in self.connected:
                self.disconnect(action.side)

    def _perform_one(self, action: Action) -> None:  # noqa: C901  # one case for each action
        now, settling = self.world.now, self.memory.settling
        match action:
            case GrantCredit():
                self.credit = action.credit
            case OpenDestination():
                self.attaching.add(action.path)
            case CloseDestination():
                self._sent_may_be_stored(action.path)
                self.attaching.discard(action.path)
                self.attached.discard(action.path)
            case Forward():
                self.world.check_turn(self, action.message)
                self.memory.sent.append(action.message)
            case Complete():
                settling += [("complete", message) for message in action.messages]
            case DeadLetter():
                settling.append(("dead letter", action.message))
            case Defer():
                settling.append(("deferred", action.message))
            case Release():
                back = "deferred" if action.message.is_deferred else "active"
                settling.append((back, action.message))
            case Renew():
                kept = [m for m in action.messages if self._is_locked(m)]
                gone = [m for m in action.messages if not self._is_locked(m)]
                self._perform(self.pump.renewed(kept, now))
                self._perform(self.pump.lock_lost(gone, now))
            case ReceiveDeferred():
                self._receive_deferred(action.numbers)
            # Peeks lock nothing: they are answered at once, or when the connection is lost.
            case FindDeferred():
                if self._answers("secondary"):
                    found = [entry for entry in self._entries(1) if entry.is_deferred]
                    self._perform(self.pump.found_deferred(found, now, is_all=True))
            case PeekForOrder():
                page = self._entries(action.start)
                failed = not self._answers("secondary")
                self._perform(self.pump.peeked_for_order(page, now, failed=failed))
            case LookAhead():
                page = self._entries(action.start)
                failed = not self._answers("secondary")
                self._perform(self.pump.looked_ahead(page, now, failed=failed))
            case EmptyPoll():
                pass
            case Reconnect():
                pass
            case _:
                raise AssertionError(f"{action} is not known")

    def _receive_deferred(self, numbers: list[int]) -> None:
        stored = self.world.queues[self.queue].stored
        found = [each for each in stored if each.number in numbers and each.state == "deferred"]
        now = self.world.now
        if len(found) < len(numbers) or not self._answers("secondary"):
            self._perform(self.pump.fetched(numbers, now, failed=True))
            return
        messages = [self._lock(each) for each in found]
        for message in messages:
            message.is_deferred = True
        self._perform(self.pump.received(messages, now))
        self._perform(self.pump.fetched(numbers, now))

    def _is_locked(self, message: BacklogMessage) -> bool:
        stored = self._stored(message)
        return stored is not None and stored.token == message.lock_token
