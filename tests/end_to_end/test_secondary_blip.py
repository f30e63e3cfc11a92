"""Rare failures: a restarted secondary, a lost answer, a primary that stays healthy."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.exceptions import MessageSizeExceededError, OperationTimeoutError

from tests.contract.pairs import bodies, drain, drain_all, quick, until
from tests.official_sdk import Faults, administration, async_client
from tests.processes import ServedBroker
from twinbus import Namespace, SendAvailabilityOptions, blocking, pair_namespaces
from twinbus.errors import ScheduleUnknownError
from twinbus.pair import Pair
from twinbus.pairing.sdk import sender_pool
from twinbus.pairing.sending.sender import PairedSender

pytestmark = pytest.mark.end_to_end

TASKS = 12
TIMEOUT_S = 60.0
DOWN_S = 2.0
FREE_S = 10.0
"""From the health of the secondary to the first success, at most."""

OPTIONS = SendAvailabilityOptions(failover_interval=1.0, attempt_timeout=5.0, ledger="")


@dataclass
class PatientLoad:
    """Tasks that send one message after the other, each call with 60 s of patience."""

    sender: PairedSender
    accepted: dict[str, float] = field(default_factory=dict)
    """The id of each message whose send returned, and when."""
    raised: list[BaseException] = field(default_factory=list)
    _number: int = 0
    _stopping: bool = False

    async def run(self) -> None:
        await asyncio.gather(*(self._send() for _ in range(TASKS)))

    def stop(self) -> None:
        self._stopping = True

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping:
            self._number += 1
            message_id = f"id-{self._number}"
            try:
                message = ServiceBusMessage("x", message_id=message_id)
                await self.sender.send_messages(message, timeout=TIMEOUT_S)
                self.accepted[message_id] = loop.time()
            except Exception as error:  # noqa: BLE001  # the test looks at each
                self.raised.append(error)
            await asyncio.sleep(0.01)


async def test_a_blip_of_the_secondary_costs_patience_and_no_error(
    two_brokers: tuple[ServedBroker, ServedBroker],
) -> None:
    primary, secondary = two_brokers
    loop = asyncio.get_running_loop()
    sides = (
        Namespace.from_connection_string(primary.connection_string(), "contoso"),
        Namespace.from_connection_string(secondary.connection_string()),
    )
    async with pair_namespaces(*sides, OPTIONS) as pair:
        queues = pair.backlog_queues
        assert len(queues) == OPTIONS.backlog_queue_count
        load = PatientLoad(pair.get_queue_sender("orders"))
        await asyncio.to_thread(primary.kill9)
        running = asyncio.create_task(load.run())
        await until(lambda: len(load.accepted) > 50)
        await asyncio.to_thread(secondary.kill9)
        await asyncio.sleep(DOWN_S)
        assert not load.raised, load.raised[0]
        await asyncio.to_thread(secondary.restart)
        healthy_at, before = loop.time(), len(load.accepted)
        await until(lambda: len(load.accepted) > before + TASKS or bool(load.raised))
        load.stop()
        await running
        pulled = [str(q) for q in pair.status().backlog_queues.values() if q.state == "pulled"]
    assert load.raised == []
    assert pulled == []
    first_after = sorted(load.accepted.values())[before]
    assert first_after - healthy_at < FREE_S
    stored = {str(m.message_id) for m in await drain_all(secondary.connection_string(), queues)}
    assert set(load.accepted) - stored == set()


PLAIN, DETECTING = "orders", "orders-once"
PATIENT_S = 60.0
# The retries that must not happen would come long before the failover. An attempt has much time,
# because one that a full machine makes late is not repeated either.
NO_FAILOVER = quick(failover_interval=60.0, attempt_timeout=30.0, retry_backoff_factor=0.1)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    directory = tmp_path_factory.mktemp("schedule")
    with ServedBroker(directory, "contoso", "dr") as broker:
        primary = broker.connection_string("contoso")
        with administration(primary) as admin:
            admin.create_queue(PLAIN)
            admin.create_queue(DETECTING, requires_duplicate_detection=True)
        yield primary, broker.connection_string("dr")


def later() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


async def scheduled(text: str, queue: str, message_id: str) -> list[int | None]:
    """The sequence numbers of the scheduled copies of a message."""
    async with async_client(text) as sdk, sdk.get_queue_receiver(queue) as receiver:
        found = await receiver.peek_messages(250)
        return [each.sequence_number for each in found if each.message_id == message_id]


def pair_of(sides: tuple[str, str]) -> Any:
    primary, secondary = sides
    named = Namespace.from_connection_string(primary, name="contoso")
    return pair_namespaces(named, secondary, NO_FAILOVER)


async def lose(sides: tuple[str, str], kind: str, queue: str) -> None:
    await asyncio.to_thread(lambda: Faults(sides[0]).add(kind, entity=queue, count=1))


@pytest.mark.parametrize(("kind", "copies"), [("drop_after_commit", 1), ("drop_before_commit", 0)])
@pytest.mark.parametrize("queue", [PLAIN, DETECTING])
async def test_a_lost_answer_leaves_one_copy_a_lost_request_none_and_both_the_same_error(
    sides: tuple[str, str], queue: str, kind: str, copies: int
) -> None:
    async with pair_of(sides) as pair, pair.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("opens the link"), timeout=PATIENT_S)
        await lose(sides, kind, queue)
        message = ServiceBusMessage("one", message_id=kind)
        with pytest.raises(ScheduleUnknownError, match="may be scheduled") as raised:
            await sender.schedule_messages(message, later(), timeout=PATIENT_S)
        assert raised.value.message_ids == (kind,)
        assert len(await scheduled(sides[0], queue, kind)) == copies


async def test_the_callers_own_retry_gets_no_number_that_is_none(sides: tuple[str, str]) -> None:
    """The broker answers 0 for a duplicate that it dropped; 0 cancels nothing."""
    async with pair_of(sides) as pair, pair.get_queue_sender(DETECTING) as sender:
        message = ServiceBusMessage("one", message_id="twice")
        [number] = await sender.schedule_messages(message, later(), timeout=PATIENT_S)
        with pytest.raises(ScheduleUnknownError, match="duplicate") as raised:
            await sender.schedule_messages(
                [message, ServiceBusMessage("new", message_id="new")], later(), timeout=PATIENT_S
            )
        assert raised.value.message_ids == ("twice", "new")
        assert await scheduled(sides[0], DETECTING, "twice") == [number]
        assert len(await scheduled(sides[0], DETECTING, "new")) == 1


async def test_a_refusal_and_a_link_that_did_not_open_are_retried(sides: tuple[str, str]) -> None:
    for kind in ("throttle", "refuse_attach"):
        await lose(sides, kind, PLAIN)
        async with pair_of(sides) as pair:
            # Without `async with` the call itself opens the link.
            sender = pair.get_queue_sender(PLAIN)
            message = ServiceBusMessage("one", message_id=kind)
            [number] = await sender.schedule_messages(message, later(), timeout=PATIENT_S)
            await sender.close()
        assert await scheduled(sides[0], PLAIN, kind) == [number]


async def test_a_cancellation_without_an_answer_is_not_repeated(sides: tuple[str, str]) -> None:
    async with pair_of(sides) as pair, pair.get_queue_sender(PLAIN) as sender:
        message = ServiceBusMessage("one", message_id="kept")
        [number] = await sender.schedule_messages(message, later(), timeout=PATIENT_S)
        await lose(sides, "hang", PLAIN)
        with pytest.raises(ScheduleUnknownError, match=f"{number}"):
            await sender.cancel_scheduled_messages(number, timeout=2.0)
        assert await scheduled(sides[0], PLAIN, "kept") == [number]


FAILOVER_S = 1.0
SLOW_ATTACH_MS = 4_000
"""Longer than the short timeout and shorter than an attempt."""
SHORT_S = 0.3
HEALTHY_S = 30.0
RARE_PINGS = quick(failover_interval=FAILOVER_S, attempt_timeout=20.0, ping_primary_interval=60.0)
TOO_LARGE_BYTES = 400_000


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServedBroker, str]]:
    directory = tmp_path_factory.mktemp("healthy")
    first, second = directory / "primary", directory / "secondary"
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
        return pair_namespaces(*self.sides, RARE_PINGS)

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
        await sender.send_messages(ServiceBusMessage("good"), timeout=HEALTHY_S)
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
        await sender.send_messages(ServiceBusMessage("first"), timeout=HEALTHY_S)
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
        await sender.send_messages(ServiceBusMessage("good"), timeout=HEALTHY_S)
        assert not world.has_struck(second)
        world.faults.clear()
        assert pair.status().entities[world.queue].state == "healthy"
    assert bodies(await drain(world.text, world.queue)) == ["good"]


def test_a_blocking_sender_opens_its_link_on_enter(world: World) -> None:
    slow = world.slow_attach()
    with (
        blocking.pair_namespaces(*world.sides, RARE_PINGS) as pair,
        pair.get_queue_sender(world.queue) as sender,
    ):
        asyncio.run(until(lambda: world.has_struck(slow)))
        sender.send_messages(ServiceBusMessage("good"), timeout=HEALTHY_S)
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
            await sender.send_messages(ServiceBusMessage("before"), timeout=HEALTHY_S)
            assert bodies(await drain(world.text, world.queue)) == ["before"]
        for _ in range(2):
            with pytest.raises(MessageSizeExceededError) as raised:
                await sender.send_messages(make(), timeout=HEALTHY_S)
            assert "large 0" in raised.value.message_ids  # type: ignore[attr-defined]
        await world.require_healthy(pair, sender)
