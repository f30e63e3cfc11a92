"""A paired send that is cancelled, and one in the backlog: which queue, which is pulled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError

from tests.unit.pairing.send_world import LIMIT_S, POLICY, QUEUES, REFUSED, World, pulled
from twinbus.pairing.core.attempts import (
    CallEnding,
    DivertTo,
    Raise,
    Step,
    TryPrimary,
    WaitForRetry,
    WaitForSecondary,
)
from twinbus.pairing.core.backlog import KeptChoice, PullCause
from twinbus.pairing.core.failover import ForceFailover
from twinbus.pairing.core.secondary import DivertFault
from twinbus.pairing.sdk.pooled_sender import CHECK_INTERVAL_S
from twinbus.servicebus.failures import FailureMeaning
from twinbus.testing.fake_sdk import Behaviour, FakePair, accepts, hangs

pytestmark = pytest.mark.virtual_time

MOMENTS_S = [step * 0.07 for step in range(24)]
"""From before the first attempt to past its bound and the first back-off."""


async def slow(_: Any) -> None:
    for _step in range(10):
        await asyncio.sleep(0.1)


async def swallows(_: Any) -> None:
    """What the SDK may do on Python 3.11: it waits in small steps, and loses a cancellation."""
    for _step in range(10):
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            continue


async def is_busy(_: Any) -> None:
    """So that the call waits in its back-off."""
    raise ServiceBusServerBusyError(message="later")


async def swallows_then_fails(_: Any) -> None:
    await swallows(None)
    raise ServiceBusServerBusyError(message="later")


async def swallows_then_hangs(_: Any) -> None:
    try:
        await asyncio.sleep(0.5)
    except asyncio.CancelledError:
        await asyncio.Event().wait()


def message(number: int = 1) -> ServiceBusMessage:
    return ServiceBusMessage("x", message_id=str(number))


async def cancelled_at(world: FakePair, moment_s: float, sender: Any, payload: Any) -> bool:
    """Whether a call that was cancelled after so long ended as cancelled; else it was done."""
    call = asyncio.create_task(sender.send_messages(payload, timeout=30))
    await asyncio.sleep(moment_s)
    if call.done():
        call.result()
        return False
    asked = world.now
    call.cancel()
    done, _ = await asyncio.wait({call}, timeout=20)
    assert done, "the cancellation was never seen"
    assert call.cancelled(), f"the cancellation was lost: {call.exception()!r}"
    assert world.now - asked <= 1.1
    return True


def check_nothing_is_leased(world: FakePair, sender: Any) -> None:
    pools = [sender.pool, *world.client.state.backlog_pools.values()]
    # A link that still opens is left to the next call.
    in_use = [pool.leased.difference(pool.opening_in_background) for pool in pools]
    assert in_use == [set()] * len(pools)
    assert not sender.pool.attempt_timer.attempts


@pytest.mark.parametrize("failed_over", [False, True])
@pytest.mark.parametrize(
    "behaviour", [slow, swallows, swallows_then_fails, swallows_then_hangs, hangs, is_busy]
)
async def test_a_cancellation_is_seen_at_every_moment(
    behaviour: Behaviour, failed_over: bool
) -> None:
    async def cancel(moment_s: float, payload: Callable[[], Any]) -> bool:
        world = FakePair(failover_interval=3600.0, retry_total=5)
        sender = world.client.get_queue_sender("orders")
        side = world.secondary if failed_over else world.primary
        if failed_over:
            world.client.entity("orders").tell(ForceFailover())
        await sender.send_messages(message(0))
        side.behaviour = behaviour
        seen = await cancelled_at(world, moment_s, sender, payload())
        # A link to the backlog may be opened ahead of time at this very moment.
        await asyncio.sleep(0.01)
        check_nothing_is_leased(world, sender)
        side.behaviour = accepts
        await sender.send_messages(message(2))
        await world.client.close()
        return seen

    seen = [
        await cancel(moment_s, payload)
        for moment_s in MOMENTS_S
        for payload in (message, lambda: [message(1), message(3)])
    ]
    assert sum(seen) >= 10


@pytest.mark.parametrize("behaviour", [slow, swallows, hangs])
async def test_a_cancellation_while_a_link_is_opened_is_seen(behaviour: Behaviour) -> None:
    async def cancel(moment_s: float) -> None:
        world = FakePair(failover_interval=3600.0)
        world.primary.behaviour = behaviour
        sender = world.client.get_queue_sender("orders")
        await cancelled_at(world, moment_s, sender, message())
        check_nothing_is_leased(world, sender)
        await world.client.close()
        assert world.primary.closed == world.primary.opened

    for moment_s in MOMENTS_S:
        await cancel(moment_s)


async def test_a_swallowed_cancellation_of_a_stored_message_is_recorded_as_stored() -> None:
    world = FakePair()
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(message(0))

    async def eats_one(_: Any) -> None:
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            return

    for side, payload in ((world.primary, message(1)), (world.primary, [message(2)])):
        side.behaviour = eats_one
        assert await cancelled_at(world, 0.05, sender, payload)
        side.behaviour = accepts
    world.client.entity("orders").tell(ForceFailover())
    await sender.send_messages(message(3))
    world.secondary.behaviour = eats_one
    assert await cancelled_at(world, 0.05, sender, message(4))
    sent = world.ledger.of("send", "message_id", "outcome")
    assert sent == [("0", "ok"), ("1", "ok"), ("2", "ok")]
    assert world.ledger.of("divert", "message_id", "outcome") == [("3", "ok"), ("4", "ok")]
    status = world.client.entity("orders").status()
    assert (status.sent, status.diverted) == (3, 2)


async def test_the_callers_own_timeout_block_gets_its_timeout() -> None:
    world = FakePair()
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(message())
    for behaviour in (slow, swallows, hangs):
        world.primary.behaviour = behaviour
        began = world.now
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.33):
                await sender.send_messages(message())
        assert world.now - began <= 0.33 + 1.0
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_task_that_was_cancelled_and_lives_on_may_still_send() -> None:
    world = FakePair()
    sender = world.client.get_queue_sender("orders")

    async def says_goodbye() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            await sender.send_messages(message(1))
            await sender.send_messages([message(2)])
            raise

    task = asyncio.create_task(says_goodbye())
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait({task})
    assert len(world.primary.took) == 2
    assert task.cancelled()


async def test_a_swallowed_cancellation_is_repeated_within_a_look() -> None:
    world = FakePair(attempt_timeout=60.0)
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(message())
    world.primary.behaviour = swallows_then_hangs
    call = asyncio.create_task(sender.send_messages(message()))
    await asyncio.sleep(0.3)
    asked = world.now
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert world.now - asked <= CHECK_INTERVAL_S + 0.001


async def test_attempts_of_different_bounds_share_one_timer_and_each_ends_in_time() -> None:
    world = FakePair(retry_total=0, failover_interval=3600.0)
    sender = world.client.get_queue_sender("orders")
    world.primary.behaviour = slow
    await asyncio.gather(*(sender.send_messages(message(n)) for n in range(6)))
    world.primary.behaviour = hangs
    ended: dict[float, float] = {}

    async def send(timeout_s: float) -> None:
        began = world.now
        with pytest.raises(Exception, match=r"did not (answer|open) within"):
            await sender.send_messages(message(), timeout=timeout_s)
        ended[timeout_s] = round(world.now - began, 6)

    bounds = [4.0, 0.5, 2.25, 0.013, 5.0, 3.999]
    loop: Any = asyncio.get_running_loop()
    sends = [asyncio.create_task(send(bound)) for bound in bounds]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    timers = [timer for timer in loop._scheduled if not timer.cancelled()]
    assert len([t for t in timers if "AttemptTimer._check" in repr(t)]) == 1
    await asyncio.gather(*sends)
    assert ended == {bound: bound for bound in bounds}


FULL = PullCause.FULL


@pytest.mark.parametrize(
    ("meaning", "timed_out", "cause"),
    [
        (FailureMeaning.UNREACHABLE, False, PullCause.REFUSED),
        (FailureMeaning.UNREACHABLE, True, PullCause.SILENT),
        (FailureMeaning.QUOTA, False, FULL),
        (FailureMeaning.DISABLED, False, PullCause.REFUSED),
        (FailureMeaning.NOT_FOUND, False, PullCause.REFUSED),
    ],
)
def test_a_queue_that_fails_is_pulled_and_another_takes_the_message(
    meaning: FailureMeaning, timed_out: bool, cause: PullCause
) -> None:
    world = World(timeout=60)
    world.fail_over(0.0)
    world.start(0.0)
    world.stores(QUEUES[2], 3.0)
    steps = world.divert_fails(5.0, meaning, timed_out=timed_out, is_answer=not timed_out)
    assert steps == [pulled(0, cause), DivertTo(QUEUES[1], 5)]
    # Another sender learns of it.
    assert KeptChoice(world.rotation, lambda queues: queues[0]).choose(5.0) == QUEUES[1]


def test_when_no_queue_takes_it_in_time_the_error_has_the_primarys_and_each_queues() -> None:
    world = World()
    world.start(0.0)
    world.fail_over(0.0)
    world.primary_fails(0.0)
    full = FailureMeaning.QUOTA
    assert world.divert_fails(1.0, full) == [pulled(0, FULL), DivertTo(QUEUES[1], 5)]
    assert world.divert_fails(2.0, full) == [pulled(1, FULL), DivertTo(QUEUES[2], 5)]
    assert world.divert_fails(3.0, full) == [pulled(2, FULL), WaitForSecondary(LIMIT_S)]
    assert world.woken(LIMIT_S) == [Raise(CallEnding.BACKLOG, REFUSED)]
    assert world.call.queue_errors == dict.fromkeys(QUEUES, REFUSED)
    assert world.call.primary_error is REFUSED


def test_when_all_queues_are_pulled_one_call_at_a_time_tries_them() -> None:
    world, other = World(timeout=60), World(timeout=60)
    other.rotation = world.rotation
    other.choice = other.call._backlog = KeptChoice(world.rotation, lambda queues: queues[0])
    for one in (world, other):
        one.fail_over(0.0)
    for queue in QUEUES:
        world.rotation.pull(queue, "full", 0.0)
    assert world.start(1.0) == [DivertTo(QUEUES[0], 5, is_turn=True)]
    assert other.start(1.0) == [WaitForSecondary(60)]
    # It is back: every call uses it, and none needs a turn.
    world.stores(QUEUES[0], 1.1)
    assert other.woken(1.1) == [DivertTo(QUEUES[0], 5)]


def test_a_turn_that_nobody_ended_is_lost_after_its_time() -> None:
    world = World(timeout=60)
    world.fail_over(0.0)
    world.rotation.secondary.no_answer(QUEUES[0], "down", began=0.0, now=0.0, timed_out=False)
    world.rotation.secondary.begin_turn(0.0, 5.0)
    assert world.start(5.9) == [WaitForSecondary(60)]
    assert world.woken(6.0) == [DivertTo(QUEUES[0], 5, is_turn=True)]


def test_a_queue_that_was_silent_alone_is_not_pulled_when_another_answers_after_it() -> None:
    world = World(timeout=60)
    world.fail_over(0.0)
    world.start(0.0)
    assert world.divert_fails(5.0, timed_out=True) == [DivertTo(QUEUES[1], 5, is_turn=True)]
    assert world.rotation.available(5.0) == [*QUEUES]
    world.stores(QUEUES[1], 5.1)
    assert world.rotation.available(5.1) == [*QUEUES]


def test_unprotected_sends_use_the_primary_even_when_it_failed_over() -> None:
    world = World(queues=())
    world.fail_over(0.0)
    assert world.start(0.0) == [TryPrimary(5)]
    assert world.primary_fails(0.0) == [WaitForRetry(1.6)]
    world.rotation.add(QUEUES[1])
    assert world.woken(1.0) == [DivertTo(QUEUES[1], 5)]


def test_a_slow_attempt_on_a_queue_that_answers_others_is_tried_again_and_pulls_nothing() -> None:
    world = World(timeout=100)
    world.fail_over(0.0)
    world.start(0.0)

    def slow(now: float) -> list[Step]:
        meaning = FailureMeaning.UNREACHABLE
        return world.call.divert_failed(REFUSED, meaning, DivertFault.ATTEMPT, now)

    for retry in range(POLICY.retries):
        assert slow(5.0 * retry) == [DivertTo(QUEUES[0], 5)]
    # Then the others, once each, and then all of them again after a back-off.
    assert slow(50.0) == [DivertTo(QUEUES[1], 5)]
    assert slow(55.0) == [DivertTo(QUEUES[2], 5)]
    assert slow(60.0) == [WaitForRetry(70.0)]
    assert world.woken(70.0) == [DivertTo(QUEUES[0], 5)]
    assert world.rotation.available(70.0) == [*QUEUES]
