"""The messages of a queue, or of one session, that are ready for delivery, lowest number first.

New messages have ever higher numbers and are appended. Those that came back (abandoned, released,
lock expired) keep their number and wait in a heap of their own; the lower number goes first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, merge

from twinbus.broker.journal import StoredMessage

SWEEP_FLOOR = 64
"""Dropped messages below which sweeping costs more than it frees."""


class ReadyMessages:
    """Ready messages in order of their sequence numbers."""

    __slots__ = ("_dropped", "_fresh", "_returned")

    def __init__(self) -> None:
        self._fresh: deque[StoredMessage] = deque()
        self._returned: list[tuple[int, StoredMessage]] = []
        self._dropped: set[int] = set()

    def __len__(self) -> int:
        return len(self._fresh) + len(self._returned) - len(self._dropped)

    def __iter__(self) -> Iterator[StoredMessage]:
        fresh = ((message.sequence_number, message) for message in self._fresh)
        for number, message in merge(fresh, sorted(self._returned)):
            if number not in self._dropped:
                yield message

    def append(self, message: StoredMessage) -> None:
        """Add a message whose number is higher than any before."""
        self._fresh.append(message)

    def give_back(self, message: StoredMessage) -> None:
        """Put a popped message back in its place."""
        heappush(self._returned, (message.sequence_number, message))

    def pop(self) -> StoredMessage | None:
        """Take out the message with the lowest number."""
        fresh, returned, dropped = self._fresh, self._returned, self._dropped
        while True:
            if returned and (not fresh or returned[0][0] < fresh[0].sequence_number):
                message = heappop(returned)[1]
            elif fresh:
                message = fresh.popleft()
            else:
                return None
            if not dropped or message.sequence_number not in dropped:
                return message
            dropped.discard(message.sequence_number)

    def drop(self, message: StoredMessage) -> None:
        """Take out a message from anywhere; it must be ready."""
        self._dropped.add(message.sequence_number)
        if len(self._dropped) > max(SWEEP_FLOOR, len(self)):
            self._sweep()

    def _sweep(self) -> None:
        dropped = self._dropped
        self._fresh = deque(m for m in self._fresh if m.sequence_number not in dropped)
        self._returned = [entry for entry in self._returned if entry[0] not in dropped]
        heapify(self._returned)
        self._dropped = set()
