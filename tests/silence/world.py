"""Guarded receivers and plain receivers of the SDK, a fault, and a message for each afterwards.

Each receiver has a queue of its own. A program that uses one calls it for ever; the half of them
iterates, the others call `receive_messages`. One that gets an error makes another receiver, as a
careful program does: what counts as silent is only a receiver that says nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from typing import Any, Final

from tests.contract.pairs import until
from tests.official_sdk import async_client
from tests.silence.faults import FAULTS, Stricken, make_half_open
from tests.silence.proxy import SilentProxy
from twinbus import EmbeddedBroker, Namespace, SendAvailabilityOptions, pair_namespaces
from twinbus.broker.descriptions import QueueDescription
from twinbus.client.in_flight import Wire
from twinbus.client.links import UpstreamConnection
from twinbus.client.request_node import ConnectionLost

PRIMARY, SECONDARY = "contoso", "contoso-dr"
OPTIONS: Final = SendAvailabilityOptions(backlog_queue_count=1, enable_syphon=False, ledger="")
OPEN_S: Final = 300.0
"""How long hundreds of receivers may take to open and get their first message."""

QUIET_S: Final = 1.0
CALL_S: Final = 20.0
AFTER_ERROR_S: Final = 1.0
CLOSE_S: Final = 10.0
STOP_S: Final = 30.0
PREFETCH: Final = (0, 10)
DATA_SECTION: Final = b"\0\x53\x75\xa0"
"""The head of a message's only section, before the size of its body."""

AT_ONCE: Final = 50
"""Receivers that are opened, and messages that are sent, at a time."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How many receivers, and for how long."""

    guarded: int
    connections: int
    """Of the guarded receivers; a plain one has its own."""
    plain: int
    limit_s: float
    """A receiver that did not get its message within this time is silent."""
    down_s: float = 5.0
    lock_s: int = 20
    """A half-open link may get the message first, which then waits for the end of its lock."""


WHOLE: Final = Size(guarded=300, connections=10, plain=300, limit_s=60.0)


@dataclass
class Outcome:
    """What became of one kind of receivers in one fault."""

    receivers: int
    errors: Counter[str]
    """That the programs got, by kind."""
    took_s: list[float] = field(default_factory=list)
    """From the message to its receiver, of those that got it in time."""

    @property
    def silent(self) -> int:
        return self.receivers - len(self.took_s)

    def __str__(self) -> str:
        slowest = f"{max(self.took_s):.1f} s" if self.took_s else "-"
        return f"{self.receivers:10}{self.silent:8}{slowest:>10}{self.errors.total():8}"


