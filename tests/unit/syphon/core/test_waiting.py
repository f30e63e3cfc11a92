"""Deferred messages of a syphon that died, in virtual time: found, however busy the queue is."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import pytest

from tests.unit.syphon.core.pump_world import World
from tests.unit.syphon.core.test_pump import running
from twinbus.syphon.core.destination import Destination
from twinbus.syphon.core.waiting import KNOWN_MAX, DeferredMessages

HOUR = 3_600


def left_behind(path: str = "letters", count: int = 3) -> World:
    """A world in which another process deferred some messages, and died."""
    world = running()
    for number in world.store(path, count):
        world.queue[number].state = "deferred"
    return world


def look_and_fetch(world: World) -> int:
    looks = world.looks
    while world.looks:
        world.answer_look()
    while world.fetches:
        world.answer_fetch()
    for path in list(world.attaching):
        world.attach(path)
    for path in world.attached:
        world.grant(path)
    for number in [n for n, stored in world.queue.items() if stored.state == "gone"]:
        del world.queue[number]
    return looks


def test_a_message_each_second_does_not_put_off_the_look_for_ever() -> None:
    world, looked_at = left_behind(), []
    for second in range(1, HOUR):
        world.store("orders")
        world.deliver()
        world.accept(10)
        world.confirm(10)
        world.tick(1.0)
        looked_at += [second] * look_and_fetch(world)
    assert looked_at == [60], "once, for that one found all"
    assert set(world.in_primary) >= {1, 2, 3}


def test_a_queue_that_is_never_empty_is_looked_at_too() -> None:
    world, looked_at = left_behind(), []
    for second in range(1, 300):
        world.store("orders", 2)
        world.deliver(2)
        # The last one is always under way.
        world.accept(len(world.sent) - 1)
        world.confirm(100)
        world.tick(1.0)
        looked_at += [second] * look_and_fetch(world)
        world.renew()
    assert looked_at == [60]
    assert set(world.in_primary) >= {1, 2, 3}
    assert len(world.in_primary) == len(set(world.in_primary)), (
        "those in hand are not fetched again"
    )


def test_looks_that_do_not_reach_the_end_become_rare_while_the_queue_is_busy() -> None:
    world, looked_at = left_behind(), []
    for second in range(1, HOUR):
        world.store("orders")
        world.deliver()
        world.accept(len(world.sent) - 1)
        world.confirm(100)
        world.tick(1.0)
        if world.looks:
            world.looks = 0
            looked_at.append(second)
            world.perform(world.pump.found_deferred([], world.now, is_all=False))
        look_and_fetch(world)
        world.renew()
    assert looked_at == [60, 180, 420, 900, 1860]


def test_the_look_of_a_quiet_queue_is_made_at_once() -> None:
    world = left_behind()
    world.tick(1.0)
    assert look_and_fetch(world) == 1
    world.accept(3)
    assert world.in_primary == [1, 2, 3]


class Walked(OrderedDict[int, None]):
    """Counts the numbers that are walked over."""

    walked = 0

    def __iter__(self) -> Iterator[int]:
        for number in super().__iter__():
            self.walked += 1
            yield number


@pytest.mark.parametrize("count", [-1, 0, 1, 50])
def test_taking_some_of_many_deferred_messages_does_not_walk_over_all(count: int) -> None:
    destination, aside = Destination("orders"), DeferredMessages()
    destination.deferred = known = Walked()
    for number in range(KNOWN_MAX):
        aside.add(destination, number, 0.0)
    assert aside.take(destination, count) == list(range(max(0, count)))
    assert len(known) == KNOWN_MAX - max(0, count)
    assert known.walked <= 50
