"""Links open for the next call: when a sender is entered, and after a caller has given up.

A caller's own short timeout says nothing of the entity while the link opens; the opening does.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError

from twinbus.pairing.core.failover import ForceFailover, MarkHealthy
from twinbus.pairing.sdk.pooled_sender import _open_quickly
from twinbus.pairing.sdk.sender_pool import IDLE_MAX_S, REOPENINGS_MAX
from twinbus.testing.fake_sdk import FakePair, accepts, hangs, refuses

pytestmark = pytest.mark.virtual_time

OPENING_S = 0.5


async def opens_slowly(message: Any) -> None:
    if message is None:
        await asyncio.sleep(OPENING_S)


async def sends_slowly(message: Any) -> None:
    if message is not None:
        await asyncio.sleep(OPENING_S)


def message() -> ServiceBusMessage:
    return ServiceBusMessage("x", message_id="1")


async def test_a_short_timeout_while_the_link_opens_does_not_count() -> None:
    world = FakePair()
    world.primary.behaviour = opens_slowly
    sender = world.client.get_queue_sender("orders")
    with pytest.raises(OperationTimeoutError, match=r"did not open within 0\.3 s") as caught:
        await sender.send_messages(message(), timeout=0.3)
    assert caught.value.message_ids == ("1",)  # type: ignore[attr-defined]
    assert world.elapsed == 0.3
    assert world.ledger.of("send", "outcome") == [("failed",)]
    await asyncio.sleep(100.0)
    assert world.ledger.of("state", "state") == []


async def test_a_short_timeout_on_an_open_link_counts() -> None:
    """SPEC 3: timeouts count. The message may be stored, and the entity did not answer."""
    world = FakePair()
    world.primary.behaviour = sends_slowly
    sender = world.client.get_queue_sender("orders")
    with pytest.raises(OperationTimeoutError, match="did not answer"):
        await sender.send_messages(message(), timeout=0.3)
    assert world.ledger.of("send", "outcome") == [("unknown",)]
    assert world.state() == "suspect"


class LateAnswers:
    """A link takes nearly the whole timeout to open, and a send the rest and more."""

    def __init__(self, sending_s: float) -> None:
        self.sending_s = sending_s

    async def __call__(self, message: Any) -> None:
        await asyncio.sleep(0.28 if message is None else self.sending_s)


async def test_a_timeout_that_the_opening_used_up_does_not_count() -> None:
    world = FakePair()
    world.primary.behaviour = LateAnswers(sending_s=0.1)
    sender = world.client.get_queue_sender("orders")
    with pytest.raises(OperationTimeoutError, match=r"did not answer in the 0\.02 s") as caught:
        await sender.send_messages(message(), timeout=0.3)
    assert caught.value.message_ids == ("1",)  # type: ignore[attr-defined]
    # The message had gone out.
    assert world.ledger.of("send", "outcome") == [("unknown",)]
    await asyncio.sleep(90.0)
    assert world.state() == "healthy"
    # A link was opened ahead for the next call.
    await sender.send_messages(message(), timeout=0.3)


async def test_hasty_callers_find_out_that_the_primary_takes_links_and_no_messages() -> None:
    world = FakePair()
    world.primary.behaviour = LateAnswers(sending_s=1_000.0)
    sender = world.client.get_queue_sender("orders")
    for state in ("healthy", "suspect"):
        with pytest.raises(OperationTimeoutError):
            await sender.send_messages(message(), timeout=0.3)
        assert world.state() == state
        await asyncio.sleep(0.3)


async def test_a_timeout_that_the_wait_for_a_sender_used_up_does_not_count() -> None:
    world = FakePair()
    world.primary.behaviour = LateAnswers(sending_s=0.25)
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(message())
    calls = (sender.send_messages(message(), timeout=0.3) for _ in range(20))
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(end) for end in ends} == {type(None), OperationTimeoutError}
    assert world.state() == "healthy"
    assert world.ledger.of("state", "state") == []


async def test_hasty_callers_alone_find_out_that_the_primary_hangs() -> None:
    world = FakePair(attempt_timeout=2.0)
    world.primary.behaviour = hangs
    sender = world.client.get_queue_sender("orders")
    for _ in range(9):
        with pytest.raises(OperationTimeoutError):
            await sender.send_messages(message(), timeout=0.1)
        await asyncio.sleep(0.1)
    # After a second another opening begins: the peer may have been down only at first.
    assert (world.state(), world.primary.opened) == ("healthy", 2)
    # Now the opening has lasted for an attempt: it failed, and that counts.
    await asyncio.sleep(0.3)
    assert world.state() == "suspect"
    await asyncio.sleep(10.0)
    assert world.state() == "failed over"
    await sender.send_messages(message(), timeout=0.1)


async def test_a_call_that_waits_for_an_opening_ends_with_it() -> None:
    """Its attempt is no longer than that of the call that began the opening."""
    world = FakePair(attempt_timeout=2.0, retry_total=0)
    world.primary.behaviour = hangs
    sender = world.client.get_queue_sender("orders")
    with pytest.raises(OperationTimeoutError):
        await sender.send_messages(message(), timeout=0.5)
    with pytest.raises(OperationTimeoutError):
        await sender.send_messages(message())
    assert (world.elapsed, world.state()) == (2.0, "suspect")


async def test_enter_opens_the_link_and_the_first_call_waits_for_that() -> None:
    world = FakePair()
    world.primary.behaviour = opens_slowly
    async with world.client.get_queue_sender("orders") as sender:
        assert world.elapsed == 0.0
        await asyncio.sleep(0.4)
        await sender.send_messages(message(), timeout=0.2)
        assert world.elapsed == OPENING_S
        await sender.send_messages(message(), timeout=0.2)
    await world.client.close()
    assert world.primary.opened == world.primary.closed == 1


@pytest.mark.parametrize("behaviour", [refuses, hangs])
async def test_a_link_that_no_call_waits_for_may_fail(behaviour: Any) -> None:
    world = FakePair()
    world.primary.behaviour = behaviour
    async with world.client.get_queue_sender("orders") as sender:
        await asyncio.sleep(100.0)
        assert world.state() == "healthy"
        world.primary.behaviour = accepts
        await sender.send_messages(message(), timeout=0.2)


async def test_a_sender_closed_at_once_leaves_nothing() -> None:
    world = FakePair()
    world.primary.behaviour = hangs
    async with world.client.get_queue_sender("orders"):
        pass
    await world.client.close()
    assert world.primary.opened == world.primary.closed == 1


async def test_a_cancelled_caller_leaves_the_link_to_the_next() -> None:
    world = FakePair()
    world.primary.behaviour = opens_slowly
    sender = world.client.get_queue_sender("orders")
    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await sender.send_messages(message())
    await sender.send_messages(message())
    assert (world.elapsed, world.primary.opened) == (OPENING_S, 2)
    assert world.ledger.of("state", "state") == []


async def test_a_call_after_a_cancelled_one_opens_a_link_of_its_own() -> None:
    world = FakePair(attempt_timeout=30.0)
    world.primary.behaviour = hangs
    sender = world.client.get_queue_sender("orders")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await sender.send_messages(message())
    world.primary.behaviour = accepts
    await sender.send_messages(message(), timeout=0.1)
    await world.client.close()
    assert world.primary.opened == world.primary.closed == 2


async def test_an_opening_of_before_a_failover_serves_no_call() -> None:
    world = FakePair(attempt_timeout=30.0)
    world.primary.behaviour = hangs
    sender, entity = world.client.get_queue_sender("orders"), world.client.entity("orders")
    with pytest.raises(OperationTimeoutError):
        await sender.send_messages(message(), timeout=0.1)
    entity.tell(ForceFailover())
    entity.tell(MarkHealthy())
    world.primary.behaviour = accepts
    await sender.send_messages(message(), timeout=0.1)
    assert world.primary.opened == 2


async def test_an_opening_whose_error_comes_after_its_end_is_not_logged() -> None:
    """Python 3.11 waits for the SDK's part in a task of its own, which can outlive its caller."""
    logged: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: logged.append(context))
    handler = MissesACancellation()
    _open_quickly(handler)
    opening = asyncio.create_task(asyncio.wait_for(handler.client_ready_async(), 60))
    for _ in range(2):
        await asyncio.sleep(1)
        opening.cancel()
    await asyncio.wait({opening})
    handler.is_closed.set()
    await asyncio.sleep(1)
    assert opening.cancelled()
    # It still refers to the task, which complains when it is freed.
    del opening
    gc.collect()
    assert logged == []


