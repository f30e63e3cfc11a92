"""Closing and faulting a pair on real namespaces, and cancelling it at any point (SPEC 7)."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.contract.pairs import (
    drain,
    embedded,
    nothing_left,
    numbered,
    paired,
    quick,
    sides,
    until,
)
from tests.processes import line_of, started
from twinbus import (
    EmbeddedBroker,
    MissingRightError,
    Namespace,
    PairClosedError,
    PairEvent,
    PairFaultedError,
    PairingError,
    PairNotStartedError,
    SideChanged,
    pair_namespaces,
)
from twinbus.broker.faults import Fault
from twinbus.pair import Pair

pytestmark = pytest.mark.contract

STEPS = 16
"""Points at which a thing is cut short, spread over the time that it takes whole."""


broker = embedded(queues=("orders", "silent"), scope="module")


@pytest.fixture(autouse=True)
def _behaving(broker: EmbeddedBroker) -> Iterator[None]:
    yield
    broker.clear_faults()


async def every_call_raises(pair: Pair, sender: Any, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        await sender.send_messages(ServiceBusMessage("x"))
    with pytest.raises(kind, match=match):
        await sender.create_message_batch()
    named = (
        pair.get_queue_sender,
        pair.get_topic_sender,
        pair.get_queue_receiver,
        pair.force_failover,
    )
    for call in named:
        with pytest.raises(kind, match=match):
            call("orders")


@pytest.mark.parametrize("first", ["primary", "secondary"])
async def test_where_the_syphon_runs_the_side_that_does_not_follow_is_faulted(
    broker: EmbeddedBroker, first: str
) -> None:
    told: list[PairEvent] = []
    async with nothing_left(), paired(broker, enable_syphon=True, syphon_poll=1.0) as pair:
        pair.on_event(told.append)
        sender = pair.get_queue_sender("orders")
        await sender.send_messages(ServiceBusMessage("x"))
        began = asyncio.get_running_loop().time()
        await getattr(pair, first).close()
        assert pair.status().faults_in_s is not None
        other = pair.secondary if first == "primary" else pair.primary
        assert other.state == "open"
        await until(lambda: other.state == "faulted")
        assert asyncio.get_running_loop().time() - began >= 5.0
        await every_call_raises(pair, sender, PairFaultedError, "did not follow within 5 s")
        status = pair.status()
        assert status.sides[first].state == "closed"
        assert "did not follow" in str(status)
        assert status.faults_in_s is None
    ends = [(e.side, e.after) for e in told if isinstance(e, SideChanged)]
    follower = "secondary" if first == "primary" else "primary"
    assert ends == [(first, "closed"), (follower, "faulted")]


async def test_a_faulted_side_that_is_followed_faults_nothing_more(broker: EmbeddedBroker) -> None:
    async with nothing_left():
        async with paired(broker, enable_syphon=True, syphon_poll=1.0) as pair:
            pair.secondary.fault(RuntimeError("the region is lost"))
            await pair.primary.close()
            assert pair.status().faults_in_s is None
            assert (pair.primary.state, pair.secondary.state) == ("closed", "faulted")
            with pytest.raises(PairClosedError, match="primary side"):
                pair.get_queue_sender("orders")
        assert pair.status().sides["secondary"].reason == "RuntimeError: the region is lost"


async def test_without_a_syphon_a_faulted_primary_refuses_at_once_and_diverts_nothing(
    broker: EmbeddedBroker,
) -> None:
    async with nothing_left(), paired(broker, attempt_timeout=5.0) as pair:
        sender = pair.get_queue_sender("orders")
        await sender.send_messages(ServiceBusMessage("x"))
        pair.primary.fault(RuntimeError("the key was stolen"))
        began = asyncio.get_running_loop().time()
        await every_call_raises(pair, sender, PairFaultedError, "the key was stolen")
        with pytest.raises(PairFaultedError) as caught:
            await sender.send_messages(ServiceBusMessage("x"))
        assert isinstance(caught.value.__cause__, RuntimeError)
        # One attempt would take longer, and retries come after that.
        assert asyncio.get_running_loop().time() - began < pair.options.attempt_timeout_s
        entity = pair.status().entities["orders"]
        assert (entity.state, entity.diverted) == ("healthy", 0)
        await asyncio.sleep(1.5)
        assert pair.status().entities["orders"].state == "healthy"
        assert pair.secondary.state == "open"
        with pytest.raises(TypeError, match="with an exception; got 'oops'"):
            pair.secondary.fault("oops")  # type: ignore[arg-type]


async def test_without_a_syphon_a_closed_secondary_leaves_the_pair_sending_unprotected(
    broker: EmbeddedBroker,
) -> None:
    async with nothing_left(), paired(broker, retry_total=0) as pair:
        sender = pair.get_queue_sender("orders")
        pair.force_failover("orders")
        await sender.send_messages(ServiceBusMessage("x"))
        pair.mark_healthy("orders")
        await pair.secondary.close()
        await pair.secondary.close()
        status = pair.status()
        assert not status.protected
        assert {queue.state for queue in status.backlog_queues.values()} == {"left out"}
        assert "the secondary is closed: closed by the application" in str(status)
        await sender.send_messages(ServiceBusMessage("y"))
        fault = broker.add_fault(Fault(kind="throttle", entity="orders"))
        with pytest.raises(Exception, match="a fault was injected"):
            await sender.send_messages(ServiceBusMessage("z"))
        broker.remove_fault(fault)
        assert pair.status().entities["orders"].raised == 1


async def test_an_unreachable_namespace_is_neither_closed_nor_faulted(
    broker: EmbeddedBroker,
) -> None:
    async with nothing_left(), paired(broker, enable_syphon=True, syphon_poll=1.0) as pair:
        sender = pair.get_queue_sender("orders")
        fault = broker.add_fault(Fault(kind="drop_before_commit"), "contoso")
        await sender.send_messages(ServiceBusMessage("x"), timeout=15)
        await asyncio.sleep(5.5)
        assert (pair.primary.state, pair.secondary.state) == ("open", "open")
        assert pair.status().entities["orders"].diverted == 1
        broker.remove_fault(fault, "contoso")
    await drain(broker.connection_string("contoso"), "orders")


async def test_close_in_the_block_twice_at_once_and_from_many_tasks(broker: EmbeddedBroker) -> None:
    async def _ended_by(pair: Pair) -> AsyncIterator[PairEvent]:
        stream = pair.events()
        closing = asyncio.create_task(pair.close())
        async for event in stream:
            yield event
        await closing

    async with nothing_left():
        async with paired(broker) as pair:
            sender = pair.get_queue_sender("orders")
            events = [event async for event in _ended_by(pair)]
            await asyncio.gather(*(pair.close() for _ in range(5)))
            with pytest.raises(PairClosedError, match="the pair was closed"):
                await sender.send_messages(ServiceBusMessage("late"))
            await sender.close()
        await pair.close()
        assert [type(event) for event in events] == [SideChanged, SideChanged]
        assert pair.status().sides["primary"].state == "closed"


async def test_a_send_in_flight_ends_and_one_that_comes_later_is_refused(
    broker: EmbeddedBroker,
) -> None:
    async with nothing_left():
        async with paired(broker) as pair:
            sender = pair.get_queue_sender("orders")
            await sender.send_messages(ServiceBusMessage("first"))
            fault = broker.add_fault(Fault(kind="delay", entity="orders", delay_ms=500))
            slow = asyncio.create_task(sender.send_messages(ServiceBusMessage("slow")))
            await asyncio.sleep(0.2)
            closing = asyncio.create_task(pair.close())
            await asyncio.sleep(0)
            with pytest.raises(PairClosedError):
                await sender.send_messages(ServiceBusMessage("late"))
            await slow
            await closing
        broker.remove_fault(fault)
    received = await drain(broker.connection_string("contoso"), "orders")
    assert "slow" in [str(message) for message in received]


async def test_a_close_during_the_start_ends_the_start(broker: EmbeddedBroker) -> None:
    async with nothing_left():
        for turn in range(6):
            pair = Pair(*sides(broker), quick())
            starting = asyncio.create_task(pair.start())
            await asyncio.sleep(turn * 0.01)
            await pair.close()
            results = await asyncio.gather(starting, return_exceptions=True)
            assert isinstance(results[0], PairClosedError | None)
        early = Pair(*sides(broker), quick())
        await early.close()
        with pytest.raises(PairClosedError, match="before it was started"):
            await early.start()


async def test_a_pair_without_a_block_is_started_and_closed(broker: EmbeddedBroker) -> None:
    async with nothing_left():
        pair = pair_namespaces(*sides(broker), quick())
        with pytest.raises(PairNotStartedError, match="the pair was not started"):
            pair.get_queue_sender("orders")
        await pair.start()
        with pytest.raises(PairingError, match="started already"):
            await pair.start()
        await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("by hand"))
        await pair.close()
    received = await drain(broker.connection_string("contoso"), "orders")
    assert "by hand" in [str(message) for message in received]


def run_alone(call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Run a call on an event loop of its own."""
    asyncio.run(call())


