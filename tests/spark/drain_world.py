"""Two namespaces with everything that a backlog can be for, filled and looked at quickly."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, Self
from urllib.parse import urlsplit

from tests.end_to_end.raw_client import RawClient, batch
from tests.end_to_end.syphon_world import Places
from tests.official_sdk import administration
from tests.processes import ServedBroker
from twinbus.amqp.message import Properties, encode_message, join, split
from twinbus.client.administration import counts_of
from twinbus.namespace.access import Endpoint
from twinbus.syphon.lease import lease_address
from twinbus.transfer.sections import to_backlog_sections

QUEUES = [f"contoso/x-servicebus-transfer/{index}" for index in range(4)]
SESSIONS = [f"session-{number}" for number in range(8)]
KINDS = ("orders", "once", "events", "sessions")
"""A queue, one with duplicate detection, a topic, a queue with sessions."""
PLACES = {kind: kind for kind in KINDS} | {"events": "events/Subscriptions/all"}
"""Where messages for each of them arrive."""

LOCK = timedelta(seconds=10)
"""Short, so that what a killed task had comes back while a test waits, and not so short that one
runs out while its task waits for a processor."""
BATCH = 50
PATIENCE_S = 60.0
LOOK_S = 0.02


@dataclass(frozen=True)
class World:
    """A primary, and a secondary with backlog queues."""

    primary: str
    secondary: str
    arrived: Places = field(default_factory=Places)
    shipped: tuple[str, str] | None = None
    """Both as a Spark driver gets them, if not by their connection strings."""

    def fill(self, name: str, each: int) -> None:
        """`each` messages for each kind of destination, over all backlog queues."""
        asyncio.run(self._fill(name, each))

    def waiting(self) -> int:
        """What is left in the backlog."""

        async def ask() -> int:
            endpoint = Endpoint.parse(self.secondary)
            counts = await asyncio.gather(*(counts_of(endpoint, queue) for queue in QUEUES))
            return sum(count.waiting for count in counts)

        return asyncio.run(ask())

    def wait_until_below(self, limit: int, patience_s: float) -> int:
        """What is left when it is no more than `limit`; patient as long as some go."""
        least, ends = sys.maxsize, 0.0
        while (waiting := self.waiting()) > limit:
            if waiting < least:
                least, ends = waiting, time.monotonic() + patience_s
            assert time.monotonic() < ends, f"{waiting} messages are left, of which none goes"
            time.sleep(LOOK_S)
        return waiting

    def received(self) -> dict[str, list[str]]:
        """All that has arrived since the last look: message ids by destination, in order."""
        return asyncio.run(self._look())

    async def _fill(self, name: str, each: int) -> None:
        parts: dict[str, list[bytes]] = {queue: [] for queue in QUEUES}
        for number in range(each):
            for at, kind in enumerate(KINDS):
                session = SESSIONS[number % len(SESSIONS)] if kind == "sessions" else None
                # A session's messages stay together, as strict order wants them.
                place = number % len(SESSIONS) if session else number + at
                sent = encode_message(
                    properties=Properties(
                        message_id=f"{name}-{kind}-{number:06d}", group_id=session
                    ),
                    data=b"x" * 200,
                )
                stored = join(to_backlog_sections(split(sent), kind, now_ms=0))
                parts[QUEUES[place % len(QUEUES)]].append(stored)
        connection = await RawClient.open(self.secondary)
        for queue, messages in parts.items():
            sender = await connection.sender(queue)
            answers = []
            for at in range(0, len(messages), BATCH):
                await sender.room()
                answers.append(sender.send(batch(messages[at : at + BATCH]), is_batch=True))
            await asyncio.gather(*answers)
        await connection.close()

    async def _look(self) -> dict[str, list[str]]:
        # Peeked at, not received: nobody has to guess from a silence that there is no more.
        self.arrived.forget()
        await self.arrived.look(self.primary, list(PLACES.values()))
        found = {name: self.arrived.ids.get(path, []) for name, path in PLACES.items()}
        del found["sessions"]
        return found | {name: self.arrived.sessions.get(name, []) for name in SESSIONS}


def without_key(connection_string: str, variable: str) -> str:
    """A namespace whose key is in a variable of the environment."""
    host = urlsplit(connection_string.partition("Endpoint=")[2].partition(";")[0]).netloc
    return f"sb://{host}?credential=env:{variable}"


@contextmanager
def world(directory: Path, *, lock: timedelta = LOCK) -> Iterator[World]:
    """Both namespaces, in one broker process that nobody kills."""
    with ServedBroker(directory, "contoso", "contoso-dr", ephemeral=True) as broker:
        made = World(broker.connection_string("contoso"), broker.connection_string("contoso-dr"))
        with administration(made.primary) as admin:
            admin.create_queue("orders")
            admin.create_queue("once", requires_duplicate_detection=True)
            admin.create_queue("sessions", requires_session=True)
            admin.create_topic("events")
            admin.create_subscription("events", "all")
        with administration(made.secondary) as admin:
            for queue in QUEUES:
                admin.create_queue(queue, lock_duration=lock, max_delivery_count=2**31 - 1)
            admin.create_queue(
                lease_address(QUEUES[0]).queue, requires_session=True, lock_duration=lock
            )
        yield made


class Driver:
    """`drain_driver` in a process, its JVM and its executors; a context manager."""

    def __init__(
        self,
        master: str,
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        executors: Callable[[], list[int]] | None = None,
    ) -> None:
        """`executors` tells their process ids; None: they are children of the driver's JVM."""
        self._log: IO[bytes] = log.open("wb")
        self._executors = executors
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.drain_driver", master],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=Path(__file__).parents[2],
            env=environment,
        )
        self.started: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self.started = self.answer()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        if exc[0] is not None:
            self.kill9()
        self._process.stdin.close()
        try:
            self._process.wait(30)
        finally:
            self._log.close()
            if self._process.poll() is None:
                self.kill9()

    def order(self, world: World, ledger: Path, *, limit: int, strict: bool = False) -> None:
        """Have it drain; `answer` waits for the end."""
        primary, secondary = world.shipped or (world.primary, world.secondary)
        order = {
            "do": "drain",
            "primary": primary,
            "secondary": secondary,
            "queues": QUEUES,
            "ledger": str(ledger),
            "limit": limit,
            "session_order": "strict" if strict else "relaxed",
        }
        self._send(order)

    def order_update(self, ledger: Path, tables: Path, *, shared: bool = True) -> None:
        """Have it update tables as it would large ones; `answer` waits for the end."""
        order = {"do": "update", "ledger": str(ledger), "tables": str(tables), "shared": shared}
        self._send(order)

    def _send(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the driver ended: see {self._log.name}"
        found: dict[str, Any] = json.loads(line)
        return found

    @property
    def jvm(self) -> int:
        (found,) = [pid for pid in children(self._process.pid) if is_java(pid)]
        return found

    @property
    def executors(self) -> list[int]:
        """The JVMs that run tasks."""
        if self._executors is not None:
            return self._executors()
        return [pid for pid in children(self.jvm) if is_java(pid)]

    @property
    def helpers(self) -> list[int]:
        """The executors and their Python."""
        return [pid for one in self.executors for pid in (one, *descendants(one))]

    def busy_executor(self, ledger: Path) -> int:
        """The executor whose Python has written to the ledger last, and its name has its pid."""
        ends = time.monotonic() + PATIENCE_S
        while time.monotonic() < ends:
            latest = max(ledger.glob("*.jsonl*"), key=_written_at, default=None)
            pid = int(latest.name.split("-")[-3]) if latest else 0
            for executor in self.executors:
                if pid in descendants(executor):
                    return executor
            time.sleep(0.02)
        raise AssertionError(f"no executor writes to {ledger}")

    def kill9(self) -> None:
        """End the Spark driver, as a machine does that loses its power: Python and JVM."""
        for pid in [*children(self._process.pid), self._process.pid]:
            kill9(pid)
        self._process.wait()


def kill9(pid: int) -> None:
    """Kill a process that this test has started."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def children(pid: int) -> list[int]:
    """Its children, by all of its threads."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(word) for word in path.read_text().split()]
    return sorted(found)


def descendants(pid: int) -> list[int]:
    """Its children and theirs, and so on."""
    return [each for child in children(pid) for each in (child, *descendants(child))]


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_java(pid: int) -> bool:
    """Whether a process is a JVM."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].endswith(b"java")
    except (FileNotFoundError, ProcessLookupError):
        return False


def _written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # it has got another name meanwhile
        return 0.0


def duplicates(arrived: dict[str, list[str]]) -> Counter[str]:
    """Ids that came more than once, and how many times too often."""
    counts = Counter(key for keys in arrived.values() for key in keys)
    return Counter({key: count - 1 for key, count in counts.items() if count > 1})
