"""Queues read as a DataFrame: everything that is known of each message, and nothing settled."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from tests.processes import ServedBroker
from twinbus.errors import SyphonError
from twinbus.pipeline.drain.queue_source import MESSAGES, PeekReader, register

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

BACKLOG = [f"contoso/x-servicebus-transfer/{index}" for index in range(3)]
MANY = 350
"""More than one peek brings."""
LATER = datetime(2090, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A namespace with a rich queue, dead letters and backlog queues."""
    directory = tmp_path_factory.mktemp("inspection")
    with ServedBroker(directory, "contoso-dr", ephemeral=True) as broker:
        fill(broker.connection_string())
        yield broker.connection_string()


def fill(text: str) -> None:
    from azure.servicebus import ServiceBusMessage
    from azure.servicebus.amqp import AmqpAnnotatedMessage

    from tests.official_sdk import administration, client, receive_count
    from twinbus.transfer.sdk import to_backlog_message

    rich = ServiceBusMessage(
        b"\x00body",
        message_id="rich",
        session_id="s",
        subject="subject",
        content_type="text/plain",
        correlation_id="c",
        to="to",
        reply_to="reply",
        reply_to_session_id="r",
        partition_key="s",
        time_to_live=timedelta(hours=1),
        application_properties={"text": "t", "n": 5, "id": UUID(int=1), "yes": True},
    )
    with administration(text) as admin, client(text) as sdk:
        admin.create_queue("orders")
        for queue in ("other/x-servicebus-transfer/0", *BACKLOG):
            admin.create_queue(queue)
        with sdk.get_queue_sender("orders") as sender:
            sender.send_messages(rich)
            value: Any = {"k": [1, None]}
            sender.send_messages(
                AmqpAnnotatedMessage(value_body=value, properties={"message_id": "value"})
            )
            for name in ("deferred", "dead"):
                sender.send_messages(ServiceBusMessage(name, message_id=name))
        with sdk.get_queue_receiver("orders") as receiver:
            for message in receive_count(receiver, 4):
                if message.message_id == "deferred":
                    receiver.defer_message(message)
                elif message.message_id == "dead":
                    receiver.dead_letter_message(message, "Why", "because")
                else:
                    receiver.abandon_message(message)
        with sdk.get_queue_sender("orders") as sender:
            sender.send_messages(
                ServiceBusMessage("later", message_id="later", scheduled_enqueue_time_utc=LATER)
            )
        with sdk.get_queue_sender(BACKLOG[0]) as sender:
            diverted = [ServiceBusMessage(f"{n}", message_id=f"m-{n}") for n in range(MANY)]
            sender.send_messages([to_backlog_message(one, "orders", now_ms=0) for one in diverted])
        with sdk.get_queue_sender(BACKLOG[1]) as sender:
            sender.send_messages(to_backlog_message(rich, "sessions", now_ms=0))
            sender.send_messages(ServiceBusMessage("stray", message_id="stray"))


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def read(session: SparkSession, text: str, **options: str) -> DataFrame:
    source = session.read.format("servicebus").options(connection_string=text, **options)
    return source.load()


def by_id(frame: DataFrame) -> dict[str, dict[str, Any]]:
    return {row["message_id"]: row.asDict() for row in frame.collect()}


