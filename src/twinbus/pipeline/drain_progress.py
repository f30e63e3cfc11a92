"""How far a drain on Spark has come, by what its backlog queues hold: the driver asks them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from twinbus.errors import SyphonError
from twinbus.syphon.counts import CountsUnavailable, QueueCounts, counts_of
from twinbus.syphon.endpoint import Endpoint
from twinbus.syphon.host import DrainProgress

__all__ = ["Backlog"]


class Backlog:
    """The queues of one drain and what was last seen in them."""

    def __init__(
        self,
        endpoint: Endpoint,
        queues: Sequence[str],
        on_progress: Callable[[DrainProgress], None] | None,
    ) -> None:
        self.queues = queues
        self.waiting: int | None = None
        """What was left at the last look; None: nobody has answered yet."""
        self._endpoint = endpoint
        self._on_progress = on_progress
        self._dead_lettered = 0
        self._first: tuple[int, int] | None = None
        """Waiting and dead-lettered at the first look."""

    def look(self) -> int:
        """What waits now; SyphonError, CountsUnavailable as `counts_of` raises them."""
        counts = asyncio.run(self._ask())
        self.waiting = sum(count.waiting for count in counts)
        self._dead_lettered = sum(count.dead_lettered for count in counts)
        if self._first is None:
            self._first = self.waiting, self._dead_lettered
        return self.waiting

    def tell(self, problems: tuple[str, ...]) -> None:
        """Tell whoever wants to know; `problems` are what the tasks report."""
        if self._on_progress is None:
            return
        try:
            waiting = self.look()
        except (CountsUnavailable, SyphonError):
            # The tasks know better what is wrong, and say so.
            return
        assert self._first is not None
        # By what is gone: a message that comes meanwhile hides one that went.
        dead_lettered = max(0, self._dead_lettered - self._first[1])
        forwarded = max(0, self._first[0] - waiting - dead_lettered)
        self._on_progress(
            DrainProgress(
                waiting=waiting,
                forwarded=forwarded,
                dead_lettered=dead_lettered,
                problems=problems,
            )
        )

    async def _ask(self) -> list[QueueCounts]:
        return await asyncio.gather(*(counts_of(self._endpoint, queue) for queue in self.queues))
