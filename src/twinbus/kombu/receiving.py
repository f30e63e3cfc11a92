"""Receives tasks from queues of the primary, with a bound on every call.

The SDK's sync receiver waits for ever for a peer that accepts a connection and does not answer, and
a blocked thread cannot be interrupted. So this uses the asyncio receiver, on a loop thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from azure.core.exceptions import AzureError
from azure.servicebus.exceptions import MessageAlreadySettled, MessageLockLostError

from twinbus.errors import error_text
from twinbus.namespace.namespace import RETRIES_OFF, Namespace
from twinbus.pairing.sdk.sdk_cleanup import SdkCleanup, cancel_until_done, close_sdk_client

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage
    from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

    from twinbus.blocking.loop_thread import LoopThread
    from twinbus.namespace.access import NamespaceAccess

T = TypeVar("T")

Settlement = Literal["complete", "abandon", "dead_letter"]

log = logging.getLogger("twinbus.kombu")

FAILURES: Final = (AzureError, OSError, ValueError)
"""What the SDK raises if the primary is down; ValueError from a receiver that has ended."""

RENEW_MIN_S: Final = 1.0
"""Shortest time between two renewals of a lock."""


class TaskDelivery:
    """One message that was received and is not settled; its lock is renewed until then."""

    def __init__(self, queue: str, message: ServiceBusReceivedMessage) -> None:
        self.queue = queue
        self.message = message
        self.renewing: asyncio.Task[None] | None = None

    @property
    def body(self) -> bytes:
        return b"".join(self.message.body)


class _OpenReceiver:
    """A receiver, its client, and the sockets that it may leave behind."""

    def __init__(self, client: ServiceBusClient, queue: str) -> None:
        self.client = client
        self.receiver: ServiceBusReceiver = client.get_queue_receiver(queue)
        self.cleanup = SdkCleanup(self.receiver)


class TaskReceivers:
    """The receivers of one kombu connection, by queue."""

    def __init__(
        self, primary: NamespaceAccess, loop_thread: LoopThread, attempt_timeout_s: float
    ) -> None:
        self._primary = primary
        self._loop_thread = loop_thread
        self._attempt_s = attempt_timeout_s
        self._open: dict[str, _OpenReceiver] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._unsettled: set[TaskDelivery] = set()

    def receive(self, queue: str, wait_s: float) -> TaskDelivery | None:
        """Return the next message; None: there is none. Raises one of FAILURES in an outage."""
        return self._loop_thread.run(lambda: self._receive(queue, wait_s))

    def settle(self, delivery: TaskDelivery, how: Settlement) -> None:
        """Return when the primary has settled a message; raises one of FAILURES."""
        self._loop_thread.run(lambda: self._settle(delivery, how))

    def close(self) -> None:
        """Release what is not settled, so that another worker gets it, and close the receivers."""
        self._loop_thread.finish(self._close)

    async def _receive(self, queue: str, wait_s: float) -> TaskDelivery | None:
        opened = self._opened(queue)
        receiver = opened.receiver
        found = await self._bounded(
            queue, receiver.receive_messages(max_message_count=1, max_wait_time=wait_s), wait_s
        )
        if not found:
            return None
        delivery = TaskDelivery(queue, found[0])
        self._unsettled.add(delivery)
        delivery.renewing = asyncio.create_task(self._keep_locked(delivery))
        return delivery

    async def _settle(self, delivery: TaskDelivery, how: Settlement) -> None:
        self._unsettled.discard(delivery)
        if delivery.renewing is not None:
            delivery.renewing.cancel()
        receiver = await self._running(delivery.queue)
        settle = getattr(receiver, f"{how}_message")
        await self._bounded(delivery.queue, settle(delivery.message))

    async def _keep_locked(self, delivery: TaskDelivery) -> None:
        """Renew a lock at half its time, until it is settled or lost."""
        while True:
            until = delivery.message.locked_until_utc or datetime.now(UTC)
            left_s = (until - datetime.now(UTC)).total_seconds()
            if left_s <= 0:
                log.warning("%s: the lock of a task has expired; it is delivered again",
                            delivery.queue)  # fmt: skip
                return
            await asyncio.sleep(max(left_s / 2, RENEW_MIN_S))
            try:
                receiver = await self._running(delivery.queue)
                await self._bounded(delivery.queue, receiver.renew_message_lock(delivery.message))
            except FAILURES as error:
                log.debug("%s: a lock was not renewed: %s", delivery.queue, error_text(error))

    async def _running(self, queue: str) -> ServiceBusReceiver:
        """The receiver of a queue with an open link. It can settle what an earlier one received."""
        receiver = self._opened(queue).receiver
        await self._bounded(queue, receiver.__aenter__())
        return receiver

    def _opened(self, queue: str) -> _OpenReceiver:
        if queue not in self._open:
            client = Namespace.of(self._primary).client(**RETRIES_OFF)
            self._open[queue] = _OpenReceiver(client, queue)
        return self._open[queue]

    async def _bounded(self, queue: str, work: Coroutine[Any, Any, T], more_s: float = 0.0) -> T:
        """The result of a call of the SDK; a receiver whose call fails or hangs is replaced."""
        opened = self._open[queue]
        task = asyncio.create_task(work)
        try:
            done, _ = await asyncio.wait({task}, timeout=self._attempt_s + more_s)
            if not done:
                limit_s = self._attempt_s + more_s
                raise TimeoutError(f"{queue}: the primary did not answer within {limit_s:g} s")
            return task.result()
        except (MessageAlreadySettled, MessageLockLostError):
            # An answer about one message: the receiver works.
            raise
        except BaseException:
            if self._open.get(queue) is opened:
                del self._open[queue]
                self._end(opened, task)
            raise

    def _end(self, opened: _OpenReceiver, task: asyncio.Task[Any] | None = None) -> None:
        """Close a receiver in the background."""

        async def end() -> None:
            if task is not None and not task.done():
                # The SDK may miss a cancellation while it waits for a socket.
                await cancel_until_done(task, opened.cleanup.abort_sockets)
            await close_sdk_client(opened.client)
            opened.cleanup.abort_sockets()

        ending = asyncio.create_task(end())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _close(self) -> None:
        ends = time.monotonic() + self._attempt_s
        for delivery in list(self._unsettled):
            if delivery.renewing is not None:
                delivery.renewing.cancel()
            if delivery.queue in self._open and time.monotonic() < ends:
                try:
                    await self._settle(delivery, "abandon")
                except FAILURES as error:
                    log.debug("%s: a task was not released: %s", delivery.queue, error_text(error))
        self._unsettled.clear()
        for opened in self._open.values():
            self._end(opened)
        self._open.clear()
        if self._ending:
            await asyncio.wait(self._ending, timeout=2 * self._attempt_s)
