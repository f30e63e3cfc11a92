"""Roads of messages: straight to a primary, through the backlog, and to the twin in a secondary."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from tests.contract.corpus import SESSION
from tests.contract.pairs import is_twin_used, quick, until
from tests.end_to_end.raw_client import RawClient
from tests.official_sdk import administration, async_client
from twinbus import EmbeddedBroker, pair_namespaces
from twinbus.broker.descriptions import QueueDescription
from twinbus.servicebus.twins import twin_mark
from twinbus.syphon.draining import DrainStats, drain

PATIENCE_S = 60.0
QUEUE, TOPIC, SESSIONS = "orders", "events", "calls"
SOURCES = {QUEUE: QUEUE, TOPIC: f"{TOPIC}/Subscriptions/all", SESSIONS: SESSIONS}
"""Where what was sent to an entity is received."""


class Roads:
    """A primary and a secondary, and the roads to their entities."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self.primary = broker.connection_string("contoso")
        self.secondary = broker.connection_string("contoso-dr")
        self.label = "contoso"

    @property
    def backlog(self) -> list[str]:
        return [f"{self.label}/x-servicebus-transfer/{index}" for index in range(2)]

    async def straight(self, entity: str, messages: list[Any]) -> None:
        async with async_client(self.primary) as sdk, sdk.get_queue_sender(entity) as sender:
            for message in messages:
                await sender.send_messages(message)

    async def diverted(self, entity: str, messages: list[Any]) -> None:
        """Send with a pair that has failed over."""
        async with pair_namespaces(self.primary, self.secondary, quick()) as pair:
            async with pair.get_queue_sender(entity) as sender:
                pair.force_failover(entity)
                for message in messages:
                    await sender.send_messages(message)
            assert pair.status().entities[entity].diverted == len(messages)

    def make_twins(self) -> None:
        """Make the marked namesakes of all entities, as an administrator does."""
        mark, there = twin_mark(self.label), "contoso-dr"
        plain = QueueDescription(user_metadata=mark)
        ordered = QueueDescription(user_metadata=mark, requires_session=True)
        self.broker.create_queue(QUEUE, plain, namespace=there)
        self.broker.create_queue(SESSIONS, ordered, namespace=there)
        with administration(self.secondary) as admin:
            admin.create_topic(TOPIC, user_metadata=mark)
            admin.create_subscription(TOPIC, "all")

    async def twinned(self, entity: str, messages: list[Any]) -> None:
        """Send with a pair that has failed over to the twin."""
        options = quick(twins=[entity], twins_with_sessions=True)
        async with pair_namespaces(self.primary, self.secondary, options) as pair:
            async with pair.get_queue_sender(entity) as sender:
                await until(lambda: is_twin_used(pair, entity))
                pair.force_failover(entity)
                for message in messages:
                    await sender.send_messages(message)
            assert pair.status().entities[entity].twinned == pair.status().entities[entity].diverted

    async def put_in_backlog(self, messages: list[bytes]) -> None:
        """Create the backlog queues and store messages in the first, as they are."""
        async with (
            pair_namespaces(self.primary, self.secondary, quick()),
            self.client(self.secondary) as client,
        ):
            sender = await client.sender(self.backlog[0])
            for message in messages:
                await sender.room()
                await sender.send(message)

    async def syphoned(self) -> DrainStats:
        work = drain(self.primary, self.secondary, self.backlog, idle_s=0.2)
        return await asyncio.wait_for(work, PATIENCE_S)

    async def received(self, entity: str, count: int, *, is_twin: bool = False) -> dict[str, bytes]:
        """What an entity or its twin holds, as its bytes, by message id; received and deleted."""
        found: dict[str, bytes] = {}
        session = SESSION if entity == SESSIONS else None
        async with self.client(self.secondary if is_twin else self.primary) as client:
            receiver = await client.receiver(
                SOURCES[entity], credit=500, settled=True, session=session
            )
            while len(found) < count:
                delivery = await receiver.receive()
                assert delivery is not None, f"{len(found)} of {count} came: {sorted(found)}"
                assert delivery.key not in found, f"{delivery.key} came twice"
                found[delivery.key] = delivery.payload
        return found

    @staticmethod
    @asynccontextmanager
    async def client(text: str) -> AsyncIterator[RawClient]:
        client = await RawClient.open(text)
        try:
            yield client
        finally:
            await client.close()


@contextmanager
def running_roads() -> Iterator[Roads]:
    """A primary with entities of each kind, and a secondary; a pair makes its backlog queues."""
    with EmbeddedBroker("contoso", "contoso-dr") as broker:
        broker.create_queue(QUEUE, namespace="contoso")
        broker.create_queue(SESSIONS, QueueDescription(requires_session=True), namespace="contoso")
        broker.create_topic(TOPIC, ["all"], namespace="contoso")
        yield Roads(broker)
