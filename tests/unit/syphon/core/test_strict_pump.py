"""Pumps with strict session order, and pumps that serve some destinations only."""

from __future__ import annotations

import pytest

from tests.unit.syphon.core.pump_world import LOCK_S, World
from twinbus.client.peeking import destination_keys
from twinbus.errors import SyphonError
from twinbus.syphon.core.pump import IntakeLimits

FULL = "amqp:resource-limit-exceeded"
TOO_LARGE = "amqp:link:message-size-exceeded"


def running(messages: int = 40) -> World:
    world = World(limits=IntakeLimits(messages=messages), strict=True)
    world.primary_up()
    world.secondary_up()
    return world


def opened(*stored: tuple[int, str | None], messages: int = 40) -> World:
    """Messages delivered, so many of each session in turn, and the link to their entity open."""
    world = running(messages)
    for count, session in stored:
        world.store("orders", count, session)
    world.deliver(100)
    world.attach("orders")
    return world


def numbers_sent(world: World) -> list[int]:
    return [message.sequence_number for message in world.sent]


def test_of_each_session_one_message_is_under_way_and_the_others_are_not_held_up() -> None:
    world = opened((3, "a"), (2, "b"), (3, None))
    assert sorted(numbers_sent(world)) == [1, 4, 6, 7, 8]


def test_the_next_goes_when_the_queue_has_confirmed_the_one_before_it() -> None:
    world = opened((3, "a"))
    world.accept()
    assert numbers_sent(world) == [], "accepted, and not yet completed"
    world.confirm()
    assert numbers_sent(world) == [2]


def test_a_message_that_is_dead_lettered_lets_the_next_go_on() -> None:
    world = opened((2, "a"))
    world.refuse(TOO_LARGE)
    assert numbers_sent(world) == []
    world.confirm()
    assert numbers_sent(world) == [2]
    assert world.states()[1] == "dead"


def test_a_lost_link_brings_the_same_message_again_and_none_behind_it() -> None:
    world = opened((3, "a"))
    world.primary_down(stored=True)
    world.primary_up()
    world.attach("orders")
    assert numbers_sent(world) == [1]
    world.settle_everything()
    assert world.in_primary == [1, 1, 2, 3]


def test_messages_that_a_dead_syphon_has_locked_are_waited_for() -> None:
    world = opened((6, "a"))
    world.crash()
    world.primary_up()
    world.secondary_up()
    world.store("orders", 2, "a")
    world.deliver(10)
    assert world.surveys == [1], "the first number that came is not the first of the queue"
    while world.surveys:
        world.answer_survey()
    assert (world.attaching, world.sent) == ([], [])
    for number in range(1, 7):
        world.expire(number)
    world.settle_everything()
    assert world.in_primary == list(range(1, 9))


def test_numbers_without_a_gap_need_no_survey() -> None:
    world = opened((5, "a"), (5, None), (5, "b"))
    world.settle_everything()
    assert sorted(world.in_primary) == list(range(1, 16))
    assert world.surveyed_from == []


def test_a_queue_whose_first_messages_are_gone_costs_one_survey() -> None:
    world = running()
    world.store("orders", 20, "a")
    for number in range(1, 11):
        world.remove(number)
    world.deliver(10)
    assert world.surveys == [1]
    world.settle_everything()
    assert world.in_primary == list(range(1, 21))
    assert len(world.surveyed_from) == 1


def test_a_message_that_somebody_else_settled_is_not_waited_for() -> None:
    world = running()
    world.store("orders", 3, "a")
    world.steal(1)
    world.deliver(3)
    while world.surveys:
        world.answer_survey()
    assert numbers_sent(world) == []
    world.expire(1)
    world.remove(1)
    world.settle_everything()
    assert world.in_primary == [1, 2, 3]


def test_a_session_of_a_held_destination_keeps_its_order_over_deferral() -> None:
    world = running()
    world.store("orders", 3, "a")
    world.store("other", 1)
    world.deliver(10)
    world.attach("orders")
    world.attach("other")
    assert [message.path for message in world.sent] == ["orders", "other"]
    world.refuse(FULL)
    world.confirm(10)
    assert [world.queue[number].state for number in (1, 2, 3)] == ["deferred"] * 3
    world.settle_everything()
    assert [number for number in world.in_primary if number < 4] == [1, 2, 3]


def test_a_lost_lock_makes_those_behind_it_wait() -> None:
    world = opened((3, "a"))
    world.primary_down()
    world.expire(1)
    world.tick(LOCK_S / 2)
    world.settle_everything()
    assert world.in_primary == [1, 2, 3]


def test_a_long_session_leaves_room_for_the_others() -> None:
    world = opened((60, "a"), messages=40)
    world.store("orders", 5, "b")
    for _ in range(20):
        world.confirm(100)
        world.deliver(100)
    assert 61 in numbers_sent(world), "the other session did not wait for 60 turns"
    assert numbers_sent(world)[0] == 1
    world.settle_everything()
    first = [number for number in dict.fromkeys(world.in_primary) if number <= 60]
    assert first == list(range(1, 61))


def test_paused_for_two_reasons_it_goes_on_when_both_are_gone() -> None:
    world = opened((3, "a"))
    world.perform(world.pump.pause(world.now))
    world.perform(world.pump.pause(world.now, "the lease is not held"))
    world.accept()
    world.confirm(10)
    assert world.states() == {1: "gone", 2: "active", 3: "active"}
    world.perform(world.pump.resume(world.now))
    assert world.credit == 0
    world.perform(world.pump.resume(world.now, "the lease is not held"))
    world.settle_everything()
    assert world.in_primary == [1, 2, 3]


def test_a_second_delivery_of_what_the_primary_has_is_completed_and_not_sent() -> None:
    world = opened((2, "a"))
    # The lock ends unseen while the message is on its way, and the queue delivers it again.
    world.expire(1)
    world.deliver(1)
    world.accept()
    world.confirm(10)
    world.settle_everything()
    assert world.in_primary == [1, 2]


def serving(*paths: str, strict: bool = False) -> World:
    return World(strict=strict, only=destination_keys(paths))


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
    world.only = None
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
    assert len(world.pump.order.lanes) == 0  # type: ignore[union-attr]
