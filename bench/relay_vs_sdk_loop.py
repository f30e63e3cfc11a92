"""A backlog moved by the relay against the same moved by a good loop on the official SDK.

1 KB messages, durable at both ends, one backlog queue, one destination. The loop receives 100,
sends them as one list, and gathers the completes. Both movers are processes of their own that run
all the time; only one is moving at a time.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench.harness import Progress, Sides
from bench.relay_world import Mover, relay_world, scaled

if TYPE_CHECKING:
    from collections.abc import Iterator

UNIT = "messages/s"
OURS, PEER = 40_000, 10_000
"""Messages of a round: seconds of work for either side."""


@contextmanager
def sides(progress: Progress) -> Iterator[Sides]:
    """Both brokers and both movers, running."""
    progress("starting two brokers")
    with relay_world() as world, Mover() as relay, Mover() as loop:
        yield Sides(
            ours=lambda: world.move(relay, scaled(OURS)).rate,
            peer=lambda: world.move(loop, scaled(PEER), engine="sdk").rate,
            note="azure-servicebus: receive 100, one list send, gathered completes",
        )
