"""Receivers through a gateway whose entities have twins: both sides behind one link."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusReceiveMode

from tests.contract.pairs import bodies, drain, is_twin_used, until
from tests.gateway.gateway_world import GatewayWorld, gateway_world
from tests.ledger_reading import read
from tests.official_sdk import administration, async_administration, async_client
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.embedded import EmbeddedBroker
from twinbus.broker.faults import Fault
from twinbus.servicebus.twins import SECONDARY_BIT, twin_mark

pytestmark = pytest.mark.contract

WAIT_S = 30.0
"""How long a message that is there may take on a busy machine."""


@asynccontextmanager
async def twin_world(*, marked: bool = True, **options: Any) -> AsyncIterator[GatewayWorld]:
    """A gateway in front of a queue and a topic with twins; nothing moves messages home."""
    settings = {"twins": ["orders", "news"], "enable_syphon": False, **options}
    async with gateway_world("orders", **settings) as world:
        mark = twin_mark(world.gateway.pair._primary.label) if marked else None
        world.secondary.create_queue("orders", QueueDescription(user_metadata=mark))
        for broker in (world.primary, world.secondary):
            with administration(broker.connection_string()) as admin:
                metadata = mark if broker is world.secondary else None
                admin.create_topic("news", user_metadata=metadata)
                admin.create_subscription("news", "readers")
        yield world


async def put(broker: EmbeddedBroker, *texts: str, topic: bool = False) -> None:
    """Store messages in a namespace, without the gateway."""
    async with async_client(broker.connection_string()) as client:
        sender = client.get_topic_sender("news") if topic else client.get_queue_sender("orders")
        async with sender:
            await sender.send_messages([ServiceBusMessage(text) for text in texts])


async def taken(receiver: Any, count: int) -> list[ServiceBusReceivedMessage]:
    found: list[ServiceBusReceivedMessage] = []
    ends = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < ends, f"{bodies(found)}, not {count}"
        found += await receiver.receive_messages(count - len(found), max_wait_time=5)
    return found


async def stored(broker: EmbeddedBroker) -> tuple[int, int, int]:
    """Messages of the queue: active ones, those that are locked included, dead letters, total."""
    async with async_administration(broker.connection_string()) as admin:
        found = await admin.get_queue_runtime_properties("orders")
    return (
        found.active_message_count or 0,
        found.dead_letter_message_count or 0,
        found.total_message_count or 0,
    )


def by_side(messages: list[ServiceBusReceivedMessage]) -> tuple[list[str], list[str]]:
    """The texts of the primary, and those of the twin."""
    is_twin = [bool((one.sequence_number or 0) & SECONDARY_BIT) for one in messages]
    return (
        sorted(str(one) for one, is_so in zip(messages, is_twin, strict=True) if not is_so),
        sorted(str(one) for one, is_so in zip(messages, is_twin, strict=True) if is_so),
    )


@pytest.mark.parametrize("prefetch", [0, 20])
async def test_both_sides_are_received_and_settled_where_they_came_from(prefetch: int) -> None:
    async with twin_world() as world, world.client() as client:
        await put(world.primary, "a", "b", "c")
        await put(world.secondary, "x", "y", "z")
        async with client.get_queue_receiver("orders", prefetch_count=prefetch) as receiver:
            found = await taken(receiver, 6)
            assert by_side(found) == (["a", "b", "c"], ["x", "y", "z"])
            for message in found:
                await receiver.renew_message_lock(message)
                await receiver.complete_message(message)
            assert await receiver.receive_messages(1, max_wait_time=1.5) == []
            row = world.gateway.pair.status().receivers["orders"]
            assert (row.receivers, row.handed_out) == (1, 6)
            assert {name: side.states for name, side in row.sides.items()} == {
                "primary": {"open": 1},
                "secondary": {"open": 1},
            }
        assert await stored(world.primary) == (0, 0, 0)
        assert await stored(world.secondary) == (0, 0, 0)


async def test_deferred_abandoned_dead_and_browsed_messages_of_the_twin() -> None:
    async with twin_world() as world, world.client() as client:
        await put(world.primary, "a")
        await put(world.secondary, "x", "y", "z")
        async with client.get_queue_receiver("orders") as receiver:
            first = await receiver.peek_messages(10)
            number = (first[-1].sequence_number or 0) + 1
            rest = await receiver.peek_messages(10, sequence_number=number)
            assert by_side(first + rest) == (["a"], ["x", "y", "z"])
            found = {str(message): message for message in await taken(receiver, 4)}
            await receiver.dead_letter_message(found["x"], reason="bad")
            await receiver.defer_message(found["y"])
            await receiver.abandon_message(found["z"])
            await receiver.defer_message(found["a"])
            [again] = await taken(receiver, 1)
            assert (str(again), again.delivery_count) == ("z", 1)
            await receiver.complete_message(again)
            numbers = [found[name].sequence_number for name in ("a", "y")]
            deferred = await receiver.receive_deferred_messages(numbers)  # type: ignore[arg-type]
            assert by_side(deferred) == (["a"], ["y"])
            for message in deferred:
                await receiver.renew_message_lock(message)
                await receiver.complete_message(message)
        assert await stored(world.primary) == (0, 0, 0)
        assert await stored(world.secondary) == (0, 1, 1)
        deleting = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        async with client.get_queue_receiver(
            "orders", sub_queue="deadletter", receive_mode=deleting
        ) as receiver:
            [dead] = await taken(receiver, 1)
            assert (str(dead), dead.dead_letter_reason) == ("x", "bad")


async def test_receive_and_delete_takes_no_more_than_was_asked_for() -> None:
    deleting = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with twin_world() as world, world.client() as client:
        await put(world.primary, *(f"p{number}" for number in range(10)))
        await put(world.secondary, *(f"s{number}" for number in range(10)))
        async with client.get_queue_receiver("orders", receive_mode=deleting) as receiver:
            found = await taken(receiver, 5)
        left = [await drain(side.connection_string(), "orders")
                for side in (world.primary, world.secondary)]  # fmt: skip
        texts = bodies(found) + bodies(left[0]) + bodies(left[1])
        assert sorted(texts) == sorted(f"{side}{number}" for side in "ps" for number in range(10))


async def test_a_subscription_is_received_from_both_sides() -> None:
    async with twin_world() as world, world.client() as client:
        await put(world.primary, "a", topic=True)
        await put(world.secondary, "x", topic=True)
        async with client.get_subscription_receiver("news", "readers") as receiver:
            found = await taken(receiver, 2)
            assert by_side(found) == (["a"], ["x"])
            for message in found:
                await receiver.complete_message(message)


async def test_a_namesake_without_the_mark_is_never_received_from() -> None:
    async with twin_world(marked=False) as world, world.client() as client:
        await put(world.primary, "a")
        await put(world.secondary, "foreign")
        async with client.get_queue_receiver("orders") as receiver:
            [message] = await taken(receiver, 1)
            await receiver.complete_message(message)
            assert await receiver.receive_messages(1, max_wait_time=3) == []
            assert await receiver.peek_messages(5) == []
        assert await stored(world.secondary) == (1, 0, 1)


async def test_a_receiver_goes_on_while_the_primary_is_gone_and_sees_no_error() -> None:
    """Its link stays attached, and the messages that are diverted come at once."""
    async with twin_world() as world, world.client() as client:
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("before"))
            await until(lambda: is_twin_used(world.gateway.pair, "orders"))
            async with client.get_queue_receiver("orders") as receiver:
                [message] = await taken(receiver, 1)
                await receiver.complete_message(message)
                world.primary.cut_off()
                sending = asyncio.create_task(
                    sender.send_messages([ServiceBusMessage(f"m{n}") for n in range(3)])
                )
                found = await taken(receiver, 3)
                await sending
                assert by_side(found) == ([], ["m0", "m1", "m2"])
                for message in found:
                    await receiver.complete_message(message)
                world.primary.serve_again()
                await put(world.primary, "after")
                [message] = await taken(receiver, 1)
                assert str(message) == "after"
                await receiver.complete_message(message)
            twins = world.server.twins
            assert twins is not None
        assert await stored(world.secondary) == (0, 0, 0)
    assert twins.open == set()


async def test_a_link_can_be_opened_while_the_primary_is_down() -> None:
    async with twin_world() as world, world.client() as client:
        await put(world.secondary, "x")
        world.primary.cut_off()
        async with client.get_queue_receiver("orders") as receiver:
            [message] = await taken(receiver, 1)
            assert str(message) == "x"
            await receiver.complete_message(message)


async def test_a_primary_that_brings_nothing_more_does_not_hold_up_the_twin() -> None:
    async with (
        twin_world() as world,
        world.client() as client,
        client.get_queue_receiver("orders") as receiver,
    ):
        assert await receiver.receive_messages(1, max_wait_time=1) == []
        world.primary.add_fault(Fault(kind="hang", entity="orders"))
        await put(world.secondary, "x")
        began = time.monotonic()
        [message] = await taken(receiver, 1)
        assert time.monotonic() - began < 15
        await receiver.complete_message(message)


async def test_a_detached_client_leaves_nothing_locked() -> None:
    async with twin_world() as world:
        raw = await world.raw()
        receiver = await raw.receiver("orders", credit=10)
        await asyncio.sleep(0.2)
        await receiver.close()
        await put(world.primary, "a")
        await put(world.secondary, "x")
        assert len(await drain(world.primary.connection_string(), "orders")) == 1
        assert len(await drain(world.secondary.connection_string(), "orders")) == 1


async def test_what_a_client_receives_from_both_sides_is_in_the_ledger(tmp_path: Path) -> None:
    async with twin_world(ledger=tmp_path) as world, world.client() as client:
        await put(world.primary, "a")
        await put(world.secondary, "x", "y")
        async with client.get_queue_receiver("orders") as receiver:
            found = {str(message): message for message in await taken(receiver, 3)}
            for name in ("a", "x"):
                await receiver.complete_message(found[name])
            await receiver.defer_message(found["y"])
            [deferred] = await receiver.receive_deferred_messages(found["y"].sequence_number or 0)
            await receiver.renew_message_lock(deferred)
            await receiver.complete_message(deferred)
    lines = [one for one in read(tmp_path) if one.get("cause") == "consumer"]
    assert {one["entity"] for one in lines} == {"orders"}
    names = {message.message_id: text for text, message in found.items()}
    recorded = [(names.get(one.get("message_id")), one["operation"], one["side"]) for one in lines]
    assert [one for one in recorded if one[0] == "a"] == [
        ("a", "receive", "primary"),
        ("a", "complete", "primary"),
    ]
    assert [one for one in recorded if one[0] == "x"] == [
        ("x", "receive", "secondary"),
        ("x", "complete", "secondary"),
    ]
    assert [one for one in recorded if one[0] in ("y", None)] == [
        ("y", "receive", "secondary"),
        ("y", "defer", "secondary"),
        ("y", "receive", "secondary"),
        (None, "renew", "secondary"),
        ("y", "complete", "secondary"),
    ]
    of_messages = [one for one in lines if "message_id" in one]
    assert all(one["client"] for one in lines)
    assert all(one["sequence_number"] < SECONDARY_BIT for one in of_messages)
