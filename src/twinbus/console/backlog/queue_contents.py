"""The backlog queues of a secondary: what they hold, by peeking, and the removal of spare ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import EntityStatus, QueueProperties, QueueRuntimeProperties

from twinbus.client.administration import NotAnswered
from twinbus.client.connection import NamespaceConnection
from twinbus.client.peeked_message import PeekedMessage, as_time
from twinbus.client.peeking import NamespaceUnreachable, open_connection, peek
from twinbus.client.request_node import RequestRefused
from twinbus.client.twins import is_marked
from twinbus.console.namespaces import FORBIDDEN, UnreachableError, administration
from twinbus.console.output import WrongUse
from twinbus.errors import SyphonError
from twinbus.namespace.access import endpoint_of
from twinbus.namespace.namespace import Namespace
from twinbus.namespace.tokens import refusal_error
from twinbus.pairing.core.backlog import Drift, drift_of
from twinbus.pairing.sdk.administration import description_of
from twinbus.servicebus.conditions import UNAUTHORIZED
from twinbus.servicebus.names import backlog_paths, parse_backlog_path

QUEUES_PER_CONNECTION: Final = 50
"""A peeked queue takes two links, and a connection to Service Bus has 256 of them."""

REPORT_EVERY: Final = 100
"""Messages between two reports of progress."""


@dataclass(frozen=True, slots=True)
class QueueContents:
    """One backlog queue: its message counts, and its drift (docs/production.md)."""

    path: str
    label: str
    index: int
    active: int
    """Including locked ones."""
    scheduled: int
    deferred: int
    """The service does not count these: the total minus all other counts."""
    dead_lettered: int
    size_bytes: int
    max_size_mb: int
    drift: tuple[Drift, ...]
    oldest_age_s: float | None = None
    """None: the queue is empty, or was not peeked."""

    def is_of(self, label: str | None) -> bool:
        return label is None or self.label.lower() == label.lower()

    @property
    def waiting(self) -> int:
        return self.active + self.scheduled + self.deferred

    @property
    def is_empty(self) -> bool:
        return self.waiting + self.dead_lettered == 0


async def queue_contents(client: ServiceBusAdministrationClient) -> list[QueueContents]:
    """Return every backlog queue in the namespace, by label and index."""
    counts_of = {one.name: one async for one in client.list_queues_runtime_properties()}
    found = []
    async for properties in client.list_queues():
        label_and_index = parse_backlog_path(properties.name)
        counts = counts_of.get(properties.name)
        if label_and_index is not None and counts is not None:
            found.append(_contents(properties, *label_and_index, counts))
    return sorted(found, key=lambda queue: (queue.label.lower(), queue.index))


@dataclass(frozen=True, slots=True)
class QueueSelection:
    secondary: Namespace
    label: str | None
    """None: every pair."""
    queue: str | None
    """An index or a path; None: all queues."""

    async def paths(self) -> list[str]:
        """Return the paths of the queues; one that was given as a path is not checked."""
        label, queue = self.label, self.queue
        if queue is not None and not queue.isdecimal():
            if parse_backlog_path(queue) is None and not await self._is_twin(queue):
                raise WrongUse(
                    f"{queue!r} is not a backlog queue: give an index like 3, or"
                    " LABEL/x-servicebus-transfer/3, or with a label the path of a twin"
                )
            return [queue]
        if queue is not None and label is not None:
            return [backlog_paths(label, int(queue) + 1)[-1]]
        async with administration(self.secondary, "listing queues") as client:
            found = [one for one in await queue_contents(client) if one.is_of(label)]
        if queue is not None:
            found = [one for one in found if one.index == int(queue)]
        if not found:
            which = "" if queue is None else f" {queue}"
            whose = "" if label is None else f" of {label} (--label names another primary)"
            raise UnreachableError(
                f"there is no backlog queue{which}{whose} in {self.secondary.endpoint}; `twinbus"
                " backlog list` shows all of them"
            )
        return [one.path for one in found]

    async def _is_twin(self, path: str) -> bool:
        if self.label is None:
            return False
        try:
            return bool(await is_marked(endpoint_of(self.secondary), path, self.label))
        except NotAnswered as error:
            endpoint = self.secondary.endpoint
            raise UnreachableError(f"{endpoint} cannot be reached: {error}") from error


async def prunable(
    client: ServiceBusAdministrationClient, label: str, keep: int
) -> list[QueueContents]:
    """Return the backlog queues of a label with an index from `keep` on, empty or not."""
    found = await queue_contents(client)
    return [queue for queue in found if queue.is_of(label) and queue.index >= keep]


def _contents(
    properties: QueueProperties, label: str, index: int, counts: QueueRuntimeProperties
) -> QueueContents:
    active, scheduled = counts.active_message_count or 0, counts.scheduled_message_count or 0
    dead = counts.dead_letter_message_count or 0
    moving = (counts.transfer_message_count or 0) + (counts.transfer_dead_letter_message_count or 0)
    deferred = (counts.total_message_count or 0) - active - scheduled - dead - moving
    return QueueContents(
        path=properties.name,
        label=label,
        index=index,
        active=active,
        scheduled=scheduled,
        deferred=max(0, deferred),
        dead_lettered=dead,
        size_bytes=counts.size_in_bytes or 0,
        max_size_mb=properties.max_size_in_megabytes or 0,
        drift=drift_of(description_of(properties)),
    )


async def with_ages(namespace: Namespace, queues: Sequence[QueueContents]) -> list[QueueContents]:
    """Return the queues with the age of their oldest message, found by peeking at the first."""
    ages: dict[str, float | None] = {}

    async def visit(line: NamespaceConnection, path: str) -> bool:
        first = await _first(line, path)
        ages[path] = None if first is None else _age_s(first)
        return True

    await _visit_each(namespace, [one.path for one in queues if one.waiting], visit)
    return [replace(one, oldest_age_s=ages.get(one.path)) for one in queues]


async def backlog_rows(
    namespace: Namespace,
    queues: Sequence[str],
    *,
    entity: str | None,
    count: int,
    on_peeked: Callable[[int], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Return up to `count` messages, of one entity if it is given; nothing is locked or settled.

    `on_peeked` gets the number of messages peeked so far.
    """
    rows: list[dict[str, Any]] = []
    peeked = 0
    wanted = None if entity is None else entity.strip("/").lower()

    async def visit(line: NamespaceConnection, queue: str) -> bool:
        nonlocal peeked
        async with aclosing(peek(line, queue)) as messages:
            async for message in messages:
                peeked += 1
                if peeked % REPORT_EVERY == 0:
                    on_peeked(peeked)
                path = queue if parse_backlog_path(queue) is None else message.path
                if wanted is None or (path or "").lower() == wanted:
                    rows.append(_row(message))
                if len(rows) == count:
                    return False
        return True

    await _visit_each(namespace, queues, visit)
    return rows


