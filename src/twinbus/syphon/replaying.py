"""Finds dead letters of backlog queues and replays them: sends them to the queue again.

    peek -> receive under a lock -> send a copy -> accepted -> complete the dead letter

A kill between the accept and the completion leaves both, so the message can be delivered twice. It
keeps its id, so that duplicate detection at the destination removes one. Received letters that are
not selected are released at the end, without a delivery count.

In the backlog the copy has an id of its own: a queue that detects duplicates has seen the old one.
It carries a count of its replays, so that a message that is dead-lettered again and again is
refused after a few.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from twinbus.amqp.encoding import encode, string
from twinbus.amqp.events import CreditChanged, DeliveryArrived, Detached, Disposed, Event
from twinbus.amqp.link import ReceiverLink, SenderLink
from twinbus.amqp.message import APPLICATION_PROPERTIES, join, split
from twinbus.amqp.performatives import (
    ACCEPTED_BYTES,
    RELEASED_BYTES,
    Accepted,
    Source,
    Target,
)
from twinbus.amqp.types import AmqpError, Int
from twinbus.client.connection import ANSWER_S, NamespaceConnection
from twinbus.client.outcomes import ranges
from twinbus.client.peeked_message import DESCRIPTION, REASON, PeekedMessage, read_peeked
from twinbus.client.peeking import open_connection, peek, syphon_errors
from twinbus.client.request_node import ConnectionLost, RequestRefused
from twinbus.errors import SyphonError
from twinbus.ledger.requests import BilledRequests
from twinbus.namespace.access import Endpoint
from twinbus.servicebus.names import DEAD_LETTER
from twinbus.transfer.aliases import REPLAYS
from twinbus.transfer.sections import entries_of, with_entries, with_own_id, without_delivery_marks

REPLAYS_MAX: Final = 3
"""Replays of one message; after them it is refused, because it would be dead-lettered again."""

COUNT_MAX: Final = 2**31 - 1
"""Largest count that is written: the one that a dead letter comes with is foreign input."""

_REMOVED: Final = frozenset(name.encode() for name in (REASON, DESCRIPTION, REPLAYS))


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetterFilter:
    """Selects dead letters; every field that is set must match."""

    path: str | None = None
    """The destination entity; case is ignored."""
    reason: str | None = None
    """The dead-letter reason; case is ignored."""
    since_ms: int | None = None
    """Messages enqueued at or after this time (unix milliseconds)."""
    sequence_numbers: frozenset[int] | None = None
    """One of these."""

    def matches(self, letter: PeekedMessage) -> bool:
        numbers = self.sequence_numbers
        if numbers is not None and letter.sequence_number not in numbers:
            return False
        if self.path is not None and _folded(letter.path) != _folded(self.path):
            return False
        if self.reason is not None and _folded(letter.reason) != _folded(self.reason):
            return False
        return self.since_ms is None or (letter.enqueued_ms or 0) >= self.since_ms


def for_replay(wire: bytes, own_id: str | None = None) -> bytes:
    """Return a dead letter as it is sent again: without reason and marks, and counted.

    `own_id` is its new id in the backlog, if it has one. Every other byte is unchanged. Raise
    DecodeError if it is not a message.
    """
    sections = without_delivery_marks(split(wire))
    custom = sections.application_properties
    replays = min(read_peeked("", wire).replays + 1, COUNT_MAX)
    counted = string(REPLAYS) + encode(Int(replays))
    entries = entries_of(custom)
    # In front, so that the destination stays last, where the syphon finds it fastest.
    kept = [custom[start:end] for key, start, _, end in entries if key not in _REMOVED]
    sections.application_properties = with_entries(
        b"", APPLICATION_PROPERTIES, [], added=[counted, *kept]
    )
    return join(sections if own_id is None else with_own_id(sections, own_id))


def _folded(text: str | None) -> str | None:
    return None if text is None else text.strip("/").lower()


CREDIT: Final = 50
"""Dead letters received ahead; few, because each is locked while it waits."""

LOCKED: Final = "locked by another receiver, or gone since it was seen"

QUIET_S: Final = 3.0
"""After so long without a delivery, another receiver holds the locks of the rest."""

_numbers = itertools.count(1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """What a replay did with the selected dead letters."""

    replayed: tuple[PeekedMessage, ...] = ()
    refused: tuple[PeekedMessage, ...] = ()
    """Replayed too often before; `force` replays them anyway."""
    missed: tuple[tuple[PeekedMessage, str], ...] = ()
    """Not replayed, and why."""


async def dead_letters(
    endpoint: Endpoint, queues: Sequence[str], wanted: DeadLetterFilter
) -> AsyncGenerator[PeekedMessage, None]:
    """Yield the selected dead letters of these backlog queues; nothing is locked."""
    async with open_connection(endpoint) as connection:
        for queue in queues:
            async for letter in peek(connection, queue, dead_letters=True):
                if wanted.matches(letter):
                    yield letter


async def replay(
    endpoint: Endpoint,
    queues: Sequence[str],
    wanted: DeadLetterFilter,
    *,
    force: bool = False,
) -> Replayed:
    """Send the selected dead letters to their backlog queues again, once each.

    Only those that are there at the start: a letter that returns meanwhile is not replayed again. A
    message that was replayed REPLAYS_MAX times is refused unless `force`.
    """
    replayed: list[PeekedMessage] = []
    refused: list[PeekedMessage] = []
    missed: list[tuple[PeekedMessage, str]] = []
    for queue in dict.fromkeys(queues):
        pending: dict[int, PeekedMessage] = {}
        async for letter in dead_letters(endpoint, [queue], wanted):
            if letter.replays >= REPLAYS_MAX and not force:
                refused.append(letter)
            elif letter.sequence_number:
                pending[letter.sequence_number] = letter
            else:
                missed.append((letter, letter.problem))
        if pending:
            queue_replay = _QueueReplay(endpoint, queue, pending)
            with syphon_errors(endpoint):
                await queue_replay.run()
            replayed += queue_replay.done
            missed += queue_replay.not_taken
            missed += [(letter, LOCKED) for letter in pending.values()]
    return Replayed(replayed=tuple(replayed), refused=tuple(refused), missed=tuple(missed))


class _QueueReplay:
    """Replays dead letters of one queue: one link receives them, one sends the copies."""

    def __init__(self, endpoint: Endpoint, queue: str, pending: dict[int, PeekedMessage]) -> None:
        self.done: list[PeekedMessage] = []
        self.not_taken: list[tuple[PeekedMessage, str]] = []
        """Letters whose copy the backlog queue refused, and why."""
        self._queue = queue
        self._pending = pending
        self._billed = BilledRequests(endpoint.label, cause="syphon")
        self._connection = NamespaceConnection(endpoint, self._on_event, requests=self._billed)
        self._arrived: asyncio.Queue[DeliveryArrived] = asyncio.Queue()
        self._answers: dict[tuple[bool, int], asyncio.Future[object]] = {}
        """Pending answers: for a copy (True) or a letter's settlement (False), by delivery id."""
        self._has_credit = asyncio.Event()
        self._refusal: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._unsettled: list[int] = []

    async def run(self) -> None:
        """Replay until nothing is pending, or nothing more is delivered."""
        connection = self._connection
        letters = f"{self._queue}/{DEAD_LETTER}"
        try:
            await connection.open()
            await connection.authorize(self._queue)
            await connection.authorize(letters)
            name = f"{self._queue}-replay-{next(_numbers)}"
            copies = connection.session.attach_sender(
                name, source=Source(address=name), target=Target(address=self._queue)
            )
            source = connection.session.attach_receiver(
                f"{name}-letters",
                source=Source(address=letters),
                target=Target(address=name),
                confirmed=True,
            )
            connection.flush()
            await self._wait_for(self._has_credit.wait(), "the backlog queue gave no credit")
            try:
                await self._replay_all(copies, source)
            finally:
                await self._release_rest(source)
        finally:
            await connection.close()

    async def _replay_all(self, copies: SenderLink, source: ReceiverLink) -> None:
        while self._pending:
            if source.credit <= CREDIT // 2:
                source.grant(CREDIT)
                self._connection.flush()
            try:
                async with asyncio.timeout(QUIET_S):
                    delivery = await self._unless_ended(self._arrived.get())
            except TimeoutError:
                return
            number = read_peeked(self._queue, delivery.payload).sequence_number
            letter = self._pending.get(number)
            if letter is None:
                self._unsettled.append(delivery.delivery_id)
                continue
            refusal: str | None
            try:
                copy = for_replay(delivery.payload, uuid4().hex)
            except AmqpError as error:
                refusal = f"no copy can be made of it: {error}"
            else:
                refusal = await self._replay(copies, delivery, copy)
            del self._pending[number]
            if refusal is not None:
                self._unsettled.append(delivery.delivery_id)
                self.not_taken.append((letter, refusal))
                continue
            self.done.append(letter)

    async def _replay(
        self, copies: SenderLink, delivery: DeliveryArrived, copy: bytes
    ) -> str | None:
        """Send the copy, then complete the letter; return why the copy was refused, or None."""
        while not copies.credit:
            self._has_credit.clear()
            await self._wait_for(self._has_credit.wait(), "the backlog queue gave no credit")
        sent = copies.send(copy, delivery.tag)
        refusal = await self._refused((True, sent), "the copy was not answered")
        self._billed.made(self._queue, "send", refusal)
        if refusal is not None:
            return f"the copy was refused: {refusal}"
        # Only now: until the copy is accepted, the letter stays in the dead-letter queue.
        self._connection.session.dispose(delivery.delivery_id, delivery.delivery_id, ACCEPTED_BYTES)
        stuck = "the copy is stored, but the dead letter may still be there"
        refusal = await self._refused((False, delivery.delivery_id), stuck)
        if refusal is not None:
            raise SyphonError(f"{self._queue}: {stuck}: {refusal}")
        return None

    async def _refused(self, key: tuple[bool, int], problem: str) -> str | None:
        """Wait for an answer; return None if it is accepted, else why not."""
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._answers[key] = answer
        self._connection.flush()
        state = await self._wait_for(answer, problem)
        if isinstance(state, Accepted):
            return None
        error = getattr(state, "error", None)
        return str((error.description or error.condition) if error else state)

    async def _wait_for(self, work: Any, problem: str) -> Any:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._unless_ended(work)
        except TimeoutError as error:
            text = f"{self._queue}: {problem} within {ANSWER_S:g} s"
            raise SyphonError(text) from error

    async def _unless_ended(self, work: Any) -> Any:
        """Wait for `work`; raise SyphonError if the connection or a link ends first."""
        task = asyncio.ensure_future(work)
        ends: set[asyncio.Future[Any]] = {task, self._connection.lost, self._refusal}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            ended = self._refusal if self._refusal.done() else self._connection.lost
            raise SyphonError(f"{self._queue}: {ended.result()}")
        finally:
            task.cancel()

    async def _release_rest(self, source: ReceiverLink) -> None:
        """Release what was received and not replayed."""
        source.grant(0)
        self._connection.flush()
        with contextlib.suppress(ConnectionLost, RequestRefused):
            # The answer comes after every letter that was on the wire when the credit ended.
            await self._connection.request(
                self._queue, "peek-message", {"from-sequence-number": 1, "message-count": Int(1)}
            )
        while not self._arrived.empty():
            self._unsettled.append(self._arrived.get_nowait().delivery_id)
        if self._unsettled and not self._connection.lost.done():
            for first, last in ranges(self._unsettled):
                self._connection.session.dispose(first, last, RELEASED_BYTES)
            self._connection.flush()

    def _on_event(self, event: Event) -> None:
        match event:
            case DeliveryArrived():
                self._billed.made(f"{self._queue}/{DEAD_LETTER}", "receive")
                self._arrived.put_nowait(event)
            case Disposed():
                if event.by_receiver:
                    event.session.take_unsettled(event.first, event.last)
                waiting = {number for by, number in self._answers if by == event.by_receiver}
                for number in event.among(waiting):
                    answer = self._answers.pop((event.by_receiver, number))
                    if not answer.done():
                        answer.set_result(event.state)
            case CreditChanged():
                if event.link.credit:
                    self._has_credit.set()
            case Detached():
                if not self._refusal.done():
                    text = event.error.description if event.error else None
                    self._refusal.set_result(text or "the link was closed")
