"""The processors of a pair, in virtual time: their state, and how they end with the pair."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from tests.unit.pairing.receiving.fake_queue import FakeMessage, FakeQueue
from twinbus.errors import DeadLetterError, PairClosedError, PairFaultedError
from twinbus.pairing.receiving.processor import Processor
from twinbus.pairing.receiving.processors import SETTLING_S, PairedProcessors
from twinbus.status.receiving import ProcessorStatus

pytestmark = pytest.mark.virtual_time

CLOSED = PairClosedError("the pair was closed")


def started(queue: FakeQueue, handler: Any, owner: PairedProcessors, **options: Any) -> Processor:
    processor = Processor(queue.get_receiver, handler, name="orders", owner=owner, **options)
    processor._start()
    return processor


async def work(message: FakeMessage) -> None:
    match message.message_id:
        case "bad":
            raise ValueError("no such customer")
        case "ugly":
            raise DeadLetterError("unreadable")
    await asyncio.sleep(10)


async def test_the_processors_of_one_queue_are_one_row_also_after_their_end() -> None:
    processors, queue = PairedProcessors(), FakeQueue("good", "bad", "ugly", "also good")
    first = started(queue, work, processors, concurrency=4)
    second = started(FakeQueue(), work, processors, concurrency=2)
    await asyncio.sleep(5)
    row = ProcessorStatus(path="orders", failed=1, dead_lettered=1)
    assert processors.status() == {"orders": _with(row, running=2, concurrency=6, handling=2)}
    await asyncio.sleep(10)
    await second.stop()
    assert processors.status() == {"orders": _with(row, running=1, concurrency=4, handled=2)}
    await first.stop()
    assert processors.status() == {"orders": _with(row, handled=2)}
    assert not processors.are_running


async def test_a_close_waits_for_handlers_and_settles_their_messages() -> None:
    processors, queue = PairedProcessors(), FakeQueue("one", "two")
    run = asyncio.create_task(started(queue, work, processors, concurrency=2).run_until_stopped())
    await asyncio.sleep(1)
    await processors.stop(CLOSED)
    assert queue.settled == [("one", "completed"), ("two", "completed")]
    assert 10 <= queue.now < 12
    assert all(receiver.closed_at is not None for receiver in queue.receivers)
    with pytest.raises(PairClosedError):
        await run
    assert processors.status()["orders"].error == "", "a closed pair is no trouble"


async def test_a_handler_that_takes_longer_than_its_timeout_is_cancelled() -> None:
    processors, queue = PairedProcessors(), FakeQueue("one")

    async def stuck(message: FakeMessage) -> None:
        await asyncio.sleep(1_000)

    started(queue, stuck, processors, stop_timeout=3)
    await asyncio.sleep(1)
    await processors.stop(CLOSED)
    assert queue.settled == [("one", "abandoned")]
    assert queue.now < 6


async def test_a_hurried_close_cancels_handlers_at_once() -> None:
    processors, queue = PairedProcessors(), FakeQueue("one")
    started(queue, work, processors, stop_timeout=3_600)
    await asyncio.sleep(1)
    stopping = asyncio.create_task(processors.stop(CLOSED))
    await asyncio.sleep(1)
    processors.hurry()
    await stopping
    assert queue.settled == [("one", "abandoned")]
    assert queue.now < 4


class NeverStops(Processor):
    async def stop(self) -> None:
        await asyncio.sleep(10_000)


async def test_the_bound_holds_for_a_processor_that_does_not_stop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    processors, queue = PairedProcessors(), FakeQueue()
    handler: Any = work
    hangs = NeverStops(queue.get_receiver, handler, name="orders", owner=processors, stop_timeout=3)
    hangs._start()
    await processors.stop(CLOSED)
    assert queue.now == pytest.approx(3 + SETTLING_S, abs=1)
    assert "orders: not stopped within 63 s; the pair is closed" in caplog.text
    await Processor.stop(hangs)
    await asyncio.sleep(0)  # The cancelled stop ends.


async def test_a_handler_that_refuses_to_end_does_not_hold_up_the_close() -> None:
    processors, queue = PairedProcessors(), FakeQueue("one")
    may_end = False

    async def stubborn(message: FakeMessage) -> None:
        while not may_end:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1)

    processor = started(queue, stubborn, processors, stop_timeout=3)
    await asyncio.sleep(1)
    await processors.stop(CLOSED)
    stopped_at, may_end = queue.now, True
    await processor.stop()
    await asyncio.sleep(2)
    assert stopped_at < 1 + 3 + SETTLING_S


async def test_a_handler_that_closes_the_pair_is_not_waited_for() -> None:
    processors, queue, ended = PairedProcessors(), FakeQueue("one"), asyncio.Event()

    async def closes(message: FakeMessage) -> None:
        await processors.stop(CLOSED, asyncio.current_task())
        ended.set()

    processor = started(queue, closes, processors)
    await ended.wait()
    assert queue.now < 1
    await processor.stop()
    assert queue.settled == [("one", "completed")]


async def test_a_processor_that_ends_by_itself_says_why_until_another_one_runs() -> None:
    processors, queue = PairedProcessors(), FakeQueue()
    queue.receive_error = lambda: PairFaultedError("the primary side was faulted")
    started(queue, work, processors)
    await asyncio.sleep(30)
    assert "the primary side was faulted" in processors.status()["orders"].error
    other = started(FakeQueue(), work, processors)
    assert processors.status()["orders"].error == ""
    await other.stop()


def _with(row: ProcessorStatus, **changes: int) -> ProcessorStatus:
    known = {name: getattr(row, name) for name in ("failed", "dead_lettered")}
    return ProcessorStatus(path=row.path, **{**known, **changes})
