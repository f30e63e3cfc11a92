"""How deep the backlog is and how old, looked up every so often for those who asked for it.

One administration call for each queue, and a peek at the oldest message of each that holds any.
Both are billed operations, so nothing of this runs unless a collector was made with
`backlog_every`. It needs the Manage right (counts) and the Listen right (peek) on the secondary.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.errors import MissingRightError
from twinbus.pairing.lifecycle.administration import BacklogAdministration, SecondaryUnreachable

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusClient

    from twinbus.pairing.sending.client import PairedClient

__all__ = ["BacklogDepth", "QueueDepth"]

log = logging.getLogger("twinbus.pairing")

EVERY_MIN_S: Final = 1.0
"""More often is a load test of the administration API, which Azure throttles."""

STALE_AFTER: Final = 3
"""Looks that may fail before the last numbers are withdrawn: old ones must not pass for news."""


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """What one backlog queue holds."""

    waiting: int
    """Active, locked, scheduled and deferred."""
    dead_lettered: int
    oldest_at: float | None
    """When the oldest waiting message came, in unix seconds; None: there is none."""


class BacklogDepth:
    """Looks at the backlog queues of a pair until it is closed."""

    def __init__(self, client: PairedClient, every_s: float) -> None:
        """May be made on any thread; it works on the pair's event loop."""
        if not every_s >= EVERY_MIN_S:
            raise ValueError(
                f"backlog_every is a number of seconds from {EVERY_MIN_S:g}; got {every_s!r}"
            )
        self._client = client
        self._every_s = every_s
        self._depths: dict[str, QueueDepth] = {}
        self._sounded_at: float | None = None
        self._told = False
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        client.loop.call_soon_threadsafe(self._begin)

    def depths(self) -> dict[str, QueueDepth]:
        """The last look, by queue; empty when there is none, or none that is fresh enough."""
        if self._sounded_at is None:
            return {}
        is_fresh = self._client.now - self._sounded_at <= self._every_s * STALE_AFTER
        return self._depths if is_fresh else {}

    async def close(self) -> None:
        """Look no more."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def _begin(self) -> None:
        if not self._closed:
            self._task = asyncio.create_task(self._run(), name="sound the backlog")

    async def _run(self) -> None:
        while True:
            try:
                self._depths = await self._look()
                self._sounded_at, self._told = self._client.now, False
            except MissingRightError as error:
                log.warning("the depth of the backlog is not measured: %s", error)
                return
            except Exception as error:  # noqa: BLE001  # a number that is missing harms no message
                if not self._told:
                    log.warning("the depth of the backlog is not known: %s", error)
                self._told = True
            await asyncio.sleep(self._every_s)

    async def _look(self) -> dict[str, QueueDepth]:
        client = self._client
        timeout_s = client.options.attempt_timeout_s
        depths: dict[str, QueueDepth] = {}
        async with (
            BacklogAdministration(client.secondary, client.recorder, timeout_s=timeout_s) as asked,
            client.secondary.bounded_client(timeout_s) as sdk,
        ):
            for queue in client.rotation.queues:
                found = await asked.counts(queue)
                dead = found.dead_letter_message_count or 0
                # Deferred ones have no number of their own: they are what is left of the total.
                waiting = max(0, (found.total_message_count or 0) - dead)
                oldest_at = await self._oldest(sdk, queue) if waiting else None
                depths[queue] = QueueDepth(waiting, dead, oldest_at)
        return depths

    async def _oldest(self, sdk: ServiceBusClient, queue: str) -> float | None:
        client = self._client
        timeout_s = client.options.attempt_timeout_s
        began, error = client.now, None
        try:
            async with asyncio.timeout(timeout_s), sdk.get_queue_receiver(queue) as receiver:
                peeked = await receiver.peek_messages(1)
        except TimeoutError as caught:
            error = caught
            raise SecondaryUnreachable(f"{queue} did not answer within {timeout_s:g} s") from caught
        finally:
            client.recorder.managed("secondary", began, client.now, error=error, queue=queue)
        came = peeked[0].enqueued_time_utc if peeked else None
        return came.timestamp() if came is not None else time.time() if peeked else None
