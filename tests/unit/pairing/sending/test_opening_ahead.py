"""Links to backlog queues are open before the first message is diverted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError

from twinbus.pairing.core.failover import ForceFailover
from twinbus.testing.fake_sdk import Behaviour, FakePair, hangs, refuses

pytestmark = pytest.mark.virtual_time

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
    await world.client.close()


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
    await world.client.close()


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
    await world.client.close()
