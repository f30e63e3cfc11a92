"""A processor in virtual time, over receivers in memory."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest
from azure.servicebus.exceptions import (
    MessageLockLostError,
    ServiceBusConnectionError,
    SessionLockLostError,
)

from tests.unit.pairing.receiving.fake_queue import FakeMessage, FakeQueue, FakeReceiver
from twinbus.errors import DeadLetterError, PairClosedError
from twinbus.pairing.core.processing import SILENT_S
from twinbus.pairing.receiving.open_receivers import LAST_RECEIVE_S
from twinbus.pairing.receiving.processor import (
    ACCEPT_WAIT_S,
    RECEIVE_LIMIT_S,
    Processor,
)

pytestmark = pytest.mark.virtual_time


def processor_of(queue: FakeQueue, handler: Any, **options: Any) -> Processor:
    return Processor(queue.get_receiver, handler, name="orders", **options)


async def until(condition: Any) -> None:
    ends = asyncio.get_running_loop().time() + 3_600
    while not condition():
        assert asyncio.get_running_loop().time() < ends
        await asyncio.sleep(0.01)


async def test_a_message_is_settled_by_the_end_of_its_handler(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue, errors = FakeQueue("good", "bad", "ugly"), []

    async def handle(message: FakeMessage) -> None:
        if message.message_id == "bad":
            raise ValueError("no such\ncustomer")
        if message.message_id == "ugly":
            raise DeadLetterError("unreadable", "no JSON")

    def on_error(error: Exception, message: Any) -> None:
        errors.append((str(error), message.message_id))

    async with processor_of(queue, handle, on_error=on_error):
        await until(lambda: len(queue.settled) == 3)
    assert queue.settled == [
        ("good", "completed"),
        ("bad", "abandoned"),
        ("ugly", "dead-lettered: unreadable, no JSON"),
    ]
    assert errors == [("no such\ncustomer", "bad")]
    assert [record.getMessage() for record in caplog.records] == [
        "orders: message 'bad' failed on delivery 1 (abandoned): ValueError: no such customer",
        "orders: message 'ugly' dead-lettered: unreadable: no JSON",
    ]
    assert all(record.exc_info is None for record in caplog.records)


async def test_a_message_that_its_handler_settled_is_left_alone() -> None:
    queue = FakeQueue("one", "two")

    async def handle(message: FakeMessage, receiver: FakeReceiver) -> None:
        await receiver.defer_message(message)
        if message.message_id == "two":
            raise ValueError("after all")

    async with processor_of(queue, handle):
        await until(lambda: len(queue.settled) == 2)
        await asyncio.sleep(1)
    assert queue.settled == [("one", "deferred"), ("two", "deferred")]


async def test_an_error_of_on_error_does_not_end_the_processor() -> None:
    queue = FakeQueue("one", "two")

    async def handle(message: FakeMessage) -> None:
        raise ValueError

    async with processor_of(queue, handle, on_error=lambda error: None):
        await until(lambda: len(queue.settled) == 2)


async def test_never_more_handlers_run_than_allowed_and_no_message_waits_behind_one() -> None:
    queue = FakeQueue(*(str(number) for number in range(200)))
    running = most = 0

    async def handle(message: FakeMessage) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1

    async with processor_of(queue, handle, concurrency=8):
        await until(lambda: len(queue.settled) == 200)
    assert most == 8
    assert queue.now < 200 / 8 + 3
    assert max(queue.wanted) <= 8


async def test_the_lock_is_renewed_while_the_handler_runs_and_no_longer() -> None:
    queue = FakeQueue("long", lock_s=30.0)

    async def handle(message: FakeMessage) -> None:
        await asyncio.sleep(50)

    async with processor_of(queue, handle):
        await until(lambda: queue.settled)
        await asyncio.sleep(100)
    assert queue.renewals == [("long", 15.0), ("long", 30.0), ("long", 45.0)]
    assert queue.settled == [("long", "completed")]


async def test_renewal_ends_after_its_longest_time() -> None:
    queue = FakeQueue("long", lock_s=30.0)

    async def handle(message: FakeMessage) -> None:
        await asyncio.sleep(100)

    async with processor_of(queue, handle, max_lock_renewal=40):
        await until(lambda: queue.settled)
    assert [at for _, at in queue.renewals] == [15.0, 30.0]


async def test_a_lost_lock_cancels_nothing_is_reported_and_nothing_is_settled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue, ended, errors = FakeQueue("long"), [], []
    queue.renew_error = lambda: MessageLockLostError(message="lost")

    async def handle(message: FakeMessage) -> None:
        await asyncio.sleep(50)
        ended.append(message.message_id)

    async with processor_of(queue, handle, on_error=lambda *given: errors.append(given)):
        await until(lambda: ended)
        await asyncio.sleep(1)
    assert queue.settled == []
    assert len(queue.renewals) == 1
    assert [type(error) for error, _ in errors] == [MessageLockLostError]
    [line] = caplog.messages
    assert line.startswith("orders: message 'long' lost its lock and is delivered again: Message")


async def test_a_renewal_that_finds_no_connection_is_tried_again() -> None:
    queue, failures = FakeQueue("long"), iter([ServiceBusConnectionError(message="gone")])
    queue.renew_error = lambda: next(failures, None)

    async def handle(message: FakeMessage) -> None:
        await asyncio.sleep(30)

    async with processor_of(queue, handle):
        await until(lambda: queue.settled)
    assert [at for _, at in queue.renewals] == [15.0, 20.0]
    assert queue.settled == [("long", "completed")]


async def test_a_settlement_that_fails_is_reported_and_the_processor_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue, failures = FakeQueue("one", "two"), iter([ServiceBusConnectionError(message="gone")])
    queue.settle_error = lambda: next(failures, None)

    async def handle(message: FakeMessage) -> None:
        pass

    async with processor_of(queue, handle):
        await until(lambda: queue.settled)
    assert queue.settled == [("two", "completed")]
    [line] = caplog.messages
    assert "message 'one' is delivered again (complete failed): ServiceBusConnectionError" in line


async def test_it_reconnects_for_ever_with_a_fresh_receiver_and_longer_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = FakeQueue()
    queue.receive_error = lambda: (
        ServiceBusConnectionError(message="refused") if queue.now < 300 else None
    )

    async def handle(message: FakeMessage) -> None:
        pass

    async with processor_of(queue, handle):
        await asyncio.sleep(250)
        attempts = len(queue.receivers)
        assert 12 <= attempts <= 25
        queue.put("late")
        await until(lambda: queue.settled)
    assert queue.now < 335
    assert all(receiver.closed_at is not None for receiver in queue.receivers)
    assert "cannot receive: ServiceBusConnectionError: refused; next attempt in" in caplog.text
    assert caplog.messages[-1] == "orders: receiving again"


async def test_a_replaced_receiver_is_closed_when_its_handlers_have_ended() -> None:
    queue = FakeQueue("slow")
    failures = iter([None, None, OSError(), OSError()])  # opened, received, failed twice

    queue.receive_error = lambda: next(failures, None)

    async def handle(message: FakeMessage) -> None:
        await asyncio.sleep(20)

    async with processor_of(queue, handle, concurrency=2):
        await until(lambda: len(queue.receivers) == 2)
        first, second = queue.receivers
        assert first.closed_at is None
        await until(lambda: queue.settled)
        await asyncio.sleep(1)
        assert first.closed_at == pytest.approx(20, abs=0.1)
        assert second.closed_at is None
    assert queue.settled == [("slow", "completed")]


async def test_a_receive_that_hangs_is_ended_and_its_receiver_replaced() -> None:
    queue, calls = FakeQueue("one"), 0

    async def hang() -> None:
        nonlocal calls
        calls += 1
        if calls <= 2:
            await asyncio.Event().wait()

    queue.before_receive = hang

    async def handle(message: FakeMessage) -> None:
        pass

    async with processor_of(queue, handle):
        await until(lambda: queue.settled)
        assert 2 * RECEIVE_LIMIT_S < queue.now < 2 * RECEIVE_LIMIT_S + 5
        assert len(queue.receivers) == 2


async def test_a_plain_receiver_that_brings_nothing_for_long_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Silently: an idle queue is no failure."""

    async def handle(message: FakeMessage) -> None:
        pass

    for plain, made in ((True, 5), (False, 1)):
        monkeypatch.setattr(
            "twinbus.pairing.receiving.processor.ServiceBusReceiver",
            FakeReceiver if plain else FakeQueue,
        )
        queue = FakeQueue()
        async with processor_of(queue, handle):
            await asyncio.sleep(4.9 * SILENT_S)
            assert len(queue.receivers) == made
            assert [one for one in queue.receivers if one.closed_at is None] == queue.receivers[-1:]
            queue.put("late")
            await until(lambda: queue.settled)  # noqa: B023


