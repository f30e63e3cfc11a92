"""Failover of one entity: when its sends leave the primary, and when they return.

    HEALTHY --counting failure--> SUSPECT --failover interval--> FAILED_OVER <--> UNUSABLE
                                          --others failed over->
       ^----- success, not found -----'                             |    not found, disabled
       '-------------------- pings answered, late success ----------'

Pure: the shell calls `handle` with the time of each event, performs the returned actions in order,
and arms one timer for `timer_at`. Two holds lie over the states: *forced* keeps FAILED_OVER until
`MarkHealthy`; *frozen* keeps the routing and stops timer and pings until `Unfreeze`. A command of a
person changes a frozen entity too: it is newer than the freeze.

The shell reports the end of every ping exactly once, unless `StopPinging` came first; then it drops
the ping and reports nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final

from twinbus.pairing.core.own_evidence import OwnEvidence
from twinbus.status.document import EntityState


class Route(Enum):
    """Where a send to the entity goes now."""

    PRIMARY = "primary"
    BACKLOG = "backlog"
    REFUSED = "refused"


ROUTES: Final = {
    EntityState.HEALTHY: Route.PRIMARY,
    EntityState.SUSPECT: Route.PRIMARY,
    EntityState.FAILED_OVER: Route.BACKLOG,
    EntityState.UNUSABLE: Route.REFUSED,
}


@dataclass(frozen=True, slots=True)
class OthersRecovered:
    """The entity answers another process again: one send may try the primary."""


@dataclass(frozen=True, slots=True)
class PrimaryTried:
    """A send tries the primary for the others, which go on to the backlog."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time that a machine asked for in `timer_at` has come."""


@dataclass(frozen=True, slots=True)
class SendSucceeded:
    """The entity accepted something: a send, a forward of the syphon, a management call."""

    is_forward: bool = False
    """The syphon of this application delivered a message of the backlog."""


@dataclass(frozen=True, slots=True)
class SendFailed:
    """An attempt on the primary failed; `counts` is the classifier's verdict."""

    counts: bool
    error: str = ""
    is_missing: bool = False
    """The primary answered that the entity does not exist or is disabled."""
    kind: str = ""
    """How a counting attempt failed, in a fixed text of two words at most, for people."""


@dataclass(frozen=True, slots=True)
class OthersFailedOver:
    """The same entity has failed over in enough other processes (docs/failures.md)."""

    evidence: str
    """Who says so, for people."""


@dataclass(frozen=True, slots=True)
class PingAnswered:
    """The entity accepted a ping."""


@dataclass(frozen=True, slots=True)
class PingFailed:
    """A ping failed; `unusable`: the entity is missing, or disabled and no cause to divert."""

    unusable: bool = False
    error: str = ""
    counts: bool = True
    """The classifier's verdict."""


@dataclass(frozen=True, slots=True)
class PingLeftOut:
    """No ping was sent: another process pings the entity."""


@dataclass(frozen=True, slots=True)
class ForceFailover:
    """A person diverts the entity's sends until `MarkHealthy`."""


@dataclass(frozen=True, slots=True)
class MarkHealthy:
    """A person declares the entity healthy."""


@dataclass(frozen=True, slots=True)
class Freeze:
    """A person stops changes of the routing."""


@dataclass(frozen=True, slots=True)
class Unfreeze:
    """The routing may change again."""


@dataclass(frozen=True, slots=True)
class StopWatching:
    """The pair is closing: stop timer and ping."""


