"""The status of a pair and of a syphon: one document, for people (`str`) and programs (JSON). Pure.

`pairing` and `syphon` make it, `control` carries it, `reading` reads it back in another process,
`judgement` says what it means. `as_dict` is plain JSON data; a field is never renamed or removed
without a new VERSION.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal

from twinbus.status.fleet import FleetStatus
from twinbus.status.receiving import ProcessorStatus, ReceiverStatus

VERSION: Final = 1
"""Incremented when an older reader would misread a newer document."""

BacklogQueueState = Literal["in rotation", "pulled", "left out", "not found yet"]
IN_ROTATION: Final = "in rotation"
PULLED: Final = "pulled"
LEFT_OUT: Final = "left out"
NOT_FOUND: Final = "not found yet"
QUEUE_STATES: Final = (IN_ROTATION, PULLED, LEFT_OUT, NOT_FOUND)

TwinState = Literal["in use", "pulled", "not used", "not checked yet"]
TWIN_USED: Final = "in use"
TWIN_PULLED: Final = "pulled"
TWIN_NOT_USED: Final = "not used"
TWIN_UNKNOWN: Final = "not checked yet"

LEASED: Final = "another syphon has the lease"
LEASE_GONE: Final = "the lease is gone"
"""How problems begin that need no attention: another syphon serves the queue, this one waits."""

NUMBERS_MAX: Final = 10
"""Backlog queues that one log line names."""


class EntityState(StrEnum):
    """The state of an entity of the primary; the value is the text that people read."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    FAILED_OVER = "failed over"
    UNUSABLE = "unusable"


class SideState(StrEnum):
    """Whether a side can still be used."""

    OPEN = "open"
    CLOSED = "closed"
    FAULTED = "faulted"


@dataclass(slots=True)
class EntityTotals:
    """The numbers of several entities together."""

    entities: int = 0
    sent: int = 0
    diverted: int = 0
    raised: int = 0
    oversize: int = 0
    reserved: int = 0
    twinned: int = 0

    def add(self, entity: Any) -> None:
        """Add the numbers of one more, which are attributes of the same names."""
        for name in ("sent", "diverted", "raised", "oversize", "reserved", "twinned"):
            setattr(self, name, getattr(self, name) + getattr(entity, name))
        # Last: who reads on another thread compares it, to learn whether the rest has changed.
        self.entities += 1


