"""Pipelined sends through a gateway, against the same client straight to the broker behind it.

1 KB messages go to a durable queue of one primary over one connection that keeps 1,000 of them
unsettled: in one round through `twinbus gateway`, in the other to the broker itself. The primary,
the secondary and the gateway are processes of their own, on the cores that the client has too. The
note has the processor time that the gateway took for a message, and the memory it holds at the end.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.broker_send_vs_rabbitmq import (
    DATA,
    MESSAGES,
    START_TIMEOUT_S,
    WINDOW,
    Twinbus,
    durable_message,
    twinbus,
    twinbus_at,
)
from bench.harness import Progress, Sides
from bench.peers.sender import processor_seconds
from bench.pipelined_client import PipelinedSender
from bench.processes import TWINBUS, serve, wait_until
from bench.relay_world import scaled

if TYPE_CHECKING:
    from collections.abc import Iterator

UNIT = "messages/s"
ROUNDS = 15


@contextmanager
def sides(progress: Progress) -> Iterator[Sides]:
    """A primary, a secondary, and a gateway in front of them."""
    DATA.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        progress("starting the namespaces and the gateway")
        primary = stack.enter_context(twinbus())
        secondary = stack.enter_context(twinbus())
        gateway = stack.enter_context(gateway_before(primary, secondary))
        rounds = Rounds(primary, gateway)
        yield Sides(
            ours=lambda: rounds.send_to(gateway),
            peer=lambda: rounds.send_to(primary),
            note=rounds.note,
        )


class Rounds:
    """Rounds of both sides, and what the gateway took for those that went through it."""

    def __init__(self, primary: Twinbus, gateway: Twinbus) -> None:
        self._primary = primary
        self._gateway = gateway
        self._payload = durable_message()
        self._numbers = itertools.count()
        self._processor_us: list[float] = []

    def send_to(self, place: Twinbus) -> float:
        """Send a round's messages to a new queue of the primary, at this place; the rate."""
        queue, messages = f"bench-{next(self._numbers)}", scaled(MESSAGES)
        self._primary.declare_queue(queue)
        token = (place.audience, place.token)
        with PipelinedSender(place.host, place.port, queue, token=token) as sender:
            sender.send(self._payload, WINDOW, WINDOW)
            before = processor_seconds(self._gateway.process)
            rate = sender.send(self._payload, messages, WINDOW)
            took_s = processor_seconds(self._gateway.process) - before
        if place is self._gateway:
            self._processor_us.append(took_s / messages * 1e6)
        # What the client was told is accepted is in the primary, and nowhere else.
        stored = self._primary.stored(queue)
        assert stored == messages + WINDOW, f"{stored} of {messages + WINDOW} are in the primary"
        self._primary.delete_queue(queue)
        return rate

    def note(self) -> str:
        took = self._processor_us[1:]  # the first warmed up
        return (
            f"the gateway took {statistics.median(took):.1f} us of processor time for a message"
            f" ({min(took):.1f}..{max(took):.1f}), and holds {_memory_mb(self._gateway.process)} MB"
        )


@contextmanager
def gateway_before(
    primary: Twinbus, secondary: Twinbus, *options: str, own_session: bool = True
) -> Iterator[Twinbus]:
    """`twinbus gateway` on a free port, in front of two brokers."""
    with tempfile.TemporaryDirectory(prefix="twinbus-", dir=DATA) as directory:
        log = Path(directory) / "gateway.log"
        sides = ["--primary", primary.connection_string, "--secondary", secondary.connection_string]
        command = [*TWINBUS, "gateway", "bench:0", "--label", "bench", *sides, "--queues", "1"]
        command += options
        with serve(command, log=log, own_session=own_session) as process:
            wait_until(
                lambda: "ready" in log.read_text(),
                process=process,
                log=log,
                timeout_s=START_TIMEOUT_S,
            )
            yield twinbus_at(log, process.pid)


def _memory_mb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) // 1024
