"""Counts the messages of backlog queues that belong to selected destinations, by peeking.

A drain of selected destinations does not touch queues without their messages, and stops when no
message of theirs is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from twinbus.errors import SyphonError
from twinbus.namespace.endpoint import Endpoint
from twinbus.syphon.connection.peeking import open_connection, peek


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
