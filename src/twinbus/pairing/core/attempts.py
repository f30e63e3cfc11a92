"""One send call: try the primary, wait, divert, or raise (docs/failures.md).

    TryPrimary --failed--> Wait --back-off over--> TryPrimary ... --retries used up--> Raise
        |                   |
        '---entity failed over, woken at any time---> Divert --queue failed--> Divert ...
                                                        |                        |
                                      none can be used, or the secondary is lost |
                                                        v                        v
                               Divert <--its turn-- WaitForSecondary --time over--> Raise

Pure: the shell performs the returned steps, pulls first, and reports how the last one ended; a
success ends the call. A call reads the entity's `EntityFailover` and its sender's choice of backlog
queues, both shared, and writes neither. A failed attempt is first reported to the entity, or to the
secondary, then here, so that a failover or a loss that it causes is seen at once.

The call ends in exactly one of: success on the primary, success in a backlog queue, `Raise`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from twinbus.errors import error_text
from twinbus.options import SendAvailabilityOptions
from twinbus.pairing.core.backlog import KeptChoice, PullCause
from twinbus.pairing.core.failover import Route
from twinbus.pairing.core.secondary import FIRST_PACE_S, DivertFault, jittered
from twinbus.servicebus.failures import FailureMeaning
from twinbus.status.document import EntityState

BUSY_PAUSE_S: Final = 1.0
"""Shortest back-off after server-busy. The service counts credits by the second: a retry within the
same second would be refused again. Chance makes it up to twice as long, so that calls which were
refused together do not come back together."""

RETRIES_MIN: Final = 3
"""Retries, without `retry_total`, of what no failover will end: a throttled entity, a slow or busy
backlog queue, a pair without backlog queues. It is the SDK's own number."""

LATE_PAUSE_S: Final = 1.0
"""Shortest back-off after this many retries: the options may make it 0, and an hour may be left."""

TRIAL_LEAST_S: Final = 0.5
"""A call tries the primary for the others only if it has twice this time left: a trial takes half
of it at most, and the rest is for the backlog."""

LONGEST_BUSY_S: Final = 10.0
"""Longest back-off of a divert that the secondary throttles: the time that Azure asks for."""


