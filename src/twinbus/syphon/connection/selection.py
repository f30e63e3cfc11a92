"""Which messages of a backlog queue belong to some destinations, found by peeking.

A drain of some destinations only must know where their messages are: queues without any are not
touched at all, and in the others nothing more is received once theirs are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from twinbus.errors import SyphonError
from twinbus.namespace.endpoint import Endpoint
from twinbus.syphon.connection.peeking import open_connection, peek

__all__ = ["count_matching", "destination_keys"]


def destination_keys(paths: Iterable[str]) -> frozenset[str]:
    """Entity paths as a pump compares them; SyphonError if one is empty."""
    keys = frozenset(path.strip().strip("/").lower() for path in paths)
    if not keys or "" in keys:
        raise SyphonError("a destination is the path of a queue or topic; this one is empty")
    return keys


async def count_matching(
    endpoint: Endpoint, queues: Sequence[str], only: frozenset[str]
) -> dict[str, int]:
    """How many messages to these destinations each queue holds, whatever their state.

    SyphonError if nobody answers, or the queues must not be peeked.
    """
    found = dict.fromkeys(queues, 0)
    async with open_connection(endpoint) as connection:
        for queue in queues:
            async for message in peek(connection, queue):
                found[queue] += (message.path or "").lower() in only
    return found
