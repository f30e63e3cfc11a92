"""Two gateways behind one address: one of them is killed under load, and started again.

An application with the official SDK and raw clients with many sends in flight connect through a TCP
balancer, and go on with the other gateway.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.gateway.balancer import Balancer
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.load import PATIENCE_S, Load, all_stored
from tests.other_languages.sending_program import SendingProgram
from tests.other_languages.toolchains import SOURCES
from twinbus.broker.embedded import EmbeddedBroker

pytestmark = pytest.mark.end_to_end

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
