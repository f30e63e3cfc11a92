"""Clients that take much of a broker or gateway, each in a process of its own, for `fairness`."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import ssl
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from twinbus.amqp.events import Attached, CreditChanged, Disposed, Event
from twinbus.amqp.message import BATCH_FORMAT, encode_message
from twinbus.amqp.performatives import Source, Target
from twinbus.client.connection import NamespaceConnection
from twinbus.namespace.access import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Protocol

    class Flag(Protocol):
        """Told when a client makes its noise."""

        def set(self) -> None: ...


EMPTY = b"\x00\x53\x75\xa0\x00"
"""A message without any section, in a batch."""

BATCH_MESSAGES = 4_500
RECEIVERS_OF_ONE = 2_500
"""Of one connection: 5,000 would have more than its 16 MiB."""

CONNECTIONS_OF_ONE = 2
"""Of one queue: it takes 5,000 receivers."""

IN_FLIGHT = 50
HANDSHAKES_AT_ONCE = 16
READY_S = 120.0
STOP_S = 10.0


def empty_batches(connection_string: str, queue: str, ready: Flag) -> None:
    """Send one batch after the other, each when the last one is answered."""
    asyncio.run(_send(connection_string, queue, EMPTY * BATCH_MESSAGES, 1, ready))


def small_messages(connection_string: str, queue: str, ready: Flag) -> None:
    """Keep many sends in flight, to an entity that answers or hangs, or to a topic."""
    message = encode_message(application_properties={"kind": "noise"}, data=bytes(100))
    asyncio.run(_send(connection_string, queue, message, IN_FLIGHT, ready))


async def _send(
    connection_string: str, queue: str, payload: bytes, window: int, ready: Flag
) -> None:
    happened = asyncio.Event()
    is_batch, under_way = payload.startswith(EMPTY), 0

    def on_event(event: Event) -> None:
        nonlocal under_way
        if isinstance(event, Disposed) and event.by_receiver:
            under_way -= len(event.session.take_unsettled(event.first, event.last))
        if isinstance(event, (Disposed, CreditChanged)):
            happened.set()

    line = NamespaceConnection(Endpoint.parse(connection_string), on_event)
    await line.open()
    await line.authorize(queue)
    link = line.session.attach_sender("noise", source=Source(), target=Target(address=queue))
    line.flush()
    ready.set()
    while True:
        while under_way < window and link.credit:
            link.send(payload, b"n", message_format=BATCH_FORMAT if is_batch else 0)
            under_way += 1
        line.flush()
        await happened.wait()
        happened.clear()


def idle_receivers(connection_string: str, queues: str, ready: Flag) -> None:
    """Open so many receivers on each of the queues, and give none of them credit."""
    asyncio.run(_receive(connection_string, CONNECTIONS_OF_ONE * queues.split(","), ready))


async def _receive(connection_string: str, queues: list[str], ready: Flag) -> None:
    lines = []
    for queue in queues:
        happened, count = asyncio.Event(), 0

        def on_event(event: Event, happened: asyncio.Event = happened) -> None:
            nonlocal count
            if isinstance(event, Attached):
                count += 1
                if count == RECEIVERS_OF_ONE:
                    happened.set()

        line = NamespaceConnection(Endpoint.parse(connection_string), on_event)
        await line.open()
        await line.authorize(queue)
        for number in range(RECEIVERS_OF_ONE):
            session = await line.session_with_room()
            source, target = Source(address=queue), Target(address="noise")
            session.attach_receiver(f"r{number}", source=source, target=target)
            if not number % 100:
                line.flush()
        line.flush()
        await happened.wait()
        lines.append(line)
    ready.set()
    await asyncio.Event().wait()


def computing(_target: str, _queue: str, ready: Flag) -> None:
    """Ask nothing of the broker and keep a core busy: what any third program costs on two."""
    ready.set()
    while True:
        sum(range(1_000))


def handshakes(address: str, _queue: str, ready: Flag) -> None:
    """Open one TLS connection after the other, some at once, and close each."""
    asyncio.run(_shake_hands(address, ready))


async def _shake_hands(address: str, ready: Flag) -> None:
    host, port = address.split(":")
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    ready.set()

    async def again_and_again() -> None:
        while True:
            _, writer = await asyncio.open_connection(host, int(port), ssl=trusting)
            writer.transport.abort()

    await asyncio.gather(*(again_and_again() for _ in range(HANDSHAKES_AT_ONCE)))


@contextmanager
def made(
    noise: Callable[[str, str, Flag], None],
    target: str,
    queue: str,
    *,
    gives_way: bool,
    count: int = 1,
) -> Iterator[None]:
    """Have so many clients make this noise for the length of the block.

    A client that gives way takes only the processor time that all others leave, as one on another
    machine would. That holds for those of its own session.
    """
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(_client(noise, target, queue, gives_way=gives_way))
        yield


@contextmanager
def _client(
    noise: Callable[[str, str, Flag], None], target: str, queue: str, *, gives_way: bool
) -> Iterator[None]:
    spawning = multiprocessing.get_context("spawn")
    ready = spawning.Event()
    given = (noise, target, queue, ready, gives_way)
    client = spawning.Process(target=_make, args=given, daemon=True)
    client.start()
    try:
        assert ready.wait(READY_S), f"{noise.__name__} did not begin"
        yield
        assert client.is_alive(), f"{noise.__name__} ended"
    finally:
        client.terminate()
        client.join(STOP_S)


class _ReadyToGiveWay:
    """A flag of a client that gives way from then on: to connect it would take minutes so."""

    def __init__(self, ready: Flag) -> None:
        self._ready = ready

    def set(self) -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        self._ready.set()


def _make(
    noise: Callable[[str, str, Flag], None], target: str, queue: str, ready: Flag, gives_way: bool
) -> None:
    noise(target, queue, _ReadyToGiveWay(ready) if gives_way else ready)
