"""Queues as a DataFrame: a read-only data source that peeks, and settles nothing.

    from twinbus.pipeline.drain.queue_source import register
    register(spark)
    text = "sb://contoso.servicebus.windows.net?credential=managed-identity"
    messages = spark.read.format("servicebus").options(namespace=text, queue="orders").load()

`connection_string` in place of `namespace` takes a connection string. Spark may show options in
plans and logs, so prefer a text that names a credential source.

One of these options says what is read:

    queue        a queue, or topic/Subscriptions/name
    dead_letter  the dead letters of such a one
    backlog      all backlog queues of a primary's label; "*" for those of every label.
                 With dead_letters=true, their dead letters

Each queue is one partition, read by one task, message by message: memory stays small. What is read
is what lies there while the task passes by; other receivers may take messages meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from twinbus.client.administration import list_backlog_queues
from twinbus.client.peeked_message import PeekedMessage, as_json, as_time
from twinbus.client.peeking import open_connection, peek
from twinbus.errors import SyphonError
from twinbus.pipeline.drain.task import open_side, shipped_side
from twinbus.pipeline.spark.classic import ship_package
from twinbus.pipeline.tables.schemas import schema
from twinbus.servicebus import names
from twinbus.servicebus.names import BACKLOG_MARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

EVERY_LABEL: Final = "*"

MESSAGES: Final = schema(
    "string: queue",
    "long: sequence_number",
    "long?: enqueued_sequence_number",
    "timestamp?: enqueued_at",
    "string: state",
    "integer: delivery_count",
    "timestamp?: locked_until",
    "string?: message_id session_id subject content_type content_encoding correlation_id to",
    "string?: reply_to reply_to_session_id partition_key",
    "binary?: user_id",
    "long?: group_sequence",
    "timestamp?: created_at absolute_expiry",
    "long?: time_to_live_ms",
    "timestamp?: scheduled_at",
    "boolean?: durable",
    "integer?: priority",
    # Text, ids and times as they are, other values as JSON; all of it is in the next column.
    "strings?: application_properties",
    "string?: application_properties_json annotations_json",
    "string: body_kind",
    "binary?: body",
    "string?: body_json",
    "long: size_bytes",
    "string?: dead_letter_source dead_letter_reason dead_letter_description",
    # Of a backlog message: what it was before it was diverted (docs/from-sdk.md).
    "string?: destination original_session_id",
    "long?: original_time_to_live_ms",
    "timestamp?: original_scheduled_at",
    "integer: replays",
    "string?: problem",
)

_PROPERTIES: Final = tuple(
    "subject content_type content_encoding to reply_to user_id group_sequence".split()
)
"""Columns that are properties of the same name."""


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("servicebus")` known to a session, and to its executors."""
    ship_package(spark)
    spark.dataSource.register(ServiceBusSource)


@dataclass
class QueuePartition(InputPartition):
    queue: str
    dead_letters: bool


class ServiceBusSource(DataSource):
    """`servicebus`: messages of queues, peeked."""

    @classmethod
    def name(cls) -> str:
        return "servicebus"

    def schema(self) -> StructType:
        return MESSAGES

    def reader(self, schema: StructType) -> DataSourceReader:
        if schema != MESSAGES:
            raise SyphonError("servicebus has a schema of its own: leave out .schema(), and select")
        return PeekReader(self.options)


