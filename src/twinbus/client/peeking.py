"""Reads queues without receiving: peeks at messages, counts them, measures depth and age.

`BacklogMeter` measures backlog queues at intervals, for the metrics of a pair or a syphon: it
counts the messages of all queues, and peeks at the oldest of each that holds any. Both are billed,
so nothing is measured unless someone asks for it. It needs the rights Manage and Listen.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

from twinbus.client.administration import QueueCounts
from twinbus.client.connection import NamespaceConnection
from twinbus.client.lock_requests import peek_page
from twinbus.client.peeked_message import PeekedMessage, read_peeked
from twinbus.client.request_node import ConnectionLost, RequestRefused
from twinbus.errors import SyphonError
from twinbus.namespace.access import Endpoint
from twinbus.servicebus.names import DEAD_LETTER

PEEK_COUNT: Final = 100
"""Messages of one peek: at most 26 MB are in memory at once."""


class NamespaceUnreachable(SyphonError):
    """The namespace does not answer now; it may later."""


@asynccontextmanager
async def open_connection(endpoint: Endpoint) -> AsyncIterator[NamespaceConnection]:
    """Connect to a namespace for a block; raise a SyphonError of one line if anything fails."""
    # Answers to peeks come on the connection's own links, so no event matters here.
    connection = NamespaceConnection(endpoint, lambda _: None)
    with syphon_errors(endpoint):
        try:
            await connection.open()
            yield connection
        finally:
            await connection.close()


@contextmanager
def syphon_errors(endpoint: Endpoint) -> Iterator[None]:
    """Turn the errors of a connection, raised in the block, into SyphonErrors."""
    try:
        yield
    except ConnectionLost as error:
        raise NamespaceUnreachable(str(error)) from error
    except RequestRefused as error:
        raise SyphonError(f"{endpoint.label} refuses: {error}") from error


async def peek(
    connection: NamespaceConnection,
    queue: str,
    *,
    dead_letters: bool = False,
    page: int = PEEK_COUNT,
) -> AsyncGenerator[PeekedMessage, None]:
    """Yield the messages of a queue, or its dead letters, oldest first; nothing is locked.

    One request asks for `page` messages.
    """
    start = 1
    address = f"{queue}/{DEAD_LETTER}" if dead_letters else queue
    while True:
        messages = await peek_page(connection, address, start, page)
        found = [read_peeked(queue, message) for message in messages]
        if not found:
            return
        for peeked in found:
            yield peeked
        # The last one may be unreadable and have no number.
        following = max(peeked.sequence_number for peeked in found) + 1
        if following <= start:
            return
        start = following


def destination_keys(paths: Iterable[str]) -> frozenset[str]:
    """Return entity paths as a pump compares them; raise SyphonError if one is empty."""
    keys = frozenset(path.strip().strip("/").lower() for path in paths)
    if not keys or "" in keys:
        raise SyphonError("a destination is the path of a queue or topic; this one is empty")
    return keys


async def count_matching(
    endpoint: Endpoint, queues: Sequence[str], only: frozenset[str]
) -> dict[str, int]:
    """Return how many messages to these destinations each queue holds, in any state.

    Raise SyphonError if peeking is refused or not answered.
    """
    found = dict.fromkeys(queues, 0)
    async with open_connection(endpoint) as connection:
        for queue in queues:
            async for message in peek(connection, queue):
                found[queue] += (message.path or "").lower() in only
    return found


log = logging.getLogger("twinbus.client")

EVERY_MIN_S: Final = 1.0
"""More often is a load test of the administration API, which Azure throttles."""

STALE_AFTER: Final = 3
"""Measurements that may fail before the last numbers are withdrawn as out of date."""


@dataclass(frozen=True, slots=True)
class QueueDepth:
    waiting: int
    """Active, locked, scheduled and deferred."""
    dead_lettered: int
    oldest_unix_s: float | None
    """When the oldest waiting message was enqueued; None: no message waits."""


class BacklogMeter:
    """Measures from `start` until `close`."""

    def __init__(
        self,
        secondary: Endpoint,
        counts: Callable[[], Awaitable[Mapping[str, QueueCounts]]],
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`counts` counts the messages of all backlog queues."""
        if not every_s >= EVERY_MIN_S:
            raise ValueError(
                f"backlog_every is a number of seconds from {EVERY_MIN_S:g}; got {every_s!r}"
            )
        self._secondary = secondary
        self._counts = counts
        self._every_s = every_s
        self._clock = clock
        self._depths: Mapping[str, QueueDepth] = {}
        self._measured_at = float("-inf")
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to measure on this loop; may be called on any thread."""
        loop.call_soon_threadsafe(self._begin)

    async def close(self) -> None:
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def depths(self) -> Mapping[str, QueueDepth]:
        """Return the last measurement, by queue; empty: not measured yet, or out of date."""
        age_s = self._clock() - self._measured_at
        return self._depths if age_s <= self._every_s * STALE_AFTER else {}

    def _begin(self) -> None:
        if not self._is_closed:
            self._task = asyncio.create_task(self._run(), name="backlog meter")

    async def _run(self) -> None:
        level = logging.WARNING
        while True:
            try:
                self._depths = await self._measure()
                self._measured_at, level = self._clock(), logging.WARNING
            except Exception as error:  # noqa: BLE001  # metrics must harm neither pair nor syphon
                log.log(level, "the depth of the backlog is not known: %s", error)
                level = logging.DEBUG
            await asyncio.sleep(self._every_s)

    async def _measure(self) -> Mapping[str, QueueDepth]:
        counts = await self._counts()
        oldest: dict[str, float | None] = {}
        if waiting := [queue for queue, count in counts.items() if count.waiting]:
            async with open_connection(self._secondary) as connection:
                oldest = {queue: await _oldest(connection, queue) for queue in waiting}
        return {
            queue: QueueDepth(count.waiting, count.dead_lettered, oldest.get(queue))
            for queue, count in counts.items()
        }


async def _oldest(connection: NamespaceConnection, queue: str) -> float | None:
    async with aclosing(peek(connection, queue, page=1)) as messages:
        async for message in messages:
            return None if message.enqueued_ms is None else message.enqueued_ms / 1_000
    return None
