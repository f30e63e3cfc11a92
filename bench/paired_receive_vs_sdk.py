"""Receive and complete: a paired receiver, which reads the queue and its twin, against the SDK's.

A round receives 1 KB messages in calls of up to 100, reads the id and the body of each, and
completes it; both sides wait until the service has confirmed that. The figure is how many messages
the client receives and completes in a second of its own processor time, all threads together, the
ledger's included, when it awaits one completion after the other. The note has the same ratio for
completions that are awaited together (`gather`), and for the blocking receivers, one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure import servicebus
from azure.servicebus import ServiceBusMessage, aio

from bench.broker_send_vs_rabbitmq import CONNECTION_STRING, Twinbus
from bench.harness import Progress, Sides
from bench.paired_sides import DATA, QUEUE, UNIT, serving
from twinbus import Namespace, SendAvailabilityOptions, blocking
from twinbus.pair import Pair
from twinbus.servicebus.twins import twin_mark

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

__all__ = ["UNIT", "sides"]

MESSAGES = 1_000
"""Of one round and one way."""

CALL = 100
"""The most messages of one receive call."""

BODY = b"x" * 1_024
LABEL = "bench"
LIMIT_S = 120.0
WAIT_S = 20.0

ONE_BY_ONE, GATHERED, BLOCKING = "one by one", "gathered", "blocking"

_numbers = itertools.count()


@contextlib.contextmanager
def sides(progress: Progress) -> Iterator[Sides]:
    """A queue with a twin, and receivers of both sides."""
    DATA.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="receive-", dir=DATA) as directory:
        home = Path(directory)
        with serving(progress, home) as strings:
            found = CONNECTION_STRING.search(strings[1])
            assert found is not None
            Twinbus(*found.groups()).declare_queue(QUEUE, twin_mark(LABEL))
            rounds = Rounds(*strings, home)
            yield Sides(ours=rounds.ours, peer=rounds.peer, note=rounds.note)


class Rounds:
    """Rounds of both sides in each way, and their rates."""

    def __init__(self, primary: str, secondary: str, home: Path) -> None:
        self._primary = primary
        self._home = home
        self._namespaces = (
            Namespace.from_connection_string(primary, LABEL),
            Namespace.from_connection_string(secondary),
        )
        self._ours: list[dict[str, float]] = []
        self._peer: list[dict[str, float]] = []

    def ours(self) -> float:
        rates = asyncio.run(self._ours_async())
        with blocking.Pair(*self._namespaces, self._options("blocking")) as pair:
            self._fill()
            with pair.get_queue_receiver(QUEUE) as receiver:
                rates[BLOCKING] = _timed_blocking(receiver, lambda: _flush(pair._core))
        self._ours.append(rates)
        return rates[ONE_BY_ONE]

    def peer(self) -> float:
        rates = asyncio.run(self._peer_async())
        self._fill()
        with (
            servicebus.ServiceBusClient.from_connection_string(self._primary) as client,
            client.get_queue_receiver(QUEUE) as receiver,
        ):
            rates[BLOCKING] = _timed_blocking(receiver, lambda: None)
        self._peer.append(rates)
        return rates[ONE_BY_ONE]

    def note(self) -> str:
        """The ratios of the other ways, without the first round, which warms up."""
        return (
            f"gathered {self._ratio(GATHERED)}, blocking one by one {self._ratio(BLOCKING)};"
            f" azure-servicebus, {len(BODY)} bytes, calls of {CALL}, a twin, ledger on"
        )

    def _ratio(self, way: str) -> str:
        pairs = zip(self._ours[1:], self._peer[1:], strict=True)
        ratios = [ours[way] / peer[way] for ours, peer in pairs]
        return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"

    async def _ours_async(self) -> dict[str, float]:
        rates = {}
        async with Pair(*self._namespaces, self._options("asyncio")) as pair:
            for way, complete in _WAYS.items():
                self._fill()
                async with pair.get_queue_receiver(QUEUE) as receiver:
                    rates[way] = await _timed(receiver, complete, lambda: _flush(pair))
        return rates

    async def _peer_async(self) -> dict[str, float]:
        rates = {}
        for way, complete in _WAYS.items():
            self._fill()
            async with (
                aio.ServiceBusClient.from_connection_string(self._primary) as client,
                client.get_queue_receiver(QUEUE) as receiver,
            ):
                rates[way] = await _timed(receiver, complete, lambda: None)
        return rates

    def _options(self, name: str) -> SendAvailabilityOptions:
        ledger = str(self._home / f"ledger-{name}")
        return SendAvailabilityOptions(backlog_queue_count=1, ledger=ledger, twins=[QUEUE])

    def _fill(self) -> None:
        with (
            servicebus.ServiceBusClient.from_connection_string(self._primary) as client,
            client.get_queue_sender(QUEUE) as sender,
        ):
            for _ in range(MESSAGES // CALL):
                sender.send_messages(
                    [
                        ServiceBusMessage(BODY, message_id=f"message-{next(_numbers):08d}")
                        for _ in range(CALL)
                    ]
                )


def _flush(pair: Pair) -> None:
    recorder = pair._recorder
    assert recorder is not None
    assert recorder.is_on, "the ledger is part of the price"
    recorder.ledger.flush()


async def _one_by_one(receiver: Any, messages: list[Any]) -> None:
    for message in messages:
        await receiver.complete_message(message)


async def _gathered(receiver: Any, messages: list[Any]) -> None:
    await asyncio.gather(*(receiver.complete_message(message) for message in messages))


_WAYS: dict[str, Callable[[Any, list[Any]], Awaitable[None]]] = {
    ONE_BY_ONE: _one_by_one,
    GATHERED: _gathered,
}


async def _timed(
    receiver: Any, complete: Callable[[Any, list[Any]], Awaitable[None]], end: Callable[[], None]
) -> float:
    handled = 0
    gc.collect()
    used = time.process_time()
    async with asyncio.timeout(LIMIT_S):
        while handled < MESSAGES:
            messages = await receiver.receive_messages(CALL, max_wait_time=WAIT_S)
            _read(messages)
            await complete(receiver, messages)
            handled += len(messages)
    end()
    return MESSAGES / (time.process_time() - used)


def _timed_blocking(receiver: Any, end: Callable[[], None]) -> float:
    handled, until = 0, time.monotonic() + LIMIT_S
    gc.collect()
    used = time.process_time()
    while handled < MESSAGES:
        assert time.monotonic() < until, f"{handled} of {MESSAGES} in {LIMIT_S:g} s"
        messages = receiver.receive_messages(CALL, max_wait_time=WAIT_S)
        _read(messages)
        for message in messages:
            receiver.complete_message(message)
        handled += len(messages)
    end()
    return MESSAGES / (time.process_time() - used)


def _read(messages: list[Any]) -> None:
    """Read what an application reads of every message."""
    for message in messages:
        assert message.message_id is not None
        assert b"".join(message.body) == BODY
