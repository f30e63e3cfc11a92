"""Opens links to backlog queues before they are needed.

Opening a link takes the SDK half a second of small sleeps, whatever the peer. While an entity is
SUSPECT there is time for that, so that the first divert after the failover only sends. Where the
failover interval is too short, a slow attempt on the primary starts it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from twinbus.pairing.sdk.pooled_sender import PooledSender
from twinbus.pairing.sdk.sender_pool import SenderPool, open_only

OPENING_S: Final = 0.6
"""Time to open a link; a shorter failover interval leaves no time to open one meanwhile."""

log = logging.getLogger("twinbus.pairing")


class Warming:
    """Opens one link to a backlog queue ahead of time; one attempt at a time for each queue."""

    def __init__(self, attempt_timeout_s: float) -> None:
        self._attempt_timeout_s = attempt_timeout_s
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def warm(self, queue: str, pool: SenderPool) -> None:
        """Begin to open a link to the queue if none is open; returns at once."""
        if queue in self._tasks or pool.closed:
            return
        pooled = pool.take()
        if pooled is None:
            return
        if pooled.is_open:
            pool.give_back(pooled)
            return
        task = asyncio.create_task(self._open(queue, pool, pooled))
        self._tasks[queue] = task
        task.add_done_callback(lambda _: self._tasks.pop(queue, None))

    async def close(self) -> None:
        """Cancel every attempt and wait for its end."""
        tasks = set(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _open(self, queue: str, pool: SenderPool, pooled: PooledSender) -> None:
        try:
            await pool.attempt(pooled, open_only, self._attempt_timeout_s)
        except Exception as error:  # noqa: BLE001  # a message that needs the queue will find out
            log.debug("%s could not be opened ahead of time: %r", queue, error)
