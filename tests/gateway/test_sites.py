"""How gateways are set up: two behind one address, a secondary on the local disk, metrics."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from tests.end_to_end.raw_client import RawClient, message
from tests.gateway.balancer import Balancer
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.gateway_world import gateway_world
from tests.gateway.test_kill import all_stored
from tests.official_sdk import administration
from tests.processes import ServedBroker
from twinbus import SendAvailabilityOptions, pair_namespaces
from twinbus.broker.front import Front
from twinbus.broker.host import NamespaceAt
from twinbus.gateway import GatewayHost

pytestmark = pytest.mark.end_to_end


async def test_two_gateways_behind_one_address_serve_one_application() -> None:
    async with gateway_world("orders") as world:
        pair = pair_namespaces(
            world.primary.connection_string(),
            world.secondary.connection_string(),
            SendAvailabilityOptions(backlog_queue_count=2),
        )
        second = GatewayHost(NamespaceAt("gate"), pair, Front())
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


async def test_an_embedded_secondary_keeps_what_it_acknowledged_and_brings_it_home(
    tmp_path: Path,
) -> None:
    with ServedBroker(tmp_path, "contoso") as broker:
        primary = broker.connection_string()
        administration(primary).create_queue("orders")
        secondary = f"embedded:{tmp_path / 'edge'}"
        with GatewayProcess(tmp_path / "gate", primary, secondary) as gateway:
            client = await RawClient.open(gateway.connection_string())
            sender = await client.sender("orders")
            await sender.room()
            await sender.send(message("online"))
            broker.kill9()
            sends = [sender.send(message(f"offline-{number}")) for number in range(20)]
            async with asyncio.timeout(60):
                await asyncio.gather(*sends)
            gateway.kill9()
            await client.close()
            await asyncio.to_thread(broker.restart)
            await asyncio.to_thread(gateway.restart)
            await all_stored(primary, {"online", *(f"offline-{number}" for number in range(20))})


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
