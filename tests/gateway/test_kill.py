"""Gateways lose nothing that they acknowledged: killed or stopped, one, or two of one address."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from tests.end_to_end.raw_client import RawClient, message
from tests.gateway.balancer import Balancer
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.gateway_world import gateway_world
from tests.gateway.load import PATIENCE_S, Load, all_stored
from tests.other_languages.client_programs import SendingProgram
from tests.other_languages.toolchains import SOURCES
from twinbus import SendAvailabilityOptions, pair_namespaces
from twinbus.broker.embedded import EmbeddedBroker, NamespaceAt
from twinbus.broker.faults import Fault
from twinbus.broker.port_access import PortAccess
from twinbus.gateway import GatewayHost

pytestmark = pytest.mark.end_to_end

ROUNDS = 3
SOAK_ROUNDS = int(os.environ.get("TWINBUS_KILL_ROUNDS", "20"))
EACH_ROUND = 300
"""Sends that are accepted between two kills."""


async def kill_again_and_again(directory: Path, secondary: str, rounds: int) -> None:
    """Kill the gateway under load so many times, then stop it; nothing acknowledged is lost."""
    with EmbeddedBroker("contoso") as broker:
        broker.create_queue("orders")
        primary = broker.connection_string()
        with GatewayProcess(directory, primary, secondary) as gateway:
            load = Load(gateway.connection_string())
            clients = [asyncio.create_task(load.run()) for _ in range(2)]
            for number in range(rounds):
                if number % 3 == 1:
                    # This kill meets a gateway that diverts.
                    broker.add_fault(Fault(kind="hang", entity="orders"))
                await load.reach(len(load.accepted) + EACH_ROUND)
                gateway.kill9()
                await asyncio.to_thread(gateway.restart)
                broker.clear_faults()
            await load.reach(len(load.accepted) + EACH_ROUND)
            load.stop()
            await asyncio.gather(*clients)
            await all_stored(primary, load.accepted)
            await stop_with_sends_in_flight(broker, gateway)


async def stop_with_sends_in_flight(broker: EmbeddedBroker, gateway: GatewayProcess) -> None:
    """SIGTERM lets what is in flight end: every send gets its answer, and the exit status is 0."""
    client = await RawClient.open(gateway.connection_string())
    sender = await client.ready_sender("orders")
    await sender.send(message("first"))
    # These wait in the gateway: the primary answers after a while.
    broker.add_fault(Fault(kind="delay", entity="orders", delay_ms=500))
    sends = [sender.send(message(f"last-{number}")) for number in range(50)]
    await asyncio.sleep(0.2)
    assert await asyncio.to_thread(gateway.terminate, signal.SIGTERM) == 0
    assert await asyncio.gather(*sends, return_exceptions=True) == [None] * 50
    await client.close()
    broker.clear_faults()
    await all_stored(broker.connection_string(), {f"last-{number}" for number in range(50)})


async def test_kill_9_loses_nothing_and_sigterm_lets_sends_end(tmp_path: Path) -> None:
    # A backlog on the local disk: what was acknowledged must outlive the process that took it.
    await kill_again_and_again(tmp_path / "gate", f"embedded:{tmp_path / 'edge'}", ROUNDS)


@pytest.mark.soak
async def test_kill_9_many_times_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    with EmbeddedBroker("contoso-dr") as secondary:
        await kill_again_and_again(tmp_path / "gate", secondary.connection_string(), SOAK_ROUNDS)


EACH_TIME = 100
"""Sends of the raw clients that are accepted before and after each kill."""


async def sends_again(program: SendingProgram) -> None:
    """Wait until sends of the application that begin now have ended."""
    now_s = time.time()
    async with asyncio.timeout(PATIENCE_S):
        while not program.has_sent_since(now_s, 4):  # noqa: ASYNC110  # told by another process
            await asyncio.sleep(0.02)


async def kill_by_turns(directory: Path, kills: int) -> None:
    """Kill one gateway, then the other, so many times; what the other served is all there."""
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker("contoso"))
        broker.create_queue("orders")
        primary = broker.connection_string()
        secondary = stack.enter_context(EmbeddedBroker("contoso-dr")).connection_string()
        gateways = [GatewayProcess(directory / name, primary, secondary) for name in ("a", "b")]
        starts = [asyncio.to_thread(stack.enter_context, gateway) for gateway in gateways]
        await asyncio.gather(*starts)
        async with Balancer([gateway.port() for gateway in gateways]) as balancer:
            text = gateways[0].connection_string()
            text = text.replace(str(gateways[0].port()), str(balancer.port))
            command = (sys.executable, str(SOURCES / "python" / "outage.py"))
            program = SendingProgram(command, text, "orders", "app", directory / "app.log")
            stack.enter_context(program)
            load = Load(text, pause_s=0.005)
            clients = [asyncio.create_task(load.run()) for _ in range(2)]
            for number in range(kills):
                killed = gateways[number % 2]
                await sends_again(program)
                await load.reach(len(load.accepted) + EACH_TIME)
                killed.kill9()
                await sends_again(program)
                await load.reach(len(load.accepted) + EACH_TIME)
                if number < kills - 1:
                    await asyncio.to_thread(killed.restart)
            load.stop()
            await asyncio.gather(*clients)
            assert await asyncio.to_thread(program.stop) == 0
        # The SDK has sent again what was in flight at a kill, so its caller saw no error.
        assert program.errors == []
        await all_stored(primary, load.accepted | program.accepted)


async def test_a_gateway_that_is_killed_is_replaced_by_the_other(tmp_path: Path) -> None:
    await kill_by_turns(tmp_path, 1)


@pytest.mark.soak
async def test_gateways_that_are_killed_by_turns_replace_each_other(tmp_path: Path) -> None:
    await kill_by_turns(tmp_path, 6)


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
