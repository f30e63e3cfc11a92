"""How gateways are set up and watched: two behind one address, health and metrics."""

from __future__ import annotations

import asyncio
import urllib.request

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from tests.gateway.balancer import Balancer
from tests.gateway.gateway_world import gateway_world
from twinbus import SendAvailabilityOptions, pair_namespaces
from twinbus.broker.embedded import NamespaceAt
from twinbus.broker.port_access import PortAccess
from twinbus.gateway import GatewayHost

pytestmark = pytest.mark.end_to_end


async def test_two_gateways_behind_one_address_serve_one_application() -> None:
    async with gateway_world("orders") as world:
        pair = pair_namespaces(
            world.primary.connection_string(),
            world.secondary.connection_string(),
            SendAvailabilityOptions(backlog_queue_count=2),
        )
        second = GatewayHost(NamespaceAt("gate"), pair, PortAccess())
        await second.start()
        ports = [world.gateway.port, second.port]
        async with Balancer(ports) as balancer:
            text = world.connection_string().replace(str(world.gateway.port), str(balancer.port))
            async with (
                ServiceBusClient.from_connection_string(text) as client,
                client.get_queue_sender("orders") as sender,
            ):
                await sender.send_messages(ServiceBusMessage("one"))
                both = [world.gateway.pair.status(), pair.status()]
                assert sum(bool(status.entities) for status in both) == 1
                used = world.gateway if both[0].entities else second
                await used.close()
                # The SDK connects again by itself, and meets the other gateway.
                await sender.send_messages(ServiceBusMessage("two"))
                await sender.send_messages(ServiceBusMessage("three"))
        await second.close()
        assert await world.received("orders", 3) == ["one", "two", "three"]


async def test_the_port_serves_the_figures_of_the_pair() -> None:
    async with gateway_world("orders") as world, world.client() as client:
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("one"))
        url = f"http://localhost:{world.gateway.port}"
        health = await asyncio.to_thread(_read, f"{url}/health")
        assert '"ok"' in health
        metrics = await asyncio.to_thread(_read, f"{url}/metrics")
        assert 'entity="orders"' in metrics


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
        return text
