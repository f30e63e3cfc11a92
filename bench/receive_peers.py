"""Messages that are received and completed: our broker beside RabbitMQ 4.

As `broker_peers`, in the other direction: a queue of durable 1 KB messages is filled, and one
connection with credit for 1,000 receives them and accepts them in ranges. The client is the same.
A round ends with the last range; then the queue must be empty. The processor time of the broker
does not have that of the sends in it, but that of what it still does with the messages, and of the
deletion of the queue.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.broker_peers import RABBITMQ_LOGIN, SETTLING_S, await_count, spread
from bench.broker_send_vs_rabbitmq import DATA, Twinbus, durable_message, twinbus
from bench.peers.rabbitmq4 import Node, NotThere, unpack
from bench.peers.sender import processor_seconds
from bench.pipelined_client import PipelinedReceiver, PipelinedSender
from bench.relay_world import scaled

if TYPE_CHECKING:
    from bench.harness import Progress

ROUNDS = 7
MESSAGES = 30_000
WINDOW = 1_000
EMPTY_LIMIT_S = 10.0


@dataclass
class Peer:
    """A running broker, and its figures: a value for each round."""

    name: str
    session: int
    """Of its processes."""
    receive: Callable[[Callable[[], None]], float]
    """Fill a new queue, call the argument, and empty the queue; return the rate."""
    rates: list[float] = field(default_factory=list)
    processor_us: list[float] = field(default_factory=list)


def tables(progress: Progress) -> str:
    """Run both brokers; return the table as text."""
    DATA.mkdir(parents=True, exist_ok=True)
    missing: list[str] = []
    with ExitStack() as stack:
        ours = stack.enter_context(twinbus())
        peers = [Peer("Twinbus", ours.process, partial(_ours, ours, itertools.count()))]
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="rabbitmq4-", dir=DATA))
        progress("fetching RabbitMQ 4 from Debian")
        try:
            node = Node(unpack(Path(directory)))
        except NotThere as why:
            missing.append(f"not measured: {why}")
        else:
            progress("starting RabbitMQ 4")
            process = stack.enter_context(node.running())
            for kind in ("quorum", "classic"):
                name = f"RabbitMQ {node.version()}, {kind} queue"
                receive = partial(_rabbitmq, node, kind, itertools.count())
                peers.append(Peer(name, process, receive))
        for number in range(ROUNDS + 1):
            for peer in peers:
                progress(f"round {number} of {ROUNDS}: {peer.name}")
                rate, processor_us = _round(peer)
                if number:  # the first warms up
                    peer.rates.append(rate)
                    peer.processor_us.append(processor_us)
    return "\n".join([_table(peers), *missing])


def _round(peer: Peer) -> tuple[float, float]:
    before = 0.0

    def filled() -> None:
        nonlocal before
        time.sleep(SETTLING_S)
        before = processor_seconds(peer.session)

    rate = peer.receive(filled)
    return rate, (processor_seconds(peer.session) - before) / scaled(MESSAGES) * 1e6


def _ours(broker: Twinbus, numbers: itertools.count[int], filled: Callable[[], None]) -> float:
    queue, token = f"receive-{next(numbers)}", (broker.audience, broker.token)
    broker.declare_queue(queue)
    with PipelinedSender(broker.host, broker.port, queue, token=token) as sender:
        sender.send(durable_message(), scaled(MESSAGES), WINDOW)
    filled()
    with PipelinedReceiver(broker.host, broker.port, queue, token=token) as receiver:
        rate = receiver.receive(scaled(MESSAGES), WINDOW)
    time.sleep(SETTLING_S)
    ends = time.monotonic() + EMPTY_LIMIT_S
    while left := broker.stored(queue):
        assert time.monotonic() < ends, f"{left} messages are left"
        time.sleep(0.1)
    broker.delete_queue(queue)
    return rate


def _rabbitmq(
    node: Node, kind: str, numbers: itertools.count[int], filled: Callable[[], None]
) -> float:
    queue = f"receive-{kind}-{next(numbers)}"
    node.declare_queue(queue, kind)
    address, messages = f"/queues/{queue}", scaled(MESSAGES)
    with PipelinedSender("127.0.0.1", node.port, address, login=RABBITMQ_LOGIN) as sender:
        sender.send(durable_message(), messages, WINDOW)
    await_count(node, queue, messages)
    filled()
    with PipelinedReceiver("127.0.0.1", node.port, address, login=RABBITMQ_LOGIN) as receiver:
        rate = receiver.receive(messages, WINDOW)
    time.sleep(SETTLING_S)
    await_count(node, queue, 0)
    node.delete_queue(queue)
    return rate


def _table(peers: list[Peer]) -> str:
    width = max(len(peer.name) for peer in peers)
    head = f"received and completed, 1 KB, credit for {WINDOW:,}: median of {ROUNDS} rounds"
    rows = (
        f"{peer.name:{width}}  {spread(peer.rates, ',.0f'):26}  {spread(peer.processor_us, '.1f')}"
        for peer in peers
    )
    return "\n".join(
        [
            f"{head} (and spread)",
            "",
            f"{'broker':{width}}  {'messages/s':26}  processor time of the broker, us",
            *rows,
        ]
    )
