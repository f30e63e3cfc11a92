"""Handles one message: runs the handler, renews the lock meanwhile, settles the message.

It completes on return, abandons on an exception and dead-letters on DeadLetterError. A failure is
one log line and one call of `on_error`; it never ends the processor.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final, Protocol

from azure.servicebus import ServiceBusReceivedMessage

from twinbus.errors import DeadLetterError, error_text
from twinbus.pairing.core.processing import ProcessSettings, Settlement, settlement_of
from twinbus.pairing.receiving.held_lock import LOCK_LOST, RENEWAL_TIMEOUT_S, HeldLock
from twinbus.wording import short

log = logging.getLogger("twinbus.processor")

DEAD_LETTER_TEXT_MAX: Final = 4_096
"""Characters that the service takes as a dead-letter reason or description."""


class Receiver(Protocol):
    """What a processor uses of a receiver: the SDK's asyncio receiver or a paired one."""

    @property
    def session(self) -> Any:
        """The session with `renew_lock` and `locked_until_utc`; None: the receiver has none."""

    async def __aenter__(self) -> Any:
        """Open the link."""

    async def close(self) -> None:
        """Give back what was not handed out, and close the link."""

    async def receive_messages(
        self, max_message_count: int | None = 1, max_wait_time: float | None = None
    ) -> list[ServiceBusReceivedMessage]:
        """Return messages, or an empty list after the wait."""

    async def complete_message(self, message: ServiceBusReceivedMessage) -> None:
        """Remove the message from the queue."""

    async def abandon_message(self, message: ServiceBusReceivedMessage) -> None:
        """Give the message back; it is delivered again."""

    async def defer_message(self, message: ServiceBusReceivedMessage) -> None:
        """Set the message aside; it is received by its sequence number."""

    async def dead_letter_message(
        self,
        message: ServiceBusReceivedMessage,
        reason: str | None = None,
        error_description: str | None = None,
    ) -> None:
        """Move the message to the dead-letter queue."""

    async def renew_message_lock(
        self,
        message: ServiceBusReceivedMessage,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> datetime:
        """Return until when the message is locked."""


Handler = (
    Callable[[ServiceBusReceivedMessage], Awaitable[object]]
    | Callable[[ServiceBusReceivedMessage, Any], Awaitable[object]]
)
"""Takes a message; one with a second parameter gets the receiver too, to settle or defer by itself
and to read the state of the session."""


def with_receiver(handler: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Return the handler as a function of a message and its receiver."""
    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):
        parameters = []  # written in C: it takes a message
    required = [
        one
        for one in parameters
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) and one.default is one.empty
    ]
    if len(required) > 1:
        return handler
    return lambda message, _receiver: handler(message)


def require_async(handler: object) -> None:
    """Raise TypeError unless the handler is an async function, or an object called as one."""
    called = getattr(type(handler), "__call__", None)  # noqa: B004
    if not inspect.iscoroutinefunction(handler) and not inspect.iscoroutinefunction(called):
        raise TypeError(
            f"handler must be an async function of a message; got {handler!r:.80}; for a plain"
            " function use twinbus.blocking, whose handlers run on threads"
        )


class MessageHandling:
    """Runs the handler of a processor for each message, and settles the message."""

    def __init__(self, name: str, handler: Callable[..., Any], settings: ProcessSettings) -> None:
        self._name = name
        self._handler = with_receiver(handler)
        self._settings = settings
        self.in_handlers: set[asyncio.Task[Any]] = set()
        """Tasks whose handler runs. A stop cancels these, and lets settlements end."""
        self.handled = self.failed = self.dead_lettered = 0
        """Messages by how they ended, for the status (`ProcessorStatus`)."""

    async def handle(
        self, receiver: Receiver, message: ServiceBusReceivedMessage, session: HeldLock | None
    ) -> None:
        """Run the handler and settle the message; `session` is the lock of its session.

        Cancelled while the handler runs, it abandons the message.
        """
        task = asyncio.current_task()
        assert task is not None
        self.in_handlers.add(task)
        lock = session or self._lock_of_message(receiver, message)
        error: BaseException | None = None
        try:
            await self._handler(message, receiver)
        except (Exception, asyncio.CancelledError) as raised:  # noqa: BLE001  # it is reported
            error = raised
        finally:
            self.in_handlers.discard(task)
            if session is None:
                lock.end()
        await self._settle(receiver, message, error, lock)
        if session is None:
            await lock.ended()

    async def give_back(self, receiver: Receiver, message: ServiceBusReceivedMessage) -> None:
        """Abandon a message whose handler was not started because the processor stops."""
        try:
            await receiver.abandon_message(message)
        except Exception as failed:  # noqa: BLE001  # its lock ends by itself
            self._report(failed, message, "could not be abandoned")

    def lock_of_session(self, receiver: Receiver) -> HeldLock:
        """Return the lock of the session that the receiver has accepted."""
        session = receiver.session
        return HeldLock(
            lambda: session.renew_lock(timeout=RENEWAL_TIMEOUT_S),
            session.locked_until_utc,
            self._settings.max_lock_renewal_s,
            lambda error: self.report(
                error, f"the lock of session {session.session_id!r} was lost: {line_of(error)}"
            ),
        )

    def _lock_of_message(self, receiver: Receiver, message: ServiceBusReceivedMessage) -> HeldLock:
        return HeldLock(
            lambda: receiver.renew_message_lock(message, timeout=RENEWAL_TIMEOUT_S),
            message.locked_until_utc,
            self._settings.max_lock_renewal_s,
            lambda error: self._report(error, message, "lost its lock and is delivered again"),
        )

    async def _settle(
        self,
        receiver: Receiver,
        message: ServiceBusReceivedMessage,
        error: BaseException | None,
        lock: HeldLock,
    ) -> None:
        # The SDK has no other public mark of a message that was settled.
        is_settled = message.lock_token is None
        settlement = settlement_of(error, is_settled=is_settled, is_lock_lost=lock.is_lost)
        if error is not None and not isinstance(error, DeadLetterError):
            end = "settled by its handler" if is_settled else "its lock was lost"
            end = "abandoned" if settlement is Settlement.ABANDON else end
            self._report(error, message, f"failed on delivery {_delivery(message)} ({end})")
        try:
            match settlement:
                case Settlement.COMPLETE:
                    await receiver.complete_message(message)
                case Settlement.ABANDON:
                    await receiver.abandon_message(message)
                case Settlement.DEAD_LETTER:
                    assert isinstance(error, DeadLetterError)
                    await receiver.dead_letter_message(
                        message,
                        reason=error.reason[:DEAD_LETTER_TEXT_MAX],
                        error_description=error.description[:DEAD_LETTER_TEXT_MAX],
                    )
                    log.warning(
                        "%s: %s dead-lettered: %s", self._name, _named(message), short(error)
                    )
        except Exception as failed:  # noqa: BLE001  # the service delivers the message again
            if isinstance(failed, LOCK_LOST):
                lock.lose()
            self.failed += 1
            self._report(failed, message, f"is delivered again ({settlement.value} failed)")
        else:
            self._count(settlement, is_done=is_settled and error is None)

    def _count(self, settlement: Settlement, *, is_done: bool) -> None:
        """Count a message; `is_done`: its handler settled it by itself and returned."""
        if settlement is Settlement.DEAD_LETTER:
            self.dead_lettered += 1
        elif settlement is Settlement.COMPLETE or is_done:
            self.handled += 1
        else:
            self.failed += 1

    def _report(self, error: BaseException, message: ServiceBusReceivedMessage, what: str) -> None:
        self.report(error, f"{_named(message)} {what}: {line_of(error)}", message)

    def report(
        self, error: BaseException, text: str, message: ServiceBusReceivedMessage | None = None
    ) -> None:
        """Write one line to the log, and call `on_error` unless a handler was cancelled."""
        log.warning("%s: %s", self._name, text)
        if self._settings.on_error is None or not isinstance(error, Exception):
            return
        try:
            self._settings.on_error(error, message)
        except Exception as failed:  # noqa: BLE001  # the user's own; it must not end the processor
            log.warning("%s: on_error raised %s", self._name, line_of(failed))


def line_of(error: BaseException) -> str:
    """Return an error as one short line for the log."""
    return short(error_text(error))


def _named(message: ServiceBusReceivedMessage) -> str:
    if message.message_id is None:
        return f"message with sequence number {message.sequence_number}"
    return f"message {message.message_id!r}"


def _delivery(message: ServiceBusReceivedMessage) -> int:
    return (message.delivery_count or 0) + 1
