"""Reads queues without receiving: peeks at messages, lists the backlog queues."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import quote
from xml.sax.saxutils import unescape

from twinbus.amqp.events import Event
from twinbus.amqp.types import Int
from twinbus.errors import SyphonError
from twinbus.namespace.endpoint import Endpoint
from twinbus.namespace.signatures import wrong_key_text
from twinbus.namespace.tokens import NamespaceToken
from twinbus.syphon.connection.administration_request import NotAnswered, get, token_for
from twinbus.syphon.connection.counts import QueueCounts, counts_in
from twinbus.syphon.connection.namespace_connection import (
    ConnectionLost,
    NamespaceConnection,
    RequestRefused,
)
from twinbus.syphon.connection.peeked_message import PeekedMessage, read_peeked

DEAD_LETTERS: Final = "$DeadLetterQueue"
"""Name of the dead-letter queue, after the path of its queue."""

PEEK_COUNT: Final = 100
"""Messages of one peek: at most 26 MB are in memory at once."""

LIST_PAGE: Final = 100
PAGE_BYTES_MAX: Final = 16 << 20

_TITLE: Final = re.compile(r"<title[^>]*>([^<]+)</title>")
_ENTRY: Final = re.compile(r"<entry[\s>].*?</entry>", re.DOTALL)
_BACKLOG: Final = re.compile(r"(?P<label>.+)/x-servicebus-transfer/(?P<index>\d+)", re.IGNORECASE)


class ListingRefused(SyphonError):
    """The credential may not list the queues of a namespace; named queues can be used."""


class KeyRefused(SyphonError):
    """The namespace refused the credential itself, whatever its rights."""


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
    address = f"{queue}/{DEAD_LETTERS}" if dead_letters else queue
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


async def list_backlog_queues(endpoint: Endpoint, label: str | None = None) -> list[str]:
    """Return the backlog queues of a namespace, for one primary's label or for all, in order.

    Raise SyphonError if listing them is refused or not answered.
    """
    return list(await list_backlog_counts(endpoint, label))


async def list_backlog_counts(
    endpoint: Endpoint, label: str | None = None
) -> dict[str, QueueCounts | None]:
    """Return the backlog queues as `list_backlog_queues`, with the counts that the list has."""
    try:
        token = await token_for(endpoint, "")
    except NotAnswered as error:
        raise SyphonError(str(error)) from error
    queues = await asyncio.to_thread(_listed, endpoint, token)
    found = []
    for name, counts in queues.items():
        place = _BACKLOG.fullmatch(name)
        if place and (label is None or place["label"].lower() == label.lower()):
            found.append((place["label"].lower(), int(place["index"]), name, counts))
    return {name: counts for _, _, name, counts in sorted(found, key=lambda one: one[:3])}


def _listed(endpoint: Endpoint, token: NamespaceToken) -> dict[str, QueueCounts | None]:
    queues: dict[str, QueueCounts | None] = {}
    listed = 0
    while True:
        entries = _ENTRY.findall(_page(endpoint, token, listed))
        for entry in entries:
            if (title := _TITLE.search(entry)) is not None:
                queues[unescape(title[1])] = counts_in(entry)
        listed += len(entries)
        if len(entries) < LIST_PAGE:
            return queues


def _page(endpoint: Endpoint, token: NamespaceToken, skip: int) -> str:
    query = f"$skip={skip}&$top={LIST_PAGE}&"
    queues = quote("$Resources/queues")
    try:
        status, text = get(endpoint, queues, token, query=query, bytes_max=PAGE_BYTES_MAX)
    except NotAnswered as error:
        raise SyphonError(f"{endpoint.label} cannot be reached: {error}") from error
    if wrong := wrong_key_text(endpoint.label, text) if status == 401 else None:
        raise KeyRefused(wrong)
    if status in (401, 403):
        raise ListingRefused(
            f"listing the queues of {endpoint.label} needs the Manage right, and "
            f"{endpoint.tokens.who} does not have it: name the queues"
        )
    if status != 200:
        raise SyphonError(f"{endpoint.label} answers {status} to the listing of its queues")
    return text


def _ignored(_: Event) -> None:
    """Answers to peeks come on the connection's own links."""
