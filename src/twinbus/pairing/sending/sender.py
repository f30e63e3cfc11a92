"""A sender of the SDK's own shape whose messages reach the primary or, in an outage, the backlog.

    async with pair.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("order 1"))

Many tasks may use it at once. `MessageSender` is what it shares with the SDK's senders:

    async def remind(sender: MessageSender) -> None:
        await sender.send_messages(ServiceBusMessage("pay the bill"))
"""

# ruff: noqa: ASYNC109  # the SDK named the parameter `timeout`

from __future__ import annotations

import asyncio
import warnings
from asyncio import get_running_loop
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Never, Protocol, Self, TypeAlias

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage

from twinbus.errors import PairingError, PartialDivertError
from twinbus.pairing.core.failover import Route
from twinbus.pairing.lifecycle.closing import AsyncOnly
from twinbus.pairing.sdk.guards import id_of, quick_check
from twinbus.pairing.sdk.outgoing import Outgoing, PairedMessageBatch, with_id
from twinbus.pairing.sdk.sender_pool import was_carried_out
from twinbus.pairing.sending.calls import ScheduleCall, SendTarget, require_numbers, with_ids
from twinbus.pairing.sending.carrier import SenderCarrier
from twinbus.pairing.sending.send_calls import SendCall, call_of
from twinbus.status.document import EntityState

PRIMARY: Final = Route.PRIMARY
"""A name of its own: every healthy send reads it, and member lookup in an enum is slow."""

OPENING_S: Final = 0.6
"""Time to open a link to the backlog. If the failover interval is shorter, it is opened as soon as
an attempt on the primary is slow."""

BATCH_BYTES: Final = 262_144
"""The batch size that every tier takes, for a batch made while no link reports its limit."""


