"""Calls that wait for the secondary, and links that are open before the first divert."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from twinbus.errors import BacklogUnavailableError, PairClosedError
from twinbus.pairing.core.failover import ForceFailover, MarkHealthy
from twinbus.pairing.core.status import backlog_status
from twinbus.testing.fake_sdk import Behaviour, FakePair, accepts, hangs, refuses

pytestmark = pytest.mark.virtual_time

QUEUE = "contoso/x-servicebus-transfer/"
CALLS = 200
LIMIT_S = 36.2
"""The bound of a call without a timeout, with three retries and 5 s for an attempt."""
DIVERT_S = 31.2
"""The bound of its diverts, if the retries have no number."""


def message(number: int = 0) -> ServiceBusMessage:
    return ServiceBusMessage("x", message_id=f"id-{number}")


def failed_over(**options: Any) -> tuple[FakePair, Any]:
    pair = FakePair(**options)
    pair.client.entity("orders").tell(ForceFailover())
    return pair, pair.client.get_queue_sender("orders")


class Attempts:
    """A secondary that counts what reaches it, and how many attempts go on at a time."""

    def __init__(self, then: Any) -> None:
        self.then, self.count, self.now, self.most = then, 0, 0, 0

    async def __call__(self, sent: Any) -> None:
        self.count += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.then(sent)
        finally:
            self.now -= 1


async def ends_of(sender: Any, count: int, **options: Any) -> list[Any]:
    calls = (sender.send_messages(message(number), **options) for number in range(count))
    return await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.parametrize("behaviour", [refuses, hangs], ids=["refuses", "hangs"])
async def test_a_blip_pulls_no_queue_raises_nothing_and_ends_for_all_at_once(
    behaviour: Any,
) -> None:
    pair, sender = failed_over()
    attempts = pair.secondary.behaviour = Attempts(behaviour)
    running = asyncio.create_task(ends_of(sender, CALLS, timeout=60))
    await asyncio.sleep(20)
    state = pair.client.state
    for queue in backlog_status(state.rotation, state.paths, pair.now).values():
        assert str(queue).startswith("in rotation (the secondary cannot be reached: ")
    # Two calls open a link, and all that wait for it learn that it fails; then one at a time.
    assert attempts.count < 20
    assert attempts.most <= 3
    pair.secondary.behaviour = accepts
    assert await running == [None] * CALLS
    assert pair.elapsed < 20 + 10
    assert pair.client.state.rotation.pulled(pair.now) == {}
    assert len(pair.secondary.took) == CALLS


async def test_a_call_whose_time_ends_gets_the_primarys_error_and_each_queues() -> None:
    pair = FakePair(failover_interval=0.0)
    pair.primary.behaviour = pair.secondary.behaviour = refuses
    sender = pair.client.get_queue_sender("orders")
    with pytest.raises(BacklogUnavailableError) as raised:
        await sender.send_messages(message(), timeout=20)
    assert pair.elapsed == 20.0
    assert isinstance(raised.value.primary_error, ConnectionRefusedError)
    assert raised.value.__cause__ is raised.value.primary_error
    assert set(raised.value.queue_errors) == set(pair.client.state.paths)
    assert raised.value.message_ids == ("id-0",)
    # A call that never had its turn knows the reason as well.
    with pytest.raises(BacklogUnavailableError, match="the secondary cannot be reached") as second:
        await sender.send_messages(message(), timeout=0.05)
    assert set(second.value.queue_errors) == set(pair.client.state.paths)


async def test_a_call_that_waits_follows_its_entity_home() -> None:
    pair, sender = failed_over()
    pair.secondary.behaviour = refuses
    running = asyncio.create_task(ends_of(sender, 3, timeout=60))
    await asyncio.sleep(7)
    pair.client.entity("orders").tell(MarkHealthy())
    assert await running == [None] * 3
    assert pair.elapsed < 7.1
    assert len(pair.primary.took) == 3


async def test_a_pair_that_is_closed_frees_the_calls_that_wait() -> None:
    pair, sender = failed_over()
    pair.secondary.behaviour = refuses
    running = asyncio.create_task(ends_of(sender, 3, timeout=60))
    await asyncio.sleep(7)
    await pair.client.close()
    assert {type(error) for error in await running} == {PairClosedError}
    assert pair.elapsed < 8


async def test_a_call_that_is_cancelled_in_its_turn_does_not_keep_it() -> None:
    pair, sender = failed_over()
    pair.secondary.behaviour = hangs
    first = asyncio.create_task(sender.send_messages(message(1), timeout=60))
    await asyncio.sleep(6)
    # At 5 s its first attempt ended in silence; the second is its turn.
    second = asyncio.create_task(sender.send_messages(message(2), timeout=60))
    await asyncio.sleep(1)
    pair.secondary.behaviour = accepts
    first.cancel()
    await second
    assert first.cancelled() or (await asyncio.wait({first}))
    assert pair.elapsed < 10


@pytest.mark.parametrize(
    "error",
    [ServiceBusQuotaExceededError(message="full"), MessagingEntityDisabledError(message="off")],
    ids=["full", "disabled"],
)
async def test_when_every_queue_is_pulled_one_that_is_back_is_used_within_seconds(
    error: Exception,
) -> None:
    async def unusable(sent: Any) -> None:
        if sent is not None:
            raise error

    pair, sender = failed_over()
    attempts = pair.secondary.behaviour = Attempts(unusable)
    running = asyncio.create_task(ends_of(sender, CALLS, timeout=60))
    await asyncio.sleep(15)
    assert set(pair.client.state.rotation.pulled(pair.now)) == set(pair.client.state.paths)
    count, attempts.count = attempts.count, 0
    assert count < 100
    pair.secondary.by_entity[QUEUE + "1"] = accepts
    assert await running == [None] * CALLS
    assert pair.elapsed < 15 + 6
    assert {path for path, _ in pair.secondary.took} == {QUEUE + "1"}


async def test_the_one_queue_that_hangs_is_pulled_when_it_is_silent_again() -> None:
    pair, sender = failed_over()
    pair.secondary.by_entity[QUEUE + "0"] = hangs
    await sender.send_messages(message(), timeout=60)
    # Until another queue answered, the whole secondary might have been lost.
    assert not pair.client.state.rotation.pulled(pair.now)
    await sender.send_messages(message(), timeout=60)
    assert pair.elapsed == 5.0
    await pair.client.get_queue_sender("orders").send_messages(message(), timeout=60)
    assert pair.elapsed == 10.0
    assert set(pair.client.state.rotation.pulled(pair.now)) == {QUEUE + "0"}


async def test_a_sender_leaves_a_queue_that_cut_its_attempts_short_twice_in_a_row() -> None:
    """Its callers' timeouts are shorter than an attempt, so they never prove that it hangs."""
    pair, sender = failed_over()
    pair.secondary.by_entity[QUEUE + "0"] = hangs
    for _ in range(2):
        with pytest.raises(BacklogUnavailableError):
            await sender.send_messages(message(), timeout=3)
    for _ in range(3):
        await sender.send_messages(message(), timeout=3)
    assert {path for path, _ in pair.secondary.took} == {QUEUE + "1"}
    # It is not pulled: another sender may find it good.
    assert not pair.client.state.rotation.pulled(pair.now)


