"""A gateway that is killed under load loses nothing that it acknowledged; one that stops ends it.

Raw clients keep many sends in flight and note what the gateway accepted. In the end all of that is
in the primary, whatever was killed when.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.end_to_end.raw_client import RawClient, message
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.load import Load, all_stored
from twinbus.broker.embedded import EmbeddedBroker
from twinbus.broker.faults import Fault

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
    sender = await client.sender("orders")
    await sender.room()
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