@dataclass(frozen=True, slots=True)
class TwinStatus:
    """The twin of one entity: its marked namesake in the secondary."""

    state: TwinState
    """in use, pulled, not used, or not checked yet; diverts go to it only while it is in use."""
    reason: str = ""
    """Why it is not in use."""
    returns_in_s: float | None = None
    """Seconds until a pulled twin is used again."""
    verified: bool = False
    """Whether its mark was read; one in use that was not read is named in the option `twins`."""
    named: bool = False
    """Whether the option `twins` has its very name; a pattern may match entities without a twin."""

    @property
    def is_used(self) -> bool:
        return self.state == TWIN_USED

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        if self.is_used:
            return "diverts to its twin" + ("" if self.verified else ", not verified")
        until = "" if self.returns_in_s is None else f", back in {self.returns_in_s:.0f} s"
        return f"diverts to the backlog: its twin is {self.state}{until}{reason}"


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
    """Messages stored on the primary, and in backlog queues or the twin, through this pair."""
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
    twinned: int = 0
    """How many of the diverted messages are in the twin, not in backlog queues."""
    twin: TwinStatus | None = None
    """Its twin; None: it is to have none, and is diverted to backlog queues."""
    evidence: str = ""
    """Who else says that it failed over: processes of this host, other hosts; empty: nobody."""
    pinger: str = ""
    """Who pings it while it has failed over; empty: it has not, or that is not known."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class SyphonQueueStatus:
    """What a syphon does with one backlog queue."""

    in_flight: int = 0
    forwarded: int = 0
    completed: int = 0
    dead_lettered: int = 0
    deferred: int = 0
    not_served: int = 0
    """Deferred messages of destinations that this syphon does not serve."""
    held: dict[str, str] = field(default_factory=dict)
    """Destinations that take no messages now, and why."""
    gives_up_in_s: dict[str, float] = field(default_factory=dict)
    """Missing destinations, and in how many seconds their messages are dead-lettered."""
    problems: dict[str, str] = field(default_factory=dict)
    """What stops the pump: a side or the lease, and why."""
    paused: bool = False
    rate_per_s: float = 0.0
    limit: str = ""
    """The rate and why it is limited; empty: it is not."""

    @property
    def obstacles(self) -> dict[str, str]:
        """What stops messages of this queue, and why: problems and held destinations."""
        return {**self.problems, **self.held}


@dataclass(frozen=True, kw_only=True, slots=True)
class TwinContents:
    """What a twin of a queue, or a subscription of a twin, held at the last listing."""

    topic: str = ""
    """The topic of a subscription; empty: it is a queue."""
    waiting: int | None = None
    """Active, locked, scheduled and deferred messages; None: not known."""
    active: int | None = None
    """Those that can be received, and locked ones, which the service counts with them."""
    scheduled: int | None = None
    deferred: int | None = None
    waits_s: float | None = None
    """Seconds since a listing, and each one after it, found messages there; None: it is empty."""
    consumers_only: str = ""
    """Why no syphon empties it; empty: the syphon does, beside its consumers."""
    listed_s: float | None = None
    """Seconds since that listing; None: not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SyphonStatus:
    """A syphon at one moment: a program of its own, or the one inside a pair."""

    queues: dict[str, SyphonQueueStatus]
    paused: bool = False
    primary: str = ""
    secondary: str = ""
    rate_limit_per_s: float | None = None
    only: list[str] = field(default_factory=list)
    """Destinations that it serves; empty: all."""
    without_pump: list[str] = field(default_factory=list)
    """Backlog queues of its label that it does not pump."""
    twins: dict[str, TwinContents] = field(default_factory=dict)
    """What the twins of its label held at the last listing."""
    waiting: int | None = None
    """Messages in the backlog queues; None: not counted."""
    rate_per_s: float = 0.0
    empty_in_s: float | None = None
    """Seconds until the backlog is empty at this rate; None: not known, or it does not move."""
    version: int = VERSION

    def as_dict(self) -> dict[str, Any]:
        """The status as plain JSON data."""
        return asdict(self)

    @property
    def own_syphon(self) -> SyphonStatus:
        """Itself: every host's status has its syphon here."""
        return self

    def total(self, count: str) -> int:
        return sum(getattr(queue, count) for queue in self.queues.values())


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
    twins: dict[str, TwinContents] = field(default_factory=dict)
    """What twins held at the last listing of the syphon in this pair; empty: nothing is known."""
    receivers: dict[str, ReceiverStatus] = field(default_factory=dict)
    """The paired and guarded receivers, by the path that they receive from."""
    processors: dict[str, ProcessorStatus] = field(default_factory=dict)
    """The processors, by the path that they receive from."""
    fleet: FleetStatus | None = None
    """With whom it shares evidence; None: it was made by an earlier release."""
    version: int = VERSION

    @property
    def own_syphon(self) -> SyphonStatus | None:
        """The syphon inside this pair; None: it has none."""
        if self.syphon is None:
            return None
        is_paused = any(queue.paused for queue in self.syphon.values())
        return SyphonStatus(
            queues=self.syphon,
            paused=is_paused,
            primary=self.primary,
            secondary=self.secondary,
            twins=self.twins,
        )

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
        for part in (*self.receivers.values(), *self.processors.values()):
            yield f"  {part}"
        if self.fleet is not None and str(self.fleet):
            yield f"  {self.fleet}"
        for queue, moved in (self.syphon or {}).items():
            yield f"  syphon {queue}: " + _syphon_line(moved)
        if self.ledger_unrecorded:
            yield f"  the ledger could not take {self.ledger_unrecorded} lines"


HostStatus = PairStatus | SyphonStatus
"""What the host at a control socket answers."""


def _entity_line(entity: EntityStatus) -> str:
    since = "" if entity.since_s is None else f" for {entity.since_s:.0f} s"
    why = f" ({entity.reason})" if entity.reason else ""
    holds = "".join(f", {h}" for h in ("forced", "frozen") if getattr(entity, h))
    to_twin = f" ({entity.twinned} to its twin)" if entity.twinned else ""
    counts = f"{entity.sent} sent, {entity.diverted} diverted{to_twin}, {entity.raised} raised"
    if entity.oversize or entity.reserved:
        counts += f", {entity.oversize + entity.reserved} that no backlog queue would take"
    shows_error = entity.last_error and entity.state != "healthy"
    error = f"; last error: {entity.last_error}" if shows_error else ""
    if entity.raising:
        error = f"; RAISING, {entity.raising} calls in the last minute: {entity.raising_reason}"
    twin = "" if entity.twin is None else f"; {entity.twin}"
    fleet = "".join(f"; {text}" for text in (entity.evidence, pinged_by(entity)) if text)
    return f"{entity.path}: {entity.state}{since}{why}{holds}; {counts}{twin}{fleet}{error}"


def pinged_by(entity: EntityStatus) -> str:
    """Who pings the entity, for people; empty: nobody, or this process as ever."""
    return f"pinged by {entity.pinger}" if entity.pinger else ""


def _syphon_line(moved: SyphonQueueStatus) -> str:
    counts = f"{moved.completed} moved, {moved.in_flight} in flight"
    dead = f", {moved.dead_lettered} dead-lettered" if moved.dead_lettered else ""
    return counts + dead + "".join(f"; {what}: {why}" for what, why in moved.obstacles.items())


def short_queue_list(queues: Sequence[str]) -> str:
    """Backlog queues in short form: `contoso/x-servicebus-transfer/{0,1,2}`."""
    if len(queues) == 1:
        return queues[0]
    folder = queues[0].rpartition("/")[0]
    numbers = [queue.rpartition("/")[2] for queue in queues]
    if len(numbers) > NUMBERS_MAX:
        numbers = [*numbers[: NUMBERS_MAX - 2], "...", numbers[-1]]
    return f"{folder}/{{{','.join(numbers)}}}"
