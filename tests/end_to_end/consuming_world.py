"""Consumers in processes of their own while the primary is killed or hangs, again and again.

    senders (this process)  ->  primary    <-  an asyncio, a blocking and a Celery consumer
                                twins      <-

Each consumer has entities of its own, all of them with duplicate detection and with twins made by
`twinbus twins create`. What was accepted is compared by id with the books of the consumers.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import SqlRuleFilter

from tests.end_to_end import consuming_program
from tests.end_to_end.consuming_program import (
    ATTEMPT_S,
    BOOK,
    CELERY_QUEUE,
    FAILOVER_S,
    HANDED_OUT,
    KINDS,
    SETTINGS,
    Place,
    lines_of,
    places,
)
from tests.official_sdk import administration
from tests.processes import ServedBroker, run_twinbus, until
from twinbus import SendAvailabilityOptions, pair_namespaces
from twinbus.kombu.process_pair import close_process_pairs
from twinbus.servicebus.names import BOARD_MARK

ROOT = Path(__file__).resolve().parents[2]
GAP_MAX_S: Final = FAILOVER_S + ATTEMPT_S + 5.0
LEAD_S, OUTAGE_S, TAIL_S = 3.0, 30.0, 12.0
"""Of healthy sends, of the outage, and of sends after it."""
RATE: Final = 8.0
"""Messages a second to each entity."""
SEND_S: Final = 60.0
"""Timeout of a send: longer than a failover takes."""
PATIENCE_S: Final = 180.0
THREADS: Final = 64
"""That send tasks; each call waits for the failover."""

NOT_CONFIRMED: Final = "its completion was not confirmed, so its lock was lost"
OTHER_PROCESS: Final = "a copy of an unanswered send; another process completed the first one"
PROCESS_KILLED: Final = "another process ran it after the first one was killed"
NOT_SETTLED: Final = "a task could not be settled"
"""In the log of a worker."""


class Consumer:
    """One consumer process, its book and its log."""

    def __init__(self, kind: str, directory: Path, environment: dict[str, str]) -> None:
        self.kind = kind
        self.book = directory / f"{kind}.book"
        self.log = directory / f"{kind}.log"
        self._environment = {**os.environ, **environment, BOOK: str(self.book)}
        self.kills = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        module = "tests.end_to_end.consuming_program"
        command = ["-m", module, self.kind, str(self.book)]
        if self.kind == "celery":
            name = f"{os.getpid()}@localhost"
            command = ["-m", "celery", "-A", module, "worker", "-P", "solo", "-l", "INFO"]
            command += ["-n", name, "--without-mingle", "--without-gossip"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env={**self._environment, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None


@dataclass
class PlaceResult:
    """What became of the messages at one place of a consumer."""

    gap_s: float = 0.0
    """The longest time without a message, from the fault to the last send."""
    lost: set[str] = field(default_factory=set)
    twice: dict[str, str] = field(default_factory=dict)
    """Ids that were handed out more than once, and the reason of each; empty: there is none."""


class ConsumingWorld:
    """Two namespaces as processes, three consumers, and the senders of this process."""

    def __init__(self, directory: Path, lock_s: float) -> None:
        self.primary = ServedBroker(directory / "primary", "contoso")
        self.secondary = ServedBroker(directory / "secondary", "contoso-dr")
        self.consumers: dict[str, Consumer] = {}
        self.accepted: dict[str, set[str]] = defaultdict(set)
        """Ids of messages whose send returned, by place."""
        self.raised: list[str] = []
        self._directory = directory
        self._lock_s = lock_s
        self._round = 0
        self._not_settled = 0
        """Tasks that could not be settled before this round, as the log of the worker says."""
        self._is_outage = threading.Event()

    @contextmanager
    def running(self) -> Iterator[ConsumingWorld]:
        with ExitStack() as stack:
            for broker in (self.primary, self.secondary):
                stack.enter_context(broker)
            self._create()
            for kind in KINDS:
                consumer = Consumer(kind, self._directory, self._sides)
                self.consumers[kind] = consumer
                stack.callback(consumer.kill)
                consumer.start()
            # This process sends tasks, and reads the namespaces from its environment.
            stack.enter_context(patch.dict(os.environ, self._sides))
            stack.callback(close_process_pairs)
            # Without a pool of connections: another world comes behind the same URL.
            consuming_program.app.conf.broker_pool_limit = None
            yield self

    @property
    def _sides(self) -> dict[str, str]:
        return {
            "TWINBUS_PRIMARY": self.primary.connection_string(),
            "TWINBUS_SECONDARY": self.secondary.connection_string(),
        }

    def _create(self) -> None:
        lock: Any = {"lock_duration": timedelta(seconds=self._lock_s), "max_delivery_count": 1_000}
        with administration(self.primary.connection_string()) as admin:
            for kind in KINDS:
                queue, *topic = places(kind)
                admin.create_queue(queue.entity, requires_duplicate_detection=True, **lock)
                for entity in {place.entity for place in topic}:
                    admin.create_topic(entity, requires_duplicate_detection=True)
                for entity, name in topic:
                    assert name is not None
                    admin.create_subscription(entity, name, **lock)
                    if name == "red":
                        admin.delete_rule(entity, name, "$Default")
                        only = SqlRuleFilter("color = 'red'")
                        admin.create_rule(entity, name, "only", filter=only)
        made = run_twinbus("twins", "create", "--all", environment=self._sides)
        assert made.returncode == 0, made.stdout + made.stderr

    def suffer(self, fault: str, *, kill_consumers: random.Random | None = None) -> dict[str, Any]:
        """Send through one outage; return what became of the messages, by place.

        With `kill_consumers` each of them is killed at random points and started again.
        """
        self._round += 1
        self._is_outage.clear()
        before = {kind: self._events(kind) for kind in KINDS}
        self._not_settled = self._count_not_settled()
        stopped = threading.Event()
        with ThreadPoolExecutor(THREADS) as pool:
            killing = [
                pool.submit(self._kill_now_and_then, consumer, kill_consumers, stopped)
                for consumer in self.consumers.values()
                if kill_consumers is not None
            ]
            began, ended = asyncio.run(self._send_through(fault, pool))
            stopped.set()
            for one in killing:
                one.result()
        self._until_empty()
        found: dict[str, PlaceResult] = {}
        for kind in KINDS:
            events = self._events(kind)[len(before[kind]) :]
            for place in places(kind):
                here = [event for event in events if event["place"] == str(place)]
                found[str(place)] = self._judged(kind, str(place), here, began, ended)
        return found

    def _kill_now_and_then(
        self, consumer: Consumer, chance: random.Random, stopped: threading.Event
    ) -> None:
        until(self._is_outage.is_set, PATIENCE_S)
        while not stopped.is_set():
            # A killed consumer that had not begun would show nothing: it takes seconds to start.
            before = len(self._events(consumer.kind))
            while len(self._events(consumer.kind)) == before:
                if stopped.wait(0.2):
                    return
            if not stopped.wait(chance.uniform(0.0, 5.0)):
                consumer.kill()
                consumer.start()
                consumer.kills += 1

    async def _send_through(self, fault: str, pool: ThreadPoolExecutor) -> tuple[float, float]:
        """Send at a steady rate; return when the fault began and when the last send ended."""
        text = self.primary.connection_string(), self.secondary.connection_string()
        async with (
            pair_namespaces(*text, SendAvailabilityOptions(**SETTINGS)) as pair,
            asyncio.TaskGroup() as group,
        ):
            ended = asyncio.Event()
            for kind in KINDS[:2]:
                group.create_task(self._send_to(pair, kind, ended))
            group.create_task(self._send_tasks(pool, ended))
            # A consumer takes seconds to start on a busy machine.
            await asyncio.to_thread(until, self._has_each_received, PATIENCE_S)
            await asyncio.sleep(LEAD_S)
            began = time.time()
            self._is_outage.set()
            await self._outage(fault)
            await asyncio.sleep(TAIL_S)
            ended.set()
        return began, time.time()

    def _has_each_received(self) -> bool:
        """Whether a message of this round has come to every place."""
        wanted = {str(place) for kind in KINDS for place in places(kind)}
        events = [event for kind in KINDS for event in self._events(kind)]
        mine = [event for event in events if event["id"].split("-")[1] == str(self._round)]
        return wanted == {event["place"] for event in mine}

    async def _outage(self, fault: str) -> None:
        if fault == "killed":
            self.primary.kill9()
            await asyncio.sleep(OUTAGE_S)
            await asyncio.to_thread(self.primary.restart)
        else:
            self.primary.process.send_signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(OUTAGE_S)
            finally:
                self.primary.process.send_signal(signal.SIGCONT)

    async def _send_to(self, pair: Any, kind: str, ended: asyncio.Event) -> None:
        """Send to the queue and the topic of a consumer, each message by a task of its own."""
        queue, topic = f"orders.{kind}", f"news.{kind}"
        async with (
            pair.get_queue_sender(queue) as to_queue,
            pair.get_topic_sender(topic) as to_topic,
            asyncio.TaskGroup() as group,
        ):
            number = 0
            while not ended.is_set():
                color = ("red", "blue")[number % 2]
                group.create_task(self._send(to_queue, queue, number, [str(Place(queue))]))
                names = ["all", "red"] if color == "red" else ["all"]
                there = [str(Place(topic, name)) for name in names]
                group.create_task(self._send(to_topic, topic, number, there, color=color))
                number += 1
                await asyncio.sleep(1 / RATE)

    async def _send(
        self, sender: Any, entity: str, number: int, there: list[str], **properties: Any
    ) -> None:
        name = f"{entity}-{self._round}-{number:05d}"
        found: dict[Any, Any] = properties
        message = ServiceBusMessage(name, message_id=name, application_properties=found)
        try:
            await sender.send_messages(message, timeout=SEND_S)
        except Exception as error:  # noqa: BLE001  # the test says which
            self.raised.append(f"{name}: {error!r}")
        else:
            for place in there:
                self.accepted[place].add(name)

    async def _send_tasks(self, pool: ThreadPoolExecutor, ended: asyncio.Event) -> None:
        def send(name: str) -> None:
            try:
                consuming_program.record.apply_async((name,), queue=CELERY_QUEUE)
            except Exception as error:  # noqa: BLE001  # the test says which
                self.raised.append(f"{name}: {error!r}")
            else:
                self.accepted[CELERY_QUEUE].add(name)

        loop = asyncio.get_running_loop()
        sends: list[asyncio.Future[None]] = []
        while not ended.is_set():
            name = f"{CELERY_QUEUE}-{self._round}-{len(sends):05d}"
            sends.append(loop.run_in_executor(pool, send, name))
            await asyncio.sleep(2 / RATE)
        await asyncio.gather(*sends)

    def _until_empty(self) -> None:
        """Wait until all was received and completed, and assert that no twin has anything left."""
        deadline = time.monotonic() + PATIENCE_S
        while left := self._left():
            dead = [one.kind for one in self.consumers.values() if not one.is_running]
            assert not dead, {kind: self.consumers[kind].log.read_text()[-3_000:] for kind in dead}
            assert time.monotonic() < deadline, f"left: {left}"
            time.sleep(0.5)

    def _left(self) -> dict[str, int]:
        """Messages in both namespaces, by place: in entities, twins and backlog queues.

        What the notice board of the pairs holds is no message of a sender, and expires.
        """
        found: dict[str, int] = {}
        for side in (self.primary, self.secondary):
            with administration(side.connection_string()) as admin:
                for queue in admin.list_queues_runtime_properties():
                    if queue.name.endswith(BOARD_MARK):
                        continue
                    found[f"{side.port()} {queue.name}"] = queue.total_message_count or 0
                for topic in admin.list_topics():
                    for one in admin.list_subscriptions_runtime_properties(topic.name):
                        name = f"{side.port()} {topic.name}/{one.name}"
                        found[name] = one.total_message_count or 0
        return {name: count for name, count in found.items() if count}

    def _events(self, kind: str) -> list[dict[str, Any]]:
        return list(lines_of(self.consumers[kind].book))

    def _judged(
        self, kind: str, place: str, events: list[dict[str, Any]], began: float, ended: float
    ) -> PlaceResult:
        handed_out = [event for event in events if event["event"] == HANDED_OUT]
        names = Counter(event["id"] for event in handed_out)
        mine = {name for name in self.accepted[place] if name.split("-")[1] == str(self._round)}
        times = sorted(event["at"] for event in handed_out if began <= event["at"] <= ended)
        steps = zip([began, *times], [*times, ended], strict=True)
        result = PlaceResult(max(later - earlier for earlier, later in steps), mine - {*names})
        is_task = kind == "celery"
        for name in (name for name, count in names.items() if count > 1):
            mine_here = [event for event in events if event["id"] == name]
            result.twice[name] = _reason_of_task(mine_here) if is_task else _reason(mine_here)
        if is_task:
            self._excuse_tasks(result.twice)
        return result

    def _count_not_settled(self) -> int:
        log = self.consumers["celery"].log
        return log.read_text().count(NOT_SETTLED) if log.exists() else 0

    def _excuse_tasks(self, twice: dict[str, str]) -> None:
        """Give as many tasks a reason as could not be settled in this round.

        The log does not say which they were.
        """
        count = self._count_not_settled() - self._not_settled
        without = [name for name, reason in twice.items() if not reason]
        twice.update(dict.fromkeys(without[:count], NOT_CONFIRMED))


def _reason_of_task(events: list[dict[str, Any]]) -> str:
    """The reason for one task: it does not know its message, but which process ran it."""
    return PROCESS_KILLED if len({event["process"] for event in events}) > 1 else ""


def _reason(events: list[dict[str, Any]]) -> str:
    """Why one message was handed out more than once; empty: there is no reason."""
    held: set[tuple[str, int]] = set()
    completed: set[tuple[str, int]] = set()
    reason = ""
    for event in events:
        copy = event["side"], event["number"]
        if event["event"] == "completed":
            completed.add(copy)
        if event["event"] != HANDED_OUT:
            continue
        if copy in completed:
            return ""
        if held and held <= completed:
            if not any(one["unanswered"] for one in events):
                return ""
            reason = OTHER_PROCESS
        elif held:
            reason = reason or NOT_CONFIRMED
        held.add(copy)
    return reason