@pytest.mark.parametrize("callers", [1, 100, 1_000])
@pytest.mark.parametrize("failover_interval", [60.0, 8.0])
@pytest.mark.parametrize("retry_total", [3, None])
async def test_callers_without_a_timeout_end_within_the_bound_however_many(
    callers: int, failover_interval: float, retry_total: int | None
) -> None:
    pair = FakePair(failover_interval=failover_interval, retry_total=retry_total)
    pair.primary.behaviour, pair.secondary.behaviour = hangs, refuses
    ends = await ends_of(pair.client.get_queue_sender("orders"), callers)
    limit_s = LIMIT_S if retry_total is not None else failover_interval + 2 * 5 + DIVERT_S
    assert pair.elapsed <= limit_s
    is_decided = failover_interval < LIMIT_S or retry_total is None
    kind = BacklogUnavailableError if is_decided else OperationTimeoutError
    assert {type(end) for end in ends} == {kind}
    assert [end.message_ids for end in ends] == [(f"id-{number}",) for number in range(callers)]


async def test_all_callers_learn_together_that_a_link_does_not_open() -> None:
    async def fails_late(sent: Any) -> None:
        await asyncio.sleep(4.0)
        raise ServiceBusConnectionError(message="no route")

    pair = FakePair(retry_total=0)
    pair.primary.behaviour = fails_late
    ends = await ends_of(pair.client.get_queue_sender("orders"), CALLS)
    assert pair.elapsed == 4.0
    assert pair.primary.opened == 2
    # Each has an error of its own: the ids on it are its own.
    assert len({id(end) for end in ends}) == CALLS
    assert {str(end) for end in ends} == {str(ends[0])}
    assert {end.message_ids for end in ends} == {(f"id-{number}",) for number in range(CALLS)}


