"""The ledger lines of what a gateway relays for one client, link by link.

A delivery is recorded when it comes; a settlement and a request when the primary has answered, or
as unknown when it can answer no more. What is remembered until then is bounded.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Final, NamedTuple
from uuid import UUID

from twinbus.amqp.message import Sections, decode_map, decode_properties, decode_value, split
from twinbus.amqp.performatives import Accepted, Modified, Rejected, Released
from twinbus.amqp.types import AmqpError
from twinbus.broker.links.management import SENDING_OPERATIONS
from twinbus.broker.links.requests import ITEMS_MAX
from twinbus.client.connection import RECEIVE
from twinbus.client.consumer_records import (
    NO_NAMES,
    OPERATIONS,
    RELEASED,
    ConsumerRecords,
    records_of,
)
from twinbus.client.request_node import ACCEPTED, NO_CONTENT, OK
from twinbus.ledger.requests import APPLICATION
from twinbus.pairing.observing.recording import Recorder
from twinbus.servicebus import conditions
from twinbus.transfer.identity import MessageNames

PREFIX: Final = "com.microsoft:"
SETTLE: Final = "update-disposition"

ASKED_MAX: Final = 1_000
"""Requests of a client that are not answered; beyond that the oldest is recorded as unknown."""

TOKENS_MAX: Final = 10_000
"""Messages of a client that were received by number, and may be settled by their lock tokens."""

NOT_ANSWERED: Final = "it was settled without waiting for an answer"
LINK_CLOSED: Final = "it came when the client's link was closed"


class Asked(NamedTuple):
    """A request to a `$management` node."""

    path: str
    operation: str
    request_key: int
    """The hash of its id, which may be as long as a request."""
    settles: tuple[str, tuple[UUID, ...]] | None
    """The ledger's operation and the lock tokens of a settlement."""


class ReceivedNames:
    """The names of messages that a client received by number, by lock token: the latest ones."""

    def __init__(self) -> None:
        self._by_token: OrderedDict[UUID, MessageNames] = OrderedDict()

    def add(self, token: UUID, names: MessageNames) -> None:
        self._by_token[token] = names
        if len(self._by_token) > TOKENS_MAX:
            self._by_token.popitem(last=False)

    def pop(self, token: UUID) -> MessageNames:
        """Return the names of a message that is settled."""
        return self._by_token.pop(token, NO_NAMES)


class RelayRecords:
    """The lines of one client."""

    def __init__(self, recorder: Recorder, client: str | None) -> None:
        """`client` is the name of the client in the ledger."""
        self._consumed = recorder.requests("primary", client=client)
        self._sent = recorder.requests("primary", APPLICATION, client)
        self._loop = asyncio.get_running_loop()
        self._asked: OrderedDict[tuple[Hashable, int], Asked] = OrderedDict()
        """Requests that are not answered, by node and key."""
        self.received = ReceivedNames()

    def receiver(self, path: str) -> ReceiverRecords | None:
        """Return the lines of a receiver; None: there is no ledger."""
        records = self._of(path)
        return None if records is None else ReceiverRecords(records)

    # Requests

    def read(self, path: str, operation: str | None, request: Sections) -> Asked | None:
        """Return what is recorded of a request that is going to be sent; None: nothing."""
        name = (operation or "").removeprefix(PREFIX)
        try:
            request_id = decode_properties(request.properties).message_id
            settles = _settlement(request) if name == SETTLE else None
        except AmqpError:
            return None  # The primary refuses it.
        return Asked(path, name, hash(request_id), settles)

    def asked(self, node: Hashable, asked: Asked) -> None:
        """A request was sent."""
        self._asked[node, asked.request_key] = asked
        if len(self._asked) > ASKED_MAX:
            self._end(self._asked.popitem(last=False)[1], "it was not answered", is_known=False)

    def answered(self, node: Hashable, answer: bytes) -> None:
        """The primary answered a request."""
        try:
            sections = split(answer)
            request_id = decode_properties(sections.properties).correlation_id
            headers = decode_map(sections.application_properties)
        except AmqpError:
            return
        asked = self._asked.pop((node, hash(request_id)), None)
        if asked is None:
            return
        status = headers.get("statusCode", 0)
        if status not in (OK, ACCEPTED, NO_CONTENT):
            self._end(asked, str(headers.get("errorCondition") or f"status {status}"))
        elif asked.operation != RECEIVE or not self._received(asked.path, sections):
            self._end(asked, None)

    def lost(self, text: str) -> None:
        """The connection to the primary is lost: no answer comes any more."""
        asked, self._asked = self._asked, OrderedDict()
        for one in asked.values():
            self._end(one, text, is_known=False)

    def _end(self, asked: Asked, error: str | None, *, is_known: bool = True) -> None:
        records = self._of(asked.path) if asked.settles is not None else None
        if asked.settles is not None and records is not None:
            operation, tokens = asked.settles
            for token in tokens:
                names = self.received.pop(token)
                records.settled(operation, names, error, is_known=is_known)
            return
        is_sending = f"{PREFIX}{asked.operation}" in SENDING_OPERATIONS
        made = (self._sent if is_sending else self._consumed).made
        made(asked.path, asked.operation, error, is_known=is_known)

    def _received(self, path: str, answer: Sections) -> bool:
        """Record the messages in an answer; return whether there are any."""
        records = self._of(path)
        messages = [] if records is None else _messages_in(answer)
        for data, token in messages:
            assert records is not None
            # Without a lock token it was received and deleted.
            names = records.received(data, is_deleted=token is None)
            if token is not None:
                self.received.add(token, names)
        return bool(messages)

    def _of(self, path: str) -> ConsumerRecords | None:
        return records_of(self._consumed, path, self._loop)


