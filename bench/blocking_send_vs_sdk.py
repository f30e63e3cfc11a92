"""One message after another, without asyncio: a blocking paired sender against the SDK's sync one.

1 KB messages with an id, one send each, ledger on. The figure is what `paired_send_vs_sdk` has:
messages per second of client CPU, all threads together. The ratio is what pairing and its thread
leave of the SDK's own rate.
"""

from __future__ import annotations

import contextlib
import gc
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusClient

from bench.harness import Progress, Sides
from bench.paired_send_vs_sdk import BODY, MESSAGES, make
from bench.paired_sides import DATA, QUEUE, ROUNDS, UNIT, Clocks, Links, serving
from twinbus import Namespace, SendAvailabilityOptions
from twinbus.blocking import Pair

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

__all__ = ["ROUNDS", "UNIT", "sides"]


class BlockingSides:
    """A plain sync sender and a blocking paired one, open."""

    def __init__(self, primary: str, secondary: str, ledger: Path, links: Links = "sdk") -> None:
        self._links = links
        self._strings = primary, secondary
        self._ledger = ledger
        self._stack = contextlib.ExitStack()
        self.clocks = Clocks()

    def __enter__(self) -> BlockingSides:
        primary, secondary = self._strings
        options = SendAvailabilityOptions(
            backlog_queue_count=1, ledger=str(self._ledger), links=self._links
        )
        with contextlib.ExitStack() as stack:
            self._pair = stack.enter_context(
                Pair(
                    Namespace.from_connection_string(primary, "bench"),
                    Namespace.from_connection_string(secondary),
                    options,
                )
            )
            client = stack.enter_context(ServiceBusClient.from_connection_string(primary))
            self._plain = stack.enter_context(client.get_queue_sender(QUEUE))
            self._paired = stack.enter_context(self._pair.get_queue_sender(QUEUE))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def ours(self) -> float:
        cpu, wall = self._timed(self._paired)
        self.clocks.ours.append(wall)
        return cpu

    def peer(self) -> float:
        cpu, wall = self._timed(self._plain)
        self.clocks.peer.append(wall)
        return cpu

    def _timed(self, sender: Any) -> tuple[float, float]:
        messages = make()
        gc.collect()
        began, used = time.perf_counter(), time.process_time()
        for message in messages:
            sender.send_messages(message)
        took = time.perf_counter() - began
        if sender is self._paired:
            recorder = self._pair._core._recorder
            assert recorder is not None
            assert recorder.is_on, "the ledger is part of the price"
            recorder.ledger.flush()
        return MESSAGES / (time.process_time() - used), MESSAGES / took


def sides(progress: Progress) -> AbstractContextManager[Sides]:
    """A plain and a paired sender to one queue."""
    return blocking_sides(progress)


@contextlib.contextmanager
def blocking_sides(progress: Progress, links: Links = "sdk") -> Iterator[Sides]:
    """Both senders, ready; `links` carry the messages of the paired one."""
    words = f"azure-servicebus sync, {len(BODY)} bytes, one at a time, ledger on"
    DATA.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="blocking-", dir=DATA) as directory:
        home = Path(directory)
        with (
            serving(progress, home) as (primary, secondary),
            BlockingSides(primary, secondary, home / "ledger", links) as both,
        ):
            yield Sides(
                ours=both.ours,
                peer=both.peer,
                note=lambda: f"by the clock on the wall {both.clocks.ratio():.2f}; {words}",
            )
