"""Requests to the `$management` node of a backlog queue."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from twinbus.amqp.message import decode_map, split
from twinbus.amqp.types import Array, DecodeError, Int, Symbol, UInt
from twinbus.client.connection import NamespaceConnection
from twinbus.client.request_node import ConnectionLost, RequestRefused, uuid_of_token
from twinbus.servicebus import names
from twinbus.syphon.core.session_lanes import PeekedEntry
from twinbus.transfer.backlog_message import BacklogMessage
from twinbus.transfer.unpacking import unpack

TOKENS_MAX: Final = 100
"""Lock tokens or sequence numbers in one request."""

PEEK_COUNT: Final = 250
PEEKS_MAX: Final = 400
"""Peeks of one search; a later search finds what is further back."""

FOUND_MAX: Final = 10_000
DEFERRED_STATE: Final = 1
ABOUT_ONE: Final = (404, 410)
"""Statuses of a refusal because of one message of the request: it is gone, locked by another
receiver, or its lock has ended. Any other status (busy, unauthorized, internal error) concerns all
of them."""


class SettledRequest(NamedTuple):
    """The result of a request about many messages."""

    done: list[BacklogMessage]
    lost: list[BacklogMessage]
    """They lost their locks."""
    rest: list[BacklogMessage]
    """Not done; `refusal` says why. What was lost with the connection is in none of the lists."""
    refusal: RequestRefused | None


class QueueRequests:
    """Makes requests to the `$management` node of one backlog queue."""

    def __init__(self, connection: NamespaceConnection, queue: str) -> None:
        self._connection = connection
        self._queue = queue

    async def settle(
        self, messages: list[BacklogMessage], status: str, arguments: dict[str, Any]
    ) -> SettledRequest:
        """Settle messages by lock token."""
        return await self._for_each_group(
            messages, "update-disposition", {"disposition-status": status, **arguments}
        )

    async def renew(self, messages: list[BacklogMessage]) -> SettledRequest:
        """Renew locks."""
        return await self._for_each_group(messages, "renew-lock", {})

    async def _for_each_group(
        self, messages: list[BacklogMessage], operation: str, arguments: dict[str, Any]
    ) -> SettledRequest:
        done: list[BacklogMessage] = []
        lost: list[BacklogMessage] = []
        groups = [messages[at : at + TOKENS_MAX] for at in range(0, len(messages), TOKENS_MAX)]
        while groups:
            group = groups.pop()
            tokens = Array([uuid_of_token(message.lock_token) for message in group])
            try:
                await self._connection.request(
                    self._queue, operation, {**arguments, "lock-tokens": tokens}
                )
            except ConnectionLost:
                # What was answered before the loss is known, and must not be asked for again. The
                # relay tells the pump of the loss.
                break
            except RequestRefused as refusal:
                if refusal.status not in ABOUT_ONE:
                    rest = [message for each in (group, *groups) for message in each]
                    return SettledRequest(done, lost, rest, refusal)
                if len(group) == 1:
                    lost += group
                else:
                    # One bad token fails the whole request: halve it until the token is alone.
                    middle = len(group) // 2
                    groups += [group[:middle], group[middle:]]
            else:
                done += group
        return SettledRequest(done, lost, [], None)

    async def receive_deferred(
        self, numbers: list[int]
    ) -> tuple[list[tuple[bytes, bytes]], list[int]]:
        """Receive deferred messages: return each with its lock token, and the refused numbers."""
        fetched: list[tuple[bytes, bytes]] = []
        refused: list[int] = []
        groups = [numbers[at : at + TOKENS_MAX] for at in range(0, len(numbers), TOKENS_MAX)]
        while groups:
            group = groups.pop(0)
            arguments = {"sequence-numbers": Array(group), "receiver-settle-mode": UInt(1)}
            try:
                answer = await self._connection.request(
                    self._queue, "receive-by-sequence-number", arguments
                )
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
                fetched += [
                    (entry["message"], entry["lock-token"].bytes_le)
                    for entry in answer.get("messages", ())
                ]
        return fetched, refused

    async def find_deferred(
        self, now_ms: int, *, to_the_end: bool = True
    ) -> tuple[list[PeekedEntry], bool]:
        """Peek for deferred messages; return them, and whether these are all.

        Unless `to_the_end`, stop at the first page without any: what a syphon deferred before it
        died is in front of the messages that nobody received yet.
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
        answer = await self._connection.request(
            self._queue,
            "peek-message",
            {"from-sequence-number": start, "message-count": Int(PEEK_COUNT)},
        )
        page: list[PeekedEntry] = []
        for entry in answer.get("messages", ()):
            message = unpack(entry["message"], b"", now_ms)
            is_deferred = _is_deferred(entry["message"])
            page.append(
                PeekedEntry(message.sequence_number, message.path, message.session, is_deferred)
            )
        # By number alone: the other parts do not compare, and numbers may be missing (0).
        return sorted(page, key=lambda entry: entry.number)


def _is_deferred(message: bytes) -> bool:
    try:
        marks = decode_map(split(message).message_annotations)
    except DecodeError:
        return False
    return marks.get(Symbol(names.MESSAGE_STATE)) == DEFERRED_STATE
