"""When pings may begin."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusMessage

from twinbus.pairing.core.failover import ForceFailover
from twinbus.pairing.core.ping import PingTurns, ping_delay_s
from twinbus.pairing.sending.pinger import ping_bytes, send_ping
from twinbus.testing.fake_pair import FakePair
from twinbus.testing.fake_sdk import hangs, refuses

pytestmark = pytest.mark.virtual_time


def test_turns_are_at_once_while_there_are_few_and_in_a_row_when_there_are_many() -> None:
    turns = PingTurns(0.25)
    assert turns.take(10.0) == 10.0
    assert [turns.take(10.0) for _ in range(3)] == [10.25, 10.5, 10.75]
    assert turns.take(10.9) == 11.0
    assert turns.take(60.0) == 60.0


class Sender:
    """A sender of the SDK that keeps what it gets."""

    def __init__(self) -> None:
        self.sent: list[ServiceBusMessage] = []

    async def send_messages(self, message: ServiceBusMessage) -> None:
        self.sent.append(message)


async def test_a_ping_is_empty_short_lived_and_has_a_session_of_its_own() -> None:
    sender = Sender()
    for _ in range(2):
        await send_ping(sender)
    for ping in sender.sent:
        assert b"".join(ping.body) == b""
        assert ping.content_type == "application/vnd.ms-servicebus-ping"
        assert ping.time_to_live == timedelta(seconds=1)
    first, second = (ping.session_id for ping in sender.sent)
    assert first
    assert second not in (None, first)


async def test_entities_that_failed_over_together_are_not_pinged_all_at_once() -> None:
    world = FakePair(ping_primary_interval=60.0)
    for number in range(1_000):
        world.client.entity(f"entity-{number}").tell(ForceFailover())
    await asyncio.sleep(60.001)
    assert world.primary.opened < 5
    await asyncio.sleep(2.5)
    assert 490 < world.primary.opened < 510
    await asyncio.sleep(2.5)
    assert world.primary.opened == 1_000
    await world.client.close()
    assert world.primary.closed == world.primary.opened


async def test_closing_does_not_wait_for_the_turn_of_a_ping() -> None:
    world = FakePair(ping_primary_interval=60.0)
    world.primary.behaviour = hangs
    for number in range(100):
        world.client.entity(f"entity-{number}").tell(ForceFailover())
    await asyncio.sleep(60.1)
    began = world.now
    await world.client.close()
    assert world.now - began < 0.2


def test_a_ping_is_late_by_a_tenth_of_the_interval_at_most() -> None:
    assert [ping_delay_s(60.0, jitter) for jitter in (0.0, 0.5, 1.0)] == [0.0, 3.0, 6.0]


async def test_pairs_that_failed_over_together_ping_at_different_times() -> None:
    worlds = [FakePair(ping_primary_interval=60.0) for _ in range(3)]
    for number, world in enumerate(worlds):
        jitters = iter([number / 2] * 3)
        world.client.state.jitter = lambda draws=jitters: next(draws)  # type: ignore[misc]
        world.primary.behaviour = refuses
        world.client.entity("orders").tell(ForceFailover())
    pinged = []
    await asyncio.sleep(0.5)
    for _ in range(70):
        await asyncio.sleep(1.0)
        pinged.append([world.primary.opened for world in worlds])
    # At 60, 63 and 66 s, once each.
    expected = [[0, 0, 0]] * 59 + [[1, 0, 0]] * 3 + [[1, 1, 0]] * 3 + [[1, 1, 1]] * 5
    assert pinged == expected
    for world in worlds:
        await world.client.close()


def test_the_size_of_a_ping_is_known() -> None:
    assert 100 < ping_bytes() < 250
