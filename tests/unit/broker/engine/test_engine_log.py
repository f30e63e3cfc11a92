"""What the engine logs: each operation on a message, once, when it is done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.broker.fakes import World, incoming
from twinbus.broker.descriptions import (
    QueueDescription,
    RuleDescription,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.engine_log import EngineLog
from twinbus.broker.engine.settlement import SettlementOutcome
from twinbus.broker.refusals import MessageTooLarge
from twinbus.servicebus.names import PING_CONTENT_TYPE

ME = object()
QUEUE = QueueDescription()
DETECTING = QueueDescription(requires_duplicate_detection=True)

Told = list[tuple[int, str, str, str | None, int | None, str | None]]


class Watched(World):
    """A namespace with an engine log."""

    def __init__(self) -> None:
        self.engine_log = EngineLog()
        super().__init__(engine_log=self.engine_log)

    def told(self) -> Told:
        """Time, operation, entity, message id, number, and what else was said, since last time."""
        return [
            (at_ms, operation, entity, message_id, number, state or error)
            for at_ms, operation, entity, state, error, _, rows in self.engine_log.take()
            for message_id, _, number, _ in rows
        ]

    def send(self, path: str, *ids: str, at_ms: int, ttl_ms: int = 0, for_ms: int = 0) -> None:
        batch = [incoming(message_id=name, ttl_ms=ttl_ms, scheduled_for_ms=for_ms) for name in ids]
        self.namespace.send(self.namespace.send_target(path), batch, at_ms)


@pytest.fixture
def world() -> Watched:
    world = Watched()
    world.namespace.create_queue("orders", QUEUE, 0)
    return world


def test_a_message_is_sent_received_and_completed(world: Watched) -> None:
    queue = world.namespace.get_queue("orders")
    world.send("ORDERS", "a", "b", at_ms=10)
    assert world.told() == [
        (10, "send", "orders", "a", 1, None),
        (10, "send", "orders", "b", 2, None),
    ]
    first, second = queue.acquire(ME, 5, 20)
    assert world.told() == [
        (20, "receive", "orders", "a", 1, None),
        (20, "receive", "orders", "b", 2, None),
    ]
    queue.settle(first.lock_token, SettlementOutcome.COMPLETE, 30)
    assert queue.complete_all([second.lock_token], 40)
    assert world.told() == [
        (30, "complete", "orders", "a", 1, None),
        (40, "complete", "orders", "b", 2, None),
    ]
    assert world.told() == []


def test_what_is_received_and_deleted_is_complete_at_once(world: Watched) -> None:
    world.send("orders", "a", at_ms=10)
    world.namespace.get_queue("orders").acquire(ME, 5, 20, settled=True)
    assert [row[:4] for row in world.told()] == [
        (10, "send", "orders", "a"),
        (20, "receive", "orders", "a"),
        (20, "complete", "orders", "a"),
    ]


def test_a_message_given_back_is_told_of(world: Watched) -> None:
    queue = world.namespace.get_queue("orders")
    world.send("orders", "a", at_ms=10)
    (first,) = queue.acquire(ME, 1, 20)
    queue.settle(first.lock_token, SettlementOutcome.ABANDON, 30)
    (second,) = queue.acquire(ME, 1, 40)
    queue.settle(second.lock_token, SettlementOutcome.RELEASE, 45)
    (third,) = queue.acquire(ME, 1, 47)
    queue.settle(third.lock_token, SettlementOutcome.DEFER, 50)
    queue.receive_by_sequence([1], ME, 60)
    assert [row[:2] for row in world.told()] == [
        (10, "send"),
        (20, "receive"),
        (30, "abandon"),
        (40, "receive"),
        (45, "release"),
        (47, "receive"),
        (50, "defer"),
        (60, "receive"),
    ]


def test_what_the_receiver_of_a_session_leaves_is_told_of(world: Watched) -> None:
    sessions = replace(QUEUE, requires_session=True)
    world.namespace.create_queue("sessions", sessions, 0)
    queue = world.namespace.get_queue("sessions")
    target = world.namespace.send_target("sessions")
    world.namespace.send(target, [incoming(message_id="a", session_id="s")], 10)
    queue.sessions.accept("s", ME, 20)
    queue.acquire(ME, 1, 30, session_id="s")
    queue.sessions.release_holder(ME, 40)
    assert [row[:2] for row in world.told()] == [(10, "send"), (30, "receive"), (40, "release")]


def test_out_of_time_is_expired_or_dead_lettered_by_the_queues_settings(world: Watched) -> None:
    keeping = replace(QUEUE, dead_letter_on_expiration=True)
    world.namespace.create_queue("kept", keeping, 0)
    for path in ("orders", "kept"):
        world.send(path, "a", at_ms=10, ttl_ms=5)
    world.told()
    world.namespace.run_timers(14)
    assert world.told() == []
    world.namespace.run_timers(15)
    assert sorted(world.told()) == [
        (15, "dead_letter", "kept", "a", 1, "TTLExpiredException"),
        (15, "expire", "orders", "a", 1, None),
    ]
    world.send("orders", "b", at_ms=20, ttl_ms=5)
    world.told()
    assert world.namespace.get_queue("orders").acquire(ME, 1, 25) == []
    assert world.told() == [(25, "expire", "orders", "b", 2, None)]


def test_dead_letters_have_their_reason_whoever_makes_them(world: Watched) -> None:
    world.namespace.create_queue("tried", replace(QUEUE, max_delivery_count=1), 0)
    for path, outcome in (
        ("orders", SettlementOutcome.DEAD_LETTER),
        ("tried", SettlementOutcome.ABANDON),
    ):
        queue = world.namespace.get_queue(path)
        world.send(path, "a", at_ms=10)
        (delivery,) = queue.acquire(ME, 1, 20)
        world.told()
        reason = "bad" if outcome is SettlementOutcome.DEAD_LETTER else None
        queue.settle(delivery.lock_token, outcome, 30, reason=reason)
        expected = reason or "MaxDeliveryCountExceeded"
        assert world.told()[-1] == (30, "dead_letter", path, "a", 1, expected)
    dead = world.namespace.receive_source("orders/$deadletterqueue")
    (delivery,) = dead.acquire(ME, 1, 40)
    dead.settle(delivery.lock_token, SettlementOutcome.COMPLETE, 50)
    assert [row[1:4] for row in world.told()] == [
        ("receive", dead.path, "a"),
        ("complete", dead.path, "a"),
    ]


def test_scheduled_messages_and_those_taken_back(world: Watched) -> None:
    target = world.namespace.send_target("orders")
    world.namespace.schedule(target, [incoming(message_id="a", scheduled_for_ms=100)], 10)
    world.namespace.schedule(target, [incoming(message_id="b", scheduled_for_ms=100)], 11)
    target.cancel_scheduled([1], 20)
    world.namespace.run_timers(100)
    world.namespace.get_queue("orders").acquire(ME, 5, 101)
    assert world.told() == [
        (10, "send", "orders", "a", 1, "scheduled"),
        (11, "send", "orders", "b", 2, "scheduled"),
        (20, "manage", "orders", "a", 1, "cancelled"),
        (101, "receive", "orders", "b", 3, None),
    ]


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_a_duplicate_is_accepted_and_said_to_be_one(kind: str) -> None:
    world = Watched()
    if kind == "queue":
        world.namespace.create_queue("once", DETECTING, 0)
    else:
        world.namespace.create_topic("once", TopicDescription(requires_duplicate_detection=True), 0)
    world.send("once", "a", "b", "a", at_ms=10)
    world.send("once", "a", at_ms=20)
    numbers = (1, 2) if kind == "queue" else (None, None)
    assert world.told() == [
        (10, "send", "once", "a", numbers[0], None),
        (10, "send", "once", "b", numbers[1], None),
        (10, "send", "once", "a", None, "duplicate"),
        (20, "send", "once", "a", None, "duplicate"),
    ]


def test_a_topic_tells_of_the_send_and_its_subscriptions_of_what_follows() -> None:
    world = Watched()
    world.namespace.create_topic("news", TopicDescription(), 0)
    for name in ("all", "some"):
        world.namespace.create_subscription("news", name, SubscriptionDescription(), 0)
    world.send("news", "a", at_ms=10)
    source = world.namespace.receive_source("news/subscriptions/all")
    source.acquire(ME, 5, 20)
    assert world.told() == [
        (10, "send", "news", "a", None, None),
        (20, "receive", source.path, "a", 1, None),
    ]


def test_what_is_forwarded_arrives_elsewhere(world: Watched) -> None:
    world.namespace.create_queue("front", replace(QUEUE, forward_to="orders"), 0)
    world.send("front", "a", at_ms=10)
    assert sorted(world.told()) == [
        (10, "forward", "orders", "a", 1, None),
        (10, "send", "front", "a", 1, None),
    ]


def test_a_message_that_a_filter_cannot_judge_is_told_of_as_dead() -> None:
    world = Watched()
    world.namespace.create_topic("news", TopicDescription(), 0)
    rule = RuleDescription(name="r", filter=SqlFilter(expression="1 / size = 1"))
    settings = SubscriptionDescription(dead_letter_on_filter_error=True)
    world.namespace.create_subscription("news", "all", settings, 0, rule=rule)
    batch = [incoming(message_id="a", properties={"size": 0})]
    world.namespace.send(world.namespace.send_target("news"), batch, 10)
    told = [(row[1], row[2].lower(), row[3], row[5]) for row in world.told()]
    assert told == [
        ("dead_letter", "news/subscriptions/all", "a", "FilterException"),
        ("send", "news", "a", None),
    ]


def test_pings_refusals_and_the_end_of_an_entity(world: Watched) -> None:
    target = world.namespace.send_target("orders")
    world.namespace.send(target, [incoming(message_id="p", content_type=PING_CONTENT_TYPE)], 10)
    large = incoming(message_id="l", size_bytes=10_000_000)
    with pytest.raises(MessageTooLarge):
        world.namespace.send(target, [large], 20)
    world.engine_log.refused("orders", [large], "too large", 20)
    world.engine_log.refused("orders", [], "unreadable", 30)
    world.namespace.delete("orders", 40)
    assert world.told() == [
        (10, "ping", "orders", "p", None, None),
        (20, "send", "orders", "l", None, "too large"),
        (30, "send", "orders", None, None, "unreadable"),
        (40, "manage", "orders", None, None, "deleted"),
    ]


def test_a_restart_keeps_the_engine_log(world: Watched) -> None:
    world.send("orders", "a", at_ms=10, ttl_ms=5)
    again = Watched()
    again.namespace.restore(world.journal.images(), 0)
    again.journal = world.journal
    assert again.namespace.get_queue("orders").states.engine_log is again.engine_log
    assert (
        again.namespace.receive_source("orders/$deadletterqueue").states.engine_log
        is again.engine_log
    )
