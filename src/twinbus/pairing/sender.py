"""A sender of the SDK's own shape whose messages reach the primary or, in an outage, the backlog.

    async with pair.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("order 1"))

It may be used by many tasks at once.
"""

# ruff: noqa: ASYNC109  # `timeout` is the name that the SDK gave it

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Self

from azure.servicebus import ServiceBusMessageBatch

from twinbus.pairing.calls import Place, ScheduleCall, SendingCall
from twinbus.pairing.events import Route, SendFailed
from twinbus.pairing.outgoing import Outgoing
from twinbus.pairing.pool import SenderPool, attempt

if TYPE_CHECKING:
    from twinbus.pairing.client import PairedClient
    from twinbus.pairing.entity import WatchedEntity

__all__ = ["PairedSender"]

BATCH_BYTES: Final = 262_144
"""What every tier takes in one batch, for a batch made while nobody can be asked."""


class PairedSender:
    """Sends to one entity of the primary, or to a backlog queue while the entity is down."""

    def __init__(self, client: PairedClient, entity: WatchedEntity, pool: SenderPool) -> None:
        self.pool = pool
        self._client = client
        self._entity = entity
        self._place = Place(client, entity, pool, client.choice())
        self._loop = asyncio.get_running_loop()
        self._stop_listening = entity.on_change(self._look_again)
        self._closed = False

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
        deadline = self._deadline(timeout)
        outgoing = Outgoing.of(message, self._entity.path, self._client.message_ids)
        if len(outgoing):
            await SendingCall(self._place, outgoing, deadline).run()

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

        async def schedule(sdk: Any) -> list[int]:
            numbers: list[int] = await sdk.schedule_messages(outgoing.payload, schedule_time_utc)
            return numbers

        numbers: list[int] = await ScheduleCall(self._place, schedule, outgoing.ids, deadline).run()
        return numbers

    async def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None
    ) -> None:
        """Cancel what `schedule_messages` scheduled; ScheduleUnavailableError as there."""
        deadline = self._deadline(timeout)

        async def cancel(sdk: Any) -> None:
            await sdk.cancel_scheduled_messages(sequence_numbers)

        await ScheduleCall(self._place, cancel, (), deadline).run()

    async def create_message_batch(
        self, max_size_in_bytes: int | None = None
    ) -> ServiceBusMessageBatch:
        """An empty batch of the size that the entity takes.

        While the entity cannot be asked, it has the size that every tier takes. `send_messages`
        splits a batch that a backlog queue finds too large.
        """
        self._require_open()
        conduit = self.pool.take() if self._entity.failover.route is Route.PRIMARY else None
        if conduit is None:
            return ServiceBusMessageBatch(max_size_in_bytes or BATCH_BYTES)

        async def create(sdk: Any) -> ServiceBusMessageBatch:
            batch: ServiceBusMessageBatch = await sdk.create_message_batch(max_size_in_bytes)
            return batch

        try:
            return await attempt(self.pool, conduit, create, self._client.policy.attempt_timeout_s)
        except Exception as error:
            # Opening the link counts like sending (SPEC 3); the batch itself needs no primary.
            counts = self._client.counts(error)
            text = f"{type(error).__name__}: {error}"
            self._entity.tell(SendFailed(counts=counts, error=text))
            if not counts:
                raise
            return ServiceBusMessageBatch(max_size_in_bytes or BATCH_BYTES)

    async def close(self) -> None:
        """Close it when calls in flight have ended; idempotent."""
        if not self._closed:
            self._closed = True
            self._stop_listening()
            await self.pool.close(self._client.policy.attempt_timeout_s)
            self._client.forget(self)

    def _look_again(self) -> None:
        """The entity changed: those who wait for a sender may have a better way now."""
        if self._entity.failover.route is not Route.PRIMARY:
            self.pool.renew()
        self.pool.rouse()

    def _deadline(self, timeout: float | None) -> float | None:
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
