"""Closes senders of the SDK in the background, for all pools of a client."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine
from typing import Any, Final

from twinbus.pairing.sdk.pooled_sender import PooledSender
from twinbus.pairing.sdk.sdk_cleanup import CLOSE_LIMIT_S, cancel_until_done
from twinbus.pairing.sdk.watchdog import Watchdog

log = logging.getLogger("twinbus.pairing")

REOPEN_SPACING_S: Final = 0.25
"""Time between two reopenings of a pair. Each takes 20 ms of processor time: ten thousand idle
senders must not keep a processor busy. Links that get no turn are opened by the next call."""


class SenderCloser:
    """What the pools of a client share: closing in the background, watchdog, reopening turns."""

    def __init__(self, opening_limit_s: float = 0.0) -> None:
        """`opening_limit_s` bounds how long a sender may open, whatever its caller's timeout."""
        self.opening_limit_s = opening_limit_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._reopened_at = -math.inf
        self.watchdog = Watchdog()

    def may_reopen(self, now: float) -> bool:
        """Whether a link may be reopened now; if so, the next one must wait for its turn."""
        if now - self._reopened_at < REOPEN_SPACING_S:
            return False
        self._reopened_at = now
        return True

    def close_later(self, pooled: PooledSender) -> None:
        """Close a sender that is not used any more; returns at once."""
        self.run(_close(pooled))

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that ends by itself in the background; returns at once."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Return when all background work so far is done; each takes a few seconds at most."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        self.watchdog.close()
        # An aborted socket is closed in the next turn of the loop.
        await asyncio.sleep(0)


async def _close(pooled: PooledSender) -> None:
    cleanup = pooled.cleanup
    cleanup.collect()
    if pooled.opening is not None:
        # Before each cancellation: a task that misses it may go on to open a connection.
        await cancel_until_done(pooled.opening, cleanup.collect)
        cleanup.collect()
    await cleanup.stop_keep_alive()
    try:
        async with asyncio.timeout(CLOSE_LIMIT_S):
            await pooled.sdk.close()
    except Exception as error:  # noqa: BLE001  # whatever it is, the socket is aborted next
        log.debug("a sender of the SDK did not close: %r", error)
    finally:
        cleanup.abort_sockets()
