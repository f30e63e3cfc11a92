"""One backlog queue in virtual time: what is received, sent, completed, held and given up."""

from __future__ import annotations

import pytest

from tests.unit.syphon.core.pump_world import LOCK_S, World
from twinbus.syphon.core.pump import IntakeLimits
from twinbus.syphon.core.session_lanes import PeekedEntry

FULL = "amqp:resource-limit-exceeded"
MISSING = "amqp:not-found"
TOO_LARGE = "amqp:link:message-size-exceeded"


def running(**settings: object) -> World:
    """A world whose two connections are up, with room for 40 messages unless it says otherwise."""
    settings.setdefault("limits", IntakeLimits(messages=40))
    world = World(**settings)  # type: ignore[arg-type]
    world.primary_up()
    world.secondary_up()
    return world


def opened(path: str = "orders", count: int = 10, **settings: object) -> World:
    """The same, with messages to one destination delivered and its link open."""
    world = running(**settings)
    world.store(path, count)
    world.deliver(count)
    world.attach(path)
    return world


def test_a_message_is_completed_only_after_the_primary_accepted_it() -> None:
    world = running()
    world.store("orders")
    world.deliver()
    assert (world.attaching, world.sent, world.settling) == (["orders"], [], [])
    world.attach("orders")
    assert len(world.sent) == 1
    assert world.settling == []
    world.accept()
    assert [outcome for outcome, _ in world.settling] == ["gone"]
    assert world.pump.in_flight == 1
    world.confirm()
    assert world.states() == {1: "gone"}
    assert (world.pump.in_flight, world.pump.forwarded, world.pump.completed) == (0, 1, 1)


def test_nothing_is_received_before_the_primary_can_be_reached() -> None:
    world = World()
    world.secondary_up()
    assert world.credit == 0
    world.primary_up()
    assert world.credit > 0
    world.primary_down()
    assert world.credit == 0


def test_messages_under_way_are_bounded_by_number() -> None:
    world = running(limits=IntakeLimits(messages=40))
    world.store("orders", 100)
    assert world.deliver(100) == 30
    assert world.credit == 0
    world.attach("orders")
    world.accept(30)
    assert world.credit == 0
    world.confirm(30)
    assert world.credit == 30


def test_no_more_are_sent_than_a_crash_may_duplicate() -> None:
    world = running(limits=IntakeLimits(messages=40, sent=10))
    for path in ("orders", "bills", "orders"):
        world.store(path, 8)
    assert world.deliver(24) == 24
    world.attach("orders")
    world.attach("bills")
    assert [message.sequence_number for message in world.sent] == [*range(1, 9), 17, 18]
    world.accept(10)
    assert world.sent == [], "what is accepted and not settled counts, too"
    world.confirm(1)
    assert [message.sequence_number for message in world.sent] == [9], "the oldest comes first"
    world.confirm(9)
    numbers = [message.sequence_number for message in world.sent]
    assert numbers == [*range(9, 17), 19, 20]
    world.settle_everything()
    assert sorted(world.in_primary) == [*range(1, 25)]


def test_what_waits_for_room_is_sent_though_another_destination_needs_none() -> None:
    world = running(limits=IntakeLimits(messages=40, sent=5))
    world.store("bills", 3)
    world.store("orders", 5)
    world.deliver(8)
    world.attach("bills")
    world.attach("orders")
    world.accept(1)
    world.detach("bills", "amqp:link:detach-forced")
    world.accept(2)
    world.attach("bills")
    world.confirm(3)
    assert [message.sequence_number for message in world.sent] == [2, 3, 6, 7, 8]


def test_what_was_sent_before_a_link_was_lost_is_sent_again_without_more_room() -> None:
    world = running(limits=IntakeLimits(messages=40, sent=3))
    world.store("orders", 5)
    world.deliver(5)
    world.attach("orders")
    world.detach("orders", "amqp:link:detach-forced")
    world.tick(5.0)
    world.attach("orders")
    world.settle_everything()
    assert world.in_primary == [1, 2, 3, 4, 5]