async def _visit_each(
    namespace: Namespace,
    queues: Sequence[str],
    visit: Callable[[NamespaceConnection, str], Awaitable[bool]],
) -> None:
    """Call `visit` with a connection and each queue, until it returns False."""
    for first in range(0, len(queues), QUEUES_PER_CONNECTION):
        async with _peeking(namespace) as line:
            for queue in queues[first : first + QUEUES_PER_CONNECTION]:
                if not await visit(line, queue):
                    return


@asynccontextmanager
async def _peeking(namespace: Namespace) -> AsyncIterator[NamespaceConnection]:
    """Yield a connection to peek on; its errors name the namespace and a missing right."""
    try:
        async with open_connection(endpoint_of(namespace)) as line:
            yield line
    except NamespaceUnreachable as error:
        raise UnreachableError(f"{namespace.endpoint} cannot be reached: {error}") from error
    except SyphonError as error:
        refusal = error.__cause__
        if isinstance(refusal, RequestRefused) and (
            refusal.status in FORBIDDEN or refusal.condition == UNAUTHORIZED
        ):
            raise refusal_error(
                namespace.endpoint,
                str(refusal),
                f"peeking in {namespace.endpoint} needs the Listen right, and the credential is"
                f" refused or does not have it ({refusal})",
            ) from error
        raise UnreachableError(f"peeking in {namespace.endpoint} failed: {error}") from error


async def _first(
    line: NamespaceConnection, queue: str, *, dead_letters: bool = False
) -> PeekedMessage | None:
    async with aclosing(peek(line, queue, dead_letters=dead_letters, page=1)) as messages:
        return await anext(messages, None)


async def remove_if_empty(
    client: ServiceBusAdministrationClient, namespace: Namespace, path: str
) -> str | None:
    """Delete a queue that holds nothing; otherwise keep it and return why.

    Sends are disabled from before the last check until the deletion, so no message can arrive.
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
    """Return what a queue holds, or None. Counts may lag behind, so the queue is peeked too."""
    counts = await client.get_queue_runtime_properties(path)
    if total := counts.total_message_count:
        return "it holds 1 message" if total == 1 else f"it holds {total:,} messages"
    async with _peeking(namespace) as line:
        for dead_letters in (False, True):
            if await _first(line, path, dead_letters=dead_letters):
                return "it holds messages"
    return None


def _row(message: PeekedMessage) -> dict[str, Any]:
    aliases = message.aliases
    ttl_ms = None if aliases is None else aliases.time_to_live_ms
    # A message of a twin needs no alias: it belongs to the namesake.
    is_in_twin = parse_backlog_path(message.queue) is None and message.is_readable
    session_id = None if aliases is None else aliases.session_id
    if is_in_twin:
        session_id = message.properties.group_id
    return {
        "queue": message.queue,
        "sequence_number": message.sequence_number,
        "state": message.state,
        # None: there is no valid destination, and `problem` says why.
        "path": message.queue if is_in_twin else message.path,
        "message_id": message.message_id,
        "session_id": session_id,
        "time_to_live_s": None if ttl_ms is None else ttl_ms / 1_000,
        "scheduled_at": _iso(None if aliases is None else aliases.scheduled_ms),
        "enqueued_at": _iso(message.enqueued_ms),
        "age_s": _age_s(message),
        "body_bytes": None if message.body is None else len(message.body),
        "delivery_count": message.header.delivery_count or 0,
        "problem": "" if is_in_twin else message.problem,
    }


def _age_s(message: PeekedMessage) -> float | None:
    enqueued = as_time(message.enqueued_ms)
    return None if enqueued is None else (datetime.now(UTC) - enqueued).total_seconds()


def _iso(unix_ms: int | None) -> str | None:
    moment = as_time(unix_ms)
    return None if moment is None else moment.isoformat()
