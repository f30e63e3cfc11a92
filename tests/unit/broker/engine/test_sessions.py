"""Sessions in virtual time: who holds one, what its end does to its messages, and its state."""

from __future__ import annotations

import pytest

from tests.unit.broker.fakes import World, incoming, numbers
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.sessions import STATE_BYTES_MAX
from twinbus.broker.engine.settlement import SettlementOutcome
from twinbus.broker.refusals import (
    ArgumentOutOfRange,
    MessageLockLost,
    MessageNotFound,
    NotAllowed,
    SessionCannotBeLocked,
    SessionLockLost,
)

LOCK_MS = 10_000
SESSIONS = QueueDescription(requires_session=True, lock_duration_ms=LOCK_MS, max_delivery_count=2)
ANN, BOB = object(), object()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def queue(world: World) -> Queue:
    queue = world.queue("orders", SESSIONS)
    for session_id in ("a", "b", "a", "b"):
        queue.enqueue(incoming(session_id=session_id), 0)
    return queue


def received(queue: Queue, holder: object, session_id: str, now_ms: int) -> list[int]:
    deliveries = queue.acquire(holder, 10, now_ms, session_id=session_id)
    return [each.message.sequence_number for each in deliveries]


def test_a_holder_gets_its_session_in_order_and_no_other(queue: Queue) -> None:
    assert queue.sessions.accept("b", ANN, 0) == ("b", LOCK_MS)
    assert received(queue, ANN, "b", 1) == [2, 4]
    with pytest.raises(SessionLockLost):
        queue.acquire(ANN, 1, 1, session_id="a")
    with pytest.raises(SessionLockLost):
        queue.acquire(BOB, 1, 1, session_id="b")
    with pytest.raises(NotAllowed):
        queue.acquire(ANN, 1, 1)


def test_the_next_session_is_the_one_that_waited_longest(queue: Queue) -> None:
    assert queue.sessions.accept(None, ANN, 0) == ("a", LOCK_MS)
    assert queue.sessions.accept(None, BOB, 0) == ("b", LOCK_MS)
    assert queue.sessions.accept(None, object(), 0) is None


def test_a_freed_session_with_messages_is_next_again(queue: Queue) -> None:
    queue.sessions.accept("a", ANN, 0)
    queue.sessions.accept("b", BOB, 0)
    queue.acquire(BOB, 1, 0, session_id="b")
    queue.sessions.release_holder(BOB, 1)
    assert queue.sessions.accept(None, BOB, 1) == ("b", 1 + LOCK_MS)
    assert queue.sessions.accept(None, BOB, LOCK_MS) == ("a", 2 * LOCK_MS)


def test_a_held_session_cannot_be_had(queue: Queue) -> None:
    queue.sessions.accept("a", ANN, 0)
    with pytest.raises(SessionCannotBeLocked):
        queue.sessions.accept("a", BOB, LOCK_MS - 1)
    assert queue.sessions.accept("a", BOB, LOCK_MS) == ("a", 2 * LOCK_MS)


def test_an_empty_session_can_be_held_and_gets_what_comes(world: World, queue: Queue) -> None:
    assert queue.sessions.accept("new", ANN, 0) == ("new", LOCK_MS)
    world.take_notified()
    queue.enqueue(incoming(session_id="new"), 1)
    assert world.take_notified() == ["orders"]
    assert received(queue, ANN, "new", 1) == [5]


def test_a_message_without_a_session_is_refused(queue: Queue) -> None:
    with pytest.raises(NotAllowed, match="session id"):
        queue.enqueue(incoming(), 0)


def test_messages_are_locked_as_long_as_their_session(queue: Queue) -> None:
    queue.sessions.accept("a", ANN, 0)
    [first, second] = queue.acquire(ANN, 2, 5_000, session_id="a")
    assert first.locked_until_ms == LOCK_MS
    assert queue.sessions.renew("a", ANN, 8_000) == 8_000 + LOCK_MS
    queue.settle(first.lock_token, SettlementOutcome.COMPLETE, LOCK_MS + 1, session_id="a")
    with pytest.raises(NotAllowed, match="session"):
        queue.renew(second.lock_token, LOCK_MS + 1)
    with pytest.raises(MessageLockLost):
        queue.settle(first.lock_token, SettlementOutcome.COMPLETE, LOCK_MS + 1, session_id="a")


