"""Finds the backlog queues of a label as long as a syphon program runs, and starts their pumps.

One listing tells which queues exist and what they hold. It is made at the times of `ListingTimes`
and whenever the messages are counted, so that a count never leaves out a queue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from twinbus.client.administration import (
    CountsUnavailable,
    ListingRefused,
    QueueCounts,
    counts_of,
    list_backlog_counts,
)
from twinbus.errors import SyphonError
from twinbus.pairing.core.secondary import ListingTimes

if TYPE_CHECKING:
    from twinbus.namespace.access import Endpoint
    from twinbus.syphon.host import SyphonGroup


class QueueSearch:
    """The backlog queues of one label, and those of them that a group of hosts does not pump."""

    def __init__(
        self,
        secondary: Endpoint,
        label: str,
        group: SyphonGroup,
        start: Callable[[list[str]], Awaitable[None]],
        named: Sequence[str] | None = None,
    ) -> None:
        """`start` is called with queues that have no pump yet.

        `named` queues are started without a listing, which needs the Manage right, and no others.
        """
        self.without_pump: list[str] = []
        """Queues of the last listing that this syphon does not pump."""
        self._secondary = secondary
        self._label = label
        self._group = group
        self._start = start
        self._named = named
        self._times = ListingTimes()
        self._is_closed = False
        self._starting = asyncio.Lock()
        """Two searches at the same time must not start two pumps of one queue."""

    def close(self) -> None:
        """Start no more pumps."""
        self._is_closed = True

    def is_due(self) -> bool:
        """Return whether it is time to search."""
        queues, now = self._group.status(), time.monotonic()
        if self._named is not None and queues:
            return False
        is_down = any(state.held or "primary" in state.problems for state in queues.values())
        moved = sum(state.forwarded + state.dead_lettered for state in queues.values())
        self._times.observe(is_down=is_down, moved=moved, now=now)
        return now >= self._times.due_at(now, has_queues=bool(queues))

    async def search(self) -> None:
        """Start the pumps of queues that have none; SyphonError if the listing is not answered."""
        if self._named is not None:
            self._times.searched(time.monotonic())
            await self._start_new(self._named)
        else:
            await self.counts()

    async def counts(self) -> Mapping[str, QueueCounts]:
        """Count the messages of all backlog queues; start the pumps of those that have none.

        SyphonError if the counts are refused or not answered.
        """
        self._times.searched(time.monotonic())
        try:
            found = await list_backlog_counts(self._secondary, self._label)
        except ListingRefused:
            if self._named is None:
                raise
            return await self._counts_by_name(self._named)
        if self._named is None:
            await self._start_new(list(found))
        pumped = {queue.lower() for queue in self._group.status()}
        self.without_pump = [queue for queue in found if queue.lower() not in pumped]
        counts = {queue: one for queue, one in found.items() if one is not None}
        return counts if len(counts) == len(found) else await self._counts_by_name(list(found))

    async def _start_new(self, queues: Sequence[str]) -> None:
        async with self._starting:
            pumped = {queue.lower() for queue in self._group.status()}
            new = [queue for queue in queues if queue.lower() not in pumped]
            if new and not self._is_closed:
                await self._start(new)

    async def _counts_by_name(self, queues: Sequence[str]) -> Mapping[str, QueueCounts]:
        """Count queue by queue: a credential may have rights on single queues alone."""
        try:
            found = await asyncio.gather(*(counts_of(self._secondary, queue) for queue in queues))
        except CountsUnavailable as error:
            raise SyphonError(str(error)) from error
        return dict(zip(queues, found, strict=True))
