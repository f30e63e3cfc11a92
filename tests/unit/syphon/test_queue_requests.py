"""What a relay asks of a backlog queue and makes of answers, and what it writes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from tests.unit.syphon.core.test_pump import running
from twinbus.amqp.message import encode_message
from twinbus.amqp.types import ULong
from twinbus.client.connection import NamespaceConnection
from twinbus.client.outcomes import COMPLETE
from twinbus.client.request_node import ConnectionLost, RequestRefused
from twinbus.ledger import NullLedger
from twinbus.syphon.bookkeeping import SAME_OUTAGE_S, Bookkeeper, OutageLog
from twinbus.syphon.core.actions import (
    Action,
    CloseDestination,
    Complete,
    DeadLetter,
    GrantCredit,
    Reconnect,
)
from twinbus.syphon.core.pump import Pump
from twinbus.syphon.core.session_lanes import PeekedEntry
from twinbus.syphon.outbound import DestinationLinks
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

    async def request(
        self, path: str, operation: str, body: dict[str, Any], **_: Any
    ) -> dict[str, Any]:
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
    told = asyncio.run(requests_to(line).request_all(messages, "renew-lock", {}))
    assert (len(told.done), told.lost, told.rest) == (99, [messages[7]], [])
    assert line.requests <= 15


@pytest.mark.parametrize("status", [401, 500, 503])
def test_a_queue_that_is_busy_is_not_asked_again_for_each_message(status: int) -> None:
    line, messages = Asked({7}, status, "com.microsoft:server-busy"), locked(250)
    told = asyncio.run(requests_to(line).request_all(messages, "renew-lock", {}))
    assert line.requests == 3, "groups that were taken before, and the one that was not"
    assert (len(told.done), told.lost, len(told.rest)) == (150, [], 100)
    assert isinstance(told.error, RequestRefused)
    line = Asked({150}, status, "com.microsoft:server-busy")
    fetched, refused = asyncio.run(requests_to(line).receive_deferred(list(range(250))))
    assert (line.requests, len(fetched), refused) == (2, 100, list(range(100, 250)))


class CutOff(Asked):
    """A line that is lost after its first request."""

    async def request(
        self, path: str, operation: str, body: dict[str, Any], **_: Any
    ) -> dict[str, Any]:
        if self.requests:
            raise ConnectionLost("the connection was lost")
        return await super().request(path, operation, body)


def test_what_was_settled_before_the_connection_was_lost_is_settled() -> None:
    line, messages = CutOff(set(), 0, ""), locked(150)
    told = asyncio.run(requests_to(line).request_all(messages, "update-disposition", {}))
    assert (told.done, told.lost, told.rest) == (messages[100:], [], messages[:100])
    assert isinstance(told.error, ConnectionLost)


class Peeked:
    """A line whose queue holds these messages."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = messages

    async def request(
        self, path: str, operation: str, body: dict[str, Any], **_: Any
    ) -> dict[str, Any]:
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
    run_virtual(requests.settle(messages, COMPLETE))
    assert [error for error in ledger.errors if error] == [told]


class BusyAtFirst(Asked):
    """A line that throttles the first requests."""

    async def request(
        self, path: str, operation: str, body: dict[str, Any], **_: Any
    ) -> dict[str, Any]:
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
    pump.intake.add(messages[0], 0.0)
    run_virtual(requests.settle(messages, COMPLETE))
    assert (line.requests, pump.completed, ledger.errors) == (3, 1, [None])


class FakeSession:
    def __init__(self, attach_sender: Callable[..., object]) -> None:
        self.attach_sender = attach_sender


class FakeConnection:
    """A connection whose authorizations end as a test says."""

    def __init__(self, authorize: Callable[[], bool], *, is_lost: bool = False) -> None:
        self._authorize = authorize
        self.asked: list[str] = []
        self.lost = asyncio.get_running_loop().create_future()
        if is_lost:
            self.lost.set_result("gone")
        self.session = FakeSession(self._attach_sender)

    async def authorize(self, path: str) -> bool:
        return self._authorize()

    async def session_with_room(self) -> object:
        return self.session

    def _attach_sender(self, name: str, **_: object) -> object:
        self.asked.append(name.partition("-syphon")[0])
        return SimpleNamespace(owner=None)

    def flush(self) -> None:
        """Nothing."""


