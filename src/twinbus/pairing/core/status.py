"""The parts of a pair's status, the numbers that it counts, and what a change leads to. Pure.

Metrics read the numbers at scrape time. Counting is one addition; a healthy send pays nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from twinbus.pairing.core.failover import Transition
from twinbus.pairing.core.sides import PairSides, Side
from twinbus.status.document import (
    IN_ROTATION,
    LEFT_OUT,
    NOT_FOUND,
    PULLED,
    BacklogQueueStatus,
    EntityState,
    SideStatus,
    short_queue_list,
)

if TYPE_CHECKING:
    from twinbus.pairing.core.backlog import Rotation


def backlog_status(
    rotation: Rotation,
    paths: Iterable[str],
    now: float,
    not_verified: Mapping[str, tuple[str, ...]] | None = None,
) -> dict[str, BacklogQueueStatus]:
    unknown = not_verified or {}
    pulled, left_out, in_use = rotation.pulled(now), rotation.left_out, frozenset(rotation.queues)
    absences = rotation.absences(now)

    def of(queue: str) -> BacklogQueueStatus:
        if queue in pulled:
            reason, rest_s = pulled[queue]
            return BacklogQueueStatus(queue, PULLED, reason, rest_s, [*unknown.get(queue, ())])
        if queue in left_out:
            return BacklogQueueStatus(queue, LEFT_OUT, left_out[queue])
        if queue not in in_use:
            return BacklogQueueStatus(queue, NOT_FOUND)
        unverified = [*unknown.get(queue, ())]
        return BacklogQueueStatus(queue, IN_ROTATION, absences.get(queue, ""), None, unverified)

    return {queue: of(queue) for queue in paths}


def side_status(sides: PairSides, endpoints: dict[Side, str]) -> dict[str, SideStatus]:
    return {
        str(side): SideStatus(endpoints[side], sides.state(side), sides.reason(side))
        for side in Side
    }


def consequence_of(
    transition: Transition,
    *,
    last_error: str,
    failover_interval_s: float,
    rotation: Rotation,
    now: float,
    path: str = "",
) -> str:
    """The end of the log line of a change of state; empty: the states say it all."""
    match transition.after:
        case EntityState.SUSPECT:
            why = f"; {last_error}" if last_error else ""
            return f", failing over in {failover_interval_s:g} s unless one succeeds{why}"
        case EntityState.UNUSABLE:
            return ", sends raise until a ping is answered"
        case EntityState.HEALTHY if transition.before is not EntityState.SUSPECT:
            return ", sending to the primary again"
        case EntityState.HEALTHY:
            return ""
    if rotation.is_twin(path) and rotation.is_in(path, now) and not rotation.secondary.is_lost:
        return ", diverting to its twin"
    if not rotation.protected:
        return ", and there is no backlog queue: sends still go to the primary"
    if rotation.secondary.is_lost:
        return ", and the secondary cannot be reached: sends wait for it"
    queues = rotation.available(now)
    if not queues:
        return ", and every backlog queue is pulled: sends wait for one"
    return f", diverting to {short_queue_list(queues)}"


DIVERT_BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""From a broker on the same network to the longest attempt that the options allow."""


class DurationHistogram:
    """How many of the observed times lie below each bound."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        assert list(bounds_s) == sorted(set(bounds_s))
        self.bounds_s = bounds_s
        self.sum_s = 0.0
        # One more than there are bounds, for times above all of them.
        self._counts = [0] * (len(bounds_s) + 1)

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self.bounds_s, seconds)] += 1
        self.sum_s += seconds

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Each bound, infinity last, with the number of times not above it."""
        total = 0
        for bound_s, count in zip((*self.bounds_s, float("inf")), self._counts, strict=True):
            total += count
            yield bound_s, total


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