async def test_a_pair_says_that_it_belongs_to_another_loop(broker: EmbeddedBroker) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    async with nothing_left(), paired(broker) as pair:
        sender = pair.get_queue_sender("orders")
        calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
            sender.__aenter__,
            lambda: sender.send_messages(ServiceBusMessage("of another loop")),
            lambda: sender.send_messages(numbered(2)),
            lambda: sender.schedule_messages(numbered(1), later),
            lambda: sender.cancel_scheduled_messages(1),
            sender.create_message_batch,
            *(sender.close, pair.close),
        ]
        for call in calls:
            with pytest.raises(PairingError, match="started on another event loop"):
                await asyncio.to_thread(run_alone, call)
        # What was refused changed nothing.
        await sender.send_messages(ServiceBusMessage("mine"))
    received = await drain(broker.connection_string("contoso"), "orders")
    texts = [str(message) for message in received]
    # Tests before this one may have left messages of theirs.
    assert ("mine" in texts, "of another loop" in texts) == (True, False)


async def test_a_start_that_fails_closes_the_pair(broker: EmbeddedBroker) -> None:
    primary, secondary = sides(broker)
    wrong = broker.connection_string("contoso-dr").replace("SharedAccessKey=", "SharedAccessKey=x")
    refused = Namespace.from_connection_string(wrong)
    async with nothing_left():
        with pytest.raises(MissingRightError):
            await pair_namespaces(primary, refused, quick()).start()
        # Neither side is in use any more.
        async with pair_namespaces(primary, secondary, quick()):
            pass


