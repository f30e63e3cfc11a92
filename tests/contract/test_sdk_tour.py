"""What the plain SDK, synchronous and asyncio, does with messages of a queue on `twinbus serve`."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
)
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
)

from tests.contract.conftest import Tour, receive, receive_one, stays_empty, with_both_clients
from tests.official_sdk import ping

pytestmark = [pytest.mark.contract, with_both_clients]

SHORT_LOCK = timedelta(seconds=5)
"""The shortest lock that Service Bus grants."""


def texts(messages: list[ServiceBusReceivedMessage]) -> list[str]:
    return [str(message) for message in messages]


def test_single_list_and_batch_sends_arrive_in_order(tour: Tour) -> None:
    sender, receiver = tour.pair()
    sender.send_messages(ServiceBusMessage("single"))
    sender.send_messages([ServiceBusMessage("list 1"), ServiceBusMessage("list 2")])
    batch = sender.create_message_batch()
    for number in range(50):
        batch.add_message(ServiceBusMessage(f"batch {number}"))
    sender.send_messages(batch)
    received = receive(receiver, 53)
    expected = ["single", "list 1", "list 2", *(f"batch {number}" for number in range(50))]
    assert texts(received) == expected
    numbers = [message.sequence_number or 0 for message in received]
    assert numbers == sorted(set(numbers))
    for message in received:
        receiver.complete_message(message)
    assert stays_empty(receiver)


def test_every_property_of_a_message_comes_back_as_it_was_sent(tour: Tour) -> None:
    sender, receiver = tour.pair()
    properties: dict[str | bytes, int | float | bytes | bool | str | uuid.UUID] = {
        "text": "ü", "number": 42, "real": 1.5, "yes": True, "id": uuid.uuid4(),
    }  # fmt: skip
    sent = ServiceBusMessage(
        b"\0body\xff",
        application_properties=properties,
        message_id="id-1",
        correlation_id="correlation-1",
        subject="subject-1",
        content_type="text/plain",
        to="to-1",
        reply_to="reply-1",
        reply_to_session_id="reply-session-1",
        session_id="session-1",
        partition_key="session-1",
        time_to_live=timedelta(hours=1),
    )
    before = datetime.now(UTC) - timedelta(seconds=5)
    sender.send_messages(sent)
    got = receive_one(receiver)
    assert b"".join(got.body) == b"\0body\xff"
    wanted = {key.encode() if isinstance(key, str) else key: _wire(value)
              for key, value in properties.items()}  # fmt: skip
    assert got.application_properties == wanted
    for name in (
        "message_id correlation_id subject content_type to reply_to reply_to_session_id "
        "session_id partition_key time_to_live"
    ).split():
        assert getattr(got, name) == getattr(sent, name), name
    assert got.delivery_count == 0
    assert got.enqueued_time_utc is not None
    assert before < got.enqueued_time_utc < datetime.now(UTC) + timedelta(seconds=5)
    assert got.locked_until_utc is not None
    assert got.locked_until_utc > datetime.now(UTC)
    assert got.lock_token is not None
    receiver.complete_message(got)


def _wire(value: object) -> object:
    # The SDK gives strings back as it read them: bytes.
    return value.encode() if isinstance(value, str) else value


def test_an_abandoned_message_comes_again_until_its_deliveries_are_used_up(tour: Tour) -> None:
    queue = tour.queue(max_delivery_count=3)
    sender, receiver, dead = tour.sender(queue), tour.receiver(queue), tour.dead_letters(queue)
    sender.send_messages(ServiceBusMessage("unwanted"))
    counts = []
    for _ in range(3):
        message = receive_one(receiver)
        counts.append(message.delivery_count)
        receiver.abandon_message(message)
    assert counts == [0, 1, 2]
    assert stays_empty(receiver)
    letter = receive_one(dead)
    assert str(letter) == "unwanted"
    assert letter.dead_letter_reason == "MaxDeliveryCountExceeded"
    dead.complete_message(letter)


def test_a_dead_lettered_message_tells_why_and_can_be_received_there(tour: Tour) -> None:
    queue = tour.queue()
    sender, receiver, dead = tour.sender(queue), tour.receiver(queue), tour.dead_letters(queue)
    sender.send_messages(ServiceBusMessage("bad", application_properties={"kept": 1}))
    receiver.dead_letter_message(
        receive_one(receiver), reason="Malformed", error_description="no amount"
    )
    assert stays_empty(receiver)
    letter = receive_one(dead)
    assert (str(letter), letter.dead_letter_reason) == ("bad", "Malformed")
    assert letter.dead_letter_error_description == "no amount"
    assert letter.dead_letter_source == queue
    assert (letter.application_properties or {}).get(b"kept") == 1
    dead.complete_message(letter)
    assert tour.admin.get_queue_runtime_properties(queue).dead_letter_message_count == 0


def test_a_deferred_message_is_had_by_its_number_only(tour: Tour) -> None:
    sender, receiver = tour.pair()
    sender.send_messages([ServiceBusMessage("later"), ServiceBusMessage("now")])
    first = receive_one(receiver)
    assert first.sequence_number is not None
    receiver.defer_message(first)
    second = receive_one(receiver)
    assert str(second) == "now"
    receiver.complete_message(second)
    (deferred,) = receiver.receive_deferred_messages(first.sequence_number)
    assert str(deferred) == "later"
    assert deferred.state == ServiceBusMessageState.DEFERRED
    receiver.complete_message(deferred)
    with pytest.raises(MessageNotFoundError):
        receiver.receive_deferred_messages(first.sequence_number)


def test_peeking_shows_every_waiting_message_and_takes_none(tour: Tour) -> None:
    sender, receiver = tour.pair()
    sender.send_messages([ServiceBusMessage("deferred"), ServiceBusMessage("active")])
    receiver.defer_message(receive_one(receiver))
    due = datetime.now(UTC) + timedelta(hours=1)
    sender.schedule_messages(ServiceBusMessage("scheduled"), due)
    peeked = receiver.peek_messages(10, sequence_number=1)
    assert [(str(message), message.state) for message in peeked] == [
        ("deferred", ServiceBusMessageState.DEFERRED),
        ("active", ServiceBusMessageState.ACTIVE),
        ("scheduled", ServiceBusMessageState.SCHEDULED),
    ]
    number = peeked[1].sequence_number
    assert number is not None
    (from_number,) = receiver.peek_messages(1, sequence_number=number)
    assert str(from_number) == "active"
    assert str(receive_one(receiver)) == "active"


def test_a_renewed_lock_lasts_and_a_lost_one_gives_the_message_to_the_next(tour: Tour) -> None:
    sender, receiver = tour.pair(lock_duration=SHORT_LOCK)
    sender.send_messages([ServiceBusMessage("renewed"), ServiceBusMessage("lost")])
    renewed, lost = receive(receiver, 2)
    assert receiver.receive_messages(1, max_wait_time=1) == []
    before = renewed.locked_until_utc
    until = receiver.renew_message_lock(renewed)
    assert before is not None
    assert until >= before + timedelta(milliseconds=500)
    again = receive_one(receiver)
    assert (str(again), again.delivery_count) == ("lost", 1)
    assert datetime.now(UTC) >= before
    receiver.complete_message(renewed)
    with pytest.raises(MessageLockLostError):
        receiver.complete_message(lost)
    receiver.complete_message(again)


def test_a_scheduled_message_comes_when_due_and_a_cancelled_one_never(tour: Tour) -> None:
    sender, receiver = tour.pair()
    due = datetime.now(UTC) + timedelta(seconds=2)
    messages = [ServiceBusMessage("kept"), ServiceBusMessage("cancelled")]
    numbers = sender.schedule_messages(messages, due)
    assert len(set(numbers)) == 2
    by_property = ServiceBusMessage("by property", scheduled_enqueue_time_utc=due)
    sender.send_messages(by_property)
    sender.cancel_scheduled_messages(numbers[1])
    much_later = datetime.now(UTC) + timedelta(hours=1)
    (waiting,) = sender.schedule_messages(ServiceBusMessage("in an hour"), much_later)
    received = receive(receiver, 2)
    assert sorted(texts(received)) == ["by property", "kept"]
    assert datetime.now(UTC) >= due
    for message in received:
        receiver.complete_message(message)
    assert stays_empty(receiver)
    sender.cancel_scheduled_messages(waiting)
    with pytest.raises(MessageNotFoundError):
        sender.cancel_scheduled_messages(numbers[1])


def test_an_expired_message_is_gone_or_dead_lettered_as_the_queue_says(tour: Tour) -> None:
    one_second = timedelta(seconds=1)
    dropping, keeping = tour.queue(), tour.queue(dead_lettering_on_message_expiration=True)
    for queue in (dropping, keeping):
        tour.sender(queue).send_messages(ServiceBusMessage("brief", time_to_live=one_second))
    letter = receive_one(tour.dead_letters(keeping))
    assert (str(letter), letter.dead_letter_reason) == ("brief", "TTLExpiredException")
    assert stays_empty(tour.receiver(dropping))
    counts = tour.admin.get_queue_runtime_properties(dropping)
    assert (counts.total_message_count, counts.dead_letter_message_count) == (0, 0)
    by_default = tour.queue(default_message_time_to_live=one_second)
    tour.sender(by_default).send_messages(ServiceBusMessage("brief"))
    receiver = tour.receiver(by_default)
    assert [str(message) for message in receiver.peek_messages(1)] == ["brief"]
    while receiver.peek_messages(1):  # pytest's time limit ends a message that never expires
        pass


def test_receive_and_delete_leaves_nothing_to_settle(tour: Tour) -> None:
    queue = tour.queue()
    sender = tour.sender(queue)
    receiver = tour.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    sender.send_messages([ServiceBusMessage(str(number)) for number in range(5)])
    assert texts(receive(receiver, 5)) == ["0", "1", "2", "3", "4"]
    assert tour.admin.get_queue_runtime_properties(queue).total_message_count == 0


def test_a_message_of_many_frames_arrives_whole_and_one_too_large_is_refused(tour: Tour) -> None:
    sender, receiver = tour.pair()
    large = bytes(number % 251 for number in range(200 * 1024))
    sender.send_messages(ServiceBusMessage(large))
    got = receive_one(receiver)
    assert b"".join(got.body) == large
    receiver.complete_message(got)
    with pytest.raises(MessageSizeExceededError):
        sender.send_messages(ServiceBusMessage(b"x" * (300 * 1024)))
    sender.send_messages(ServiceBusMessage("after"))
    assert str(receive_one(receiver)) == "after"


def test_pings_are_answered_and_never_seen(tour: Tour) -> None:
    topic = tour.topic("all")
    for settings in ({}, {"requires_session": True}):
        queue = tour.queue(dead_lettering_on_message_expiration=True, **settings)
        sender = tour.sender(queue)
        sender.send_messages(ping())
        sender.send_messages([ping(), ping()])
        counts = tour.admin.get_queue_runtime_properties(queue)
        assert counts.total_message_count == 0
        assert counts.dead_letter_message_count == 0
        receiver = tour.dead_letters(queue)
        assert receiver.peek_messages(10) == []
        if not settings:
            receiver = tour.receiver(queue)
            assert receiver.peek_messages(10) == []
            assert stays_empty(receiver)
    tour.opened.add(tour.client.get_topic_sender(topic)).send_messages(ping())
    assert tour.admin.get_subscription_runtime_properties(topic, "all").total_message_count == 0
