"""The administration API of a namespace: GET requests, counts of queues, the list of queues.

A backlog is drained when active (including locked), scheduled and deferred are all 0.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import re
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote
from xml.sax.saxutils import unescape

from twinbus.errors import SyphonError
from twinbus.ledger.requests import BilledRequests
from twinbus.namespace.access import Endpoint
from twinbus.namespace.address import bracketed
from twinbus.namespace.tokens import NamespaceToken, wrong_key_text
from twinbus.servicebus.names import parse_backlog_path

log = logging.getLogger("twinbus.client")

API_VERSION: Final = "2021-05"

ANSWER_S: Final = 10.0
"""Time limit of a request, and of getting the token for it."""

OK: Final = 200
UNAUTHORIZED: Final = 401

ANSWER_BYTES_MAX: Final = 1024 * 1024

BUSY: Final = (429, 503)
"""Statuses of a namespace that throttles: a drain uses up the credits that counting needs too."""

BUSY_WAITS_S: Final = (2.0, 2.0, 4.0)
"""Azure asks to wait 2 seconds."""

QUEUES: Final = "$Resources/queues"
TOPICS: Final = "$Resources/topics"
LIST_PAGE: Final = 100
PAGE_BYTES_MAX: Final = 16 << 20

_COUNT: Final = re.compile(r"<(?:\w+:)?(\w*MessageCount)>(\d+)<")
_LOCK_DURATION: Final = re.compile(r"<LockDuration>PT(?:(\d+)M)?(?:([\d.]+)S)?</LockDuration>")
_TITLE: Final = re.compile(r"<title[^>]*>([^<]+)</title>")
_ENTRY: Final = re.compile(r"<entry[\s>].*?</entry>", re.DOTALL)


class NotAnswered(Exception):
    """The namespace did not answer completely; the text says why."""


async def token_for(endpoint: Endpoint, path: str) -> NamespaceToken:
    """Return a token for an entity, "" for the namespace; NotAnswered if there is none in time."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return await endpoint.token(path, time.time())
    except Exception as error:
        # A credential may raise anything, and azure-identity's texts have many lines.
        text = (str(error).strip() or f"no answer for {ANSWER_S:g} s").splitlines()[0]
        raise NotAnswered(
            f"{endpoint.tokens.who} gives no token for {endpoint.label}: {text}"
        ) from error


def get(
    endpoint: Endpoint,
    path: str,
    token: NamespaceToken,
    *,
    query: str = "",
    bytes_max: int,
    requests: BilledRequests | None = None,
) -> tuple[int, str]:
    """Return status and text of the resource at `path`, a quoted path; blocks.

    `requests` records it, as it is billed; None: as a command's.
    """
    requests = requests or BilledRequests(endpoint.label)
    was_valid = time.time() < token.expires_at_s
    connection = http_connection(endpoint)
    try:
        headers = {"Authorization": token.header, **host_header(endpoint)}
        connection.request("GET", f"/{path}?{query}api-version={API_VERSION}", headers=headers)
        response = connection.getresponse()
        status, text = response.status, response.read(bytes_max).decode("utf-8", "replace")
        if response.length:
            # The answer is shorter than announced; a part of it could be misread.
            raise NotAnswered("the connection was closed in the middle of the answer")
    except (NotAnswered, OSError, UnicodeError, http.client.HTTPException) as error:
        # UnicodeError: an invalid host name, such as contoso..example.
        requests.made(unquote(path), "get", str(error), is_known=False)
        raise NotAnswered(str(error)) from error
    finally:
        connection.close()
    requests.made(unquote(path), "get", None if status == OK else f"status {status}")
    if status == UNAUTHORIZED and was_valid and time.time() >= token.expires_at_s:
        # It says nothing of the rights: the next request has a new token.
        raise NotAnswered("the token expired while the request was under way")
    return status, text


def http_connection(
    endpoint: Endpoint, *, timeout_s: float = ANSWER_S
) -> http.client.HTTPConnection:
    """Return a connection to the administration API, not opened; the route's proxy tunnels it."""
    host, port, tls = endpoint.administration
    proxy = endpoint.route.proxy
    first, first_port = (host, port) if proxy is None else (proxy.host, proxy.port)
    connection: http.client.HTTPConnection
    if tls:
        context = endpoint.certificates or ssl.create_default_context()
        connection = http.client.HTTPSConnection(
            first, first_port, timeout=timeout_s, context=context
        )
    else:
        connection = http.client.HTTPConnection(first, first_port, timeout=timeout_s)
    if proxy is not None:
        connection.set_tunnel(host, port, proxy.headers)
    return connection


def host_header(endpoint: Endpoint) -> dict[str, str]:
    """Return the header that names the namespace to another endpoint."""
    return {} if endpoint.route.endpoint is None else {"Host": bracketed(endpoint.host)}


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueCounts:
    active: int = 0
    """Including locked messages."""
    scheduled: int = 0
    dead_lettered: int = 0
    total: int = 0

    @property
    def waiting(self) -> int:
        """Active, locked, scheduled and deferred messages; 0 if the queue is drained.

        Deferred messages have no count of their own; they are the rest of the total.
        """
        return max(self.total - self.dead_lettered, self.active + self.scheduled)


async def counts_of(
    endpoint: Endpoint, queue: str, busy_waits_s: Sequence[float] = BUSY_WAITS_S
) -> QueueCounts:
    """Return the counts. Raise SyphonError if refused, NotAnswered if there may be some later."""
    token = await token_for(endpoint, queue)
    return await asyncio.to_thread(_ask, endpoint, queue, token, iter(busy_waits_s))


