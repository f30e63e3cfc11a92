"""Requests of clients about messages of an entity with a twin go to the side that has them.

    renew-lock, update-disposition   by lock token: the gateway knows the tokens of the twin
    receive-by-sequence-number       by bit 62 of the number, which the twin's have
    peek-message                     the primary first, then the twin: its numbers are the highest

All other requests, and those about a session, go to the primary (relayed_links.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from twinbus.amqp.message import Sections
from twinbus.amqp.types import Array, Timestamp
from twinbus.broker.links.requests import ManagementRequest, correlation_id, failure, success
from twinbus.broker.refusals import ArgumentInvalid, MessageLockLost, Refusal, ServerBusy
from twinbus.client.consumer_records import OPERATIONS
from twinbus.client.request_node import ConnectionLost, RequestRefused
from twinbus.errors import error_text
from twinbus.gateway.client_copies import ClientCopies
from twinbus.gateway.relay import UpstreamRefusal
from twinbus.gateway.relay_records import ReceivedNames
from twinbus.pairing.core.sides import Side
from twinbus.pairing.receiving.mark_watch import NotReadable
from twinbus.servicebus import conditions
from twinbus.servicebus.twins import is_of_secondary, own_number
from twinbus.transfer.twin_numbers import with_secondary_number

if TYPE_CHECKING:
    from twinbus.client.connection import Record
    from twinbus.pairing.receiving.receivers import PairedReceivers

log = logging.getLogger("twinbus.gateway")

PREFIX: Final = "com.microsoft:"
LOCKS_MAX: Final = 100_000
"""Locks that a gateway remembers; forgotten ones of twins are asked of the primary."""

SETTLE_S: Final = 3.0
"""How long a side may be silent before a settlement of one of its messages fails at once."""

AGAIN_S: Final = 10.0
"""After this time such a side is asked again."""

DELETES: Final = 0
"""Receiver settle mode of a request that receives and deletes."""


class RememberedLocks:
    """Lock tokens of all clients; the oldest are forgotten."""

    def __init__(self, locks_max: int = LOCKS_MAX) -> None:
        self._max = locks_max
        self._tokens: OrderedDict[bytes, None] = OrderedDict()

    def add(self, token: bytes) -> None:
        self._tokens[token] = None
        if len(self._tokens) > self._max:
            self._tokens.popitem(last=False)

    def discard(self, token: bytes) -> None:
        self._tokens.pop(token, None)

    def __contains__(self, token: bytes) -> bool:
        return token in self._tokens


class SecondaryLocks(RememberedLocks):
    """Those of messages that came from a twin."""

    def __init__(self, locks_max: int = LOCKS_MAX) -> None:
        super().__init__(locks_max)
        self.given_up = RememberedLocks(locks_max)
        """Those of either side whose settlement failed: the client expects the message again.

        The SDK of JavaScript would go on renewing such a lock for five minutes.
        """

    def side_of(self, token: bytes) -> Side:
        return Side.SECONDARY if token in self else Side.PRIMARY


class TwinRequests:
    """Answers the requests about messages of one entity."""

    def __init__(
        self,
        receivers: PairedReceivers,
        locks: SecondaryLocks,
        entity: str,
        path: str,
        client: str | None = None,
        received: ReceivedNames | None = None,
        copies: ClientCopies | None = None,
    ) -> None:
        """`path` is that of the entity, its subscription, or a dead-letter queue.

        `client` is what the ledger calls the client, and `received` what it calls the messages that
        the client received by number; `copies` are the client's.
        """
        self._receivers = receivers
        self._locks = locks
        self._entity = entity
        self._path = path
        self._client = client
        self._received = received or ReceivedNames()
        self._copies = copies or ClientCopies()
        self._silent: dict[Side, float] = {}
        """When a side last did not answer a settlement."""
        self._operations: Mapping[str, Callable[[ManagementRequest], Awaitable[Any]]] = {
            f"{PREFIX}renew-lock": self._renew,
            f"{PREFIX}update-disposition": self._settle,
            f"{PREFIX}receive-by-sequence-number": self._receive,
            f"{PREFIX}peek-message": self._peek,
        }

    def takes(self, request: Sections) -> bool:
        """Whether a request is answered here; False: it goes to the primary."""
        wanted = ManagementRequest(request)
        return wanted.operation in self._operations and wanted.get("session-id") is None

    async def answer(self, request: Sections) -> bytes:
        """Return the response to a request that `takes` accepts."""
        request_id = correlation_id(request)
        try:
            wanted = ManagementRequest(request)
            return success(request_id, await self._operations[wanted.operation](wanted))
        except Refusal as refusal:
            return failure(request_id, refusal)
        except (RequestRefused, ConnectionLost, NotReadable) as error:
            return failure(request_id, _refusal(error))
        except Exception:
            log.exception("%s: a request failed in the gateway", self._path)
            return failure(request_id, Refusal("The gateway failed to answer the request."))

    async def _ask(
        self,
        side: Side,
        request: ManagementRequest,
        *,
        record: Record | None = None,
        **changes: Any,
    ) -> dict[str, Any]:
        """Ask one side the same, with other arguments; `record` records it for the ledger."""
        if side is Side.SECONDARY:
            await self._receivers.require_mark(self._entity)
        upstream = self._receivers.connection(side)
        connection = await upstream.opened()
        arguments = {**request.arguments, **{_name(key): one for key, one in changes.items()}}
        operation = request.operation.removeprefix(PREFIX)
        record = record or upstream.record(self._path, operation, self._client)
        return await connection.request(self._path, operation, arguments, record=record)

    # The operations

    async def _renew(self, request: ManagementRequest) -> dict[str, Any]:
        until: dict[bytes, object] = {}
        if any(token in self._locks.given_up for token in request.lock_tokens()):
            raise MessageLockLost("A settlement failed before; the message is delivered again.")
        for side, tokens in self._by_side(request.lock_tokens()).items():
            answer = await self._ask(side, request, lock_tokens=_uuids(tokens))
            times = answer.get("expirations")
            if not isinstance(times, list) or len(times) != len(tokens):
                raise ServerBusy(f"The {side} did not say until when the messages are locked.")
            until.update(zip(tokens, times, strict=True))
        times = [until[token] for token in request.lock_tokens()]
        return {"expirations": Array([Timestamp(int(str(time))) for time in times])}

    async def _settle(self, request: ManagementRequest) -> dict[str, Any]:
        refused: RequestRefused | MessageLockLost | None = None
        for side, tokens in self._by_side(request.lock_tokens()).items():
            try:
                await self._settle_at(side, request, tokens)
            # Each side settles for itself: one that is down must not hold up the other.
            except RequestRefused as error:
                refused = refused or error
            except ConnectionLost as error:
                # As on a link. After a busy server an SDK waits before it settles again, that of
                # JavaScript for 30 s, and the other side's messages would wait with it.
                text = f"The {side} does not answer; the message is delivered again: {error}"
                refused = refused or MessageLockLost(text)
                for token in tokens:
                    self._locks.given_up.add(token)
            else:
                for token in tokens:
                    self._locks.discard(token)
                    self._copies.settled(token, request.optional_text("disposition-status") or "")
        if refused is not None:
            raise refused
        return {}

    async def _settle_at(
        self, side: Side, request: ManagementRequest, tokens: Sequence[bytes]
    ) -> None:
        """Ask one side; a client that settles one after another waits for a silent one once."""
        upstream, now = self._receivers.connection(side), asyncio.get_running_loop().time()
        failed_at = self._silent.get(side)
        if failed_at is not None and upstream.heard_at <= failed_at and now < failed_at + AGAIN_S:
            raise ConnectionLost(f"{upstream.label} is silent")
        record = self._record_of(side, request, tokens)
        try:
            async with asyncio.timeout(SETTLE_S):
                await self._ask(side, request, record=record, lock_tokens=_uuids(tokens))
        except (ConnectionLost, TimeoutError) as error:
            self._silent[side] = asyncio.get_running_loop().time()
            raise ConnectionLost(error_text(error)) from error

    async def _receive(self, request: ManagementRequest) -> dict[str, Any]:
        numbers: dict[Side, list[int]] = {}
        for number in request.integers("sequence-numbers"):
            side = Side.SECONDARY if is_of_secondary(number) else Side.PRIMARY
            numbers.setdefault(side, []).append(own_number(number))
        if len(numbers) > 1 and request.integer("receiver-settle-mode", 1) == DELETES:
            # If the second side refused, what the first one has deleted would be lost.
            raise ArgumentInvalid(
                "Deferred messages of both sides cannot be received and deleted with one request;"
                " ask for those whose sequence numbers have bit 62 set by themselves."
            )
        found: list[dict[str, Any]] = []
        for side, some in numbers.items():
            answer = await self._ask(side, request, sequence_numbers=Array(some))
            self._note_received(side, answer)
            found += self._entries(side, answer)
        return {"messages": found}

    async def _peek(self, request: ManagementRequest) -> dict[str, Any] | None:
        """Browse the primary, and the twin where the primary has nothing more.

        Never both in one answer: one that ends because of its size would end in the twin, and a
        client that goes on from its last number would miss the rest of the primary's.
        """
        start = request.integer("from-sequence-number", 0)
        failed: Exception | None = None
        if not is_of_secondary(start):
            try:
                answer = await self._ask(Side.PRIMARY, request)
                if found := self._entries(Side.PRIMARY, answer):
                    return {"messages": found}
            except (RequestRefused, ConnectionLost) as error:
                if isinstance(error, RequestRefused) and not error.meaning.retried:
                    raise
                failed = error
            start = 0
        try:
            answer = await self._ask(
                Side.SECONDARY, request, from_sequence_number=own_number(start)
            )
        except (RequestRefused, ConnectionLost, NotReadable):
            if failed is not None:
                raise failed from None
            return None  # The primary has said that it has nothing.
        found = self._entries(Side.SECONDARY, answer)
        return {"messages": found} if found else None

    def _by_side(self, tokens: Sequence[bytes]) -> dict[Side, list[bytes]]:
        sides: dict[Side, list[bytes]] = {}
        for token in tokens:
            sides.setdefault(self._locks.side_of(token), []).append(token)
        return sides

    def _entries(self, side: Side, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The messages of an answer, as the client is to know them."""
        entries: list[dict[str, Any]] = []
        for data, token in _messages_of(answer):
            is_twin = side is Side.SECONDARY
            entries.append({"message": with_secondary_number(data) if is_twin else data})
            if token is not None:
                entries[-1]["lock-token"] = token
                if is_twin:
                    self._locks.add(token.bytes_le)
        return entries

    # The ledger

    def _note_received(self, side: Side, answer: Mapping[str, Any]) -> None:
        records = self._receivers.connection(side).records(self._path, self._client)
        for data, token in _messages_of(answer):
            if records is not None:
                names = records.received(data)
                if token is not None:
                    self._received.add(token, names)

    def _record_of(
        self, side: Side, request: ManagementRequest, tokens: Sequence[bytes]
    ) -> Record | None:
        """Return what records a settlement, as one line for each message; None: no ledger."""
        records = self._receivers.connection(side).records(self._path, self._client)
        operation = OPERATIONS.get(request.optional_text("disposition-status") or "")
        if records is None or operation is None:
            return None
        names = [self._received.pop(UUID(bytes_le=token)) for token in tokens]

        def record(error: str | None, *, is_known: bool) -> None:
            for one in names:
                records.settled(operation, one, error, is_known=is_known)

        return record


def _messages_of(answer: Mapping[str, Any]) -> Iterator[tuple[bytes, UUID | None]]:
    """The messages of an answer and their lock tokens; what is not a message is left out."""
    for given in answer.get("messages") or ():
        if isinstance(given, dict) and isinstance(data := given.get("message"), bytes):
            token = given.get("lock-token")
            yield data, token if isinstance(token, UUID) else None


def _uuids(tokens: Sequence[bytes]) -> Array:
    return Array([UUID(bytes_le=token) for token in tokens])


def _name(key: str) -> str:
    return key.replace("_", "-")


def _refusal(error: RequestRefused | ConnectionLost | NotReadable) -> Refusal:
    """What the client is answered for a failure of a side."""
    if isinstance(error, ConnectionLost):
        return ServerBusy(error_text(error))
    condition = error.condition or conditions.NOT_FOUND
    refusal = UpstreamRefusal(condition, error_text(error))
    refusal.status = error.status if isinstance(error, RequestRefused) and error.status else 404
    return refusal
