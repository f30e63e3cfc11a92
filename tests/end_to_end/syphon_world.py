"""A backlog of every kind between two broker processes, a syphon process, and what became of it.

Nothing is received from the primary: what arrived there is peeked at, in its order, with all
duplicates. So a look is possible at any time, and changes nothing.
"""

from __future__ import annotations

import asyncio
import json
import queue as queues
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from azure.servicebus import ServiceBusClient

from tests.end_to_end import syphon_worker
from tests.end_to_end.raw_client import RawClient, batch
from tests.official_sdk import administration
from tests.processes import ServedBroker
from twinbus.amqp.message import (
    Properties,
    decode_map,
    decode_properties,
    encode_message,
    join,
    split,
)
from twinbus.amqp.types import Int, Symbol
from twinbus.client.lock_validity import STOPPED_MARK
from twinbus.client.peeking import open_connection
from twinbus.namespace.access import endpoint_of
from twinbus.transfer.sections import to_backlog_sections

REPOSITORY = Path(__file__).parents[2]
LOCK = timedelta(seconds=5)
"""The shortest there is, so that what a killed syphon has locked comes back soon."""

RELAXED = [f"contoso/x-servicebus-transfer/{index}" for index in range(2)]
STRICT = [f"ordered/x-servicebus-transfer/{index}" for index in range(2)]
LEASES = "ordered/x-twinbus-lease"
PLAIN, DETECTING, TOPIC, SESSIONS = "orders", "detected", "events", "sessions"
SUBSCRIPTIONS = [f"{TOPIC}/Subscriptions/{name}" for name in ("all", "audit")]
BATCH = 100
BATCHES_MAX = 50
"""Batches under way while a backlog is filled."""

PAGE = 250
BODY = b"x" * 300


class Places:
    """Which message is where: ids by entity or backlog queue, in the order of the queue."""

    def __init__(self) -> None:
        self.ids: dict[str, list[str]] = {}
        self.sessions: dict[str, list[str]] = {}
        """Of the entity with sessions: ids by session."""
        self._next: dict[str, int] = {}

    async def look(self, connection_string: str, paths: list[str], *, afresh: bool = False) -> None:
        """Peek at what these hold; without `afresh` only at what came since."""
        async with open_connection(endpoint_of(connection_string)) as line:
            for path in paths:
                if afresh:
                    self.ids[path], self._next[path] = [], 1
                while True:
                    start = self._next.setdefault(path, 1)
                    wanted = {"from-sequence-number": start, "message-count": Int(PAGE)}
                    answer = await line.request(path, "peek-message", wanted)
                    if not answer.get("messages"):
                        break
                    for entry in answer["messages"]:
                        self._add(path, entry["message"])

    def forget(self) -> None:
        """Begin anew with what comes after all that was seen."""
        self.ids, self.sessions = {}, {}

    def _add(self, path: str, message: bytes) -> None:
        sections = split(message)
        assert sections.properties is not None
        properties = decode_properties(sections.properties)
        number = decode_map(sections.message_annotations)[Symbol("x-opt-sequence-number")]
        assert isinstance(number, int)
        self._next[path] = number + 1
        self.ids.setdefault(path, []).append(str(properties.message_id))
        if path == SESSIONS:
            self.sessions.setdefault(str(properties.group_id), []).append(
                str(properties.message_id)
            )


