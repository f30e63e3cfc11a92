"""Measures depth and age of backlog queues at intervals, for the metrics of a pair or a syphon.

It counts the messages of all queues, and peeks at the oldest message of each that holds any. Both
are billed, so nothing is measured unless someone asks for it. It needs the rights Manage and Listen
on the secondary.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from twinbus.client.administration import QueueCounts
from twinbus.client.connection import NamespaceConnection
from twinbus.client.peeking import open_connection, peek
from twinbus.namespace.access import Endpoint

log = logging.getLogger("twinbus.client")

EVERY_MIN_S: Final = 1.0
"""More often is a load test of the administration API, which Azure throttles."""

STALE_AFTER: Final = 3
"""Measurements that may fail before the last numbers are withdrawn as out of date."""


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Depth and age of one backlog queue."""

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
    ) -> None:
        """`counts` counts the messages of all backlog queues."""
        if not every_s >= EVERY_MIN_S:
            raise ValueError(
                f"backlog_every is a number of seconds from {EVERY_MIN_S:g}; got {every_s!r}"
            )
        self._secondary = secondary
        self._counts = counts
        self._every_s = every_s
        self._depths: Mapping[str, QueueDepth] = {}
        self._measured_at = float("-inf")
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to measure on this loop; may be called on any thread."""
        loop.call_soon_threadsafe(self._begin)

    async def close(self) -> None:
        """Stop measuring."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def depths(self) -> Mapping[str, QueueDepth]:
        """Return the last measurement, by queue; empty: not measured yet, or out of date."""
        age_s = time.monotonic() - self._measured_at
        return self._depths if age_s <= self._every_s * STALE_AFTER else {}

    def _begin(self) -> None:
        if not self._is_closed:
            self._task = asyncio.create_task(self._run(), name="backlog meter")

    async def _run(self) -> None:
        level = logging.WARNING
        while True:
            try:
                self._depths = await self._measure()
                self._measured_at, level = time.monotonic(), logging.WARNING
            except Exception as error:  # noqa: BLE001  # metrics must harm neither pair nor syphon
                log.log(level, "the depth of the backlog is not known: %s", error)
                level = logging.DEBUG
            await asyncio.sleep(self._every_s)

    async def _measure(self) -> Mapping[str, QueueDepth]:
        counts = await self._counts()
        if not any(count.waiting for count in counts.values()):
            return {queue: _depth(count, None) for queue, count in counts.items()}
        async with open_connection(self._secondary) as connection:
            return {
                queue: _depth(count, await _oldest(connection, queue) if count.waiting else None)
                for queue, count in counts.items()
            }


def _depth(counts: QueueCounts, oldest_unix_s: float | None) -> QueueDepth:
    return QueueDepth(counts.waiting, counts.dead_lettered, oldest_unix_s)


async def _oldest(connection: NamespaceConnection, queue: str) -> float | None:
    async with aclosing(peek(connection, queue, page=1)) as messages:
        async for message in messages:
            return None if message.enqueued_ms is None else message.enqueued_ms / 1_000
    return None
