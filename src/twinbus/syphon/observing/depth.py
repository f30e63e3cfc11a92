"""Measures depth and age of the backlog at intervals, for the metrics of a syphon.

One listing of the queues, and a peek at the oldest message of each that holds any. Both are billed,
so this runs only with `--backlog-every`. It needs the rights Manage and Listen.
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
from twinbus.namespace.endpoint import Endpoint

log = logging.getLogger("twinbus.syphon")

STALE_AFTER: Final = 3
"""Measurements that may fail before the last numbers are withdrawn as out of date."""


@dataclass(frozen=True, slots=True)
class MeasuredQueue:
    """Depth and age of one backlog queue."""

    waiting: int
    """Active, locked, scheduled and deferred."""
    dead_lettered: int
    oldest_unix_s: float | None
    """When the oldest waiting message was enqueued; None: there is none."""


class SyphonBacklog:
    """The backlog of a syphon, measured every few seconds until the task is cancelled."""

    def __init__(
        self,
        secondary: Endpoint,
        counts: Callable[[], Awaitable[Mapping[str, QueueCounts]]],
        every_s: float,
    ) -> None:
        """`counts` counts the messages of all backlog queues (`QueueSearch.counts`)."""
        self._secondary = secondary
        self._counts = counts
        self._every_s = every_s
        self._depths: Mapping[str, MeasuredQueue] = {}
        self._measured_at = float("-inf")

    def depths(self) -> Mapping[str, MeasuredQueue]:
        """Return the last measurement, by queue; empty: there is none, or it is out of date."""
        age_s = time.monotonic() - self._measured_at
        return self._depths if age_s <= self._every_s * STALE_AFTER else {}

    async def run(self) -> None:
        """Measure for ever."""
        level = logging.WARNING
        while True:
            try:
                self._depths = await self._measure()
                self._measured_at, level = time.monotonic(), logging.WARNING
            except Exception as error:  # noqa: BLE001  # metrics go on after a bad answer
                log.log(level, "the depth of the backlog is not known: %s", error)
                level = logging.DEBUG
            await asyncio.sleep(self._every_s)

    async def _measure(self) -> Mapping[str, MeasuredQueue]:
        counts = await self._counts()
        if not any(count.waiting for count in counts.values()):
            return {queue: _measured(count, None) for queue, count in counts.items()}
        async with open_connection(self._secondary) as line:
            return {
                queue: _measured(count, await _oldest(line, queue) if count.waiting else None)
                for queue, count in counts.items()
            }


def _measured(counts: QueueCounts, oldest_unix_s: float | None) -> MeasuredQueue:
    return MeasuredQueue(counts.waiting, counts.dead_lettered, oldest_unix_s)


async def _oldest(line: NamespaceConnection, queue: str) -> float | None:
    async with aclosing(peek(line, queue, page=1)) as messages:
        async for message in messages:
            return None if message.enqueued_ms is None else message.enqueued_ms / 1_000
    return None