def _ask(
    endpoint: Endpoint, queue: str, token: NamespaceToken, waits_s: Iterator[float]
) -> QueueCounts:
    while True:
        try:
            status, text = get(endpoint, quote(queue), token, bytes_max=ANSWER_BYTES_MAX)
        except NotAnswered as error:
            raise NotAnswered(f"{endpoint.label} does not answer: {error}") from error
        wait_s = next(waits_s, None) if status in BUSY else None
        if wait_s is None:
            break
        time.sleep(wait_s)
    if status in (401, 403):
        raise SyphonError(
            wrong_key_text(endpoint.label, text)
            or f"counting the messages of {queue} in {endpoint.label} needs the Manage right, and "
            f"{endpoint.tokens.who} does not have it: use a credential that has it"
        )
    counts = counts_in(text)
    # Azure answers 200 with an empty feed for a queue that does not exist.
    if status == 404 or (status == 200 and counts is None):
        raise SyphonError(f"there is no queue {queue} in {endpoint.label}; name one that exists")
    if status != 200 or counts is None:
        raise NotAnswered(f"{endpoint.label} answers {status} for the counts of {queue}")
    return counts


def counts_in(entry: str) -> QueueCounts | None:
    """Return the counts in the administration API's description of a queue; None: it has none."""
    counts = dict(_COUNT.findall(entry))
    if "MessageCount" not in counts:
        return None
    return QueueCounts(
        active=int(counts.get("ActiveMessageCount", 0)),
        scheduled=int(counts.get("ScheduledMessageCount", 0)),
        dead_lettered=int(counts.get("DeadLetterMessageCount", 0)),
        total=int(counts["MessageCount"]),
    )


async def described_lock_s(endpoint: Endpoint, path: str, requests: BilledRequests) -> float | None:
    """Return the lock duration of a queue by its description; None if it cannot be read.

    Reading it needs the Manage right.
    """
    try:
        token = await token_for(endpoint, path)
        status, text = await asyncio.to_thread(
            get, endpoint, quote(path), token, bytes_max=ANSWER_BYTES_MAX, requests=requests
        )
    except NotAnswered as error:
        log.info("%s: the lock duration of %s is not known: %s", endpoint.label, path, error)
        return None
    found = _LOCK_DURATION.search(text) if status == OK else None
    if found is None:
        log.info("%s: the lock duration of %s is not known: %d", endpoint.label, path, status)
        return None
    return (60.0 * int(found[1] or 0) + float(found[2] or 0)) or None


class ListingRefused(SyphonError):
    """The credential may not list the queues of a namespace; named queues can be used."""


class KeyRefused(SyphonError):
    """The namespace refused the credential itself, whatever its rights."""


async def list_backlog_queues(endpoint: Endpoint, label: str | None = None) -> list[str]:
    """Return the backlog queues of a namespace, for one primary's label or for all, in order.

    Raise SyphonError if listing them is refused or not answered.
    """
    return list(backlog_counts_in(await list_entries(endpoint, QUEUES), label))


def backlog_counts_in(
    entries: Mapping[str, str], label: str | None = None
) -> dict[str, QueueCounts | None]:
    """Return the backlog queues among the entries of a listing, with their counts, in order."""
    found = []
    for name, entry in entries.items():
        place = parse_backlog_path(name)
        if place and (label is None or place[0].lower() == label.lower()):
            found.append((place[0].lower(), place[1], name, counts_in(entry)))
    return {name: counts for _, _, name, counts in sorted(found, key=lambda one: one[:3])}


async def list_entries(
    endpoint: Endpoint, resource: str, requests: BilledRequests | None = None
) -> dict[str, str]:
    """Return the descriptions of all entities of a resource such as QUEUES, by name.

    Raise SyphonError if listing them is refused or not answered.
    """
    try:
        token = await token_for(endpoint, "")
    except NotAnswered as error:
        raise SyphonError(str(error)) from error
    return await asyncio.to_thread(_listed, endpoint, resource, token, requests)


def _listed(
    endpoint: Endpoint, resource: str, token: NamespaceToken, requests: BilledRequests | None
) -> dict[str, str]:
    found: dict[str, str] = {}
    listed = 0
    while True:
        entries = _ENTRY.findall(_page(endpoint, resource, token, listed, requests))
        for entry in entries:
            if (title := _TITLE.search(entry)) is not None:
                found[unescape(title[1])] = entry
        listed += len(entries)
        if len(entries) < LIST_PAGE:
            return found


def _page(
    endpoint: Endpoint,
    resource: str,
    token: NamespaceToken,
    skip: int,
    requests: BilledRequests | None,
) -> str:
    query = f"$skip={skip}&$top={LIST_PAGE}&"
    path, what = quote(resource), resource.rpartition("/")[2].lower()
    try:
        status, text = get(
            endpoint, path, token, query=query, bytes_max=PAGE_BYTES_MAX, requests=requests
        )
    except NotAnswered as error:
        raise SyphonError(f"{endpoint.label} cannot be reached: {error}") from error
    if wrong := wrong_key_text(endpoint.label, text) if status == 401 else None:
        raise KeyRefused(wrong)
    if status in (401, 403):
        raise ListingRefused(
            f"listing the {what} of {endpoint.label} needs the Manage right, and "
            f"{endpoint.tokens.who} does not have it: name the {what}"
        )
    if status != 200:
        raise SyphonError(f"{endpoint.label} answers {status} to the listing of its {what}")
    return text