def test_a_session_lock_that_expires_takes_its_messages_along_and_counts(
    world: World, queue: Queue
) -> None:
    queue.sessions.accept("a", ANN, 0)
    [delivery] = queue.acquire(ANN, 1, 0, session_id="a")
    world.take_notified()
    world.namespace.run_timers(LOCK_MS)
    assert "orders" in world.take_notified()
    assert not queue.sessions.is_held_by("a", ANN, LOCK_MS)
    for session_id in ("a", None):
        with pytest.raises(SessionLockLost):
            queue.settle(
                delivery.lock_token, SettlementOutcome.COMPLETE, LOCK_MS, session_id=session_id
            )
    with pytest.raises(SessionLockLost):
        queue.sessions.renew("a", ANN, LOCK_MS)
    queue.sessions.accept("a", BOB, LOCK_MS)
    deliveries = queue.acquire(BOB, 2, LOCK_MS, session_id="a")
    assert [each.message.delivery_count for each in deliveries] == [1, 0]


def test_a_session_lock_that_expires_at_the_last_try_dead_letters(queue: Queue) -> None:
    for start_ms in (0, LOCK_MS):
        queue.sessions.accept("a", ANN, start_ms)
        queue.acquire(ANN, 1, start_ms, session_id="a")
    queue.run_timers(2 * LOCK_MS)
    assert queue.dead_letter is not None
    [dead] = queue.dead_letter.peek(0, 10, 2 * LOCK_MS)
    assert (dead.session_id, dead.delivery_count) == ("a", 2)
    [delivery] = queue.dead_letter.acquire(BOB, 1, 2 * LOCK_MS)  # without a session
    queue.dead_letter.settle(delivery.lock_token, SettlementOutcome.COMPLETE, 2 * LOCK_MS)


def test_a_holder_that_leaves_frees_its_sessions_without_counting(
    world: World, queue: Queue
) -> None:
    queue.sessions.accept("a", ANN, 0)
    queue.acquire(ANN, 2, 0, session_id="a")
    world.take_notified()
    queue.sessions.release_holder(ANN, 1)
    queue.sessions.release_holder(ANN, 1)
    assert "orders" in world.take_notified()
    assert queue.locked_count == 0
    queue.sessions.accept("a", BOB, 2)
    deliveries = queue.acquire(BOB, 5, 2, session_id="a")
    assert [(d.message.sequence_number, d.message.delivery_count) for d in deliveries] == [
        (1, 0), (3, 0),
    ]  # fmt: skip


def test_a_holder_may_leave_after_its_queue_was_deleted(world: World, queue: Queue) -> None:
    queue.sessions.accept("a", ANN, 0)
    queue.acquire(ANN, 1, 0, session_id="a")
    world.namespace.delete("orders", 1)
    queue.sessions.release_holder(ANN, 1)
    assert queue.locked_count == 0


def test_a_deferred_message_belongs_to_its_session(queue: Queue) -> None:
    queue.sessions.accept("a", ANN, 0)
    queue.sessions.accept("b", BOB, 0)
    [delivery] = queue.acquire(ANN, 1, 0, session_id="a")
    queue.settle(delivery.lock_token, SettlementOutcome.DEFER, 0)
    with pytest.raises(MessageNotFound, match="session"):
        queue.receive_by_sequence([1], BOB, 1, session_id="b")
    with pytest.raises(SessionLockLost):
        queue.receive_by_sequence([1], BOB, 1, session_id="a")
    [delivery] = queue.receive_by_sequence([1], ANN, 1, session_id="a")
    assert delivery.message.delivery_count == 1
    queue.settle(delivery.lock_token, SettlementOutcome.RELEASE, 1, session_id="a")
    assert (queue.deferred_count, queue.locked_count) == (1, 0)


