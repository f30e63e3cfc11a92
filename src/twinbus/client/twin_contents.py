"""Counts what the twins in a namespace hold: marked queues, and subscriptions of marked topics.

Each listing needs the Manage right, and raises SyphonError if it is refused or not answered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from twinbus.client.administration import QUEUES, TOPICS, counts_in, list_entries
from twinbus.client.twins import metadata_in
from twinbus.ledger.requests import BilledRequests
from twinbus.namespace.access import Endpoint
from twinbus.servicebus.names import is_entity_name, parse_backlog_path
from twinbus.servicebus.twins import FoundTwin, is_twin_of

_SESSION: Final = re.compile(r"<(?:\w+:)?RequiresSession>\s*true\s*</", re.IGNORECASE)


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
        return FoundTwin(path, topic, has_sessions, active=1)
    return FoundTwin(path, topic, has_sessions, counts.active, counts.waiting)