def test_a_queue_is_read_with_all_that_is_known_of_its_messages(
    session: SparkSession, text: str
) -> None:
    frame = read(session, text, queue="orders")
    assert frame.schema == MESSAGES
    found = by_id(frame)
    assert set(found) == {"rich", "value", "deferred", "later"}
    rich = found["rich"]
    assert {name: rich[name] for name in ("session_id", "subject", "content_type", "to")} == {
        "session_id": "s",
        "subject": "subject",
        "content_type": "text/plain",
        "to": "to",
    }
    assert (rich["correlation_id"], rich["reply_to"], rich["reply_to_session_id"]) == (
        *("c", "reply", "r"),
    )
    assert (rich["partition_key"], rich["time_to_live_ms"]) == ("s", 3_600_000)
    assert (rich["body_kind"], bytes(rich["body"]), rich["body_json"]) == (
        "data",
        b"\x00body",
        None,
    )
    assert rich["application_properties"] == {
        "text": "t",
        "n": "5",
        "id": str(UUID(int=1)),
        "yes": "true",
    }
    assert json.loads(rich["application_properties_json"])["n"] == 5
    assert (rich["delivery_count"], rich["state"], rich["problem"]) == (1, "active", None)
    assert rich["enqueued_at"] is not None
    assert json.loads(found["value"]["body_json"]) == {"k": [1, None]}
    assert found["deferred"]["state"] == "deferred"
    assert found["later"]["state"] == "scheduled"
    # Spark gives times without a zone, in that of this machine.
    assert found["later"]["scheduled_at"].astimezone(UTC) == LATER


def test_dead_letters_are_read_with_their_reason(session: SparkSession, text: str) -> None:
    found = by_id(read(session, text, dead_letter="orders"))
    assert set(found) == {"dead"}
    dead = found["dead"]
    assert (dead["dead_letter_reason"], dead["dead_letter_description"]) == ("Why", "because")
    assert read(session, text, backlog="contoso", dead_letters="true").count() == 0


def test_a_backlog_is_read_queue_by_queue_with_what_its_messages_were(
    session: SparkSession, text: str
) -> None:
    frame = read(session, text, backlog="CONTOSO")
    assert frame.rdd.getNumPartitions() == len(BACKLOG)
    found = by_id(frame)
    assert len(found) == MANY + 2
    counts = {row["queue"]: row["count"] for row in frame.groupBy("queue").count().collect()}
    assert counts == {BACKLOG[0]: MANY, BACKLOG[1]: 2}
    assert found["m-7"]["destination"] == "orders"
    rich = found["rich"]
    assert (rich["destination"], rich["session_id"]) == ("sessions", None)
    assert (rich["original_session_id"], rich["original_time_to_live_ms"]) == ("s", 3_600_000)
    assert "x-ms-path" in found["stray"]["problem"]
    assert read(session, text, backlog="*").rdd.getNumPartitions() == len(BACKLOG) + 1


def test_reading_settles_and_locks_nothing(session: SparkSession, text: str) -> None:
    from tests.official_sdk import administration, client, receive_count

    with administration(text) as admin:
        before = admin.get_queue_runtime_properties(BACKLOG[1])
        for _ in range(2):
            assert read(session, text, backlog="contoso").count() == MANY + 2
        after = admin.get_queue_runtime_properties(BACKLOG[1])
    assert after.total_message_count == before.total_message_count == 2
    with client(text) as sdk, sdk.get_queue_receiver(BACKLOG[1]) as receiver:
        got = receive_count(receiver, 2)
        assert [message.delivery_count for message in got] == [0, 0]
        for message in got:
            receiver.abandon_message(message)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "needs the option connection_string"),
        ({"connection_string": "nonsense", "queue": "q"}, "connection_string: this is no"),
        ({"connection_string": "GOOD"}, "got none of them"),
        ({"connection_string": "GOOD", "queue": "q", "backlog": "b"}, "got queue, backlog"),
    ],
)
def test_wrong_options_get_one_clear_line(options: dict[str, str], complaint: str) -> None:
    good = "Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=b"
    given = {name: good if value == "GOOD" else value for name, value in options.items()}
    with pytest.raises(SyphonError, match=complaint):
        PeekReader(given)


def test_the_key_is_in_no_plan(session: SparkSession, text: str) -> None:
    plans = read(session, text, queue="orders")._jdf.queryExecution().toString()
    assert "SAS_KEY_VALUE" in text
    assert "SAS_KEY_VALUE" not in plans


def test_a_queue_that_is_not_there_is_named(session: SparkSession, text: str) -> None:
    with pytest.raises(Exception, match="nowhere"):
        read(session, text, queue="nowhere").count()