class EntityView(Protocol):
    """What a call reads of its entity's failover."""

    @property
    def state(self) -> EntityState: ...

    @property
    def route(self) -> Route: ...

    @property
    def failover_at(self) -> float | None: ...

    @property
    def may_try(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retries, back-off and attempt timeout of one call."""

    total: int | None
    """None: until the failover is decided."""
    backoff_factor_s: float
    backoff_max_s: float
    attempt_timeout_s: float
    failover_interval_s: float = 0.0

    @classmethod
    def of(cls, options: SendAvailabilityOptions) -> RetryPolicy:
        return cls(
            total=options.retry_total,
            backoff_factor_s=options.retry_backoff_factor_s,
            backoff_max_s=options.retry_backoff_max_s,
            attempt_timeout_s=options.attempt_timeout_s,
            failover_interval_s=options.failover_interval_s,
        )

    @property
    def retries(self) -> int:
        return RETRIES_MIN if self.total is None else self.total


def backoff_s(policy: RetryPolicy, retry: int, jitter: float = 0.0) -> float:
    """Time to wait before retry number `retry` (the first is 1), by the SDK's own formula.

    `jitter`, from 0 to 1, makes it shorter by chance.
    """
    # Past 2**63 every factor except 0 has reached its maximum; 2.0**1000 would overflow.
    wait_s = min(policy.backoff_max_s, policy.backoff_factor_s * 2.0 ** min(retry, 63))
    return jittered(wait_s, jitter)


def call_limit_s(policy: RetryPolicy) -> float:
    """The longest time of a call without a timeout (docs/options)."""
    tries_s = _tries_s(policy)
    if policy.total is not None:
        return tries_s + policy.attempt_timeout_s
    return policy.failover_interval_s + 2 * policy.attempt_timeout_s + tries_s


def _tries_s(policy: RetryPolicy) -> float:
    """The time of one attempt and all its retries, with their back-offs."""
    backoffs_s = sum(backoff_s(policy, retry) for retry in range(1, policy.retries + 1))
    return (policy.retries + 1) * policy.attempt_timeout_s + backoffs_s


@dataclass(frozen=True, slots=True)
class TryPrimary:
    """Send to the primary, once, for at most this long."""

    timeout_s: float
    is_trial: bool = False
    """The attempt is made for all calls to the entity, which has failed over."""


@dataclass(frozen=True, slots=True)
class WaitForRetry:
    """Wait until this time or until the entity changes its state, whichever is first."""

    until: float


@dataclass(frozen=True, slots=True)
class DivertTo:
    """Send to this backlog queue, or to the entity's twin, once, for at most this long."""

    queue: str
    timeout_s: float
    is_turn: bool = False
    """The attempt is made for all calls that wait for the secondary."""


@dataclass(frozen=True, slots=True)
class WaitForSecondary:
    """Wait for a turn, for a queue, or for a change of the entity, at most until this time."""

    until: float


@dataclass(frozen=True, slots=True)
class PullQueue:
    """Pull this queue from the rotation of all senders, then do the next step."""

    queue: str
    reason: str
    cause: PullCause = PullCause.REFUSED


class CallEnding(Enum):
    """How a call fails, and so which error its caller gets."""

    PRIMARY = "the primary's own error"
    MESSAGE = "the backlog queue's own error, which is about the message"
    BACKLOG = "BacklogUnavailableError, with the primary's error and each queue's"
    UNUSABLE = "EntityUnusableError, with the entity's reason"
    TIMED_OUT = "OperationTimeoutError: the caller's timeout ended before any attempt"


@dataclass(frozen=True, slots=True)
class Raise:
    """End the call with an error; `error` is the one to raise, or to raise from."""

    ending: CallEnding
    error: BaseException | None = None


Step = TryPrimary | WaitForRetry | DivertTo | WaitForSecondary | PullQueue | Raise


class SendDecisions:
    """The decisions of one call of `send_messages`."""

    __slots__ = (
        "_backlog", "_busy", "_entity", "_failed", "_has_turn", "_is_patient", "_is_trial",
        "_jitter",
        "_policy", "_queue", "_queue_retries", "_recoveries", "_retries", "_retry_at", "_tried",
        "_tries_for_others", "diverting", "ends_at", "primary_error", "queue_errors",
    )  # fmt: skip

    def __init__(
        self,
        entity: EntityView,
        backlog: KeptChoice,
        policy: RetryPolicy,
        *,
        ends_at: float,
        is_patient: bool,
        jitter: Callable[[], float] = lambda: 0.0,
        tries_for_others: bool = False,
    ) -> None:
        """`is_patient`: the caller gave a timeout, so the call may use all of it.

        `jitter` returns a random number from 0 to 1. `tries_for_others`: the call may try the
        primary when another process says that the entity is back.
        """
        self._entity = entity
        self._tries_for_others = tries_for_others
        self._backlog = backlog
        self._policy = policy
        self._is_patient = is_patient
        self._jitter = jitter
        self.ends_at = ends_at
        """When the call must have ended."""
        self._retries = 0
        self._recoveries = 0
        self._retry_at: float | None = None
        """End of the back-off; None while waiting: the call waits for the failover only."""
        self._queue = ""
        self._queue_retries = 0
        self._has_turn = False
        self._is_trial = False
        """The present attempt tries the primary for all calls."""
        self._tried: set[str] = set()
        """Queues that do not take this call's message."""
        self._failed: set[str] = set()
        """Queues that failed since the call last waited: the others come first."""
        self._busy: set[str] = set()
        """Queues that were too busy for every retry: the others come first."""
        self.diverting = False
        """Whether the last attempt was one on the backlog."""
        self.primary_error: BaseException | None = None
        """The last error of the primary."""
        self.queue_errors: dict[str, BaseException] = {}
        """The last error of each backlog queue that was tried."""

    def start(self, now: float) -> list[Step]:
        return self._try_again(now)

    @property
    def stays(self) -> bool:
        """Whether the entity's route still leads where the last attempt went."""
        return self._is_trial or self._route() is (
            Route.BACKLOG if self.diverting else Route.PRIMARY
        )

    def _try_again(self, now: float) -> list[Step]:
        """Make an attempt where the entity's route leads now."""
        self._retry_at, self._is_trial = None, False
        if self._is_over(now):
            return [self._give_up()]
        if self._may_try(now):
            return [self._try_for_all(now)]
        match self._route():
            case Route.PRIMARY:
                if self.diverting:
                    # The entity is back: what failed before its outage says nothing of it now.
                    self.diverting, self._retries = False, 0
                return [TryPrimary(self._attempt_timeout_s(now))]
            case Route.BACKLOG:
                return [self._divert(now)]
            case Route.REFUSED:
                return [Raise(CallEnding.UNUSABLE, self.primary_error)]

    def _may_try(self, now: float) -> bool:
        if not (self._tries_for_others and self._entity.may_try):
            return False
        return self._route() is not Route.PRIMARY and self.ends_at - now >= 2 * TRIAL_LEAST_S

    def _try_for_all(self, now: float) -> Step:
        """Try the primary; whatever comes of it, the call ends when it would have without."""
        self._limit_diverts(now)
        self.diverting, self._is_trial = False, True
        return TryPrimary(min(self._policy.attempt_timeout_s, (self.ends_at - now) / 2), True)

    def primary_failed(
        self, error: BaseException, meaning: FailureMeaning, now: float, *, counts: bool
    ) -> list[Step]:
        self.primary_error = error
        if self._is_trial and meaning is not FailureMeaning.MESSAGE:
            return self._try_again(now)
        # Neither another namespace nor a later time would repair the caller's own fault.
        if not counts and not meaning.retried:
            return [Raise(CallEnding.PRIMARY, error)]
        if self._route() is not Route.PRIMARY:
            return self._try_again(now)
        wait_s = self._backoff_s(self._retries + 1)
        if self._retries >= RETRIES_MIN and self._policy.total is None:
            wait_s = max(wait_s, LATE_PAUSE_S)
        if meaning is FailureMeaning.BUSY:
            # At most half of the time that is left: a short pause is better than no retry.
            pause_s = min(BUSY_PAUSE_S * (1.0 + self._jitter()), (self.ends_at - now) / 2)
            wait_s = max(wait_s, pause_s)
        retry_at = now + wait_s
        is_decided_later = self._entity.failover_at is not None and self._backlog.protected
        may_retry = self._retries < self._policy.retries or (
            self._policy.total is None and counts and is_decided_later
        )
        if may_retry and retry_at < self.ends_at:
            self._retries += 1
            self._retry_at = retry_at
            return [WaitForRetry(retry_at)]
        return [self._wait_for_failover(error)]

    def _wait_for_failover(self, error: BaseException | None) -> Step:
        """No retry is left: wait for the failover if it comes before the deadline, else raise."""
        failover_at = self._entity.failover_at
        waits = (self._is_patient or self._policy.total is None) and self._backlog.protected
        if failover_at is None or not waits or failover_at >= self.ends_at:
            return Raise(CallEnding.PRIMARY, error)
        return WaitForRetry(self.ends_at)

    def wait_ended(self, now: float) -> list[Step]:
        """A wait ended: by its time, by its turn, or because the entity changed its state."""
        if self._is_over(now):
            return [self._give_up()]
        if not self.stays or (self.diverting and self._may_try(now)):
            # The entity's route changed meanwhile, and the call follows it at once.
            return self._try_again(now)
        if self._retry_at is not None:
            return self._try_again(now) if now >= self._retry_at else [WaitForRetry(self._retry_at)]
        if self.diverting:
            if not self._backlog.is_lost:
                self._failed.clear()
            return self._try_again(now)
        if self._entity.state is EntityState.HEALTHY:
            return self._recovered(now)
        return [self._wait_for_failover(self.primary_error)]

    def _recovered(self, now: float) -> list[Step]:
        """Try again: the call waited for the failover, and another call healed the entity.

        From the second time on after a back-off, so that calls do not follow every flap.
        """
        retry_at = now + self._backoff_s(min(self._recoveries, self._policy.retries))
        self._recoveries += 1
        if self._recoveries == 1 or retry_at >= self.ends_at:
            return self._try_again(now)
        self._retry_at = retry_at
        return [WaitForRetry(retry_at)]

    def _divert(self, now: float) -> Step:
        if not self.diverting:
            self._limit_diverts(now)
        self.diverting = True
        queue, needs_turn = self._next_queue(now)
        if queue is None:
            self._failed.clear()
            self._has_turn = False
            if self._backlog.may_return(now, self._tried):
                return WaitForSecondary(self.ends_at)
            return Raise(CallEnding.BACKLOG, self.primary_error)
        if needs_turn and not self._has_turn and not self._backlog.is_turn(now):
            return WaitForSecondary(self.ends_at)
        self._has_turn = needs_turn
        self._queue = queue
        return DivertTo(queue, self._attempt_timeout_s(now), needs_turn)

    def _limit_diverts(self, now: float) -> None:
        """End a call without a timeout earlier: it needs no time for the failover any more."""
        if not self._is_patient:
            policy = self._policy
            limit_s = _tries_s(policy) if policy.total is None else call_limit_s(policy)
            self.ends_at = min(self.ends_at, now + limit_s)

    def _next_queue(self, now: float) -> tuple[str | None, bool]:
        """The queue of the next attempt, and whether that needs the turn."""
        backlog, without = self._backlog, self._tried | self._failed
        queue = backlog.choose(now, without | self._busy)
        if queue is None and self._busy:
            self._busy.clear()
            queue = backlog.choose(now, without)
        if queue is None and backlog.is_lost:
            # What failed was the namespace, so each queue is worth another attempt.
            queue = backlog.choose(now, self._tried)
        if queue is not None:
            return queue, backlog.is_lost
        return backlog.resting(now, without), True

    def divert_failed(
        self, error: BaseException, meaning: FailureMeaning, fault: DivertFault, now: float
    ) -> list[Step]:
        """The place of the last `DivertTo` did not take the message."""
        queue = self._queue
        self.queue_errors[queue] = error
        # Neither an error about the message nor a short timeout pulls a queue.
        if meaning is FailureMeaning.MESSAGE:
            if queue != self._backlog.twin:
                return [Raise(CallEnding.MESSAGE, error)]
            # Its settings may differ from those of the primary, which the message was made for.
            self._tried.add(queue)
            return self._try_again(now)
        match fault:
            case DivertFault.CALLER:
                return [Raise(CallEnding.BACKLOG, self.primary_error)]
            case DivertFault.NAMESPACE:
                self._has_turn = False
                self._failed.add(queue)
                return self._try_again(now)
            case DivertFault.ATTEMPT:
                # This machine or the network is slow, not the queue. Pulling for that would remove
                # one queue after the other just when load is highest.
                if self._queue_retries >= self._policy.retries:
                    self._busy.add(queue)
                    if self._backlog.choose(now, self._tried | self._failed | self._busy) is None:
                        return self._back_off(queue, now)
                self._queue_retries += 1
                return self._try_again(now)
        if meaning in (FailureMeaning.BUSY, FailureMeaning.STALE):
            return self._back_off(queue, now)
        if not meaning.pulls_queue:
            self._tried.add(queue)
            return self._try_again(now)
        cause = PullCause.FULL if meaning is FailureMeaning.QUOTA else PullCause.REFUSED
        if fault is DivertFault.SILENT_QUEUE:
            cause = PullCause.SILENT
        if cause is PullCause.SILENT or self._backlog.outlasts_refusals:
            self._failed.add(queue)
        else:
            self._tried.add(queue)
        return [PullQueue(queue, error_text(error), cause), *self._try_again(now)]

    def _back_off(self, queue: str, now: float) -> list[Step]:
        """Wait, then divert again: this queue up to `retries` times, then another first."""
        if self._queue_retries >= self._policy.retries:
            self._busy.add(queue)
        self._queue_retries += 1
        self._has_turn = False
        # Chance may take off nearly all: calls that came together must not come together again.
        longest_s = min(backoff_s(self._policy, self._queue_retries), LONGEST_BUSY_S)
        wait_s = max(longest_s * (1.0 - self._jitter()), FIRST_PACE_S)
        wait_s = min(wait_s, (self.ends_at - now) / 2)
        if wait_s < FIRST_PACE_S:
            self._tried.add(queue)
            return self._try_again(now)
        self._retry_at = now + wait_s
        return [WaitForRetry(self._retry_at)]

    def _give_up(self) -> Step:
        if self.diverting:
            return Raise(CallEnding.BACKLOG, self.primary_error)
        if self.primary_error is not None:
            return Raise(CallEnding.PRIMARY, self.primary_error)
        return Raise(CallEnding.TIMED_OUT)

    def _route(self) -> Route:
        route = self._entity.route
        if route is Route.BACKLOG and not self._backlog.protected:
            return Route.PRIMARY
        return route

    def _attempt_timeout_s(self, now: float) -> float:
        return min(self._policy.attempt_timeout_s, self.ends_at - now)

    def _backoff_s(self, retry: int) -> float:
        return backoff_s(self._policy, retry, self._jitter())

    def _is_over(self, now: float) -> bool:
        return now >= self.ends_at
