"""The windows of docs/guarantees.md, each opened on purpose, and what closes it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import ServiceBusError

from tests.contract.pairs import PATIENCE_S, bodies, quick
from tests.contract.pairs import drain as received_from
from tests.official_sdk import async_client, receive_all_async
from twinbus import EmbeddedBroker, Namespace, pair_namespaces
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.faults import Fault
from twinbus.errors import SyphonError
from twinbus.namespace.access import endpoint_of
from twinbus.pair import Pair
from twinbus.syphon.host import drain
from twinbus.syphon.replaying import DeadLetterFilter, replay

pytestmark = pytest.mark.contract

PLAIN, DETECTING = ENTITIES = "orders", "orders-once"
TWICE_UNLESS_DETECTED = {PLAIN: ["one", "one"], DETECTING: ["one"]}
BACKLOG = [f"contoso/x-servicebus-transfer/{index}" for index in range(2)]
LOST_ANSWER: Final = "drop_after_commit"
"""The namespace stores the message and cuts the connection instead of saying so."""


class World:
    """Two namespaces, a queue without and one with duplicate detection."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        # The label of the backlog is the name that users gave, not the port of the day.
        self.primary = broker.connection_string("contoso")
        self.secondary = broker.connection_string("contoso-dr")

    def lose_an_answer(self, namespace: str, entity: str) -> None:
        fault = Fault(kind=LOST_ANSWER, entity=entity, count=1)
        self.broker.add_fault(fault, namespace)

    def pair(self, **options: Any) -> Any:
        primary = Namespace.from_connection_string(self.primary, name="contoso")
        # Nothing hangs here: an attempt that takes long is a busy machine's, and would be repeated.
        settings = {"attempt_timeout": 15.0, **options}
        return pair_namespaces(primary, self.secondary, quick(**settings))

    async def brought_home(self) -> dict[str, list[str]]:
        """What arrived at each entity once the syphon had done its work."""
        async with asyncio.timeout(60):
            await drain(self.primary, self.secondary, BACKLOG, idle_s=0.2)
        return {entity: bodies(await received_from(self.primary, entity)) for entity in ENTITIES}


async def send_one(pair: Pair, entity: str) -> None:
    async with pair.get_queue_sender(entity) as sender:
        await sender.send_messages(ServiceBusMessage("one"))


@pytest.fixture
def world() -> Iterator[World]:
    with EmbeddedBroker("contoso", "contoso-dr") as broker:
        broker.create_queue(PLAIN)
        broker.create_queue(DETECTING, QueueDescription(requires_duplicate_detection=True))
        for queue in BACKLOG:
            broker.create_queue(
                queue,
                QueueDescription(lock_duration_ms=5_000, max_delivery_count=1_000),
                "contoso-dr",
            )
        yield World(broker)


async def test_w1_a_send_whose_answer_is_lost_is_diverted_too(world: World) -> None:
    async with world.pair(failover_interval=0) as pair:
        for entity in ENTITIES:
            world.lose_an_answer("contoso", entity)
            await send_one(pair, entity)
            assert pair.status().entities[entity].diverted == 1
    assert await world.brought_home() == TWICE_UNLESS_DETECTED


async def test_w2_a_divert_whose_answer_is_lost_goes_to_another_queue_too(world: World) -> None:
    for entity in ENTITIES:
        async with world.pair() as pair:
            pair.get_queue_sender(entity)
            pair.force_failover(entity)
            world.lose_an_answer("contoso-dr", "contoso/x-servicebus-transfer/*")
            await send_one(pair, entity)
    assert await world.brought_home() == TWICE_UNLESS_DETECTED


async def test_w3_a_forward_whose_answer_is_lost_is_made_again(world: World) -> None:
    found: dict[str, list[str]] = {}
    async with world.pair() as pair:
        # One after the other: a lost connection repeats all that is on it, and both may be.
        for entity in ENTITIES:
            pair.get_queue_sender(entity)
            pair.force_failover(entity)
            await send_one(pair, entity)
            world.lose_an_answer("contoso", entity)
            found[entity] = (await world.brought_home())[entity]
    assert found == TWICE_UNLESS_DETECTED


async def test_w4_what_was_diverted_arrives_after_what_was_sent_later(world: World) -> None:
    async with world.pair() as pair, pair.get_queue_sender(PLAIN) as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        pair.force_failover(PLAIN)
        await sender.send_messages(ServiceBusMessage("during"))
        pair.mark_healthy(PLAIN)
        await sender.send_messages(ServiceBusMessage("after"))
    assert (await world.brought_home())[PLAIN] == ["before", "after", "during"]


async def test_w5_a_replay_whose_answer_is_lost_can_be_made_again(world: World) -> None:
    async with world.pair() as pair:
        pair.get_queue_sender(PLAIN)
        pair.force_failover(PLAIN)
        await send_one(pair, PLAIN)
    await _dead_letter_all(world.secondary)
    secondary = endpoint_of(world.secondary)
    world.lose_an_answer("contoso-dr", "contoso/x-servicebus-transfer/*")
    with pytest.raises(SyphonError):
        await replay(secondary, BACKLOG, DeadLetterFilter())
    # The letter is there, locked by the replay that was cut off until its lock ends.
    async with asyncio.timeout(PATIENCE_S):
        while not (await replay(secondary, BACKLOG, DeadLetterFilter())).replayed:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
    assert await world.brought_home() == {PLAIN: ["one", "one"], DETECTING: []}


async def _dead_letter_all(text: str) -> None:
    async with async_client(text) as client:
        for queue in BACKLOG:
            async with client.get_queue_receiver(queue) as receiver:
                for message in await receive_all_async(receiver):
                    await receiver.dead_letter_message(message, reason="by hand")


async def test_the_callers_own_retry_carries_the_same_id(world: World) -> None:
    """W6: the first try raised, although its message was stored."""
    # The SDK gives an id to a ServiceBusMessage as it is made; this one has none.
    message = AmqpAnnotatedMessage(data_body=b"one")
    async with world.pair(failover_interval=60, retry_total=0) as pair:
        for entity in ENTITIES:
            world.lose_an_answer("contoso", entity)
            async with pair.get_queue_sender(entity) as sender:
                with pytest.raises(ServiceBusError) as raised:
                    await sender.send_messages(message)
                await sender.send_messages(message)
            assert len(raised.value.message_ids) == 1  # type: ignore[attr-defined]
    assert message.properties is None
    assert await world.brought_home() == TWICE_UNLESS_DETECTED
