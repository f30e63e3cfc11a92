"""A sender of the SDK's own shape whose messages reach the primary or, in an outage, the backlog.

    async with pair.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("order 1"))

It may be used by many tasks at once.
"""

# ruff: noqa: ASYNC109  # `timeout` is the name that the SDK gave it

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Self

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch

from twinbus.errors import PartialDivertError
from twinbus.pairing.core.events import EntityState, Route, SendFailed
from twinbus.pairing.sdk.batches import PairedMessageBatch
from twinbus.pairing.sdk.guards import glance
from twinbus.pairing.sdk.outgoing import Outgoing, id_of, with_id
from twinbus.pairing.sdk.sender_pool import SenderPool, attempt
from twinbus.pairing.sdk.warming import OPENING_S
from twinbus.pairing.sending.calls import SendingCall
from twinbus.pairing.sending.schedule_calls import ScheduleCall

if TYPE_CHECKING:
    from twinbus.pairing.observing.tracing import Tracing
    from twinbus.pairing.sending.client import PairedClient
    from twinbus.pairing.sending.watched_entity import WatchedEntity

__all__ = ["PairedSender"]

PRIMARY: Final = Route.PRIMARY
"""By a name of its own, for every healthy send asks for it, and enums are slow to find members."""

BATCH_BYTES: Final = 262_144
"""What every tier takes in one batch, for a batch made while nobody can be asked."""


