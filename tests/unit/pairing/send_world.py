"""An entity, a rotation and one send call, for tests that play the shell's part by hand."""

from __future__ import annotations

from twinbus.pairing.core.attempts import (
    DivertFailed,
    PrimaryFailed,
    PullQueue,
    RetryPolicy,
    SendCall,
    Step,
    WaitEnded,
)
from twinbus.pairing.core.backlog import KeptChoice, Rotation, backlog_paths
from twinbus.pairing.core.classify import FailureMeaning
from twinbus.pairing.core.events import ForceFailover, SendFailed
from twinbus.pairing.core.failover import EntityFailover

POLICY = RetryPolicy(total=3, backoff_factor_s=0.8, backoff_max_s=120, attempt_timeout_s=5)
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
    ) -> None:
        self.entity = EntityFailover(failover_interval_s=failover_interval_s, ping_interval_s=60)
        self.rotation = Rotation(queues)
        self.choice = KeptChoice(self.rotation, lambda queues: queues[0])
        self.call = SendCall(self.entity, self.choice, policy, deadline=timeout)

    def primary_fails(
        self,
        now: float,
        error: Exception = REFUSED,
        meaning: FailureMeaning = FailureMeaning.UNREACHABLE,
    ) -> list[Step]:
        self.entity.handle(SendFailed(counts=meaning.counts, error=str(error)), now)
        return self.call.handle(PrimaryFailed(error, meaning.counts, meaning), now)

    def divert_fails(
        self,
        now: float,
        meaning: FailureMeaning = FailureMeaning.UNREACHABLE,
        *,
        error: Exception = REFUSED,
        timed_out: bool = False,
    ) -> list[Step]:
        steps = self.call.handle(DivertFailed(error, meaning, timed_out), now)
        for step in steps:
            if isinstance(step, PullQueue):
                self.rotation.pull(step.queue, step.reason, now)
        return steps

    def fail_over(self, now: float) -> None:
        self.entity.handle(ForceFailover(), now)

    def woken(self, now: float) -> list[Step]:
        return self.call.handle(WaitEnded(), now)


def pulled(index: int) -> PullQueue:
    return PullQueue(QUEUES[index], "ConnectionRefusedError: refused")