def test_expired_messages_leave_their_session(queue: Queue) -> None:
    queue.enqueue(incoming(session_id="c", ttl_ms=100), 0)
    assert "c" in queue.sessions.ids()
    queue.run_timers(100)
    assert queue.sessions.ids() == ["a", "b"]
    queue.sessions.accept(None, ANN, 100)
    queue.sessions.accept(None, ANN, 100)
    assert queue.sessions.accept(None, ANN, 100) is None


def test_a_scheduled_message_appears_in_its_session(queue: Queue) -> None:
    queue.enqueue(incoming(session_id="c", scheduled_for_ms=500), 0)
    assert queue.sessions.ids() == ["a", "b"]
    queue.run_timers(500)
    queue.sessions.accept("c", ANN, 500)
    assert received(queue, ANN, "c", 500) == [6]


def test_peeking_can_be_limited_to_a_session(queue: Queue) -> None:
    assert numbers(queue.peek(0, 10, 0, session_id="b")) == [2, 4]
    assert numbers(queue.peek(3, 10, 0, session_id="b")) == [4]


class TestState:
    def test_it_is_kept_for_the_session_until_cleared(self, world: World, queue: Queue) -> None:
        queue.sessions.accept("s", ANN, 0)
        queue.sessions.set_state("s", b"half way", 0, holder=ANN)
        queue.sessions.release_holder(ANN, 1)
        again = world.restarted().namespace.get_queue("orders")
        assert again.sessions.state("s") == b"half way"
        assert again.sessions.ids() == ["a", "b", "s"]
        again.sessions.accept("s", BOB, 2)
        assert again.sessions.ids(updated_since_ms=0) == ["s"]
        assert again.sessions.ids(updated_since_ms=1) == []
        again.sessions.set_state("s", None, 2)
        again.sessions.set_state("s", None, 2)
        assert again.sessions.state("s") is None
        assert world.restarted().namespace.get_queue("orders").sessions.state("s") is None

    def test_only_a_holder_sets_it(self, queue: Queue) -> None:
        with pytest.raises(SessionLockLost):
            queue.sessions.set_state("s", b"x", 0)
        queue.sessions.accept("s", ANN, 0)
        with pytest.raises(SessionLockLost):
            queue.sessions.set_state("s", b"x", 0, holder=BOB)
        with pytest.raises(SessionLockLost):
            queue.sessions.set_state("s", b"x", LOCK_MS, holder=ANN)

    def test_it_has_a_limit(self, queue: Queue) -> None:
        queue.sessions.accept("s", ANN, 0)
        with pytest.raises(ArgumentOutOfRange, match=str(STATE_BYTES_MAX)):
            queue.sessions.set_state("s", b"x" * (STATE_BYTES_MAX + 1), 0)


def test_the_holder_of_an_expired_session_is_told_and_one_that_leaves_is_not() -> None:
    world = World()
    queue = world.queue("orders", SESSIONS)
    queue.sessions.accept("a", ANN, 0)
    queue.sessions.accept("b", BOB, 0)
    queue.sessions.release_holder(BOB, 1)
    queue.run_timers(LOCK_MS - 1)
    assert world.sessions_lost == []
    queue.run_timers(LOCK_MS)
    assert world.sessions_lost == [ANN]


def test_a_peeked_deferred_message_shows_the_lock_of_its_session(queue: Queue) -> None:
    queue.sessions.accept("a", ANN, 5)
    [delivery] = queue.acquire(ANN, 1, 5, session_id="a")
    queue.settle(delivery.lock_token, SettlementOutcome.DEFER, 6)
    [deferred, ready] = queue.peek(1, 2, 7)
    assert queue.shown_lock_ms(deferred) == 5 + LOCK_MS
    assert queue.shown_lock_ms(ready) == 0
    queue.sessions.release_holder(ANN, 8)
    assert queue.shown_lock_ms(deferred) == deferred.enqueued_at_ms