class Consumers:
    """The programs of one kind: which queue has brought which message, and when."""

    def __init__(self, kind: str, count: int) -> None:
        self.queues = [f"{kind}-{number}" for number in range(count)]
        self.errors: Counter[str] = Counter()
        self._got: dict[str, dict[str, float]] = {queue: {} for queue in self.queues}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, get_receiver: Callable[..., Any]) -> None:
        """Run a program for each queue; `get_receiver` gets its number, its queue and options."""
        opening = asyncio.Semaphore(AT_ONCE)
        for number, queue in enumerate(self.queues):
            work = self._consume(number, queue, get_receiver, opening)
            self._tasks.append(asyncio.create_task(work))

    def has(self, text: str) -> bool:
        return all(text in got for got in self._got.values())

    def took_s(self, text: str, sent_at: dict[str, float], limit_s: float) -> list[float]:
        found = [got[text] - sent_at[queue] for queue, got in self._got.items() if text in got]
        return [one for one in found if one <= limit_s]

    async def stop(self) -> None:
        ends = time.monotonic() + STOP_S
        while (left := [task for task in self._tasks if not task.done()]) and (
            time.monotonic() < ends
        ):
            for task in left:
                task.cancel()  # Again and again: the SDK's receiver may go on after one.
            await asyncio.wait(left, timeout=1.0)

    async def _consume(
        self, number: int, queue: str, get_receiver: Callable[..., Any], opening: asyncio.Semaphore
    ) -> None:
        while True:
            receiver = get_receiver(number, queue, prefetch_count=PREFETCH[number // 2 % 2])
            try:
                async with opening:
                    await receiver.__aenter__()
                while True:
                    await self._receive(receiver, queue, iterates=number % 2 == 0)
            except Exception as error:  # noqa: BLE001  # counted, and the program goes on
                self.errors[type(error).__name__] += 1
                await asyncio.sleep(AFTER_ERROR_S)
            finally:
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(CLOSE_S):
                        await receiver.close()

    async def _receive(self, receiver: Any, queue: str, *, iterates: bool) -> None:
        if iterates:
            async for message in receiver:
                await self._take(receiver, queue, message)
        else:
            for message in await receiver.receive_messages(max_wait_time=CALL_S):
                await self._take(receiver, queue, message)

    async def _take(self, receiver: Any, queue: str, message: Any) -> None:
        self._got[queue].setdefault(str(message), time.monotonic())
        await receiver.complete_message(message)


class World:
    """A namespace with a queue for each receiver, and the receivers that read it."""

    def __init__(self, size: Size, broker: EmbeddedBroker, proxy: SilentProxy) -> None:
        self.guarded = Consumers("guarded", size.guarded)
        self.plain = Consumers("plain", size.plain)
        self._size = size
        self._broker = broker
        self._proxy = proxy
        self._pairs: list[Any] = []

    @property
    def stricken(self) -> int:
        """How many guarded receivers have opened their link again."""
        found = [one for pair in self._pairs for one in pair.status().receivers.values()]
        return sum(one.sides["primary"].reopened > 0 for one in found)

    @property
    def _queues(self) -> list[str]:
        return [*self.guarded.queues, *self.plain.queues]

    @asynccontextmanager
    async def receiving(self, *, through_proxy: bool) -> AsyncIterator[None]:
        """All receivers run, and each has got a message."""
        description = QueueDescription(lock_duration_ms=self._size.lock_s * 1_000)
        for queue in self._queues:
            self._broker.create_queue(queue, description, PRIMARY)
        text, port = self._broker.connection_string(PRIMARY), self._broker.port(PRIMARY)
        if through_proxy:
            text = text.replace(f":{port}", f":{self._proxy.port}")
        async with AsyncExitStack() as stack:
            pairs = [
                await stack.enter_async_context(self._pair(text))
                for _ in range(min(self._size.connections, self._size.guarded))
            ]
            client = async_client(text, retry_total=3)

            self._pairs = pairs

            def guarded(number: int, queue: str, **options: Any) -> Any:
                return pairs[number % len(pairs)].get_queue_receiver(queue, guard=True, **options)

            def plain(_: int, queue: str, **options: Any) -> Any:
                return client.get_queue_receiver(queue, **options)

            for consumers, get_receiver in ((self.guarded, guarded), (self.plain, plain)):
                stack.push_async_callback(consumers.stop)
                consumers.start(get_receiver)
            await self.send_each("before")
            await self.wait_for("before", OPEN_S)
            assert self._has("before"), f"not all receivers got a message within {OPEN_S:g} s"
            await asyncio.sleep(QUIET_S)
            yield

    def _pair(self, primary: str) -> Any:
        secondary = self._broker.connection_string(SECONDARY)
        return pair_namespaces(
            Namespace.from_connection_string(primary, PRIMARY),
            Namespace.from_connection_string(secondary),
            OPTIONS,
        )

    async def send_each(self, text: str) -> dict[str, float]:
        """Send a message to each queue; return when each was accepted."""
        sent_at: dict[str, float] = {}
        namespace = Namespace.from_connection_string(self._broker.connection_string(PRIMARY))
        connection = UpstreamConnection(namespace, answer_s=30.0)
        data = DATA_SECTION + bytes([len(text)]) + text.encode()
        sending = asyncio.Semaphore(AT_ONCE)

        async def send(queue: str) -> None:
            async with sending:
                pool = connection.pool(queue)
                while queue not in sent_at:
                    with contextlib.suppress(ConnectionLost, TimeoutError):  # A busy machine.
                        await pool.open()
                        await pool.send_messages(Wire(data, 0))
                        sent_at[queue] = time.monotonic()

        try:
            await asyncio.gather(*map(send, self._queues))
        finally:
            await connection.close()
        return sent_at

    def _has(self, text: str) -> bool:
        return self.guarded.has(text) and self.plain.has(text)

    async def wait_for(self, text: str, limit_s: float) -> None:
        """Wait until each receiver has got a message, or the time is over."""
        with contextlib.suppress(AssertionError):
            await until(lambda: self._has(text), limit_s)


async def run_fault(name: str, size: Size) -> dict[str, Outcome]:
    """Strike one fault and return what became of guarded and plain receivers."""
    with EmbeddedBroker(PRIMARY, SECONDARY) as broker:
        async with SilentProxy(broker.port(PRIMARY)) as proxy:
            world, strike = World(size, broker, proxy), FAULTS[name]
            async with world.receiving(through_proxy=strike is make_half_open):
                kinds = {"guarded": world.guarded, "plain": world.plain}
                for consumers in kinds.values():
                    consumers.errors.clear()
                stricken = Stricken(broker, PRIMARY, proxy, size.down_s)
                await stricken.wait_for_links(size.guarded + size.plain)
                await strike(stricken)
                sent_at = await world.send_each("after")
                await world.wait_for("after", size.limit_s)
                assert world.stricken == size.guarded, f"{name!r} struck {world.stricken} receivers"
                return {
                    kind: Outcome(
                        len(consumers.queues),
                        consumers.errors,
                        consumers.took_s("after", sent_at, size.limit_s),
                    )
                    for kind, consumers in kinds.items()
                }


COLUMNS: Final = f"{'receivers':>10}{'silent':>8}{'slowest':>10}{'errors':>8}"


def run_beside(name: str, size: Size) -> dict[str, Outcome]:
    """Strike one fault in two processes at once: what 300 receivers of the SDK cost is much."""
    sizes = {"guarded": replace(size, plain=0), "plain": replace(size, guarded=0)}
    with ProcessPoolExecutor(len(sizes), mp_context=get_context("spawn")) as processes:
        runs = {kind: processes.submit(_run_alone, name, one) for kind, one in sizes.items()}
        return {kind: run.result()[kind] for kind, run in runs.items()}


def _run_alone(name: str, size: Size) -> dict[str, Outcome]:
    logging.getLogger().addHandler(logging.NullHandler())
    return asyncio.run(run_fault(name, size))


def table_of(found: dict[str, dict[str, Outcome]]) -> str:
    """The outcomes of several faults, a line for each."""
    lines = [
        f"{'':32}{'guarded':^36}{'plain receivers of the SDK':^36}",
        f"{'fault':32}{COLUMNS}{COLUMNS}",
    ]
    for name, outcome in found.items():
        lines.append(f"{name:32}{outcome['guarded']}{outcome['plain']}")
    return "\n".join(lines)
