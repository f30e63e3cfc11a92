"""What is asked of a backlog queue, and how often: by answers that a test makes up."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from twinbus.syphon.lanes import Sighting
from twinbus.syphon.line import Line
from twinbus.syphon.source import SourceRequests

PAGE = 10


class Shown(SourceRequests):
    """A queue whose messages up to a number are deferred, and how often it is peeked at."""

    def __init__(self, count: int, deferred: int) -> None:
        super().__init__(cast("Line", None), "queue")
        self._numbers = range(1, count + 1)
        self._deferred = deferred
        self.peeks = 0

    async def peek(self, start: int, now_ms: int) -> list[Sighting]:
        self.peeks += 1
        page = [n for n in self._numbers if n >= start][:PAGE]
        return [Sighting(n, "orders", None, n <= self._deferred) for n in page]


@pytest.mark.parametrize(
    ("deferred", "to_the_end", "peeks"), [(0, False, 1), (25, False, 4), (25, True, 101)]
)
def test_a_busy_queue_is_looked_through_as_far_as_deferred_messages_lie_at_its_front(
    deferred: int, to_the_end: bool, peeks: int
) -> None:
    queue = Shown(1_000, deferred)
    found, is_all = asyncio.run(queue.find_deferred(0, to_the_end=to_the_end))
    assert [sighting.number for sighting in found] == list(range(1, deferred + 1))
    assert (is_all, queue.peeks) == (to_the_end, peeks)
