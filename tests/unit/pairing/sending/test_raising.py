"""Calls that raise: their errors, and senders that were closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusServerBusyError,
)

from twinbus.errors import BacklogUnavailableError, PairClosedError
from twinbus.pairing.core.sides import PairSides
from twinbus.pairing.core.status import backlog_status
from twinbus.pairing.observing.metrics import MeasuredPair, PairCollector
from twinbus.pairing.sending.sender import PairedSender
from twinbus.status.document import PairStatus, read_status
from twinbus.status.judgement import judgement_of
from twinbus.testing.fake_sdk import FakePair, hangs, refuses

pytestmark = pytest.mark.virtual_time


def raises(error: Exception) -> Callable[[Any], Awaitable[None]]:
    async def behaviour(_: Any) -> None:
        raise error

    return behaviour


def status_of(world: FakePair) -> PairStatus:
    state = world.client.state
    return PairStatus(
        primary="sb://contoso",
        secondary="sb://dr",
        protected=True,
        searching=None,
        entities={entity.path: entity.status() for entity in state.monitors.all()},
        backlog_queues=backlog_status(state.rotation, state.paths, state.now),
    )


def samples(world: FakePair) -> dict[str, float]:
    sides = PairSides(syphon=False)
    measured = MeasuredPair(world.client.state, sides, dict, lambda: status_of(world))
    families = list(PairCollector(measured).collect())
    names = ("twinbus_safe", "twinbus_entity_raising")
    return {
        sample.labels.get("entity", ""): sample.value
        for family in families
        if family.name in names
        for sample in family.samples
    }


async def send(sender: PairedSender) -> None:
    await sender.send_messages(ServiceBusMessage("x"), timeout=30)


async def send_list(sender: PairedSender) -> None:
    await sender.send_messages([ServiceBusMessage("x"), ServiceBusMessage("y")], timeout=30)


async def make_batch(sender: PairedSender) -> None:
    await sender.create_message_batch()


@pytest.mark.parametrize("call", [send, send_list, make_batch])
@pytest.mark.parametrize(
    "error",
    [
        MessagingEntityNotFoundError(message="gone TrackingId:abc_B, Timestamp:2026"),
        MessagingEntityDisabledError(message="gone"),
        ServiceBusAuthenticationError(message="gone"),
        ServiceBusServerBusyError(message="gone"),
    ],
)
async def test_what_raises_and_stays_healthy_is_raising_for_a_minute(
    call: Callable[[PairedSender], Awaitable[None]], error: Exception
) -> None:
    world = FakePair(retry_total=1, retry_backoff_factor=0.01)
    sender = world.client.get_queue_sender("orders")
    world.primary.behaviour = raises(error)
    for _ in range(3):
        with pytest.raises(type(error)):
            await call(sender)
    assert world.state() == "healthy"
    status = status_of(world)
    assert status.entities["orders"].raising == 3
    # What another process reads from the control socket means the same.
    for found in (judgement_of(status, 0.0), judgement_of(read_status(status.as_dict()), 0.0)):
        why = f"(3 calls in the last minute: {type(error).__name__}: gone)"
        assert found.attention == [f"raising: orders {why}"]
        assert not found.is_safe
        assert found.sends == f"sends are NOT safe: those to orders raise {why}"
        assert found.states == {"orders": ["raising"]}
    assert "RAISING, 3 calls" in str(status)
    assert samples(world) == {"": 0, "orders": 3}
    await asyncio.sleep(61)
    assert judgement_of(status_of(world), 0.0).concerns == ()
    assert samples(world) == {"": 1}
    await world.client.close()


async def test_callers_that_give_up_on_an_entity_that_stores_nothing() -> None:
    world = FakePair(failover_interval=3_600.0)
    sender = world.client.get_queue_sender("orders")
    await send(sender)
    world.primary.behaviour = hangs
    for _ in range(6):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(send(sender), 2)
    entity = world.client.entity("orders").status()
    assert (entity.raised, entity.raising) == (6, 3)
    assert not judgement_of(status_of(world), 0.0).is_safe
    await world.client.close()


async def test_a_message_that_is_refused_says_nothing_about_an_entity_that_stores_others() -> None:
    world = FakePair(retry_total=0)
    sender = world.client.get_queue_sender("orders")
    takes, refuses_it = world.primary.behaviour, raises(MessageSizeExceededError(message="large"))
    for second in range(12):
        world.primary.behaviour = refuses_it if second % 4 else takes
        if second % 4:
            with pytest.raises(MessageSizeExceededError):
                await send(sender)
        else:
            await send(sender)
        found = judgement_of(status_of(world), 0.0)
        assert (found.is_safe, found.concerns) == (True, ())
        await asyncio.sleep(1)
    assert world.client.entity("orders").status().raised == 9
    # Where every message is refused, the entity takes none: that is told.
    world.primary.behaviour = refuses_it
    for _ in range(8):
        with pytest.raises(MessageSizeExceededError):
            await send(sender)
        await asyncio.sleep(1)
    assert not judgement_of(status_of(world), 0.0).is_safe
    await world.client.close()


async def test_errors_of_before_a_failover_do_not_make_the_diverted_entity_raising() -> None:
    world = FakePair(failover_interval=10.0, retry_total=0)
    sender = world.client.get_queue_sender("orders")
    world.primary.behaviour = refuses
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            await sender.send_messages(ServiceBusMessage("x"), timeout=1)
    assert judgement_of(status_of(world), 0.0).states == {"orders": ["suspect", "raising"]}
    await asyncio.sleep(11)
    await send(sender)
    found = judgement_of(status_of(world), 0.0)
    assert (found.states, found.is_safe) == ({"orders": ["failed over"]}, True)
    world.secondary.behaviour = refuses
    with pytest.raises(BacklogUnavailableError):
        await send(sender)
    assert judgement_of(status_of(world), 0.0).states == {"orders": ["failed over", "raising"]}
    await world.client.close()


MESSAGE = ServiceBusMessage("x", message_id="1")


@pytest.mark.parametrize("given", [MESSAGE, [MESSAGE]], ids=["one", "list"])
@pytest.mark.parametrize("closed", ["sender", "pair"])
async def test_an_error_of_what_was_closed_has_the_ids(given: Any, closed: str) -> None:
    world = FakePair()
    sender = world.client.get_queue_sender("orders")
    await (sender.close() if closed == "sender" else world.client.close())
    kind, text = (ValueError, "sender") if closed == "sender" else (PairClosedError, "pair")
    at = datetime(2030, 1, 1, tzinfo=UTC)
    for call in (sender.send_messages, lambda each: sender.schedule_messages(each, at)):
        with pytest.raises(kind, match=f"the {text}.* was closed") as caught:
            await call(given)
        assert caught.value.message_ids == ("1",)  # type: ignore[attr-defined]
        # As the SDK's sender raises it.
        assert isinstance(caught.value, ValueError)
    await world.client.close()


async def test_what_is_no_message_has_no_id() -> None:
    world = FakePair()
    sender = world.client.get_queue_sender("orders")
    await sender.close()
    with pytest.raises(ValueError, match="was closed") as caught:
        await sender.send_messages(7)  # type: ignore[arg-type]
    assert caught.value.message_ids == ()  # type: ignore[attr-defined]
    await world.client.close()


async def test_a_sender_closed_while_a_call_waits_for_its_retry_says_so() -> None:
    world = FakePair(retry_backoff_factor=5.0, failover_interval=3600.0)
    world.primary.behaviour = refuses
    sender = world.client.get_queue_sender("orders")
    waiting = asyncio.create_task(sender.send_messages(MESSAGE))
    await asyncio.sleep(1.0)
    await sender.close()
    with pytest.raises(ValueError, match="the sender to orders was closed") as caught:
        await waiting
    assert caught.value.message_ids == ("1",)  # type: ignore[attr-defined]
    await world.client.close()