async def attach(
    authorize: Callable[[], bool],
    *,
    heard_s_later: float | None = None,
    is_lost: bool = False,
    grace_s: float = 3_600.0,
) -> tuple[list[Action], list[str]]:
    """What the pump then wants of one attach to orders, and the links that are asked for.

    `heard_s_later`: the primary answered for another destination meanwhile.
    """
    world = running(grace_s=grace_s)
    world.store("orders")
    world.deliver()
    if heard_s_later is not None:
        world.pump.attached("letters", 0, world.now + heard_s_later)
    wanted: list[Action] = []
    books = Bookkeeper(NullLedger(), "contoso", "second", "queue")
    outbound = DestinationLinks(world.pump, books, wanted.extend, time.monotonic)
    connection: Any = FakeConnection(authorize, is_lost=is_lost)
    outbound.connection = connection
    await outbound.attach("orders")
    return wanted, connection.asked


def refused(status: int) -> Callable[[], bool]:
    def refuse() -> bool:
        raise RequestRefused("$cbs: because", status, "")

    return refuse


def no_answer() -> bool:
    raise ConnectionLost("$cbs of contoso did not answer for 15 s")


async def test_a_token_that_is_not_answered_ends_the_connection_if_nobody_else_is() -> None:
    wanted, asked = await attach(no_answer)
    assert Reconnect("primary", "$cbs of contoso did not answer for 15 s") in wanted
    assert asked == []


async def test_a_token_that_is_not_answered_holds_its_destination_if_others_are() -> None:
    wanted, _ = await attach(no_answer, heard_s_later=1.0)
    assert CloseDestination("orders") in wanted
    assert not any(isinstance(action, Reconnect) for action in wanted)


async def test_a_token_for_a_missing_entity_says_that_it_is_missing() -> None:
    wanted, asked = await attach(refused(404), grace_s=0.0)
    assert [a.reason for a in wanted if isinstance(a, DeadLetter)] == ["DestinationNotFound"]
    assert asked == []


@pytest.mark.parametrize("status", [0, 401, 403, 500, 503])
async def test_any_other_refusal_of_a_token_holds_the_destination(status: int) -> None:
    wanted, asked = await attach(refused(status), grace_s=0.0)
    assert not any(isinstance(action, DeadLetter) for action in wanted)
    assert GrantCredit(0) in wanted
    assert asked == []


async def test_a_line_that_is_lost_meanwhile_is_no_fault_of_the_destination() -> None:
    assert await attach(no_answer, is_lost=True) == ([], [])


async def test_a_link_is_asked_for_once_it_is_allowed() -> None:
    assert await attach(lambda: True) == ([], ["orders"])


QUEUES = [f"contoso/x-servicebus-transfer/{index}" for index in range(10)]


class Sizes:
    def __init__(self) -> None:
        self.by_operation: dict[str, object] = {}

    def record(self, operation: str, *, at_ms: int | None = None, **fields: object) -> None:
        self.by_operation[operation] = fields["size_bytes"]


def test_a_forward_has_the_size_of_what_was_sent_and_a_settlement_none() -> None:
    ledger = Sizes()
    books = Bookkeeper(ledger, "contoso", "second", "queue")
    message = BacklogMessage(b"token", 751)
    message.path, message.wire = "orders", b"x" * 519
    books.received([message], 0)
    books.forwarded([message], 1.0, 0)
    message.outcome = Complete
    books.settled([message])
    assert ledger.by_operation == {"backlog_receive": 751, "forward": 519, "complete": 0}
    books.not_forwarded(message, "no answer", is_known=False)
    assert ledger.by_operation["forward"] == 519


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "twinbus.syphon")
    return caplog


def levels(lines: pytest.LogCaptureFixture) -> list[str]:
    return [record.levelname for record in lines.records]


def lose(outages: OutageLog, at: float, *, tries: int = 5, side: str = "primary") -> None:
    for attempt in range(tries):
        for queue in QUEUES:
            outages.lost(side, queue, "refused", at + attempt)


def test_an_outage_is_one_warning_and_its_end_one_line(lines: pytest.LogCaptureFixture) -> None:
    outages = OutageLog()
    for began in (0.0, 10.0):
        lose(outages, began)
        for queue in QUEUES:
            outages.back("primary", queue, began + 8.0)
    assert levels(lines) == ["WARNING"] * 4
    assert lines.messages[1] == "the primary is back after 8 s"


def test_a_long_outage_is_not_warned_of_again(lines: pytest.LogCaptureFixture) -> None:
    outages = OutageLog()
    lose(outages, 0.0, tries=round(5 * SAME_OUTAGE_S))
    assert levels(lines) == ["WARNING"]


def test_the_sides_are_apart_and_a_later_loss_beside_a_lasting_one_is_told(
    lines: pytest.LogCaptureFixture,
) -> None:
    outages = OutageLog()
    outages.lost("secondary", "a queue that is disabled", "disabled", 0.0)
    outages.lost("primary", QUEUES[0], "refused", 1.0)
    lose(outages, SAME_OUTAGE_S + 1, side="secondary")
    assert levels(lines) == ["WARNING"] * 3
