"""A sender with the methods of the SDK's sync sender, over the paired sender of the core."""

from __future__ import annotations

import contextlib
import time
from datetime import datetime
from typing import Any, Never, Protocol, Self

from azure.servicebus import ServiceBusMessageBatch

from twinbus.blocking.loop_thread import LoopThread
from twinbus.errors import PairClosedError
from twinbus.pairing.lifecycle.closing import BlockingOnly
from twinbus.pairing.sdk.direct_links import DirectLinks
from twinbus.pairing.sending.send_calls import DirectAttempts
from twinbus.pairing.sending.sender import (
    Messages,
    NamedSender,
    SdkMessages,
    ids_of,
    warn_of_unknown,
)
from twinbus.pairing.sending.sender import PairedSender as CoreSender


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
        self._loop_thread = loop_thread
        self._attempts = DirectAttempts(core.target)
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
        error.message_ids = error.message_ids or ids_of(self._core.target, messages)
        return error

    def _sent_directly(self, message: Any, timeout: float | None) -> bool:
        """Send on the caller's thread, if a link is open for that; the core goes on if it fails."""
        attempts, loop_thread = self._attempts, self._loop_thread
        measured = attempts.measured(message, timeout)
        if measured is None or loop_thread.is_forked:
            return False
        began = time.monotonic()
        link = self._links.take(began)
        if link is None:
            return False
        try:
            self._links.send(link, message, attempts.timeout_s)
        except Exception as error:  # noqa: BLE001  # the core judges it
            failed = error
        except BaseException as error:
            # Interrupted: the core only takes note.
            with contextlib.suppress(RuntimeError):
                loop_thread.loop.call_soon_threadsafe(attempts.interrupted, message, error, began)
            raise
        else:
            attempts.succeeded(began, measured)
            return True
        deadline = None if timeout is None else began + timeout
        loop_thread.run(lambda: attempts.failed(message, failed, began, deadline))
        return True

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
            self._links.close(self._attempts.timeout_s)