async def test_a_stop_waits_for_running_handlers_and_receives_no_more() -> None:
    queue = FakeQueue("one", "two")

    async def handle(message: FakeMessage) -> None:
        await asyncio.sleep(10)

    processor = processor_of(queue, handle, concurrency=1)
    async with processor:
        await asyncio.sleep(1)
        assert "running" in repr(processor)
    assert queue.settled == [("one", "completed")]
    assert len(queue.waiting) == 1
    assert queue.now == pytest.approx(10, abs=0.1)
    assert "stopped" in repr(processor)
    await processor.stop()
    with pytest.raises(ValueError, match="cannot be started again"):
        await processor.__aenter__()


async def test_a_stop_cancels_handlers_that_take_too_long_and_abandons_their_messages(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = FakeQueue("one", "two")

    async def handle(message: FakeMessage) -> None:
        await asyncio.sleep(3_600)

    async with processor_of(queue, handle, concurrency=2, stop_timeout=5):
        await asyncio.sleep(1)
    assert sorted(queue.settled) == [("one", "abandoned"), ("two", "abandoned")]
    assert queue.now == pytest.approx(1 + LAST_RECEIVE_S + 5, abs=0.6)
    assert "orders: stopping cancels 2 handlers" in caplog.messages


async def test_messages_that_come_during_a_stop_are_given_back() -> None:
    queue = FakeQueue()
    handled = []

    async def handle(message: FakeMessage) -> None:
        handled.append(message)

    async with processor_of(queue, handle) as processor:
        await asyncio.sleep(1)
        processor.stop_soon()
        await asyncio.sleep(LAST_RECEIVE_S / 2)
        queue.put("late")
    assert (handled, queue.settled) == ([], [("late", "abandoned")])


async def test_a_stop_of_an_idle_processor_takes_a_moment() -> None:
    queue = FakeQueue()

    async def handle(message: FakeMessage) -> None:
        pass

    async with processor_of(queue, handle):
        await asyncio.sleep(1)
    assert queue.now == pytest.approx(1 + LAST_RECEIVE_S, abs=0.1)


async def test_a_cancelled_run_stops_gracefully_and_a_second_cancellation_hurries() -> None:
    for times, end in ((1, "completed"), (2, "abandoned")):
        queue = FakeQueue("one")

        async def handle(message: FakeMessage) -> None:
            await asyncio.sleep(20)

        run = asyncio.create_task(processor_of(queue, handle).run_until_stopped())
        await asyncio.sleep(1)
        for _ in range(times):
            run.cancel()
            await asyncio.sleep(1)
        with pytest.raises(asyncio.CancelledError):
            await run
        assert queue.settled == [("one", end)]
        assert all(receiver.closed_at is not None for receiver in queue.receivers)


async def test_a_handler_can_stop_the_processor() -> None:
    queue = FakeQueue("one", "two")

    async def handle(message: FakeMessage) -> None:
        await processor.stop()

    processor = processor_of(queue, handle)
    await processor.run_until_stopped()
    assert queue.settled == [("one", "completed")]


async def test_a_processor_that_was_never_started_can_be_stopped() -> None:
    async def handle(message: FakeMessage) -> None:
        pass

    await processor_of(FakeQueue(), handle).stop()


async def test_the_end_of_the_pair_ends_the_processor_with_its_error() -> None:
    queue = FakeQueue("one")

    async def handle(message: FakeMessage) -> None:
        queue.receive_error = lambda: PairClosedError("the pair was closed")

    with pytest.raises(PairClosedError):
        await processor_of(queue, handle).run_until_stopped()
    assert queue.settled == [("one", "completed")]


async def test_sessions_are_handled_in_parallel_and_each_in_order() -> None:
    queue, running, most = FakeQueue(), 0, 0
    handled: list[str] = []
    for session in "abcde":
        queue.put_session(session, *(f"{session}{number}" for number in range(10)))

    async def handle(message: FakeMessage) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1
        handled.append(str(message.message_id))

    async with processor_of(queue, handle, sessions=3, session_idle=2):
        await until(lambda: len(queue.settled) == 50)
    assert most == 3
    for session in "abcde":
        own = [name for name in handled if name[0] == session]
        assert own == [f"{session}{number}" for number in range(10)]
    assert {how for _, how in queue.settled} == {"completed"}
    assert all(receiver.closed_at is not None for receiver in queue.receivers)


async def test_an_idle_session_is_closed_and_a_queue_without_sessions_is_asked_at_a_bounded_rate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = FakeQueue()
    queue.put_session("a", "a0")

    async def handle(message: FakeMessage) -> None:
        pass

    async with processor_of(queue, handle, sessions=1, session_idle=2):
        await asyncio.sleep(10 * ACCEPT_WAIT_S)
    assert queue.receivers[0].closed_at == pytest.approx(2, abs=0.1)
    assert len(queue.receivers) <= 12
    assert caplog.messages == []


async def test_the_lock_of_a_session_is_renewed_and_a_lost_one_settles_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = FakeQueue(lock_s=30.0)
    queue.put_session("a", "a0", "a1")
    failures = iter([None, None, SessionLockLostError(message="lost")])
    queue.renew_error = lambda: next(failures, None)

    async def handle(message: FakeMessage) -> None:
        await asyncio.sleep(25)

    async with processor_of(queue, handle, sessions=1):
        await asyncio.sleep(60)
    assert [at for _, at in queue.renewals] == [15.0, 30.0, 45.0]
    assert queue.settled == [("a0", "completed")]
    assert "orders: the lock of session 'a' was lost: SessionLockLostError: lost" in caplog.messages


async def test_a_stop_ends_sessions_after_their_running_handlers() -> None:
    queue = FakeQueue()
    queue.put_session("a", "a0", "a1")

    async def handle(message: FakeMessage) -> None:
        await asyncio.sleep(10)

    async with processor_of(queue, handle, sessions=2):
        await asyncio.sleep(1)
    assert queue.settled == [("a0", "completed")]
    assert queue.now == pytest.approx(10, abs=0.1)
    assert all(receiver.closed_at is not None for receiver in queue.receivers)


class Asynchronous:
    async def __call__(self, message: FakeMessage) -> None:
        pass

    async def method(self, message: FakeMessage) -> None:
        pass


async def test_a_handler_that_is_not_async_is_refused_in_one_line() -> None:
    async def two(prefix: str, message: FakeMessage) -> None:
        pass

    queue = FakeQueue()
    for good in (Asynchronous(), Asynchronous().method, functools.partial(two, "a")):
        processor_of(queue, good)
    for bad in (lambda message: None, print, None, Asynchronous):
        with pytest.raises(TypeError, match="handler must be an async function") as refused:
            processor_of(queue, bad)
        assert "\n" not in str(refused.value)