class MissesACancellation:
    """A handler of the SDK that goes on to open, and fails when it is closed."""

    def __init__(self) -> None:
        self.is_closed = asyncio.Event()

    async def client_ready_async(self) -> bool:
        with contextlib.suppress(asyncio.CancelledError):
            await self.is_closed.wait()
        await self.is_closed.wait()
        raise AttributeError("it has no session any more")


HOUR_S = 3_600.0


async def test_a_call_with_a_short_timeout_finds_an_open_link_whenever_it_comes() -> None:
    world = FakePair()
    world.primary.behaviour = opens_slowly
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(message())
    for idle_s in (30.0, 54.9, 99.9, 100.0, 100.1, 250.0, HOUR_S / 2):
        await asyncio.sleep(idle_s)
        await sender.send_messages(message(), timeout=0.1)
    assert world.primary.opened - world.primary.closed == 1


@pytest.mark.parametrize("jitter", [0.0, 1.0])
async def test_an_idle_link_is_reopened_once_before_it_is_too_old(jitter: float) -> None:
    world = FakePair()
    world.client.state.jitter = lambda: jitter
    async with world.client.get_queue_sender("orders") as sender:
        await sender.send_messages(message())
        opened = []
        for _ in range(40):
            await asyncio.sleep(25.1)
            opened.append(world.primary.opened)
            pool: Any = sender.pool
            [newest] = pool.idle[-1:]
            assert world.now - newest.idle_since < IDLE_MAX_S
    # A thousand seconds; no link lived for less than 55 of them.
    assert 10 <= opened[-1] <= 1 + 1_000 / 55
    await asyncio.sleep(HOUR_S)
    assert world.primary.opened == world.primary.closed == opened[-1]


