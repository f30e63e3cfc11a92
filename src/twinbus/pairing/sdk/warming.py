"""Links to backlog queues, opened before they are needed.

Opening a link takes the SDK half a second of small sleeps, whatever the peer. While an entity is
SUSPECT there is time for that, so that the first divert after the failover is a send and no more.
Where the failover interval leaves no time, a slow attempt on the primary is sign enough.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from twinbus.pairing.sdk.sender_pool import SenderPool, attempt

__all__ = ["OPENING_S", "Warming"]

OPENING_S: Final = 0.6
"""What opening a link takes; a failover interval below it is too short to open one meanwhile."""

log = logging.getLogger("twinbus.pairing")


class Warming:
    """Opens one link to a backlog queue ahead of time; one attempt at a time for each queue."""

    def __init__(self, attempt_timeout_s: float) -> None:
        self._attempt_timeout_s = attempt_timeout_s
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def warm(self, queue: str, pool: SenderPool) -> None:
        """Have a link to the queue open soon, if none is; returns at once."""
        if queue in self._tasks or pool.closed:
            return
        conduit = pool.take()
        if conduit is None:
            return
        if conduit.is_open:
            pool.give_back(conduit)
            return
        task = asyncio.create_task(self._open(queue, pool, conduit))
        self._tasks[queue] = task
        task.add_done_callback(lambda _: self._tasks.pop(queue, None))

    async def close(self) -> None:
        """Leave no attempt behind."""
        tasks = set(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _open(self, queue: str, pool: SenderPool, conduit: Any) -> None:
        try:
            await attempt(pool, conduit, _nothing_more, self._attempt_timeout_s)
        except Exception as error:  # noqa: BLE001  # a message that needs the queue will find out
            log.debug("%s could not be opened ahead of time: %r", queue, error)


async def _nothing_more(sdk: Any) -> None:
    """A link that is open is all that is wanted."""
