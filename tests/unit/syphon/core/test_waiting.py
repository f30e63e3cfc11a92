"""Messages that wait: deferred ones, and looking ahead for those that can be delivered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import pytest

from tests.unit.syphon.core.pump_world import World
from tests.unit.syphon.core.test_pump import FULL, running
from twinbus.syphon.core.destination import KNOWN_MAX, DeferredMessages, Destination
from twinbus.syphon.core.pump import IntakeLimits

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


def behind_a_held_one(count: int) -> World:
    """All in hand is for a full destination; `count` more for it, then three for another."""
    world = running()
    world.store("orders", 30 + count)
    world.store("letters", 3)
    assert world.deliver(100) == 30
    world.attach("orders")
    while world.sent:
        world.refuse(FULL)
    return world


def test_messages_behind_a_window_of_a_held_destination_are_found_and_sent() -> None:
    world = behind_a_held_one(count=50)
    assert (world.credit, world.settling) == (0, []), "nothing is received nor deferred in vain"
    for _ in range(60):
        while world.looks_ahead:
            world.answer_look_ahead()
        world.deliver(100)
        world.confirm(100)
        if "letters" in world.attaching:
            break
    world.attach("letters")
    world.accept(3)
    assert world.in_primary == [81, 82, 83]
    assert world.now == 0.0, "without a pause"
    assert [world.queue[number].state for number in range(1, 81)] == ["deferred"] * 80
    world.settle_everything()
    assert sorted(world.in_primary) == list(range(1, 84))


def test_while_nothing_can_be_delivered_nothing_is_received_however_long_it_takes() -> None:
    world = running()
    world.store("orders", 200)
    world.deliver(100)
    world.attach("orders")
    received, peeks = 30, 0
    for _ in range(3_600):
        while world.sent:
            world.refuse(FULL)
        while world.looks_ahead:
            peeks += 1
            world.answer_look_ahead()
        world.renew()
        world.confirm(100)
        world.tick(1.0)
        received += world.deliver(100)
    assert world.pump.deferred == 0
    # A message finds out, once a minute; as its lock ends meanwhile, another one comes for that.
    assert received <= 30 + 70
    # A queue of 67 pages of three messages, seen in two looks; looks become a minute apart.
    assert peeks <= 68 * 60 * 2
    world.settle_everything()
    assert sorted(world.in_primary) == list(range(1, 201))


def stored_and_refused(world: World, minutes: int) -> tuple[int, int, int]:
    """Messages received at first and in some minutes of refusals, and how often one was tried."""
    first, received, tries = world.deliver(10_000), 0, 0
    answer_peeks(world)
    world.attach("orders")
    while world.sent:
        world.refuse(FULL)
    for _ in range(60 * minutes):
        while world.sent:
            tries += 1
            world.refuse(FULL)
        world.grant("orders")
        answer_peeks(world)
        world.renew()
        world.confirm(10_000)
        world.tick(1.0)
        received += world.deliver(10_000)
    return first, received, tries


def test_a_held_destination_is_tried_with_one_message_and_not_with_a_window() -> None:
    world = running(limits=IntakeLimits())
    world.store("orders", 5_000)
    first, received, tries = stored_and_refused(world, minutes=10)
    assert first > 1_000
    assert 10 <= tries <= 20
    assert received <= tries, "only where those in hand were given back, and then one"


def test_a_held_destination_of_sessions_in_order_is_tried_with_few_messages() -> None:
    world = running(limits=IntakeLimits(messages=400), strict=True)
    for number in range(100):
        world.store("orders", 6, session=f"s{number}")
    first, received, _ = stored_and_refused(world, minutes=10)
    assert first == 300
    assert received <= 20
    world.settle_everything()
    assert sorted(world.in_primary) == list(range(1, 601))


def answer_peeks(world: World) -> None:
    while world.surveys:
        world.answer_survey()
    while world.looks:
        world.answer_look()
    while world.fetches:
        world.answer_fetch()


def test_a_message_that_was_found_ahead_and_went_elsewhere_is_not_waited_for() -> None:
    world = behind_a_held_one(count=0)
    while world.looks_ahead:
        world.answer_look_ahead()
    assert world.credit == 0, "until the deferrals are confirmed there is no room"
    world.confirm(100)
    assert world.credit == 30
    for number in (31, 32, 33):
        world.remove(number)
    world.tick(10.0)
    while world.sent:
        world.refuse(FULL)
    world.confirm(100)
    while world.fetches:
        world.answer_fetch()
    while world.sent:
        world.refuse(FULL)
    assert world.credit == 0, "there was nothing else"
    world.settle_everything()
    assert sorted(world.in_primary) == list(range(1, 34))


def test_a_look_ahead_that_fails_is_made_again_later() -> None:
    world = behind_a_held_one(count=0)
    world.answer_look_ahead(failed=True)
    assert world.looks_ahead == []
    for _ in range(12):
        world.tick(1.0)
        while world.sent:
            world.refuse(FULL)
    assert len(world.looks_ahead) == 1
    world.settle_everything()