class ReceiverRecords:
    """The lines of one receiver of a client."""

    def __init__(self, records: ConsumerRecords) -> None:
        self._records = records
        self._held: dict[int, MessageNames] = {}
        """What the client has not settled, by our delivery id."""
        self._settling: dict[int, tuple[str, MessageNames]] = {}
        """What the primary has not confirmed, by its delivery id: operation and names."""
        self.asks_session = False
        """The primary was asked for a session and has not answered."""

    def received(self, number: int | None, data: bytes, *, is_deleted: bool = False) -> None:
        """A message came; `number` is our delivery id, None: there is nothing to settle.

        `is_deleted`: it came settled, so the primary keeps no copy.
        """
        names = self._records.received(data, is_deleted=is_deleted)
        if number is not None:
            self._held[number] = names

    def came_too_late(self, data: bytes, *, is_deleted: bool) -> None:
        """A message came when the client's link was closed already."""
        names = self._records.received(data, is_deleted=is_deleted)
        if not is_deleted:
            self._records.settled(RELEASED, names, LINK_CLOSED)

    def in_transaction(self, here: int) -> None:
        """The client settled a message in a transaction, which is not recorded."""
        self._held.pop(here, None)

    def ended(self) -> None:
        """The client's link is closed: what it holds comes again when the locks end."""
        held, self._held = self._held, {}
        for names in held.values():
            self._records.left(names)

    def settled(self, here: int, there: int, state: object, *, is_answered: bool) -> None:
        """The client settled a message: our delivery id, and the primary's."""
        names, operation = self._held.pop(here, NO_NAMES), _operation_of(state)
        if operation is None:
            return
        if is_answered:
            self._settling[there] = operation, names
        else:
            self._records.settled(operation, names, NOT_ANSWERED, is_known=False)

    def confirmed(self, there: int, state: object) -> None:
        """The primary answered a settlement."""
        operation, names = self._settling.pop(there, ("", NO_NAMES))
        if operation:
            error = state.error if isinstance(state, Rejected) else None
            condition = None if error is None else str(error.condition)
            # A rejection without an error, or with our own, confirms a dead letter.
            is_refused = condition != conditions.DEAD_LETTER
            self._records.settled(operation, names, condition if is_refused else None)

    def not_confirmed(self, there: int, text: str) -> None:
        """The connection to the primary is lost before it answered a settlement."""
        operation, names = self._settling.pop(there, ("", NO_NAMES))
        if operation:
            self._records.settled(operation, names, text, is_known=False)

    def session_given(self) -> None:
        if self.asks_session:
            self.asks_session = False
            self._records.accepted_session()

    def session_refused(self, condition: str, text: str) -> None:
        """The primary gave no session; without a condition: it did not answer."""
        if self.asks_session:
            self.asks_session = False
            self._records.refused_session(condition, text)


def _operation_of(state: object) -> str | None:
    """The ledger's operation of a state on a link; None: a transaction's, which has no line."""
    match state:
        case Accepted():
            return "complete"
        case Rejected():
            return "dead_letter"
        case Modified():
            return "defer" if state.undeliverable_here else "abandon"
        case Released() | None:
            return RELEASED
    return None


def _settlement(request: Sections) -> tuple[str, tuple[UUID, ...]] | None:
    body: Any = decode_value(request.body) if request.body else None
    if not isinstance(body, dict):
        return None
    operation = OPERATIONS.get(str(body.get("disposition-status")))
    given = body.get("lock-tokens")
    if not isinstance(given, list) or len(given) > ITEMS_MAX:
        return None  # The primary refuses it.
    tokens = tuple(one for one in given if isinstance(one, UUID))
    return None if operation is None or not tokens else (operation, tokens)


def _messages_in(answer: Sections) -> list[tuple[bytes, UUID | None]]:
    try:
        body: Any = decode_value(answer.body) if answer.body else None
    except AmqpError:
        return []
    entries = body.get("messages") if isinstance(body, dict) else None
    found: list[tuple[bytes, UUID | None]] = []
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("message"), bytes):
            token = entry.get("lock-token")
            found.append((entry["message"], token if isinstance(token, UUID) else None))
    return found