async def test_a_link_that_does_not_open_beside_one_that_is_open_fails_nobody_else() -> None:
    opened = 0

    async def the_second_does_not_open(sent: Any) -> None:
        nonlocal opened
        if sent is not None:
            await asyncio.sleep(1.0)
            return
        opened += 1
        if opened == 2:
            await asyncio.sleep(0.5)
            raise ServiceBusConnectionError(message="no more")

    pair = FakePair(retry_total=0)
    pair.primary.behaviour = the_second_does_not_open
    ends = await ends_of(pair.client.get_queue_sender("orders"), 20)
    assert [type(end) for end in ends if end is not None] == [ServiceBusConnectionError]


async def test_a_secondary_that_throttles_gets_every_message_of_callers_with_patience() -> None:
    taken: list[float] = []

    async def takes_ten_a_second(sent: Any) -> None:
        if sent is None:
            return
        now = asyncio.get_running_loop().time()
        if sum(at > now - 1.0 for at in taken) >= 10:
            raise ServiceBusServerBusyError(message="more than 10 a second")
        taken.append(now)

    pair, sender = failed_over(retry_total=0)
    pair.client.state.jitter = Random(1).random
    attempts = pair.secondary.behaviour = Attempts(takes_ten_a_second)
    assert await ends_of(sender, CALLS, timeout=60) == [None] * CALLS
    assert len(pair.secondary.took) == CALLS
    # 200 calls need 20 s at this rate, and few attempts are refused.
    assert pair.elapsed < 60
    assert attempts.count < 10 * CALLS
    assert pair.client.state.rotation.pulled(pair.now) == {}


async def test_a_throttled_call_waits_for_the_next_second_and_tells_the_syphon() -> None:
    asked: list[float] = []
    slowed: list[float] = []

    async def takes_one_a_second(sent: Any) -> None:
        if sent is None:
            return
        now = asyncio.get_running_loop().time()
        asked.append(now)
        if [int(at) for at in asked].count(int(now)) > 1:
            raise ServiceBusServerBusyError(message="more than 1 a second")

    pair = FakePair(retry_total=1, retry_backoff_factor=0.05)
    pair.primary.behaviour = takes_one_a_second
    pair.client.state.on_busy = lambda: slowed.append(asyncio.get_running_loop().time())
    sender = pair.client.get_queue_sender("orders")
    assert await ends_of(sender, 2, timeout=30) == [None, None]
    assert len(asked) == 3
    assert 1.0 <= asked[2] - asked[1] <= 2.0
    assert slowed == [asked[1]]


async def test_a_call_that_does_not_take_its_turn_gets_the_next_after_a_pause() -> None:
    """Without one, the event loop would be busy with giving turns and do nothing else."""
    pair, _ = failed_over()
    waiting, entity = pair.client.state.waiting, pair.client.entity("orders")
    turns, until = 0, pair.now + 1.0
    while pair.now < until:
        await waiting.wait(entity, until)
        turns += 1
        assert turns < 20
    assert turns > 5


OPENING_S = 0.5
"""What opening a link takes the SDK."""


async def opens_slowly(message: Any) -> None:
    if message is None:
        await asyncio.sleep(OPENING_S)


