"""Due times, earliest first: an index over times that are kept elsewhere.

An entry is only a hint. When it is due, `due_of` says whether it is still valid, so cancelling
costs nothing. Stale entries are swept out when there may be many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

K = TypeVar("K", bytes, int, str)
Q = TypeVar("Q")

SWEEP_FLOOR = 64
"""Entries below which sweeping costs more than it frees."""

SWEEP_FACTOR = 4
"""Growth between two sweeps: at most this many times the entries left by the last one."""


class Deadlines(Generic[K]):
    """Keys with a due time; `due_of` returns a key's present due time, 0 if it has none."""

    __slots__ = ("_due_of", "_heap", "_sweep_at")

    def __init__(self, due_of: Callable[[K], int]) -> None:
        self._due_of: Callable[[K], int] = due_of
        self._heap: list[tuple[int, K]] = []
        self._sweep_at = SWEEP_FLOOR

    def __len__(self) -> int:
        """The number of entries, stale ones included."""
        return len(self._heap)

    def add(self, due_ms: int, key: K) -> None:
        """Note that `key` is due at `due_ms`; `due_of` must return the same."""
        heappush(self._heap, (due_ms, key))
        if len(self._heap) > self._sweep_at:
            self._sweep()

    def add_all(self, due_ms: int, keys: Iterable[K]) -> None:
        heap = self._heap
        for key in keys:
            heappush(heap, (due_ms, key))
        if len(heap) > self._sweep_at:
            self._sweep()

    def pop(self, now_ms: int) -> K | None:
        """One key that is due by now, or None."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            due_ms, key = heappop(heap)
            if self._due_of(key) == due_ms:
                return key
        return None

    def next_ms(self) -> int:
        """The earliest due time, 0 if there is none."""
        heap = self._heap
        while heap and self._due_of(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else 0

    def _sweep(self) -> None:
        due_of = self._due_of
        self._heap = [entry for entry in self._heap if due_of(entry[1]) == entry[0]]
        heapify(self._heap)
        self._sweep_at = max(SWEEP_FLOOR, SWEEP_FACTOR * len(self._heap))


class Timetable(Generic[Q]):
    """Things with one due time each, the earliest that was given.

    A thing without a due time is not in it, so ten thousand idle queues cost nothing.
    """

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
