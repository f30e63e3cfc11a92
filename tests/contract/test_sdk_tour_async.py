"""What the plain asyncio SDK does on `twinbus serve`: the same tour, fewer stops to each."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    TransportType,
)
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusError,
    ServiceBusServerBusyError,
    SessionCannotBeLockedError,
)

from tests.contract.conftest import PATIENCE_S, QUIET_S
from tests.official_sdk import (
    Faults,
    async_administration,
    async_client,
    is_missing,
    ping,
)
from tests.processes import ServedBroker

pytestmark = pytest.mark.contract


class AsyncTour:
    """A broker and one client on one event loop; what it opens is closed all at once."""

    def __init__(self, broker: ServedBroker) -> None:
        self.broker = broker
        self.faults = Faults(broker.connection_string())
        self.client: ServiceBusClient
        self.admin: ServiceBusAdministrationClient
        self._stack = AsyncExitStack()
        self._opened: list[ServiceBusSender | ServiceBusReceiver] = []
        self._numbers = itertools.count(1)

    async def open(self) -> None:
        text = self.broker.connection_string()
        self.client = await self._stack.enter_async_context(async_client(text))
        self.admin = await self._stack.enter_async_context(async_administration(text))

    async def close(self) -> None:
        await asyncio.gather(*(opened.close() for opened in self._opened))
        await self._stack.aclose()

    async def queue(self, **settings: Any) -> str:
        name = f"queue-{next(self._numbers)}"
        await self.admin.create_queue(name, **settings)
        return name

    def keep(self, opened: Any) -> Any:
        """Have a sender or receiver closed at the end."""
        self._opened.append(opened)
        return opened

    def sender(self, queue: str) -> ServiceBusSender:
        sender: ServiceBusSender = self.keep(self.client.get_queue_sender(queue))
        return sender

    def receiver(self, queue: str, **settings: Any) -> ServiceBusReceiver:
        kept = self.keep(self.client.get_queue_receiver(queue, **settings))
        receiver: ServiceBusReceiver = kept
        return receiver

    async def pair(self, **settings: Any) -> tuple[ServiceBusSender, ServiceBusReceiver]:
        name = await self.queue(**settings)
        return self.sender(name), self.receiver(name)

    async def waiting(self, queue: str) -> int:
        """Messages in a queue, whatever their state."""
        return (await self.admin.get_queue_runtime_properties(queue)).total_message_count or 0


async def receive(receiver: ServiceBusReceiver, count: int) -> list[ServiceBusReceivedMessage]:
    received: list[ServiceBusReceivedMessage] = []
    while len(received) < count:
        more = await receiver.receive_messages(count - len(received), max_wait_time=PATIENCE_S)
        if not more:
            break
        received += more
    return received


async def receive_one(receiver: ServiceBusReceiver) -> ServiceBusReceivedMessage:
    (message,) = await receive(receiver, 1)
    return message


async def stays_empty(receiver: ServiceBusReceiver) -> bool:
    await receiver.__aenter__()
    return not await receiver.receive_messages(1, max_wait_time=QUIET_S)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """All tests of this module share one event loop."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def tour(broker: ServedBroker, runner: asyncio.Runner) -> Iterator[AsyncTour]:
    tour = AsyncTour(broker)
    runner.run(tour.open())
    yield tour
    runner.run(tour.close())


def hello() -> ServiceBusMessage:
    return ServiceBusMessage("hello")


