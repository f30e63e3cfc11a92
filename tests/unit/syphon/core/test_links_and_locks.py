"""A pump's unused links, locks by a wrong clock, back-offs, and when to restart a syphon."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.syphon.core.test_pump import opened, running
from twinbus.status.document import SyphonQueueStatus
from twinbus.syphon.core.destination import IDLE_LINK_S
from twinbus.syphon.core.health import STUCK_S, StallDetector, SyphonHealth
from twinbus.syphon.core.pump import IntakeLimits


def test_a_link_that_is_not_used_is_closed_and_opened_again_on_need() -> None:
    world = running()
    world.store("orders")
    world.settle_everything()
    world.tick(IDLE_LINK_S / 2)
    assert "orders" in world.attached
    world.tick(IDLE_LINK_S / 2 + 1)
    assert world.detached == ["orders"]
    world.store("orders")
    world.settle_everything()
    assert len(world.in_primary) == 2


def test_a_destination_that_is_held_is_not_forgotten() -> None:
    world = running()
    world.store("orders")
    world.deliver()
    world.detach("orders", "amqp:not-found")
    since = world.pump.given_up_at
    world.tick(IDLE_LINK_S + 1)
    assert world.pump.given_up_at == since != {}


PATIENT = IntakeLimits(messages=40, answer_s=600.0)
"""With time enough for an answer, so that locks must be renewed meanwhile."""


@pytest.mark.parametrize(
    ("apparent_s", "renewed_s"), [(360.0, 30.0), (60.0, 30.0), (20.0, 10.0)], ids=str
)
def test_locks_are_renewed_in_time_although_our_clock_is_behind(
    apparent_s: float, renewed_s: float
) -> None:
    world = running(limits=PATIENT, lock_s=apparent_s)
    world.store("orders")
    world.deliver()
    world.attach("orders")
    world.grant("orders")
    world.tick(renewed_s - 1)
    assert world.renewing == []
    world.tick(1.5)
    assert len(world.renewing) == 1


def test_a_lock_that_was_lost_makes_the_next_ones_be_renewed_earlier() -> None:
    world = running(limits=PATIENT)
    world.store("orders")
    world.deliver()
    world.attach("orders")
    world.grant("orders")
    world.tick(31.0)
    world.expire(1)
    world.renew()
    world.store("orders")
    world.deliver(2)
    world.tick(16.0)
    assert 2 in [message.sequence_number for message in world.renewing]


def test_back_offs_vary_by_chance() -> None:
    world = running(chance=1.0)
    world.store("orders")
    world.deliver()
    world.detach("orders", "com.microsoft:server-busy")
    assert world.pump.timer_at == world.now + 1.5


def test_a_destination_that_comes_back_does_not_get_everything_at_once() -> None:
    world = running(limits=IntakeLimits(messages=4_000))
    world.store("orders", 2_000)
    world.deliver(2_000)
    world.detach("orders", "com.microsoft:server-busy")
    world.tick(2.0)
    world.attach("orders")
    in_flight = []
    for _ in range(5):
        world.grant("orders")
        in_flight.append(len(world.sent))
        world.accept(len(world.sent))
    assert in_flight[:4] == [1, 4, 16, 64]
    assert in_flight[4] > 64


def test_a_recovering_destination_starts_slowly_whatever_others_accept_beside_it() -> None:
    world = running(limits=IntakeLimits(messages=400))
    for path, count in (("fast", 60), ("slow", 1)):
        world.store(path, count)
        world.deliver(count)
        world.attach(path)
    slow = world.pump.destinations.by_key["slow"]
    slow.start_trial()
    # The primary answers for both in one range.
    world.accept(61)
    assert slow.window == 1 + 3


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


QUEUE = "contoso/x-servicebus-transfer/0"


def states(**changes: Any) -> dict[str, SyphonQueueStatus]:
    return {QUEUE: SyphonQueueStatus(**{"in_flight": 5, **changes})}


def watched(
    *timeline: tuple[float, dict[str, SyphonQueueStatus]], rate_per_s: float | None = None
) -> SyphonHealth:
    """Return the verdict at the end of a timeline."""
    watch = StallDetector(rate_per_s)
    for now, queues in timeline:
        watch.observe(queues, now)
    now, queues = timeline[-1]
    return watch.health(queues, now)


def test_a_pump_that_moves_is_healthy() -> None:
    health = watched(*((now, states(completed=int(now))) for now in (0.0, STUCK_S, 2 * STUCK_S)))
    assert (health, health.word) == (SyphonHealth((), ()), "ok")


def test_messages_in_flight_that_nothing_blocks_and_that_do_not_move_are_stuck() -> None:
    assert watched((0.0, states()), (STUCK_S - 1, states())).word == "ok"
    health = watched((0.0, states()), (STUCK_S, states()))
    assert health.word == "failed"
    (why,) = health.failures
    assert why.startswith(f"{QUEUE}: stuck: 5 messages in flight, none settled for 300 s")
    again = watched((0.0, states()), (STUCK_S, states()), (STUCK_S + 1, states(completed=1)))
    assert again.word == "ok"


@pytest.mark.parametrize(
    ("changes", "waits_for"),
    [
        ({"problems": {"primary": "connection refused"}}, "primary: connection refused"),
        ({"problems": {"secondary": "gone"}}, "secondary: gone"),
        ({"problems": {"lease": "another syphon has the lease"}}, "lease: another syphon has"),
        ({"held": {"orders": "it is disabled"}}, "orders: it is disabled"),
        ({"paused": True}, "paused by an operator"),
    ],
)
def test_what_a_restart_does_not_cure_is_waited_for(changes: Any, waits_for: str) -> None:
    health = watched((0.0, states(**changes)), (9 * STUCK_S, states(**changes)))
    assert (health.word, health.failures) == ("waiting", ())
    assert health.waits_for[0].startswith(waits_for)


def test_after_an_outage_a_pump_has_its_whole_time_again() -> None:
    down = states(problems={"primary": "gone"})
    timeline = [(0.0, states()), (STUCK_S - 1, down), (STUCK_S + 10, states())]
    assert watched(*timeline).word == "ok"
    assert watched(*timeline, (2 * STUCK_S - 1, states())).word == "failed"


def test_an_idle_pump_and_a_slow_rate_are_not_stuck() -> None:
    assert watched((0.0, states(in_flight=0)), (9 * STUCK_S, states(in_flight=0))).word == "ok"
    assert watched((0.0, states()), (9_999.0, states()), rate_per_s=0.01).word == "ok"
    assert watched((0.0, states()), (10_000.0, states()), rate_per_s=0.01).word == "failed"


def test_a_failed_pump_asks_for_a_restart_at_once() -> None:
    health = watched((0.0, states(problems={"pump": "the syphon itself failed"})))
    assert health == SyphonHealth(("the syphon itself failed",), ())


def test_without_a_queue_it_waits() -> None:
    assert watched((0.0, {})).waits_for == ("no backlog queue was found yet",)
