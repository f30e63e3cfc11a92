"""What the plain SDK does with sessions, topics and the administration of entities."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusReceiver
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from azure.servicebus.management import EntityStatus, TrueRuleFilter

from tests.contract.conftest import Tour, receive, receive_one, stays_empty, with_both_clients
from tests.end_to_end.raw_client import SESSION_FILTER, RawClient
from tests.official_sdk import is_missing
from twinbus import EmbeddedBroker
from twinbus.amqp.types import Described, Symbol, ULong
from twinbus.broker.descriptions import QueueDescription

pytestmark = pytest.mark.contract


def accept(tour: Tour, queue: str, session: Any, **settings: Any) -> ServiceBusReceiver:
    return tour.client.get_queue_receiver(queue, session_id=session, **settings)


@with_both_clients
def test_sessions_are_kept_apart_in_order_and_with_their_state(tour: Tour) -> None:
    queue = tour.queue(requires_session=True)
    sender = tour.sender(queue)
    for number in range(3):
        for session in ("red", "blue"):
            sender.send_messages(ServiceBusMessage(f"{session} {number}", session_id=session))
    with accept(tour, queue, "red") as red:
        received = receive(red, 3)
        assert [str(message) for message in received] == ["red 0", "red 1", "red 2"]
        assert {message.session_id for message in received} == {"red"}
        for message in received:
            red.complete_message(message)
        assert red.session.get_state() is None
        red.session.set_state(b"half way")
        before = red.session.locked_until_utc
        assert before is not None
        assert red.session.renew_lock() >= before > datetime.now(UTC)
        with pytest.raises(SessionCannotBeLockedError):
            accept(tour, queue, "red").__enter__()
        with accept(tour, queue, NEXT_AVAILABLE_SESSION) as following:
            assert following.session.session_id == "blue"
            assert str(receive_one(following)) == "blue 0"
    with accept(tour, queue, "red") as red:
        assert red.session.get_state() == b"half way"
        red.session.set_state(None)
        assert red.session.get_state() is None
    with accept(tour, queue, "blue") as blue:
        # The receiver that held "blue 0" closed without settling it: it comes again, first.
        assert [str(message) for message in receive(blue, 3)] == ["blue 0", "blue 1", "blue 2"]


@with_both_clients
def test_a_receiver_may_wait_for_a_session_and_gives_up_in_time(tour: Tour) -> None:
    queue = tour.queue(requires_session=True)
    with pytest.raises(OperationTimeoutError):
        accept(tour, queue, NEXT_AVAILABLE_SESSION, max_wait_time=1).__enter__()
    with pytest.raises(ServiceBusError, match="session"):
        tour.sender(queue).send_messages(ServiceBusMessage("no session id"))
    with pytest.raises(ServiceBusError, match="session"):
        tour.client.get_queue_receiver(queue).__enter__()


def test_a_session_lock_that_ran_out_is_lost(tour: Tour) -> None:
    queue = tour.queue(requires_session=True, lock_duration=timedelta(seconds=5))
    tour.sender(queue).send_messages(ServiceBusMessage("held", session_id="s"))
    with accept(tour, queue, "s") as first:
        message = receive_one(first)
        # Once the first holder's lock has run out, the session is free for the next.
        with accept(tour, queue, NEXT_AVAILABLE_SESSION, max_wait_time=60) as second:
            with pytest.raises(SessionLockLostError):
                first.complete_message(message)
            again = receive_one(second)
            assert (str(again), again.delivery_count) == ("held", 1)
            second.complete_message(again)


@with_both_clients
def test_every_subscription_of_a_topic_gets_its_own_copy(tour: Tour) -> None:
    topic = tour.topic("east", "west")
    sender = tour.opened.add(tour.client.get_topic_sender(topic))
    east = tour.opened.add(tour.client.get_subscription_receiver(topic, "east"))
    west = tour.opened.add(tour.client.get_subscription_receiver(topic, "west"))
    sender.send_messages([ServiceBusMessage("one"), ServiceBusMessage("two")])
    due = datetime.now(UTC) + timedelta(seconds=1)
    sender.schedule_messages(ServiceBusMessage("three"), due)
    for receiver in (east, west):
        assert [str(message) for message in receive(receiver, 3)] == ["one", "two", "three"]
    counts = tour.admin.get_subscription_runtime_properties(topic, "east")
    assert counts.active_message_count == 3
    assert [str(message) for message in east.peek_messages(1, sequence_number=1)] == ["one"]


def test_the_dead_letters_of_a_subscription_are_its_own(tour: Tour) -> None:
    topic = tour.topic("all")
    sender = tour.opened.add(tour.client.get_topic_sender(topic))
    receiver = tour.opened.add(tour.client.get_subscription_receiver(topic, "all"))
    dead = tour.opened.add(
        tour.client.get_subscription_receiver(topic, "all", sub_queue="deadletter")
    )
    sender.send_messages(ServiceBusMessage("bad"))
    receiver.dead_letter_message(receive_one(receiver), reason="Bad")
    letter = receive_one(dead)
    assert (str(letter), letter.dead_letter_reason) == ("bad", "Bad")


@with_both_clients
def test_queues_are_created_read_listed_changed_and_deleted(tour: Tour) -> None:
    admin = tour.admin
    created = admin.create_queue(
        "admin/orders",
        lock_duration=timedelta(seconds=30),
        max_delivery_count=7,
        default_message_time_to_live=timedelta(days=2),
        dead_lettering_on_message_expiration=True,
        user_metadata="a note",
    )
    assert created.name == "admin/orders"
    got = admin.get_queue("admin/orders")
    assert (got.lock_duration, got.max_delivery_count) == (timedelta(seconds=30), 7)
    assert got.default_message_time_to_live == timedelta(days=2)
    assert (got.dead_lettering_on_message_expiration, got.user_metadata) == (True, "a note")
    with pytest.raises(ResourceExistsError):
        admin.create_queue("admin/orders")
    assert "admin/orders" in [queue.name for queue in admin.list_queues()]
    got.max_delivery_count = 9
    admin.update_queue(got)
    assert admin.get_queue("admin/orders").max_delivery_count == 9
    admin.delete_queue("admin/orders")
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue("admin/orders")
    with pytest.raises(ResourceNotFoundError):
        admin.delete_queue("admin/orders")
    with pytest.raises(HttpResponseError) as refused:
        admin.create_queue("admin/bad", lock_duration=timedelta(hours=1))
    assert refused.value.status_code == 400


@with_both_clients
def test_topics_and_subscriptions_are_created_read_listed_changed_and_deleted(tour: Tour) -> None:
    admin = tour.admin
    admin.create_topic("admin-topic", max_size_in_megabytes=2048)
    admin.create_subscription("admin-topic", "first", max_delivery_count=4)
    topic = admin.get_topic("admin-topic")
    assert topic.max_size_in_megabytes == 2048
    assert "admin-topic" in [each.name for each in admin.list_topics()]
    assert [each.name for each in admin.list_subscriptions("admin-topic")] == ["first"]
    (rule,) = admin.list_rules("admin-topic", "first")
    assert rule.name == "$Default"
    assert isinstance(rule.filter, TrueRuleFilter)
    subscription = admin.get_subscription("admin-topic", "first")
    assert subscription.max_delivery_count == 4
    subscription.max_delivery_count = 5
    admin.update_subscription("admin-topic", subscription)
    assert admin.get_subscription("admin-topic", "first").max_delivery_count == 5
    topic.user_metadata = "changed"
    admin.update_topic(topic)
    assert admin.get_topic("admin-topic").user_metadata == "changed"
    assert admin.get_topic_runtime_properties("admin-topic").subscription_count == 1
    admin.delete_subscription("admin-topic", "first")
    assert list(admin.list_subscriptions("admin-topic")) == []
    admin.delete_topic("admin-topic")
    with pytest.raises(ResourceNotFoundError):
        admin.get_topic("admin-topic")


def test_runtime_counts_tell_what_waits_where(tour: Tour) -> None:
    queue = tour.queue()
    sender, receiver = tour.sender(queue), tour.receiver(queue)
    sender.send_messages([ServiceBusMessage(b"x" * 1000) for _ in range(4)])
    sender.schedule_messages(ServiceBusMessage("later"), datetime.now(UTC) + timedelta(hours=1))
    receiver.dead_letter_message(receive_one(receiver))
    receiver.complete_message(receive_one(receiver))
    counts = tour.admin.get_queue_runtime_properties(queue)
    assert counts.active_message_count == 2
    assert counts.scheduled_message_count == 1
    assert counts.dead_letter_message_count == 1
    assert counts.total_message_count == 4
    assert (counts.size_in_bytes or 0) >= 2000
    assert counts.created_at_utc is not None
    assert counts.accessed_at_utc is not None
    assert counts.created_at_utc <= counts.accessed_at_utc


@with_both_clients
def test_a_disabled_queue_and_a_deleted_one_refuse_sends(tour: Tour) -> None:
    queue = tour.queue()
    sender = tour.sender(queue)
    sender.send_messages(ServiceBusMessage("before"))
    properties = tour.admin.get_queue(queue)
    properties.status = EntityStatus.SEND_DISABLED
    tour.admin.update_queue(properties)
    with pytest.raises(MessagingEntityDisabledError):
        sender.send_messages(ServiceBusMessage("while disabled"))
    receiver = tour.receiver(queue)
    assert str(receive_one(receiver)) == "before"
    assert stays_empty(receiver)
    tour.admin.delete_queue(queue)
    with pytest.raises(ServiceBusAuthenticationError, check=is_missing):
        tour.sender(queue).send_messages(ServiceBusMessage("after deletion"))


@pytest.mark.parametrize(
    "asked",
    [
        "a",
        Described(Symbol("com.microsoft:session-filter"), "a"),
        # The Go SDK's form; it closes the connection if the answer is a bare string.
        Described(ULong(0x137000000C), "a"),
    ],
    ids=["bare", "symbol", "code"],
)
async def test_a_described_session_filter_is_answered_as_described(asked: object) -> None:
    with EmbeddedBroker("contoso") as broker:
        broker.create_queue("steps", QueueDescription(requires_session=True))
        client = await RawClient.open(broker.connection_string())
        receiver = await client.receiver("steps", credit=1, session=asked)
        source = receiver.link.source
        assert source is not None
        assert (source.filter or {})[SESSION_FILTER] == asked
        await client.close()
