"""What is asked of a backlog queue, and how often: by answers that a test makes up."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from uuid import UUID

import pytest

from twinbus.amqp.message import encode_message
from twinbus.amqp.types import ULong
from twinbus.client.connection import NamespaceConnection
from twinbus.client.request_node import ConnectionLost, RequestRefused
from twinbus.syphon.bookkeeping import Bookkeeper
from twinbus.syphon.core.actions import Action, Complete
from twinbus.syphon.core.pump import Pump
from twinbus.syphon.core.session_lanes import PeekedEntry
from twinbus.syphon.queue_requests import QueueRequests, RequestTasks
from twinbus.testing import run_virtual
from twinbus.transfer.unpacking import BacklogMessage

PAGE = 10


class Shown(QueueRequests):
    """A queue whose messages up to a number are deferred, and how often it is peeked at."""

    def __init__(self, count: int, deferred: int) -> None:
        super().__init__(cast("NamespaceConnection", None), "queue")
        self._numbers = range(1, count + 1)
        self._deferred = deferred
        self.peeks = 0

    async def peek(self, start: int, now_ms: int) -> list[PeekedEntry]:
        self.peeks += 1
        page = [n for n in self._numbers if n >= start][:PAGE]
        return [PeekedEntry(n, "orders", None, n <= self._deferred) for n in page]


@pytest.mark.parametrize(
    ("deferred", "to_the_end", "peeks"), [(0, False, 1), (25, False, 4), (25, True, 101)]
)
def test_a_busy_queue_is_looked_through_as_far_as_deferred_messages_lie_at_its_front(
    deferred: int, to_the_end: bool, peeks: int
) -> None:
    queue = Shown(1_000, deferred)
    found, is_all = asyncio.run(queue.find_deferred(0, to_the_end=to_the_end))
    assert [sighting.number for sighting in found] == list(range(1, deferred + 1))
    assert (is_all, queue.peeks) == (to_the_end, peeks)


class Asked:
    """A line whose answers depend on the lock tokens, or numbers, of a request."""

    def __init__(self, bad: set[int], status: int, condition: str) -> None:
        self.requests = 0
        self._bad = bad
        self._refusal = RequestRefused("because", status, condition)

    async def request(self, path: str, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        self.requests += 1
        tokens: list[UUID] = body.get("lock-tokens", [])
        numbers = [token.int for token in tokens] or body["sequence-numbers"]
        if self._bad & set(numbers):
            raise self._refusal
        return {"messages": [{"message": b"", "lock-token": UUID(int=n)} for n in numbers]}


def locked(count: int) -> list[BacklogMessage]:
    """Messages whose lock tokens, as requests carry them, are their numbers."""
    messages = []
    for number in range(count):
        message = BacklogMessage(UUID(int=number).bytes_le, 100)
        message.sequence_number, message.path = number, "orders"
        messages.append(message)
    return messages


def requests_to(line: Asked) -> QueueRequests:
    return QueueRequests(cast("NamespaceConnection", line), "queue")


@pytest.mark.parametrize("status", [404, 410])
def test_a_lock_that_is_lost_is_found_among_the_others(status: int) -> None:
    line, messages = Asked({7}, status, "com.microsoft:message-lock-lost"), locked(100)
    told = asyncio.run(requests_to(line).renew(messages))
    assert (len(told.done), told.lost, told.rest) == (99, [messages[7]], [])
    assert line.requests <= 15


@pytest.mark.parametrize("status", [401, 500, 503])
def test_a_queue_that_is_busy_is_not_asked_again_for_each_message(status: int) -> None:
    line, messages = Asked({7}, status, "com.microsoft:server-busy"), locked(250)
    told = asyncio.run(requests_to(line).renew(messages))
    assert line.requests == 3, "groups that were taken before, and the one that was not"
    assert (len(told.done), told.lost, len(told.rest)) == (150, [], 100)
    assert told.refusal is not None
    line = Asked({150}, status, "com.microsoft:server-busy")
    fetched, refused = asyncio.run(requests_to(line).receive_deferred(list(range(250))))
    assert (line.requests, len(fetched), refused) == (2, 100, list(range(100, 250)))


class CutOff(Asked):
    """A line that is lost after its first request."""

    async def request(self, path: str, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.requests:
            raise ConnectionLost("the connection was lost")
        return await super().request(path, operation, body)


def test_what_was_settled_before_the_connection_was_lost_is_settled() -> None:
    line, messages = CutOff(set(), 0, ""), locked(150)
    told = asyncio.run(requests_to(line).settle(messages, "completed", {}))
    assert (told.done, told.lost, told.rest) == (messages[100:], [], [])


class Peeked:
    """A line whose queue holds these messages."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = messages

    async def request(self, path: str, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [{"message": message} for message in self._messages]}