def test_messages_under_way_are_bounded_by_size() -> None:
    world = running(limits=IntakeLimits(messages=400, size_bytes=100_000), size_bytes=10_000)
    world.store("orders", 500)
    for _ in range(20):
        world.deliver(500)
        if world.attaching:
            world.attach("orders")
        assert world.pump.bytes_in_flight <= 100_000
        world.accept(3)
        world.confirm(3)
    assert world.pump.in_flight > 5


def test_a_message_larger_than_expected_narrows_the_credit_at_once() -> None:
    world = running(limits=IntakeLimits(messages=400, size_bytes=100_000), size_bytes=40_000)
    assert world.credit == 6
    world.store("orders", 6)
    world.deliver(1)
    assert world.credit == 1


def test_a_message_larger_than_all_that_is_allowed_goes_alone() -> None:
    world = running(limits=IntakeLimits(messages=40, size_bytes=1_000), size_bytes=50_000)
    world.store("orders", 3)
    world.settle_everything()
    assert world.in_primary == [1, 2, 3]


def test_a_destination_is_sent_no_more_than_its_credit() -> None:
    world = running()
    world.store("orders", 5)
    world.deliver(5)
    world.attaching.remove("orders")
    world.perform(world.pump.attached("orders", 0, world.now))
    world.grant("orders", 2)
    assert len(world.sent) == 2
    world.grant("orders", 3)
    assert len(world.sent) == 5


def test_a_message_without_a_destination_is_dead_lettered() -> None:
    world = running()
    world.store("")
    world.deliver()
    world.confirm()
    assert world.queue[1].reason == "MissingDestination"
    assert world.states() == {1: "dead"}


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        (TOO_LARGE, "MessageTooLarge"),
        ("amqp:not-allowed", "RefusedByDestination"),
        ("amqp:decode-error", "RefusedByDestination"),
    ],
)
def test_a_message_refused_for_what_it_is_is_dead_lettered_and_others_go_on(
    condition: str, reason: str
) -> None:
    world = opened(count=3)
    world.refuse(condition)
    world.settle_everything()
    assert world.queue[1].reason == reason
    assert world.in_primary == [2, 3]


def test_a_message_larger_than_the_link_takes_is_not_even_sent() -> None:
    world = running(size_bytes=500)
    world.store("orders")
    world.deliver()
    world.perform(world.pump.attached("orders", 499, world.now))
    world.attached["orders"] = 0
    world.grant("orders", 10)
    assert world.sent == []
    world.confirm()
    assert world.queue[1].reason == "MessageTooLarge"


def test_a_link_closed_for_one_bad_message_finds_it_by_sending_one_at_a_time() -> None:
    world = opened(count=4)
    for _ in range(20):
        if any(message.sequence_number == 3 for message in world.sent):
            world.detach("orders", TOO_LARGE)
        world.accept(len(world.sent))
        if world.attaching:
            world.attach("orders")
    world.confirm(10)
    assert world.states() == {1: "gone", 2: "gone", 3: "dead", 4: "gone"}
    assert world.in_primary.count(4) == 1


@pytest.mark.parametrize(
    "condition",
    [
        FULL,
        "com.microsoft:entity-disabled",
        "com.microsoft:server-busy",
        "amqp:unauthorized-access",
    ],
)
def test_a_destination_that_cannot_take_messages_is_held_with_growing_pauses(
    condition: str,
) -> None:
    world = opened(count=10)
    pauses = []
    for _ in range(8):
        while world.sent:
            world.refuse(condition)
        assert world.credit == 0, "while nothing can be delivered, nothing is received"
        held_at = world.now
        while not world.sent:
            timer = world.pump.timer_at
            assert timer is not None
            if world.renewing:
                world.renew()
            world.confirm(100)
            world.tick(max(0.0, timer - world.now))
            world.deliver(10)
        assert len(world.sent) == 1, "one message finds out"
        pauses.append(world.now - held_at)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    world.settle_everything()
    assert sorted(world.in_primary) == list(range(1, 11))


