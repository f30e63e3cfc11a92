"""Destinations that do not answer, in virtual time: each costs itself and not the others."""

from __future__ import annotations

from tests.unit.syphon.test_pump import opened, running
from twinbus.syphon.pump import Limits


def test_one_entity_that_answers_no_attach_costs_its_own_link_and_not_the_others() -> None:
    world = running(limits=Limits(messages=40, answer_s=10))
    world.store("hung", 3)
    world.deliver(3)
    for _ in range(600):
        world.store("orders")
        world.tick(0.5)
        world.deliver(100)
        if "orders" in world.attaching:
            world.attach("orders")
        world.accept(100)
        world.confirm(100)
        while world.fetches:
            world.answer_fetch()
        world.renew()
    assert world.reconnects == []
    assert world.detached == ["hung"] * len(world.detached)
    assert 5 <= len(world.detached) <= 15, "it is tried again, with a growing pause"
    assert len(world.in_primary) == len(set(world.in_primary)) == 600, "nothing is sent twice"
    world.settle_everything()
    assert sorted(world.in_primary) == list(range(1, 604))


def test_an_entity_that_hangs_alone_costs_no_connection_on_which_a_token_was_granted() -> None:
    world = running(limits=Limits(messages=40, answer_s=10))
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
