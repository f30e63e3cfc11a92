"""Duplicate detection: the message ids accepted within the window."""

from __future__ import annotations

from collections import deque

from twinbus.broker.journal import Journal


class DuplicateHistory:
    """The ids of one entity within its duplicate detection window, which begins at acceptance."""

    __slots__ = ("_entity_id", "_first_seen", "_journal", "_oldest", "window_ms")

    def __init__(self, entity_id: int, journal: Journal, window_ms: int) -> None:
        self._entity_id = entity_id
        self._journal = journal
        self.window_ms = window_ms
        self._first_seen: dict[str, int] = {}
        self._oldest: deque[tuple[int, str]] = deque()

    def __len__(self) -> int:
        return len(self._first_seen)

    def has(self, message_id: str, now_ms: int) -> bool:
        """Whether `accept` would return false."""
        seen_ms = self._first_seen.get(message_id)
        return seen_ms is not None and now_ms < seen_ms + self.window_ms

    def accept(self, message_id: str, now_ms: int) -> bool:
        """Remember an id; false if it was accepted before, within the window."""
        seen_ms = self._first_seen.get(message_id)
        if seen_ms is not None and now_ms < seen_ms + self.window_ms:
            return False
        self._first_seen[message_id] = now_ms
        self._oldest.append((now_ms, message_id))
        self._journal.put_message_id(self._entity_id, message_id, now_ms)
        return True

    def retract(self, message_id: str) -> None:
        """Forget an id that was accepted just now: its message could not be stored."""
        if self._first_seen.pop(message_id, None) is not None:
            self._journal.put_message_id(self._entity_id, message_id, None)

    def forget_old(self, now_ms: int, limit: int) -> int:
        """Drop up to `limit` ids that left the window; returns how many."""
        oldest, count = self._oldest, 0
        while oldest and count < limit and oldest[0][0] + self.window_ms <= now_ms:
            seen_ms, message_id = oldest.popleft()
            count += 1
            # An id accepted again after its window has a later entry.
            if self._first_seen.get(message_id) == seen_ms:
                del self._first_seen[message_id]
                self._journal.put_message_id(self._entity_id, message_id, None)
        return count

    def next_ms(self) -> int:
        """When the oldest id leaves the window, 0 if there is none."""
        return self._oldest[0][0] + self.window_ms if self._oldest else 0

    def restore(self, first_seen: dict[str, int]) -> None:
        self._first_seen = dict(first_seen)
        self._oldest = deque(sorted((seen_ms, name) for name, seen_ms in first_seen.items()))
