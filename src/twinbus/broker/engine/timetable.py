"""The next due time of each queue of a namespace.

A queue without a due time is not in it, so ten thousand idle queues cost nothing.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

Q = TypeVar("Q")


class Timetable(Generic[Q]):
    """Things with one due time each, the earliest that was given."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Q]] = []
        self._due: dict[Q, int] = {}
        self._turns = count()

    def arm(self, thing: Q, due_ms: int) -> None:
        """Make `thing` due at `due_ms`, unless it is due earlier."""
        armed_ms = self._due.get(thing)
        if armed_ms is None or due_ms < armed_ms:
            self._due[thing] = due_ms
            heappush(self._heap, (due_ms, next(self._turns), thing))

    def disarm(self, thing: Q) -> None:
        """Remove the due time of `thing`."""
        self._due.pop(thing, None)

    def take_due(self, now_ms: int) -> list[Q]:
        """Remove and return everything that is due by now, each once."""
        taken: list[Q] = []
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            due_ms, _, thing = heappop(heap)
            if self._due.get(thing) == due_ms:
                del self._due[thing]
                taken.append(thing)
        return taken

    def next_ms(self) -> int:
        """When the next thing is due, 0 if nothing is."""
        heap = self._heap
        while heap and self._due.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else 0