class PairedSender(AsyncOnly):
    """Sends to one entity of the primary, or to a backlog queue while the entity is down."""

    def __init__(
        self,
        target: SendTarget,
        pool: SenderCarrier,
        client_identifier: str,
        on_close: Callable[[PairedSender], None],
    ) -> None:
        """`pool` is that of the target."""
        self._client_identifier = client_identifier
        self.pool = pool
        self.target = target
        self._on_close = on_close
        self._state = state = target.state
        self._entity = target.entity
        self._loop = state.loop
        self._limits = state.limits
        self._closed = False
        self.attempt_timeout_s = state.policy.attempt_timeout_s
        self.record_message = state.recorder.message_recorder(target.entity.path)
        self.is_direct = target.sessions is None and state.tracing is None
        """Whether the entity's route alone decides where a message goes, and no span is needed."""
        self.pool.on_open_failed = self._opening_failed
        self.pool.jitter = state.jitter
        if state.options.failover_interval_s < OPENING_S:
            self.pool.on_slow = self._warm_backlog
        self._stop_listening = target.entity.on_change(self._entity_changed)

    async def __aenter__(self) -> Self:
        """Begin to open the link in the background: the primary may be down, and must not raise."""
        self._require_open()
        if self._entity.failover.route is PRIMARY:
            self.pool.open_ahead()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"PairedSender({self.entity_name}, {self._entity.failover.state.value})"

    @property
    def client_identifier(self) -> str:
        """Its name for the service, as given or made for it."""
        return self._client_identifier

    @property
    def entity_name(self) -> str:
        """The queue or topic."""
        return self._entity.path

    @property
    def fully_qualified_namespace(self) -> str:
        """The primary's."""
        return self._state.primary.fully_qualified_namespace

    async def send_messages(
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
        if self._closed or self._state.closed or get_running_loop() is not self._loop:
            self._require_open(message)
        began = self._loop.time()
        deadline = None if timeout is None else self._deadline(timeout)
        measured = pooled = None
        if type(message) is ServiceBusMessage and self.is_direct:
            # The smaller limit, of the backlog or of the entity's own link.
            watched, limit_bytes = self._limits.watched, self.pool.limit_bytes
            if limit_bytes is not None and limit_bytes < watched:
                watched = limit_bytes
            measured = quick_check(message, watched)
        if measured is not None and self._entity.failover.route is PRIMARY:
            pooled = self.pool.take_ready(began)
        if measured is None or pooled is None:
            await self._send_all(message, deadline)
            return
        # Nearly all messages take this road: one message, to an entity that is healthy. It is
        # written out, because every further call shows in the benchmark. A SendCall decides what
        # to do next only if the attempt fails.
        pool, timeout_s = self.pool, self.attempt_timeout_s
        if deadline is not None:
            timeout_s = min(timeout_s, deadline - began)
        if measured[0] is None:
            message = with_id(message, self._state.message_ids)
            measured = id_of(message), measured[1]
        failed: BaseException | None = None
        try:
            await pool.send_ready(pooled, message, began, timeout_s)  # type: ignore[arg-type]  # one, as measured
        except BaseException as caught:  # noqa: BLE001  # judged below, then raised or not
            failed = caught
        is_cancelled = isinstance(failed, asyncio.CancelledError) and was_carried_out(failed)
        if failed is None or is_cancelled:
            if self.record_message is not None:
                self.record_message(int((self._loop.time() - began) * 1e6), measured)
            self._entity.succeeded(1)
            if failed is not None:
                self._entity.call_raised(1, failed)
                raise failed
            return
        try:
            await call_of(self.target, message, deadline).run_after(failed, began, timeout_s)
        except BaseException as raised:
            self._entity.call_raised(1, raised)
            raise

    async def _send_all(self, message: Any, deadline: float | None) -> None:
        """Send one message, a list or a batch, wherever the decisions lead."""
        ids, tracing = self._state.message_ids, self._state.tracing
        outgoing = Outgoing.of(message, self._entity.path, ids, self._limits.watched)
        if not outgoing.messages:
            return
        call = SendCall(self.target, outgoing, deadline)
        try:
            if outgoing.suspects:
                call.guard()
            if tracing is None:
                await call.run()
            else:
                with tracing.send(self._entity.path, len(outgoing)) as span:
                    await call.run()
                    span.set_attribute("twinbus.route", call.route.value)
        except PartialDivertError as error:
            self._entity.call_raised(len(error.not_stored_ids), error)
            raise
        except BaseException as error:
            self._entity.call_raised(len(outgoing), error)
            raise
        if outgoing.mappings:
            ids.forget(outgoing.mappings)

    async def schedule_messages(
        self,
        messages: Messages,
        schedule_time_utc: datetime,
        *,
        timeout: float | None = None,
        **unknown: Never,
    ) -> list[int]:
        """Schedule messages on the primary; return their sequence numbers.

        ScheduleUnavailableError while the entity is failed over; send messages with
        `scheduled_enqueue_time_utc` instead, these are diverted. ScheduleUnknownError if no answer
        came: the call is not repeated, and a copy may be scheduled. After a timeout that error is
        an OperationTimeoutError too.
        """
        if unknown:
            warn_of_unknown(unknown)
        self._require_open(messages)
        deadline = self._deadline(timeout)
        outgoing = Outgoing.of(messages, self._entity.path, self._state.message_ids)
        if not len(outgoing):
            return []
        call = ScheduleCall(
            self.target,
            lambda sdk: sdk.schedule_messages(outgoing.payload, schedule_time_utc),
            outgoing.ids,
            deadline,
            doubt="the messages of message_ids may be scheduled, under numbers that are not known",
        )
        try:
            numbers: list[int] = await call.run()
        except BaseException as error:
            self._entity.call_raised(len(outgoing), error)
            raise
        self._state.message_ids.forget(outgoing.mappings)
        require_numbers(numbers, self._entity.path, outgoing.ids)
        return numbers

    async def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None, **unknown: Never
    ) -> None:
        """Cancel what `schedule_messages` scheduled; it raises as that does."""
        if unknown:
            warn_of_unknown(unknown)
        self._require_open()
        deadline = self._deadline(timeout)
        if not isinstance(sequence_numbers, int) and not sequence_numbers:
            return
        call = ScheduleCall(
            self.target,
            lambda sdk: sdk.cancel_scheduled_messages(sequence_numbers),
            (),
            deadline,
            doubt=f"the scheduled messages {sequence_numbers} may be cancelled",
        )
        try:
            await call.run()
        except BaseException as error:
            self._entity.call_raised(0, error)
            raise

    async def create_message_batch(
        self, max_size_in_bytes: int | None = None
    ) -> ServiceBusMessageBatch:
        """An empty batch of the size that the entity takes, with room for the aliases.

        It is full when its messages would not fit the entity, or would not fit a backlog queue
        with their aliases. Until a backlog queue reports its limit, the limit of the entity
        stands in for it; `send_messages` splits a batch that a queue still finds too large. While
        the entity cannot be reached either, the batch has the size that every tier takes.
        """
        self._require_open()
        pooled = self.pool.take() if self._entity.failover.route is Route.PRIMARY else None
        if pooled is None:
            return self._batch(max_size_in_bytes)
        try:
            batch = await self.pool.attempt(
                pooled,
                lambda sdk: sdk.create_message_batch(max_size_in_bytes),
                self.attempt_timeout_s,
            )
        except Exception as error:
            # Opening the link counts like sending; the batch itself needs no primary.
            counts = self._state.counts(error)
            self._entity.attempt_failed(error, counts=counts)
            if not counts:
                self._entity.call_raised(0, error)
                raise
            return self._batch(max_size_in_bytes)
        return self._batch(batch.max_size_in_bytes, batch)

    def _batch(
        self, max_size_in_bytes: int | None, like: ServiceBusMessageBatch | None = None
    ) -> PairedMessageBatch:
        limit_bytes = self.pool.batch_limit_bytes or BATCH_BYTES
        return PairedMessageBatch(
            max_size_in_bytes or limit_bytes,
            room_bytes=self._limits.smallest_batch or limit_bytes,
            path=self._entity.path,
            ids=self._state.message_ids,
            like=like,
        )

    async def close(self) -> None:
        """Close the sender when calls in flight have ended; idempotent."""
        if not self._closed:
            self._state.require_loop()
            self._closed = True
            self._stop_listening()
            await self.pool.close(self.attempt_timeout_s)
            self._on_close(self)

    def _entity_changed(self) -> None:
        """Prepare for a failover, and have calls that wait for a sender check the route again."""
        failover = self._entity.failover
        if failover.state is EntityState.SUSPECT:
            self._warm_backlog()
        if failover.route is not Route.PRIMARY:
            self.pool.invalidate()
        self.pool.wake_all()

    def _opening_failed(self, error: Exception) -> None:
        """Count a link that did not open after its callers had given up (docs/failures.md)."""
        counts = self._state.counts(error)
        self._entity.attempt_failed(error, counts=counts)

    def _warm_backlog(self) -> None:
        """Open a link to this sender's twin or backlog queue before a failover needs it."""
        self._state.warm(self.target.first)

    def _deadline(self, timeout: float | None) -> float | None:
        if timeout is None:
            return None
        try:
            deadline, is_positive = self._loop.time() + timeout, timeout > 0
        except TypeError:
            text = f"the timeout must be a number of seconds or None; got {timeout!r}"
            raise TypeError(text) from None
        if not is_positive:
            raise ValueError(f"the timeout must be greater than 0 seconds; got {timeout!r}")
        return deadline

    def _require_open(self, messages: Any = ()) -> None:
        """Raise if the sender or the pair was closed, with the ids of these messages.

        Raise too if the caller runs on another event loop.
        """
        self._state.require_loop()
        if not self._closed and not self._state.closed:
            return
        ids = ids_of(self.target, messages)
        try:
            self._state.require_open()
        except PairingError as error:
            raise with_ids(error, ids) from error.__cause__
        text = f"the sender to {self.entity_name} was closed; get a new one"
        raise with_ids(ValueError(text), ids)


