"""A pump that serves some destinations only: the others' messages stay, and are found later."""

from __future__ import annotations

import pytest

from tests.unit.syphon.core.pump_world import World
from twinbus.client.peeking import destination_keys
from twinbus.errors import SyphonError


def serving(*paths: str, strict: bool = False) -> World:
    world = World(strict=strict)
    world.pump.only = destination_keys(paths)
    return world


def run(world: World) -> None:
    """Everything is answered, until nothing is active any more."""
    world.primary_up()
    world.secondary_up()
    for _ in range(20):
        for path in list(world.attaching):
            world.attach(path)
        for path in list(world.attached):
            world.grant(path)
        world.deliver(1_000)
        while world.surveys:
            world.answer_survey()
        while world.looks:
            world.answer_look()
        while world.fetches:
            world.answer_fetch()
        world.accept(len(world.sent))
        world.confirm(len(world.settling))
        world.tick(3.0)


@pytest.mark.parametrize("strict", [False, True])
def test_others_are_deferred_and_a_later_syphon_brings_them_home(strict: bool) -> None:
    world = serving("Orders/", strict=strict)
    foreign = world.store("events", 3, "s1")
    mine = world.store("orders", 3, "s1")
    nowhere = world.store("")
    foreign += world.store("payments", 2)
    run(world)
    assert sorted(world.in_primary) == mine
    assert {world.queue[number].state for number in foreign + nowhere} == {"deferred"}
    assert world.pump.not_served == len(foreign + nowhere)
    assert world.pump.held == {}
    assert world.attached.keys() == {"orders"}
    world.crash()
    world.settle_everything()
    assert sorted(world.in_primary) == sorted(mine + foreign)
    assert world.queue[nowhere[0]].state == "dead"


def test_deferred_messages_of_the_selected_one_are_fetched_and_others_are_not() -> None:
    world = serving("orders")
    (mine,), (other,) = world.store("orders"), world.store("events")
    world.queue[mine].state = world.queue[other].state = "deferred"
    run(world)
    assert world.in_primary == [mine]
    assert world.queue[other].state == "deferred"


def test_a_held_selected_destination_is_waited_for() -> None:
    world = serving("orders")
    world.store("events", 5)
    world.store("orders", 2)
    world.primary_up()
    world.secondary_up()
    world.deliver(10)
    world.detach("orders", "amqp:unauthorized-access")
    world.confirm(10)
    assert world.pump.held == {"orders": "because"}
    run(world)
    assert len(world.in_primary) == 2


def test_what_others_deferred_meanwhile_is_found_within_an_hour() -> None:
    world = World()
    world.primary_up()
    world.secondary_up()
    world.tick(0.0)
    world.answer_look()
    (number,) = world.store("orders")
    world.queue[number].state = "deferred"
    for _ in range(62):
        world.tick(60.0)
        while world.looks:
            world.answer_look()
    world.settle_everything()
    assert world.in_primary == [number]


def test_an_empty_path_is_no_destination() -> None:
    with pytest.raises(SyphonError, match="path of a queue or topic"):
        destination_keys(["orders", " / "])


def test_others_do_not_stay_in_hand_while_nothing_can_be_delivered() -> None:
    world = serving("orders")
    foreign = world.store("events", 5)
    world.primary_up()
    world.secondary_up()
    world.deliver(5)
    world.confirm(5)
    assert {world.queue[number].state for number in foreign} == {"deferred"}
    assert world.pump.in_flight == 0
    assert world.credit > 0


def test_sessions_of_others_are_not_remembered() -> None:
    world = serving("orders", strict=True)
    foreign = world.store("events", 3, "s1")
    mine = world.store("orders", 2, "s1")
    # Locked by somebody else, so that a survey sees it and nothing delivers it.
    world.steal(foreign[1])
    run(world)
    assert sorted(world.in_primary) == mine
    assert world.surveyed_from
    assert world.pump._order.lanes._by_number == {}  # type: ignore[union-attr]
