"""What the testing module gives: a clock and a loop in virtual time, and a fake SDK."""

from __future__ import annotations

import asyncio
import pickle
import socket
import subprocess
import sys
from typing import Any, ClassVar

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

from tests.unit.work import bounded_work
from twinbus import errors
from twinbus.pairing.core.failover import TimerFired
from twinbus.testing import VirtualClock, VirtualLoop, run_virtual
from twinbus.testing.fake_sdk import (
    FakeClient,
    FakeNamespace,
    FakePair,
    FakeReceiver,
    FakeSender,
    FakeSide,
    accepts,
    hangs,
    refuses,
)

pytestmark = pytest.mark.virtual_time


class Ticker:
    """A machine that ticks every second, a given number of times."""

    def __init__(self, ticks: int, first_at: float | None = 1.0, step: float = 1.0) -> None:
        self.timer_at = first_at
        self.left = ticks
        self.step = step

    def handle(self, event: object, now: float) -> list[object]:
        assert event == TimerFired()
        self.left -= 1
        self.timer_at = now + self.step if self.left else None
        return [f"tick {self.left}", News()]


class News:
    announces: ClassVar[bool] = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, News)

    __hash__ = None  # type: ignore[assignment]


def test_timers_fire_at_their_time_and_the_clock_ends_where_it_was_sent() -> None:
    clock = VirtualClock()
    ticker = Ticker(3)
    assert clock.run(ticker, until=0.99) == []
    assert clock.run(ticker, until=2.5) == [(1.0, "tick 2"), (2.0, "tick 1")]
    assert clock.now == 2.5
    assert clock.run(ticker, until=100) == [(3.0, "tick 0")]
    assert clock.now == 100


def test_a_timer_whose_time_has_passed_fires_now() -> None:
    clock = VirtualClock(now=10.0)
    assert clock.run(Ticker(1, first_at=4.0), until=10.0) == [(10.0, "tick 0")]


def test_announcements_are_left_out_unless_asked_for() -> None:
    assert VirtualClock().run(Ticker(1), until=1.0) == [(1.0, "tick 0")]
    with_news = VirtualClock().run(Ticker(1), until=1.0, announcements=True)
    assert with_news == [(1.0, "tick 0"), (1.0, News())]


def test_a_machine_that_makes_no_progress_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.testing.virtual_time.FIRINGS_MAX", 100)
    with pytest.raises(AssertionError, match="100 timers"):
        VirtualClock().run(Ticker(1_000, step=0.0), until=1.0)


def test_time_never_goes_back() -> None:
    clock = VirtualClock(5.0)
    assert clock.advance(1.5) == 6.5
    with pytest.raises(AssertionError):
        clock.advance(-1)
    with pytest.raises(AssertionError):
        clock.run(Ticker(1), until=6.0)


@pytest.mark.parametrize(
    "error",
    [
        errors.BacklogMessageTooLargeError(size_bytes=300, overhead_bytes=70, limit_bytes=256),
        errors.ReservedPropertyError("x-ms-path"),
        errors.ScheduleUnknownError("lost", message_ids=["a", "b"]),
        errors.PartialDivertError("half", stored_ids=["a"], not_stored_ids=["b"]),
        errors.BacklogUnavailableError("none", primary_error=None, queue_errors={"q": "full"}),
        errors.EntityUnusableError("gone"),
        errors.AliasTypeError("odd"),
    ],
)
def test_an_error_crosses_a_process_border_whole(error: errors.TwinbusError) -> None:
    revived = pickle.loads(pickle.dumps(error))
    assert type(revived) is type(error)
    assert str(revived) == str(error)
    assert revived.__dict__ == error.__dict__


def test_error_texts_name_the_thing_the_limit_and_the_value() -> None:
    too_large = errors.BacklogMessageTooLargeError(
        size_bytes=262_100, overhead_bytes=90, limit_bytes=262_144
    )
    for number in ("262100", "90", "262144", "262054"):
        assert number in str(too_large)
    assert "'x-ms-path'" in str(errors.ReservedPropertyError("x-ms-path"))
    partial = errors.PartialDivertError("half", stored_ids=["a"], not_stored_ids=["b"])
    assert partial.message_ids == ("a", "b")


