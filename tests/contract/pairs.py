"""Pairs on real brokers, for the contract tests of pairing."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage

from tests.contract.certificates import server_context
from tests.official_sdk import SILENCE_S, async_client, receive_all_async
from twinbus import EmbeddedBroker, Namespace, SendAvailabilityOptions, pair_namespaces
from twinbus.pair import Pair

PATIENCE_S = 60.0
"""How long something that must happen may take on a busy machine."""


def quick(**changes: Any) -> SendAvailabilityOptions:
    """Options that fail over and ping within seconds.

    No attempt that works takes 10 s, on a busy machine either; where a side hangs, give less.
    """
    settings: dict[str, Any] = {
        "backlog_queue_count": 2,
        "failover_interval": 1.0,
        "ping_primary_interval": 1.0,
        "attempt_timeout": 10.0,
        "ledger": "",
    }
    return SendAvailabilityOptions(**{**settings, **changes})


def embedded(
    *namespaces: str,
    queues: Sequence[str] = ("orders",),
    scope: Literal["function", "module"] = "function",
    tls: bool = False,
    **settings: Any,
) -> Any:
    """A fixture: an embedded broker, of two namespaces unless named, with queues in the first."""

    @pytest.fixture(scope=scope)
    def broker() -> Iterator[EmbeddedBroker]:
        names, context = namespaces or ("contoso", "contoso-dr"), server_context() if tls else None
        with EmbeddedBroker(*names, tls=context, **settings) as made:
            for queue in queues:
                made.create_queue(queue)
            yield made

    return broker


def sides(
    broker: EmbeddedBroker, primary: str | None = None, secondary: str | None = None
) -> tuple[Namespace, Namespace]:
    """The primary, with a name of its own so that backlog queues have one, and the secondary."""
    return (
        Namespace.from_connection_string(primary or broker.connection_string("contoso"), "contoso"),
        Namespace.from_connection_string(secondary or broker.connection_string("contoso-dr")),
    )


def paired(
    broker: EmbeddedBroker,
    *,
    primary: str | None = None,
    secondary: str | None = None,
    **options: Any,
) -> Pair:
    """A quick pair of both sides, or of another connection string for one of them."""
    return pair_namespaces(*sides(broker, primary, secondary), quick(**options))


async def drain(
    text: str, queue: str, count: int | None = None, *, wait_s: float = SILENCE_S, **options: Any
) -> list[ServiceBusReceivedMessage]:
    """What a plain receiver gets from a queue until it is empty, or `count` messages."""
    async with async_client(text) as client, client.get_queue_receiver(queue, **options) as source:
        return await receive_all_async(
            source, count=count, wait_s=wait_s, settle=source.complete_message
        )


async def drain_all(text: str, queues: Iterable[str]) -> list[ServiceBusReceivedMessage]:
    """The same of several queues."""
    return [message for queue in queues for message in await drain(text, queue)]


async def until(
    condition: Callable[..., Any], patience_s: float = PATIENCE_S, what: object = "it"
) -> float:
    """Wait until it holds and return how long that took; fail when the patience ends first."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + patience_s, f"not within {patience_s:g} s: {what}"
        await asyncio.sleep(0.01)
    return time.monotonic() - began


def locked_count(broker: EmbeddedBroker, side: str, queue: str = "orders") -> int:
    """How many messages of a queue are locked, as the broker itself knows."""
    found: Any = broker._call(lambda: broker._host.server(side).namespace.resolve(queue))
    count: int = found.locked_count
    return count


def is_twin_used(pair: Any, path: str) -> bool:
    """Whether the pair diverts to the twin of an entity, and not to the backlog."""
    twin = pair.status().entities[path].twin
    return twin is not None and twin.is_used


def bodies(messages: Iterable[ServiceBusReceivedMessage]) -> list[str]:
    return [str(message) for message in messages]


def numbered(count: int) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(f"message {number}") for number in range(count)]


def sockets() -> set[str]:
    """The sockets that this process has open."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        try:
            links.append(Path(f"/proc/self/fd/{number}").readlink())
        except FileNotFoundError:
            continue
    return {str(link) for link in links if str(link).startswith("socket:")}


@contextmanager
def no_thread_left() -> Iterator[None]:
    """Fail if the block leaves a thread or a socket behind."""
    threads, before = set(threading.enumerate()), sockets()
    yield
    # The sync SDK's receivers leave threads that end within a second.
    ends = time.monotonic() + PATIENCE_S
    left: set[object] = {"not looked"}
    while left and time.monotonic() < ends:
        time.sleep(0.02)
        left = {*(set(threading.enumerate()) - threads), *(sockets() - before)}
    assert not left


@contextmanager
def interrupted() -> Iterator[None]:
    """Ctrl-C after half a second in the block: the kernel gives it to the main thread.

    The block begins where the interrupt is caught: elsewhere it would end the run of all tests.
    """
    main = threading.main_thread().ident or 0
    timer = threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.join()


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Fail if the block leaves a task, a thread or a socket behind."""
    gc.collect()
    tasks, threads, open_before = asyncio.all_tasks(), set(threading.enumerate()), sockets()
    yield
    # The loop looks up host names on threads of its own, which end with it, and the test reads
    # what a restarted broker says.
    foreign = ("asyncio_", "Thread-")
    started = {t for t in set(threading.enumerate()) - threads if not t.name.startswith(foreign)}
    left = {*(asyncio.all_tasks() - tasks), *started}
    assert not left, f"left behind: {left}"
    # A broker in this process closes its own ends a moment later.
    await until(lambda: sockets() <= open_before)
