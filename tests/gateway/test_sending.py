"""Sending through a gateway: acknowledged means stored, in the primary or in the backlog."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
)

from tests.contract.pairs import until
from tests.end_to_end.raw_client import RawClient, message
from tests.gateway.gateway_world import gateway_world
from twinbus.amqp.message import Properties, encode_message
from twinbus.broker.faults import Fault
from twinbus.client import links
from twinbus.gateway.sending import CREDIT

pytestmark = pytest.mark.contract


async def test_messages_lists_and_batches_reach_the_primary() -> None:
    async with gateway_world("orders") as world, world.client() as client:
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("one"))
            await sender.send_messages([ServiceBusMessage("two"), ServiceBusMessage("three")])
            batch = await sender.create_message_batch()
            batch.add_message(ServiceBusMessage("four"))
            await sender.send_messages(batch)
        assert await world.received("orders", 4) == ["one", "two", "three", "four"]
        status = world.gateway.pair.status().entities["orders"]
        assert (status.sent, status.diverted, status.raised) == (4, 0, 0)


async def test_an_outage_is_no_error_and_the_backlog_comes_home() -> None:
    async with (
        gateway_world("orders", enable_syphon=True, syphon_poll=1) as world,
        world.client() as client,
    ):
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("before"))
            world.primary.cut_off()
            # The first waits for the failover, the others are diverted at once.
            await sender.send_messages(ServiceBusMessage("first"))
            await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
            assert world.gateway.pair.status().entities["orders"].diverted == 3
            world.primary.serve_again()
            bodies = await world.received("orders", 4)
            assert sorted(bodies) == ["a", "b", "before", "first"]
            pair = world.gateway.pair
            await until(lambda: pair.status().entities["orders"].state == "healthy")
            await sender.send_messages(ServiceBusMessage("after"))
        assert await world.received("orders", 1) == ["after"]


async def test_sends_that_find_the_primary_dead_are_diverted() -> None:
    async with gateway_world("orders") as world, world.client() as client:
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("before"))
            world.primary.stop()
            await sender.send_messages(ServiceBusMessage("during"))
        # A link that is opened during the outage is accepted as well.
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("during too"))
        assert world.gateway.pair.status().entities["orders"].diverted == 2


async def test_refusals_carry_the_condition_of_the_primary() -> None:
    async with gateway_world("orders") as world, world.client(retry_total=0) as client:
        with pytest.raises(MessagingEntityNotFoundError):
            async with client.get_queue_sender("ghost") as sender:
                await sender.send_messages(ServiceBusMessage("lost"))
        async with client.get_queue_sender("orders") as sender:
            with pytest.raises(MessageSizeExceededError):
                await sender.send_messages(ServiceBusMessage(b"x" * 400_000))
            disabled = Fault(kind="refuse_send", condition="com.microsoft:entity-disabled", count=1)
            world.primary.add_fault(disabled)
            with pytest.raises(MessagingEntityDisabledError):
                await sender.send_messages(ServiceBusMessage("refused"))
            await sender.send_messages(ServiceBusMessage("taken"))
        assert await world.received("orders", 1) == ["taken"]


async def test_a_rule_without_the_right_to_send_is_refused_here() -> None:
    async with gateway_world("orders") as world, world.client("listener", retry_total=0) as client:
        refused = (ServiceBusAuthenticationError, ServiceBusAuthorizationError)
        with pytest.raises(refused, match="'Send' claim"):
            async with client.get_queue_sender("orders") as sender:
                await sender.send_messages(ServiceBusMessage("never"))
        assert not world.gateway.pair.status().entities


def sent_ids(ledger: Path) -> list[str]:
    """The ids of all sends that a ledger has, in order."""
    files = (file.read_text() for file in ledger.rglob("*.jsonl*"))
    lines = [json.loads(line) for text in files for line in text.splitlines()]
    return [line["message_id"] for line in lines if line["operation"] == "send"]


async def test_every_message_has_an_id_and_the_ledger_knows_it(tmp_path: Path) -> None:
    async with gateway_world("orders", ledger=tmp_path) as world:
        raw = await RawClient.open(world.connection_string())
        sender = await raw.sender("orders")
        await sender.room()
        await sender.send(encode_message(properties=Properties(subject="no id"), data=b"1"))
        await sender.send(message("mine", b"2"))
        await raw.close()
        assert await world.received("orders", 2) == ["1", "2"]
    ids = sent_ids(tmp_path)
    assert len(ids) == 2
    assert ids[1] == "mine"
    assert len(ids[0]) == 32


async def test_a_hung_primary_bounds_what_the_gateway_holds() -> None:
    async with gateway_world("orders", failover_interval=60, attempt_timeout=8) as world:
        raw = await RawClient.open(world.connection_string())
        sender = await raw.sender("orders")
        await sender.room()
        await sender.send(message("first"))
        world.primary.add_fault(Fault(kind="hang", entity="orders"))
        sends = []
        for number in range(CREDIT + 100):
            try:
                async with asyncio.timeout(2):
                    await sender.room()
            except TimeoutError:
                break
            sends.append(sender.send(message(f"m{number}", b"x" * 100)))
        assert len(sends) <= CREDIT
        assert not any(send.done() for send in sends)
        world.gateway.pair.force_failover("orders")
        world.primary.clear_faults()
        await raw.close()


async def test_many_in_flight_are_all_answered_and_stored_once() -> None:
    async with gateway_world("orders") as world:
        raw = await RawClient.open(world.connection_string())
        sender = await raw.sender("orders")
        sends = []
        for number in range(3_000):
            await sender.room()
            sends.append(sender.send(message(f"m{number}")))
        async with asyncio.timeout(60):
            await asyncio.gather(*sends)
        await raw.close()
        receiving = await RawClient.open(world.primary.connection_string())
        receiver = await receiving.receiver("orders", credit=500, settled=True)
        keys = [found.key for _ in sends if (found := await receiver.receive()) is not None]
        await receiving.close()
    # One client's messages keep their order while the entity is healthy.
    assert keys == [f"m{number}" for number in range(3_000)]


async def test_the_link_to_an_entity_is_closed_after_its_last_sender(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "UNUSED_S", 0.0)
    async with gateway_world("orders") as world:
        async with world.client() as client, client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("one"))
        server = world.gateway._server
        assert server is not None
        await until(lambda: not server.primary._pools)
        async with world.client() as client, client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("two"))
        assert await world.received("orders", 2) == ["one", "two"]


async def test_a_client_that_sends_beyond_its_credit_does_not_cut_off_the_others() -> None:
    """All clients share the connection to the primary on which the answers come."""
    count = CREDIT + CREDIT
    async with gateway_world("orders", attempt_timeout=30) as world:
        server = world.gateway._server
        assert server is not None
        raw = await RawClient.open(world.connection_string())
        sender = await raw.sender("orders")
        await sender.room()
        await sender.send(message("first"))
        connection = server.primary._connection
        assert connection is not None
        world.primary.add_fault(Fault(kind="delay", entity="orders", delay_ms=500))
        sends = []
        for number in range(count):
            sender._link.credit = 1
            sends.append(sender.send(message(f"m{number}")))
        async with asyncio.timeout(60):
            await asyncio.gather(*sends)
        assert server.primary._connection is connection
        assert world.gateway.pair.status().entities["orders"].sent == count + 1
        await raw.close()