class PeekReader(DataSourceReader):
    """Reads the queues that the options name; it travels to the tasks."""

    def __init__(self, options: Mapping[str, str]) -> None:
        name = "namespace" if options.get("namespace") else "connection_string"
        text = options.get(name)
        if not text:
            raise SyphonError("servicebus needs the option connection_string or namespace")
        self._side = shipped_side(f"option {name}", text)
        given = {name: options.get(name) for name in ("queue", "dead_letter", "backlog")}
        said = {name: value for name, value in given.items() if value}
        if len(said) != 1:
            raise SyphonError(
                "servicebus needs one of the options queue, dead_letter and backlog; "
                f"got {', '.join(said) or 'none of them'}"
            )
        ((self._kind, self._what),) = said.items()
        self._dead_letters = self._kind == "dead_letter" or (
            str(options.get("dead_letters", "false")).lower() == "true"
        )

    def partitions(self) -> list[QueuePartition]:
        """One for each queue; a backlog's are listed here, on the driver."""
        queues = [self._what]
        if self._kind == "backlog":
            label = None if self._what == EVERY_LABEL else self._what
            queues = asyncio.run(list_backlog_queues(open_side(self._side), label))
        return [QueuePartition(queue, self._dead_letters) for queue in queues]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """The rows of one queue, as they are peeked."""
        assert isinstance(partition, QueuePartition)
        rows = self._rows(partition)
        # A loop that is turned by hand: rows leave while the peek goes on.
        with asyncio.Runner() as runner:
            try:
                while (row := runner.run(_next(rows))) is not None:
                    yield row
            finally:
                runner.run(rows.aclose())

    async def _rows(self, partition: QueuePartition) -> AsyncGenerator[tuple[Any, ...], None]:
        async with open_connection(open_side(self._side)) as line:
            found = peek(line, partition.queue, dead_letters=partition.dead_letters)
            async with aclosing(found) as messages:
                async for message in messages:
                    yield row_of(message)


async def _next(rows: AsyncGenerator[tuple[Any, ...], None]) -> tuple[Any, ...] | None:
    return await anext(rows, None)


def row_of(message: PeekedMessage) -> tuple[Any, ...]:
    properties, header = message.properties, message.header
    in_backlog = BACKLOG_MARK in message.queue.lower()
    aliases = message.aliases if in_backlog else None
    values = {
        "queue": message.queue,
        "sequence_number": message.sequence_number,
        "enqueued_sequence_number": message.number(names.ENQUEUED_SEQUENCE_NUMBER),
        "enqueued_at": as_time(message.enqueued_ms),
        "state": message.state,
        "delivery_count": header.delivery_count or 0,
        "locked_until": as_time(message.number(names.LOCKED_UNTIL)),
        "message_id": message.message_id,
        "session_id": properties.group_id,
        "correlation_id": _text(properties.correlation_id),
        "reply_to_session_id": properties.reply_to_group_id,
        "partition_key": _text(message.annotations.get(names.PARTITION_KEY)),
        "created_at": as_time(properties.creation_time),
        "absolute_expiry": as_time(properties.absolute_expiry_time),
        "time_to_live_ms": header.ttl,
        "scheduled_at": as_time(message.number(names.SCHEDULED_TIME)),
        **{name: getattr(properties, name) for name in _PROPERTIES},
        "durable": header.durable,
        "priority": header.priority,
        "application_properties": {
            str(name): _as_text(value) for name, value in message.application_properties.items()
        },
        "application_properties_json": json.dumps(as_json(message.application_properties)),
        "annotations_json": json.dumps(as_json(message.annotations)),
        "body_kind": message.body_kind,
        "body": message.body,
        "body_json": message.body_json,
        "size_bytes": len(message.wire),
        "dead_letter_source": _text(message.annotations.get(names.DEAD_LETTER_SOURCE)),
        "dead_letter_reason": message.reason,
        "dead_letter_description": message.description,
        "destination": message.path if in_backlog else None,
        "original_session_id": aliases.session_id if aliases else None,
        "original_time_to_live_ms": aliases.time_to_live_ms if aliases else None,
        "original_scheduled_at": as_time(aliases.scheduled_ms) if aliases else None,
        "replays": message.replays,
        # Only a backlog message must say where it belongs.
        "problem": (message.problem or None) if in_backlog or not message.is_readable else None,
    }
    return tuple(_plain(values[name]) for name in MESSAGES.names)


def _plain(value: object) -> object:
    """Without our AMQP types, which are subclasses that Spark would have to pickle."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    return str(value) if isinstance(value, str) else value


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _as_text(value: object) -> str | None:
    shown = as_json(value)
    return shown if shown is None or isinstance(shown, str) else json.dumps(shown)
