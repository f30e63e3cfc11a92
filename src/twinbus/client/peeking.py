"""Reads queues without receiving: peeks at messages, and counts those to selected destinations."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from twinbus.amqp.events import Event
from twinbus.amqp.types import Int
from twinbus.client.connection import NamespaceConnection
from twinbus.client.peeked_message import PeekedMessage, read_peeked
from twinbus.client.request_node import ConnectionLost, RequestRefused
from twinbus.errors import SyphonError
from twinbus.namespace.access import Endpoint
from twinbus.servicebus.names import DEAD_LETTER

"""Name of the dead-letter queue, after the path of its queue."""

PEEK_COUNT: Final = 100
"""Messages of one peek: at most 26 MB are in memory at once."""


class NamespaceUnreachable(SyphonError):
    """The namespace does not answer now; it may later."""


@asynccontextmanager
async def open_connection(endpoint: Endpoint) -> AsyncIterator[NamespaceConnection]:
    """Connect to a namespace for a block; raise a SyphonError of one line if anything fails."""
    connection = NamespaceConnection(endpoint, _ignored)
    with syphon_errors(endpoint):
        try:
            await connection.open()
            yield connection
        finally:
            await connection.close()


class syphon_errors:  # noqa: N801  # reads as a sentence where it is used
    """Turns the errors of a connection, raised in the block, into SyphonErrors."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, ConnectionLost):
            raise NamespaceUnreachable(str(error)) from error
        if isinstance(error, RequestRefused):
            raise SyphonError(f"{self._endpoint.label} refuses: {error}") from error


async def peek(
    connection: NamespaceConnection,
    queue: str,
    *,
    dead_letters: bool = False,
    start: int = 1,
    end: int | None = None,
    page: int = PEEK_COUNT,
) -> AsyncGenerator[PeekedMessage, None]:
    """Yield the messages of a queue, or its dead letters, oldest first; nothing is locked.

    From sequence number `start` on, and before `end`. One request asks for `page` messages.
    """
    address = f"{queue}/{DEAD_LETTER}" if dead_letters else queue
    while True:
        answer = await connection.request(
            address,
            "peek-message",
            {"from-sequence-number": start, "message-count": Int(page)},
        )
        found = [read_peeked(queue, entry["message"]) for entry in answer.get("messages", ())]
        if not found:
            return
        for peeked in found:
            if end is not None and peeked.sequence_number >= end:
                return
            yield peeked
        # The last one may be unreadable and have no number.
        following = max(peeked.sequence_number for peeked in found) + 1
        if following <= start:
            return
        start = following


def destination_keys(paths: Iterable[str]) -> frozenset[str]:
    """Return entity paths as a pump compares them; raise SyphonError if one is empty."""
    keys = frozenset(path.strip().strip("/").lower() for path in paths)
    if not keys or "" in keys:
        raise SyphonError("a destination is the path of a queue or topic; this one is empty")
    return keys


async def count_matching(
    endpoint: Endpoint, queues: Sequence[str], only: frozenset[str]
) -> dict[str, int]:
    """Return how many messages to these destinations each queue holds, in any state.

    Raise SyphonError if peeking is refused or not answered.
    """
    found = dict.fromkeys(queues, 0)
    async with open_connection(endpoint) as connection:
        for queue in queues:
            async for message in peek(connection, queue):
                found[queue] += (message.path or "").lower() in only
    return found


def _ignored(_: Event) -> None:
    """Answers to peeks come on the connection's own links."""
