"""The notice board of a pair: a plain queue in the secondary, on which hosts post and peek.

    board = NoticeBoard(secondary, label)
    await board.post(notices, time_to_live_s)
    for notice, valid_s in (await board.look(3)).notices: ...

A post is one message with its own short time to live; nobody receives it, it expires. `post` and
`look` raise BoardError and nothing else, within `ANSWER_S`. They use a connection of their own, so
a board that is slow, full or gone delays no send. docs/failures.md describes what a pair does then.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from twinbus.amqp.message import Header, Properties, encode_message
from twinbus.client.connection import MACHINE, NOT_AWAITED, Environment
from twinbus.client.in_flight import Wire
from twinbus.client.links import UpstreamConnection
from twinbus.client.lock_requests import peek_page
from twinbus.client.peeked_message import ACTIVE, PeekedMessage, read_peeked
from twinbus.errors import error_text
from twinbus.fleet.core.board_turns import TIME_TO_LIVE_MAX_S
from twinbus.fleet.core.notices import Notice, decode, encode
from twinbus.ledger.requests import BilledRequests, RequestLedger
from twinbus.namespace.namespace import Namespace
from twinbus.servicebus.failures import FailureMeaning, NamespaceFailure, of_error
from twinbus.servicebus.names import board_path
from twinbus.wording import short

log = logging.getLogger("twinbus.fleet")

CAUSE: Final = "board"
"""Of the records in the ledger (docs/costs.md)."""

ANSWER_S: Final = 5.0
"""Time limit of a look or a post, with the connection that it may need."""

POST_BYTES_MAX: Final = 60_000
"""Notices of one post: with its properties it is billed as one operation of 64 KB. A host with
more of them says nothing of the rest."""

CONTENT_TYPE: Final = "application/json"
POST: Final = "post"

REFUSALS: Final = frozenset({FailureMeaning.UNAUTHORIZED, FailureMeaning.DISABLED})
"""What stays so until a person changes it: the board is asked again rarely. One that is missing may
be created at any moment, by any pair with the Manage right."""


class BoardError(Exception):
    """The board cannot be used now; the text says why, and what to do if anything can be done."""

    def __init__(self, text: str, *, is_refusal: bool) -> None:
        """`is_refusal`: it stays so until a person changes it."""
        super().__init__(text)
        self.is_refusal = is_refusal


class FreshNotice(NamedTuple):
    notice: Notice
    valid_s: float
    """How long it counts from now on, by the reader's own clock."""


class BoardLook(NamedTuple):
    """What one look found."""

    messages: int
    """All that were read, of any kind: each takes a credit of the namespace."""
    notices: list[FreshNotice]