def test_a_page_is_read_to_its_end_whatever_one_message_holds() -> None:
    def stored(number: object, **aliases: object) -> bytes:
        return encode_message(
            message_annotations={"x-opt-sequence-number": number},
            application_properties={
                **{f"x-ms-{name}": value for name, value in aliases.items()},
                "x-ms-path": "orders",
            },
            data=b"body",
        )

    line = Peeked(
        [
            stored(3),
            stored(2, scheduledenqueuetimeutc=ULong(2**64 - 1)),
            stored("no number", sessionid="s"),
            stored(None),
            b"no message",
        ]
    )
    page = asyncio.run(QueueRequests(cast("NamespaceConnection", line), "queue").peek(1, 0))
    assert [(seen.number, seen.path, seen.session) for seen in page] == [
        (0, "orders", "s"),
        (0, "orders", None),
        (0, "", None),
        (2, "", None),
        (3, "orders", None),
    ]


class Records:
    def __init__(self) -> None:
        self.errors: list[object] = []

    def record(self, operation: str, *, at_ms: int | None = None, **fields: object) -> None:
        self.errors.append(fields.get("error"))


@pytest.mark.parametrize(
    ("status", "condition", "told"),
    [
        (410, "com.microsoft:message-lock-lost", "com.microsoft:message-lock-lost"),
        (503, "com.microsoft:server-busy", "com.microsoft:server-busy"),
        (500, "", "status 500"),
    ],
)
def test_the_ledger_has_the_reason_for_which_a_settlement_failed(
    status: int, condition: str, told: str
) -> None:
    ledger, wanted = Records(), list[Action]()
    books = Bookkeeper(ledger, "contoso", "second", "queue")
    requests = RequestTasks(Pump(), books, wanted.extend, cast("Any", None), "queue")
    requests.connection = cast("NamespaceConnection", Asked({0}, status, condition))
    messages = locked(1)
    messages[0].outcome = Complete
    run_virtual(requests.settle(messages, "completed", []))
    assert [error for error in ledger.errors if error] == [told]


class BusyAtFirst(Asked):
    """A line that throttles the first requests."""

    async def request(self, path: str, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.requests == 2:
            self._bad = set()
        return await super().request(path, operation, body)


def test_a_throttled_settlement_is_asked_for_again_while_the_locks_are_valid() -> None:
    """Else another syphon gets the messages when their locks end, and sends them once more."""
    ledger, pump = Records(), Pump()
    books = Bookkeeper(ledger, "contoso", "second", "queue")
    requests = RequestTasks(pump, books, list[Action]().extend, cast("Any", None), "queue")
    line = BusyAtFirst({0}, 503, "com.microsoft:server-busy")
    requests.connection = cast("NamespaceConnection", line)
    messages = locked(1)
    messages[0].outcome = Complete
    pump._intake.add(messages[0], 0.0)
    run_virtual(requests.settle(messages, "completed", []))
    assert (line.requests, pump.completed, ledger.errors) == (3, 1, [None])
