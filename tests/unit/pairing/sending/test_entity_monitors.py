"""A pair forgets unused entities, keeps their totals, and keeps what is still needed."""

from __future__ import annotations

import asyncio

import pytest
from azure.servicebus import ServiceBusMessage

from twinbus.pairing.core.failover import ForceFailover, Freeze, MarkHealthy
from twinbus.pairing.sending.entity_monitor import UNUSED_MAX, EntityMonitors
from twinbus.testing.fake_sdk import FakePair, refuses

pytestmark = pytest.mark.virtual_time

KEPT = 3


def small_world() -> FakePair:
    world = FakePair()
    world.client.state.monitors = EntityMonitors(KEPT)
    return world


async def send_to(world: FakePair, path: str) -> None:
    async with world.client.get_queue_sender(path) as sender:
        await sender.send_messages(ServiceBusMessage("x", message_id="1"))


def paths(world: FakePair) -> list[str]:
    return [entity.path for entity in world.client.state.monitors.all()]


async def test_reply_queues_are_forgotten_and_their_totals_are_kept() -> None:
    world = FakePair()
    for number in range(UNUSED_MAX + 200):
        await send_to(world, f"reply-{number}")
    watched = world.client.state.monitors
    entities, totals = watched.numbers()
    assert len(entities) == UNUSED_MAX
    assert (totals.entities, totals.sent) == (200, 200)
    assert [entities[0].path, entities[-1].path] == ["reply-200", f"reply-{UNUSED_MAX + 199}"]
    await world.client.close()


async def test_an_entity_in_use_held_or_not_healthy_is_kept() -> None:
    world = small_world()
    open_sender = world.client.get_queue_sender("open")
    for path in ("again", "frozen", "forced"):
        await send_to(world, path)
    world.client.entity("frozen").tell(Freeze())
    world.client.entity("forced").tell(ForceFailover())
    again = world.client.get_queue_sender("again")
    for number in range(10):
        await send_to(world, f"other-{number}")
    kept = {"open", "again", "frozen", "forced"}
    assert kept < set(paths(world))
    assert len(paths(world)) == len(kept) + KEPT
    # When the last one needs them no more, they go too.
    await open_sender.close()
    await again.close()
    world.client.entity("forced").tell(MarkHealthy())
    for number in range(10, 20):
        await send_to(world, f"other-{number}")
    assert set(paths(world)) == {"frozen", "other-17", "other-18", "other-19"}
    await world.client.close()


async def test_an_entity_that_changes_after_it_was_forgotten_does_not_come_back() -> None:
    """A sender of it may have been closed while an attempt was under way."""
    world = small_world()
    late = world.client.entity("late")
    world.client.state.monitors.release(late)
    for number in range(KEPT):
        await send_to(world, f"other-{number}")
    late.tell(ForceFailover())
    late.tell(MarkHealthy())
    for number in range(2 * KEPT):
        await send_to(world, f"another-{number}")
    assert paths(world) == ["another-3", "another-4", "another-5"]
    await late.close()
    await world.client.close()


async def test_an_entity_that_was_used_last_is_forgotten_last() -> None:
    world = small_world()
    for path in ("a", "b", "c", "a", "d"):
        await send_to(world, path)
    assert paths(world) == ["a", "c", "d"]
    # It begins anew; nothing is lost of what was counted.
    await send_to(world, "B")
    entities, totals = world.client.state.monitors.numbers()
    assert totals.sent + sum(entity.sent for entity in entities) == 6
    await world.client.close()


async def test_an_entity_that_heals_after_its_sender_was_closed_is_forgotten_in_time() -> None:
    world = small_world()
    world.primary.by_entity["late"] = refuses
    sender = world.client.get_queue_sender("late")
    await sender.send_messages(ServiceBusMessage("x"), timeout=60)
    await sender.close()
    for number in range(10):
        await send_to(world, f"other-{number}")
    assert "late" in paths(world)
    del world.primary.by_entity["late"]
    await asyncio.sleep(100.0)
    for number in range(10, 20):
        await send_to(world, f"other-{number}")
    assert "late" not in paths(world)
    assert world.client.state.monitors.forgotten.diverted == 1
    await world.client.close()
