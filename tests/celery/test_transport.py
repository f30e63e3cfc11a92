"""The kombu transport without Celery: queues, settlements and an outage."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from kombu import Connection, Consumer, Producer, Queue
from kombu.exceptions import ChannelError, OperationalError

import twinbus.kombu  # noqa: F401  # makes twinbus:// known
from tests.ledger_reading import read
from tests.official_sdk import client
from tests.processes import until
from twinbus.kombu.process_pair import close_process_pairs
from twinbus.kombu.receiving import SETTLE_WAIT_S
from twinbus.namespace.namespace import Namespace
from twinbus.servicebus.twins import twin_mark
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


@pytest.fixture
def twinned(pair: LocalPair) -> Iterator[Connection]:
    """A connection to `orders`, which has a twin; no syphon empties it."""
    label = Namespace.from_connection_string(pair.primary.connection_string).label
    for side, mark in ((pair.primary, None), (pair.secondary, twin_mark(label))):
        with administration(side.connection_string) as admin:
            admin.create_queue("orders", user_metadata=mark, lock_duration="PT5M")
    with connected(pair, twins=["orders"], enable_syphon=False) as opened:
        yield opened


def taken(simple: Any) -> Any:
    """The next message, acknowledged."""
    message = simple.get(timeout=PATIENCE_S)
    message.ack()
    return message.payload["order"]


@pytest.mark.parametrize("kind", ["kill", "hang"])
def test_a_queue_with_a_twin_is_received_from_in_an_outage_and_after_it(
    pair: LocalPair, twinned: Connection, kind: Any
) -> None:
    with twinned.SimpleQueue("orders") as simple:
        publish(twinned, "before")
        assert taken(simple) == "before"
        with pair.primary.outage(kind):
            for number in range(3):
                publish(twinned, f"meanwhile {number}")
            assert [taken(simple) for _ in range(3)] == [f"meanwhile {n}" for n in range(3)]
            # The acknowledgements went to the side that delivered.
            assert counts(pair.secondary) == (0, 0)
        publish(twinned, "after")
        # A send that the primary never answered may be there too: it is not handed out again.
        assert taken(simple) == "after"
    assert counts(pair.primary) == counts(pair.secondary) == (0, 0)


def test_messages_of_a_twin_are_requeued_rejected_and_given_back_there(
    pair: LocalPair, twinned: Connection
) -> None:
    with pair.primary.outage("kill"):
        for text in ("1", "2"):
            publish(twinned, text)
        with twinned.SimpleQueue("orders") as simple:
            simple.get(timeout=PATIENCE_S).requeue()
            again = simple.get(timeout=PATIENCE_S)
            assert again.payload == {"order": "1"}
            again.reject()
            until(lambda: counts(pair.secondary) == (1, 1))
            assert simple.get(timeout=PATIENCE_S).payload == {"order": "2"}
        twinned.release()
        # Not settled, so a closed connection gives it back, long before its lock ends.
        with connected(pair, twins=["orders"]) as other, other.SimpleQueue("orders") as simple:
            assert taken(simple) == "2"
    assert counts(pair.secondary) == (0, 1)


def test_acknowledgements_at_a_primary_that_hangs_do_not_stop_the_twin(
    pair: LocalPair, twinned: Connection
) -> None:
    held = 5
    with twinned.SimpleQueue("orders") as simple:
        for number in range(held):
            publish(twinned, str(number))
        messages = [simple.get(timeout=PATIENCE_S) for _ in range(held)]
        with pair.primary.outage("hang"):
            began = time.monotonic()
            for message in messages:
                message.ack()
            # One waits for an answer, the others go on in the background.
            assert time.monotonic() - began < 2 * SETTLE_WAIT_S
            publish(twinned, "meanwhile")
            assert taken(simple) == "meanwhile"


def test_what_is_received_and_settled_is_in_the_ledger(pair: LocalPair, tmp_path: Path) -> None:
    with connected(pair, ledger=str(tmp_path)) as connection:
        publish(connection, "1")
        with connection.SimpleQueue("orders") as simple:
            assert taken(simple) == "1"
    mine = [one for one in read(tmp_path) if one.get("cause") == "consumer"]
    done = [one for one in mine if one["operation"] in ("receive", "complete")]
    assert [one["operation"] for one in done] == ["receive", "complete"]
    assert {(one["entity"], one["side"], one["outcome"]) for one in done} == {
        ("orders", "primary", "ok")
    }


def test_a_restart_of_the_primary_raises_nothing_and_receiving_goes_on(
    pair: LocalPair, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    publish(connection, "1")
    with connection.SimpleQueue("orders") as simple:
        assert taken(simple) == "1"
        with pair.primary.outage("kill"), pytest.raises(Empty):
            simple.get(timeout=3)
        publish(connection, "2")
        assert taken(simple) == "2"
    assert "tasks cannot be received" not in caplog.text


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