Event = (
    SendSucceeded | SendFailed | OthersFailedOver | OthersRecovered | PrimaryTried | TimerFired
    | PingAnswered | PingFailed | PingLeftOut
    | ForceFailover | MarkHealthy | Freeze | Unfreeze | StopWatching
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StartDiverting:
    """Sends go to the backlog from now on: wake every call that waits for a retry."""


@dataclass(frozen=True, slots=True)
class LetOneTry:
    """Wake every call that waits: the first of them tries the primary."""


@dataclass(frozen=True, slots=True)
class SendPing:
    """Ping the entity once and report how it ended."""


@dataclass(frozen=True, slots=True)
class StopPinging:
    """Drop the ping in flight, if any."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of state, for logs, listeners and the ledger; nothing else to perform."""

    announces: ClassVar[bool] = True
    before: EntityState
    after: EntityState
    at: float
    reason: str


Action = StartDiverting | LetOneTry | SendPing | StopPinging | Transition

NOTHING: Final[tuple[Action, ...]] = ()

EARLY_PING_SHARE: Final = 0.4
"""Part of the ping interval until the first ping after an early failover. With the jitter
(`pings.PING_JITTER`) it begins after half an interval at most: what others say is soon tested."""

_HEALTHY, _SUSPECT, _FAILED_OVER, _UNUSABLE = EntityState

_TIMER_CANCELLED = "the timer was cancelled before its event came in"
_TIMER_MOVED = "the timer was moved before its event came in"
_OLD_PING = "a ping of an earlier failover; it proves nothing now"
_STOPPED_PING = "a ping that was stopped, or of an earlier failover"
_OLD_ATTEMPT = "an attempt that began before the failover"
_OWN_FAILURE_FIRST = "others are evidence only for a process with a failure of its own"
_DECIDED = "the entity has failed over before"

LATE_AND_HARMLESS: Final = {
    (_HEALTHY, TimerFired): _TIMER_CANCELLED,
    (_HEALTHY, PingAnswered): "the ping ended after something else had healed the entity",
    (_HEALTHY, PingFailed): "the ping ended after something else had healed the entity",
    (_HEALTHY, PingLeftOut): _STOPPED_PING,
    (_HEALTHY, OthersFailedOver): _OWN_FAILURE_FIRST,
    (_HEALTHY, SendFailed): "the caller's own fault, or while frozen",
    (_SUSPECT, TimerFired): _TIMER_MOVED,
    (_SUSPECT, PingAnswered): _OLD_PING,
    (_SUSPECT, PingFailed): _OLD_PING,
    (_SUSPECT, PingLeftOut): _OLD_PING,
    (_SUSPECT, OthersFailedOver): "while frozen",
    (_SUSPECT, SendFailed): "the timer runs from the first failure; later ones add nothing",
    (_FAILED_OVER, TimerFired): _TIMER_MOVED,
    (_FAILED_OVER, PingAnswered): _STOPPED_PING,
    (_FAILED_OVER, PingFailed): _STOPPED_PING,
    (_FAILED_OVER, PingLeftOut): _STOPPED_PING,
    (_FAILED_OVER, OthersFailedOver): _DECIDED,
    (_FAILED_OVER, SendFailed): _OLD_ATTEMPT,
    (_FAILED_OVER, SendSucceeded): "a late success, while a person or `healthy_pings` holds it",
    (_UNUSABLE, TimerFired): _TIMER_MOVED,
    (_UNUSABLE, PingAnswered): _STOPPED_PING,
    (_UNUSABLE, PingFailed): _STOPPED_PING,
    (_UNUSABLE, PingLeftOut): _STOPPED_PING,
    (_UNUSABLE, OthersFailedOver): _DECIDED,
    (_UNUSABLE, SendFailed): _OLD_ATTEMPT,
    (_UNUSABLE, SendSucceeded): "a late success, while a person or `healthy_pings` holds it",
}
"""Events that may come and change nothing, each with its reason. Any other is a bug."""


class EntityFailover:
    """The failover state of one entity, shared by all senders of a pair."""

    __slots__ = (
        "_failover_interval_s",
        "_healthy_pings",
        "_is_untested",
        "_may_try",
        "_ping_in_flight",
        "_ping_interval_s",
        "answered_pings",
        "closed",
        "forced",
        "frozen",
        "last_error",
        "last_error_at",
        "own_evidence",
        "reason",
        "route",
        "since",
        "state",
        "timer_at",
    )  # fmt: skip

    def __init__(
        self, *, failover_interval_s: float, ping_interval_s: float, healthy_pings: int = 1
    ) -> None:
        assert failover_interval_s >= 0
        assert ping_interval_s > 0
        assert healthy_pings >= 1
        self._failover_interval_s = failover_interval_s
        self._ping_interval_s = ping_interval_s
        self._healthy_pings = healthy_pings
        self._ping_in_flight = False
        self._may_try = False
        """Another process was answered, and no send has tried the primary since."""
        self._is_untested = False
        """It failed over because others said so, and no ping has been due since."""
        self.state = EntityState.HEALTHY
        self.route = Route.PRIMARY
        self.since: float | None = None
        """When the state was entered; None: it never changed."""
        self.reason = ""
        """Why the state was entered."""
        self.last_error = ""
        """The error of the last failed attempt or ping; it stays after a recovery."""
        self.last_error_at: float | None = None
        """When that attempt or ping failed."""
        self.forced = False
        self.frozen = False
        self.closed = False
        self.own_evidence: OwnEvidence | None = None
        """The failures of this process; None: the entity is healthy, or a person diverts it."""
        self.answered_pings = 0
        """Pings answered in a row since the failover."""
        self.timer_at: float | None = None

    def __repr__(self) -> str:
        holds = "".join(
            f", {name}" for name in ("forced", "frozen", "closed") if getattr(self, name)
        )
        return f"EntityFailover({self.state.value}{holds}, timer_at={self.timer_at})"

    @property
    def failover_at(self) -> float | None:
        """When the entity will fail over if nothing succeeds; None: it is not SUSPECT."""
        return self.timer_at if self.state is EntityState.SUSPECT else None

    @property
    def may_try(self) -> bool:
        """Whether one send may try the primary, although the route leads elsewhere."""
        return self._may_try and not self.forced

    def is_evidence(self, now: float) -> bool:
        """Whether others may be told that the entity has failed over here.

        Not while a person decides where its sends go: that says nothing about the primary.
        """
        is_own = self.own_evidence is not None and self.own_evidence.convinces(now)
        is_held = self.forced or self.frozen or self.closed
        return self.state is EntityState.FAILED_OVER and is_own and not is_held

    def handle(self, event: Event, now: float) -> Sequence[Action]:
        """Take one event at time `now`; return what the shell must do, in order."""
        # The usual case comes first.
        if self.closed or (self.state is EntityState.HEALTHY and type(event) is SendSucceeded):
            return NOTHING
        match event:
            case SendSucceeded():
                return self._success(event, now)
            case SendFailed():
                return self._failure(event, now)
            case OthersRecovered():
                return self._let_one_try()
            case PrimaryTried():
                self._may_try = False
                return NOTHING
            case OthersFailedOver():
                return self._others_failed_over(event, now)
            case TimerFired():
                return self._timer(now)
            case PingAnswered() | PingFailed() | PingLeftOut():
                return self._ping_ended(event, now)
        return self._command(event, now)

    def _success(self, event: SendSucceeded, now: float) -> Sequence[Action]:
        # A syphon delivers many messages a second: they would damp no flapping.
        is_held = self.forced or self.frozen or (event.is_forward and self._healthy_pings > 1)
        match self.state:
            case EntityState.SUSPECT:
                return self._enter(EntityState.HEALTHY, now, "a send succeeded")
            case EntityState.FAILED_OVER | EntityState.UNUSABLE if not is_held:
                return self._enter(EntityState.HEALTHY, now, "a late send succeeded")
        return self._harmless(event)

    def _failure(self, event: SendFailed, now: float) -> Sequence[Action]:
        self._note_error(event.error, now)
        if self.frozen:
            return self._harmless(event)
        if not event.counts:
            if event.is_missing and self.state is EntityState.SUSPECT:
                # The primary answers: what failed before was a link that ended with its entity.
                return self._enter(EntityState.HEALTHY, now, "the primary answers a send")
            return self._harmless(event)
        if self.own_evidence is None and self.state is EntityState.HEALTHY:
            self.own_evidence = OwnEvidence(now, self._failover_interval_s)
        if self.own_evidence is not None and self.state not in PINGED:
            self.own_evidence.failed(event.kind)
        match self.state:
            case EntityState.HEALTHY if self._failover_interval_s == 0:
                return self._enter(EntityState.FAILED_OVER, now, "a send failed", StartDiverting())
            case EntityState.HEALTHY:
                return self._enter(EntityState.SUSPECT, now, "a send failed")
            # The interval is over, although the timer's event has not come in yet.
            case EntityState.SUSPECT if self._is_due(now):
                return self._fail_over(now)
        return self._harmless(event)

    def _others_failed_over(self, event: OthersFailedOver, now: float) -> Sequence[Action]:
        if self.state is not EntityState.SUSPECT or self.frozen:
            return self._harmless(event)
        assert self.own_evidence is not None
        self.own_evidence.others = event.evidence
        self._is_untested = True
        reason = f"{self.own_evidence}; {event.evidence}"
        return self._enter(EntityState.FAILED_OVER, now, reason, StartDiverting())

    def _timer(self, now: float) -> Sequence[Action]:
        match self.state:
            case EntityState.SUSPECT if self._is_due(now):
                return self._fail_over(now)
            case EntityState.FAILED_OVER | EntityState.UNUSABLE if self._is_due(now):
                self._ping_in_flight = True
                self.timer_at = None
                return (SendPing(),)
        return self._harmless(TimerFired())

    def _ping_ended(
        self, event: PingAnswered | PingFailed | PingLeftOut, now: float
    ) -> Sequence[Action]:
        if not self._ping_in_flight:
            return self._harmless(event)
        self._ping_in_flight = False
        self.timer_at = now + self._ping_interval_s
        was_untested, self._is_untested = self._is_untested, False
        if isinstance(event, PingLeftOut):
            # The pinger may be a host that is wrong by itself: a live send tells, once.
            return self._let_one_try() if was_untested else NOTHING
        if isinstance(event, PingAnswered):
            self.answered_pings += 1
            # While forced, a person decides when to return; the status shows the answer.
            if self.forced:
                return NOTHING
            if self.answered_pings >= self._healthy_pings:
                return self._enter(EntityState.HEALTHY, now, "the ping was answered")
            if self.state is EntityState.UNUSABLE:
                # It takes messages again, so sends are diverted; too few answers to return yet.
                reason = "the ping was answered"
                return self._enter(EntityState.FAILED_OVER, now, reason, StartDiverting())
            return NOTHING
        self.answered_pings = 0
        if self.own_evidence is not None:
            self.own_evidence.ping_failed(counts=event.counts)
        self._note_error(event.error, now)
        if self.forced:
            return NOTHING
        if not event.unusable:
            if self.state is EntityState.UNUSABLE:
                # Nothing says any more that the entity is missing: an outage, or it is back.
                reason = event.error or "the ping failed"
                return self._enter(EntityState.FAILED_OVER, now, reason, StartDiverting())
            return NOTHING
        reason = event.error or "not found or disabled"
        if self.state is EntityState.FAILED_OVER:
            return self._enter(EntityState.UNUSABLE, now, reason)
        # The error may change, as from disabled to deleted: callers get the latest.
        self.reason = reason
        return NOTHING

    def _let_one_try(self) -> Sequence[Action]:
        self._may_try = self.state in PINGED and not (self.forced or self.frozen)
        return (LetOneTry(),) if self._may_try else NOTHING

    def _command(self, event: Event, now: float) -> Sequence[Action]:
        match event:
            case ForceFailover():
                self.forced = True
                if self.state is EntityState.FAILED_OVER:
                    return NOTHING
                return self._enter(EntityState.FAILED_OVER, now, "forced", StartDiverting())
            case MarkHealthy():
                self.forced = False
                if self.state is EntityState.HEALTHY:
                    return NOTHING
                return self._enter(EntityState.HEALTHY, now, "marked healthy")
            case Freeze():
                self.frozen = True
                return self._stop()
            case Unfreeze():
                if self.frozen:
                    self.frozen = False
                    # Nothing was watched meanwhile, so every interval begins again.
                    self.timer_at = self._timer_of(self.state, now)
                return NOTHING
            case StopWatching():
                self.closed = True
                return self._stop()
        raise AssertionError(f"{event} is not an event of a failover")

    def _fail_over(self, now: float) -> Sequence[Action]:
        reason = f"no success for {self._failover_interval_s:g} s"
        return self._enter(EntityState.FAILED_OVER, now, reason, StartDiverting())

    def _enter(
        self, state: EntityState, now: float, reason: str, *actions: Action
    ) -> Sequence[Action]:
        """Change the state. Nothing else writes it, so no timer or ping outlives its state."""
        before, self.state = self.state, state
        assert before is not state
        self.route = ROUTES[state]
        self.since, self.reason = now, reason
        announcement = Transition(before, state, now, reason)
        if before in PINGED and state in PINGED:
            # The same failover goes on: its pings keep their interval and their count.
            return (*actions, announcement)
        self.answered_pings = 0
        self._may_try = False
        if state is EntityState.HEALTHY:
            self.own_evidence, self._is_untested = None, False
        self._ping_in_flight = False
        self.timer_at = self._timer_of(state, now)
        stop = (StopPinging(),) if before in PINGED else ()
        return (*actions, *stop, announcement)

    def _timer_of(self, state: EntityState, now: float) -> float | None:
        if self.frozen or state is EntityState.HEALTHY:
            return None
        if state is EntityState.SUSPECT:
            return now + self._failover_interval_s
        return now + self._ping_interval_s * (EARLY_PING_SHARE if self._is_untested else 1.0)

    def _stop(self) -> Sequence[Action]:
        self.timer_at = None
        self._ping_in_flight = self._may_try = False
        return (StopPinging(),) if self.state in PINGED else NOTHING

    def _note_error(self, error: str, now: float) -> None:
        if error:
            self.last_error, self.last_error_at = error, now

    def _is_due(self, now: float) -> bool:
        return self.timer_at is not None and now >= self.timer_at

    def _harmless(self, event: Event) -> Sequence[Action]:
        assert (self.state, type(event)) in LATE_AND_HARMLESS, f"{event} in {self.state}"
        return NOTHING


PINGED: Final = frozenset({EntityState.FAILED_OVER, EntityState.UNUSABLE})
"""States in which pings run."""
