"""Reads which entities of a namespace are marked as twins and what they hold, over HTTP.

Reading a mark needs the Manage right, which senders and receivers often do not have.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote
from xml.sax.saxutils import unescape

from twinbus.client.administration import (
    ANSWER_BYTES_MAX,
    OK,
    QUEUES,
    TOPICS,
    UNAUTHORIZED,
    ListingRefused,
    NotAnswered,
    counts_in,
    get,
    list_entries,
    token_for,
)
from twinbus.ledger.requests import BilledRequests
from twinbus.namespace.access import Endpoint
from twinbus.servicebus.names import is_entity_name, parse_backlog_path
from twinbus.servicebus.twins import FoundTwin, is_twin_of

REFUSED: Final = (UNAUTHORIZED, 403)
MISSING: Final = 404

_METADATA: Final = re.compile(r"<(?:\w+:)?UserMetadata[^>]*>([^<]*)</")
_SESSION: Final = re.compile(r"<(?:\w+:)?RequiresSession>\s*true\s*</", re.IGNORECASE)


async def is_marked(
    endpoint: Endpoint, path: str, label: str, requests: BilledRequests | None = None
) -> bool | None:
    """Return whether a queue or topic is there and marked as the twin for this primary's label.

    None: the credential may not read it. NotAnswered: the namespace does not answer.
    """
    token = await token_for(endpoint, path)
    status, text = await asyncio.to_thread(
        get, endpoint, quote(path), token, bytes_max=ANSWER_BYTES_MAX, requests=requests
    )
    if status in REFUSED:
        return None
    if status == MISSING:
        return False
    if status != OK:
        raise NotAnswered(f"{endpoint.label} answers {status} for the description of {path}")
    return is_twin_of(metadata_in(text), label)


async def marked_paths(
    endpoint: Endpoint, label: str, requests: BilledRequests | None = None
) -> frozenset[str] | None:
    """Return the queues and topics that are marked as twins of a primary, in lower case.

    None: the credential may not list them. SyphonError: the namespace does not answer.
    """
    try:
        listed = [await list_entries(endpoint, kind, requests) for kind in (QUEUES, TOPICS)]
    except ListingRefused:
        return None
    return frozenset(
        path.lower()
        for entries in listed
        for path, entry in entries.items()
        if is_twin_of(metadata_in(entry), label)
    )


async def found_twins(
    endpoint: Endpoint, label: str, requests: BilledRequests | None = None
) -> list[FoundTwin]:
    """Return all twins of a primary's label: one listing of queues, one of topics, one for each."""
    queues = twins_in(await list_entries(endpoint, QUEUES, requests), label)
    return queues + await found_subscriptions(endpoint, label, requests)


async def found_subscriptions(
    endpoint: Endpoint, label: str, requests: BilledRequests | None = None
) -> list[FoundTwin]:
    """Return the subscriptions of all topics that are marked as twins."""
    found = []
    for topic, entry in (await list_entries(endpoint, TOPICS, requests)).items():
        if is_twin_of(metadata_in(entry), label):
            names = await list_entries(endpoint, f"{topic}/Subscriptions", requests)
            found += [_found(f"{topic}/Subscriptions/{name}", names[name], topic) for name in names]
    return found


def twins_in(entries: Mapping[str, str], label: str) -> list[FoundTwin]:
    """Return the queues that are marked as twins among the entries of a listing of queues.

    A mark on a backlog queue does not count: its messages have destinations of their own.
    """
    return [
        _found(path, entry)
        for path, entry in entries.items()
        if is_twin_of(metadata_in(entry), label)
        and is_entity_name(path)
        and parse_backlog_path(path) is None
    ]


def _found(path: str, entry: str, topic: str = "") -> FoundTwin:
    has_sessions = _SESSION.search(entry) is not None
    counts = counts_in(entry)
    if counts is None:
        # A server that does not count in a list: let a pump find out.
        return FoundTwin(path, topic, has_sessions, active=1, waiting=None)
    return FoundTwin(
        path, topic, has_sessions, counts.active, counts.waiting, scheduled=counts.scheduled
    )


def metadata_in(entry: str) -> str | None:
    """Return the UserMetadata in the administration API's description of an entity."""
    found = _METADATA.search(entry)
    return None if found is None else unescape(found[1], {"&quot;": '"', "&apos;": "'"})