class PairedSender:
    """Sends to one entity of the primary, or to a backlog queue while the entity is down."""

    def __init__(self, client: PairedClient, entity: WatchedEntity, pool: SenderPool) -> None:
        self.pool = pool
        self._client = client
        self._entity = entity
        self._choice = client.choice()
        self._place = client.place(entity, pool, self._choice)
        self._loop = asyncio.get_running_loop()
        if client.options.failover_interval_s < OPENING_S:
            pool.on_slow = self._get_ready
        self._stop_listening = entity.on_change(self._look_again)
        self._closed = False
        self._attempt_timeout_s = client.policy.attempt_timeout_s
        self._note = client.recorder.noting(entity.path)
        self._is_plain = client.options.session_order == "relaxed" and client.tracing is None
        """Whether nobody but the entity is asked where a message goes, and nobody looks on."""

    async def __aenter__(self) -> Self:
        """Nothing is opened: the primary may be down, and that must not show here."""
        self._require_open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"PairedSender({self.entity_name}, {self._entity.failover.state.value})"

    @property
    def entity_name(self) -> str:
        """The queue or topic."""
        return self._entity.path

    @property
    def fully_qualified_namespace(self) -> str:
        """The primary's."""
        return self._client.primary.fully_qualified_namespace

    async def send_messages(self, message: Any, *, timeout: float | None = None) -> None:
        """Return when the message, list or batch is stored: on the primary, or in the backlog.

        Never later than `timeout` seconds from now; None: the options' retries are the bound. An
        error that is raised has the ids of the messages in `message_ids`.
        """
        began = self._loop.time()
        deadline = self._deadline(timeout)
        measured = conduit = None
        if type(message) is ServiceBusMessage and self._is_plain:
            measured = glance(message, self._client.limits.watched)
        if measured is not None and self._entity.failover.route is PRIMARY:
            conduit = self.pool.take_ready(began)
        if measured is None or conduit is None:
            await self._send_all(message, deadline)
            return
        # From here on it is the way of nearly all messages: one, to an entity that takes it. It is
        # written out, for each call more is seen in the bench; what to do next is decided only
        # when it fails.
        pool, timeout_s = self.pool, self._attempt_timeout_s
        if deadline is not None:
            timeout_s = min(timeout_s, deadline - began)
        if measured[0] is None:
            message = with_id(message, self._client.message_ids)
            measured = id_of(message), measured[1]
        pool.watchdog.begin(conduit, began, timeout_s)
        try:
            await conduit.sdk.send_messages(message)
        except BaseException as caught:  # noqa: BLE001  # judged below, then raised or not
            failed = pool.ended(conduit, caught) or caught
            if failed is not caught:
                failed.__cause__ = caught
        else:
            now = self._loop.time()
            is_cancelled = pool.done(conduit, now)
            if self._note is not None:
                self._note(int((now - began) * 1e6), measured)
            self._entity.took(1)
            if is_cancelled:
                self._entity.raised += 1
                raise asyncio.CancelledError
            return
        outgoing = Outgoing(message, (message,), self._entity.path)
        try:
            await self._place.call(outgoing, deadline).go_on_after(failed, began, timeout_s)
        except BaseException:
            self._entity.raised += 1
            raise

    async def _send_all(self, message: Any, deadline: float | None) -> None:
        """Send whatever was given, with everything that there may be to decide."""
        ids, limits = self._client.message_ids, self._client.limits
        outgoing = Outgoing.of(message, self._entity.path, ids, limits.watched)
        if not outgoing.messages:
            return
        call = self._place.call(outgoing, deadline)
        try:
            if outgoing.suspects:
                call.guard()
            if self._client.tracing is None:
                await call.run()
            else:
                await self._traced(call, self._client.tracing)
        except BaseException as error:
            self._entity.raised += _raised(error, len(outgoing))
            raise
        if outgoing.mappings:
            ids.forget(outgoing.mappings)

    async def _traced(self, call: SendingCall, tracing: Tracing) -> None:
        with tracing.send(self._entity, len(call.outgoing)) as span:
            await call.run()
            span.set_attribute("twinbus.route", call.route.value)

    async def schedule_messages(
        self, messages: Any, schedule_time_utc: datetime, *, timeout: float | None = None
    ) -> list[int]:
        """Sequence numbers of messages that the primary will enqueue at a time.

        ScheduleUnavailableError while the entity is failed over: a message with its own
        `scheduled_enqueue_time_utc` can be sent all the same.
        """
        deadline = self._deadline(timeout)
        outgoing = Outgoing.of(messages, self._entity.path, self._client.message_ids)
        if not len(outgoing):
            return []

        def schedule(sdk: Any) -> Awaitable[list[int]]:
            asked: Awaitable[list[int]] = sdk.schedule_messages(outgoing.payload, schedule_time_utc)
            return asked

        numbers: list[int] = await ScheduleCall(self._place, schedule, outgoing.ids, deadline).run()
        self._client.message_ids.forget(outgoing.mappings)
        return numbers

    async def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None
    ) -> None:
        """Cancel what `schedule_messages` scheduled; ScheduleUnavailableError as there."""
        deadline = self._deadline(timeout)

        def cancel(sdk: Any) -> Awaitable[None]:
            asked: Awaitable[None] = sdk.cancel_scheduled_messages(sequence_numbers)
            return asked

        await ScheduleCall(self._place, cancel, (), deadline).run()

    async def create_message_batch(
        self, max_size_in_bytes: int | None = None
    ) -> ServiceBusMessageBatch:
        """An empty batch of the size that the entity takes, with room for the aliases.

        It is full when its messages would not fit the entity, or would not fit a backlog queue
        with their aliases. As long as no backlog queue was asked for its limit it is taken to be
        that of the entity; `send_messages` splits a batch that one finds too large all the same.
        While the entity cannot be asked either, the batch has the size that every tier takes.
        """
        self._require_open()
        conduit = self.pool.take() if self._entity.failover.route is Route.PRIMARY else None
        if conduit is None:
            return self._batch(max_size_in_bytes)

        def create(sdk: Any) -> Awaitable[ServiceBusMessageBatch]:
            made: Awaitable[ServiceBusMessageBatch] = sdk.create_message_batch(max_size_in_bytes)
            return made

        try:
            batch = await attempt(self.pool, conduit, create, self._client.policy.attempt_timeout_s)
        except Exception as error:
            # Opening the link counts like sending (SPEC 3); the batch itself needs no primary.
            counts = self._client.counts(error)
            text = f"{type(error).__name__}: {error}"
            self._entity.tell(SendFailed(counts=counts, error=text))
            if not counts:
                raise
            return self._batch(max_size_in_bytes)
        return self._batch(
            batch.max_size_in_bytes,
            # Those of its own the SDK sends as they are; it would pack others again.
            amqp_transport=batch._amqp_transport,
            tracing_attributes=batch._tracing_attributes,
        )

    def _batch(self, max_size_in_bytes: int | None, **sdk: Any) -> PairedMessageBatch:
        limit_bytes = self.pool.batch_limit_bytes or BATCH_BYTES
        return PairedMessageBatch(
            max_size_in_bytes or limit_bytes,
            room_bytes=self._client.limits.smallest_batch or limit_bytes,
            path=self._entity.path,
            ids=self._client.message_ids,
            **sdk,
        )

    async def close(self) -> None:
        """Close it when calls in flight have ended; idempotent."""
        if not self._closed:
            self._closed = True
            self._stop_listening()
            await self.pool.close(self._client.policy.attempt_timeout_s)
            self._client.forget(self)

    def _look_again(self) -> None:
        """The entity changed: those who wait for a sender may have a better way now."""
        failover = self._entity.failover
        if failover.state is EntityState.SUSPECT:
            self._get_ready()
        if failover.route is not Route.PRIMARY:
            self.pool.renew()
        self.pool.rouse()

    def _get_ready(self) -> None:
        """A failover may be near: have a link to this sender's backlog queue open by then."""
        self._client.warm(self._choice)

    def _deadline(self, timeout: float | None) -> float | None:
        if self._closed or self._client.closed:
            self._require_open()
        if timeout is None:
            return None
        if timeout <= 0:
            raise ValueError(f"the timeout must be greater than 0 seconds; got {timeout!r}")
        return self._loop.time() + timeout

    def _require_open(self) -> None:
        self._client.require_open()
        if self._closed:
            raise ValueError(f"the sender to {self.entity_name} was closed; get a new one")


def _raised(error: BaseException, count: int) -> int:
    """How many of a call's messages are not known to be stored."""
    return len(error.not_stored_ids) if isinstance(error, PartialDivertError) else count