def test_messages_of_a_held_destination_are_deferred_while_others_go_on() -> None:
    world = running()
    world.store("orders", 5)
    world.store("events", 5)
    world.deliver(10)
    world.attach("events")
    world.attach("orders")
    world.sent.sort(key=lambda message: message.path, reverse=True)
    for _ in range(5):
        world.refuse(FULL)
    assert [outcome for outcome, _ in world.settling] == ["deferred"] * 5
    assert world.pump.held == {"orders": "because"}
    world.confirm(5)
    assert world.credit > 0
    world.accept(5)
    world.confirm(5)
    world.tick(1.0)
    assert world.fetches == [[1]], "one will do to find out"
    world.answer_fetch()
    world.accept()
    assert world.fetches == [[2, 3, 4, 5]]
    world.settle_everything()
    assert sorted(world.in_primary) == list(range(1, 11))


def test_a_missing_destination_is_tried_until_the_grace_ends() -> None:
    world = running(grace_s=100.0)
    world.store("orders")
    world.deliver()
    tries = 0
    while world.queue[1].state != "dead":
        if world.attaching:
            tries += 1
            world.detach("orders", MISSING)
        world.confirm(10)
        world.deliver(10)
        world.renew()
        world.tick(1.0)
        assert world.now < 400
    assert tries > 3
    assert world.now >= 100
    assert world.queue[1].reason == "DestinationNotFound"


def test_what_is_deferred_for_a_missing_destination_is_dead_lettered_without_another_trial() -> (
    None
):
    world = running(grace_s=10.0, limits=IntakeLimits(messages=4))
    world.tick(0.0)
    world.answer_look()
    world.store("orders", 9)
    for stored in world.queue.values():
        stored.state = "deferred"
    found = [PeekedEntry(number, "orders", None, True) for number in world.queue]
    world.perform(world.pump.found_deferred(found, world.now, is_all=True))
    while "dead" not in world.states().values():
        for _ in world.attaching:
            world.detach("orders", MISSING)
        world.confirm(10)
        for _ in list(world.fetches):
            world.answer_fetch()
        world.tick(1.0)
        assert world.now < 100
    while world.fetches or world.settling:
        for _ in list(world.fetches):
            world.answer_fetch()
        world.confirm(10)
    assert set(world.states().values()) == {"dead"}


def test_deferred_messages_whose_fetch_was_cut_off_are_looked_for_again() -> None:
    world = running()
    world.tick(0.0)
    world.answer_look()
    world.tick(100.0)
    assert world.looks == 0, "all is known"
    world.store("orders", 2)
    for number in (1, 2):
        world.queue[number].state = "deferred"
    world.perform(
        world.pump.found_deferred(
            [PeekedEntry(1, "orders", None, True), PeekedEntry(2, "orders", None, True)],
            world.now,
            is_all=True,
        )
    )
    assert world.fetches == [[1, 2]]
    world.secondary_down()
    world.settle_everything()
    assert sorted(world.in_primary) == [1, 2]


def with_one_accepted() -> World:
    """Of two messages, to two destinations, one was accepted; the one look found no others."""
    world = running()
    world.tick(1.0)
    world.answer_look()
    world.store("orders")
    world.store("letters")
    world.deliver(2)
    world.attach("orders")
    world.attach("letters")
    world.accept()
    return world


def with_one_fetched() -> World:
    """The other message was deferred and received by number."""
    world = with_one_accepted()
    world.refuse("com.microsoft:entity-disabled")
    world.confirm(2)
    world.tick(2.0)
    world.answer_fetch()
    assert world.states() == {1: "gone", 2: "locked"}
    return world


def test_a_deferred_message_that_is_let_go_is_received_by_number_again() -> None:
    world = with_one_fetched()
    world.primary_down()
    for _ in range(40):
        world.tick(1.0)
        world.renew()
    world.confirm()
    assert world.states() == {1: "gone", 2: "deferred"}
    world.settle_everything()
    assert world.in_primary == [1, 2]


def test_a_deferred_message_whose_lock_is_lost_is_received_by_number_again() -> None:
    world = with_one_fetched()
    world.detach("letters", None)
    world.expire(2)
    world.tick(LOCK_S / 2)
    world.renew()
    world.settle_everything()
    assert world.in_primary == [1, 2]


def test_a_deferred_message_whose_completion_failed_is_received_by_number_to_be_completed() -> None:
    world = with_one_fetched()
    world.accept()
    world.expire(2)
    world.confirm()
    world.settle_everything()
    assert world.in_primary == [1, 2]


