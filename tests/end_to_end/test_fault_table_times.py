"""How soon an outage is over for callers, and how soon they are back: measured on real parts.

From the first failed attempt to the first diverted acknowledgement: at most failover_interval +
attempt_timeout + 0.2 s. After the answered ping every sender is back on the primary at once.
"""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.contract.pairs import quick, until
from tests.official_sdk import Faults, administration, async_client
from tests.processes import ServedBroker
from twinbus import pair_namespaces
from twinbus.ledger import read
from twinbus.pair import Pair

pytestmark = pytest.mark.end_to_end

FAILOVER_S = 1.0
ATTEMPT_S = 1.0
SLACK_S = 0.2
SENDERS, TASKS = 5, 20
PACE_S = 0.05
LOOK_S = 0.005
OPENING_S = 0.6
"""What opening a link takes the SDK on a machine that has time for it."""

LIMITS_S = {
    "hang": FAILOVER_S + ATTEMPT_S + SLACK_S,
    "hang, interval 0": ATTEMPT_S + SLACK_S,
    "SIGSTOP": FAILOVER_S + ATTEMPT_S + SLACK_S,
    "kill -9": FAILOVER_S + ATTEMPT_S + SLACK_S,
}
PATIENCE_S = 30.0
TRIES = 3


@dataclass
class Lag:
    """How slow the machine is: on an overloaded one nothing can be in time."""

    worst_s: float = 0.0
    """How late this process got its turn, at the worst."""
    ever_s: float = 0.0
    """The same, also after the first message was diverted."""
    opening_s: float = 0.0
    """What opening a link to the secondary took the plain SDK in the same outage."""

    is_diverted: bool = False

    @property
    def excused_s(self) -> float:
        """Late by the machine's fault: this process and the secondary each in its turn, and a link
        that cannot be opened in the usual time."""
        return 2 * self.worst_s + max(0.0, self.opening_s - OPENING_S)

    @property
    def is_bearable(self) -> bool:
        """Whether somebody who does all right is in time: twenty tasks each need a turn, and five
        links are opened at once, within an attempt's timeout."""
        return self.ever_s < ATTEMPT_S / 4 and self.opening_s < OPENING_S

    async def open_link(self, secondary: str) -> None:
        loop = asyncio.get_running_loop()
        async with async_client(secondary) as client:
            began, self.opening_s = loop.time(), math.inf
            async with client.get_queue_sender("control"):
                self.opening_s = loop.time() - began

    async def watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LOOK_S
            await asyncio.sleep(LOOK_S)
            self.ever_s = max(self.ever_s, loop.time() - due)
            if not self.is_diverted:
                self.worst_s = max(self.worst_s, loop.time() - due)


@dataclass
class Traffic:
    """Many tasks over several senders, until told to stop."""

    pair: Pair
    accepted: set[str] = field(default_factory=set)
    stopped: bool = False

    async def run(self) -> None:
        numbers = count()
        senders = [self.pair.get_queue_sender("orders") for _ in range(SENDERS)]
        async with asyncio.TaskGroup() as group:
            for task in range(TASKS):
                group.create_task(self._send(senders[task % SENDERS], f"task-{task}", numbers))

    async def _send(self, sender: Any, name: str, numbers: Iterator[int]) -> None:
        while not self.stopped:
            message = ServiceBusMessage("x", message_id=f"{name}-{next(numbers)}")
            await sender.send_messages(message, timeout=PATIENCE_S)
            self.accepted.add(str(message.message_id))
            await asyncio.sleep(PACE_S)


class Outage:
    """One way for the primary to fail, and its end."""

    def __init__(self, kind: str, primary: ServedBroker) -> None:
        self.interval_s = 0.0 if kind.endswith("interval 0") else FAILOVER_S
        self.began_s = 0.0
        self._kind, self._primary = kind, primary
        self._faults = Faults(primary.connection_string())

    async def begin(self) -> None:
        self.began_s = time.time()
        match self._kind:
            case "kill -9":
                self._primary.kill9()
            case "SIGSTOP":
                self._primary.process.send_signal(signal.SIGSTOP)
            case _:
                await asyncio.to_thread(lambda: self._faults.add("hang", entity="orders"))

    async def end(self) -> None:
        match self._kind:
            case "kill -9":
                await asyncio.to_thread(self._primary.restart)
            case "SIGSTOP":
                self._primary.process.send_signal(signal.SIGCONT)
            case _:
                await asyncio.to_thread(self._faults.clear)


@dataclass(frozen=True)
class Record:
    """What the ledger says of one operation, in seconds."""

    operation: str
    began_s: float
    ended_s: float
    outcome: str
    state: str
    message_id: str

    @classmethod
    def of(cls, line: dict[str, Any]) -> Record:
        ended_s = line["at_ms"] / 1000
        return cls(
            operation=line["operation"],
            began_s=ended_s - line.get("latency_us", 0) / 1e6,
            ended_s=ended_s,
            outcome=line.get("outcome", ""),
            state=line.get("state", ""),
            message_id=line.get("message_id", ""),
        )


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServedBroker, ServedBroker]]:
    first, second = tmp_path_factory.mktemp("primary"), tmp_path_factory.mktemp("secondary")
    with ServedBroker(first, "contoso") as primary, ServedBroker(second, "dr") as secondary:
        with administration(primary.connection_string()) as admin:
            admin.create_queue("orders")
        with administration(secondary.connection_string()) as admin:
            admin.create_queue("control")
        yield primary, secondary


