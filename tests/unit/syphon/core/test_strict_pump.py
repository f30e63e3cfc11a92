"""Strict session order in one backlog queue, in virtual time: whose turn it is, and who waits."""

from __future__ import annotations

from tests.unit.syphon.core.pump_world import LOCK_S, World
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
    return [parcel.sequence_number for parcel in world.sent]


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
    assert [parcel.path for parcel in world.sent] == ["orders", "other"]
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
