"""A pump that is handed a message again: nothing the primary has is sent to it twice."""

from __future__ import annotations

import pytest

from tests.unit.syphon.core.test_pump import opened, running


def test_a_message_delivered_again_after_its_completion_failed_is_not_sent_again() -> None:
    world = opened(count=1)
    world.accept()
    world.expire(1)
    world.confirm()
    assert world.states() == {1: "active"}
    world.deliver()
    assert world.sent == []
    world.confirm()
    assert world.states() == {1: "gone"}
    assert world.in_primary == [1]


@pytest.mark.parametrize("is_accepted_first", [True, False])
def test_a_message_delivered_again_before_its_completion_is_known_to_have_failed(
    is_accepted_first: bool,
) -> None:
    world = opened(count=1)
    if is_accepted_first:
        world.accept()
    # A completion is lost with the connection, and the lock with the namespace's process.
    world.secondary_down()
    world.expire(1)
    world.tick(1.0)
    world.secondary_up()
    if not is_accepted_first:
        world.accept()
    world.deliver()
    assert world.sent == []
    world.confirm(2)
    assert world.states() == {1: "gone"}
    assert world.in_primary == [1]


def test_a_message_delivered_again_that_waits_while_its_first_copy_is_accepted() -> None:
    world = running()
    world.store("orders", 1)
    world.deliver(1)
    world.attaching.remove("orders")
    world.perform(world.pump.attached("orders", 0, world.now))
    world.grant("orders", 1)
    assert len(world.sent) == 1
    # The primary does not answer; the namespace of the backlog crashes and forgets the lock.
    world.secondary_down()
    world.expire(1)
    world.tick(1.0)
    world.secondary_up()
    world.deliver()
    world.accept()
    world.grant("orders", 1)
    assert world.sent == []
    world.settle_everything()
    assert world.states() == {1: "gone"}
    assert world.in_primary == [1]


def test_a_message_delivered_again_while_its_completion_is_on_its_way() -> None:
    world = opened(count=1)
    world.accept()
    # The answer takes longer than the lock; the connection stays.
    world.expire(1)
    world.deliver()
    assert world.sent == []
    world.confirm(2)
    assert world.states() == {1: "gone"}
    assert world.in_primary == [1]
