"""A backlog moved by the relay against the same moved by RabbitMQ's shovel.

1 KB messages, persistent at both ends, one queue to one queue. Ours: two durable brokers and the
relay, three processes. The shovel: AMQP 0.9.1, on-confirm, prefetch 1000, both queues on one
broker, over its direct connection, which spares it the sockets. A round begins when the move is
asked for, and ends when all is in the destination and nothing in the source, unacknowledged
messages included.
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from bench.broker_send_vs_rabbitmq import durable_message
from bench.harness import Progress, Sides
from bench.peers.rabbitmq3 import RabbitMQ, rabbitmq
from bench.pipelined_client import PipelinedSender
from bench.relay_world import DATA, WINDOW, Mover, relay_world, scaled

if TYPE_CHECKING:
    from collections.abc import Iterator

UNIT = "messages/s"
MESSAGES = 40_000
"""Of one round: seconds of work for either."""
PREFETCH = 1_000
ROUNDS = 15
"""More than usual: the rates of both sides vary by a third from round to round."""


@contextmanager
def sides(progress: Progress) -> Iterator[Sides]:
    """RabbitMQ with its shovel plugin, our two brokers, and the relay."""
    DATA.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        peer = stack.enter_context(rabbitmq(DATA, progress))
        progress("starting two brokers")
        world = stack.enter_context(relay_world())
        relay = stack.enter_context(Mover())
        numbers = itertools.count()
        yield Sides(
            ours=lambda: world.move(relay, scaled(MESSAGES)).rate,
            peer=lambda: shovel_round(peer, next(numbers), scaled(MESSAGES)),
            note=(
                f"RabbitMQ {peer.version()} shovel, AMQP 0.9.1 direct, on-confirm, "
                f"prefetch {PREFETCH}, both queues on one broker"
            ),
        )


def shovel_round(broker: RabbitMQ, number: int, messages: int) -> float:
    """Fill a queue and have it shovelled into another; messages a second."""
    source, destination = f"source-{number}", f"destination-{number}"
    for queue in (source, destination):
        broker.declare_queue(queue)
    login = ("guest", "guest")
    with PipelinedSender(broker.host, broker.port, f"/amq/queue/{source}", login=login) as sender:
        sender.send(durable_message(), messages, WINDOW)
    seconds = broker.shovel(source, destination, messages, prefetch=PREFETCH)
    # The comparison is only fair if the peer really was asked to keep every message.
    stored = broker.persistent_messages(destination)
    assert stored == messages, f"RabbitMQ holds {stored} persistent messages of {messages}"
    for queue in (source, destination):
        broker.delete_queue(queue)
    return messages / seconds
