"""One send call: try the primary, wait, divert, or raise (SPEC 3, Attempts and Diverting).

    TryPrimary --failed--> Wait --back-off over--> TryPrimary ... --retries used up--> Raise
        |                   |
        '---entity failed over, woken at any time---> Divert --queue failed--> Divert ... Raise

Pure: the shell performs the last of the returned steps and reports how it ended; success ends the
call. A call reads the entity's `EntityFailover` and its sender's choice of backlog queues, both
shared, and writes neither. A failed attempt is first reported to the entity, then here, so that a
failover it causes is seen at once.

The call ends in exactly one of: success on the primary, success in a backlog queue, `Raise`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from twinbus.errors import error_text
from twinbus.options import SendAvailabilityOptions
from twinbus.pairing.core.classify import FailureMeaning
from twinbus.pairing.core.events import EntityState, Route


class EntityView(Protocol):
    """What a call reads of its entity's failover."""

    @property
    def state(self) -> EntityState: ...

    @property
    def route(self) -> Route: ...

    @property
    def failover_at(self) -> float | None: ...


class BacklogChoice(Protocol):
    """Chooses the backlog queue of a sender's diverted messages."""

    @property
    def protected(self) -> bool:
        """Whether there is any backlog queue; without one sends use the primary (SPEC 2.5)."""

    def choose(self, now: float, tried: Collection[str]) -> str | None:
        """The queue to use, none of `tried`; None: none is left."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retries, back-off and attempt timeout of one call."""

    total: int
    backoff_factor_s: float
    backoff_max_s: float
    attempt_timeout_s: float

    @classmethod
    def of(cls, options: SendAvailabilityOptions) -> RetryPolicy:
        return cls(
            total=options.retry_total,
            backoff_factor_s=options.retry_backoff_factor_s,
            backoff_max_s=options.retry_backoff_max_s,
            attempt_timeout_s=options.attempt_timeout_s,
        )


def backoff_s(policy: RetryPolicy, retry: int) -> float:
    """Time to wait before retry number `retry` (the first is 1), by the SDK's own formula."""
    # Past 2**63 every factor except 0 has reached its maximum; 2.0**1000 would overflow.
    return min(policy.backoff_max_s, policy.backoff_factor_s * 2.0 ** min(retry, 63))


@dataclass(frozen=True, slots=True)
class PrimaryFailed:
    """The attempt on the primary failed; `counts` is the classifier's verdict."""

    error: BaseException
    counts: bool
    meaning: FailureMeaning


@dataclass(frozen=True, slots=True)
class DivertFailed:
    """The backlog queue of the last `DivertTo` did not take the message."""

    error: BaseException
    meaning: FailureMeaning
    timed_out: bool = False
    """No answer came within the timeout, as opposed to a refusal or a broken connection."""
    answers_others: bool = False
    """The queue stored a message of another call after this attempt had begun."""


@dataclass(frozen=True, slots=True)
class WaitEnded:
    """A `WaitForRetry` ended: by its time, or because the entity changed its state."""


Event = PrimaryFailed | DivertFailed | WaitEnded