async def diverted_at(primary: Behaviour = refuses, **options: Any) -> tuple[float, FakePair]:
    """Seconds until the first message, sent to a primary that fails, is in the backlog."""
    world = FakePair(**options)
    world.primary.behaviour = primary
    world.secondary.behaviour = opens_slowly
    senders = [world.client.get_queue_sender("orders") for _ in range(3)]
    sends = [sender.send_messages(ServiceBusMessage("x"), timeout=60) for sender in senders]
    await asyncio.gather(*sends)
    elapsed = world.elapsed
    await world.client.close()
    return elapsed, world


async def test_the_first_divert_is_a_send_and_no_more_because_its_link_is_open_by_then() -> None:
    elapsed, world = await diverted_at(failover_interval=10.0)
    assert elapsed == 10.0
    assert world.ledger.of("divert", "outcome", "latency_us")[0] == ("ok", 0)
    # One link, however many senders asked for it.
    assert world.secondary.opened == world.secondary.closed == 1


async def test_without_a_time_of_suspicion_there_is_none_to_open_a_link_in() -> None:
    elapsed, _ = await diverted_at(failover_interval=0.0)
    assert elapsed == OPENING_S


async def test_without_a_time_of_suspicion_a_slow_attempt_is_sign_enough() -> None:
    elapsed, world = await diverted_at(hangs, failover_interval=0.0, attempt_timeout=1.0)
    assert elapsed == 1.0
    assert world.ledger.of("divert", "outcome", "latency_us")[0] == ("ok", 0)


async def test_closing_while_a_link_is_being_opened_ahead_leaves_nothing() -> None:
    world = FakePair(attempt_timeout=2.0)
    world.primary.behaviour = refuses
    world.secondary.behaviour = hangs
    sender = world.client.get_queue_sender("orders")
    sending = asyncio.create_task(sender.send_messages(ServiceBusMessage("x"), timeout=60))
    await asyncio.sleep(1.0)
    assert world.secondary.opened == 1
    # Closed in the middle of it; `run` sees to it that no task is left.
    await world.client.close()
    await asyncio.wait({sending})
    assert sending.exception() is not None
    assert world.secondary.closed == 1


async def test_an_open_link_is_not_opened_again_by_the_next_suspicion() -> None:
    world = FakePair()
    sender = world.client.get_queue_sender("orders")
    for _ in range(3):
        world.primary.behaviour = refuses
        sending = asyncio.create_task(sender.send_messages(ServiceBusMessage("x"), timeout=60))
        await asyncio.sleep(1.0)
        world.primary.behaviour = world.secondary.behaviour
        await sending
        assert world.state() == "healthy"
    assert world.secondary.opened == 1


async def test_a_slow_divert_does_not_pull_a_queue_that_answers_others() -> None:
    slow = {"1"}

    async def slow_to_some(message: Any) -> None:
        if message is not None and message.properties.message_id in slow:
            slow.clear()
            await asyncio.sleep(10.0)

    world = FakePair(attempt_timeout=2.0)
    world.secondary.behaviour = slow_to_some
    world.client.entity("orders").tell(ForceFailover())
    sender = world.client.get_queue_sender("orders")
    first = asyncio.create_task(sender.send_messages(ServiceBusMessage("x", message_id="1")))
    await asyncio.sleep(1.0)
    await sender.send_messages(ServiceBusMessage("x", message_id="2"))
    await first
    assert world.client.state.rotation.absences(world.now) == {}
    # No other queue answered meanwhile: it may be the whole secondary.
    slow.add("3")
    await sender.send_messages(ServiceBusMessage("x", message_id="3"))
    assert world.client.state.rotation.absences(world.now) == {}


async def test_callers_that_wait_for_less_than_opening_takes_get_an_open_link_in_the_end() -> None:
    world = FakePair()
    world.primary.behaviour = opens_slowly
    sender = world.client.get_queue_sender("orders")
    ended = []
    for _ in range(10):
        try:
            await sender.send_messages(ServiceBusMessage("x"), timeout=0.2)
            ended.append("sent")
        except OperationTimeoutError:
            ended.append("raised")
    # What the first of them began to open has served the others.
    assert ended == ["raised"] * 2 + ["sent"] * 8
    assert world.primary.opened == 1
    assert world.state() == "healthy"
