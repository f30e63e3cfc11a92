"""Sends that are confirmed: our broker beside RabbitMQ 4, ActiveMQ Artemis and NATS JetStream.

1 KB messages, marked durable, over one connection that keeps 1,000 of them unconfirmed. All brokers
run all the time, each with its data on the same disk, and one is under load at a time, in rounds.
The table has the rate, and the processor time that the broker's processes took for a message. It
says for each whether it syncs a message to the disk before it confirms it: those that do not
promise less, so their figures are not like for like.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.broker_send_vs_rabbitmq import DATA, durable_message, ours_round, twinbus
from bench.harness import NotMeasured
from bench.peers.artemis import artemis
from bench.peers.nats import nats
from bench.peers.rabbitmq4 import Node, NotThere, unpack
from bench.peers.sender import Peer, processor_seconds
from bench.pipelined_client import PipelinedSender
from bench.relay_world import scaled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from bench.harness import Progress

ROUNDS = 7
MESSAGES = 30_000
WINDOW = 1_000
BODY = bytes(1_024)
SETTLING_S = 0.3
"""After a round, for what a broker still does with its messages; it is part of its bill."""
COUNT_LIMIT_S = 30.0
RABBITMQ_LOGIN = "guest", "guest"


@dataclass
class Measured:
    """Figures of a peer, a value for each round."""

    rates: list[float] = field(default_factory=list)
    processor_us: list[float] = field(default_factory=list)


def tables(progress: Progress) -> str:
    """Run every peer that this machine can run; return the table as text."""
    DATA.mkdir(parents=True, exist_ok=True)
    found: dict[Peer, Measured] = {}
    missing: list[str] = []
    with ExitStack() as stack:
        for start in _starts(progress):
            try:
                for peer in stack.enter_context(start()):
                    found[peer] = Measured()
            except NotMeasured as why:
                missing.append(f"not measured: {why}")
        for number in range(ROUNDS + 1):
            for peer, measured in found.items():
                progress(f"round {number} of {ROUNDS}: {peer.name}")
                rate, processor_us = _round(peer, f"bench-{number}")
                if number:  # the first warms up
                    measured.rates.append(rate)
                    measured.processor_us.append(processor_us)
    return "\n".join([_table(found), *missing])


def _round(peer: Peer, queue: str) -> tuple[float, float]:
    messages = scaled(MESSAGES)
    before = processor_seconds(peer.session)
    rate = peer.send(queue, messages, WINDOW)
    time.sleep(SETTLING_S)
    return rate, (processor_seconds(peer.session) - before) / messages * 1e6


def _starts(progress: Progress) -> list[Callable[[], AbstractContextManager[list[Peer]]]]:
    queues = [f"bench-{number}" for number in range(ROUNDS + 1)]
    return [
        partial(_one, twinbus_peer),
        partial(_rabbitmq, progress),
        partial(_one, partial(artemis, DATA, durable_message(), queues, progress)),
        partial(_one, partial(nats, DATA, BODY, synced=True)),
        partial(_one, partial(nats, DATA, BODY, synced=False)),
    ]


@contextmanager
def _one(start: Callable[[], AbstractContextManager[Peer]]) -> Iterator[list[Peer]]:
    with start() as peer:
        yield [peer]


@contextmanager
def twinbus_peer() -> Iterator[Peer]:
    """Our broker."""
    payload = durable_message()
    with twinbus() as broker:

        def send(name: str, messages: int, window: int) -> float:
            return ours_round(broker, name, payload, messages, window)

        yield Peer("Twinbus", True, broker.process, send)


@contextmanager
def _rabbitmq(progress: Progress) -> Iterator[list[Peer]]:
    """A node of RabbitMQ 4, as two peers: its quorum queues and its classic ones."""
    payload = durable_message()
    with tempfile.TemporaryDirectory(prefix="rabbitmq4-", dir=DATA) as directory:
        progress("fetching RabbitMQ 4 from Debian")
        try:
            node = Node(unpack(Path(directory)))
        except NotThere as why:
            raise NotMeasured(str(why)) from why
        progress("starting RabbitMQ 4")
        with node.running() as process:

            def send(kind: str, name: str, messages: int, window: int) -> float:
                queue = f"{name}-{kind}"
                node.declare_queue(queue, kind)
                address = f"/queues/{queue}"
                with PipelinedSender(
                    "127.0.0.1", node.port, address, login=RABBITMQ_LOGIN
                ) as sender:
                    rate = sender.send(payload, messages, window)
                await_count(node, queue, messages)
                node.delete_queue(queue)
                return rate

            version = node.version()
            yield [
                Peer(f"RabbitMQ {version}, quorum queue", True, process, partial(send, "quorum")),
                Peer(
                    f"RabbitMQ {version}, classic queue", False, process, partial(send, "classic")
                ),
            ]


def await_count(node: Node, queue: str, messages: int) -> None:
    """The count of a quorum queue is some seconds old."""
    ends = time.monotonic() + COUNT_LIMIT_S
    while (stored := node.messages(queue)) != messages:
        assert time.monotonic() < ends, f"RabbitMQ holds {stored} messages of {messages}"
        time.sleep(1.0)


def _table(found: dict[Peer, Measured]) -> str:
    width = max(len(peer.name) for peer in found)
    lines = [
        f"confirmed sends of 1 KB, {WINDOW:,} in flight: median of {ROUNDS} rounds (and spread)",
        "",
        f"{'broker':{width}}  synced  {'messages/s':26}  processor time of the broker, us",
    ]
    for peer, measured in found.items():
        lines.append(
            f"{peer.name:{width}}  {'yes' if peer.synced else 'no':6}  "
            f"{spread(measured.rates, ',.0f'):26}  {spread(measured.processor_us, '.1f')}"
        )
    return "\n".join(lines)


def spread(values: list[float], form: str) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:{form}} ({low:{form}} to {high:{form}})"
