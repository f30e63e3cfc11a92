"""Paired sends with the official SDK and a real broker: cancelling, batches, limits, odd bodies."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from tests.contract import pairs
from tests.contract.pairs import drain, drain_all, embedded, nothing_left
from tests.official_sdk import async_client
from twinbus import (
    BacklogMessageTooLargeError,
    EmbeddedBroker,
)
from twinbus.pair import client_of
from twinbus.servicebus.names import backlog_paths

pytestmark = pytest.mark.contract

CANCELLED_SENDS = 150
SEED = 4


broker = embedded()
# Nothing hangs here: an attempt that takes long is a busy machine's, and would be repeated.
paired = partial(pairs.paired, backlog_queue_count=1, attempt_timeout=15.0)


async def backlog_of(broker: EmbeddedBroker) -> list[Any]:
    return await drain_all(broker.connection_string("contoso-dr"), backlog_paths("contoso", 1))


@pytest.mark.parametrize("failed_over", [False, True])
async def test_a_cancellation_at_any_moment_is_seen_and_leaves_nothing(
    broker: EmbeddedBroker, failed_over: bool
) -> None:
    draw = random.Random(SEED)

    async with nothing_left(), paired(broker) as pair:
        sender = pair.get_queue_sender("orders")
        if failed_over:
            pair.force_failover("orders")
        await sender.send_messages(ServiceBusMessage("first", message_id="first"))
        done = {"first"}
        lost = 0
        for number in range(CANCELLED_SENDS):
            message = ServiceBusMessage("x", message_id=str(number))
            call = asyncio.create_task(sender.send_messages(message, timeout=20))
            await asyncio.sleep(draw.choice([0, 0.0002, 0.0005, 0.001, 0.002]))
            asked = call.cancel()
            await asyncio.wait({call}, timeout=15)
            assert call.done(), "the cancellation was not seen"
            if call.cancelled():
                lost += 1
            else:
                assert not asked, "a cancellation was swallowed"
                call.result()
                done.add(str(number))
        assert lost > CANCELLED_SENDS // 10
        pools: list[Any] = [sender.pool, *client_of(pair).state.backlog_pools.values()]
        assert not any(pool.leased.difference(pool.opening_in_background) for pool in pools)
        await sender.send_messages(ServiceBusMessage("last", message_id="last"))
    stored = {m.message_id for m in await drain(broker.connection_string("contoso"), "orders")}
    stored |= {message.message_id for message in await backlog_of(broker)}
    assert done | {"last"} <= stored


async def test_a_task_group_full_of_sends_ends_at_once_when_one_fails(
    broker: EmbeddedBroker,
) -> None:
    async def forever(sender: Any) -> None:
        while True:
            await sender.send_messages(ServiceBusMessage("x"))

    async def fails() -> None:
        await asyncio.sleep(0.3)
        raise RuntimeError("the drill is over")

    async with nothing_left(), paired(broker) as pair:
        sender = pair.get_queue_sender("orders")

        async def together() -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(12):
                    group.create_task(forever(sender))
                group.create_task(fails())

        async with asyncio.timeout(10):
            with pytest.raises(ExceptionGroup):
                await together()


def fill(batch: ServiceBusMessageBatch, body: str) -> int:
    while True:
        try:
            batch.add_message(ServiceBusMessage(body, session_id=None))
        except MessageSizeExceededError:
            return len(batch)


async def test_a_healthy_send_waits_in_its_own_task(broker: EmbeddedBroker) -> None:
    """The SDK alone makes a task for each frame that it waits for, a tenth of what a send costs."""

    async with paired(broker) as pair, pair.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("opens the link"))
        made: list[object] = []
        loop = asyncio.get_running_loop()

        def make(loop: asyncio.AbstractEventLoop, work: Any, **named: Any) -> Any:
            made.append(work)
            return asyncio.Task(work, loop=loop, **named)

        loop.set_task_factory(make)
        for number in range(20):
            await sender.send_messages(ServiceBusMessage(f"order {number}"))
        loop.set_task_factory(None)
        assert made == []


async def test_a_batch_filled_while_healthy_is_diverted_in_one_piece(
    broker: EmbeddedBroker,
) -> None:
    async with paired(broker) as pair, pair.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("warm"))
        batch = await sender.create_message_batch(60_000)
        count = fill(batch, "x" * 1_024)
        brim = await sender.create_message_batch()
        whole = fill(brim, "x" * 1_024)
        await sender.send_messages(batch)
        pair.force_failover("orders")
        await sender.send_messages(brim)
        assert pair.status().entities["orders"].diverted == whole
    assert len(await drain(broker.connection_string("contoso"), "orders")) == count + 1
    kept = await backlog_of(broker)
    assert len({message.message_id for message in kept}) == whole
    # One transfer stored them all, at one time.
    assert len({message.enqueued_time_utc for message in kept}) == 1


async def test_a_batch_of_the_plain_sdk_gets_ids_and_is_sent(broker: EmbeddedBroker) -> None:
    nameless = AmqpAnnotatedMessage(data_body=b"nameless")

    async with (
        paired(broker) as pair,
        pair.get_queue_sender("orders") as sender,
        async_client(broker.connection_string("contoso")) as client,
        client.get_queue_sender("orders") as plain,
    ):
        batch = await plain.create_message_batch()
        batch.add_message(nameless)
        batch.add_message(ServiceBusMessage("named", message_id="named"))
        await sender.send_messages(batch)
        pair.force_failover("orders")
        await sender.send_messages(batch)
    here = await drain(broker.connection_string("contoso"), "orders", 2)
    there = await backlog_of(broker)
    assert [m.message_id for m in here] == [m.message_id for m in there]
    assert here[0].message_id
    assert here[1].message_id == "named"
    assert nameless.properties is None


async def test_the_limit_of_a_backlog_queue_is_asked_from_its_link(broker: EmbeddedBroker) -> None:
    async with paired(broker) as pair, pair.get_queue_sender("orders") as sender:
        client = client_of(pair)
        pair.force_failover("orders")
        await sender.send_messages(ServiceBusMessage("small"))
        limit = client.state.limits.smallest
        assert limit is not None
        huge = ServiceBusMessage("x" * (limit - 20), message_id="huge")
        with pytest.raises(BacklogMessageTooLargeError) as caught:
            await sender.send_messages(huge)
        assert caught.value.limit_bytes == limit
        assert caught.value.message_ids == ("huge",)
        fits = limit - caught.value.overhead_bytes - (caught.value.size_bytes - (limit - 20))
        await sender.send_messages(ServiceBusMessage("x" * fits, message_id="huge"))
        pair.mark_healthy("orders")
        await sender.send_messages(ServiceBusMessage("x" * (fits + 1), message_id="huge"))
        assert pair.status().entities["orders"].oversize == 1
        assert "no backlog queue would take" in str(pair.status())
    bodies = [len(str(message)) for message in await backlog_of(broker)]
    assert bodies == [5, fits]


ODD_BODIES = [
    AmqpAnnotatedMessage(value_body=object(), properties={"message_id": "odd"}),
    AmqpAnnotatedMessage(data_body=[object()], properties={"message_id": "odd"}),
    AmqpAnnotatedMessage(sequence_body=[[object()]], properties={"message_id": "odd"}),
]


async def test_a_body_that_cannot_be_sent_is_an_error_and_never_a_silent_success(
    broker: EmbeddedBroker,
) -> None:
    async def refused(sender: Any, odd: Any) -> None:
        for payload in (odd, [odd, ServiceBusMessage("fine", message_id="fine")]):
            with pytest.raises(Exception) as caught:  # noqa: PT011  # the SDK's choice
                await sender.send_messages(payload, timeout=5)
            error: Any = caught.value
            assert "odd" in error.message_ids
            assert "ncode" in str(error)

    async with paired(broker) as pair, pair.get_queue_sender("orders") as sender:
        for odd in ODD_BODIES:
            await refused(sender, odd)
        assert pair.status().entities["orders"].state == "healthy"
        pair.force_failover("orders")
        for odd in ODD_BODIES:
            await refused(sender, odd)
        entity = pair.status().entities["orders"]
        assert (entity.sent, entity.diverted) == (0, 0)
        queues = pair.status().backlog_queues.values()
        assert {str(queue) for queue in queues} == {"in rotation"}
    assert await drain(broker.connection_string("contoso"), "orders") == []
    assert await backlog_of(broker) == []