def test_a_message_whose_deferral_was_cut_off_is_looked_for() -> None:
    world = with_one_accepted()
    world.confirm()
    world.refuse("com.microsoft:entity-disabled")
    assert [outcome for outcome, _ in world.settling] == ["deferred"]
    world.secondary_down(carried_out=True)
    world.settle_everything()
    assert world.in_primary == [1, 2]


def test_what_waits_is_given_back_when_the_queue_is_back_and_so_is_not_sent_twice() -> None:
    world = running()
    world.store("orders", 3)
    world.deliver(3)
    world.secondary_down()
    # The namespace's process died, and with it all locks.
    for number in world.queue:
        world.expire(number)
    world.settle_everything()
    assert sorted(world.in_primary) == [1, 2, 3]


def test_what_was_in_flight_when_the_primary_was_lost_is_sent_again_in_order() -> None:
    world = opened(count=6)
    world.accept(2)
    world.primary_down()
    world.primary_up()
    world.attach("orders")
    assert [message.sequence_number for message in world.sent] == [3, 4, 5, 6]


def test_what_was_accepted_while_the_secondary_was_away_is_completed_when_it_is_back() -> None:
    world = opened(count=2)
    world.secondary_down()
    world.accept(2)
    assert world.settling == []
    world.secondary_up()
    assert [outcome for outcome, _ in world.settling] == ["gone", "gone"]


def test_locks_are_renewed_before_they_end_while_a_message_is_being_sent() -> None:
    world = opened(count=2, limits=IntakeLimits(messages=40, answer_s=1_000))
    world.tick(LOCK_S / 2 - 0.1)
    assert world.renewing == []
    world.tick(0.1)
    assert len(world.renewing) == 2
    world.renew()
    world.tick(LOCK_S / 2 - 0.1)
    assert world.renewing == []
    world.tick(0.1)
    assert len(world.renewing) == 2


def test_a_lock_that_is_lost_before_the_message_was_sent_ends_it_here() -> None:
    world = running(limits=IntakeLimits(messages=40, answer_s=1_000))
    world.store("orders")
    world.deliver()
    # It waits for the credit of its link.
    world.perform(world.pump.attached("orders", 0, world.now))
    world.tick(LOCK_S / 2)
    world.expire(1)
    world.renew()
    assert world.pump.in_flight == 0


def test_a_destination_that_never_answers_is_detached_and_held() -> None:
    world = opened(count=1, limits=IntakeLimits(messages=40, answer_s=10))
    world.tick(10.0)
    assert world.attached == {}
    assert "not answered for 10 s" in world.pump.held["orders"]


def test_a_primary_that_answers_no_attach_is_connected_anew() -> None:
    world = running(limits=IntakeLimits(messages=40, answer_s=10))
    world.store("orders")
    world.deliver()
    world.tick(10.0)
    assert world.reconnects == ["primary"]


def test_a_link_that_was_closed_for_idleness_is_no_failure() -> None:
    world = opened(count=1)
    world.accept()
    world.detach("orders", "amqp:link:detach-forced")
    assert world.pump.held == {}
    assert world.attaching == []
    world.store("orders")
    world.deliver()
    assert world.attaching == ["orders"]


def test_ten_idle_queues_poll_forty_times_an_hour() -> None:
    polls = 0
    for _ in range(10):
        world = running(poll_s=900.0)
        world.tick(0.0)
        world.answer_look()
        while (timer := world.pump.timer_at) is not None and timer <= 3_600.0:
            world.tick(timer - world.now)
        polls += world.polls
        # Only when the hour is over: somebody else may have deferred something.
        assert world.looks == 1
    assert polls == 40


def test_a_paused_pump_gives_back_what_was_not_sent_and_ends_what_was() -> None:
    world = opened(count=3)
    world.store("events", 2)
    world.deliver(2)
    world.perform(world.pump.pause(world.now))
    assert world.credit == 0
    assert sorted(outcome for outcome, _ in world.settling) == ["active", "active"]
    world.accept(3)
    world.confirm(10)
    assert world.pump.in_flight == 0
    world.perform(world.pump.resume(world.now))
    assert world.credit > 0


def test_limits_that_allow_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 4 messages"):
        IntakeLimits(messages=3)
    with pytest.raises(ValueError, match="1 sent"):
        IntakeLimits(sent=0)
