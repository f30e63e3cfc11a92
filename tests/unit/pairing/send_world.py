"""An entity, a rotation and one send call, for tests that play the shell's part by hand."""

from __future__ import annotations

from collections.abc import Callable

from twinbus.pairing.core.attempts import (
    DivertTo,
    PullQueue,
    RetryPolicy,
    SendDecisions,
    Step,
    TryPrimary,
    call_limit_s,
)
from twinbus.pairing.core.backlog import KeptChoice, PullCause, Rotation
from twinbus.pairing.core.failover import (
    EntityFailover,
    ForceFailover,
    OthersRecovered,
    PrimaryTried,
    SendFailed,
    TimerFired,
)
from twinbus.pairing.core.secondary import DivertFault
from twinbus.pairing.core.twins import TwinFirst
from twinbus.servicebus.failures import FailureMeaning
from twinbus.servicebus.names import backlog_paths

POLICY = RetryPolicy(total=3, backoff_factor_s=0.8, backoff_max_s=120, attempt_timeout_s=5)
LIMIT_S = call_limit_s(POLICY)
"""When a call without a timeout ends."""
QUEUES = backlog_paths("contoso", 3)
REFUSED = ConnectionRefusedError("refused")
BUSY = RuntimeError("throttled")


class World:
    """An entity, a rotation and one call, with the shell's part played by hand."""

    def __init__(
        self,
        *,
        timeout: float | None = None,
        failover_interval_s: float = 60,
        policy: RetryPolicy = POLICY,
        queues: tuple[str, ...] = QUEUES,
        jitter: Callable[[], float] = lambda: 0.0,
        twin: str | None = None,
    ) -> None:
        self.entity = EntityFailover(failover_interval_s=failover_interval_s, ping_interval_s=60)
        self.rotation = Rotation(queues)
        self.choice = KeptChoice(self.rotation, lambda queues: queues[0])
        if twin is not None:
            self.rotation.add_twin(twin)
            self.choice = TwinFirst(twin, self.rotation, self.choice)
        self.policy = policy
        self.call = SendDecisions(
            self.entity,
            self.choice,
            policy,
            ends_at=call_limit_s(policy) if timeout is None else timeout,
            is_patient=timeout is not None,
            jitter=jitter,
            tries_for_others=True,
        )
        self.step: Step | None = None
        """The last step, which the test performs by hand."""
        self.began = 0.0

    def start(self, now: float) -> list[Step]:
        return self._next(self.call.start(now), now)

    def primary_fails(
        self,
        now: float,
        error: Exception = REFUSED,
        meaning: FailureMeaning = FailureMeaning.UNREACHABLE,
    ) -> list[Step]:
        self.entity.handle(SendFailed(counts=meaning.counts, error=str(error)), now)
        steps = self.call.primary_failed(error, meaning, now, counts=meaning.counts)
        return self._next(steps, now)

    def divert_fails(
        self,
        now: float,
        meaning: FailureMeaning = FailureMeaning.UNREACHABLE,
        *,
        error: Exception = REFUSED,
        timed_out: bool = False,
        is_answer: bool | None = None,
    ) -> list[Step]:
        """The divert of the last step failed; None: its meaning says whether that is an answer."""
        step = self.step
        assert isinstance(step, DivertTo), step
        secondary, fault = self.rotation.secondary, DivertFault.QUEUE
        if is_answer or (is_answer is None and meaning is not FailureMeaning.UNREACHABLE):
            secondary.answered(step.queue, now)
        elif timed_out and step.timeout_s < self.policy.attempt_timeout_s:
            fault = DivertFault.CALLER
        else:
            fault = secondary.no_answer(
                step.queue, str(error), began=self.began, now=now, timed_out=timed_out
            )
        steps = self.call.divert_failed(error, meaning, fault, now)
        for pull in steps[:-1]:
            assert isinstance(pull, PullQueue)
            self.rotation.pull(pull.queue, pull.reason, now, cause=pull.cause)
        if step.is_turn:
            secondary.end_turn(now, 0.0)
        return self._next(steps, now)

    def stores(self, queue: str, now: float) -> None:
        """A backlog queue stores a message, of this call or of another."""
        self.rotation.succeeded(queue)
        self.rotation.secondary.stored(queue, now)

    def _next(self, steps: list[Step], now: float) -> list[Step]:
        self.step, self.began = steps[-1], now
        if isinstance(self.step, TryPrimary) and self.step.is_trial:
            self.entity.handle(PrimaryTried(), now)
        if isinstance(self.step, DivertTo) and self.step.is_turn:
            self.rotation.secondary.begin_turn(now, self.step.timeout_s)
        return steps

    def fail_over(self, now: float) -> None:
        self.entity.handle(ForceFailover(), now)

    def others_recovered(self) -> None:
        """The entity has failed over, and another process says that it is back."""
        self.entity.handle(SendFailed(counts=True), -61.0)
        self.entity.handle(TimerFired(), -1.0)
        self.entity.handle(OthersRecovered(), -1.0)

    def woken(self, now: float) -> list[Step]:
        return self._next(self.call.wait_ended(now), now)


def pulled(index: int, cause: PullCause = PullCause.REFUSED) -> PullQueue:
    return PullQueue(QUEUES[index], "ConnectionRefusedError: refused", cause)
