"""One `twinbus serve` for each module of contract tests, and the official SDK's clients."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSender,
)
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.official_sdk import (
    ClosedTogether,
    Faults,
    administration,
    async_administration,
    async_client,
    client,
)
from tests.processes import ServedBroker

RULES = ("--rule", "sender:send-key:Send", "--rule", "listener:listen-key:Listen")
PATIENCE_S = 30.0
"""How long a message that must come may take; on a quiet machine it takes milliseconds."""

QUIET_S = 0.5
"""How long to look for a message that must not come."""


NUMBERS = itertools.count(1)
"""Of new entities: a module's tours share one broker."""

with_both_clients = pytest.mark.parametrize(
    "tour", ["sync", "asyncio"], indirect=True, scope="module"
)
"""Runs a test of `tour` with the synchronous SDK and with that for asyncio."""


class Blocking:
    """An object of the asyncio SDK that is called as its synchronous counterpart is.

    The event loop runs in a thread of its own, so that links live on between the calls.
    """

    def __init__(self, wrapped: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._wrapped, self._loop = wrapped, loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        return self._call(found) if inspect.isroutine(found) else self._presented(found)

    def __enter__(self) -> Any:
        self._call(self._wrapped.__aenter__)()
        return self

    def __exit__(self, *exc: object) -> None:
        self._call(self._wrapped.__aexit__)(*exc)

    def _call(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*arguments: Any, **options: Any) -> Any:
            result = method(*arguments, **options)
            if hasattr(result, "by_page"):
                return [each async for each in result]
            return await result if inspect.isawaitable(result) else result

        def blocking(*arguments: Any, **options: Any) -> Any:
            work = asyncio.run_coroutine_threadsafe(call(*arguments, **options), self._loop)
            return self._presented(work.result())

        return blocking

    def _presented(self, found: Any) -> Any:
        is_async = type(found).__module__.startswith("azure.servicebus.aio")
        return Blocking(found, self._loop) if is_async else found


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            yield loop
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()


@dataclass
class Tour:
    """A broker and one client; what it opens is closed, all at once, when the module is done."""

    broker: ServedBroker
    admin: ServiceBusAdministrationClient
    client: ServiceBusClient
    connect: Callable[..., Any]
    """Makes another client of the same kind from a connection string and options."""
    faults: Faults
    opened: ClosedTogether

    def queue(self, **settings: Any) -> str:
        """A new queue's name."""
        name = f"queue-{next(NUMBERS)}"
        self.admin.create_queue(name, **settings)
        return name

    def topic(self, *subscriptions: str, **settings: Any) -> str:
        """A new topic's name."""
        name = f"topic-{next(NUMBERS)}"
        self.admin.create_topic(name)
        for subscription in subscriptions:
            self.admin.create_subscription(name, subscription, **settings)
        return name

    def sender(self, queue: str) -> ServiceBusSender:
        return self.opened.add(self.client.get_queue_sender(queue))

    def receiver(self, queue: str, **settings: Any) -> ServiceBusReceiver:
        return self.opened.add(self.client.get_queue_receiver(queue, **settings))

    def dead_letters(self, queue: str) -> ServiceBusReceiver:
        return self.receiver(queue, sub_queue="deadletter")

    def pair(self, **settings: Any) -> tuple[ServiceBusSender, ServiceBusReceiver]:
        """A sender to and a receiver of a new queue."""
        name = self.queue(**settings)
        return self.sender(name), self.receiver(name)


def receive(
    receiver: ServiceBusReceiver, count: int, wait_s: float = PATIENCE_S
) -> list[ServiceBusReceivedMessage]:
    """The next `count` messages, fewer when they do not come in time."""
    received: list[ServiceBusReceivedMessage] = []
    while len(received) < count:
        more = receiver.receive_messages(count - len(received), max_wait_time=wait_s)
        if not more:
            break
        received += more
    return received


def receive_one(receiver: ServiceBusReceiver) -> ServiceBusReceivedMessage:
    """The next message."""
    (message,) = receive(receiver, 1)
    return message


def stays_empty(receiver: ServiceBusReceiver) -> bool:
    """Whether nothing comes for a while. Opened first: opening must not use up the while."""
    receiver.__enter__()
    return not receiver.receive_messages(1, max_wait_time=QUIET_S)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    directory: Path = tmp_path_factory.mktemp("broker")
    with ServedBroker(directory, "contoso", options=RULES) as served:
        yield served
        status = served.terminate()
        assert status == 0, served.log()
        assert "Traceback" not in served.log()


@pytest.fixture(scope="module")
def tour(broker: ServedBroker, request: pytest.FixtureRequest) -> Iterator[Tour]:
    text = broker.connection_string()
    with running_loop() as loop:

        def blocking(make: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *arguments, **options: Blocking(make(*arguments, **options), loop)

        clients = (client, administration)
        if getattr(request, "param", "sync") == "asyncio":
            clients = (blocking(async_client), blocking(async_administration))
        connect, administer = clients
        with administer(text) as admin, connect(text) as sdk, ClosedTogether() as opened:
            yield Tour(broker, admin, sdk, connect, Faults(text), opened)
