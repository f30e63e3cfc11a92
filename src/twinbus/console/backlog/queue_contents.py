"""What is in the backlog queues of a secondary, looked at and never touched; and their upkeep."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusSubQueue
from azure.servicebus.amqp import AmqpMessageBodyType
from azure.servicebus.management import EntityStatus

from twinbus.console.namespaces import answers
from twinbus.errors import TransferError
from twinbus.pairing.core.backlog import Drift, drift_of, parse_backlog_path
from twinbus.pairing.lifecycle.administration import description_of
from twinbus.transfer import from_backlog_message

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusClient
    from azure.servicebus.aio.management import ServiceBusAdministrationClient
    from azure.servicebus.management import QueueProperties, QueueRuntimeProperties

    from twinbus.namespace.namespace import Namespace

__all__ = ["BacklogRow", "QueueContents", "peek", "remove_if_empty", "stock_of", "with_ages"]

PEEKED_AT_ONCE: Final = 100
"""Messages that one peek asks for; the service gives as many as fit its answer."""

QUEUES_AT_ONCE: Final = 8
"""Each is a connection, and a namespace has a limit of those."""

ATTEMPT_S: Final = 20.0
"""For one answer; a person waits longer than an application does."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class QueueContents:
    """One backlog queue: how much it holds, and how it differs from one of our making."""

    path: str
    label: str
    index: int
    active: int
    """Locked ones included."""
    scheduled: int
    deferred: int
    """What the total has beyond all that has a number of its own."""
    dead_lettered: int
    size_bytes: int
    max_size_mb: int
    drift: tuple[Drift, ...]
    oldest_age_s: float | None = None
    """None: it is empty, or was not asked."""

    def is_of(self, label: str | None) -> bool:
        """Whether it belongs to the label; None: any."""
        return label is None or self.label.lower() == label.lower()

    @property
    def waiting(self) -> int:
        return self.active + self.scheduled + self.deferred

    @property
    def is_empty(self) -> bool:
        return self.waiting + self.dead_lettered == 0


@dataclass(frozen=True, slots=True)
class BacklogRow:
    """A message in a backlog queue, as it lies there."""

    queue: str
    sequence_number: int
    state: str
    path: str | None
    """Where it belongs; None: it does not say, and `problem` says what is wrong."""
    message_id: str | None
    session_id: str | None
    time_to_live_s: float | None
    scheduled_at: str | None
    enqueued_at: str | None
    age_s: float | None
    body_bytes: int | None
    delivery_count: int
    problem: str = ""


async def stock_of(client: ServiceBusAdministrationClient) -> list[QueueContents]:
    """Every backlog queue in the namespace, by label and index."""
    numbers = {one.name: one async for one in client.list_queues_runtime_properties()}
    found = []
    async for properties in client.list_queues():
        place = parse_backlog_path(properties.name)
        counts = numbers.get(properties.name)
        if place is not None and counts is not None:
            drift = drift_of(description_of(properties))
            found.append(_stock(properties, place, counts, drift))
    return sorted(found, key=lambda stock: (stock.label.lower(), stock.index))


def _stock(
    properties: QueueProperties,
    place: tuple[str, int],
    counts: QueueRuntimeProperties,
    drift: tuple[Drift, ...],
) -> QueueContents:
    active, scheduled = counts.active_message_count or 0, counts.scheduled_message_count or 0
    dead = counts.dead_letter_message_count or 0
    moving = (counts.transfer_message_count or 0) + (counts.transfer_dead_letter_message_count or 0)
    deferred = (counts.total_message_count or 0) - active - scheduled - dead - moving
    return QueueContents(
        path=properties.name,
        label=place[0],
        index=place[1],
        active=active,
        scheduled=scheduled,
        deferred=max(0, deferred),
        dead_lettered=dead,
        size_bytes=counts.size_in_bytes or 0,
        max_size_mb=properties.max_size_in_megabytes or 0,
        drift=drift,
    )


async def with_ages(namespace: Namespace, stocks: Sequence[QueueContents]) -> list[QueueContents]:
    """The same with the age of the oldest message in each, by peeking at the first."""

    async def aged(client: ServiceBusClient, stock: QueueContents) -> QueueContents:
        if not stock.waiting:
            return stock
        async with client.get_queue_receiver(stock.path) as receiver:
            first = await receiver.peek_messages(1)
        return replace(stock, oldest_age_s=_age_s(first[0]) if first else None)

    return await _for_each(namespace, stocks, aged)


