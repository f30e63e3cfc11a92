"""The near end of a cable: a pair, a gateway and its clients, a syphon, a Spark drain."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from tests.cables.far import QUEUE
from tests.cables.world import BACKLOG, PRIMARY, SECONDARY, Result, World, stored
from tests.gateway.gateway_process import GatewayProcess
from tests.official_sdk import administration
from twinbus import Namespace, SendAvailabilityOptions, pair_namespaces
from twinbus.syphon.core.pacing import Rate
from twinbus.syphon.draining import DrainProgress, drain

CALM_S = 2.0
"""Before a fault."""

SEND_EVERY_S = 0.05
CALL_S = 12.0
"""The time that each send gives its call."""

GRACE_S = 5.0
"""A call that ends later than its time by more is late: the machine may be busy."""

ARRIVAL_S = 60.0
"""No promise: the time after a fault in which everything has to arrive, locks aside. What was on
its way to a receiver comes again when its lock ends, and may be lost on its way again."""

SENDERS = 20
"""Of a gateway's client: the SDK's sender takes one call at a time."""

CALLS = 400
"""Of a paired sender, which takes many at once."""

DRAINED_PER_S = 40.0
"""Slow enough that a fault comes in the middle."""


async def pair(world: World) -> None:
    """A pair that syphons, and one guarded receiver of it."""
    async with pair_namespaces(*sides(), options(enable_syphon=True)) as paired:
        sender = paired.get_queue_sender(QUEUE)
        await live(world, [sender] * CALLS, paired.get_queue_receiver(QUEUE, guard=True))


async def gateway(world: World) -> None:
    """A gateway in a process of its own, and clients of the official SDK."""
    with tempfile.TemporaryDirectory() as directory:
        extra = ("--label", "contoso", "--quiet")
        gate = GatewayProcess(Path(directory), PRIMARY, SECONDARY, extra)
        await asyncio.to_thread(gate.start)
        try:
            async with ServiceBusClient.from_connection_string(
                gate.connection_string(), retry_total=0
            ) as client:
                senders = [client.get_queue_sender(QUEUE) for _ in range(SENDERS)]
                await live(world, senders, client.get_queue_receiver(QUEUE))
        finally:
            await asyncio.to_thread(gate.terminate)


async def live(world: World, senders: list[Any], receiver: Any) -> None:
    """Send and receive in the calm and in the fault, until everything has come.

    After the fault they must go on by themselves: nothing here opens them again.
    """
    async with AsyncExitStack() as stack:
        for each in dict.fromkeys((receiver, *senders)):
            await stack.enter_async_context(each)
        await lived(world, senders, receiver)


async def lived(world: World, senders: list[Any], receiver: Any) -> None:
    result, stopping = world.result, asyncio.Event()
    receiving = asyncio.create_task(receive(receiver, result))
    sending = asyncio.create_task(send(senders, result, stopping))
    await asyncio.sleep(CALM_S)
    await world.suffer()
    stopping.set()
    await sending
    ends = time.monotonic() + ARRIVAL_S + 3 * world.lock_s
    while not result.ids <= result.received and time.monotonic() < ends:
        if receiving.done():
            receiving.result()
        await asyncio.sleep(0.2)
    receiving.cancel()
    with suppress(asyncio.CancelledError):
        await receiving
    if missing := result.ids - result.received:
        result.held = len(missing & await stored())
        result.lost = len(missing) - result.held


async def send(senders: list[Any], result: Result, stopping: asyncio.Event) -> None:
    """Send, each time with a sender that waits for no other call; count calls that are late."""
    free = list(senders)

    async def call(sender: Any, name: str) -> None:
        began = time.monotonic()
        try:
            await sender.send_messages(ServiceBusMessage(name, message_id=name), timeout=CALL_S)
        except Exception:  # noqa: BLE001 - whatever it is, the caller has the message still
            result.refused += 1
        else:
            result.accepted += 1
            result.ids.add(name)
        took_s = time.monotonic() - began
        result.longest_s = max(result.longest_s, took_s)
        result.late += took_s > CALL_S + GRACE_S
        free.append(sender)

    number = 0
    async with asyncio.TaskGroup() as group:
        while not stopping.is_set():
            if free:
                number += 1
                group.create_task(call(free.pop(), f"m{number}"))
            await asyncio.sleep(SEND_EVERY_S)


async def receive(receiver: Any, result: Result) -> None:
    while True:
        messages: list[Any] = []
        try:
            messages = await receiver.receive_messages(50, max_wait_time=5)
        except Exception:  # noqa: BLE001 - the SDK's own receiver tells that its link has ended
            result.broken += 1
            await asyncio.sleep(SEND_EVERY_S)
        for message in messages:
            result.received.add(str(message.message_id))
            try:
                await receiver.complete_message(message)
            except Exception:  # noqa: BLE001 - what is not settled comes again
                result.unsettled += 1


async def syphon(world: World) -> None:
    """A syphon that drains a backlog."""

    async def work(on_progress: Callable[[DrainProgress], None]) -> None:
        rate = Rate(DRAINED_PER_S)
        await drain(*sides(), BACKLOG, options=options(), rate=rate, on_progress=on_progress)

    await drained(world, work)


async def spark(world: World) -> None:
    """A Spark job that drains a backlog with two tasks."""
    from tests.spark.drain_driver import SETTINGS
    from twinbus.pipeline.drain.drain import drain as drain_by_spark
    from twinbus.pipeline.spark.session import spark_session

    stop = threading.Event()

    def run(on_progress: Callable[[DrainProgress], None]) -> None:
        with spark_session(master="local[2]", settings=SETTINGS) as session:
            drain_by_spark(
                session,
                *sides(),
                BACKLOG,
                options=options(),
                rate_per_s=DRAINED_PER_S,
                on_progress=on_progress,
                stop=stop,
            )

    async def work(on_progress: Callable[[DrainProgress], None]) -> None:
        try:
            await asyncio.to_thread(run, on_progress)
        finally:
            stop.set()

    await drained(world, work)


Work = Callable[[Callable[[DrainProgress], None]], Coroutine[Any, Any, None]]


async def drained(world: World, work: Work) -> None:
    """Drain a backlog while the fault comes and goes; then everything has to be in the primary.

    The longest call is the time from the end of the fault to that of the drain.
    """
    result, moving = world.result, asyncio.Event()
    loop = asyncio.get_running_loop()
    result.ids = await filled(world)
    result.accepted = len(result.ids)

    def on_progress(progress: DrainProgress) -> None:
        if progress.forwarded:
            loop.call_soon_threadsafe(moving.set)

    draining = asyncio.create_task(work(on_progress))
    begun = asyncio.create_task(moving.wait())
    await asyncio.wait({draining, begun}, return_when=asyncio.FIRST_COMPLETED)
    assert not draining.done(), "the drain ended before the fault"
    await world.suffer()
    assert not draining.done(), "the drain ended in the fault"
    began = time.monotonic()
    try:
        async with asyncio.timeout(ARRIVAL_S + 3 * world.lock_s):
            await draining
    except TimeoutError:
        result.late += 1
    result.longest_s = time.monotonic() - began
    result.received = await stored(in_secondary=False)
    if missing := result.ids - result.received:
        result.held = len(missing & await stored(in_primary=False))
        result.lost = len(missing) - result.held


async def filled(world: World) -> set[str]:
    """Divert messages; the ids of all that were accepted."""
    lock = timedelta(seconds=world.lock_s)
    await asyncio.to_thread(make_backlog_queues, lock)
    names = {f"m{number}" for number in range(int(DRAINED_PER_S * (CALM_S + world.fault_s) + 200))}
    async with pair_namespaces(*sides(), options()) as paired:
        sender = paired.get_queue_sender(QUEUE)
        paired.force_failover(QUEUE)
        await asyncio.gather(
            *(sender.send_messages(ServiceBusMessage(name, message_id=name)) for name in names)
        )
    return names


def make_backlog_queues(lock: timedelta) -> None:
    """Backlog queues with a lock that is shorter than a pair would make it."""
    with administration(SECONDARY) as admin:
        for queue in BACKLOG:
            admin.create_queue(
                queue,
                lock_duration=lock,
                max_delivery_count=2**31 - 1,
                dead_lettering_on_message_expiration=True,
            )


def sides() -> tuple[Namespace, Namespace]:
    return (
        Namespace.from_connection_string(PRIMARY, "contoso"),
        Namespace.from_connection_string(SECONDARY),
    )


def options(**more: Any) -> SendAvailabilityOptions:
    return SendAvailabilityOptions(
        backlog_queue_count=len(BACKLOG),
        failover_interval=1.0,
        ping_primary_interval=1.0,
        attempt_timeout=3.0,
        ledger="",
        **more,
    )


SUBJECTS: dict[str, Callable[[World], Coroutine[Any, Any, None]]] = {
    "pair": pair,
    "gateway": gateway,
    "syphon": syphon,
    "Spark drain": spark,
}
