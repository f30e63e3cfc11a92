"""Receives tasks with guarded receivers, from the twin of a queue too; every call is bounded.

A receiver of a pair connects again for as long as it lives and finds a link that fell silent, so a
worker never waits for messages on a dead link (docs/twins.md). A side that is down raises nothing.
A pair itself is not started here: a worker that only receives needs no right to send.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Final, Literal

from azure.core.exceptions import AzureError

from twinbus.errors import error_text
from twinbus.namespace.namespace import Namespace
from twinbus.pairing.observing.recording import open_recorder
from twinbus.pairing.receiving.held_lock import RENEWAL_TIMEOUT_S, HeldLock
from twinbus.pairing.receiving.receivers import PairedReceivers

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

    from twinbus.blocking.loop_thread import LoopThread
    from twinbus.namespace.access import NamespaceAccess
    from twinbus.options import SendAvailabilityOptions
    from twinbus.pairing.observing.recording import Recorder
    from twinbus.pairing.receiving.receiver import PairedReceiver

Settlement = Literal["complete", "abandon", "dead_letter"]

log = logging.getLogger("twinbus.kombu")

FAILURES: Final = (AzureError, OSError, ValueError)
"""What a receiver raises: the primary refuses the queue, a lock is lost, the receiver is closed."""

SETTLE_WAIT_S: Final = 2.0
"""How long an acknowledgement waits for its answer. After that it goes on in the background, and so
do later ones until it has ended: a worker with ten unacknowledged tasks must not stand still for
ten timeouts when the primary hangs."""


class TaskDelivery:
    """One message that was received and is not settled; its lock is renewed until then."""

    def __init__(
        self, queue: str, receiver: PairedReceiver, message: ServiceBusReceivedMessage
    ) -> None:
        """Belongs to the running event loop."""
        self.queue = queue
        self.receiver = receiver
        self.message = message
        self.lock = HeldLock(
            lambda: receiver.renew_message_lock(message, timeout=RENEWAL_TIMEOUT_S),
            message.locked_until_utc,
            math.inf,
            lambda error: log.warning(
                "%s: the lock of a task is lost, it is delivered again: %s",
                queue, error_text(error),
            ),
        )  # fmt: skip

    @property
    def body(self) -> bytes:
        return b"".join(self.message.body)


class TaskReceivers:
    """The receivers of one kombu connection, by queue."""

    def __init__(
        self,
        primary: NamespaceAccess,
        secondary: NamespaceAccess,
        options: SendAvailabilityOptions,
        loop_thread: LoopThread,
    ) -> None:
        self._sides = primary, secondary
        self._options = options
        self._loop_thread = loop_thread
        self._recorder: Recorder | None = None
        self._paired: PairedReceivers | None = None
        self._receivers: dict[str, PairedReceiver] = {}
        self._unsettled: set[TaskDelivery] = set()
        self._settling: set[asyncio.Task[None]] = set()

    def receive(self, queue: str, wait_s: float) -> TaskDelivery | None:
        """Return the next message; None: none came. One of FAILURES: the queue is refused."""
        return self._loop_thread.run(lambda: self._receive(queue, wait_s))

    def settle(self, delivery: TaskDelivery, how: Settlement) -> None:
        """Settle a message on the side that delivered it; a failure is logged.

        It waits for the answer, but not for long: see SETTLE_WAIT_S.
        """
        self._loop_thread.run(lambda: self._settle(delivery, how))

    def close(self) -> None:
        """Give back what is not settled, so that another worker gets it, and close."""
        self._loop_thread.finish(self._close)

    async def _receive(self, queue: str, wait_s: float) -> TaskDelivery | None:
        receiver = self._receivers.get(queue)
        if receiver is None:
            receiver = self._receivers[queue] = self._make(queue)
        try:
            async with asyncio.timeout(wait_s):
                await receiver.__aenter__()
        except TimeoutError:
            return None  # Its links are being opened meanwhile.
        except FAILURES:
            # It has closed itself; the next call makes another one.
            self._receivers.pop(queue, None)
            raise
        found = await receiver.receive_messages(1, max_wait_time=wait_s)
        if not found:
            return None
        delivery = TaskDelivery(queue, receiver, found[0])
        self._unsettled.add(delivery)
        return delivery

    def _make(self, queue: str) -> PairedReceiver:
        if self._paired is None:
            primary, secondary = map(Namespace.of, self._sides)
            self._recorder = open_recorder(primary, secondary, self._options)
            self._paired = PairedReceivers(primary, secondary, self._options, self._recorder)
        return self._paired.make(queue, queue, {})

    async def _settle(self, delivery: TaskDelivery, how: Settlement) -> None:
        is_one_late = bool(self._settling)
        task = self._begin(delivery, how)
        if not is_one_late:
            await asyncio.wait({task}, timeout=SETTLE_WAIT_S)

    def _begin(self, delivery: TaskDelivery, how: Settlement) -> asyncio.Task[None]:
        """Settle a message in the background."""

        async def settle() -> None:
            try:
                await getattr(delivery.receiver, f"{how}_message")(delivery.message)
            except FAILURES as error:
                text = "%s: a task could not be settled and will be delivered again: %s"
                log.warning(text, delivery.queue, error_text(error))

        delivery.lock.end()
        self._unsettled.discard(delivery)
        task = asyncio.create_task(settle(), name=f"{how} a task of {delivery.queue}")
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return task

    async def _close(self) -> None:
        for delivery in tuple(self._unsettled):
            self._begin(delivery, "abandon")
        if self._settling:
            await asyncio.wait(self._settling, timeout=self._options.attempt_timeout_s)
        paired, self._paired = self._paired, None
        self._receivers.clear()
        if paired is not None:
            await paired.close()
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.ledger.close()