def ids_of(target: SendTarget, messages: Any) -> tuple[str, ...]:
    """The ids of messages given to a call; none for what is no message."""
    try:
        return Outgoing.of(messages, target.entity.path, target.state.message_ids).ids
    except Exception:  # noqa: BLE001  # what is no message has no id
        return ()


def warn_of_unknown(unknown: Mapping[str, Any]) -> None:
    """Warn the caller of a sender's method about keywords that it ignores, as the SDK does.

    The methods declare them as `Never`, so that a type checker refuses a misspelt `timeout`.
    """
    warnings.warn(f"Unsupported keyword args: {dict(unknown)}", stacklevel=3)


Message: TypeAlias = ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any]
"""One message in any form that the SDK's senders take; a mapping has the keywords of
ServiceBusMessage."""

Messages: TypeAlias = Message | Iterable[Message]
"""What a paired sender sends and schedules; `send_messages` takes a ServiceBusMessageBatch too."""

SdkMessages: TypeAlias = (
    Message
    | Iterable[ServiceBusMessage]
    | Iterable[AmqpAnnotatedMessage]
    | Iterable[Mapping[str, Any]]
)
"""What the SDK's own annotations allow: the messages of one list are of one form."""


class NamedSender(Protocol):
    """What every sender of the SDK, and every paired sender, tells of itself."""

    @property
    def client_identifier(self) -> str:
        """Its name for the service."""

    @property
    def entity_name(self) -> str:
        """The queue or topic."""

    @property
    def fully_qualified_namespace(self) -> str:
        """The host of the namespace; for a paired sender the primary's."""


class MessageSender(NamedSender, Protocol):
    """A sender to one queue or topic: `azure.servicebus.aio.ServiceBusSender` or `PairedSender`."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: Any) -> None: ...

    async def send_messages(
        self, message: SdkMessages | ServiceBusMessageBatch, *, timeout: float | None = None
    ) -> None:
        """Send a message, a list or a batch."""

    async def schedule_messages(
        self,
        messages: SdkMessages,
        schedule_time_utc: datetime,
        *,
        timeout: float | None = None,
    ) -> list[int]:
        """Schedule messages; return their sequence numbers."""

    async def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None
    ) -> None:
        """Cancel what `schedule_messages` scheduled."""

    async def create_message_batch(
        self, max_size_in_bytes: int | None = None
    ) -> ServiceBusMessageBatch:
        """Return an empty batch."""

    async def close(self) -> None:
        """Close the sender."""
