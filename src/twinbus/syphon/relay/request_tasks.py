"""The background tasks of a relay: requests to the backlog queue whose answers go to the pump.

A task whose connection is lost ends silently: the relay tells the pump of the loss, and the pump
asks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from twinbus.client.administration import BUSY, BUSY_WAITS_S
from twinbus.client.connection import NamespaceConnection
from twinbus.client.request_node import ConnectionLost, RequestRefused
from twinbus.servicebus.conditions import MESSAGE_LOCK_LOST
from twinbus.syphon.core.actions import Action
from twinbus.syphon.core.pump import Pump
from twinbus.syphon.relay.bookkeeping import Bookkeeper
from twinbus.syphon.relay.queue_requests import QueueRequests
from twinbus.transfer.backlog_message import BacklogMessage

log = logging.getLogger("twinbus.syphon")

DEAD_LETTER_ARGUMENTS: Final = ("deadletter-reason", "deadletter-description")


class RequestTasks:
    """The background tasks of one relay."""

    def __init__(
        self,
        pump: Pump,
        books: Bookkeeper,
        perform: Callable[[list[Action]], None],
        unpack: Callable[[bytes, bytes, int], BacklogMessage],
        queue: str,
    ) -> None:
        self.connection: NamespaceConnection | None = None
        """To the secondary; None while there is none."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._pump = pump
        self._books = books
        self._perform = perform
        self._unpack = unpack
        self._queue = queue

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that waits for an answer, in the background."""
        task = asyncio.create_task(_despite_loss(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first step never awaits `work`: close it, or Python
        # warns.
        task.add_done_callback(lambda _: work.close())
        task.add_done_callback(self._log_failure)

    async def cancel(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _log_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: a background task failed", self._queue, exc_info=error)

    # The requests

    async def settle(
        self, messages: list[BacklogMessage], status: str, arguments: list[str]
    ) -> None:
        """Settle by lock token: for messages that came over an earlier link, or by number.

        `arguments` are the reason and the description of a dead letter.
        """
        if self.connection is None:
            return
        requests = QueueRequests(self.connection, self._queue)
        named = dict(zip(DEAD_LETTER_ARGUMENTS, arguments, strict=False))
        waits_s = iter(BUSY_WAITS_S)
        while messages:
            result = await requests.settle(messages, status, named)
            self._books.settled(result.done)
            self._books.settled(result.lost, MESSAGE_LOCK_LOST)
            now = time.monotonic()
            self._perform(self._pump.settled(result.done, now))
            self._perform(self._pump.settle_failed(result.lost, now))
            messages, refusal = result.rest, result.refusal
            if refusal is None:
                return
            wait_s = next(waits_s, None) if refusal.status in BUSY else None
            if wait_s is None:
                self._books.settled(messages, _error(refusal))
                log.warning("%s: %d not %s: %s", self._queue, len(messages), status, refusal)
                # They are delivered again when their locks end; nothing is asked for again.
                self._perform(self._pump.settle_failed(messages, now))
                return
            # Their locks are valid. If they ended, another syphon would send what the primary has.
            await asyncio.sleep(wait_s)

    async def renew(self, messages: list[BacklogMessage]) -> None:
        """Renew locks before they end."""
        if self.connection is None:
            return
        result = await QueueRequests(self.connection, self._queue).renew(messages)
        if result.refusal is not None:
            # The locks are still valid, and the pump asks again before they end.
            log.warning("%s: %d not renewed: %s", self._queue, len(result.rest), result.refusal)
        now = time.monotonic()
        self._perform(self._pump.renewed(result.done, now))
        self._perform(self._pump.lock_lost(result.lost, now))

    async def receive_deferred(self, numbers: list[int]) -> None:
        """Receive deferred messages by sequence number."""
        if self.connection is None:
            return
        requests = QueueRequests(self.connection, self._queue)
        try:
            received, refused = await requests.receive_deferred(numbers)
        except ConnectionLost as error:
            log.warning("%s: deferred messages %s: %s", self._queue, numbers[:5], error)
            self._perform(self._pump.fetched(numbers, time.monotonic(), failed=True))
            return
        if refused:
            text = "%s: deferred messages %s cannot be received now"
            log.warning(text, self._queue, refused[:5])
        now_ms = time.time_ns() // 1_000_000
        messages = [self._unpack(payload, token, now_ms) for payload, token in received]
        for message in messages:
            message.is_deferred = True
        self._books.received(messages, now_ms)
        self._perform(self._pump.received(messages, time.monotonic()))
        self._perform(self._pump.fetched(numbers, time.monotonic(), failed=bool(refused)))

    async def peek_for_order(self, start: int) -> None:
        """Peek one page, for strict session order."""
        await self._peek(start, self._pump.peeked_for_order)

    async def look_ahead(self, start: int) -> None:
        """Peek one page after what waits for held destinations."""
        await self._peek(start, self._pump.looked_ahead)

    async def _peek(self, start: int, report: Callable[..., list[Action]]) -> None:
        if self.connection is None:
            return
        page, failed = [], False
        try:
            requests = QueueRequests(self.connection, self._queue)
            page = await requests.peek(start, time.time_ns() // 1_000_000)
        except (ConnectionLost, RequestRefused) as error:
            log.warning("%s: peeking from sequence number %d: %s", self._queue, start, error)
            failed = True
        self._perform(report(page, time.monotonic(), failed=failed))

    async def find_deferred(self, *, to_the_end: bool = True) -> None:
        """Search for deferred messages by peeking."""
        if self.connection is None:
            return
        try:
            requests = QueueRequests(self.connection, self._queue)
            found, is_all = await requests.find_deferred(
                time.time_ns() // 1_000_000, to_the_end=to_the_end
            )
        except RequestRefused as error:
            log.warning("%s: searching for deferred messages: %s", self._queue, error)
            return
        self._perform(self._pump.found_deferred(found, time.monotonic(), is_all=is_all))


async def _despite_loss(work: Coroutine[Any, Any, None]) -> None:
    with contextlib.suppress(ConnectionLost):
        await work


def _error(refusal: RequestRefused) -> str:
    """Return a refusal as the ledger records it."""
    return refusal.condition or f"status {refusal.status}"
