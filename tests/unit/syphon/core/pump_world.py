"""A backlog queue, a primary and the two connections in memory, with a pump between them.

Nothing answers by itself: a test says what is delivered, accepted, refused, confirmed or lost, and
when. The world checks what must always hold.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

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
    WaitUntil,
)
from twinbus.syphon.core.pacing import Pace
from twinbus.syphon.core.pump import IntakeLimits, Pump
from twinbus.syphon.core.session_lanes import PeekedEntry
from twinbus.transfer.unpacking import BacklogMessage

LOCK_S = 60.0
LINK_CREDIT = 1_000
PAGE = 3
"""Messages in one answer to a survey: few, so that more than one is needed."""


@dataclass
class Stored:
    """One message of the backlog queue."""

    number: int
    path: str
    size_bytes: int
    session: str | None = None
    state: str = "active"
    """active, locked, deferred, dead or gone."""
    was_deferred: bool = False
    lock_token: bytes = b""
    reason: str = ""


@dataclass
class World:
    """All of it at one time; `now` moves only by `tick`."""

    limits: IntakeLimits = field(default_factory=IntakeLimits)
    grace_s: float = 3_600.0
    poll_s: float = 900.0
    size_bytes: int = 100
    strict: bool = False
    home: str | None = None
    """The path of the queue, if it is a twin."""
    lock_s: float = LOCK_S
    """How long a lock lasts by the pump's clock."""
    only: frozenset[str] | None = None
    pace: Pace | None = None
    chance: float = 0.0

    def __post_init__(self) -> None:
        self.now = 0.0
        self._start_pump()
        self.queue: dict[int, Stored] = {}
        self.in_primary: list[int] = []
        self.polls = 0
        self.surveyed_from: list[int] = []
        self.reconnects: list[str] = []
        self.detached: list[str] = []
        """Links that the pump gave up."""
        self._tokens = itertools.count(1)
        self._numbers = itertools.count(1)

    def _start_pump(self) -> None:
        self.pump = Pump(
            limits=self.limits,
            undeliverable_grace_s=self.grace_s,
            poll_s=self.poll_s,
            is_strict=self.strict,
            home=self.home,
            only=self.only,
            pace=self.pace,
            draw=lambda: self.chance,
        )
        self.sent: list[BacklogMessage] = []
        self.settling: list[tuple[str, BacklogMessage]] = []
        self.renewing: list[BacklogMessage] = []
        self.fetches: list[list[int]] = []
        self.looks = 0
        self.waits_until = float("-inf")
        self.surveys: list[int] = []
        self.looks_ahead: list[int] = []
        self.attaching: list[str] = []
        self.attached: dict[str, int] = {}
        """Credit of each link, by path."""
        self.credit = 0
        self.is_primary_up = self.is_secondary_up = False

    # What a test puts in

    def store(self, path: str, count: int = 1, session: str | None = None) -> list[int]:
        """Put messages into the backlog queue."""
        numbers = list(itertools.islice(self._numbers, count))
        for number in numbers:
            self.queue[number] = Stored(number, path, self.size_bytes, session)
        return numbers

    def crash(self, *, stored: bool = False, carried_out: bool = False) -> None:
        """Kill the syphon and start another: the locks of the first run on until they expire."""
        if stored:
            self.in_primary += [message.sequence_number for message in self.sent]
        if carried_out:
            for outcome, message in self.settling:
                self._carry_out(outcome, message)
        self._start_pump()

    def steal(self, number: int) -> None:
        """Somebody else locks a message; `expire` gives it back."""
        stored = self.queue[number]
        if stored.state == "active":
            stored.state, stored.lock_token = "locked", b"somebody else's"

    def remove(self, number: int) -> None:
        """Somebody else settles a message that is in no hands of ours: the primary has it."""
        stored = self.queue[number]
        if stored.state in ("active", "deferred"):
            stored.state = "gone"
            self.in_primary.append(number)

    def primary_up(self) -> None:
        self.is_primary_up = True
        self.perform(self.pump.primary_up(self.now))

    def primary_down(self, *, stored: bool = False) -> None:
        """Lose the connection; `stored`: what was sent arrived all the same."""
        self.is_primary_up = False
        if stored:
            self.in_primary += [message.sequence_number for message in self.sent]
        self.sent, self.attaching = [], []
        self.attached.clear()
        self.perform(self.pump.primary_down(self.now))

    def secondary_up(self) -> None:
        self.is_secondary_up = True
        self.credit = 0
        self.perform(self.pump.secondary_up(self.now))

    def secondary_down(self, *, carried_out: bool = False) -> None:
        """Lose the connection; `carried_out`: settlements were, but nobody knows."""
        self.is_secondary_up = False
        if carried_out:
            for outcome, message in self.settling:
                self._carry_out(outcome, message)
        self.settling, self.renewing, self.fetches, self.looks = [], [], [], 0
        self.surveys, self.looks_ahead = [], []
        self.credit = 0
        self.perform(self.pump.secondary_down(self.now))

    def deliver(self, count: int = 1) -> int:
        """The queue delivers what is ready, as far as credit goes; how many."""
        ready = [stored for stored in self.queue.values() if stored.state == "active"]
        delivered = [self._lock(stored) for stored in ready[: min(count, self.credit)]]
        self.credit -= len(delivered)
        if delivered:
            self.perform(self.pump.received(delivered, self.now))
        return len(delivered)

    def answer_fetch(self) -> None:
        numbers = self.fetches.pop(0)
        found = [self.queue[number] for number in numbers]
        if any(stored.state != "deferred" for stored in found):
            self.perform(self.pump.fetched(numbers, self.now, failed=True))
            return
        messages = [self._lock(stored) for stored in found]
        for stored, message in zip(found, messages, strict=True):
            message.is_deferred = stored.was_deferred = True
        self.perform(self.pump.received(messages, self.now))
        self.perform(self.pump.fetched(numbers, self.now))

    def answer_look(self) -> None:
        self.looks -= 1
        found = [_sighting(s) for s in self.queue.values() if s.state == "deferred"]
        self.perform(self.pump.found_deferred(found, self.now, is_all=True))

    def answer_survey(self, *, failed: bool = False) -> None:
        """The queue shows what it holds, a few messages at a time."""
        start = self.surveys.pop(0)
        page = [] if failed else [_sighting(s) for s in self.left if s.number >= start][:PAGE]
        self.perform(self.pump.peeked_for_order(page, self.now, failed=failed))

    def answer_look_ahead(self, *, failed: bool = False) -> None:
        """The queue shows what lies from a number on, a few messages at a time."""
        start = self.looks_ahead.pop(0)
        page = [] if failed else [_sighting(s) for s in self.left if s.number >= start][:PAGE]
        self.perform(self.pump.looked_ahead(page, self.now, failed=failed))

    def attach(self, path: str) -> None:
        """The primary answers an attach."""
        self.attaching.remove(path)
        self.attached[path] = 0
        self.perform(self.pump.attached(path, 0, self.now))
        self.grant(path)

    def grant(self, path: str, credit: int = LINK_CREDIT) -> None:
        self.attached[path] = credit
        self.perform(self.pump.granted(path, credit, self.now))

    def detach(self, path: str, condition: str | None, *, stored: bool = False) -> None:
        """The primary refuses or closes a link; `stored`: what was in flight arrived."""
        if path in self.attaching:
            self.attaching.remove(path)
        self.attached.pop(path, None)
        lost = [message for message in self.sent if message.path == path]
        self.sent = [message for message in self.sent if message.path != path]
        if stored:
            self.in_primary += [message.sequence_number for message in lost]
        self.perform(self.pump.detached(path, condition, "because", self.now))

    def accept(self, count: int = 1) -> None:
        """The primary stores and accepts the oldest in flight."""
        taken, self.sent = self.sent[:count], self.sent[count:]
        self.in_primary += [message.sequence_number for message in taken]
        self.perform(self.pump.accepted(taken, self.now))

    def refuse(self, condition: str) -> None:
        message = self.sent.pop(0)
        self.perform(self.pump.refused(message, condition, "because", self.now))

    def confirm(self, count: int = 1, *, lock_lost: bool = False) -> None:
        """The queue carries out the oldest settlements, or says that their locks are gone."""
        done, self.settling = self.settling[:count], self.settling[count:]
        for outcome, message in done:
            if lock_lost or not self._carry_out(outcome, message):
                self.perform(self.pump.settle_failed([message], self.now))
            else:
                self.perform(self.pump.settled([message], self.now))

    def expire(self, number: int) -> None:
        """A lock ends: the queue will deliver the message again."""
        stored = self.queue[number]
        if stored.state == "locked":
            stored.state = "deferred" if stored.was_deferred else "active"

    def renew(self) -> None:
        done, self.renewing = self.renewing, []
        held = [p for p in done if self._is_locked(p)]
        self.perform(self.pump.renewed(held, self.now))
        self.perform(self.pump.lock_lost([p for p in done if not self._is_locked(p)], self.now))

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.perform(self.pump.tick(self.now))

    def settle_everything(self) -> None:
        """Have everything answered as a healthy pair of namespaces does, until nothing moves."""
        for _ in range(2_000):
            if not self.is_primary_up:
                self.primary_up()
            if not self.is_secondary_up:
                self.secondary_up()
            for path in list(self.attaching):
                self.attach(path)
            for path in list(self.attached):
                self.grant(path)
            self.deliver(LINK_CREDIT)
            self.accept(len(self.sent))
            while self.fetches:
                self.answer_fetch()
            while self.looks:
                self.answer_look()
            while self.surveys:
                self.answer_survey()
            while self.looks_ahead:
                self.answer_look_ahead()
            self.renew()
            self.confirm(len(self.settling))
            if self.is_drained and not self.pump.in_flight:
                return
            self.tick(5.0)
            for number, stored in self.queue.items():
                if stored.state == "locked" and not self._is_ours(stored):
                    self.expire(number)
        raise AssertionError(f"it never drained: {self.pump}, {self.left}")

    # What a test reads

    @property
    def left(self) -> list[Stored]:
        return [s for s in self.queue.values() if s.state not in ("gone", "dead")]

    @property
    def is_drained(self) -> bool:
        return not self.left

    def states(self) -> dict[int, str]:
        return {number: stored.state for number, stored in self.queue.items()}

    # The pump's actions

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            self._perform(action)
        # A relay drops such a line at once, and connects again later.
        for action in actions:
            if isinstance(action, Reconnect):
                if action.side == "primary":
                    self.primary_down()
                else:
                    self.secondary_down()
        self.check()

    def _perform(self, action: Action) -> None:  # noqa: C901  # one case for each action
        match action:
            case GrantCredit():
                assert self.is_secondary_up
                self.credit = action.credit
            case OpenDestination():
                assert self.is_primary_up
                assert action.path not in self.attached
                self.attaching.append(action.path)
            case CloseDestination():
                self.detached.append(action.path)
                if self.attached.pop(action.path, None) is None:
                    self.attaching.remove(action.path)
                self.sent = [message for message in self.sent if message.path != action.path]
            case Forward():
                self.attached[action.message.path] -= 1
                assert self.attached[action.message.path] >= 0
                assert action.message not in self.sent
                if self.strict:
                    self._check_turn(action.message)
                self.sent.append(action.message)
            case Complete():
                for message in action.messages:
                    assert message.sequence_number in self.in_primary, "completed before accepted"
                    self._settle("gone", message)
            case DeadLetter():
                self.queue[action.message.sequence_number].reason = action.reason
                self._settle("dead", action.message)
            case Defer():
                assert self.home is None, "consumers cannot find it"
                self._settle("deferred", action.message)
            case Release():
                back = "deferred" if action.message.is_deferred else "active"
                self._settle(back, action.message)
            case Renew():
                self.renewing += action.messages
            case ReceiveDeferred():
                assert self.home is None, "its consumers deferred them"
                self.fetches.append(action.numbers)
            case FindDeferred():
                assert self.home is None
                self.looks += 1
            case PeekForOrder():
                assert self.is_secondary_up
                self.surveys.append(action.start)
                self.surveyed_from.append(action.start)
            case LookAhead():
                assert self.is_secondary_up
                assert self.home is None
                self.looks_ahead.append(action.start)
            case EmptyPoll():
                self.polls += 1
            case Reconnect():
                self.reconnects.append(action.side)
            case WaitUntil():
                assert action.until > self.waits_until, "asked for twice"
                self.waits_until = action.until

    def check(self) -> None:
        """What holds at any time."""
        assert self.pump.credit >= 0
        assert self.pump.credit == self.credit
        assert self.pump.in_flight + self.pump.credit <= self.limits.messages
        sent = sum(message.was_sent for message in self.pump.intake)
        assert self.pump.intake.send_room == self.limits.sent - sent >= 0
        # One that is larger than all that is allowed may come over the link, and one by number.
        assert self.pump.bytes_in_flight <= max(self.limits.size_bytes, 2 * self.size_bytes)
        for stored in self.queue.values():
            assert stored.state != "gone" or stored.number in self.in_primary, "lost"
        if self.home is not None:
            self._check_twin(self.home)

    def _check_twin(self, home: str) -> None:
        """What is kept from the consumers of a twin can be delivered."""
        assert not self.credit or home in self.attached, "received although its home is away"
        if self.pump.held and not self.sent:
            kept = [one for one in self.pump.intake if one.outcome is None]
            assert len(kept) <= 1, "kept although its home takes nothing"

    def _check_turn(self, message: BacklogMessage) -> None:
        """Nothing of its session that the primary does not have was stored before it."""
        if message.session is None:
            return
        assert all(
            other.session != message.session or other.path != message.path for other in self.sent
        )
        for stored in self.left:
            if stored.number >= message.sequence_number:
                return
            same = (stored.session, stored.path) == (message.session, message.path)
            assert not same or stored.number in self.in_primary, f"{message} overtakes {stored}"

    def _settle(self, outcome: str, message: BacklogMessage) -> None:
        assert self.is_secondary_up
        self.settling.append((outcome, message))

    def _carry_out(self, outcome: str, message: BacklogMessage) -> bool:
        stored = self.queue[message.sequence_number]
        if not self._is_locked(message):
            return False
        stored.state = outcome
        return True

    def _is_locked(self, message: BacklogMessage) -> bool:
        stored = self.queue[message.sequence_number]
        return stored.state == "locked" and stored.lock_token == message.lock_token

    def _is_ours(self, stored: Stored) -> bool:
        return any(each.lock_token == stored.lock_token for each in self.pump.intake)

    def _lock(self, stored: Stored) -> BacklogMessage:
        stored.lock_token = next(self._tokens).to_bytes(16, "big")
        stored.state = "locked"
        message = BacklogMessage(stored.lock_token, stored.size_bytes)
        message.sequence_number, message.enqueued_ms = stored.number, 1_000 + stored.number
        message.path, message.session = stored.path, stored.session
        message.destination = stored.path.lower()
        message.wire = b"w" * stored.size_bytes
        message.lock_s = self.lock_s
        if not stored.path:
            message.fault = ("MissingDestination", "no path")
            message.is_left = self.home is not None
        return message


def _sighting(stored: Stored) -> PeekedEntry:
    is_deferred = stored.state == "deferred" or (stored.state == "locked" and stored.was_deferred)
    return PeekedEntry(stored.number, stored.path, stored.session, is_deferred)
