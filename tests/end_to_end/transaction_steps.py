"""A process that commits one transaction and is killed at a given line of it; see the test.

    python -m tests.end_to_end.transaction_steps DIRECTORY START STEP [two-commits] [pause]

For every `STEP`th line from `START` on, a child serves a new store, has a client discharge a
transaction, and ends itself by SIGKILL when so many lines of the broker have run. One line of JSON
for each says what the client was told, and what a restart finds. With `pause` it says `killed` and
reads a line before each restart.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from tests.unit.broker.fakes import facts
from tests.unit.broker.links.transacting import Transacting
from twinbus.amqp.events import DeliveryArrived
from twinbus.amqp.performatives import Accepted
from twinbus.broker.engine.transaction import BrokerTransaction, _Send
from twinbus.broker.server import BrokerServer
from twinbus.broker.storage.lmdb_store import LmdbStore
from twinbus.broker.storage.store import flush

MESSAGES = 3
PACKAGE = str(Path("twinbus", "broker"))
WAIT_S = 60.0


class Lines:
    """Counts the lines of the broker that run, in all threads, and kills the process at one."""

    def __init__(self, last: int) -> None:
        self.count = 0
        self.is_on = False
        self._last = last

    def trace(self, frame: FrameType, event: str, _arg: object) -> Any:
        if PACKAGE not in frame.f_code.co_filename:
            return None
        if event == "line" and self.is_on:
            self.count += 1
            if self.count == self._last:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.trace


def commit_twice() -> None:
    """Plant a bug: the first half of a transaction is on disk before the second."""

    def commit(self: BrokerTransaction, now_ms: int) -> None:
        self._check(now_ms)
        for index, step in enumerate(self._work):
            if index == 1:
                flush(self._namespace._journal)  # type: ignore[arg-type]
            if isinstance(step, _Send):
                self._namespace.take_admitted(step.target, step.batch, now_ms)
            else:
                step.queue.settle_checked(step.wanted, now_ms)

    BrokerTransaction.commit = commit  # type: ignore[method-assign]


async def discharge(directory: Path, lines: Lines, told: int) -> None:
    """Serve the store; complete and send in one transaction, traced from the discharge on."""
    world = Transacting(BrokerServer("b", LmdbStore(directory), []))
    await settled(world)
    await world.open()
    numbers = await received(world)
    txn_id = await world.declare()
    for number in numbers:
        await world.dispose(txn_id, number)
        await world.send(txn_id)
    lines.is_on = True
    answer = await world.commit(txn_id)
    while answer is None:
        await asyncio.sleep(0.001)
        answer = next((one.state for one in await states(world)), None)
    if answer == Accepted():
        os.write(told, b"committed")
    lines.is_on = False
    os.write(told, b" %d" % lines.count)
    os._exit(0)


async def states(world: Transacting) -> list[Any]:
    return [one for one in await world.exchange() if getattr(one, "by_receiver", False)]


async def settled(world: Transacting) -> None:
    """Wait for what the broker is writing to its disk."""
    await world.server.commit.durable()


async def received(world: Transacting) -> list[int]:
    numbers = await world.received(MESSAGES)
    while len(numbers) < MESSAGES:
        await settled(world)
        numbers += [
            one.delivery_id for one in await world.exchange() if isinstance(one, DeliveryArrived)
        ]
    return numbers


def run(directory: Path, last: int, *, pauses: bool) -> dict[str, Any]:
    """What a child that is killed at that line told, and what it left."""
    shutil.rmtree(directory, ignore_errors=True)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        lines = Lines(last)
        threading.settrace(lines.trace)
        sys.settrace(lines.trace)
        try:
            asyncio.run(asyncio.wait_for(discharge(directory, lines, writer), WAIT_S))
        except BaseException:  # noqa: BLE001 - the parent's frames must not run here
            traceback.print_exc()
        os._exit(3)
    os.close(writer)
    with os.fdopen(reader) as told:
        said = told.read().split()
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0, "the child failed"
    if pauses:
        say("killed")
        sys.stdin.readline()
    return {
        "line": last,
        "told": "committed" in said,
        "lines": int(said[-1]) if said and said[-1].isdigit() else None,
        "left": left(directory),
    }


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def left(directory: Path) -> list[int]:
    """The sequence numbers in the queue after a restart."""

    async def restarted() -> list[int]:
        server = BrokerServer("b", LmdbStore(directory), [])
        queue = server.namespace.get_queue("q")
        found = [fact[0] for fact in facts(queue, server.now_ms())]
        await server.close()
        return found

    return asyncio.run(restarted())


def main(place: str, start: str, step: str, *options: str) -> None:
    if "two-commits" in options:
        commit_twice()
    last = int(start)
    while True:
        found = run(Path(place) / "data", last, pauses="pause" in options)
        say(json.dumps(found))
        if found["lines"] is not None:
            return
        last += int(step)


if __name__ == "__main__":
    main(*sys.argv[1:])
