"""The receiver of a pair without asyncio: the core's receiver on the pair's thread."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from azure.servicebus import ServiceBusReceivedMessage, ServiceBusSession

from twinbus.errors import PairClosedError

if TYPE_CHECKING:
    from twinbus.blocking.loop_thread import LoopThread
    from twinbus.pairing.receiving.receiver import PairedReceiver as CoreReceiver
    from twinbus.pairing.sdk.received import PairedSession
    from twinbus.status.receiving import ReceiverStatus

T = TypeVar("T")
W = TypeVar("W")


class PairedReceiver(Iterator[ServiceBusReceivedMessage]):
    """A receiver with the interface of `azure.servicebus.ServiceBusReceiver`.

    May be used by many threads at once. A call that is interrupted (Ctrl-C) gives back what it has
    received.
    """

    def __init__(self, core: CoreReceiver, loop_thread: LoopThread, renewer: Any) -> None:
        """`renewer` is the SDK's AutoLockRenewer for threads; None: locks are not renewed."""
        self.fully_qualified_namespace = core.fully_qualified_namespace
        self.entity_path = core.entity_path
        self._core = core
        self._loop_thread = loop_thread
        self._renewer = renewer
        self._session = None if core.session is None else _Session(core.session, self)
        self._is_renewing = False

    def __str__(self) -> str:
        return str(self._core)

    @property
    def client_identifier(self) -> str:
        return self._core.client_identifier

    @property
    def session(self) -> Any:
        """The session of this receiver; None: it receives without one."""
        return self._session

    @property
    def _running(self) -> bool:
        """The SDK's AutoLockRenewer reads it."""
        return self._core._running

    def status(self) -> ReceiverStatus:
        return self._loop_thread.call(self._core.status)

    def __enter__(self) -> Self:
        self.run(self._core.__aenter__)
        self._renew_session()
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def close(self) -> None:
        """Let settlements in flight end, drain, release what was not handed out. Idempotent."""
        self._loop_thread.finish(self._core.close)

    def __iter__(self) -> Iterator[ServiceBusReceivedMessage]:
        return self

    def __next__(self) -> ServiceBusReceivedMessage:
        try:
            return self._received([self.run(self._core.__anext__)])[0]
        except StopAsyncIteration:
            raise StopIteration from None

    next = __next__
    """The SDK's receiver has it by this name too."""

    def receive_messages(
        self, max_message_count: int | None = 1, max_wait_time: float | None = None
    ) -> list[ServiceBusReceivedMessage]:
        """Receive up to `max_message_count` messages; an empty list if none came in time."""
        found = self.run(lambda: self._core.receive_messages(max_message_count, max_wait_time))
        return self._received(found)

    def receive_deferred_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None, **kwargs: Any
    ) -> list[ServiceBusReceivedMessage]:
        """Receive messages that were deferred, each from the side that its number names."""
        receive = self._core.receive_deferred_messages
        return self._received(
            self.run(lambda: receive(sequence_numbers, timeout=timeout, **kwargs))
        )

    def peek_messages(
        self,
        max_message_count: int = 1,
        *,
        sequence_number: int = 0,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> list[ServiceBusReceivedMessage]:
        """Browse messages without locking them: those of the primary, then those of the twin."""
        named: dict[str, Any] = {"sequence_number": sequence_number, "timeout": timeout, **kwargs}
        return self.run(lambda: self._core.peek_messages(max_message_count, **named))

    def complete_message(self, message: ServiceBusReceivedMessage) -> None:
        """Remove the message from its entity."""
        self._settle(message, "complete")

    def abandon_message(self, message: ServiceBusReceivedMessage) -> None:
        """Let the message be delivered again."""
        self._settle(message, "abandon")

    def defer_message(self, message: ServiceBusReceivedMessage) -> None:
        """Put the message aside; it is received only by its sequence number."""
        self._settle(message, "defer")

    def dead_letter_message(
        self,
        message: ServiceBusReceivedMessage,
        reason: str | None = None,
        error_description: str | None = None,
    ) -> None:
        """Move the message to the dead-letter queue of its side."""
        self._settle(message, "dead-letter", (reason, error_description))

    def _settle(
        self, message: ServiceBusReceivedMessage, action: str, texts: tuple[str | None, ...] = ()
    ) -> None:
        begin = partial(self._core.begin_settling, message, action, texts=texts)
        self._unless_closed(self._loop_thread.ask, begin)

    def renew_message_lock(
        self, message: ServiceBusReceivedMessage, *, timeout: float | None = None, **kwargs: Any
    ) -> datetime:
        """Renew the lock of a message; return when it ends."""
        return self.run(lambda: self._core.renew_message_lock(message, timeout=timeout, **kwargs))

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a method of the core; a closed pair raises what a closed receiver does."""
        return self._unless_closed(self._loop_thread.run, work)

    def _unless_closed(self, call: Callable[[W], T], work: W) -> T:
        try:
            return call(work)
        except PairClosedError:
            self._core.require_live()
            raise

    def _received(
        self, messages: list[ServiceBusReceivedMessage]
    ) -> list[ServiceBusReceivedMessage]:
        self._renew_session()
        if self._renewer is not None and self._session is None:
            for message in messages:
                self._renewer.register(self, message)
        return messages

    def _renew_session(self) -> None:
        if self._renewer is None or self._session is None or self._is_renewing:
            return
        self._is_renewing = True
        self._renewer.register(self, self._session)


class _Session(ServiceBusSession):
    """The session of a blocking receiver; the SDK's AutoLockRenewer for threads takes it."""

    def __init__(self, core: PairedSession, receiver: PairedReceiver) -> None:
        self._core = core
        super().__init__(core.session_id, receiver)  # type: ignore[arg-type]
        self._blocking = receiver
        self._session_start = datetime.now(UTC)  # type: ignore[assignment]

    @property
    def session_id(self) -> str:
        return self._core.session_id

    @property  # type: ignore[override]  # the SDK annotates its sync and async sessions differently
    def _locked_until_utc(self) -> datetime | None:
        return self._core.locked_until_utc

    @_locked_until_utc.setter
    def _locked_until_utc(self, until: datetime | None) -> None:
        """The SDK's constructor sets it; the core knows it."""

    @property
    def auto_renew_error(self) -> Any:
        """Why the SDK's renewer gave up; the core has it in the errors that it raises."""
        return self._core.auto_renew_error

    @auto_renew_error.setter
    def auto_renew_error(self, error: Any) -> None:
        self._core.auto_renew_error = error

    @property
    def _lock_expired(self) -> bool:
        return self._core.is_lost

    def get_state(self, *, timeout: float | None = None, **kwargs: Any) -> bytes:
        """Return the state of the session; None: it has none."""
        return self._blocking.run(lambda: self._core.get_state(timeout=timeout, **kwargs))

    def set_state(
        self,
        state: str | bytes | bytearray | None,
        *,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Store a state with the session; None removes it."""
        self._blocking.run(lambda: self._core.set_state(state, timeout=timeout, **kwargs))

    def renew_lock(self, *, timeout: float | None = None, **kwargs: Any) -> datetime:
        """Renew the lock of the session; return when it ends."""
        return self._blocking.run(lambda: self._core.renew_lock(timeout=timeout, **kwargs))
