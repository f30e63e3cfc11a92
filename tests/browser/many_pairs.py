"""Control sockets of many pairs in one process, whose counts and states change all the time.

Arguments: pairs, entities of each, and state changes a second over all of them.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from dataclasses import asdict
from typing import Any

from twinbus.control.protocol import Verb
from twinbus.control.server import ControlServer
from twinbus.status.document import BacklogQueueStatus, EntityState, EntityStatus, PairStatus

ENDS = ("healthy", "failed over")


class ChangingPair:
    """The status of one pair."""

    def __init__(self, name: str, entities: int) -> None:
        self.name = name
        self.began = time.monotonic()
        self.since: dict[str, tuple[str, float]] = {
            f"queue-{number}": (ENDS[0], self.began) for number in range(entities)
        }

    def flip(self, number: int) -> None:
        """Change the state of an entity."""
        path = f"queue-{number}"
        state, _ = self.since[path]
        self.since[path] = (ENDS[state == ENDS[0]], time.monotonic())

    def status(self) -> dict[str, Any]:
        now = time.monotonic()
        sent = int((now - self.began) * 10)
        entities = {
            path: EntityStatus(
                path=path, state=EntityState(state), since_s=now - since, reason="", last_error="",
                forced=False, frozen=False, sent=sent, diverted=0, raised=0, answered_pings=0,
            )
            for path, (state, since) in self.since.items()
        }  # fmt: skip
        queue = f"{self.name}/x-servicebus-transfer/0"
        return asdict(
            PairStatus(
                primary=f"sb://{self.name}", secondary="sb://secondary", protected=True,
                searching=None, entities=entities,
                backlog_queues={queue: BacklogQueueStatus(queue, "in rotation")},
            )
        )  # fmt: skip


async def main(pair_count: int, entity_count: int, changes: int) -> None:
    pairs = [ChangingPair(f"pair-{number}", entity_count) for number in range(pair_count)]
    for pair in pairs:
        await ControlServer("pair", pair.name, {"status": Verb(pair.status)}).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for number in itertools.count():
        pairs[number % pair_count].flip(number // pair_count % entity_count)
        await asyncio.sleep(1 / changes)


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:4])))
