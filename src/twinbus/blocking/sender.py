"""A sender with the methods of the SDK's sync sender, over the paired sender of the core."""

from __future__ import annotations

import contextlib
import time
from datetime import datetime
from typing import Any, Never, Protocol, Self

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch

from twinbus.blocking.loop_thread import LoopThread
from twinbus.errors import PairClosedError
from twinbus.pairing.lifecycle.closing import BlockingOnly
from twinbus.pairing.sdk.direct_links import DirectLinks
from twinbus.pairing.sdk.guards import quick_check
from twinbus.pairing.sending.entity_monitor import HEALTHY
from twinbus.pairing.sending.send_calls import call_of
from twinbus.pairing.sending.sender import (
    Messages,
    NamedSender,
    SdkMessages,
    ids_of,
    warn_of_unknown,
)
from twinbus.pairing.sending.sender import PairedSender as CoreSender
from twinbus.servicebus.failures import is_timeout


class MessageSender(NamedSender, Protocol):
    """A sender to one queue or topic: `azure.servicebus.ServiceBusSender` or `PairedSender`."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: Any) -> None: ...

    def send_messages(
        self, message: SdkMessages | ServiceBusMessageBatch, *, timeout: float | None = None
    ) -> None:
        """Send a message, a list or a batch."""

    def schedule_messages(
        self,
        messages: SdkMessages,
        schedule_time_utc: datetime,
        *,
        timeout: float | None = None,
    ) -> list[int]:
        """Schedule messages; return their sequence numbers."""

    def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None
    ) -> None:
        """Cancel what `schedule_messages` scheduled."""

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """Return an empty batch."""

    def close(self) -> None:
        """Close the sender."""


class PairedSender(BlockingOnly):
    """Sends to one entity of the primary, or to a backlog queue while the entity is down."""

    def __init__(self, core: CoreSender, loop_thread: LoopThread, links: DirectLinks) -> None:
        self._core = core
        self._target = core.target
        self._loop_thread = loop_thread
        self._links = links

    def __enter__(self) -> Self:
        """Begin to open the link in the background: the primary may be down, and must not raise."""
        self._loop_thread.run(self._core.__aenter__)
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._core)

    @property
    def client_identifier(self) -> str:
        """Its name for the service, as given or made for it."""
        return self._core.client_identifier

    @property
    def entity_name(self) -> str:
        """The queue or topic."""
        return self._core.entity_name

    @property
    def fully_qualified_namespace(self) -> str:
        """The primary's."""
        return self._core.fully_qualified_namespace

    def send_messages(
        self,
        message: Messages | ServiceBusMessageBatch,
        *,
        timeout: float | None = None,
        **unknown: Never,
    ) -> None:
        """Return when the message, list or batch is stored: on the primary, or in the backlog.

        It returns or raises within `timeout` seconds; None: the options' retries bound it. An
        error has the ids of the messages in `message_ids`.
        """
        if unknown:
            warn_of_unknown(unknown)
        try:
            if not self._sent_directly(message, timeout):
                self._loop_thread.run(lambda: self._core.send_messages(message, timeout=timeout))
        except PairClosedError as error:
            raise self._with_ids(error, message) from error.__cause__

    def _with_ids(self, error: PairClosedError, messages: Any) -> PairClosedError:
        """The error with the ids of these messages; a loop that has ended does not know them."""
        error.message_ids = error.message_ids or ids_of(self._target, messages)
        return error

    def _sent_directly(self, message: Any, timeout: float | None) -> bool:
        """Send on the caller's thread, if a link is open for that; the core goes on if it fails."""
        core, loop_thread = self._core, self._loop_thread
        measured = self._measured(message, timeout)
        if measured is None or loop_thread.is_forked:
            return False
        began = time.monotonic()
        link = self._links.take(began)
        if link is None:
            return False
        try:
            self._links.send(link, message, core.attempt_timeout_s)
        except Exception as error:  # noqa: BLE001  # the core judges it
            failed = error
        except BaseException as error:
            # Interrupted: the core only takes note, because the result is unknown.
            with contextlib.suppress(RuntimeError):
                loop_thread.loop.call_soon_threadsafe(self._interrupted, message, error, began)
            raise
        else:
            if core.record_message is not None:
                core.record_message(int((self._target.state.now - began) * 1e6), measured)
            self._target.entity.succeeded_elsewhere()
            return True
        deadline = None if timeout is None else began + timeout
        loop_thread.run(lambda: self._failed(message, failed, began, deadline))
        return True

    def _measured(self, message: Any, timeout: Any) -> tuple[str, int] | None:
        """Id and size of a message that may go directly; None: it may not.

        Only what is simple may: one small message, to a healthy entity, with time for a whole
        attempt.
        """
        target = self._target
        if type(message) is not ServiceBusMessage or not self._core.is_direct:
            return None
        if target.entity.failover.state is not HEALTHY or target.pool.closed or target.state.closed:
            return None
        if timeout is not None and not (
            type(timeout) in (int, float) and timeout > self._core.attempt_timeout_s + 1
        ):
            return None
        message_id, size_bytes = quick_check(message, target.state.limits.watched) or (None, None)
        if message_id is None or size_bytes is None or size_bytes > self._links.bytes_max:
            return None
        return message_id, size_bytes

    def _interrupted(self, message: ServiceBusMessage, error: BaseException, began: float) -> None:
        call_of(self._target, message, None).record(began, error)
        self._target.entity.call_raised(1, error)

    async def _failed(
        self, message: ServiceBusMessage, error: Exception, began: float, deadline: float | None
    ) -> None:
        """On the loop: decide what follows a failure, as after any first attempt."""
        if is_timeout(error):
            cause, error = error, TimeoutError()
            error.__cause__ = cause
        try:
            call = call_of(self._target, message, deadline)
            await call.run_after(error, began, self._core.attempt_timeout_s)
        except BaseException as raised:
            self._target.entity.call_raised(1, raised)
            raise

    def schedule_messages(
        self,
        messages: Messages,
        schedule_time_utc: datetime,
        *,
        timeout: float | None = None,
        **unknown: Never,
    ) -> list[int]:
        """Schedule messages on the primary; return their sequence numbers.

        ScheduleUnavailableError and ScheduleUnknownError as from `twinbus.PairedSender`.
        """
        if unknown:
            warn_of_unknown(unknown)
        try:
            return self._loop_thread.run(
                lambda: self._core.schedule_messages(messages, schedule_time_utc, timeout=timeout)
            )
        except PairClosedError as error:
            raise self._with_ids(error, messages) from error.__cause__

    def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None, **unknown: Never
    ) -> None:
        """Cancel what `schedule_messages` scheduled; it raises as that does."""
        if unknown:
            warn_of_unknown(unknown)
        self._loop_thread.run(
            lambda: self._core.cancel_scheduled_messages(sequence_numbers, timeout=timeout)
        )

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """An empty batch of the size that the entity takes, with room for the aliases."""
        return self._loop_thread.run(lambda: self._core.create_message_batch(max_size_in_bytes))

    def close(self) -> None:
        """Close the sender when calls in flight have ended; idempotent."""
        self._loop_thread.finish(self._core.close)
        if not self._loop_thread.is_forked:
            self._links.close(self._core.attempt_timeout_s)
