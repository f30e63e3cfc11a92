"""Destinations that do not answer, in virtual time: each costs itself and not the others."""

from __future__ import annotations

from tests.unit.syphon.core.pump_world import World
from tests.unit.syphon.core.test_pump import opened, running
from twinbus.syphon.core.destination import (
    ATTACH_ANSWER_S,
    ATTACHED_SOON_S,
    BACKOFF_JITTER,
    FIRST_BACKOFF_S,
)
from twinbus.syphon.core.pump import IntakeLimits


def answer_all_but_hung(world: World) -> None:
    """Both namespaces answer all that they were asked, but for the attach to one destination."""
    world.deliver(100)
    if "orders" in world.attaching:
        world.attach("orders")
    world.accept(100)
    world.confirm(100)
    while world.fetches:
        world.answer_fetch()
    world.renew()


def test_one_entity_that_answers_no_attach_costs_its_own_link_and_not_the_others() -> None:
    world = running(limits=IntakeLimits(messages=40, answer_s=10))
    world.store("hung", 3)
    world.deliver(3)
    for _ in range(300):
        world.store("orders")
        world.tick(1.0)
        answer_all_but_hung(world)
    assert world.reconnects == []
    assert world.detached == ["hung"] * len(world.detached)
    assert 5 <= len(world.detached) <= 15, "it is tried again, with a growing pause"
    assert len(world.in_primary) == len(set(world.in_primary)) == 300, "nothing is sent twice"
    world.settle_everything()
    assert sorted(world.in_primary) == list(range(1, 304))


def test_an_entity_that_hangs_alone_costs_no_connection_on_which_a_token_was_granted() -> None:
    world = running(limits=IntakeLimits(messages=40, answer_s=10))
    world.store("hung")
    world.deliver()
    world.tick(1.0)
    world.perform(world.pump.authorized(world.now))
    world.tick(9.0)
    assert (world.detached, world.reconnects) == (["hung"], [])
    assert "not answered for 10 s" in world.pump.held["hung"]
    # The token lasts, so that nothing but the attach is asked for: now the line may be dead.
    world.tick(1.0)
    world.tick(10.0)
    assert (world.detached, world.reconnects) == (["hung"], ["primary"])


def test_a_token_that_is_not_answered_holds_one_destination_if_others_are_answered() -> None:
    world = opened(count=4)
    world.store("hung")
    world.deliver()
    world.tick(1.0)
    world.accept()
    world.perform(world.pump.unanswered("hung", "no token", world.now))
    assert world.pump.held == {"hung": "no token"}
    assert len(world.sent) == 3, "those of the others are where they were"
    assert world.pump.unanswered("hung", "no token", world.now) == [], "it is not waited for"


def test_an_entity_that_answers_no_attach_does_not_fill_the_window_of_the_others() -> None:
    world = running(limits=IntakeLimits(messages=40))
    for _ in range(150):
        world.store("hung")
        world.store("orders")
    arrived, deferred = {}, {}
    while world.now < 30.0:
        answer_all_but_hung(world)
        world.tick(0.1)
        arrived[round(world.now, 1)] = len(world.in_primary)
        deferred[round(world.now, 1)] = world.pump.deferred
    assert arrived[1.9] < 100, "the first attach has some time"
    assert arrived[10.0] == 150
    assert (world.reconnects, deferred[9.9]) == ([], 149), "one is tried"
    assert world.pump.held == {"hung": "an attach to hung was not answered for 10 s"}
    world.settle_everything()
    assert sorted(world.in_primary) == list(range(1, 301))


def test_an_entity_that_hung_is_asked_again_soon_after_it_works() -> None:
    world = running(limits=IntakeLimits(messages=40))
    world.store("hung")
    world.deliver()
    world.tick(ATTACHED_SOON_S)
    assert world.pump.held == {
        "hung": "an attach to hung is not answered; another follows after 10 s"
    }
    # It works again now. It never answers what it was asked while it hung.
    world.perform(world.pump.authorized(world.now))
    while not (world.detached and world.attaching):
        world.tick(0.1)
    assert world.now <= ATTACH_ANSWER_S + FIRST_BACKOFF_S * (1 + BACKOFF_JITTER) + 0.2
    world.attach("hung")
    world.settle_everything()
    assert world.in_primary == [1]
    assert world.pump.held == {}


def test_attaches_that_are_slow_for_everybody_have_nothing_deferred() -> None:
    world = running(limits=IntakeLimits(messages=40))
    world.store("orders", 10)
    world.store("letters", 10)
    world.deliver(20)
    for _ in range(50):
        world.tick(0.1)
    assert world.credit == 0
    world.attach("orders")
    world.attach("letters")
    assert len(world.sent) == 2, "one each, to begin with"
    world.accept(2)
    assert len(world.sent) == 8, "then three more for each that was answered, in both"
    world.accept(8)
    assert len(world.sent) == 10
    world.accept(10)
    world.confirm(20)
    assert (world.pump.deferred, world.pump.held) == (0, {})
    assert world.credit > 20
