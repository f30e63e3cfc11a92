"""A healthy primary stays healthy, whatever callers do: short timeouts, messages too large.

Both namespaces are processes. The failover interval is short, and the tests let it pass without
another send: an entity that turned suspect would fail over meanwhile.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.exceptions import MessageSizeExceededError, OperationTimeoutError

from tests.contract.pairs import bodies, drain, quick, until
from tests.official_sdk import Faults, administration
from tests.processes import ServedBroker
from twinbus import Namespace, blocking, pair_namespaces
from twinbus.pair import Pair
from twinbus.pairing.sdk import sender_pool

pytestmark = pytest.mark.end_to_end

FAILOVER_S = 1.0
SLOW_ATTACH_MS = 4_000
"""Longer than the short timeout and shorter than an attempt."""
SHORT_S = 0.3
PATIENT_S = 30.0
OPTIONS = quick(failover_interval=FAILOVER_S, attempt_timeout=20.0, ping_primary_interval=60.0)
TOO_LARGE_BYTES = 400_000


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServedBroker, str]]:
    directory = tmp_path_factory.mktemp("healthy")
    first, second = directory / "primary", directory / "secondary"
    for each in (first, second):
        each.mkdir()
    with ServedBroker(first, "contoso") as primary, ServedBroker(second, "dr") as secondary:
        yield primary, secondary.connection_string()


class World:
    """A pair of the two processes, and a queue of the test's own."""

    def __init__(self, primary: ServedBroker, secondary: str, queue: str) -> None:
        self.text, self.queue = primary.connection_string(), queue
        self.sides = Namespace.from_connection_string(self.text, name=queue), secondary
        self.faults = Faults(self.text)
        with administration(self.text) as admin:
            admin.create_queue(queue)

    def pair(self) -> Any:
        return pair_namespaces(*self.sides, OPTIONS)

    def slow_attach(self) -> int:
        """The next attach of the queue takes long."""
        return self.faults.add("delay", entity=self.queue, delay_ms=SLOW_ATTACH_MS, count=1)

    def has_struck(self, number: int) -> bool:
        """Whether an attach has met this fault."""
        return number not in [each["id"] for each in self.faults.list()["faults"]]

    async def require_healthy(self, pair: Pair, sender: Any) -> None:
        """The interval passes without a send; then a message goes to the primary."""
        await asyncio.sleep(2 * FAILOVER_S)
        assert pair.status().entities[self.queue].state == "healthy"
        self.faults.clear()
        await sender.send_messages(ServiceBusMessage("good"), timeout=PATIENT_S)
        status = pair.status().entities[self.queue]
        assert (status.state, status.diverted) == ("healthy", 0)
        assert bodies(await drain(self.text, self.queue)) == ["good"]


@pytest.fixture
def world(brokers: tuple[ServedBroker, str], request: pytest.FixtureRequest) -> World:
    return World(*brokers, re.sub(r"\W+", "-", request.node.name).strip("-"))


async def test_a_short_timeout_on_a_fresh_sender(world: World) -> None:
    world.slow_attach()
    async with world.pair() as pair, pair.get_queue_sender(world.queue) as sender:
        with pytest.raises(OperationTimeoutError) as raised:
            await sender.send_messages(ServiceBusMessage("bad", message_id="m"), timeout=SHORT_S)
        assert raised.value.message_ids == ("m",)  # type: ignore[attr-defined]
        await world.require_healthy(pair, sender)


async def test_a_short_timeout_on_an_idle_sender(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.pair() as pair, pair.get_queue_sender(world.queue) as sender:
        await sender.send_messages(ServiceBusMessage("first"), timeout=PATIENT_S)
        assert bodies(await drain(world.text, world.queue)) == ["first"]
        # From now on every sender has been idle for too long.
        monkeypatch.setattr(sender_pool, "IDLE_MAX_S", 0.0)
        world.slow_attach()
        with pytest.raises(OperationTimeoutError):
            await sender.send_messages(ServiceBusMessage("bad"), timeout=SHORT_S)
        monkeypatch.undo()
        await world.require_healthy(pair, sender)


async def test_a_first_call_waits_for_the_link_that_enter_opens(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine is, the opening is young enough to be waited for.
    monkeypatch.setattr(sender_pool, "JOINED_MAX_S", 60.0)
    slow = world.slow_attach()
    async with world.pair() as pair, pair.get_queue_sender(world.queue) as sender:
        await until(lambda: world.has_struck(slow))
        second = world.faults.add("refuse_attach", entity=world.queue, count=1)
        for _ in range(2):
            with pytest.raises(OperationTimeoutError):
                await sender.send_messages(ServiceBusMessage("bad"), timeout=0.05)
        await sender.send_messages(ServiceBusMessage("good"), timeout=PATIENT_S)
        assert not world.has_struck(second)
        world.faults.clear()
        assert pair.status().entities[world.queue].state == "healthy"
    assert bodies(await drain(world.text, world.queue)) == ["good"]


def test_a_blocking_sender_opens_its_link_on_enter(world: World) -> None:
    slow = world.slow_attach()
    with (
        blocking.pair_namespaces(*world.sides, OPTIONS) as pair,
        pair.get_queue_sender(world.queue) as sender,
    ):
        asyncio.run(until(lambda: world.has_struck(slow)))
        sender.send_messages(ServiceBusMessage("good"), timeout=PATIENT_S)
    assert bodies(asyncio.run(drain(world.text, world.queue))) == ["good"]


def one_message() -> Any:
    return ServiceBusMessage(b"x" * TOO_LARGE_BYTES, message_id="large 0")


def a_list() -> Any:
    return [ServiceBusMessage(b"x" * 100_000, message_id=f"large {n}") for n in range(4)]


def a_batch() -> Any:
    batch = ServiceBusMessageBatch(1_000_000)
    for message in a_list():
        batch.add_message(message)
    return batch


def a_property() -> Any:
    """A small body, so that only the whole message is too large."""
    properties: dict[Any, Any] = {str(n): "x" * 10_000 for n in range(40)}
    return ServiceBusMessage(b"x", message_id="large 0", application_properties=properties)


@pytest.mark.parametrize("make", [one_message, a_list, a_batch, a_property])
@pytest.mark.parametrize("is_fresh", [True, False], ids=["fresh", "open"])
async def test_too_large(world: World, make: Any, is_fresh: bool) -> None:
    async with world.pair() as pair, pair.get_queue_sender(world.queue) as sender:
        if not is_fresh:
            await sender.send_messages(ServiceBusMessage("before"), timeout=PATIENT_S)
            assert bodies(await drain(world.text, world.queue)) == ["before"]
        for _ in range(2):
            with pytest.raises(MessageSizeExceededError) as raised:
                await sender.send_messages(make(), timeout=PATIENT_S)
            assert "large 0" in raised.value.message_ids  # type: ignore[attr-defined]
        await world.require_healthy(pair, sender)
