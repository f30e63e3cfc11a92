"""The pump of a twin: it brings messages home, and keeps none from the consumers of the twin."""

from __future__ import annotations

from tests.unit.syphon.core.pump_world import World
from twinbus.syphon.core.pump import LEFT_S, IntakeLimits

HOME = "orders"
FULL = "amqp:resource-limit-exceeded"
MISSING = "amqp:not-found"


def twin(count: int = 10) -> World:
    """A twin with messages, both connections up; its home was not answered yet."""
    world = World(home=HOME, limits=IntakeLimits(messages=40, answer_s=10.0))
    world.store(HOME, count)
    world.primary_up()
    world.secondary_up()
    return world


def moving(count: int = 10) -> World:
    """The same, after the home accepted the first message."""
    world = twin(count)
    world.attach(HOME)
    world.deliver()
    world.accept()
    world.confirm()
    return world


def active(world: World) -> int:
    return list(world.states().values()).count("active")


def test_nothing_is_received_before_the_link_to_the_home_is_open() -> None:
    world = twin()
    assert (world.attaching, world.credit) == ([HOME], 0)
    world.attach(HOME)
    assert world.credit == 1


def test_one_message_tries_the_home_before_more_are_received() -> None:
    world = twin()
    world.attach(HOME)
    assert world.deliver(10) == 1
    assert (len(world.sent), world.credit) == (1, 0)
    world.accept()
    world.confirm()
    assert world.credit > 1
    world.settle_everything()
    assert sorted(world.in_primary) == list(range(1, 11))


def test_messages_in_memory_are_released_at_once_when_the_primary_is_lost() -> None:
    world = moving(30)
    world.deliver(20)
    assert active(world) == 9
    world.primary_down()
    assert world.credit == 0
    world.confirm(len(world.settling))
    assert active(world) == 29
    assert world.pump.in_flight == 0


def test_a_home_that_refuses_is_tried_with_one_message_after_each_pause() -> None:
    world = moving()
    world.deliver(1)
    world.refuse(FULL)
    world.confirm(len(world.settling))
    assert (active(world), world.credit) == (9, 0)
    assert world.pump.held == {HOME: "because"}
    world.tick(1.1)
    assert (world.attaching, world.credit) == ([], 1)
    world.deliver(5)
    world.accept()
    world.confirm()
    assert world.pump.held == {}
    world.settle_everything()


def test_a_missing_home_is_waited_for_without_end_and_nothing_is_dead_lettered() -> None:
    world = twin()
    world.detach(HOME, MISSING)
    for _ in range(200):
        world.tick(60.0)
        if world.attaching:
            world.detach(HOME, MISSING)
    assert set(world.states().values()) == {"active"}
    assert world.pump.given_up_at == {}
    world.settle_everything()
    assert set(world.states().values()) == {"gone"}


def test_a_home_that_hangs_keeps_one_message_for_one_answer_time() -> None:
    world = moving(3)
    world.deliver(5)
    world.accept(5)
    world.confirm(5)
    world.tick(11.0)
    assert world.credit == 1
    world.store(HOME, 50)
    assert world.deliver(50) == 1
    world.tick(11.0)
    world.confirm(len(world.settling))
    assert active(world) == 50
    assert world.credit == 0


def test_an_idle_home_keeps_its_link_and_is_on_trial() -> None:
    world = moving(1)
    for _ in range(10):
        world.tick(60.0)
    assert HOME in world.attached
    assert world.credit == 1
    assert world.pump.held == {}


def test_a_link_that_the_service_closes_is_opened_again() -> None:
    world = moving(1)
    world.tick(60.0)
    world.detach(HOME, "amqp:link:detach-forced")
    assert (world.attaching, world.credit) == ([HOME], 0)
    world.attach(HOME)
    assert world.credit == 1


def test_messages_that_consumers_deferred_are_never_searched_for() -> None:
    world = moving()
    world.queue[7].state = "deferred"
    for _ in range(100):
        world.deliver(5)
        while world.sent:
            world.accept()
        world.confirm(5)
        world.tick(60.0)
    assert [stored.number for stored in world.left] == [7]


def test_a_foreign_message_is_released_and_named_and_the_twin_is_left_for_a_while() -> None:
    world = World(home=HOME)
    foreign = world.store("")
    world.store(HOME, 3)
    world.primary_up()
    world.secondary_up()
    world.attach(HOME)
    world.deliver(1)
    assert world.credit == 0
    world.confirm()
    assert set(world.states().values()) == {"active"}
    assert world.pump.left == "no path"
    world.tick(LEFT_S - 1)
    assert world.credit == 0
    world.remove(foreign[0])
    world.tick(2.0)
    assert (world.pump.left, world.credit) == ("", 1)
    world.settle_everything()


def test_nothing_is_received_while_the_home_gives_no_credit() -> None:
    world = moving(5)
    world.grant(HOME, 0)
    assert world.credit == 0
    world.grant(HOME, 5)
    assert world.credit > 1


def test_messages_are_released_when_the_home_is_slow_to_open_its_link_again() -> None:
    world = moving(20)
    world.grant(HOME, 2)
    world.deliver(10)
    assert len(world.sent) == 2
    world.detach(HOME, "amqp:link:detach-forced", stored=True)
    assert world.attaching == [HOME]
    world.tick(2.0)
    world.confirm(len(world.settling))
    assert world.pump.in_flight == 0
