"""Messages of one link reach a healthy entity in their order, whatever is refused for now."""

from __future__ import annotations

import asyncio

import pytest

from tests.end_to_end.raw_client import RawClient, Refused, message
from tests.gateway.gateway_world import gateway_world
from twinbus.broker.faults import Fault

pytestmark = pytest.mark.contract

COUNT = 20
IDS = [f"m{number:02}" for number in range(COUNT)]


async def test_what_the_primary_has_overtaken_is_refused_and_not_sent_later() -> None:
    async with gateway_world("orders") as world:
        raw = await RawClient.open(world.connection_string())
        sender = await raw.sender("orders")
        await sender.room()
        await sender.send(message("first", b"first"))
        world.primary.add_fault(Fault(kind="throttle", entity="orders", count=1))
        sends = [sender.send(message(name, name.encode())) for name in IDS]
        results = await asyncio.gather(*sends, return_exceptions=True)
        # As without a gateway: the client knows that it is not stored, and may send it again.
        assert isinstance(results[0], Refused)
        assert results[0].condition == "com.microsoft:server-busy"
        assert results[1:] == [None] * (COUNT - 1)
        assert await world.received("orders", COUNT) == ["first", *IDS[1:]]
        status = world.gateway.pair.status().entities["orders"]
        assert (status.state, status.sent, status.raised) == ("healthy", COUNT, 1)
        await raw.close()


async def test_what_is_refused_together_is_sent_again_in_order_before_what_comes_later() -> None:
    async with gateway_world("orders") as world:
        raw = await RawClient.open(world.connection_string())
        sender = await raw.sender("orders")
        await sender.room()
        await sender.send(message("first", b"first"))
        world.primary.add_fault(Fault(kind="throttle", entity="orders", count=10))
        sends = [sender.send(message(name, name.encode())) for name in IDS[:10]]
        status = world.gateway.pair.status
        async with asyncio.timeout(30):
            while not status().entities["orders"].last_error:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        # The first one waits for its retry: these must not overtake it.
        sends += [sender.send(message(name, name.encode())) for name in IDS[10:]]
        await asyncio.gather(*sends)
        assert await world.received("orders", COUNT + 1) == ["first", *IDS]
        assert status().entities["orders"].diverted == 0
        await raw.close()


async def test_what_waits_for_a_retry_is_diverted_when_the_entity_fails_over() -> None:
    async with gateway_world("orders") as world:
        raw = await RawClient.open(world.connection_string())
        sender = await raw.sender("orders")
        await sender.room()
        await sender.send(message("first", b"first"))
        world.primary.add_fault(Fault(kind="throttle", entity="orders"))
        sends = [sender.send(message(name, name.encode())) for name in IDS]
        await asyncio.sleep(0.2)
        world.gateway.pair.force_failover("orders")
        await asyncio.gather(*sends)
        assert world.gateway.pair.status().entities["orders"].diverted == COUNT
        await raw.close()
