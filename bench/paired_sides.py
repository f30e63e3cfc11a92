"""The plain SDK and a paired sender side by side: one process, one loop, one broker for both.

The broker runs in a process of its own and keeps its queues in memory, so that what is measured is
the client. A round sends the same messages on one side, then on the other. Its figure is how many
the client sends in a second of its own processor time, all threads together: the ledger's thread
is part of the bill, and a round ends only when the ledger has written what the round noted. The
note has the same ratio by the clock on the wall.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from azure.servicebus.aio import ServiceBusClient

from bench.broker_send_vs_rabbitmq import CONNECTION_STRING, Twinbus
from bench.harness import Progress, Sides
from bench.processes import TWINBUS, serve, wait_until
from twinbus import Namespace, SendAvailabilityOptions
from twinbus.pair import Pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Make = Callable[[], Sequence[Any]]
    """The payloads of one round, made before its time is taken."""

Links = Literal["sdk", "own"]

ROUNDS = 15
UNIT = "messages per second of client CPU"
QUEUE = "bench"
START_TIMEOUT_S = 20.0
DATA = Path(__file__).parent / "results"
PLACES = re.compile(r"Endpoint=sb://[^\s]+")


@dataclass
class Clocks:
    """Rates by the clock on the wall, of each side, in the order of the rounds."""

    ours: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)

    def ratio(self) -> float:
        """Median of ours over the peer's, without the first round, which warms up."""
        pairs = zip(self.ours[1:], self.peer[1:], strict=False)
        return statistics.median(ours / peer for ours, peer in pairs)


class BothSides:
    """A plain sender and a paired one, open, on one loop."""

    def __init__(
        self, primary: str, secondary: str, ledger: Path | None, links: Links = "sdk"
    ) -> None:
        """Without a `ledger` the paired sender keeps none. `links` carry its messages."""
        self._links = links
        self._loop = asyncio.new_event_loop()
        self._stack = contextlib.AsyncExitStack()
        self._strings = primary, secondary
        self._ledger = ledger
        self.clocks = Clocks()

    def open(self) -> None:
        self._loop.run_until_complete(self._open())

    def close(self) -> None:
        self._loop.run_until_complete(self._stack.aclose())
        self._loop.close()

    async def _open(self) -> None:
        primary, secondary = self._strings
        place = "" if self._ledger is None else str(self._ledger)
        options = SendAvailabilityOptions(backlog_queue_count=1, ledger=place, links=self._links)
        self.pair = Pair(
            Namespace.from_connection_string(primary, "bench"),
            Namespace.from_connection_string(secondary),
            options,
        )
        self._stack.push_async_callback(self.pair.close)
        await self.pair.start()
        client = await self._stack.enter_async_context(
            ServiceBusClient.from_connection_string(primary)
        )
        self._plain = await self._stack.enter_async_context(client.get_queue_sender(QUEUE))
        self._paired = await self._stack.enter_async_context(self.pair.get_queue_sender(QUEUE))

    def ours(self, make: Make, messages: int) -> float:
        cpu, wall = self._timed(make(), self._paired, messages, self._flush)
        self.clocks.ours.append(wall)
        return cpu

    def peer(self, make: Make, messages: int) -> float:
        cpu, wall = self._timed(make(), self._plain, messages, lambda: None)
        self.clocks.peer.append(wall)
        return cpu

    def _flush(self) -> None:
        recorder = self.pair._recorder
        assert recorder is not None
        assert recorder.is_on == (self._ledger is not None), "the ledger is part of the price"
        recorder.ledger.flush()

    def _timed(
        self, payloads: Sequence[Any], sender: Any, messages: int, end: Callable[[], None]
    ) -> tuple[float, float]:
        gc.collect()
        began, used = time.perf_counter(), time.process_time()
        self._loop.run_until_complete(_send(sender, payloads))
        took = time.perf_counter() - began
        end()
        return messages / (time.process_time() - used), messages / took


async def _send(sender: Any, payloads: Sequence[Any]) -> None:
    for payload in payloads:
        await sender.send_messages(payload)


@contextlib.contextmanager
def both_sides(
    progress: Progress, make: Make, messages: int, words: str, links: Links = "sdk"
) -> Iterator[Sides]:
    """Both senders, ready; what `make` gives holds so many messages."""
    DATA.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="paired-", dir=DATA) as directory:
        home = Path(directory)
        with serving(progress, home) as (primary, secondary):
            sides = BothSides(primary, secondary, home / "ledger", links)
            sides.open()
            try:
                yield Sides(
                    ours=lambda: sides.ours(make, messages),
                    peer=lambda: sides.peer(make, messages),
                    note=lambda: f"by the clock on the wall {sides.clocks.ratio():.2f}; {words}",
                )
            finally:
                sides.close()


@contextlib.contextmanager
def serving(progress: Progress, home: Path) -> Iterator[tuple[str, str]]:
    """A broker of two namespaces with the queue in the first; their connection strings."""
    log = home / "serve.log"
    progress("starting twinbus serve")
    command = [*TWINBUS, "serve", "primary:0", "secondary:0", "--ephemeral"]
    with serve(command, log=log) as process:
        wait_until(
            lambda: len(PLACES.findall(log.read_text())) >= 2,
            process=process,
            log=log,
            timeout_s=START_TIMEOUT_S,
        )
        primary, secondary = PLACES.findall(log.read_text())[:2]
        found = CONNECTION_STRING.search(primary)
        assert found is not None
        Twinbus(*found.groups()).declare_queue(QUEUE)
        yield primary, secondary
