"""Processors on a real broker: over a pair, a plain namespace and a client of the SDK."""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver

import twinbus
from tests.contract.pairs import (
    PATIENCE_S,
    bodies,
    drain,
    embedded,
    no_thread_left,
    nothing_left,
    paired,
    quick,
    sides,
    until,
)
from tests.official_sdk import async_client
from twinbus import DeadLetterError, EmbeddedBroker, PairClosedError, blocking
from twinbus.broker.descriptions import QueueDescription
from twinbus.servicebus.twins import twin_mark

pytestmark = pytest.mark.contract

LOCK_S = 5.0
"""The shortest lock that the service allows."""

NUMBERS = itertools.count(1)

broker = embedded("contoso", "contoso-dr", queues=(), scope="module")


@pytest.fixture
def queue(broker: EmbeddedBroker) -> str:
    """A new queue whose messages are delivered three times at most."""
    name = f"orders-{next(NUMBERS)}"
    broker.create_queue(name, QueueDescription(max_delivery_count=3))
    return name


@pytest.fixture
def short_queue(broker: EmbeddedBroker) -> str:
    """A new queue with the shortest lock."""
    name = f"orders-{next(NUMBERS)}"
    broker.create_queue(name, QueueDescription(lock_duration_ms=int(LOCK_S * 1000)))
    return name


@pytest.fixture
def session_queue(broker: EmbeddedBroker) -> str:
    name = f"sessions-{next(NUMBERS)}"
    description = QueueDescription(lock_duration_ms=int(LOCK_S * 1000), requires_session=True)
    broker.create_queue(name, description)
    return name


async def send(broker: EmbeddedBroker, queue: str, *messages: ServiceBusMessage) -> None:
    text = broker.connection_string()
    async with async_client(text) as client, client.get_queue_sender(queue) as sender:
        await sender.send_messages(list(messages))


def texts(*names: str) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(name, message_id=name) for name in names]


def numbers(count: int) -> list[str]:
    return [f"{number:03d}" for number in range(count)]


