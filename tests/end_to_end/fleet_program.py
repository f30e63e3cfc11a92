"""Many processes with one pair of namespaces each, which begin to send one after the other.

Arguments: the connection strings of both sides, the label, a directory. The environment has FLEET,
a `FleetPlan` in JSON. Each process prints a line of JSON for each event. They begin to send when
the directory has a file `go`, whose text is the time.

The processes are forked from one that has imported everything: a hundred fit into little memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusMessage

from tests.processes import line_of, started
from twinbus import Namespace, SendAvailabilityOptions, TwinbusError, pair_namespaces
from twinbus.pairing.observing.events import EntityChanged, PairEvent, PingEnded

QUEUE = "orders"


@dataclass(frozen=True)
class FleetPlan:
    """What the processes do."""

    processes: int
    interval_s: float = 60.0
    """Failover interval; of the first process that of `first_interval_s`."""
    first_interval_s: float = 1.0
    speakers: int = 1
    """Processes that have the first one's interval, and begin with it."""
    stagger_s: float = 0.0
    """In which the others begin, one after the other."""
    starts_s: float = 0.0
    """When the first of the others begins."""
    life_s: float = 10.0
    """How long each sends; the speakers until the last of the others ends."""
    pause_s: float = 0.5
    """Between two sends of a process."""
    hosts: bool = False
    """Whether each process has a run directory of its own."""
    options: dict[str, Any] = field(default_factory=dict)

    def ends_s(self, number: int) -> float:
        """When a process ends, after the go."""
        last = self.processes - 1 if number < self.speakers else number
        return self.begins_s(last) + self.life_s

    def begins_s(self, number: int) -> float:
        """When a process sends first, after the go."""
        if number < self.speakers:
            return 0.0
        others = max(1, self.processes - self.speakers)
        return self.starts_s + (number - self.speakers) * self.stagger_s / others


def say(number: int, kind: str, **facts: Any) -> None:
    line = json.dumps({"process": number, "kind": kind, "at": time.time(), **facts}) + "\n"
    os.write(1, line.encode())


async def run(plan: FleetPlan, number: int, primary: str, secondary: str, label: str) -> None:
    is_first = number < plan.speakers
    given: dict[str, Any] = {"ping_primary_interval": 60, "attempt_timeout": 2, **plan.options}
    options = SendAvailabilityOptions(
        backlog_queue_count=1,
        failover_interval=plan.first_interval_s if is_first else plan.interval_s,
        ledger="",
        **given,
    )

    def tell(event: PairEvent) -> None:
        if isinstance(event, EntityChanged):
            say(number, str(event.after), reason=event.reason)
        elif isinstance(event, PingEnded):
            say(number, "ping", answered=event.answered)

    side = Namespace.from_connection_string(primary, name=label)
    async with pair_namespaces(side, secondary, options) as pair:
        pair.on_event(tell)
        say(number, "ready", pid=os.getpid())
        go = Path(sys.argv[4]) / "go"
        while not go.exists():  # noqa: ASYNC110  # another process makes it
            await asyncio.sleep(0.05)
        gone_at = float(go.read_text())
        await asyncio.sleep(max(0.0, gone_at + plan.begins_s(number) - time.time()))
        sender = pair.get_queue_sender(QUEUE)
        say(number, "begins")
        while time.time() < gone_at + plan.ends_s(number):
            with suppress(TwinbusError):
                await sender.send_messages(ServiceBusMessage(f"from {number}"))
            await asyncio.sleep(plan.pause_s)
        status = pair.status()
        one = status.entities[QUEUE]
        say(
            number, "ends", state=one.state, diverted=one.diverted, raised=one.raised,
            evidence=one.evidence, pinger=one.pinger, fleet=str(status.fleet),
        )  # fmt: skip


def main(primary: str, secondary: str, label: str, directory: str) -> None:
    plan = FleetPlan(**json.loads(os.environ["FLEET"]))
    children = []
    for number in range(plan.processes):
        child = os.fork()
        if not child:
            if plan.hosts:
                os.environ["TWINBUS_RUN_DIR"] = str(Path(directory) / str(number))
            asyncio.run(run(plan, number, primary, secondary, label))
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


class RunningFleet:
    """The processes, as a test sees them."""

    def __init__(self, process: Any, plan: FleetPlan, directory: Path) -> None:
        self.process = process
        self.plan = plan
        self.directory = directory
        self.events: list[dict[str, Any]] = []

    def read(self, kind: str, count: int) -> None:
        """Read events until there are so many of a kind."""
        while len(self.of(kind)) < count:
            line = line_of(self.process)
            assert line, f"ended with {len(self.of(kind))} of {count} {kind!r}"
            self.events.append(json.loads(line))

    def of(self, kind: str, process: int | None = None) -> list[dict[str, Any]]:
        return [
            one for one in self.events if one["kind"] == kind and process in (None, one["process"])
        ]

    def at(self, kind: str, process: int) -> float:
        """When that happened first in a process."""
        return float(self.of(kind, process)[0]["at"])

    def go(self) -> None:
        hidden = self.directory / "not-yet"
        hidden.write_text(str(time.time()))
        hidden.rename(self.directory / "go")


@contextmanager
def fleet(
    plan: FleetPlan, primary: str, secondary: str, label: str, directory: Path
) -> Iterator[RunningFleet]:
    """The processes for the block; all are paired when it begins."""
    directory.mkdir(exist_ok=True)
    own = {"FLEET": json.dumps(asdict(plan)), "TWINBUS_RUN_DIR": str(directory)}
    places = (__file__, primary, secondary, label, str(directory))
    with started(*places, environment=own) as process:
        running = RunningFleet(process, plan, directory)
        try:
            running.read("ready", plan.processes)
            yield running
        finally:
            # Until their parent has waited for them, the numbers are theirs.
            for child in running.of("ready"):
                with suppress(ProcessLookupError):
                    os.kill(child["pid"], signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