async def test_messages_are_sent_received_and_settled_in_every_way(tour: AsyncTour) -> None:
    queue = await tour.queue()
    sender, receiver = tour.sender(queue), tour.receiver(queue)
    dead = tour.receiver(queue, sub_queue="deadletter")
    await sender.send_messages(ServiceBusMessage("abandoned"))
    await sender.send_messages([ServiceBusMessage("deferred"), ServiceBusMessage("dead")])
    batch = await sender.create_message_batch()
    batch.add_message(ServiceBusMessage("completed"))
    await sender.send_messages(batch)
    abandoned, deferred, letter, completed = await receive(receiver, 4)
    assert [str(each) for each in (abandoned, deferred, letter, completed)] == [
        "abandoned", "deferred", "dead", "completed",
    ]  # fmt: skip
    await receiver.complete_message(completed)
    await receiver.abandon_message(abandoned)
    await receiver.defer_message(deferred)
    await receiver.dead_letter_message(letter, reason="Bad", error_description="as told")
    again = await receive_one(receiver)
    assert (str(again), again.delivery_count) == ("abandoned", 1)
    await receiver.complete_message(again)
    assert deferred.sequence_number is not None
    (by_number,) = await receiver.receive_deferred_messages(deferred.sequence_number)
    assert str(by_number) == "deferred"
    await receiver.complete_message(by_number)
    with pytest.raises(MessageNotFoundError):
        await receiver.receive_deferred_messages(deferred.sequence_number)
    found = await receive_one(dead)
    assert (found.dead_letter_reason, found.dead_letter_error_description) == ("Bad", "as told")
    await dead.complete_message(found)
    assert await tour.waiting(queue) == 0


async def test_locks_are_renewed_and_run_out(tour: AsyncTour) -> None:
    sender, receiver = await tour.pair(lock_duration=timedelta(seconds=5))
    await sender.send_messages([ServiceBusMessage("renewed"), ServiceBusMessage("lost")])
    renewed, lost = await receive(receiver, 2)
    assert await receiver.receive_messages(1, max_wait_time=1) == []
    before = renewed.locked_until_utc
    assert before is not None
    until = await receiver.renew_message_lock(renewed)
    assert until >= before + timedelta(milliseconds=500)
    again = await receive_one(receiver)
    assert (str(again), again.delivery_count) == ("lost", 1)
    await receiver.complete_message(renewed)
    with pytest.raises(MessageLockLostError):
        await receiver.complete_message(lost)
    await receiver.complete_message(again)


async def test_messages_are_scheduled_cancelled_peeked_and_expire(tour: AsyncTour) -> None:
    queue = await tour.queue(dead_lettering_on_message_expiration=True)
    sender, receiver = tour.sender(queue), tour.receiver(queue)
    dead = tour.receiver(queue, sub_queue="deadletter")
    brief = timedelta(seconds=1)
    # Far ahead: on a busy machine a few seconds pass before the peek.
    later = datetime.now(UTC) + timedelta(hours=1)
    numbers = await sender.schedule_messages([hello(), hello()], later)
    await sender.cancel_scheduled_messages(numbers[0])
    (peeked,) = await receiver.peek_messages(5)
    assert peeked.state == ServiceBusMessageState.SCHEDULED
    assert peeked.sequence_number == numbers[1]
    await sender.cancel_scheduled_messages(numbers[1])
    due = datetime.now(UTC) + timedelta(seconds=2)
    await sender.schedule_messages(hello(), due)
    await sender.send_messages(ServiceBusMessage("brief", time_to_live=brief))
    letter = await receive_one(dead)
    assert (str(letter), letter.dead_letter_reason) == ("brief", "TTLExpiredException")
    await dead.complete_message(letter)
    await receiver.complete_message(await receive_one(receiver))
    assert datetime.now(UTC) >= due
    assert await tour.waiting(queue) == 0


async def test_large_messages_arrive_whole_and_received_ones_can_be_deleted_at_once(
    tour: AsyncTour,
) -> None:
    queue = await tour.queue()
    sender = tour.sender(queue)
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    receiver = tour.receiver(queue, receive_mode=mode)
    large = bytes(number % 251 for number in range(200 * 1024))
    await sender.send_messages(ServiceBusMessage(large))
    assert b"".join((await receive_one(receiver)).body) == large
    assert await tour.waiting(queue) == 0
    with pytest.raises(MessageSizeExceededError):
        await sender.send_messages(ServiceBusMessage(b"x" * (300 * 1024)))
    await sender.send_messages(ping())
    assert await receiver.peek_messages(5) == []
    assert await stays_empty(receiver)


