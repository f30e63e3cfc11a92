"""Makes the parts of a pair's status, and says what a change of state leads to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

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
    """The status of each backlog queue of a pair at time `now`."""
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
    """The status of the two sides of a pair."""
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
    if not rotation.protected:
        return ", and there is no backlog queue: sends still go to the primary"
    if rotation.secondary.is_lost:
        return ", and the secondary cannot be reached: sends wait for it"
    queues = rotation.available(now)
    if not queues:
        return ", and every backlog queue is pulled: sends wait for one"
    return f", diverting to {short_queue_list(queues)}"
