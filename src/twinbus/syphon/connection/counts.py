"""Counts the messages of a backlog queue over the administration API.

A backlog is drained when active (including locked), scheduled and deferred are all 0 (SPEC 6).
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from twinbus.errors import SyphonError
from twinbus.namespace.endpoint import Endpoint
from twinbus.namespace.signatures import wrong_key_text
from twinbus.namespace.tokens import NamespaceToken
from twinbus.syphon.connection.administration_request import NotAnswered, get, token_for

ANSWER_BYTES_MAX: Final = 1024 * 1024

BUSY: Final = (429, 503)
"""Statuses of a namespace that throttles: a drain uses up the credits that counting needs too."""

BUSY_WAITS_S: Final = (2.0, 2.0, 4.0)
"""Azure asks to wait 2 seconds."""

_COUNT: Final = re.compile(r"<(?:\w+:)?(\w*MessageCount)>(\d+)<")


class CountsUnavailable(Exception):
    """The namespace does not answer now; it may later."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueCounts:
    """The message counts of one queue."""

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


async def counts_of(endpoint: Endpoint, queue: str) -> QueueCounts:
    """Return the counts. Raise SyphonError if refused, CountsUnavailable without an answer."""
    try:
        token = await token_for(endpoint, queue)
    except NotAnswered as error:
        raise CountsUnavailable(str(error)) from error
    return await asyncio.to_thread(_ask, endpoint, queue, token)


def _ask(endpoint: Endpoint, queue: str, token: NamespaceToken) -> QueueCounts:
    waits_s = iter(BUSY_WAITS_S)
    while True:
        try:
            status, text = get(endpoint, quote(queue), token, bytes_max=ANSWER_BYTES_MAX)
        except NotAnswered as error:
            raise CountsUnavailable(f"{endpoint.label} does not answer: {error}") from error
        wait_s = next(waits_s, None) if status in BUSY else None
        if wait_s is None:
            return _read(endpoint, queue, status, text)
        time.sleep(wait_s)


def _read(endpoint: Endpoint, queue: str, status: int, text: str) -> QueueCounts:
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
        raise CountsUnavailable(f"{endpoint.label} answers {status} for the counts of {queue}")
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