async def test_sessions_are_accepted_by_name_and_in_turn(tour: AsyncTour) -> None:
    queue = await tour.queue(requires_session=True)
    sender = tour.sender(queue)
    for session in ("red", "blue"):
        messages = [ServiceBusMessage(f"{session} {n}", session_id=session) for n in range(2)]
        await sender.send_messages(messages)
    accept = tour.client.get_queue_receiver
    async with accept(queue, session_id="red") as red:
        assert [str(message) for message in await receive(red, 2)] == ["red 0", "red 1"]
        await red.session.set_state(b"state")
        assert await red.session.renew_lock() > datetime.now(UTC)
        with pytest.raises(SessionCannotBeLockedError):
            await accept(queue, session_id="red").__aenter__()
        async with accept(queue, session_id=NEXT_AVAILABLE_SESSION) as following:
            assert following.session.session_id == "blue"
            for message in await receive(following, 2):
                await following.complete_message(message)
            with pytest.raises(OperationTimeoutError):
                await accept(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1).__aenter__()
    async with accept(queue, session_id="red") as red:
        assert await red.session.get_state() == b"state"
        for message in await receive(red, 2):
            await red.complete_message(message)
    assert await tour.waiting(queue) == 0


async def test_entities_are_administered_and_topics_fan_out(tour: AsyncTour) -> None:
    admin = tour.admin
    await admin.create_topic("news")
    for name in ("east", "west"):
        await admin.create_subscription("news", name)
    with pytest.raises(ResourceExistsError):
        await admin.create_topic("news")
    assert [each.name async for each in admin.list_subscriptions("news")] == ["east", "west"]
    await tour.keep(tour.client.get_topic_sender("news")).send_messages(hello())
    for name in ("east", "west"):
        receiver = tour.keep(tour.client.get_subscription_receiver("news", name))
        await receiver.complete_message(await receive_one(receiver))
    queue = await admin.create_queue("settings", max_delivery_count=3)
    queue.max_delivery_count = 4
    await admin.update_queue(queue)
    assert (await admin.get_queue("settings")).max_delivery_count == 4
    assert "settings" in [each.name async for each in admin.list_queues()]
    await admin.delete_queue("settings")
    with pytest.raises(ResourceNotFoundError):
        await admin.get_queue("settings")
    with pytest.raises(ServiceBusAuthenticationError, check=is_missing):
        await tour.sender("settings").send_messages(hello())


async def test_strangers_are_refused(tour: AsyncTour) -> None:
    queue = await tour.queue()
    wrong = tour.broker.connection_string(key="wrong")
    async with async_client(wrong) as stranger:
        with pytest.raises(ServiceBusAuthenticationError):
            await stranger.get_queue_sender(queue).send_messages(hello())
    assert await tour.waiting(queue) == 0


@pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")  # the SDK's
async def test_the_same_port_speaks_amqp_over_websocket(tour: AsyncTour) -> None:
    queue = await tour.queue()
    async with async_client(
        tour.broker.connection_string(),
        transport_type=TransportType.AmqpOverWebsocket,
        custom_endpoint_address=f"sb://localhost:{tour.broker.port()}",
    ) as over_websocket:
        sender = over_websocket.get_queue_sender(queue)
        receiver = over_websocket.get_queue_receiver(queue)
        async with sender, receiver:
            await sender.send_messages(hello())
            await receiver.complete_message(await receive_one(receiver))
    assert await tour.waiting(queue) == 0


async def test_faults_strike_and_pass(tour: AsyncTour) -> None:
    queue = await tour.queue()
    sender = tour.sender(queue)
    tour.faults.add("throttle", entity=queue, count=1)
    with pytest.raises(ServiceBusServerBusyError):
        await sender.send_messages(hello())
    for kind, waiting in (("drop_before_commit", 0), ("drop_after_commit", 1)):
        tour.faults.add(kind, entity=queue, count=1)
        with pytest.raises(ServiceBusError):
            await sender.send_messages(hello(), timeout=5)
        assert await tour.waiting(queue) == waiting, kind
    await sender.send_messages(hello())
    assert await tour.waiting(queue) == 2
