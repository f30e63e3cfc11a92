"""When pings may begin."""

from __future__ import annotations

import asyncio

import pytest

from twinbus.pairing.core.events import ForceFailover
from twinbus.pairing.core.ping import PingTurns
from twinbus.testing.fake_pair import FakePair
from twinbus.testing.fake_sdk import hangs

pytestmark = pytest.mark.virtual_time


def test_turns_are_at_once_while_there_are_few_and_in_a_row_when_there_are_many() -> None:
    turns = PingTurns(0.25)
    assert turns.take(10.0) == 10.0
    assert [turns.take(10.0) for _ in range(3)] == [10.25, 10.5, 10.75]
    assert turns.take(10.9) == 11.0
    assert turns.take(60.0) == 60.0


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
