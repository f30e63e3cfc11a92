"""Reads which entities of a namespace are marked as twins, by its administration API.

Reading a mark needs the Manage right, which senders and receivers often do not have.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote
from xml.sax.saxutils import unescape

from twinbus.client.administration import (
    ANSWER_BYTES_MAX,
    LIST_PAGE,
    OK,
    PAGE_BYTES_MAX,
    UNAUTHORIZED,
    NotAnswered,
    QueueCounts,
    counts_in,
    get,
    token_for,
)
from twinbus.ledger.requests import BilledRequests
from twinbus.namespace.access import Endpoint
from twinbus.namespace.tokens import NamespaceToken
from twinbus.servicebus.twins import is_twin_of

REFUSED: Final = (UNAUTHORIZED, 403)
MISSING: Final = 404

_ENTRY: Final = re.compile(r"<entry[\s>].*?</entry>", re.DOTALL)
_TITLE: Final = re.compile(r"<title[^>]*>([^<]+)</title>")
_METADATA: Final = re.compile(r"<(?:\w+:)?UserMetadata[^>]*>([^<]*)</")
_SESSION: Final = re.compile(r"<(?:\w+:)?RequiresSession>\s*true\s*</", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class MarkedTwin:
    """An entity of the secondary whose UserMetadata says that it is a twin."""

    path: str
    is_topic: bool = False
    requires_session: bool = False
    counts: QueueCounts = field(default_factory=QueueCounts)
    """What a queue holds; all 0 for a topic, whose messages are in its subscriptions."""


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


async def marked_twins(
    endpoint: Endpoint, label: str, requests: BilledRequests | None = None
) -> list[MarkedTwin] | None:
    """Return the queues and topics that are marked as twins for this primary's label, by path.

    None: the credential may not list them. NotAnswered: the namespace does not answer.
    """
    token = await token_for(endpoint, "")
    return await asyncio.to_thread(_listed, endpoint, token, label, requests)


def _listed(
    endpoint: Endpoint, token: NamespaceToken, label: str, requests: BilledRequests | None
) -> list[MarkedTwin] | None:
    found = []
    for kind in ("queues", "topics"):
        listed, entries = 0, [""] * LIST_PAGE
        while len(entries) >= LIST_PAGE:
            status, text = get(
                endpoint,
                quote(f"$Resources/{kind}"),
                token,
                query=f"$skip={listed}&$top={LIST_PAGE}&",
                bytes_max=PAGE_BYTES_MAX,
                requests=requests,
            )
            if status in REFUSED:
                return None
            if status != OK:
                raise NotAnswered(f"{endpoint.label} answers {status} to the listing of its {kind}")
            entries = _ENTRY.findall(text)
            listed += len(entries)
            for entry in entries:
                title = _TITLE.search(entry)
                if title is not None and is_twin_of(metadata_in(entry), label):
                    found.append(_twin(unescape(title[1]), entry, is_topic=kind == "topics"))
    return sorted(found, key=lambda twin: twin.path.lower())


def _twin(path: str, entry: str, *, is_topic: bool) -> MarkedTwin:
    counts = None if is_topic else counts_in(entry)
    return MarkedTwin(path, is_topic, _SESSION.search(entry) is not None, counts or QueueCounts())


def metadata_in(entry: str) -> str | None:
    """Return the UserMetadata in the administration API's description of an entity."""
    found = _METADATA.search(entry)
    return None if found is None else unescape(found[1], {"&quot;": '"', "&apos;": "'"})
