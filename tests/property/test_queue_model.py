"""The engine against a model: any operations at any times, and a crash after any of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.property.queue_model import ACTIVE, DEFERRED, SCHEDULED, Entry, QueueModel
from tests.unit.broker.fakes import World, incoming
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.engine.limits import extra_bytes, is_plain
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import SettlementOutcome
from twinbus.broker.refusals import (
    MessageLockLost,
    MessageNotFound,
    Refusal,
    SessionCannotBeLocked,
    SessionLockLost,
)

HOLDERS = [object(), object(), object()]
SESSIONS = ["red", "green"]
LOCK_MS = 5_000
WINDOW_MS = 20_000

holders = st.sampled_from(HOLDERS)
sessions = st.sampled_from(SESSIONS)
numbers = st.integers(1, 12)
picks = st.integers(0, 1_000_000)
seldom = st.sampled_from([False, False, False, True])
outcomes = st.sampled_from([*SettlementOutcome, SettlementOutcome.ABANDON, SettlementOutcome.DEFER])


MOVES: dict[str, tuple[int, tuple[st.SearchStrategy[Any], ...]]] = {
    "send": (
        6,
        (
            st.sampled_from([0, 0, 3_000, 8_000]),  # time to live
            st.sampled_from([0, 0, 0, -5, 2_000, 6_000]),  # scheduled after
            sessions,
            seldom,  # whether it has the id of the one before
        ),
    ),
    "receive": (5, (st.integers(1, 4), holders, sessions, seldom, seldom)),
    "settle": (5, (picks, outcomes)),
    "complete_some": (2, (st.integers(1, 4), st.integers(0, 2))),
    "accept": (3, (st.none() | sessions, holders)),
    "receive_deferred": (2, (numbers, holders, sessions, seldom, seldom)),
    "renew": (1, (picks,)),
    "cancel": (1, (numbers,)),
    "use_session": (1, (sessions, holders, st.none() | st.binary(max_size=3))),
    "leave": (1, (holders,)),
    "wait": (2, (st.sampled_from([0, 1, 999, 2_000, 3_000, 5_000, 30_000]),)),
    "wait_until_something_is_due": (2, ()),
    "change_settings": (1, (st.sampled_from([5_000, 7_000]), st.integers(1, 3))),
    "crash": (1, ()),
}
"""What can happen: how often, and the details."""

moves = st.sampled_from([name for name, (often, _) in MOVES.items() for _ in range(often)]).flatmap(
    lambda name: st.tuples(st.just(name), st.tuples(*MOVES[name][1]))
)


class QueueMachine(RuleBasedStateMachine):
    """One queue and its model, side by side."""

    @initialize(
        has_sessions=st.booleans(), dead_letters_expired=st.booleans(), detects=st.booleans()
    )
    def begin(self, has_sessions: bool, dead_letters_expired: bool, detects: bool) -> None:
        self.now_ms = 1_000
        self.world = World()
        self.sent = 0
        self.accepted: list[str] = []
        self.tokens: list[bytes] = []
        self.model = QueueModel(
            has_sessions, dead_letters_expired, WINDOW_MS if detects else 0, LOCK_MS, tries=2
        )
        self.description = QueueDescription(
            requires_session=has_sessions,
            dead_letter_on_expiration=dead_letters_expired,
            requires_duplicate_detection=detects,
            duplicate_detection_window_ms=WINDOW_MS,
            lock_duration_ms=LOCK_MS,
            max_delivery_count=2,
        )
        self.world.namespace.create_queue("q", self.description, self.now_ms)

    @property
    def queue(self) -> Queue:
        return self.world.namespace.get_queue("q")

    # What clients do

    @rule(moves=st.lists(moves, min_size=1, max_size=10))
    def work(self, moves: list[tuple[str, tuple[Any, ...]]]) -> None:
        """Several moves in a row. There is one rule for all: of several, hypothesis leaves some out
        in each example, and most ways through a queue need many kinds of moves."""
        for name, details in moves:
            if self.model.has_sessions or name not in ("accept", "use_session", "leave"):
                getattr(self, name)(*details)
                self.check()

    def send(self, ttl_ms: int, delay_ms: int, session: str, again: bool) -> None:
        self.sent += not again
        message_id = f"m{self.sent}"
        at_ms = self.now_ms + delay_ms if delay_ms else 0
        session_id = session if self.model.has_sessions else None
        stored = self.queue.enqueue(
            incoming(
                message_id=message_id,
                session_id=session_id,
                ttl_ms=ttl_ms,
                scheduled_for_ms=at_ms,
            ),
            self.now_ms,
        )
        self.model.catch_up(self.now_ms)
        if self.model.window_ms and message_id in self.model.seen_at_ms:
            assert stored is None
            return
        assert stored is not None
        if self.model.window_ms:
            self.model.seen_at_ms[message_id] = self.now_ms
        entry = Entry(0, message_id, session_id, ttl_ms)
        if at_ms > self.now_ms:
            entry.state, entry.scheduled_for_ms = SCHEDULED, at_ms
        elif ttl_ms:
            entry.expires_at_ms = self.now_ms + ttl_ms
        self.model.append(entry)
        self.accepted.append(message_id)

    def receive(
        self, limit: int, holder: object, session: str, settled: bool, astray: bool
    ) -> None:
        session_id, holder = self._whom(session, holder, astray)
        refusal, deliveries = self._try(
            lambda: self.queue.acquire(
                holder, limit, self.now_ms, session_id=session_id, settled=settled
            )
        )
        self.model.catch_up(self.now_ms)
        if session_id is not None and not self._holds(session_id, holder):
            assert isinstance(refusal, SessionLockLost)
            return
        expected = self.model.ready(session_id)[:limit]
        assert [each.message.sequence_number for each in deliveries] == [
            each.number for each in expected
        ]
        self._hand_over(expected, deliveries, settled)

    def receive_deferred(
        self, number: int, holder: object, session: str, settled: bool, astray: bool
    ) -> None:
        session_id, holder = self._whom(session, holder, astray)
        deferred = [each.number for each in self.model.entries if each.state == DEFERRED]
        if deferred and not astray:
            number = deferred[number % len(deferred)]
        refusal, deliveries = self._try(
            lambda: self.queue.receive_by_sequence(
                [number], holder, self.now_ms, session_id=session_id, settled=settled
            )
        )
        self.model.catch_up(self.now_ms)
        if session_id is not None and not self._holds(session_id, holder):
            assert isinstance(refusal, SessionLockLost)
            return
        entry = self.model.by_number(number)
        strange = session_id is not None and entry is not None and entry.session_id != session_id
        if entry is None or strange or entry.state != DEFERRED or entry.token:
            assert isinstance(refusal, MessageNotFound)
        elif self.model.is_expired(entry, self.now_ms):
            assert isinstance(refusal, MessageNotFound)
            self.model.expire(entry)
        else:
            self._hand_over([entry], deliveries, settled)

    def _hand_over(self, entries: list[Entry], deliveries: list[Any], settled: bool) -> None:
        for entry, delivery in zip(entries, deliveries, strict=True):
            if settled:
                assert delivery.payload is not None
                self.model.remove(entry)
                continue
            entry.token = delivery.lock_token
            entry.locked_until_ms = self.now_ms + self.model.lock_ms
            if self.model.has_sessions:
                entry.locked_until_ms = self.model.held[entry.session_id or ""][1]
            assert delivery.locked_until_ms == entry.locked_until_ms
            self.tokens.append(delivery.lock_token)

    def settle(self, pick: int, outcome: SettlementOutcome) -> None:
        if not self.tokens:
            return
        token = self.tokens[-1 - pick % min(len(self.tokens), 4)]
        refusal, _ = self._try(lambda: self.queue.settle(token, outcome, self.now_ms))
        self.model.catch_up(self.now_ms)
        entry = self.model.by_token(token)
        if entry is None:
            assert isinstance(refusal, MessageLockLost | SessionLockLost)
            return
        assert refusal is None
        match outcome:
            case SettlementOutcome.COMPLETE:
                self.model.remove(entry)
            case SettlementOutcome.DEAD_LETTER:
                self.model.bury(entry, "")
            case SettlementOutcome.DEFER:
                entry.token, entry.state = None, DEFERRED
                entry.delivery_count += 1
            case _:
                counted = outcome is SettlementOutcome.ABANDON
                self.model.give_back(entry, self.now_ms, counted=counted)

    def complete_some(self, count: int, skipped: int) -> None:
        tokens = self.tokens[-count : len(self.tokens) - skipped]
        if not tokens:
            return
        is_done = self.queue.complete_all(tokens, self.now_ms)
        self.model.catch_up(self.now_ms)
        entries = [entry for token in tokens if (entry := self.model.by_token(token)) is not None]
        assert is_done == (len(entries) == len(tokens) and not self.model.has_sessions)
        for entry in entries if is_done else ():
            self.model.remove(entry)

    def renew(self, pick: int) -> None:
        if not self.tokens or self.model.has_sessions:
            return
        token = self.tokens[-1 - pick % min(len(self.tokens), 4)]
        refusal, until_ms = self._try(lambda: self.queue.renew(token, self.now_ms))
        self.model.catch_up(self.now_ms)
        entry = self.model.by_token(token)
        if entry is None:
            assert isinstance(refusal, MessageLockLost)
        else:
            entry.locked_until_ms = self.now_ms + self.model.lock_ms
            assert until_ms == entry.locked_until_ms

    def cancel(self, number: int) -> None:
        refusal, _ = self._try(lambda: self.queue.cancel_scheduled([number], self.now_ms))
        self.model.catch_up(self.now_ms)
        entry = self.model.by_number(number)
        if entry is None or entry.state != SCHEDULED:
            assert isinstance(refusal, MessageNotFound)
        else:
            assert refusal is None
            self.model.remove(entry)

    # Sessions

    def accept(self, session: str | None, holder: object) -> None:
        refusal, granted = self._try(
            lambda: self.queue.sessions.accept(session, holder, self.now_ms)
        )
        self.model.catch_up(self.now_ms)
        if session is None and not self.model.available():
            assert (refusal, granted) == (None, None)
        elif session in self.model.held:
            assert isinstance(refusal, SessionCannotBeLocked)
        else:
            name, until_ms = granted
            assert name == session or (session is None and name in self.model.available())
            assert until_ms == self.now_ms + self.model.lock_ms
            self.model.held[name] = (holder, until_ms)

    def use_session(self, session: str, holder: object, state: bytes | None) -> None:
        for attempt in (
            lambda: self.queue.sessions.renew(session, holder, self.now_ms),
            lambda: self.queue.sessions.set_state(session, state, self.now_ms, holder=holder),
        ):
            refusal, _ = self._try(attempt)
            self.model.catch_up(self.now_ms)
            assert isinstance(refusal, SessionLockLost) != self._holds(session, holder)
        if self._holds(session, holder):
            self.model.held[session] = (holder, self.now_ms + self.model.lock_ms)
            self.model.states.pop(session, None)
            if state is not None:
                self.model.states[session] = state

    def leave(self, holder: object) -> None:
        self.queue.sessions.release_holder(holder, self.now_ms)
        self.model.catch_up(self.now_ms)
        for session_id, (who, _) in list(self.model.held.items()):
            if who is holder:
                self.model.free(session_id, self.now_ms, counted=False)

    def _whom(self, session: str, holder: object, astray: bool) -> tuple[str | None, object]:
        """Session and holder for a receive: mostly one that is held, seldom any two."""
        if not self.model.has_sessions:
            return None, holder
        self.model.catch_up(self.now_ms)
        if astray or not self.model.held:
            return session, holder
        session_id = min(self.model.held)
        return session_id, self.model.held[session_id][0]

    def _holds(self, session_id: str, holder: object) -> bool:
        return self.model.held.get(session_id, (None, 0))[0] is holder

    # What happens

    def wait(self, delta_ms: int) -> None:
        self.now_ms += delta_ms

    def wait_until_something_is_due(self) -> None:
        self.now_ms = max(self.now_ms, self.world.namespace.next_deadline_ms())
        self.world.namespace.run_timers(self.now_ms)
        self.model.catch_up(self.now_ms)

    def change_settings(self, lock_ms: int, tries: int) -> None:
        self.description = QueueDescription(
            requires_session=self.description.requires_session,
            dead_letter_on_expiration=self.description.dead_letter_on_expiration,
            requires_duplicate_detection=self.description.requires_duplicate_detection,
            duplicate_detection_window_ms=WINDOW_MS,
            lock_duration_ms=lock_ms,
            max_delivery_count=tries,
        )
        self.world.namespace.update("q", self.description, self.now_ms)
        self.model.lock_ms, self.model.tries = lock_ms, tries
        self.model.catch_up(self.now_ms)

    def crash(self) -> None:
        self.world = self.world.restarted(self.now_ms)
        self.model.restart()

    def _try(self, attempt: Any) -> tuple[Refusal | None, Any]:
        try:
            return None, attempt()
        except Refusal as refusal:
            return refusal, None

    # What must always hold

    @invariant()
    def check(self) -> None:
        """Engine and model agree, and so would an engine that starts now."""
        self._both_hold_the_same(self.queue)
        self._nothing_is_lost_and_nothing_is_twice()
        self._a_restart_would_lose_only_locks()

    def _nothing_is_lost_and_nothing_is_twice(self) -> None:
        queue = self.queue
        assert queue.dead_letter is not None
        held = [each.message_id for each in queue.messages.values()]
        held += [each.message_id for each in queue.dead_letter.messages.values()]
        assert Counter(self.accepted) == Counter(held) + Counter(self.model.gone)

    def _a_restart_would_lose_only_locks(self) -> None:
        before = self.world.namespace.get_queue("q")
        after = self.world.restarted(self.now_ms).namespace.get_queue("q")
        assert after.locked_count == 0
        for part, again in ((before, after), (before.dead_letter, after.dead_letter)):
            assert part is not None
            assert again is not None
            assert [_stored(each) for each in part.messages.values()] == [
                _stored(each) for each in again.messages.values()
            ]
            assert part.size_bytes == again.size_bytes
            assert part.states.last_sequence_number == again.states.last_sequence_number
            assert (part.active_count, part.deferred_count, part.scheduled_count) == (
                again.active_count, again.deferred_count, again.scheduled_count,
            )  # fmt: skip

    def _both_hold_the_same(self, queue: Queue) -> None:
        seen = queue.peek(0, 10_000, self.now_ms)
        model = self.model
        model.catch_up(self.now_ms)
        assert [_seen(each) for each in seen] == [
            entry.seen() for entry in sorted(model.entries, key=lambda each: each.number)
        ]
        states = Counter(entry.state for entry in model.entries)
        assert (queue.active_count, queue.deferred_count, queue.scheduled_count) == (
            states[ACTIVE], states[DEFERRED], states[SCHEDULED],
        )  # fmt: skip
        assert queue.locked_count == sum(entry.token is not None for entry in model.entries)
        assert queue.size_bytes == sum(each.size_bytes for each in queue.messages.values())
        extra = [extra_bytes(each) for each in queue.messages.values() if not is_plain(each)]
        assert queue.states.index.extra_bytes == sum(extra)
        assert queue.next_deadline_ms() == model.next_deadline_ms(self.now_ms)
        assert queue.dead_letter is not None
        assert Counter(model.dead) == Counter(
            (each.message_id, (each.overrides or {}).get("DeadLetterReason", ""),
             each.delivery_count)
            for each in queue.dead_letter.peek(0, 10_000, self.now_ms)
        )  # fmt: skip
        if model.has_sessions:
            assert {name: queue.sessions.state(name) for name in model.states} == model.states


def _seen(message: Any) -> tuple[object, ...]:
    return (
        message.sequence_number, message.message_id, message.session_id, int(message.state),
        message.delivery_count, message.lock_token is not None, message.expires_at_ms,
    )  # fmt: skip


def _stored(message: Any) -> tuple[object, ...]:
    seen = _seen(message)
    return (*seen[:5], seen[6], message.overrides, message.enqueued_at_ms, message.scheduled_for_ms)


TestQueueMachine = QueueMachine.TestCase
# How many examples is the profile's to say: `make soak` asks for more.
TestQueueMachine.settings = settings(stateful_step_count=12)