def test_a_day_of_waiting_takes_no_time_and_comes_in_order() -> None:
    order: list[str] = []

    async def wait(name: str, hours: float) -> None:
        await asyncio.sleep(hours * 3600)
        order.append(name)

    async def work() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.gather(wait("late", 24), wait("early", 1), wait("between", 2))
        return loop.time() - began

    with bounded_work(1):
        assert run_virtual(work()) == 24 * 3600
    assert order == ["early", "between", "late"]


def test_waiting_for_what_never_comes_is_an_error() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    with pytest.raises(AssertionError, match="nothing can happen"):
        run_virtual(work())


def test_a_task_that_is_left_behind_is_an_error() -> None:
    async def work() -> asyncio.Task[None]:
        return asyncio.create_task(asyncio.sleep(5))

    with pytest.raises(AssertionError, match="left behind"):
        run_virtual(work())


def test_what_is_ready_on_a_socket_comes_before_time_moves() -> None:
    async def work() -> tuple[bytes, float]:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.send(b"here")
            began = loop.time()
            async with asyncio.timeout(60):
                return await loop.sock_recv(ours, 10), loop.time() - began

    assert run_virtual(work()) == (b"here", 0.0)


def test_jumps_count_how_often_time_moved() -> None:
    async def work(naps: int) -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        before = loop.jumps
        for _ in range(naps):
            await asyncio.sleep(0.1)
        return loop.jumps - before

    assert [run_virtual(work(naps)) for naps in (0, 1, 7)] == [0, 1, 7]


@pytest.mark.parametrize(
    ("fake", "real"),
    [
        (FakeClient, ServiceBusClient),
        (FakeSender, ServiceBusSender),
        (FakeReceiver, ServiceBusReceiver),
    ],
)
def test_every_public_method_is_one_of_the_sdk(fake: type, real: type) -> None:
    methods = [name for name in vars(fake) if not name.startswith("_")]
    assert methods
    assert [name for name in methods if not callable(getattr(real, name, None))] == []


async def test_an_entity_takes_refuses_or_hangs_as_the_test_says() -> None:
    side = FakeSide(by_entity={"dead": refuses, "stuck": hangs})
    client: Any = FakeNamespace("contoso", side).client(retry_total=0)
    await client.get_queue_sender("orders").send_messages("one")
    with pytest.raises(ConnectionRefusedError):
        await client.get_queue_sender("dead").send_messages("two")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(30):
            await client.get_topic_sender("stuck").send_messages("three")
    assert side.took == [("orders", "one")]
    assert (side.opened, side.busy, side.busiest) == (3, 0, 1)


async def test_two_calls_on_one_sender_at_once_are_an_error_of_the_caller() -> None:
    sender = FakeClient(FakeSide(behaviour=hangs).connect).get_queue_sender("orders")
    first = asyncio.create_task(sender.send_messages("one"))
    await asyncio.sleep(1)
    with pytest.raises(AssertionError, match="two calls"):
        await sender.send_messages("two")
    first.cancel()
    await asyncio.wait({first})


async def test_a_receiver_peeks_what_was_sent_and_not_drained() -> None:
    side = FakeSide()
    client = FakeClient(side.connect)
    for body in ("a", "b", "c"):
        await client.get_queue_sender("orders").send_messages(ServiceBusMessage(body))
    receiver = client.get_queue_receiver("orders")
    await receiver.__aenter__()
    with pytest.raises(AssertionError, match="lock a message"):
        await receiver.peek_messages(10, sequence_number=1)
    receiver._prefetch_count = -1
    side.drained = 1
    found = await receiver.peek_messages(10, sequence_number=1)
    assert [str(message) for message in found] == ["b", "c"]


async def test_a_fake_pair_diverts_and_returns_in_virtual_time() -> None:
    pair = FakePair(failover_interval=10.0, ping_primary_interval=60.0)
    pair.primary.behaviour = refuses
    sender = pair.client.get_queue_sender("orders")
    await sender.send_messages(ServiceBusMessage("x"), timeout=60)
    assert (pair.elapsed, pair.state()) == (10.0, "failed over")
    assert [path for path, _ in pair.secondary.took] == ["contoso/x-servicebus-transfer/0"]
    pair.primary.behaviour = accepts
    await asyncio.sleep(61)
    assert pair.state() == "healthy"
    await pair.client.close()


def test_importing_the_fakes_loads_nothing_of_azure() -> None:
    script = (
        "import sys, twinbus.testing.fake_sdk\n"
        "print(sorted(name for name in sys.modules if name.startswith('azure')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
