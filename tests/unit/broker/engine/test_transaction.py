"""A transaction of the engine: everything is applied, or nothing has changed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.broker.fakes import World, incoming
from twinbus.broker.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import REASON, RequestedSettlement, SettlementOutcome
from twinbus.broker.engine.transaction import OPERATIONS_MAX, BrokerTransaction
from twinbus.broker.refusals import (
    MessageLockLost,
    NotAllowed,
    QuotaExceeded,
    TransactionRolledBack,
)

ME = object()
COMPLETE, ABANDON, DEFER, DEAD_LETTER = (
    SettlementOutcome.COMPLETE,
    SettlementOutcome.ABANDON,
    SettlementOutcome.DEFER,
    SettlementOutcome.DEAD_LETTER,
)


class Bench:
    """A queue with four locked messages, and a transaction."""

    def __init__(self, **settings: Any) -> None:
        self.world = World()
        self.queue = self.world.queue("q", QueueDescription(lock_duration_ms=60_000, **settings))
        for name in "abcd":
            self.queue.enqueue(incoming(message_id=name), 0)
        self.tokens = [one.lock_token for one in self.queue.acquire(ME, 4, 0)]
        self.work = BrokerTransaction(self.world.namespace)

    def settle(self, index: int, outcome: SettlementOutcome, now_ms: int = 1, **given: Any) -> None:
        self.work.settle(
            self.queue, RequestedSettlement(self.tokens[index], outcome, **given), now_ms
        )

    def send(self, *names: str, now_ms: int = 1) -> None:
        batch = [incoming(message_id=name) for name in names]
        self.work.send(self.queue, batch, now_ms)

    def seen(self) -> dict[str, Any]:
        """Everything that the disk has of every entity."""
        return {
            image.path: (
                image.last_sequence_number,
                [(m.message_id, m.state, m.delivery_count, m.overrides) for m in image.messages],
                sorted(image.message_ids),
            )
            for image in self.world.journal.images()
        }


def ids(queue: Queue | None, now_ms: int = 2) -> list[str | None]:
    assert queue is not None
    return [each.message_id for each in queue.peek(0, 100, now_ms)]


def test_every_kind_of_operation_takes_effect_at_the_commit_and_not_before() -> None:
    bench = Bench()
    before = bench.seen()
    bench.settle(0, COMPLETE)
    bench.settle(1, ABANDON, overrides={"why": "later"})
    bench.settle(2, DEFER)
    bench.settle(3, DEAD_LETTER, reason="bad")
    bench.send("e", "f")
    assert bench.seen() == before
    assert bench.queue.locked_count == 4
    assert ids(bench.queue) == ["a", "b", "c", "d"]
    bench.work.commit(2)
    assert ids(bench.queue) == ["b", "c", "e", "f"]
    assert bench.queue.locked_count == 0
    assert bench.queue.deferred_count == 1
    assert [m.message_id for m in bench.queue.states.ready()] == ["b", "e", "f"]
    dead = bench.queue.dead_letter
    assert ids(dead) == ["d"]
    assert dead is not None
    assert [m.overrides for m in dead.messages.values()] == [{REASON: "bad"}]
    abandoned = next(m for m in bench.queue.messages.values() if m.message_id == "b")
    assert (abandoned.delivery_count, abandoned.overrides) == (1, {"why": "later"})


def test_a_lock_that_was_lost_meanwhile_rolls_everything_back() -> None:
    bench = Bench()
    bench.send("e")
    bench.settle(0, COMPLETE)
    bench.settle(1, COMPLETE)
    bench.queue.settle(bench.tokens[1], COMPLETE, 2)
    before = bench.seen()
    with pytest.raises(TransactionRolledBack, match="The transaction was rolled back: "):
        bench.work.commit(3)
    assert bench.seen() == before
    assert bench.queue.locked_count == 3


def test_a_lock_that_expired_rolls_everything_back() -> None:
    bench = Bench()
    bench.send("e")
    bench.settle(0, COMPLETE)
    with pytest.raises(TransactionRolledBack):
        bench.work.commit(60_000)
    assert ids(bench.queue, 60_000) == ["a", "b", "c", "d"]


def test_a_queue_that_was_deleted_disabled_or_filled_meanwhile_rolls_everything_back() -> None:
    def delete(bench: Bench) -> None:
        bench.world.namespace.delete("q", 2)

    def disable(bench: Bench) -> None:
        settings = QueueDescription(lock_duration_ms=60_000, status="SendDisabled")
        bench.world.namespace.update("q", settings, 2)

    def fill(bench: Bench) -> None:
        bench.queue.quota_bytes = bench.queue.size_bytes + 1

    for meanwhile in (delete, disable, fill):
        bench = Bench()
        bench.settle(0, COMPLETE)
        bench.send("e")
        meanwhile(bench)
        before = bench.seen()
        with pytest.raises(TransactionRolledBack):
            bench.work.commit(3)
        assert bench.seen() == before


def test_the_quota_counts_all_messages_of_a_transaction() -> None:
    for spare_bytes in (-1, 0):
        bench = Bench()
        for _ in range(2):
            bench.work.send(bench.queue, [incoming(size_bytes=100_000)], 1)
        bench.queue.quota_bytes = bench.queue.size_bytes + 200_000 + spare_bytes
        if spare_bytes < 0:
            with pytest.raises(TransactionRolledBack, match="maximum entity size"):
                bench.work.commit(3)
            assert bench.queue.active_count == 4
        else:
            bench.work.commit(3)
            assert bench.queue.active_count == 6


def test_ids_enter_the_history_of_duplicates_at_the_commit_only() -> None:
    bench = Bench(requires_duplicate_detection=True)
    bench.send("new")
    bench.queue.enqueue(incoming(message_id="new"), 2)
    assert ids(bench.queue) == ["a", "b", "c", "d", "new"]
    bench.send("last", "last")
    bench.work.commit(3)
    assert ids(bench.queue, 4) == ["a", "b", "c", "d", "new", "last"]


def test_an_operation_that_is_refused_is_no_part_of_the_transaction() -> None:
    bench = Bench()
    with pytest.raises(MessageLockLost):
        bench.work.settle(bench.queue, RequestedSettlement(b"unknown", COMPLETE), 1)
    bench.send("e")
    bench.work.commit(2)
    assert ids(bench.queue) == ["a", "b", "c", "d", "e"]


def test_a_doomed_transaction_cannot_be_committed() -> None:
    bench = Bench()
    bench.send("e")
    bench.work.doom(MessageLockLost("the lock is gone"))
    with pytest.raises(TransactionRolledBack, match="rolled back: the lock is gone"):
        bench.work.commit(2)
    assert ids(bench.queue) == ["a", "b", "c", "d"]


def test_a_message_is_settled_once() -> None:
    bench = Bench()
    bench.settle(0, COMPLETE)
    bench.settle(0, COMPLETE)
    with pytest.raises(NotAllowed, match=r"settles this message already \(complete\)"):
        bench.settle(0, ABANDON)
    assert bench.work.operation_count == 1
    bench.work.commit(2)
    assert ids(bench.queue) == ["b", "c", "d"]


def test_a_rollback_abandons_what_its_receiver_cannot_settle_again() -> None:
    bench = Bench()
    bench.settle(0, COMPLETE)
    wanted = RequestedSettlement(bench.tokens[1], COMPLETE)
    bench.work.settle(bench.queue, wanted, 1, is_final=True)
    bench.work.roll_back(2)
    assert bench.queue.locked_count == 3
    (ready,) = bench.queue.states.ready()
    assert (ready.message_id, ready.delivery_count) == ("b", 1)
    bench.queue.settle(bench.tokens[0], COMPLETE, 3)


def test_a_transaction_has_a_hundred_operations_at_most() -> None:
    bench = Bench()
    bench.settle(0, COMPLETE)
    bench.send(*(f"m{number}" for number in range(OPERATIONS_MAX - 1)))
    text = (
        "Cannot send or settle more than 100 messages in a single transaction; "
        "it has 100, and 1 would be added."
    )
    with pytest.raises(QuotaExceeded, match=text):
        bench.send("one more")
    with pytest.raises(QuotaExceeded, match=text):
        bench.settle(1, COMPLETE)
    bench.work.commit(2)
    assert bench.queue.active_count == 3 + OPERATIONS_MAX - 1


def test_the_first_operation_decides_the_entity_of_all() -> None:
    bench = Bench()
    other = bench.world.queue("other", QueueDescription())
    bench.settle(0, COMPLETE)
    with pytest.raises(NotAllowed, match="Local transactions cannot span multiple top-level"):
        bench.work.send(other, [incoming()], 1)
    bench.work.send(other, [incoming(message_id="through")], 1, through="Q")
    bench.work.commit(2)
    assert ids(other) == ["through"]


def test_a_topic_its_subscriptions_and_their_dead_letters_are_one_entity() -> None:
    world = World()
    namespace = world.namespace
    topic = namespace.create_topic("news", TopicDescription(), 0)
    subscription = namespace.create_subscription("news", "all", SubscriptionDescription(), 0)
    for name in "ab":
        topic.enqueue(incoming(message_id=name), 0)
    (first,) = subscription.acquire(ME, 1, 0)
    subscription.settle(first.lock_token, DEAD_LETTER, 0)
    dead = subscription.dead_letter
    assert dead is not None
    (held,), (second,) = dead.acquire(ME, 1, 0), subscription.acquire(ME, 1, 0)
    work = BrokerTransaction(namespace)
    work.settle(dead, RequestedSettlement(held.lock_token, COMPLETE), 1)
    work.settle(subscription, RequestedSettlement(second.lock_token, COMPLETE), 1)
    work.send(topic, [incoming(message_id="c")], 1)
    assert ids(subscription) == ["b"]
    work.commit(2)
    assert (ids(dead), ids(subscription)) == ([], ["c"])


def test_messages_of_a_session_are_settled_while_it_is_held() -> None:
    world = World()
    queue = world.queue("s", QueueDescription(requires_session=True, lock_duration_ms=60_000))
    queue.enqueue(incoming(session_id="one", message_id="a"), 0)
    queue.sessions.accept("one", ME, 0)
    (held,) = queue.acquire(ME, 1, 0, session_id="one")
    for is_released in (True, False):
        work = BrokerTransaction(world.namespace)
        work.settle(queue, RequestedSettlement(held.lock_token, COMPLETE, session_id="one"), 1)
        if is_released:
            queue.sessions.release_holder(ME, 1)
            with pytest.raises(TransactionRolledBack):
                work.commit(2)
            queue.sessions.accept("one", ME, 2)
            (held,) = queue.acquire(ME, 1, 2, session_id="one")
        else:
            work.commit(3)
    assert ids(queue, 4) == []