async def _whole(broker: EmbeddedBroker) -> None:
    """A short life of a pair: start, send, divert, receive, close."""
    async with paired(broker, enable_syphon=True, syphon_poll=1.0) as pair:
        async with pair.get_queue_sender("orders") as sender:
            await asyncio.gather(*(sender.send_messages(m) for m in numbered(3)))
            pair.force_failover("orders")
            await asyncio.gather(*(sender.send_messages(m) for m in numbered(3)))
        async with pair.get_queue_receiver("orders", max_wait_time=1) as receiver:
            await receiver.peek_messages(1)


async def test_cancelled_at_any_point_it_leaves_no_task_thread_or_socket(
    broker: EmbeddedBroker,
) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await _whole(broker)
    whole_s = loop.time() - began
    cancelled = 0
    async with nothing_left():
        for step in range(STEPS):
            life = asyncio.create_task(_whole(broker))
            began = loop.time()
            await asyncio.wait({life}, timeout=whole_s * step / STEPS)
            if life.done():
                # The machine has more time for us than it had for the first.
                whole_s = loop.time() - began
            # Twice: a second Ctrl-C must not cut the closing short.
            life.cancel()
            await asyncio.sleep(0.001)
            life.cancel()
            await asyncio.wait({life})
            cancelled += life.cancelled()
    assert cancelled > STEPS // 2


async def test_a_receiver_that_is_cancelled_while_it_says_goodbye_leaves_no_socket(
    broker: EmbeddedBroker,
) -> None:
    """Two cancellations a moment apart make the SDK believe that it has closed its connection."""

    async with nothing_left(), paired(broker) as pair:
        receiver: Any = pair.get_queue_receiver("silent")

        async def receive() -> None:
            async with receiver:
                await receiver.receive_messages(1)

        life = asyncio.create_task(receive())
        await until(lambda: receiver._running)
        connection = receiver._handler._connection
        goodbye = connection.close

        async def slowly() -> None:
            await asyncio.sleep(0.1)
            await goodbye()

        connection.close = slowly
        life.cancel()
        while not life.done() and receiver._handler._session is not None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not life.done()
        life.cancel()
        await asyncio.wait({life})
        # Its own close would find no session, and so nothing to do.
        assert receiver._handler._connection is not None


async def test_a_cancelled_close_of_one_side_goes_on_and_the_pair_waits_for_it(
    broker: EmbeddedBroker,
) -> None:
    async with nothing_left(), paired(broker) as pair:
        sender = pair.get_queue_sender("orders")
        await sender.send_messages(ServiceBusMessage("x"))
        closing = asyncio.create_task(pair.primary.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait({closing})
        assert closing.cancelled()
        assert pair.primary.state == "closed"


PROGRAM = """
import asyncio, sys, threading
from azure.servicebus import ServiceBusMessage
from twinbus import Namespace, SendAvailabilityOptions, pair_namespaces

async def main():
    options = SendAvailabilityOptions(
        backlog_queue_count=2, enable_syphon=True, syphon_poll=1, ledger="")
    primary = Namespace.from_connection_string(sys.argv[1], "contoso")
    async with pair_namespaces(primary, sys.argv[2], options) as pair:
        print("ready", flush=True)
        async with pair.get_queue_sender("orders") as sender:
            while True:
                await sender.send_messages(ServiceBusMessage("x"))
                await asyncio.sleep(0.01)

try:
    asyncio.run(main(), debug=False)
except KeyboardInterrupt:
    left = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
    print("interrupted, left:", left, flush=True)
"""


@pytest.mark.parametrize("wait_s", [None, 0.0, 0.3], ids=["starting", "first send", "sending"])
def test_ctrl_c_in_a_process_of_its_own_ends_it_cleanly(
    broker: EmbeddedBroker, wait_s: float | None
) -> None:
    texts = [broker.connection_string("contoso"), broker.connection_string("contoso-dr")]
    command = ("-W", "error::ResourceWarning", "-c", PROGRAM, *texts)
    with started(*command, stderr=subprocess.PIPE) as process:
        if wait_s is None:
            # Somewhere in the imports or the search for backlog queues: both must end cleanly.
            time.sleep(1.2)
        else:
            assert line_of(process) == "ready\n"
            time.sleep(wait_s)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    if wait_s is not None:
        assert out == "interrupted, left: []\n"
        assert err == ""
        assert process.returncode == 0
    assert "Task was destroyed" not in err
    assert "never retrieved" not in err
