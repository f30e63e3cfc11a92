"""Measures depth and age of the backlog at intervals, for metrics.

One administration call for each queue, and a peek at the oldest message of each that holds any.
Both are billed operations, so this runs only for a collector made with `backlog_every`. It needs
the Manage right (counts) and the Listen right (peek) on the secondary.
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

    from twinbus.pairing.sending.shared_state import SharedState

log = logging.getLogger("twinbus.pairing")

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
    oldest_at: float | None
    """When the oldest waiting message was enqueued, in unix seconds; None: there is none."""


class BacklogDepth:
    """Measures the backlog queues of a pair until it is closed."""

    def __init__(self, state: SharedState, every_s: float) -> None:
        """May be made on any thread; it runs on the pair's event loop."""
        if not every_s >= EVERY_MIN_S:
            raise ValueError(
                f"backlog_every is a number of seconds from {EVERY_MIN_S:g}; got {every_s!r}"
            )
        self._state = state
        self._every_s = every_s
        self._depths: dict[str, QueueDepth] = {}
        self._measured_at: float | None = None
        self._has_warned = False
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        state.loop.call_soon_threadsafe(self._begin)

    def depths(self) -> dict[str, QueueDepth]:
        """The last measurement, by queue; empty: there is none, or it is out of date."""
        if self._measured_at is None:
            return {}
        is_fresh = self._state.now - self._measured_at <= self._every_s * STALE_AFTER
        return self._depths if is_fresh else {}

    async def close(self) -> None:
        """Stop measuring."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def _begin(self) -> None:
        if not self._closed:
            self._task = asyncio.create_task(self._run(), name="backlog depth")

    async def _run(self) -> None:
        while True:
            try:
                self._depths = await self._measure()
                self._measured_at, self._has_warned = self._state.now, False
            except MissingRightError as error:
                log.warning("the depth of the backlog is not measured: %s", error)
                return
            except Exception as error:  # noqa: BLE001  # metrics must not harm the pair
                if not self._has_warned:
                    log.warning("the depth of the backlog is not known: %s", error)
                self._has_warned = True
            await asyncio.sleep(self._every_s)

    async def _measure(self) -> dict[str, QueueDepth]:
        state = self._state
        timeout_s = state.options.attempt_timeout_s
        depths: dict[str, QueueDepth] = {}
        async with (
            BacklogAdministration(state.secondary, state.recorder, timeout_s=timeout_s) as admin,
            state.secondary.bounded_client(timeout_s) as sdk,
        ):
            for queue in state.rotation.queues:
                found = await admin.counts(queue)
                dead = found.dead_letter_message_count or 0
                # The service has no count of deferred messages: they are the rest of the total.
                waiting = max(0, (found.total_message_count or 0) - dead)
                oldest_at = await self._oldest(sdk, queue) if waiting else None
                depths[queue] = QueueDepth(waiting, dead, oldest_at)
        return depths

    async def _oldest(self, sdk: ServiceBusClient, queue: str) -> float | None:
        state = self._state
        timeout_s = state.options.attempt_timeout_s
        began, error = state.now, None
        try:
            async with asyncio.timeout(timeout_s), sdk.get_queue_receiver(queue) as receiver:
                peeked = await receiver.peek_messages(1)
        except TimeoutError as caught:
            error = caught
            raise SecondaryUnreachable(f"{queue} did not answer within {timeout_s:g} s") from caught
        finally:
            state.recorder.managed("secondary", began, state.now, error=error, queue=queue)
        if not peeked:
            return None
        enqueued = peeked[0].enqueued_time_utc
        return time.time() if enqueued is None else enqueued.timestamp()