class SyphonProcess:
    """A syphon that can be killed, stopped for a while, and waited for."""

    def __init__(self, order: dict[str, object]) -> None:
        self._order = json.dumps(order)
        self._lines: queues.Queue[int | None] = queues.Queue()
        self._process: subprocess.Popen[str]
        self._before = 0
        self.forwarded = 0
        """By all that ran, as far as they told."""

    def start(self) -> None:
        self._before = self.forwarded
        self._lines = queues.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", syphon_worker.__name__, self._order],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._read, args=(self._process, self._lines), daemon=True).start()

    @staticmethod
    def _read(process: subprocess.Popen[str], lines: queues.Queue[int | None]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                lines.put(int(line))
        lines.put(None)

    def wait_for(self, forwarded: int | None, patience_s: float) -> bool:
        """Wait until so many were forwarded, None: until it ended; whether it still runs."""
        ends = time.monotonic() + patience_s
        while forwarded is None or self.forwarded < forwarded:
            try:
                line = self._lines.get(timeout=max(0.0, ends - time.monotonic()))
            except queues.Empty:
                raise AssertionError(
                    f"{self.forwarded} forwarded after {patience_s:g} s, not {forwarded}"
                ) from None
            if line is None:
                assert self._process.wait() == 0, "the syphon failed"
                return False
            self.forwarded = self._before + line
        return True

    def kill9(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop_for_a_while(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)


class SyphonWorld:
    """Both brokers with their entities, and one backlog of `count` messages at a time."""

    def __init__(self, directory: Path, *, window: int) -> None:
        self.window = window
        self.primary = ServedBroker(directory / "primary", "contoso", options=("--quiet",))
        self.secondary = ServedBroker(directory / "secondary", "contoso-dr", options=("--quiet",))
        self.syphon: SyphonProcess
        self.sent: dict[str, list[str]] = {}
        """Ids by destination."""
        self.sent_in: dict[str, list[str]] = {}
        """Ids by session, in the order of sending."""
        self.arrived = Places()

    def __enter__(self) -> SyphonWorld:
        self.primary.start()
        self.secondary.start()
        with administration(self.primary.connection_string()) as admin:
            admin.create_queue(PLAIN)
            admin.create_queue(DETECTING, requires_duplicate_detection=True)
            admin.create_queue(SESSIONS, requires_session=True)
            admin.create_topic(TOPIC)
            for subscription in SUBSCRIPTIONS:
                admin.create_subscription(TOPIC, subscription.rpartition("/")[2])
        with administration(self.secondary.connection_string()) as admin:
            for queue in RELAXED + STRICT:
                admin.create_queue(queue, max_delivery_count=2**31 - 1, lock_duration=LOCK)
            admin.create_queue(LEASES, requires_session=True, lock_duration=timedelta(seconds=30))
        self.syphon = SyphonProcess(
            {
                "primary": self.primary.connection_string(),
                "secondary": self.secondary.connection_string(),
                "queues": {"relaxed": RELAXED, "strict": STRICT},
                "window": self.window,
            }
        )
        return self

    def say_that_the_syphon_is_dead(self) -> None:
        """Else the next one waits for 24 s: it cannot know that."""
        with ServiceBusClient.from_connection_string(self.secondary.connection_string()) as client:
            for index in range(len(STRICT)):
                with client.get_queue_receiver(LEASES, session_id=str(index)) as receiver:
                    receiver.session.set_state(STOPPED_MARK)

    def __exit__(self, *_: object) -> None:
        self.syphon.kill9()
        for broker in (self.primary, self.secondary):
            if broker.is_running:
                broker.kill9()

    # The backlog

    async def fill(self, count: int, *, sessions: int) -> None:
        """Put messages for every kind of entity into the backlog queues, as paired senders do."""
        connection = await RawClient.open(self.secondary.connection_string())
        kinds = (PLAIN, DETECTING, TOPIC)
        relaxed, ordered = count * 4 // 5, count // 5
        try:
            for index, queue in enumerate(RELAXED):
                await send_all(connection, queue, self._mixed(kinds, index, relaxed // 2))
            for index, queue in enumerate(STRICT):
                await send_all(connection, queue, self._ordered(index, sessions // 2, ordered // 2))
        finally:
            await connection.close()

    def _mixed(self, kinds: tuple[str, ...], index: int, count: int) -> Iterator[bytes]:
        for number in range(count):
            path = kinds[number % len(kinds)]
            sent = self.sent.setdefault(path, [])
            sent.append(f"{path}-{index}-{len(sent)}")
            yield stored(path, sent[-1])

    def _ordered(self, index: int, sessions: int, count: int) -> Iterator[bytes]:
        for number in range(count):
            session = f"{index}.{number % sessions}"
            ids = self.sent_in.setdefault(session, [])
            ids.append(f"{session}-{len(ids)}")
            self.sent.setdefault(SESSIONS, []).append(ids[-1])
            yield stored(SESSIONS, ids[-1], session)

    # What became of it

    def look(self) -> None:
        """Take in what arrived since the last look."""
        paths = [PLAIN, DETECTING, SESSIONS, *SUBSCRIPTIONS]
        asyncio.run(self.arrived.look(self.primary.connection_string(), paths))

    def in_both(self) -> set[str]:
        """Messages that the primary has and the backlog still holds: sent and not completed."""
        self.look()
        left = Places()
        asyncio.run(left.look(self.secondary.connection_string(), RELAXED + STRICT, afresh=True))
        there = {key for ids in self.arrived.ids.values() for key in ids}
        return there & {key for ids in left.ids.values() for key in ids}

    def left(self) -> int:
        """Messages in the backlog, in whatever state."""
        left = Places()
        asyncio.run(left.look(self.secondary.connection_string(), RELAXED + STRICT, afresh=True))
        return sum(map(len, left.ids.values()))

    def lost(self) -> list[str]:
        return [
            f"{path}: {key}"
            for path, ids in self._expected()
            for key in sorted(set(ids) - set(self.arrived.ids.get(path, [])))
        ]

    def repeated(self, *paths: str) -> Counter[str]:
        """How often each message arrived beyond the first time, in those entities or in all."""
        more: Counter[str] = Counter()
        for path, ids in self._expected():
            if path in (paths or (path,)):
                more |= Counter(self.arrived.ids.get(path, [])) - Counter(set(ids))
        return more

    def out_of_order(self) -> list[str]:
        """The sessions whose messages do not stand as they were sent, each counted once."""
        return [
            session
            for session, ids in self.sent_in.items()
            if list(dict.fromkeys(self.arrived.sessions.get(session, []))) != ids
        ]

    def _expected(self) -> Iterator[tuple[str, list[str]]]:
        for path, ids in self.sent.items():
            for place in SUBSCRIPTIONS if path == TOPIC else [path]:
                yield place, ids


def stored(path: str, key: str, session: str | None = None, *, body: bytes = BODY) -> bytes:
    """An encoded message as a paired sender stores it in a backlog queue."""
    properties = Properties(message_id=key, group_id=session)
    sent = encode_message(properties=properties, data=body)
    return join(to_backlog_sections(split(sent), path, now_ms=0))


async def send_all(connection: RawClient, queue: str, messages: Iterator[bytes]) -> None:
    """Send encoded messages in batches; returns when all are acknowledged."""
    sender = await connection.sender(queue)
    under_way: list[asyncio.Future[None]] = []
    part: list[bytes] = []

    async def push() -> None:
        await sender.room()
        under_way.append(sender.send(batch(part), is_batch=True))
        if len(under_way) >= BATCHES_MAX:
            await under_way.pop(0)
        part.clear()

    for message in messages:
        part.append(message)
        if len(part) == BATCH:
            await push()
    if part:
        await push()
    for each in under_way:
        await each