@dataclass(frozen=True, slots=True)
class TryPrimary:
    """Send to the primary, once, for at most this long."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class WaitForRetry:
    """Wait until this time or until the entity changes its state, whichever is first."""

    until: float


@dataclass(frozen=True, slots=True)
class DivertTo:
    """Send to this backlog queue, once, for at most this long."""

    queue: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class PullQueue:
    """Pull this queue from the rotation of all senders, then do the next step."""

    queue: str
    reason: str


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


Step = TryPrimary | WaitForRetry | DivertTo | PullQueue | Raise


class SendCall:
    """The decisions of one call of `send_messages`."""

    __slots__ = (
        "_backlog", "_cut_short", "_deadline", "_entity", "_policy", "_queue", "_queue_retries",
        "_recoveries", "_retries", "_retry_at", "_tried", "diverting", "primary_error",
        "queue_errors",
    )  # fmt: skip

    def __init__(
        self,
        entity: EntityView,
        backlog: BacklogChoice,
        policy: RetryPolicy,
        *,
        deadline: float | None = None,
    ) -> None:
        """The call must end by `deadline`; None: only its retries bound it, as in the SDK."""
        self._entity = entity
        self._backlog = backlog
        self._policy = policy
        self._deadline = deadline
        self._retries = 0
        self._recoveries = 0
        self._retry_at: float | None = None
        """End of the back-off; None while waiting: the call waits for the failover only."""
        self._queue = ""
        self._queue_retries = 0
        self._cut_short = False
        self._tried: set[str] = set()
        self.diverting = False
        """Whether the last attempt was one on the backlog."""
        self.primary_error: BaseException | None = None
        """The last error of the primary."""
        self.queue_errors: dict[str, BaseException] = {}
        """The last error of each backlog queue that was tried."""

    def start(self, now: float) -> list[Step]:
        """The first step."""
        return self._try_again(now)

    def handle(self, event: Event, now: float) -> list[Step]:
        """Take the end of the last step at time `now`; return the next, after any `PullQueue`."""
        match event:
            case PrimaryFailed():
                return self._primary_failed(event, now)
            case DivertFailed():
                return self._divert_failed(event, now)
            case WaitEnded():
                return self._wait_ended(now)

    @property
    def stays(self) -> bool:
        """Whether the entity's route still leads where the last attempt went."""
        return self._route() is (Route.BACKLOG if self.diverting else Route.PRIMARY)

    def _try_again(self, now: float) -> list[Step]:
        """Make an attempt where the entity's route leads now."""
        self._retry_at = None
        if self._is_over(now):
            return [self._give_up()]
        match self._route():
            case Route.PRIMARY:
                self.diverting = False
                return [TryPrimary(self._attempt_timeout_s(now))]
            case Route.BACKLOG:
                return [self._divert(now)]
            case Route.REFUSED:
                return [Raise(CallEnding.UNUSABLE, self.primary_error)]

    def _primary_failed(self, event: PrimaryFailed, now: float) -> list[Step]:
        self.primary_error = event.error
        # Neither another namespace nor a later time would repair the caller's own fault.
        if not event.counts and not event.meaning.retried:
            return [Raise(CallEnding.PRIMARY, event.error)]
        if self._route() is not Route.PRIMARY:
            return self._try_again(now)
        retry_at = now + backoff_s(self._policy, self._retries + 1)
        if self._retries < self._policy.total and self._is_in_time(retry_at):
            self._retries += 1
            self._retry_at = retry_at
            return [WaitForRetry(retry_at)]
        return [self._wait_for_failover(event.error)]

    def _wait_for_failover(self, error: BaseException | None) -> Step:
        """No retry is left: wait for the failover if it comes before the deadline, else raise."""
        failover_at = self._entity.failover_at
        if failover_at is None or self._deadline is None or not self._backlog.protected:
            return Raise(CallEnding.PRIMARY, error)
        if failover_at >= self._deadline:
            return Raise(CallEnding.PRIMARY, error)
        return WaitForRetry(self._deadline)

    def _wait_ended(self, now: float) -> list[Step]:
        if self._is_over(now):
            return [self._give_up()]
        if not self.stays:
            # The entity's route changed meanwhile, and the call follows it at once.
            return self._try_again(now)
        if self._retry_at is not None:
            return self._try_again(now) if now >= self._retry_at else [WaitForRetry(self._retry_at)]
        # The call waited for the failover, and a success of another call healed the entity: worth
        # one more attempt. They are counted, so a flapping entity cannot keep a call for ever.
        if self._entity.state is EntityState.HEALTHY and self._recoveries < self._policy.total:
            self._recoveries += 1
            return self._try_again(now)
        return [self._wait_for_failover(self.primary_error)]

    def _divert(self, now: float) -> Step:
        self.diverting = True
        queue = self._backlog.choose(now, self._tried)
        if queue is None:
            return Raise(CallEnding.BACKLOG, self.primary_error)
        self._queue = queue
        timeout_s = self._attempt_timeout_s(now)
        self._cut_short = timeout_s < self._policy.attempt_timeout_s
        return DivertTo(queue, timeout_s)

    def _divert_failed(self, event: DivertFailed, now: float) -> list[Step]:
        queue = self._queue
        self.queue_errors[queue] = event.error
        # SPEC 3: neither an error about the message nor a short timeout pulls a queue.
        if event.meaning is FailureMeaning.MESSAGE:
            return [Raise(CallEnding.MESSAGE, event.error)]
        if event.timed_out and self._cut_short:
            return [Raise(CallEnding.BACKLOG, self.primary_error)]
        if event.timed_out and event.answers_others:
            # This machine or the network is slow, not the queue. Pulling for that would remove one
            # queue after the other just when load is highest.
            if self._queue_retries >= self._policy.total:
                self._tried.add(queue)
            self._queue_retries += 1
            return self._try_again(now)
        if event.meaning is FailureMeaning.BUSY and self._queue_retries < self._policy.total:
            retry_at = now + backoff_s(self._policy, self._queue_retries + 1)
            if self._is_in_time(retry_at):
                self._queue_retries += 1
                self._retry_at = retry_at
                return [WaitForRetry(retry_at)]
        self._tried.add(queue)
        onward = self._try_again(now)
        if event.meaning.pulls_queue:
            return [PullQueue(queue, error_text(event.error)), *onward]
        return onward

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
        if self._deadline is None:
            return self._policy.attempt_timeout_s
        return min(self._policy.attempt_timeout_s, self._deadline - now)

    def _is_over(self, now: float) -> bool:
        return self._deadline is not None and now >= self._deadline

    def _is_in_time(self, moment: float) -> bool:
        return self._deadline is None or moment < self._deadline
