"""What a change of an entity's state means for its sends, as text for the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from twinbus.pairing.core.events import EntityState, Transition

if TYPE_CHECKING:
    from twinbus.pairing.core.backlog import Rotation

NUMBERS_MAX: Final = 10
"""Backlog queues that one log line names."""


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


def short_queue_list(queues: Sequence[str]) -> str:
    """Backlog queues in short form: `contoso/x-servicebus-transfer/{0,1,2}`."""
    if len(queues) == 1:
        return queues[0]
    folder = queues[0].rpartition("/")[0]
    numbers = [queue.rpartition("/")[2] for queue in queues]
    if len(numbers) > NUMBERS_MAX:
        numbers = [*numbers[: NUMBERS_MAX - 2], "...", numbers[-1]]
    return f"{folder}/{{{','.join(numbers)}}}"