class NoticeBoard:
    """Posts and looks of one process."""

    def __init__(
        self,
        secondary: Namespace,
        label: str,
        *,
        ledger: RequestLedger | None = None,
        environment: Environment = MACHINE,
    ) -> None:
        """`label` is that of the primary."""
        self.path = board_path(label)
        self._secondary = secondary
        self._environment = environment
        self._requests = BilledRequests(
            secondary.label, cause=CAUSE, side="secondary", ledger=ledger
        )
        self._connection: UpstreamConnection | None = None
        self._next_number = 1
        self._found_at = 0.0
        self._ahead_s = math.inf
        """Our clock less that of the namespace, and the shortest time that a message took to us."""

    def __repr__(self) -> str:
        return f"<notice board {self.path}>"

    async def look(self, count: int) -> BoardLook:
        """Peek at the next messages, at most `count`; each is found once.

        What was found has expired after a time without news: then looks begin at the oldest
        message again, for the queue may be a new one.
        """
        now = self._environment.since_boot()
        if now - self._found_at > TIME_TO_LIVE_MAX_S:
            self._next_number, self._ahead_s = 1, math.inf
        try:
            async with asyncio.timeout(ANSWER_S):
                connection = await self._opened().opened()
                wires = await peek_page(connection, self.path, self._next_number, count)
        except Exception as error:  # a board must harm no pair
            if of_error(error) is FailureMeaning.NOT_FOUND:
                self._next_number = 1  # Another queue may take its place.
            raise self._unusable(error, "Listen") from error
        found = [read_peeked(self.path, wire) for wire in wires[:count]]
        if found:
            self._found_at = now
            last = max(message.sequence_number for message in found)
            self._next_number = max(self._next_number, last + 1)
        now = self._environment.since_boot()
        for message in found:
            if message.enqueued_ms is not None:
                self._ahead_s = min(self._ahead_s, now - message.enqueued_ms / 1_000)
        notices = [
            one for message in found for one in notices_in(message, self._age_s(message, now))
        ]
        return BoardLook(len(found), notices)

    async def post(self, notices: Sequence[Notice], time_to_live_s: float) -> None:
        """Post the host's notices as one message; return when the namespace has it."""
        wire = Wire(self._message(notices, time_to_live_s), 0)
        was_sent = False
        try:
            async with asyncio.timeout(ANSWER_S):
                pool = self._opened().pool(self.path)
                await pool.open()
                was_sent = True
                await pool.send_messages(wire)
        except asyncio.CancelledError:
            if was_sent:
                self._requests.made(self.path, POST, NOT_AWAITED, is_known=False)
            raise
        except Exception as error:
            if was_sent:
                is_known = isinstance(error, NamespaceFailure) and not error.may_be_stored
                self._requests.made(self.path, POST, error_text(error), is_known=is_known)
            raise self._unusable(error, "Send") from error
        self._requests.made(self.path, POST)

    def _message(self, notices: Sequence[Notice], time_to_live_s: float) -> bytes:
        data = encode(notices)
        while len(data) > POST_BYTES_MAX:
            notices = notices[: len(notices) // 2]
            data = encode(notices)
        return encode_message(
            header=Header(durable=True, ttl=int(time_to_live_s * 1_000)),
            properties=Properties(
                message_id=self._environment.new_id().hex, content_type=CONTENT_TYPE
            ),
            data=data,
        )

    async def rest(self) -> None:
        """Close the connection; the next look or post opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _age_s(self, message: PeekedMessage, now: float) -> float:
        """How long a message is there, at least.

        That is the time since the youngest that was read, which no clock can make wrong; or the
        time by our clock, if that is longer. The service may show messages that have expired, and
        all that are read may be as old: with a clock that is ahead a host takes fresh ones for old.
        Then it hears nothing, and does as it does without the board.
        """
        if message.enqueued_ms is None:
            return 0.0
        since_youngest_s = now - message.enqueued_ms / 1_000 - self._ahead_s
        by_clock_s = (self._environment.wall_ms() - message.enqueued_ms) / 1_000
        return max(since_youngest_s, by_clock_s)

    def _opened(self) -> UpstreamConnection:
        if self._connection is None:
            self._connection = UpstreamConnection(
                self._secondary,
                ANSWER_S,
                connect=self._environment.connect,
                requests=self._requests,
            )
        return self._connection

    def _unusable(self, error: Exception, right: str) -> BoardError:
        """What a failed look or post means; `right` is what it needs."""
        place = f"the notice board {self.path} in {self._secondary.label}"
        meaning = of_error(error)
        is_refusal = meaning in REFUSALS
        match meaning:
            case FailureMeaning.NOT_FOUND:
                text = f"{place} is missing: create it with `twinbus backlog create`"
            case FailureMeaning.UNAUTHORIZED:
                text = f"{place} needs the {right} right: grant it, or pair with board=False"
            case FailureMeaning.DISABLED:
                text = f"{place} is disabled: set it to Active"
            case FailureMeaning.QUOTA:
                text = f"{place} is full; its messages expire within minutes"
            case _:
                why = short(error) or f"no answer within {ANSWER_S:g} s"
                text = f"{place} does not answer: {why}"
        return BoardError(text, is_refusal=is_refusal)


def notices_in(message: PeekedMessage, age_s: float) -> list[FreshNotice]:
    """Return the valid notices in a message of the board, which anyone may have written."""
    body = message.body
    if body is None or len(body) > POST_BYTES_MAX or message.state != ACTIVE:
        return []
    valid_s = _lives_s(message) - age_s
    return [FreshNotice(notice, valid_s) for notice in decode(body)] if valid_s > 0 else []


def _lives_s(message: PeekedMessage) -> float:
    """Time to live of a message, within the limit. The clock of its writer does not matter."""
    ttl_ms = message.header.ttl
    expires_ms, enqueued_ms = message.properties.absolute_expiry_time, message.enqueued_ms
    if isinstance(expires_ms, int) and enqueued_ms is not None:
        lives_ms = expires_ms - enqueued_ms
        ttl_ms = lives_ms if ttl_ms is None else min(ttl_ms, lives_ms)
    return TIME_TO_LIVE_MAX_S if ttl_ms is None else min(ttl_ms / 1_000, TIME_TO_LIVE_MAX_S)