@pytest.mark.parametrize("kind", LIMITS_S)
def test_callers_are_diverted_in_time_and_all_return_at_once(
    two: tuple[ServedBroker, ServedBroker],
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lag = Lag()
    for number in range(TRIES):
        lag, outage, ledger = Lag(), Outage(kind, two[0]), tmp_path / str(number)
        try:
            traffic = asyncio.run(through(outage, two, lag, ledger))
            records = [Record.of(line) for line in read(ledger)]
            with capsys.disabled():
                diverted_in_time(kind, records, lag)
            if kind == "kill -9":
                known_at_once(outage.began_s, records, lag)
            back_at_once(records, traffic)
        except (AssertionError, TimeoutError, ExceptionGroup):
            # Whose fault that was, the machine's own lag and a plain link tell.
            if lag.is_bearable:
                raise
        else:
            return
    pytest.skip(f"late by {lag.ever_s:.1f} s, a plain link took {lag.opening_s:.1f} s: too busy")


async def through(
    outage: Outage, two: tuple[ServedBroker, ServedBroker], lag: Lag, ledger: Path
) -> Traffic:
    """Traffic before, in and after an outage."""
    options = quick(failover_interval=outage.interval_s, attempt_timeout=ATTEMPT_S, ledger=ledger)
    primary, secondary = (broker.connection_string() for broker in two)
    async with pair_namespaces(primary, secondary, options) as pair:

        def orders() -> Any:
            return pair.status().entities["orders"]

        traffic = Traffic(pair)
        running = asyncio.create_task(traffic.run())
        watching = asyncio.create_task(lag.watch())
        try:
            await until(lambda: "orders" in pair.status().entities and orders().sent > 2 * TASKS)
            # From here on: the links are open, and opening the first is no part of the question.
            lag.worst_s = 0.0
            await outage.begin()
            control = asyncio.create_task(lag.open_link(secondary))
            try:
                await until(lambda: orders().diverted > 0)
                lag.is_diverted = True
                await control
                await until(lambda: orders().diverted > 2 * TASKS)
            finally:
                await outage.end()
            await until(lambda: orders().state == "healthy")
            sent = orders().sent
            await until(lambda: orders().sent > sent + 3 * TASKS)
        finally:
            traffic.stopped = True
            watching.cancel()
        await running
    return traffic


def diverted_in_time(kind: str, records: list[Record], lag: Lag) -> None:
    failed = [r.began_s for r in records if r.operation == "send" and r.outcome != "ok"]
    diverted = [r.ended_s for r in records if r.operation == "divert" and r.outcome == "ok"]
    took_s, limit_s = min(diverted) - min(failed), LIMITS_S[kind]
    print(  # noqa: T201  # a figure that was measured is a result
        f"\n{kind}: first failed attempt to first diverted acknowledgement {took_s:.3f} s,"
        f" at most {limit_s:.1f} s; worst lag of the loop {lag.worst_s:.3f} s, a plain link opened"
        f" in {lag.opening_s:.3f} s"
    )
    assert took_s <= limit_s + lag.excused_s


def known_at_once(killed_s: float, records: list[Record], lag: Lag) -> None:
    """The dead refuse at once: no attempt lasts as long as it may, and none waits for the SDK."""
    failed = [r.ended_s for r in records if r.operation == "send" and r.outcome != "ok"]
    assert min(failed) - killed_s <= SLACK_S + lag.excused_s


def back_at_once(records: list[Record], traffic: Traffic) -> None:
    states = [r for r in records if r.operation == "state"]
    assert [r.state for r in states if r.state != "suspect"] == ["failed over", "healthy"]
    healthy_s = states[-1].ended_s
    # The ledger counts whole milliseconds.
    late = [r for r in records if r.operation == "divert" and r.began_s > healthy_s + 0.002]
    assert late == []
    stored = {r.message_id for r in records if r.outcome == "ok"}
    assert traffic.accepted <= stored
    back = [r for r in records if r.operation == "send" and r.began_s > healthy_s - 0.002]
    assert {r.outcome for r in back} == {"ok"}
    names = {r.message_id.rpartition("-")[0] for r in back}
    assert names == {f"task-{number}" for number in range(TASKS)}


def test_the_bound_can_be_missed() -> None:
    """The check itself: a divert that is late, on a machine that is not, is found."""
    late = LIMITS_S["hang"] + 0.1
    records = [
        Record("send", 0.0, 1.0, "failed", "", "a"),
        Record("divert", late - 0.1, late, "ok", "", "a"),
    ]
    with pytest.raises(AssertionError):
        diverted_in_time("hang", records, Lag(0.01))
    diverted_in_time("hang", records, Lag(0.06))