async def test_a_busy_sender_is_not_reopened() -> None:
    world = FakePair()
    sender = world.client.get_queue_sender("orders")
    for _ in range(200):
        await sender.send_messages(message(), timeout=0.1)
        await asyncio.sleep(5.0)
    assert world.primary.opened == 1


async def test_spare_links_are_closed_when_they_are_idle() -> None:
    world = FakePair()

    async def sends_slowly(payload: Any) -> None:
        await asyncio.sleep(0.1)

    world.primary.behaviour = sends_slowly
    sender = world.client.get_queue_sender("orders")
    await asyncio.gather(*(sender.send_messages(message()) for _ in range(20)))
    assert world.primary.opened > 1
    await asyncio.sleep(200.0)
    assert world.primary.opened - world.primary.closed == 1


async def test_a_sender_that_nobody_uses_for_an_hour_lets_its_link_go() -> None:
    world = FakePair()
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(message())
    await asyncio.sleep(5 * HOUR_S)
    assert world.primary.opened == world.primary.closed == REOPENINGS_MAX + 1
    # The next call opens a link, which is kept for an hour again.
    await sender.send_messages(message())
    await asyncio.sleep(HOUR_S / 2 + 1.0)
    assert world.primary.opened - world.primary.closed == 1


@pytest.mark.parametrize("behaviour", [refuses, hangs])
async def test_a_reopening_that_fails_is_no_evidence(behaviour: Any) -> None:
    world = FakePair()
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(message())
    world.primary.behaviour = behaviour
    await asyncio.sleep(HOUR_S)
    assert (world.state(), world.ledger.of("state", "state")) == ("healthy", [])
    # The old link ended when it was too old; nothing is tried until a call needs it.
    assert world.primary.opened <= 4
    world.primary.behaviour = accepts
    await sender.send_messages(message(), timeout=0.1)


async def test_nothing_is_reopened_while_the_entity_is_failed_over() -> None:
    world = FakePair(ping_primary_interval=1_800.0)
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(message())
    world.client.entity("orders").tell(ForceFailover())
    await asyncio.sleep(1_000.0)
    assert world.primary.opened == world.primary.closed == 1


async def test_many_idle_senders_reopen_a_few_links_at_a_time() -> None:
    world = FakePair()
    world.client.state.jitter = random.Random(1).random
    senders = [world.client.get_queue_sender(f"q{number}") for number in range(500)]
    await asyncio.gather(*(sender.send_messages(message()) for sender in senders))
    before = world.primary.opened
    await asyncio.sleep(100.0)
    # Four a second, from the time on at which a link is old enough.
    assert 100 <= world.primary.opened - before <= 4 * 45 + 1
    await world.client.close()
    assert world.primary.opened == world.primary.closed
