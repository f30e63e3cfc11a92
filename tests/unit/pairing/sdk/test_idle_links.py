"""An idle link is reopened ahead of use, so that a call with a short timeout finds one open."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from twinbus.pairing.core.failover import ForceFailover
from twinbus.pairing.sdk.sender_pool import IDLE_MAX_S, REOPENINGS_MAX
from twinbus.testing.fake_sdk import FakePair, accepts, hangs, refuses

pytestmark = pytest.mark.virtual_time

HOUR_S = 3_600.0


async def opens_slowly(message: Any) -> None:
    if message is None:
        await asyncio.sleep(0.5)


def message() -> ServiceBusMessage:
    return ServiceBusMessage("x", message_id="1")


async def test_a_call_with_a_short_timeout_finds_an_open_link_whenever_it_comes() -> None:
    world = FakePair()
    world.primary.behaviour = opens_slowly
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(message())
    for idle_s in (30.0, 54.9, 99.9, 100.0, 100.1, 250.0, HOUR_S / 2):
        await asyncio.sleep(idle_s)
        await sender.send_messages(message(), timeout=0.1)
    assert world.primary.opened - world.primary.closed == 1
    await world.client.close()


@pytest.mark.parametrize("jitter", [0.0, 1.0])
async def test_an_idle_link_is_reopened_once_before_it_is_too_old(jitter: float) -> None:
    world = FakePair()
    world.client.state.jitter = lambda: jitter
    async with world.client.get_queue_sender("orders") as sender:
        await sender.send_messages(message())
        opened = []
        for _ in range(40):
            await asyncio.sleep(25.1)
            opened.append(world.primary.opened)
            [newest] = sender.pool._idle[-1:]
            assert world.now - newest.idle_since < IDLE_MAX_S
    # A thousand seconds; no link lived for less than 55 of them.
    assert 10 <= opened[-1] <= 1 + 1_000 / 55
    await asyncio.sleep(HOUR_S)
    assert world.primary.opened == world.primary.closed == opened[-1]
    await world.client.close()


async def test_a_busy_sender_is_not_reopened() -> None:
    world = FakePair()
    sender = world.client.get_queue_sender("orders")
    for _ in range(200):
        await sender.send_messages(message(), timeout=0.1)
        await asyncio.sleep(5.0)
    assert world.primary.opened == 1
    await world.client.close()


async def test_spare_links_are_closed_when_they_are_idle() -> None:
    world = FakePair()

    async def sends_slowly(payload: Any) -> None:
        await asyncio.sleep(0.1)

    world.primary.behaviour = sends_slowly
    sender = world.client.get_queue_sender("orders")
    await asyncio.gather(*(sender.send_messages(message()) for _ in range(20)))
    assert world.primary.opened > 1
    await asyncio.sleep(200.0)
    assert world.primary.opened - world.primary.closed == 1
    await world.client.close()


async def test_a_sender_that_nobody_uses_for_an_hour_lets_its_link_go() -> None:
    world = FakePair()
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(message())
    await asyncio.sleep(5 * HOUR_S)
    assert world.primary.opened == world.primary.closed == REOPENINGS_MAX + 1
    # The next call opens a link, which is kept for an hour again.
    await sender.send_messages(message())
    await asyncio.sleep(HOUR_S / 2 + 1.0)
    assert world.primary.opened - world.primary.closed == 1
    await world.client.close()


@pytest.mark.parametrize("behaviour", [refuses, hangs])
async def test_a_reopening_that_fails_is_no_evidence(behaviour: Any) -> None:
    world = FakePair()
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(message())
    world.primary.behaviour = behaviour
    await asyncio.sleep(HOUR_S)
    assert (world.state(), world.ledger.of("state", "state")) == ("healthy", [])
    # The old link ended when it was too old; nothing is tried until a call needs it.
    assert world.primary.opened <= 4
    world.primary.behaviour = accepts
    await sender.send_messages(message(), timeout=0.1)
    await world.client.close()


async def test_nothing_is_reopened_while_the_entity_is_failed_over() -> None:
    world = FakePair(ping_primary_interval=1_800.0)
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(message())
    world.client.entity("orders").tell(ForceFailover())
    await asyncio.sleep(1_000.0)
    assert world.primary.opened == world.primary.closed == 1
    await world.client.close()


async def test_many_idle_senders_reopen_a_few_links_at_a_time() -> None:
    world = FakePair()
    world.client.state.jitter = random.Random(1).random
    senders = [world.client.get_queue_sender(f"q{number}") for number in range(500)]
    await asyncio.gather(*(sender.send_messages(message()) for sender in senders))
    before = world.primary.opened
    await asyncio.sleep(100.0)
    # Four a second, from the time on at which a link is old enough.
    assert 100 <= world.primary.opened - before <= 4 * 45 + 1
    await world.client.close()
    assert world.primary.opened == world.primary.closed
