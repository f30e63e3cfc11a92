"""Requests to a backlog queue: settle, renew, peek and receive deferred messages.

`RequestTasks` runs them in the background of a relay and hands the answers to its pump. A task
whose connection is lost ends silently: the relay tells the pump of the loss, and the pump asks
again. A message is settled by disposition on the link that delivered it, or else by request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final
from uuid import UUID

from twinbus.amqp.message import decode_map, split
from twinbus.amqp.types import DecodeError, Symbol
from twinbus.client.administration import BUSY, BUSY_WAITS_S
from twinbus.client.connection import MACHINE, Environment, NamespaceConnection
from twinbus.client.lock_requests import (
    ABOUT_ONE,
    TOKENS_MAX,
    RequestResult,
    peek_page,
    receive_by_numbers,
    request_by_tokens,
)
from twinbus.client.outcomes import RELEASE, SettlingOutcome, dead_letter, defer
from twinbus.client.request_node import ConnectionLost, RequestRefused, uuid_of_token
from twinbus.servicebus import conditions, names
from twinbus.syphon.bookkeeping import Bookkeeper
from twinbus.syphon.core.actions import Action, DeadLetter, Defer, Release
from twinbus.syphon.core.pump import Pump
from twinbus.syphon.core.session_lanes import PeekedEntry
from twinbus.transfer.unpacking import BacklogMessage, unpack

log = logging.getLogger("twinbus.syphon")

PEEK_COUNT: Final = 250
PEEKS_MAX: Final = 400
"""Peeks of one search; a later search finds what is further back."""

FOUND_MAX: Final = 10_000
DEFERRED_STATE: Final = 1


class RequestTasks:
    """The background tasks of one relay."""

    def __init__(
        self,
        pump: Pump,
        books: Bookkeeper,
        perform: Callable[[list[Action]], None],
        unpack: Callable[[bytes, bytes, int], BacklogMessage],
        queue: str,
        environment: Environment = MACHINE,
    ) -> None:
        self.connection: NamespaceConnection | None = None
        """To the secondary; None while there is none."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._pump = pump
        self._books = books
        self._perform = perform
        self._unpack = unpack
        self._queue = queue
        self._environment = environment
        self._now = environment.monotonic

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that waits for an answer, in the background."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._log_failure)

    async def cancel(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _log_failure(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        # The relay tells the pump of a lost connection.
        if error is not None and not isinstance(error, ConnectionLost):
            log.error("%s: a background task failed", self._queue, exc_info=error)

    # The requests

    @property
    def _requests(self) -> QueueRequests:
        if self.connection is None:
            raise ConnectionLost("there is no connection to the secondary")
        return QueueRequests(self.connection, self._queue)

    async def settle(self, messages: list[BacklogMessage], outcome: SettlingOutcome) -> None:
        """Settle by lock token: for messages that came over an earlier link, or by number."""
        requests = self._requests
        named = {"disposition-status": outcome.status, **outcome.arguments}
        waits_s = iter(BUSY_WAITS_S)
        while messages:
            result = await requests.request_all(messages, "update-disposition", named)
            self._books.settled(result.done)
            self._books.settled(result.lost, conditions.MESSAGE_LOCK_LOST)
            now = self._now()
            self._perform(self._pump.settled(result.done, now))
            self._perform(self._pump.settle_failed(result.lost, now))
            messages, refusal = result.rest, result.error
            if not isinstance(refusal, RequestRefused):
                # All are settled, or the relay tells the pump of the lost connection.
                return
            wait_s = next(waits_s, None) if refusal.status in BUSY else None
            if wait_s is None:
                self._books.settled(messages, refusal.condition or f"status {refusal.status}")
                fields = (self._queue, len(messages), outcome.status, refusal)
                log.warning("%s: %d not %s: %s", *fields)
                # They are delivered again when their locks end; nothing is asked for again.
                self._perform(self._pump.settle_failed(messages, now))
                return
            # Their locks are valid. If they ended, another syphon would send what the primary has.
            await asyncio.sleep(wait_s)

    async def renew(self, messages: list[BacklogMessage]) -> None:
        result = await self._requests.request_all(messages, "renew-lock", {})
        if isinstance(result.error, RequestRefused):
            # The locks are still valid, and the pump asks again before they end.
            log.warning("%s: %d not renewed: %s", self._queue, len(result.rest), result.error)
        now = self._now()
        self._perform(self._pump.renewed(result.done, now))
        self._perform(self._pump.lock_lost(result.lost, now))

    async def receive_deferred(self, numbers: list[int]) -> None:
        requests = self._requests
        try:
            received, refused = await requests.receive_deferred(numbers)
        except ConnectionLost as error:
            log.warning("%s: deferred messages %s: %s", self._queue, numbers[:5], error)
            self._perform(self._pump.fetched(numbers, self._now(), failed=True))
            return
        if refused:
            text = "%s: deferred messages %s cannot be received now"
            log.warning(text, self._queue, refused[:5])
        now_ms = self._environment.wall_ms()
        messages = [self._unpack(payload, token, now_ms) for payload, token in received]
        for message in messages:
            message.is_deferred = True
        self._books.received(messages, now_ms)
        self._perform(self._pump.received(messages, self._now()))
        self._perform(self._pump.fetched(numbers, self._now(), failed=bool(refused)))

    async def peek(self, start: int, report: Callable[..., list[Action]]) -> None:
        """Peek one page, and hand it to an event method of the pump."""
        requests, page, failed = self._requests, [], False
        try:
            page = await requests.peek(start, self._environment.wall_ms())
        except (ConnectionLost, RequestRefused) as error:
            log.warning("%s: peeking from sequence number %d: %s", self._queue, start, error)
            failed = True
        self._perform(report(page, self._now(), failed=failed))

    async def find_deferred(self, *, to_the_end: bool = True) -> None:
        """Search for deferred messages by peeking."""
        try:
            found, is_all = await self._requests.find_deferred(
                self._environment.wall_ms(), to_the_end=to_the_end
            )
        except RequestRefused as error:
            log.warning("%s: searching for deferred messages: %s", self._queue, error)
            return
        self._perform(self._pump.found_deferred(found, self._now(), is_all=is_all))


class QueueRequests:
    """Makes requests to the `$management` node of one backlog queue."""

    def __init__(self, connection: NamespaceConnection, queue: str) -> None:
        self._connection = connection
        self._queue = queue

    async def request_all(
        self, messages: list[BacklogMessage], operation: str, arguments: dict[str, Any]
    ) -> RequestResult[BacklogMessage]:
        """Request an operation on the locks of all these messages, in groups."""
        return await request_by_tokens(
            self._connection, self._queue, operation, messages, _token_of, arguments
        )

    async def receive_deferred(
        self, numbers: list[int]
    ) -> tuple[list[tuple[bytes, bytes]], list[int]]:
        """Receive deferred messages: return each with its lock token, and the refused numbers."""
        fetched: list[tuple[bytes, bytes]] = []
        refused: list[int] = []
        groups = [numbers[at : at + TOKENS_MAX] for at in range(0, len(numbers), TOKENS_MAX)]
        while groups:
            group = groups.pop(0)
            try:
                received = await receive_by_numbers(self._connection, self._queue, group)
            except RequestRefused as refusal:
                if refusal.status not in ABOUT_ONE:
                    refused += [number for each in (group, *groups) for number in each]
                    break
                # One message that is locked or gone fails the whole request: halve it until alone.
                middle = len(group) // 2
                halves = [group[:middle], group[middle:]] if middle else []
                groups = halves + groups
                refused += [] if halves else group
            else:
                fetched += [(data, token.bytes_le) for data, token in received if token is not None]
        return fetched, refused

    async def find_deferred(
        self, now_ms: int, *, to_the_end: bool = True
    ) -> tuple[list[PeekedEntry], bool]:
        """Peek for deferred messages; return them, and whether these are all.

        Unless `to_the_end`, stop at the first page without any: what a syphon deferred before it
        died is in front of the messages that were not received yet.
        """
        found: list[PeekedEntry] = []
        start = 1
        for _ in range(PEEKS_MAX):
            page = await self.peek(start, now_ms)
            if not page:
                return found, True
            start = max(start, page[-1].number + 1)
            deferred = [entry for entry in page if entry.is_deferred]
            found += deferred
            if len(found) >= FOUND_MAX or not (deferred or to_the_end):
                break
        return found, False

    async def peek(self, start: int, now_ms: int) -> list[PeekedEntry]:
        """Return one page of messages in any state from a number on, in order."""
        page: list[PeekedEntry] = []
        for data in await peek_page(self._connection, self._queue, start, PEEK_COUNT):
            message = unpack(data, b"", now_ms)
            is_deferred = _is_deferred(data)
            page.append(
                PeekedEntry(message.sequence_number, message.path, message.session, is_deferred)
            )
        # By number alone: the other parts do not compare, and numbers may be missing (0).
        return sorted(page, key=lambda entry: entry.number)


def _token_of(message: BacklogMessage) -> UUID:
    return uuid_of_token(message.lock_token)


def _is_deferred(message: bytes) -> bool:
    try:
        marks = decode_map(split(message).message_annotations)
    except DecodeError:
        return False
    return marks.get(Symbol(names.MESSAGE_STATE)) == DEFERRED_STATE


def outcome_of(action: DeadLetter | Defer | Release) -> SettlingOutcome:
    """Return what an action of the pump makes of its message."""
    match action:
        case DeadLetter():
            return dead_letter(action.reason, action.description)
        case Defer():
            return defer()
        case Release():
            return RELEASE
