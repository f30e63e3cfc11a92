"""The kombu transport without Celery: queues, settlements and an outage."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from kombu import Connection, Consumer, Producer, Queue
from kombu.exceptions import ChannelError, OperationalError

import twinbus.kombu  # noqa: F401  # makes twinbus:// known
from tests.official_sdk import client
from twinbus.kombu.process_pair import close_process_pairs
from twinbus.testing import LocalNamespace, LocalPair, administration

pytestmark = pytest.mark.end_to_end

PATIENCE_S = 60.0
QUICK: dict[str, Any] = {
    "backlog_queue_count": 1,
    "failover_interval": 0.5,
    "ping_primary_interval": 1,
    "attempt_timeout": 2,
    "enable_syphon": True,
    "send_timeout": 60,
}


@pytest.fixture
def pair() -> Iterator[LocalPair]:
    with LocalNamespace("contoso") as primary, LocalNamespace("contoso-dr") as secondary:
        try:
            yield LocalPair(primary, secondary)
        finally:
            close_process_pairs()


@pytest.fixture
def connection(pair: LocalPair) -> Iterator[Connection]:
    with connected(pair) as opened:
        yield opened


def connected(pair: LocalPair, **options: Any) -> Connection:
    sides = {
        "primary": pair.primary.connection_string,
        "secondary": pair.secondary.connection_string,
    }
    return Connection("twinbus://", transport_options={**QUICK, **sides, **options})


def publish(connection: Connection, text: str, name: str = "orders", **options: Any) -> None:
    Producer(connection.channel()).publish(
        {"order": text}, routing_key=name, declare=[Queue(name)], exchange="", **options
    )


def counts(namespace: LocalNamespace, name: str = "orders") -> tuple[int, int]:
    """Messages that wait, and dead letters."""
    with administration(namespace.connection_string) as admin:
        found = admin.get_queue_runtime_properties(name)
    return int(found.active_message_count or 0), int(found.dead_letter_message_count or 0)


def test_a_message_is_sent_received_and_settled(pair: LocalPair, connection: Connection) -> None:
    publish(connection, "1")
    [sent] = pair.primary.sent("orders")
    # The form of kombu's own transport: its workers can read it.
    assert {"body", "headers", "properties", "content-type"} <= json.loads(str(sent)).keys()
    with connection.SimpleQueue("orders") as simple:
        first = simple.get(timeout=PATIENCE_S)
        assert first.payload == {"order": "1"}
        first.requeue()
        again = simple.get(timeout=PATIENCE_S)
        assert again.payload == {"order": "1"}
        again.ack()
        assert counts(pair.primary) == (0, 0)
        publish(connection, "2")
        simple.get(timeout=PATIENCE_S).reject()
    assert counts(pair.primary) == (0, 1)


def test_a_closed_connection_gives_back_what_is_not_settled(
    pair: LocalPair, connection: Connection
) -> None:
    publish(connection, "1")
    with connected(pair) as other:
        message = other.SimpleQueue("orders").get(timeout=PATIENCE_S)
        assert message.payload == {"order": "1"}
    with connection.SimpleQueue("orders") as simple:
        # Long before its lock ends.
        simple.get(timeout=PATIENCE_S).ack()


def test_a_consumer_without_acknowledgements_settles_at_once(
    pair: LocalPair, connection: Connection
) -> None:
    publish(connection, "1")
    publish(connection, "2")
    with connection.SimpleQueue("orders", no_ack=True) as simple:
        assert simple.get(timeout=PATIENCE_S).payload == {"order": "1"}
        channel = connection.channel()
        assert channel.basic_get("orders", no_ack=True).payload == {"order": "2"}
    assert counts(pair.primary) == (0, 0)


def test_queues_are_counted_purged_and_deleted(pair: LocalPair, connection: Connection) -> None:
    channel = connection.channel()
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        channel.queue_declare("orders", passive=True)
    for number in range(3):
        publish(connection, str(number))
    assert channel.queue_declare("orders", passive=True).message_count == 3
    assert channel.queue_purge("orders") == 3
    assert channel.queue_declare("orders", passive=True).message_count == 0
    Queue("orders", channel=channel, exchange="orders", routing_key="orders")(channel).declare()
    channel.queue_delete("orders")
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        channel.queue_declare("orders", passive=True)


def test_what_is_no_task_is_dead_lettered_and_does_not_stop_the_others(
    pair: LocalPair, connection: Connection
) -> None:
    pair.primary.create_queue("orders")
    with client(pair.primary.connection_string) as sdk, sdk.get_queue_sender("orders") as sender:
        for text in ("not JSON", "[]", "{}"):
            sender.send_messages(ServiceBusMessage(text))
    publish(connection, "good")
    with connection.SimpleQueue("orders") as simple:
        message = simple.get(timeout=PATIENCE_S)
        assert message.payload == {"order": "good"}
        message.ack()
    assert counts(pair.primary) == (0, 3)


@pytest.mark.parametrize("kind", ["kill", "hang"])
def test_a_new_queue_takes_messages_in_an_outage_and_they_arrive_after_it(
    pair: LocalPair, connection: Connection, kind: Any
) -> None:
    received: list[Any] = []
    with pair.primary.outage(kind):
        # The administration does not answer, and the queue has never been seen.
        publish(connection, "1", "new/queue")
        assert len(pair.diverted()) == 1
        consumer = Consumer(
            connection.channel(), [Queue("new/queue")], callbacks=[lambda _, m: received.append(m)]
        )
        consumer.consume()
        with pytest.raises(TimeoutError):
            # Bounded, although nothing answers.
            connection.drain_events(timeout=1)
    while not received:
        connection.drain_events(timeout=PATIENCE_S)
    [message] = received
    assert message.payload == {"order": "1"}
    message.ack()
    assert counts(pair.primary, "new_queue") == (0, 0)


@pytest.mark.parametrize("options", [{"send_timeout": 0.5}, {}], ids=["option", "argument"])
def test_a_send_that_fails_in_its_time_is_the_error_that_celery_users_catch(
    pair: LocalPair, options: dict[str, Any]
) -> None:
    given: dict[str, Any] = {} if options else {"timeout": 0.5}
    with connected(pair, failover_interval=60, **options) as connection:
        publish(connection, "1")
        began = time.monotonic()
        with pair.primary.outage("kill"), pytest.raises(OperationalError, match="orders"):
            publish(connection, "2", **given)
        # QUICK has 60 s.
        assert time.monotonic() - began < QUICK["send_timeout"] / 2
