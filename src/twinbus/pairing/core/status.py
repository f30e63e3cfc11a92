"""A pair at one moment, for people (`str`) and for programs (`as_dict`, which is plain JSON)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from twinbus.pairing.core.counters import EntityTotals
from twinbus.pairing.core.failover import EntityState, Transition
from twinbus.pairing.core.sides import PairSides, Side, SideState

if TYPE_CHECKING:
    from twinbus.pairing.core.backlog import Rotation

BacklogQueueState = Literal["in rotation", "pulled", "left out", "not found yet"]
IN_ROTATION: Final = "in rotation"
PULLED: Final = "pulled"
LEFT_OUT: Final = "left out"
NOT_FOUND: Final = "not found yet"
QUEUE_STATES: Final = (IN_ROTATION, PULLED, LEFT_OUT, NOT_FOUND)

NUMBERS_MAX: Final = 10
"""Backlog queues that one log line names."""


@dataclass(frozen=True, slots=True)
class EntityStatus:
    """The state of one entity and its counts."""

    path: str
    state: EntityState
    since_s: float | None
    """Seconds since the state was entered; None: it never changed."""
    reason: str
    last_error: str
    forced: bool
    frozen: bool
    sent: int
    diverted: int
    """Messages stored on the primary, and in backlog queues, through this pair."""
    raised: int
    """Messages whose call raised or was cancelled: they may not be stored."""
    answered_pings: int
    """In a row, since the failover."""
    oversize: int = 0
    reserved: int = 0
    """Messages on the primary that could not have been diverted, because of their size with the
    aliases or a property with the name of an alias (docs/guarantees.md)."""
    last_error_at: float | None = None
    """When the last error occurred, in unix seconds; None: there was none."""
    fails_over_in_s: float | None = None
    """Seconds until a suspect entity fails over; None: no timer runs."""
    next_ping_in_s: float | None = None
    """Seconds until the next ping, which may be late by a tenth of the interval; 0: it runs."""
    raising: int = 0
    """Calls that raised in the last minute, whatever the state; 0: none did."""
    raising_reason: str = ""
    """The error of the latest of them."""
    held_at: float | None = None
    """When a person last forced, froze or released it, in unix seconds; None: never."""


@dataclass(frozen=True, slots=True)
class SideStatus:
    """One namespace of the pair."""

    endpoint: str
    state: SideState
    """open, closed or faulted."""
    reason: str
    """Why it is not open."""


@dataclass(frozen=True, slots=True)
class BacklogQueueStatus:
    """One backlog queue."""

    queue: str
    state: BacklogQueueState
    """in rotation, pulled, left out, or not found yet."""
    reason: str = ""
    """Why it is not in the rotation, or cannot be reached."""
    returns_in_s: float | None = None
    """Seconds until a pulled queue is used again."""
    not_verified: list[str] = field(default_factory=list)
    """Settings that could not be read, for lack of a right (docs/production.md)."""

    def __str__(self) -> str:
        until = "" if self.returns_in_s is None else f", back in {self.returns_in_s:.0f} s"
        reason = f" ({self.reason})" if self.reason else ""
        unknown = f", not verified: {', '.join(self.not_verified)}" if self.not_verified else ""
        return self.state + until + reason + unknown


class SyphonQueueStatus(TypedDict):
    """What the syphon of a pair does with one backlog queue."""

    in_flight: int
    forwarded: int
    completed: int
    dead_lettered: int
    deferred: int
    left_aside: int
    """Deferred messages of destinations that this syphon does not serve."""
    held: dict[str, str]
    """Destinations that take no messages now, and why."""
    gives_up_in_s: dict[str, float]
    """Missing destinations, and in how many seconds their messages are dead-lettered."""
    problems: dict[str, str]
    """What stops the pump: a side or the lease, and why."""
    paused: bool
    rate_per_s: float
    limit: str
    """The rate and why it is limited; empty: it is not."""


@dataclass(frozen=True, slots=True)
class PairStatus:
    """A pair at one moment."""

    primary: str
    secondary: str
    protected: bool
    """Whether there is a backlog queue to divert to; False is UNPROTECTED."""
    searching: str | None
    """Why the search for backlog queues goes on; None: every one is in use."""
    entities: dict[str, EntityStatus]
    backlog_queues: dict[str, BacklogQueueStatus]
    sides: dict[str, SideStatus] = field(default_factory=dict)
    """`primary` and `secondary`: open, closed or faulted, and why."""
    faulted: str | None = None
    """Why every call raises; None: the pair was not faulted."""
    faults_in_s: float | None = None
    """Seconds until a side that did not follow the other one's end is faulted."""
    syphon: dict[str, SyphonQueueStatus] | None = None
    """For each backlog queue its counts and problems; None: the syphon does not run here."""
    pings: dict[str, int] = field(default_factory=dict)
    """Pings so far: answered, failed, dropped before their end."""
    forgotten: EntityTotals = field(default_factory=EntityTotals)
    """The numbers of healthy entities without a sender that are no longer in `entities`."""
    backlog_waiting: int | None = None
    """Messages in the backlog queues by the last measurement of a collector with `backlog_every`;
    None: not measured."""
    ledger_unrecorded: int = 0
    """Lines that the ledger could not write, usually because of a full disk."""
    verified_at: float | None = None
    """When a backlog queue last answered, in unix seconds; None: not yet."""
    verification_error: str = ""
    """Why no backlog queue answered at the last look; empty: one did, or there was none yet."""

    def as_dict(self) -> dict[str, Any]:
        """The status as plain JSON data."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterable[str]:
        yield f"{self.primary} with {self.secondary}" + ("" if self.protected else ", UNPROTECTED")
        for name, side in self.sides.items():
            if side.reason:
                yield f"  the {name} is {side.state}: {side.reason}"
        if self.faults_in_s is not None:
            yield f"  the other side is faulted in {self.faults_in_s:.1f} s unless it follows"
        if self.verification_error:
            yield f"  NOT protected: no backlog queue answers: {self.verification_error}"
        if self.searching:
            yield f"  still looking for backlog queues: {self.searching}"
        for entity in self.entities.values():
            yield "  " + _entity_line(entity)
        if self.forgotten.entities:
            gone = self.forgotten
            counts = f"{gone.sent} sent, {gone.diverted} diverted, {gone.raised} raised"
            yield f"  {gone.entities} more entities that have no sender any more: {counts}"
        for queue, status in self.backlog_queues.items():
            yield f"  {queue}: {status}"
        for queue, moved in (self.syphon or {}).items():
            yield f"  syphon {queue}: " + _syphon_line(moved)
        if self.ledger_unrecorded:
            yield f"  the ledger could not take {self.ledger_unrecorded} lines"


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


def _entity_line(entity: EntityStatus) -> str:
    since = "" if entity.since_s is None else f" for {entity.since_s:.0f} s"
    why = f" ({entity.reason})" if entity.reason else ""
    holds = "".join(f", {h}" for h in ("forced", "frozen") if getattr(entity, h))
    counts = f"{entity.sent} sent, {entity.diverted} diverted, {entity.raised} raised"
    if entity.oversize or entity.reserved:
        counts += f", {entity.oversize + entity.reserved} that no backlog queue would take"
    shows_error = entity.last_error and entity.state != "healthy"
    error = f"; last error: {entity.last_error}" if shows_error else ""
    if entity.raising:
        error = f"; RAISING, {entity.raising} calls in the last minute: {entity.raising_reason}"
    return f"{entity.path}: {entity.state}{since}{why}{holds}; {counts}{error}"


def _syphon_line(moved: SyphonQueueStatus) -> str:
    counts = f"{moved['completed']} moved, {moved['in_flight']} in flight"
    dead = f", {moved['dead_lettered']} dead-lettered" if moved["dead_lettered"] else ""
    problems = {**moved["problems"], **moved["held"]}
    return counts + dead + "".join(f"; {what}: {why}" for what, why in problems.items())


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
