"""Calls on one entity that raised in the last minute, and why. Pure: the time is an argument.

The state of an entity says where its sends go. A deleted queue, a throttled one or an expired key
changes no state, because a failover would not help; yet every call raises. This is how the status
knows.
"""

from __future__ import annotations

from typing import Final

RECENT_S: Final = 60
"""A call that raised counts for this long."""

OWN_FAULT_S: Final = 5.0
"""Calls that raise by their callers' doing count once nothing was stored between two that are this
far apart: one that its caller gave up, or a message that is too large, says nothing about the
entity, but an entity that stores nothing does."""

CANCELLED: Final = "cancelled by its caller, and nothing is stored meanwhile"
REASON_MAX: Final = 500


class RecentErrors:
    """A ring of seconds; its size does not depend on the number of errors."""

    __slots__ = ("_counts", "_own_fault_from", "_seconds", "_stored", "reason")

    def __init__(self) -> None:
        self.reason = ""
        """The text of the latest error."""
        self._counts = [0] * RECENT_S
        self._seconds = [-RECENT_S] * RECENT_S
        """For each place of the ring the second that its count belongs to."""
        self._own_fault_from = 0.0
        self._stored = -1

    def raised(self, reason: str, now: float) -> None:
        """Count a call that raised at time `now`."""
        second = int(now)
        place = second % RECENT_S
        if self._seconds[place] != second:
            # In this order, because metrics read on another thread.
            self._counts[place], self._seconds[place] = 0, second
        self._counts[place] += 1
        self.reason = reason[:REASON_MAX]

    def own_fault(self, reason: str, stored: int, now: float) -> None:
        """Take a call that raised by its caller's doing; `stored` messages were stored so far."""
        if stored != self._stored or now - self._own_fault_from >= RECENT_S:
            self._stored, self._own_fault_from = stored, now
        elif now - self._own_fault_from >= OWN_FAULT_S:
            self.raised(reason, now)

    def count(self, now: float) -> int:
        """The calls that raised in the minute before `now`. From any thread."""
        oldest = int(now) - RECENT_S
        pairs = zip(self._seconds, self._counts, strict=True)
        return sum(count for second, count in pairs if second > oldest)
