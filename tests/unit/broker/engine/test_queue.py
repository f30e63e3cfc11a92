"""Queues in virtual time: every way a message can go, and that it ends in exactly one place."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from tests.unit.broker.fakes import World, facts, incoming, numbers
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import OVERRIDE_BYTES_MAX, SettlementOutcome
from twinbus.broker.journal import MessageState
from twinbus.broker.refusals import (
    ArgumentOutOfRange,
    EntityDisabled,
    EntityNotFound,
    MessageLockLost,
    MessageNotFound,
    MessageTooLarge,
    NotAllowed,
    QuotaExceeded,
)

LOCK_MS = 10_000
PLAIN = QueueDescription(lock_duration_ms=LOCK_MS, max_delivery_count=3)
ME = object()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def queue(world: World) -> Queue:
    return world.queue("orders", PLAIN)


def dead_letters(queue: Queue, now_ms: int) -> list[tuple[str | None, object, object]]:
    assert queue.dead_letter is not None
    found = queue.dead_letter.peek(0, 100, now_ms)
    return [
        (
            each.message_id,
            (each.overrides or {}).get("DeadLetterReason"),
            (each.overrides or {}).get("DeadLetterErrorDescription"),
        )
        for each in found
    ]


def acquire_one(queue: Queue, now_ms: int) -> bytes:
    [delivery] = queue.acquire(ME, 1, now_ms)
    return delivery.lock_token


def counts(queue: Queue) -> tuple[int, int, int, int]:
    return queue.active_count, queue.locked_count, queue.deferred_count, queue.scheduled_count


def test_messages_come_out_in_the_order_they_went_in(queue: Queue) -> None:
    for _ in range(5):
        queue.enqueue(incoming(), 0)
    first, second = queue.acquire(ME, 3, 1), queue.acquire(ME, 3, 1)
    assert [each.message.sequence_number for each in first + second] == [1, 2, 3, 4, 5]
    assert {each.locked_until_ms for each in first} == {1 + LOCK_MS}


def test_a_completed_message_is_gone_from_memory_and_journal(world: World, queue: Queue) -> None:
    queue.enqueue(incoming(), 0)
    queue.settle(acquire_one(queue, 0), SettlementOutcome.COMPLETE, 1)
    assert (queue.peek(0, 10, 1), queue.size_bytes, counts(queue)) == ([], 0, (0, 0, 0, 0))
    assert facts(world.restarted().namespace.get_queue("orders"), 1) == []


def test_many_are_completed_at_once_or_none(world: World, queue: Queue) -> None:
    for _ in range(4):
        queue.enqueue(incoming(), 0)
    tokens = [each.lock_token for each in queue.acquire(ME, 3, 0)]
    assert not queue.complete_all([*tokens, b"no token of ours"], 1)
    assert counts(queue) == (4, 3, 0, 0)
    assert queue.complete_all(tokens, 1)
    assert counts(queue) == (1, 0, 0, 0)
    assert not queue.complete_all(tokens, 1)
    late = [acquire_one(queue, 1)]
    assert not queue.complete_all(late, 1 + LOCK_MS)
    assert counts(queue) == (1, 0, 0, 0)
    again = world.restarted().namespace.get_queue("orders")
    assert [each.sequence_number for each in again.peek(0, 10, 1)] == [4]


def test_an_abandoned_message_takes_its_old_place_and_counts(world: World, queue: Queue) -> None:
    for _ in range(3):
        queue.enqueue(incoming(), 0)
    deliveries = queue.acquire(ME, 2, 0)
    world.take_notified()
    queue.settle(deliveries[1].lock_token, SettlementOutcome.ABANDON, 1, overrides={"why": "busy"})
    queue.settle(deliveries[0].lock_token, SettlementOutcome.RELEASE, 1)
    assert world.take_notified() == ["orders", "orders"]
    again = [each.message for each in queue.acquire(ME, 5, 2)]
    assert [(m.sequence_number, m.delivery_count, m.overrides) for m in again] == [
        (1, 0, None), (2, 1, {"why": "busy"}), (3, 0, None),
    ]  # fmt: skip


def test_a_message_is_dead_lettered_when_its_tries_are_used_up(queue: Queue) -> None:
    queue.enqueue(incoming(message_id="a"), 0)
    for now_ms in range(3):
        assert dead_letters(queue, now_ms) == []
        queue.settle(acquire_one(queue, now_ms), SettlementOutcome.ABANDON, now_ms)
    assert queue.acquire(ME, 1, 3) == []
    [(message_id, reason, _)] = dead_letters(queue, 3)
    assert (message_id, reason) == ("a", "MaxDeliveryCountExceeded")
    assert queue.dead_letter is not None
    [dead] = queue.dead_letter.peek(0, 1, 3)
    assert (dead.delivery_count, dead.dead_letter_source, dead.enqueued_sequence_number) == (
        3, "orders", 1,
    )  # fmt: skip


def test_a_dead_letter_queue_lets_its_messages_be_tried_for_ever(queue: Queue) -> None:
    queue.enqueue(incoming(ttl_ms=50), 0)
    token = acquire_one(queue, 0)
    queue.settle(
        token,
        SettlementOutcome.DEAD_LETTER,
        0,
        reason="bad",
        description="really",
        overrides={"k": 1},
    )
    dead = queue.dead_letter
    assert dead is not None
    for now_ms in range(20):
        dead.settle(acquire_one(dead, now_ms), SettlementOutcome.ABANDON, now_ms)
    [message] = dead.peek(0, 10, 10**9)
    assert message.overrides == {
        "k": 1, "DeadLetterReason": "bad", "DeadLetterErrorDescription": "really",
    }  # fmt: skip
    token = acquire_one(dead, 10**9)
    with pytest.raises(NotAllowed):
        dead.settle(token, SettlementOutcome.DEAD_LETTER, 10**9)
    dead.settle(token, SettlementOutcome.COMPLETE, 10**9)  # the refusal left the lock as it was
    assert dead.peek(0, 10, 10**9) == []


def test_a_lock_ends_at_its_time_and_not_before(queue: Queue) -> None:
    queue.enqueue(incoming(), 0)
    token = acquire_one(queue, 0)
    assert queue.next_deadline_ms() == LOCK_MS
    assert queue.acquire(ME, 1, LOCK_MS - 1) == []
    with pytest.raises(MessageLockLost):
        queue.settle(token, SettlementOutcome.COMPLETE, LOCK_MS)
    [delivery] = queue.acquire(ME, 1, LOCK_MS)
    assert delivery.message.delivery_count == 1
    queue.settle(delivery.lock_token, SettlementOutcome.COMPLETE, LOCK_MS)
    with pytest.raises(MessageLockLost):
        queue.settle(delivery.lock_token, SettlementOutcome.COMPLETE, LOCK_MS)


def test_an_expired_lock_at_the_last_try_dead_letters(queue: Queue) -> None:
    queue.enqueue(incoming(message_id="a"), 0)
    for attempt in range(3):
        queue.acquire(ME, 1, attempt * LOCK_MS)
    queue.run_timers(3 * LOCK_MS)
    assert [row[:2] for row in dead_letters(queue, 3 * LOCK_MS)] == [
        ("a", "MaxDeliveryCountExceeded")
    ]


def test_a_renewed_lock_lasts_another_duration_from_then(queue: Queue) -> None:
    queue.enqueue(incoming(), 0)
    token = acquire_one(queue, 0)
    assert queue.renew(token, 9_000) == 9_000 + LOCK_MS
    queue.run_timers(LOCK_MS)
    assert queue.locked_count == 1
    assert queue.next_deadline_ms() == 9_000 + LOCK_MS
    with pytest.raises(MessageLockLost):
        queue.renew(token, 9_000 + LOCK_MS)


def test_a_deferred_message_is_had_by_number_only(world: World, queue: Queue) -> None:
    queue.enqueue(incoming(), 0)
    queue.settle(acquire_one(queue, 0), SettlementOutcome.DEFER, 0)
    assert (queue.acquire(ME, 1, 1), counts(queue)) == ([], (0, 0, 1, 0))
    assert facts(world.restarted().namespace.get_queue("orders"), 1)[0][2] is MessageState.DEFERRED
    [delivery] = queue.receive_by_sequence([1, 1], ME, 1)
    with pytest.raises(MessageNotFound, match="locked"):
        queue.receive_by_sequence([1], ME, 1)
    queue.settle(delivery.lock_token, SettlementOutcome.RELEASE, 2)
    assert (counts(queue), queue.acquire(ME, 1, 2)) == ((0, 0, 1, 0), [])
    [delivery] = queue.receive_by_sequence([1], ME, 2)
    queue.run_timers(2 + LOCK_MS)
    assert counts(queue) == (0, 0, 1, 0)
    [delivery] = queue.receive_by_sequence([1], ME, 3 + LOCK_MS)
    assert delivery.message.delivery_count == 2
    queue.settle(delivery.lock_token, SettlementOutcome.COMPLETE, 3 + LOCK_MS)
    assert counts(queue) == (0, 0, 0, 0)


def test_receiving_by_number_takes_all_or_none(queue: Queue) -> None:
    queue.enqueue(incoming(), 0)
    queue.enqueue(incoming(), 0)
    queue.settle(acquire_one(queue, 0), SettlementOutcome.DEFER, 0)
    with pytest.raises(MessageNotFound):
        queue.receive_by_sequence([1, 2], ME, 1)
    assert queue.locked_count == 0


def test_a_deferred_message_used_up_by_number_is_dead_lettered(queue: Queue) -> None:
    queue.enqueue(incoming(message_id="a"), 0)
    queue.settle(acquire_one(queue, 0), SettlementOutcome.DEFER, 0)
    for _ in range(2):
        [delivery] = queue.receive_by_sequence([1], ME, 1)
        queue.settle(delivery.lock_token, SettlementOutcome.ABANDON, 1)
    assert [row[:2] for row in dead_letters(queue, 1)] == [("a", "MaxDeliveryCountExceeded")]
    assert counts(queue) == (0, 0, 0, 0)


def test_receive_and_delete_hands_over_the_payload(world: World, queue: Queue) -> None:
    sent = incoming(b"hello")
    queue.enqueue(sent, 0)
    queue.enqueue(incoming(), 0)
    [delivery] = queue.acquire(ME, 1, 0, settled=True)
    assert (delivery.payload, delivery.locked_until_ms) == (sent.payload, 0)
    assert (queue.locked_count, queue.active_count) == (0, 1)
    queue.settle(acquire_one(queue, 0), SettlementOutcome.DEFER, 0)
    [delivery] = queue.receive_by_sequence([2], ME, 0, settled=True)
    assert delivery.payload is not None
    assert facts(world.restarted().namespace.get_queue("orders"), 1) == []


class TestRefusals:
    def test_a_message_too_large(self, world: World) -> None:
        queue = world.queue("q", QueueDescription(max_message_size_kb=1))
        queue.enqueue(incoming(size_bytes=1024), 0)
        with pytest.raises(MessageTooLarge, match="1025 bytes"):
            queue.enqueue(incoming(size_bytes=1025), 0)

    def test_a_full_queue_counts_its_dead_letters_and_frees_what_expires(
        self, world: World
    ) -> None:
        queue = world.queue("q", QueueDescription(max_size_mb=1, max_message_size_kb=1024))
        queue.enqueue(incoming(size_bytes=600_000), 0)
        queue.settle(acquire_one(queue, 0), SettlementOutcome.DEAD_LETTER, 0)
        queue.enqueue(incoming(size_bytes=400_000, ttl_ms=100), 0)
        with pytest.raises(QuotaExceeded, match="bytes:1000000, Max entity size in bytes: 1048576"):
            queue.enqueue(incoming(size_bytes=100_000), 99)
        queue.enqueue(incoming(size_bytes=100_000), 100)

    @pytest.mark.parametrize(
        ("status", "sends", "receives"),
        [
            ("Active", True, True),
            ("SendDisabled", False, True),
            ("ReceiveDisabled", True, False),
            ("Disabled", False, False),
        ],
    )
    def test_a_status_takes_effect_at_once(
        self, world: World, status: str, sends: bool, receives: bool
    ) -> None:
        queue = world.queue("q", PLAIN)
        queue.enqueue(incoming(), 0)
        held = acquire_one(queue, 0)
        description = QueueDescription(lock_duration_ms=LOCK_MS, status=status)
        world.namespace.update("q", description, 1)
        refused = pytest.raises(EntityDisabled, match=status)
        with nullcontext() if sends else refused:
            queue.enqueue(incoming(), 2)
        with nullcontext() if receives else refused:
            queue.acquire(ME, 1, 2)
        queue.settle(
            held, SettlementOutcome.COMPLETE, 2
        )  # what was delivered before can be settled

    def test_a_deleted_queue_refuses_those_who_still_know_it(
        self, world: World, queue: Queue
    ) -> None:
        queue.enqueue(incoming(), 0)
        token = acquire_one(queue, 0)
        world.namespace.delete("orders", 1)
        with pytest.raises(EntityNotFound):
            queue.enqueue(incoming(), 1)
        with pytest.raises(EntityNotFound):
            queue.acquire(ME, 1, 1)
        with pytest.raises(EntityNotFound):
            queue.peek(0, 1, 1)
        with pytest.raises(MessageLockLost):
            queue.settle(token, SettlementOutcome.ABANDON, 1)
        queue.run_timers(10**9)

    def test_a_session_asked_of_a_queue_without(self, queue: Queue) -> None:
        for attempt in (
            lambda: queue.acquire(ME, 1, 0, session_id="s"),
            lambda: queue.sessions.accept(None, ME, 0),
            queue.sessions.ids,
        ):
            with pytest.raises(NotAllowed):
                attempt()


def test_new_settings_apply_to_the_next_lock_and_the_next_failure(
    world: World, queue: Queue
) -> None:
    queue.enqueue(incoming(message_id="a"), 0)
    queue.settle(acquire_one(queue, 0), SettlementOutcome.ABANDON, 0)
    new = QueueDescription(lock_duration_ms=5_000, max_delivery_count=1)
    world.namespace.update("orders", new, 1)
    [delivery] = queue.acquire(ME, 1, 2)
    assert delivery.locked_until_ms == 5_002
    queue.settle(delivery.lock_token, SettlementOutcome.ABANDON, 3)
    assert [row[0] for row in dead_letters(queue, 3)] == ["a"]
    assert queue.dead_letter is not None
    assert queue.dead_letter.acquire(ME, 1, 4)[0].locked_until_ms == 5_004


def test_peeking_begins_anywhere_and_skips_what_left(queue: Queue) -> None:
    for _ in range(300):
        queue.enqueue(incoming(), 0)
    assert numbers(queue.peek(0, 2, 0)) == [1, 2]
    for delivery in queue.acquire(ME, 250, 0):
        queue.settle(delivery.lock_token, SettlementOutcome.COMPLETE, 0)
    assert numbers(queue.peek(0, 2, 0)) == [251, 252]
    assert numbers(queue.peek(299, 10, 0)) == [299, 300]
    for _ in range(100):
        queue.enqueue(incoming(), 0)
    assert numbers(queue.peek(300, 3, 0)) == [300, 301, 302]
    assert queue.peek(0, 0, 0) == []


def test_a_restart_keeps_everything_but_locks(world: World, queue: Queue) -> None:
    for index in range(4):
        queue.enqueue(incoming(message_id=f"m{index}"), 0)
    tokens = [each.lock_token for each in queue.acquire(ME, 3, 0)]
    queue.settle(tokens[0], SettlementOutcome.ABANDON, 1)
    queue.settle(tokens[1], SettlementOutcome.DEFER, 1)
    queue.enqueue(incoming(message_id="late", scheduled_for_ms=500), 1)
    again = world.restarted().namespace.get_queue("orders")
    assert facts(again, 2) == [
        (1, "m0", MessageState.ACTIVE, 1),
        (2, "m1", MessageState.DEFERRED, 1),
        (3, "m2", MessageState.ACTIVE, 0),
        (4, "m3", MessageState.ACTIVE, 0),
        (5, "late", MessageState.SCHEDULED, 0),
    ]
    assert counts(again) == (3, 0, 1, 1)
    assert again.next_deadline_ms() == 500
    stored = again.enqueue(incoming(), 2)
    assert stored is not None
    assert stored.sequence_number == 6


@pytest.mark.parametrize("outcome", [SettlementOutcome.ABANDON, SettlementOutcome.DEFER])
def test_receivers_cannot_make_a_message_grow_without_bound(
    queue: Queue, outcome: SettlementOutcome
) -> None:
    queue.enqueue(incoming(), 0)
    (delivery,) = queue.acquire(ME, 1, 1)
    token = delivery.lock_token
    long = "x" * 40_000
    too_many = ({"k": 2 * long}, {"a": long, "b": long}, {"a": long, "DeadLetterReason": long})
    for changes in too_many:
        with pytest.raises(ArgumentOutOfRange, match="the limit is 65536"):
            queue.settle(token, outcome, 1, overrides=dict(changes))
    with pytest.raises(ArgumentOutOfRange, match="the limit is 65536"):
        queue.settle(token, SettlementOutcome.DEAD_LETTER, 1, reason="x" * OVERRIDE_BYTES_MAX)
    assert queue.locked_count == 1
    queue.settle(token, outcome, 1, overrides={"a": "x" * 40_000})


def test_a_dead_letter_queue_counts_no_deliveries_and_keeps_new_properties(
    world: World, queue: Queue
) -> None:
    queue.enqueue(incoming(), 0)
    queue.settle(acquire_one(queue, 0), SettlementOutcome.DEAD_LETTER, 0)
    dead = queue.dead_letter
    assert dead is not None
    dead.settle(acquire_one(dead, 1), SettlementOutcome.DEFER, 1)
    [delivery] = dead.receive_by_sequence([1], ME, 1)
    queue_of_dead = world.restarted().namespace.receive_source("orders/$DeadLetterQueue")
    assert facts(queue_of_dead, 1)[0][3] == 0
    dead.settle(delivery.lock_token, SettlementOutcome.ABANDON, 1, overrides={"a": 1})
    [again] = world.restarted().namespace.receive_source("orders/$DeadLetterQueue").peek(0, 1, 1)
    assert (again.delivery_count, again.overrides) == (0, {"a": 1})


def test_each_deferral_counts_a_delivery(queue: Queue) -> None:
    queue.enqueue(incoming(), 0)
    queue.settle(acquire_one(queue, 0), SettlementOutcome.DEFER, 0)
    [delivery] = queue.receive_by_sequence([1], ME, 1)
    assert delivery.message.delivery_count == 1
    queue.settle(delivery.lock_token, SettlementOutcome.DEFER, 1)
    [delivery] = queue.receive_by_sequence([1], ME, 1)
    assert delivery.message.delivery_count == 2


def test_a_message_is_known_as_scheduled_once_unless_its_time_was_past(queue: Queue) -> None:
    queue.enqueue(incoming(scheduled_for_ms=500), 0)
    queue.enqueue(incoming(scheduled_for_ms=500), 600)
    queue.run_timers(600)
    assert [each.scheduled_for_ms for each in queue.peek(0, 9, 600)] == [500, 0]
