"""Transactions of a Python application through a gateway: whole on the primary, or refused."""

# ruff: noqa: PT012  # what a block raises at its end is what is tested
from __future__ import annotations

import asyncio
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusServerBusyError

from tests.gateway.gateway_world import GatewayWorld, gateway_world
from twinbus import blocking, transactions

pytestmark = pytest.mark.contract

WAIT_S = 20.0


async def stored(world: GatewayWorld, queue: str) -> list[str]:
    """What a queue of the primary holds, locked messages too."""
    text = world.primary.connection_string()
    async with (
        ServiceBusClient.from_connection_string(text) as client,
        client.get_queue_receiver(queue) as receiver,
    ):
        return [str(each) for each in await receiver.peek_messages(100)]


async def test_completing_and_sending_are_one_step_on_the_primary() -> None:
    async with gateway_world("orders", "invoices") as world:
        async with world.client() as client, client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("order"))
        async with (
            transactions(world.connection_string()) as connection,
            connection.get_queue_receiver("orders") as receiver,
        ):
            [message] = await receiver.receive_messages(1, WAIT_S)
            with pytest.raises(ZeroDivisionError):
                async with connection.transaction() as t:
                    await t.complete_message(message)
                    await t.send_messages("invoices", ServiceBusMessage("half"))
                    1 / 0  # noqa: B018
            assert (await stored(world, "orders"), await stored(world, "invoices")) == (
                ["order"],
                [],
            )
            async with connection.transaction() as t:
                await t.complete_message(message)
                await t.send_messages("invoices", ServiceBusMessage("whole"))
                assert await stored(world, "invoices") == []
        assert (await stored(world, "orders"), await stored(world, "invoices")) == ([], ["whole"])


async def test_blocking_code_has_the_same_transactions() -> None:
    async with gateway_world("orders", "invoices") as world:

        def work() -> None:
            with (
                blocking.transactions(world.connection_string()) as connection,
                connection.transaction() as t,
            ):
                t.send_messages("orders", ServiceBusMessage("1"))
                t.send_messages("invoices", [ServiceBusMessage("2"), ServiceBusMessage("3")])

        await asyncio.to_thread(work)
        assert (await stored(world, "orders"), await stored(world, "invoices")) == (
            ["1"],
            ["2", "3"],
        )


async def test_a_transaction_about_a_failed_over_entity_is_rolled_back_whole() -> None:
    async with gateway_world("orders", "invoices") as world:
        pair: Any = world.gateway.pair
        async with world.client() as client, client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("before"))
        pair.force_failover("orders")
        async with transactions(world.connection_string()) as connection:
            with pytest.raises(ServiceBusServerBusyError, match="'orders' is failed over"):
                async with connection.transaction() as t:
                    await t.send_messages("invoices", ServiceBusMessage("kept"))
                    await t.send_messages("orders", ServiceBusMessage("refused"))
            assert await stored(world, "invoices") == []
            pair.mark_healthy("orders")
            async with connection.transaction() as t:
                await t.send_messages("orders", ServiceBusMessage("after"))
        assert await stored(world, "orders") == ["before", "after"]
        # Not diverted: a part of a transaction in the other namespace could not be taken back.
        assert pair.status().entities["orders"].diverted == 0