async def test_messages_are_completed_redelivered_and_dead_lettered(
    broker: EmbeddedBroker, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    text, handled = broker.connection_string(), []
    await send(broker, queue, *texts("good", "bad", "ugly", "own"))

    async def handle(message: ServiceBusReceivedMessage, receiver: ServiceBusReceiver) -> None:
        handled.append(str(message))
        match str(message):
            case "bad":
                raise ValueError("no such customer")
            case "ugly":
                raise DeadLetterError("unreadable", "no JSON")
            case "own":
                await receiver.defer_message(message)

    async with nothing_left():
        async with paired(broker) as pair, pair.process(queue, handle, concurrency=4):
            await until(lambda: len(handled) == 6)
            dead = await drain(text, queue, 2, sub_queue="deadletter", wait_s=PATIENCE_S)
        assert Counter(handled) == {"good": 1, "bad": 3, "ugly": 1, "own": 1}
        reasons = {str(one): one.dead_letter_reason for one in dead}
        assert reasons == {"bad": "MaxDeliveryCountExceeded", "ugly": "unreadable"}
        assert await drain(text, queue) == []
        async with async_client(text) as client, client.get_queue_receiver(queue) as receiver:
            [left] = await receiver.peek_messages(5, sequence_number=1)
        assert str(left) == "own"
    lines = [line for line in caplog.messages if "'bad' failed" in line]
    assert len(lines) == 3
    assert lines[2].endswith("'bad' failed on delivery 3 (abandoned): ValueError: no such customer")
    assert all(record.exc_info is None for record in caplog.records)


async def test_the_lock_is_renewed_in_a_handler_that_takes_longer(
    broker: EmbeddedBroker, short_queue: str
) -> None:
    deliveries = []
    await send(broker, short_queue, *texts("long"))

    async def handle(message: ServiceBusReceivedMessage) -> None:
        deliveries.append(message.delivery_count)
        await asyncio.sleep(2.5 * LOCK_S)

    async with twinbus.process(broker.connection_string(), short_queue, handle, concurrency=2):
        await until(lambda: deliveries)
        await asyncio.sleep(2.5 * LOCK_S)
    assert deliveries == [0]
    assert await drain(broker.connection_string(), short_queue) == []


async def test_without_renewal_the_lock_is_lost_and_the_message_delivered_again(
    broker: EmbeddedBroker, short_queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    deliveries = []
    await send(broker, short_queue, *texts("long"))

    async def handle(message: ServiceBusReceivedMessage) -> None:
        deliveries.append(message.delivery_count)
        if len(deliveries) == 1:
            await asyncio.sleep(LOCK_S + 1.5)

    text = broker.connection_string()
    async with twinbus.process(text, short_queue, handle, concurrency=2, max_lock_renewal=0):
        await until(lambda: len(deliveries) == 2)
        await until(lambda: "'long' is delivered again (complete failed)" in caplog.text)
    assert await drain(text, short_queue) == []


async def test_never_more_handlers_run_than_allowed(broker: EmbeddedBroker, queue: str) -> None:
    await send(broker, queue, *texts(*numbers(200)))
    running = most = 0
    handled: list[str] = []

    async def handle(message: ServiceBusReceivedMessage) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        handled.append(str(message))

    async with async_client(broker.connection_string()) as client:
        async with twinbus.process(client, queue, handle, concurrency=8):
            await until(lambda: len(handled) == 200)
        # The client is the caller's, and stays open.
        async with client.get_queue_receiver(queue) as receiver:
            assert await receiver.peek_messages(5) == []
    assert most == 8
    assert sorted(handled) == numbers(200)


async def test_a_message_that_comes_alone_is_handled_at_once(
    broker: EmbeddedBroker, queue: str
) -> None:
    """The SDK's receive of several messages would wait 0.2 s for a second one."""
    arrived: list[float] = []

    async def handle(message: ServiceBusReceivedMessage) -> None:
        arrived.append(time.monotonic())

    text, took = broker.connection_string(), []
    async with (
        async_client(text) as client,
        client.get_queue_sender(queue) as sender,
        twinbus.process(client, queue, handle, concurrency=8),
    ):
        for number in range(1, 6):
            await asyncio.sleep(0.6)
            began = time.monotonic()
            await sender.send_messages(ServiceBusMessage("alone"))
            await until(lambda: len(arrived) == number)  # noqa: B023
            took.append(arrived[-1] - began)
    assert min(took) < 0.15


async def test_a_stop_in_the_middle_loses_nothing_and_leaves_nothing_locked(
    broker: EmbeddedBroker, queue: str
) -> None:
    text, handled = broker.connection_string(), []
    await send(broker, queue, *texts(*numbers(100)))

    async def handle(message: ServiceBusReceivedMessage) -> None:
        if str(message).endswith("7"):
            await asyncio.sleep(3_600)
        await asyncio.sleep(0.01)
        handled.append(str(message))

    async with twinbus.process(text, queue, handle, concurrency=16, stop_timeout=0.5):
        await until(lambda: len(handled) >= 30)
    began = time.monotonic()
    rest = await drain(text, queue, 100 - len(handled), wait_s=PATIENCE_S)
    assert time.monotonic() - began < 30, "a message was locked until its lock ended after 60 s"
    assert sorted(handled + bodies(rest)) == numbers(100)


async def test_it_goes_on_when_the_broker_was_gone(
    broker: EmbeddedBroker, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[str] = []
    await send(broker, queue, *texts("before"))

    async def handle(message: ServiceBusReceivedMessage) -> None:
        handled.append(str(message))

    text = broker.connection_string()
    async with twinbus.process(text, queue, handle, concurrency=2):
        await until(lambda: handled == ["before"])
        await asyncio.to_thread(broker.cut_off)
        await asyncio.sleep(2)
        await asyncio.to_thread(broker.serve_again)
        await send(broker, queue, *texts("after"))
        await until(lambda: handled == ["before", "after"])
    own = [record for record in caplog.records if record.name == "twinbus.processor"]
    assert all(record.exc_info is None for record in own)


async def test_nothing_is_lost_when_the_broker_is_gone_while_handlers_run(
    broker: EmbeddedBroker, short_queue: str
) -> None:
    handled: list[str] = []
    await send(broker, short_queue, *texts(*numbers(20)))

    async def handle(message: ServiceBusReceivedMessage) -> None:
        await asyncio.sleep(1)
        handled.append(str(message))

    text = broker.connection_string()
    async with twinbus.process(text, short_queue, handle, concurrency=8):
        await until(lambda: len(handled) >= 8)
        await asyncio.to_thread(broker.cut_off)
        await asyncio.sleep(1.5)
        await asyncio.to_thread(broker.serve_again)
        await until(lambda: set(handled) == set(numbers(20)))
    # What was handled and could not be completed is delivered again.
    assert max(Counter(handled).values()) <= 3
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_idle_receiver_is_replaced_without_a_word(
    broker: EmbeddedBroker,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("twinbus.pairing.core.processing.SILENT_S", 1.0)
    monkeypatch.setattr("twinbus.pairing.core.processing.SINGLE_WAIT_S", 0.5)
    receivers: list[ServiceBusReceiver] = []
    handled: list[str] = []

    async def handle(message: ServiceBusReceivedMessage, receiver: ServiceBusReceiver) -> None:
        handled.append(str(message))
        if receiver not in receivers:
            receivers.append(receiver)

    async with twinbus.process(broker.connection_string(), queue, handle, concurrency=2):
        for number, text in enumerate(("first", "second"), 1):
            await send(broker, queue, *texts(text))
            await until(lambda: len(handled) == number)  # noqa: B023
            await asyncio.sleep(3)
    assert handled == ["first", "second"]
    assert len(receivers) == 2
    assert caplog.messages == []


async def test_sessions_are_handled_in_parallel_and_each_in_order(
    broker: EmbeddedBroker, session_queue: str
) -> None:
    names = [f"s{number}" for number in range(6)]
    messages = [
        ServiceBusMessage(f"{name}-{number:02d}", session_id=name)
        for number in range(10)
        for name in names
    ]
    await send(broker, session_queue, *messages)
    running: Counter[str] = Counter()
    handled: list[str] = []
    most = 0

    async def handle(message: ServiceBusReceivedMessage, receiver: ServiceBusReceiver) -> None:
        nonlocal most
        session_id = str(message.session_id)
        running[session_id] += 1
        assert running[session_id] == 1
        most = max(most, sum(running.values()))
        await asyncio.sleep(0.02)
        running[session_id] -= 1
        if str(message) == "s0-03" and message.delivery_count == 0:
            raise ValueError("once")
        handled.append(str(message))
        await receiver.session.set_state(str(message))

    text = broker.connection_string()
    async with twinbus.process(text, session_queue, handle, sessions=3, session_idle=0.5):
        await until(lambda: len(handled) == 60)
    assert most == 3
    for name in names:
        own = [one for one in handled if one.startswith(name)]
        assert own == [f"{name}-{number:02d}" for number in range(10)]
    async with (
        async_client(text) as client,
        client.get_queue_receiver(session_queue, session_id="s1") as receiver,
    ):
        assert await receiver.session.get_state() == b"s1-09"
        assert await receiver.peek_messages(5) == []


async def test_the_lock_of_a_session_is_renewed(broker: EmbeddedBroker, session_queue: str) -> None:
    handled = []
    await send(broker, session_queue, ServiceBusMessage("long", session_id="a"))

    async def handle(message: ServiceBusReceivedMessage) -> None:
        await asyncio.sleep(1.5 * LOCK_S)
        handled.append(message.delivery_count)

    text = broker.connection_string()
    async with twinbus.process(text, session_queue, handle, sessions=2):
        await until(lambda: handled)
    assert handled == [0]
    assert await drain(text, session_queue, session_id="a") == []


async def test_a_subscription_is_processed_like_a_queue(broker: EmbeddedBroker) -> None:
    broker.create_topic("news", ["audit"])
    handled: list[str] = []

    async def handle(message: ServiceBusReceivedMessage) -> None:
        handled.append(str(message))

    async with paired(broker) as pair, pair.get_topic_sender("news") as sender:
        await sender.send_messages(texts("one", "two"))
        async with pair.process("news", handle, subscription="audit"):
            await until(lambda: len(handled) == 2)
    assert handled == ["one", "two"]


async def test_a_pair_processes_on_when_its_primary_was_gone(
    broker: EmbeddedBroker, queue: str
) -> None:
    handled: list[str] = []
    await send(broker, queue, *texts(*numbers(20)))

    async def handle(message: ServiceBusReceivedMessage) -> None:
        await asyncio.sleep(0.5)
        handled.append(str(message))

    async with paired(broker) as pair, pair.process(queue, handle, concurrency=4):
        await until(lambda: len(handled) >= 4)
        await asyncio.to_thread(broker.cut_off)
        await asyncio.sleep(1.5)
        await asyncio.to_thread(broker.serve_again)
        await until(lambda: set(handled) == set(numbers(20)), 2 * PATIENCE_S)
    assert max(Counter(handled).values()) <= 3
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_messages_are_processed_while_the_primary_is_gone_if_the_entity_has_a_twin(
    broker: EmbeddedBroker, queue: str
) -> None:
    handled: list[str] = []
    broker.create_queue(
        queue, QueueDescription(user_metadata=twin_mark("contoso")), namespace="contoso-dr"
    )

    async def handle(message: ServiceBusReceivedMessage) -> None:
        handled.append(str(message))

    async with (
        paired(broker, twins=[queue], attempt_timeout=2.0) as pair,
        pair.get_queue_sender(queue) as sender,
        pair.process(queue, handle, concurrency=4),
    ):
        await sender.send_messages(texts("before"))
        await until(lambda: handled == ["before"])
        await asyncio.to_thread(broker.cut_off)
        try:
            await sender.send_messages(texts("during"), timeout=PATIENCE_S)
            await until(lambda: handled == ["before", "during"])
        finally:
            await asyncio.to_thread(broker.serve_again)
    assert handled == ["before", "during"]


async def test_sessions_of_a_pair_are_processed_in_order(
    broker: EmbeddedBroker, session_queue: str
) -> None:
    handled: list[str] = []
    messages = [
        ServiceBusMessage(f"{name}{number}", session_id=name)
        for number in range(5)
        for name in "abc"
    ]
    await send(broker, session_queue, *messages)

    async def handle(message: ServiceBusReceivedMessage) -> None:
        await asyncio.sleep(0.02)
        handled.append(str(message))

    async with (
        paired(broker) as pair,
        pair.process(session_queue, handle, sessions=2, session_idle=0.5),
    ):
        await until(lambda: len(handled) == 15)
    for name in "abc":
        own = [one for one in handled if one.startswith(name)]
        assert own == [f"{name}{number}" for number in range(5)]


async def test_a_processor_ends_with_its_pair(broker: EmbeddedBroker, queue: str) -> None:
    async def handle(message: ServiceBusReceivedMessage) -> None:
        pass

    async with nothing_left():
        pair = paired(broker)
        await pair.start()
        run = asyncio.create_task(pair.process(queue, handle).run_until_stopped())
        await asyncio.sleep(0.5)
        await pair.close()
        with pytest.raises(PairClosedError):
            await asyncio.wait_for(run, PATIENCE_S)
        with pytest.raises(PairClosedError):
            pair.process(queue, handle)


async def test_a_pair_that_is_closed_lets_running_handlers_send_and_settle(
    broker: EmbeddedBroker, queue: str
) -> None:
    text, answers = broker.connection_string(), f"answers-{next(NUMBERS)}"
    broker.create_queue(answers)
    await send(broker, queue, *texts("one", "two"))
    async with nothing_left():
        pair = paired(broker)
        await pair.start()
        sender = pair.get_queue_sender(answers)
        begun = 0

        async def handle(message: ServiceBusReceivedMessage) -> None:
            nonlocal begun
            begun += 1
            await asyncio.sleep(1)
            await sender.send_messages(ServiceBusMessage(f"answer to {message}"))

        async with pair.process(queue, handle, concurrency=2):
            await until(lambda: begun == 2)
            status = pair.status()
            assert status.processors[queue].handling == 2
            assert status.receivers[queue].sides["primary"].states == {"open": 1}
            await pair.close()
        row = pair.status().processors[queue]
        assert (row.running, row.handled, row.failed) == (0, 2, 0)
        assert pair.status().receivers[queue].handed_out == 2
    assert sorted(bodies(await drain(text, answers, 2))) == ["answer to one", "answer to two"]
    assert await drain(text, queue) == []


async def test_user_mistakes_are_refused_in_one_line(broker: EmbeddedBroker, queue: str) -> None:
    async def handle(message: ServiceBusReceivedMessage) -> None:
        pass

    def plain(message: ServiceBusReceivedMessage) -> None:
        pass

    text = broker.connection_string()
    mistakes: Sequence[tuple[type[Exception], str, Any]] = [
        (TypeError, "must be an async function", lambda: twinbus.process(text, queue, plain)),  # type: ignore[arg-type]
        (TypeError, "must be a plain function", lambda: blocking.process(text, queue, handle)),
        (TypeError, "got 'prefetch'", lambda: twinbus.process(text, queue, handle, prefetch=1)),  # type: ignore[call-arg]
        (TypeError, "process takes a connection", lambda: twinbus.process(None, queue, handle)),  # type: ignore[arg-type]
        (ValueError, "name of a queue or topic", lambda: twinbus.process(text, "", handle)),
        (ValueError, "subscription", lambda: twinbus.process(text, "a", handle, subscription="")),
        (ValueError, "1 to 1000", lambda: blocking.process(text, queue, plain, concurrency=0)),
    ]
    for kind, words, make in mistakes:
        with pytest.raises(kind, match=words) as refused:
            make()
        assert "\n" not in str(refused.value)


def test_plain_functions_run_on_threads_and_keep_their_locks(
    broker: EmbeddedBroker, short_queue: str
) -> None:
    asyncio.run(send(broker, short_queue, *texts(*numbers(30), "long", "own", "ugly")))
    handled: list[str] = []
    threads: set[str] = set()

    def handle(message: ServiceBusReceivedMessage, receiver: Any) -> None:
        threads.add(threading.current_thread().name)
        if str(message) == "long":
            time.sleep(1.5 * LOCK_S)
        if str(message) == "ugly":
            raise DeadLetterError("unreadable")
        if str(message) == "own":
            receiver.complete_message(message)
        handled.append(str(message))

    with no_thread_left():
        pair = blocking.pair_namespaces(*sides(broker), quick())
        with pair, pair.process(short_queue, handle, concurrency=4):
            _wait_until(lambda: len(handled) == 32)
        assert sorted(handled) == sorted([*numbers(30), "long", "own"])
        assert threads == {"twinbus-handler"}
        text = broker.connection_string()
        assert asyncio.run(drain(text, short_queue)) == []
        [dead] = asyncio.run(drain(text, short_queue, 1, sub_queue="deadletter", wait_s=PATIENCE_S))
        assert dead.dead_letter_reason == "unreadable"


def test_a_blocking_processor_of_a_plain_namespace_is_stopped_by_a_handler_or_ctrl_c(
    broker: EmbeddedBroker, queue: str
) -> None:
    asyncio.run(send(broker, queue, *texts("one", "stop")))
    handled: list[str] = []

    def handle(message: ServiceBusReceivedMessage) -> None:
        if str(message) == "stop":
            processor.stop()
        if str(message) == "last":
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.5)
        handled.append(str(message))

    text = broker.connection_string()
    with no_thread_left():
        processor = blocking.process(text, queue, handle)
        processor.run_until_stopped()
        assert handled == ["one", "stop"]
        asyncio.run(send(broker, queue, *texts("last")))
        processor = blocking.process(text, queue, handle)
        with pytest.raises(KeyboardInterrupt):
            processor.run_until_stopped()
        assert handled == ["one", "stop", "last"]
        assert asyncio.run(drain(text, queue)) == []


def _wait_until(condition: Any) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)
