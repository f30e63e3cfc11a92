"""Namespaces: names, settings, addresses, batches, idleness, and what a restart brings back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.broker.fakes import World, incoming
from twinbus.amqp.types import Timestamp, UInt
from twinbus.broker.descriptions import (
    AuthorizationRule,
    CorrelationFilter,
    FalseFilter,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)
from twinbus.broker.engine.settlement import SettlementOutcome
from twinbus.broker.journal import MessageState
from twinbus.broker.refusals import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    EntityAlreadyExists,
    EntityDisabled,
    EntityNotFound,
    MessageTooLarge,
    NotAllowed,
    QuotaExceeded,
)
from twinbus.servicebus.names import PING_CONTENT_TYPE

ME = object()
QUEUE, TOPIC, SUBSCRIPTION = QueueDescription(), TopicDescription(), SubscriptionDescription()
IDLE_MS = 300_000


@pytest.fixture
def world() -> World:
    world = World()
    world.namespace.create_queue("Orders/Open", QUEUE, 1)
    world.namespace.create_topic("News", TOPIC, 2)
    world.namespace.create_subscription("news", "All", SUBSCRIPTION, 3)
    return world


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("orders/open", "Orders/Open"),
        ("amqps://localhost:5672/ORDERS/open", "Orders/Open"),
        ("sb://host/Orders/Open/", "Orders/Open"),
        ("orders/open/$DeadLetterQueue", "Orders/Open/$DeadLetterQueue"),
        ("orders/open/$deadletterqueue", "Orders/Open/$DeadLetterQueue"),
        ("orders/open/$Transfer/$DeadLetterQueue", "Orders/Open/$Transfer/$DeadLetterQueue"),
        ("news", "News"),
        ("News/subscriptions/all", "News/Subscriptions/All"),
        ("news/Subscriptions/All/$DeadLetterQueue", "News/Subscriptions/All/$DeadLetterQueue"),
    ],
)
def test_an_address_names_its_entity_in_any_case(world: World, address: str, path: str) -> None:
    found = world.namespace.resolve(address)
    assert found.path == path
    assert world.namespace.resolve(address) is found


@pytest.mark.parametrize(
    "address",
    ["", "/", "orders", "news/$DeadLetterQueue", "news/Subscriptions/none", "$cbs",
     "$Transfer/$DeadLetterQueue", "news/$Transfer/$DeadLetterQueue",
     "orders/open//$Transfer/$DeadLetterQueue", "orders/open$Transfer/$DeadLetterQueue"],
)  # fmt: skip
def test_any_other_address_is_not_found(world: World, address: str) -> None:
    with pytest.raises(EntityNotFound):
        world.namespace.resolve(address)


def test_some_places_take_no_messages_and_some_give_none(world: World) -> None:
    namespace = world.namespace
    for address in ("news/Subscriptions/all", "orders/open/$DeadLetterQueue"):
        with pytest.raises(NotAllowed):
            namespace.send_target(address)
    with pytest.raises(NotAllowed):
        namespace.receive_source("news")
    assert namespace.receive_source("news/subscriptions/all").path == "News/Subscriptions/All"
    transfer = namespace.receive_source("orders/open/$Transfer/$DeadLetterQueue")
    assert transfer.acquire(ME, 1, 5) == []


@pytest.mark.parametrize(
    "path", ["", "/a", "a/", "a//b", "a b", "ä", "a$", "$a", "./a", "t/subscriptions/s", "a" * 261]
)
def test_paths_that_no_entity_can_have(world: World, path: str) -> None:
    for create in (
        lambda: world.namespace.create_queue(path, QUEUE, 0),
        lambda: world.namespace.create_topic(path, TOPIC, 0),
    ):
        with pytest.raises((ArgumentInvalid, ArgumentOutOfRange)):
            create()


@pytest.mark.parametrize("path", ["a", "contoso/x-servicebus-transfer/0", "a.b_c~d-9", "a" * 260])
def test_paths_that_an_entity_can_have(world: World, path: str) -> None:
    assert world.namespace.create_queue(path, QUEUE, 0).path == path


@pytest.mark.parametrize("name", ["", "a/b", "a b", "x" * 51])
def test_names_that_no_subscription_or_rule_can_have(world: World, name: str) -> None:
    with pytest.raises((ArgumentInvalid, ArgumentOutOfRange)):
        world.namespace.create_subscription("news", name, SUBSCRIPTION, 0)
    with pytest.raises((ArgumentInvalid, ArgumentOutOfRange)):
        world.namespace.create_rule("news", "all", RuleDescription(name=name), 0)


def test_one_name_is_one_entity(world: World) -> None:
    namespace = world.namespace
    for create in (
        lambda: namespace.create_queue("ORDERS/OPEN", QUEUE, 0),
        lambda: namespace.create_topic("orders/open", TOPIC, 0),
        lambda: namespace.create_queue("news", QUEUE, 0),
        lambda: namespace.create_subscription("news", "ALL", SUBSCRIPTION, 0),
        lambda: namespace.create_rule("news", "all", RuleDescription(name="$default"), 0),
    ):
        with pytest.raises(EntityAlreadyExists):
            create()
    with pytest.raises(EntityNotFound):
        namespace.get_queue("news")
    with pytest.raises(EntityNotFound):
        namespace.get_queue("news/subscriptions/all")
    with pytest.raises(EntityNotFound):
        namespace.get_topic("orders/open")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (replace(QUEUE, lock_duration_ms=4_999), "5000 to 300000"),
        (replace(QUEUE, lock_duration_ms=300_001), "lock_duration_ms"),
        (replace(QUEUE, max_delivery_count=0), "max_delivery_count"),
        (replace(QUEUE, duplicate_detection_window_ms=19_999), "window"),
        (replace(QUEUE, duplicate_detection_window_ms=7 * 86_400_000 + 1), "window"),
        (replace(QUEUE, default_ttl_ms=0), "default_ttl_ms"),
        (replace(QUEUE, auto_delete_on_idle_ms=299_999), "auto_delete"),
        (replace(QUEUE, max_size_mb=0), "max_size_mb"),
        (replace(QUEUE, status="Asleep"), "Asleep"),
        (replace(QUEUE, user_metadata="x" * 1025), "1025"),
    ],
)
def test_settings_out_of_range_are_refused_with_the_limit(
    world: World, settings: QueueDescription, words: str
) -> None:
    with pytest.raises((ArgumentInvalid, ArgumentOutOfRange), match=words):
        world.namespace.create_queue("new", settings, 0)
    with pytest.raises((ArgumentInvalid, ArgumentOutOfRange)):
        world.namespace.update("orders/open", settings, 0)
    assert world.namespace.get_queue("orders/open").description == QUEUE


@pytest.mark.parametrize(
    "change",
    [replace(QUEUE, requires_session=True), replace(QUEUE, requires_duplicate_detection=True)],
)
def test_what_decides_how_messages_are_kept_cannot_change(
    world: World, change: QueueDescription
) -> None:
    with pytest.raises(ArgumentInvalid, match="property of an existing Queue cannot"):
        world.namespace.update("orders/open", change, 0)


def test_lists_are_in_order_of_names(world: World) -> None:
    namespace = world.namespace
    for path in ("b", "A", "c"):
        namespace.create_queue(path, QUEUE, 0)
        namespace.create_subscription("news", path, SUBSCRIPTION, 0)
    assert [each.path for each in namespace.queues()] == ["A", "b", "c", "Orders/Open"]
    assert [each.name for each in namespace.subscriptions("NEWS")] == ["A", "All", "b", "c"]
    assert [each.path for each in namespace.topics()] == ["News"]
    namespace.create_rule("news", "all", RuleDescription(name="B"), 0)
    assert [each.name for each in namespace.rules("news", "all")] == ["$Default", "B"]


class TestSend:
    def test_a_batch_goes_whole_or_not_at_all(self, world: World) -> None:
        queue = world.queue("q", QueueDescription(max_size_mb=1, max_message_size_kb=1024))
        namespace = world.namespace
        namespace.send(queue, [incoming(size_bytes=300_000) for _ in range(2)], 0)
        with pytest.raises(QuotaExceeded):
            namespace.send(queue, [incoming(size_bytes=300_000) for _ in range(2)], 0)
        with pytest.raises(MessageTooLarge):
            namespace.send(queue, [incoming(), incoming(size_bytes=2_000_000)], 0)
        assert len(queue.messages) == 2

    def test_a_ping_meets_every_check_and_then_vanishes(self, world: World) -> None:
        ping = incoming(content_type=PING_CONTENT_TYPE, session_id="x", ttl_ms=1000)
        namespace = world.namespace
        queue, topic = namespace.get_queue("orders/open"), namespace.get_topic("news")
        namespace.send(queue, [ping], 0)
        namespace.send(topic, [ping, incoming(message_id="real")], 0)
        assert queue.peek(0, 10, 0) == []
        subscription = namespace.get_subscription("news", "all")
        assert [each.message_id for each in subscription.peek(0, 10, 0)] == ["real"]
        namespace.update("orders/open", replace(QUEUE, status="SendDisabled"), 1)
        with pytest.raises(EntityDisabled):
            namespace.send(queue, [ping], 1)

    def test_scheduling_tells_the_numbers(self, world: World) -> None:
        queue = world.namespace.get_queue("orders/open")
        batch = [incoming(scheduled_for_ms=500) for _ in range(2)]
        assert world.namespace.schedule(queue, batch, 0) == [1, 2]
        topic = world.namespace.get_topic("news")
        assert world.namespace.schedule(topic, batch, 0) == [1, 2]
        topic.cancel_scheduled([1, 2], 0)


class TestDeletion:
    def test_everything_of_an_entity_goes_with_it(self, world: World) -> None:
        namespace = world.namespace
        namespace.get_topic("news").enqueue(incoming(scheduled_for_ms=500), 0)
        namespace.get_topic("news").enqueue(incoming(), 0)
        namespace.delete("NEWS", 1)
        namespace.delete("orders/open", 1)
        assert set(world.deleted) == {
            "News", "News/Subscriptions/All", "News/Subscriptions/All/$DeadLetterQueue",
            "Orders/Open", "Orders/Open/$DeadLetterQueue",
        }  # fmt: skip
        assert [each.kind for each in world.journal.images()] == ["namespace"]
        assert namespace.next_deadline_ms() == 0
        for address in ("news", "news/subscriptions/all", "orders/open/$DeadLetterQueue"):
            with pytest.raises(EntityNotFound):
                namespace.resolve(address)

    def test_a_subscription_can_go_alone(self, world: World) -> None:
        world.namespace.delete("news/subscriptions/all", 1)
        world.namespace.get_topic("news").enqueue(incoming(), 1)
        assert world.namespace.subscriptions("news") == []

    def test_parts_and_strangers_cannot_be_deleted(self, world: World) -> None:
        with pytest.raises(NotAllowed):
            world.namespace.delete("orders/open/$DeadLetterQueue", 1)
        with pytest.raises(EntityNotFound):
            world.namespace.delete("nobody", 1)

    def test_a_name_can_be_used_again_but_an_id_never(self, world: World) -> None:
        old = world.namespace.get_subscription("news", "all").entity_id
        world.namespace.delete("news/subscriptions/all", 1)
        again = world.restarted().namespace
        new = again.create_subscription("news", "all", SUBSCRIPTION, 2)
        assert new.entity_id > old


def test_idle_queues_cost_the_timers_nothing(world: World) -> None:
    for index in range(1000):
        world.namespace.create_queue(f"q{index}", QUEUE, 0)
    assert world.namespace.next_deadline_ms() == 0
    busy = world.namespace.get_queue("q500")
    busy.enqueue(incoming(ttl_ms=10), 0)
    assert world.namespace.next_deadline_ms() == 10
    world.namespace.run_timers(10)
    assert (busy.messages, world.namespace.next_deadline_ms()) == ({}, 0)


EVERY_FILTER = [
    RuleDescription(name="true", filter=TrueFilter(), created_at_ms=7),
    RuleDescription(name="false", filter=FalseFilter()),
    RuleDescription(
        name="sql",
        filter=SqlFilter(expression="a = @p", parameters=(("@p", Timestamp(5)),)),
        action=SqlAction(expression="SET b = @q", parameters=(("@q", UInt(3)), ("@r", "s"))),
    ),
    RuleDescription(
        name="correlation",
        filter=CorrelationFilter(label="x", properties=(("n", 1), ("t", True), ("z", b"raw"))),
    ),
]


def test_a_restart_brings_back_every_setting_and_rule(world: World) -> None:
    key = AuthorizationRule(key_name="k", primary_key="p", rights=frozenset({"Send", "Listen"}))
    queue = replace(
        QUEUE, max_delivery_count=7, default_ttl_ms=5, authorization_rules=(key,), forward_to="x",
        user_metadata="née",
    )  # fmt: skip
    topic = replace(TOPIC, requires_duplicate_detection=True, auto_delete_on_idle_ms=IDLE_MS)
    subscription = replace(SUBSCRIPTION, requires_session=True, dead_letter_on_expiration=True)
    namespace = world.namespace
    namespace.create_queue("q", queue, 10)
    namespace.create_topic("t", topic, 11)
    namespace.create_subscription("t", "s", subscription, 12)
    for rule in EVERY_FILTER:
        namespace.create_rule("t", "s", rule, 13)
    namespace.update("q", replace(queue, max_delivery_count=8), 20)
    again = world.restarted().namespace
    kept = again.get_queue("q")
    assert kept.description == replace(queue, max_delivery_count=8)
    assert (kept.created_at_ms, kept.updated_at_ms) == (10, 20)
    assert again.get_topic("t").description == topic
    found = again.get_subscription("t", "s")
    assert (found.description, found.max_message_bytes) == (subscription, 256 * 1024)
    assert list(found.rules.values())[1:] == EVERY_FILTER
    action = found.rules["sql"].action
    assert action is not None
    assert type(action.parameters[0][1]) is UInt


def test_unknown_and_missing_settings_of_another_version_do_no_harm(world: World) -> None:
    images = world.journal.images()
    for image in images:
        image.description["colour"] = "blue"
        image.description.pop("max_delivery_count", None)
    again = World()
    again.namespace.restore(images)
    assert again.namespace.get_queue("orders/open").description == QUEUE


def test_rules_can_be_replaced_and_removed(world: World) -> None:
    namespace = world.namespace
    namespace.update_rule("news", "all", RuleDescription(name="$Default", filter=FalseFilter()), 1)
    namespace.get_topic("news").enqueue(incoming(), 1)
    subscription = namespace.get_subscription("news", "all")
    assert subscription.peek(0, 1, 1) == []
    namespace.delete_rule("news", "all", "$default", 2)
    for change in (
        lambda: namespace.delete_rule("news", "all", "$Default", 2),
        lambda: namespace.update_rule("news", "all", RuleDescription(name="$Default"), 2),
        lambda: namespace.get_rule("news", "all", "$Default"),
    ):
        with pytest.raises(EntityNotFound):
            change()
    broken = RuleDescription(name="r", filter=SqlFilter(expression="a ="))
    with pytest.raises(ArgumentInvalid):
        namespace.create_rule("news", "all", broken, 3)
    assert world.restarted().namespace.rules("news", "all") == []


def test_dead_letters_survive_a_restart_where_they_are(world: World) -> None:
    queue = world.namespace.get_queue("orders/open")
    queue.enqueue(incoming(message_id="1"), 5)
    [delivery] = queue.acquire(ME, 1, 5)
    queue.settle(delivery.lock_token, SettlementOutcome.DEAD_LETTER, 6, reason="bad")
    again = world.restarted().namespace.receive_source("orders/open/$DeadLetterQueue")
    [message] = again.peek(0, 10, 7)
    assert (message.message_id, message.state) == ("1", MessageState.ACTIVE)
    assert message.overrides == {"DeadLetterReason": "bad"}
