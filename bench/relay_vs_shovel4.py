"""A backlog moved by the relay against the same moved by the shovel of RabbitMQ 4.

As `relay_vs_shovel`, but the shovel's two queues are quorum queues, which sync a message before
they confirm it, as our brokers do; the classic queues of RabbitMQ 4 do not. It is a local shovel,
which speaks no protocol at all: its fastest.
"""

from __future__ import annotations

import itertools
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.broker_send_vs_rabbitmq import durable_message
from bench.harness import NotMeasured, Progress, Sides
from bench.peers.rabbitmq4 import Node, NotThere, unpack
from bench.peers.shovel import QUORUM, shovel
from bench.pipelined_client import PipelinedSender
from bench.relay_vs_shovel import MESSAGES, PREFETCH, ROUNDS, UNIT
from bench.relay_world import DATA, WINDOW, Mover, relay_world, scaled

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ROUNDS", "UNIT", "sides"]

LOGIN = "guest", "guest"
PROTOCOL = "local"


@contextmanager
def sides(progress: Progress) -> Iterator[Sides]:
    """RabbitMQ 4 with its shovel plugin, our two brokers, and the relay."""
    DATA.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="rabbitmq4-", dir=DATA))
        progress("fetching RabbitMQ 4 from Debian")
        try:
            node = Node(unpack(Path(directory)), plugins=["rabbitmq_shovel"])
        except NotThere as why:
            raise NotMeasured(str(why)) from why
        progress("starting RabbitMQ 4 and two brokers")
        stack.enter_context(node.running())
        world = stack.enter_context(relay_world())
        relay = stack.enter_context(Mover())
        numbers = itertools.count()
        yield Sides(
            ours=lambda: world.move(relay, scaled(MESSAGES)).rate,
            peer=lambda: shovel_round(node, next(numbers), scaled(MESSAGES)),
            note=(
                f"RabbitMQ {node.version()} shovel, {PROTOCOL}, on-confirm, "
                "both quorum queues on one node"
            ),
        )


def shovel_round(node: Node, number: int, messages: int, protocol: str = PROTOCOL) -> float:
    """Fill a queue and have it shovelled into another; messages a second."""
    source, destination = f"source-{number}", f"destination-{number}"
    for queue in (source, destination):
        node.declare_queue(queue, "quorum")
    with PipelinedSender("127.0.0.1", node.port, f"/queues/{source}", login=LOGIN) as sender:
        sender.send(durable_message(), messages, WINDOW)
    seconds = shovel(
        *(node.evaluate, source, destination, messages),
        # A local shovel has no such option.
        prefetch=None if protocol == "local" else PREFETCH,
        count=QUORUM,
        protocol=protocol,
    )
    for queue in (source, destination):
        node.delete_queue(queue)
    return messages / seconds
