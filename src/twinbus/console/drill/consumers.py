"""The drill's receivers: plain clients of the SDK that know nothing of Twinbus.

They empty the primary and record each message that they receive. The drill judges by these
records, not by what the senders report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from azure.core.exceptions import HttpResponseError
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from twinbus.console.drill.world import ENTITIES, PRIMARY, SUBSCRIPTION, Entity, administration
from twinbus.ledger import LedgerWriter

RECEIVERS: Final = 2
"""At each entity without sessions; one with sessions has a receiver for each session."""
BATCH: Final = 200
WAIT_S: Final = 0.5
"""How long a receiver waits for a message before it asks whether any are left."""
STALL_S: Final = 20.0
"""After this time without a message the receivers stop; the report names what is left."""

BUSY: Final = 503
BUSY_WAIT_S: Final = 2.0
"""What Azure asks a throttled client to wait."""
BUSY_TRIES: Final = 10


class Consumers:
    """Receivers at every entity; `run` ends when the primary is empty."""

    def __init__(
        self, connection_string: str, ledger: LedgerWriter, received: Callable[[int], None]
    ) -> None:
        self._connection_string = connection_string
        self._ledger = ledger
        self._received = received
        self._count = 0
        self._last_at = 0.0
        self._admin: ServiceBusAdministrationClient

    async def run(self) -> int:
        """Receive everything; return the number of messages, each copy counted."""
        self._last_at = asyncio.get_running_loop().time()
        async with (
            ServiceBusClient.from_connection_string(self._connection_string) as client,
            administration(self._connection_string) as self._admin,
            asyncio.TaskGroup() as group,
        ):
            for entity in ENTITIES:
                for receiver in _receivers(client, entity):
                    group.create_task(self._consume(receiver, entity))
        return self._count

    async def in_primary(self) -> int:
        """Number of messages in the primary."""
        async with administration(self._connection_string) as self._admin:
            return sum([await self._left(entity) for entity in ENTITIES])

    async def _consume(self, receiver: ServiceBusReceiver, entity: Entity) -> None:
        loop = asyncio.get_running_loop()
        async with receiver:
            while True:
                batch = await receiver.receive_messages(BATCH, max_wait_time=WAIT_S)
                if batch:
                    self._record("receive", entity, batch)
                    self._count += len(batch)
                    self._received(self._count)
                    self._last_at = loop.time()
                    for message in batch:
                        await receiver.complete_message(message)
                    self._record("complete", entity, batch)
                elif not await self._left(entity) or loop.time() - self._last_at > STALL_S:
                    return

    def _record(self, operation: str, entity: Entity, batch: Iterable[Any]) -> None:
        for message in batch:
            self._ledger.record(
                operation,
                cause="consumer",
                namespace=PRIMARY,
                side="primary",
                entity=entity.received_at,
                message_id=message.message_id,
                sequence_number=message.sequence_number,
                # A settlement carries no message.
                size_bytes=sum(map(len, message.body)) if operation == "receive" else None,
                outcome="ok",
                view="client",
            )

    async def _left(self, entity: Entity) -> int:
        for _ in range(BUSY_TRIES):
            try:
                return await self._waiting(entity)
            except HttpResponseError as error:
                if error.status_code != BUSY:
                    raise
            # The receivers use up the credits of a namespace that has the limits of Azure.
            await asyncio.sleep(BUSY_WAIT_S)
        return await self._waiting(entity)

    async def _waiting(self, entity: Entity) -> int:
        admin, path = self._admin, entity.path
        if entity.is_topic:
            found = await admin.get_subscription_runtime_properties(path, SUBSCRIPTION)
            return found.total_message_count or 0
        return (await admin.get_queue_runtime_properties(path)).total_message_count or 0


def _receivers(client: ServiceBusClient, entity: Entity) -> list[ServiceBusReceiver]:
    path, sessions = entity.path, entity.sessions or (None,) * RECEIVERS
    if entity.is_topic:
        return [client.get_subscription_receiver(path, SUBSCRIPTION) for _ in range(RECEIVERS)]
    return [client.get_queue_receiver(path, session_id=session) for session in sessions]