async def peek(
    namespace: Namespace,
    queues: Sequence[str],
    *,
    entity: str | None,
    count: int,
    looked: Callable[[int], None] = lambda _: None,
) -> list[BacklogRow]:
    """Up to `count` messages, those for one entity if it is named; nothing is locked or settled.

    `looked` is told how many were looked at so far.
    """
    seen = 0

    async def look(client: ServiceBusClient, queue: str) -> list[BacklogRow]:
        nonlocal seen
        found: list[BacklogRow] = []
        async with client.get_queue_receiver(queue) as receiver:
            number = 1
            while len(found) < count:
                # Each call begins anew; only the number keeps it going.
                batch = await receiver.peek_messages(PEEKED_AT_ONCE, sequence_number=number)
                if not batch:
                    break
                number = (batch[-1].sequence_number or 0) + 1
                seen += len(batch)
                looked(seen)
                messages = (_peeked(queue, message) for message in batch)
                found += [one for one in messages if entity is None or _is_for(one, entity)]
        return found[:count]

    found = await _for_each(namespace, queues, look)
    return list(chain.from_iterable(found))[:count]


async def _for_each(
    namespace: Namespace,
    things: Sequence[T],
    do: Callable[[ServiceBusClient, T], Awaitable[R]],
) -> list[R]:
    """Do something for each queue, several at once: the SDK takes a second to leave a link."""
    gate = asyncio.Semaphore(QUEUES_AT_ONCE)

    async def gated(client: ServiceBusClient, thing: T) -> R:
        async with gate:
            return await do(client, thing)

    with answers(namespace, "peeking", "Listen"):
        async with namespace.bounded_client(ATTEMPT_S) as client:
            return await asyncio.gather(*(gated(client, thing) for thing in things))


async def remove_if_empty(
    client: ServiceBusAdministrationClient, namespace: Namespace, path: str
) -> str | None:
    """Delete a queue that holds nothing at all; else leave it, and say why.

    It takes no sends from before the last look until it is deleted, so no message can slip in.
    """
    try:
        properties = await client.get_queue(path)
    except ResourceNotFoundError:
        return "it is gone already"
    status_before = properties.status
    properties.status = EntityStatus.SEND_DISABLED
    await client.update_queue(properties)
    deleted = False
    try:
        held = await _held(client, namespace, path)
        if held:
            return held
        await client.delete_queue(path)
        deleted = True
        return None
    finally:
        if not deleted:
            properties.status = status_before
            await client.update_queue(properties)


async def _held(
    client: ServiceBusAdministrationClient, namespace: Namespace, path: str
) -> str | None:
    """What a queue holds, in words. Counts may lag behind, so it is peeked at too."""
    counts = await client.get_queue_runtime_properties(path)
    if counts.total_message_count:
        return f"it holds {_counted(counts.total_message_count)}"
    with answers(namespace, "peeking", "Listen"):
        async with namespace.bounded_client(ATTEMPT_S) as sdk:
            for sub_queue in (None, ServiceBusSubQueue.DEAD_LETTER):
                async with sdk.get_queue_receiver(path, sub_queue=sub_queue) as receiver:
                    if await receiver.peek_messages(1):
                        return "it holds messages"
    return None


def _counted(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"


def _peeked(queue: str, message: Any) -> BacklogRow:
    path = session_id = ttl_s = scheduled_at = None
    problem = ""
    try:
        _, aliases = from_backlog_message(message)
    except TransferError as error:
        problem = str(error)
    else:
        path, session_id = aliases.path, aliases.session_id
        if aliases.time_to_live_ms is not None:
            ttl_s = aliases.time_to_live_ms / 1_000
        if aliases.scheduled_ms is not None:
            scheduled_at = datetime.fromtimestamp(aliases.scheduled_ms / 1_000, UTC).isoformat()
    enqueued = message.enqueued_time_utc
    return BacklogRow(
        queue=queue,
        sequence_number=message.sequence_number or 0,
        state=str(getattr(message.state, "name", "active")).lower(),
        path=path,
        message_id=message.message_id,
        session_id=session_id,
        time_to_live_s=ttl_s,
        scheduled_at=scheduled_at,
        enqueued_at=None if enqueued is None else enqueued.isoformat(),
        age_s=_age_s(message),
        body_bytes=_body_bytes(message),
        delivery_count=message.delivery_count or 0,
        problem=problem,
    )


def _is_for(message: BacklogRow, entity: str) -> bool:
    wanted = entity.strip("/").lower()
    return message.path is not None and message.path.strip("/").lower() == wanted


def _age_s(message: Any) -> float | None:
    enqueued = message.enqueued_time_utc
    return None if enqueued is None else (datetime.now(UTC) - enqueued).total_seconds()


def _body_bytes(message: Any) -> int | None:
    if message.body_type is not AmqpMessageBodyType.DATA:
        return None
    return sum(map(len, message.body))
