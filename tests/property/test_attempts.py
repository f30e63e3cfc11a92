"""One send call in any world: it ends once, in time, and in one place."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.pairing.core.attempts import (
    CallEnding,
    DivertFailed,
    DivertTo,
    PrimaryFailed,
    PullQueue,
    Raise,
    RetryPolicy,
    SendCall,
    Step,
    TryPrimary,
    WaitEnded,
    WaitForRetry,
)
from twinbus.pairing.core.backlog import KeptChoice, Rotation, backlog_paths
from twinbus.pairing.core.classify import FailureMeaning
from twinbus.pairing.core.events import (
    Event,
    ForceFailover,
    Freeze,
    MarkHealthy,
    PingAnswered,
    PingFailed,
    Route,
    SendFailed,
    SendSucceeded,
    Unfreeze,
)
from twinbus.pairing.core.failover import EntityFailover
from twinbus.timers import TimerFired

QUEUES = backlog_paths("contoso", 3)
TOLERANCE_S = 1e-6
"""Sums of floats that should meet exactly may miss by this."""

MEANINGS = st.sampled_from(list(FailureMeaning))
OUTCOMES = st.lists(st.tuples(st.one_of(st.none(), MEANINGS), st.floats(0, 1)), max_size=40)
"""Of the attempts, in order: success or what failed, after which part of the attempt's time."""

MEDDLING: st.SearchStrategy[list[tuple[float, Event]]] = st.lists(
    st.tuples(
        st.floats(0, 120),
        st.sampled_from(
            [
                SendSucceeded(),
                SendFailed(counts=True),
                ForceFailover(),
                MarkHealthy(),
                Freeze(),
                Unfreeze(),
                PingAnswered(),
                PingFailed(unusable=True),
            ]
        ),
    ),
    max_size=8,
)
"""What other senders, pings and persons do to the entity meanwhile, and when."""

POLICIES = st.builds(
    RetryPolicy,
    total=st.integers(0, 4),
    backoff_factor_s=st.sampled_from([0.0, 0.1, 0.8]),
    backoff_max_s=st.sampled_from([0.5, 120.0]),
    attempt_timeout_s=st.sampled_from([0.5, 5.0]),
)
DEADLINES = st.one_of(st.none(), st.floats(0.001, 150))


@dataclass
class World:
    """Plays the shell for one call, with scripted outcomes, and checks each step as it comes."""

    call: SendCall
    entity: EntityFailover
    rotation: Rotation
    policy: RetryPolicy
    deadline: float | None
    outcomes: list[tuple[FailureMeaning | None, float]]
    meddling: list[tuple[float, Event]]
    now: float = 0.0
    ended: list[str] = field(default_factory=list)
    primaries: int = 0
    diverts: int = 0
    waits: int = 0
    spent: set[str] = field(default_factory=set)

    def run(self) -> str:
        """How the call ended: "primary", a queue's path, or the ending of its error."""
        steps = self.call.start(self.now)
        while not self.ended:
            *pulls, step = steps
            for pull in pulls:
                assert isinstance(pull, PullQueue)
                assert pull.queue in self.spent
                self.rotation.pull(pull.queue, pull.reason, self.now)
            steps = self.perform(step)
        [ending] = self.ended
        return ending

    def perform(self, step: Step) -> list[Step]:
        match step:
            case TryPrimary(timeout_s):
                assert self.entity.route is Route.PRIMARY or not self.rotation.protected
                self.primaries += 1
                return self.attempt(timeout_s, queue=None)
            case DivertTo(queue, timeout_s):
                assert self.entity.route is Route.BACKLOG
                assert queue not in self.spent, "a queue that failed is not tried again"
                assert self.rotation.is_in(queue, self.now)
                self.diverts += 1
                return self.attempt(timeout_s, queue)
            case WaitForRetry(until):
                assert until >= self.now
                assert self.in_time(until)
                self.waits += 1
                self.wait(until)
                return self.call.handle(WaitEnded(), self.now)
            case Raise(ending, error):
                self.check_ending(ending, error)
                self.ended.append(ending.name)
                return []
        raise AssertionError(f"{step} is no last step")

    def attempt(self, timeout_s: float, queue: str | None) -> list[Step]:
        assert 0 < timeout_s <= self.policy.attempt_timeout_s
        assert self.in_time(self.now + timeout_s)
        meaning, part = self.outcomes.pop(0) if self.outcomes else (None, 0.0)
        self.pass_time(self.now + timeout_s * part)
        if meaning is None:
            self.ended.append(queue or "primary")
            return []
        if queue is None:
            self.entity.handle(SendFailed(counts=meaning.counts), self.now)
            return self.call.handle(
                PrimaryFailed(OSError("down"), meaning.counts, meaning), self.now
            )
        if meaning is not FailureMeaning.BUSY:
            self.spent.add(queue)
        failed = DivertFailed(OSError("down"), meaning, timed_out=part == 1)
        steps = self.call.handle(failed, self.now)
        if meaning is FailureMeaning.BUSY and not isinstance(steps[-1], WaitForRetry):
            self.spent.add(queue)
        self.check_pull(
            steps, queue, meaning, part == 1 and timeout_s < self.policy.attempt_timeout_s
        )
        return steps

    def check_pull(self, steps: list[Step], queue: str, meaning: FailureMeaning, cut: bool) -> None:
        pulls = [step for step in steps if isinstance(step, PullQueue)]
        assert [pull.queue for pull in pulls] == (
            [queue] if meaning.pulls_queue and not cut else []
        )

    def check_ending(self, ending: CallEnding, error: BaseException | None) -> None:
        match ending:
            case CallEnding.PRIMARY:
                assert error is self.call.primary_error is not None
            case CallEnding.MESSAGE:
                assert error in self.call.queue_errors.values()
            case CallEnding.UNUSABLE:
                assert self.entity.route is Route.REFUSED
            case CallEnding.TIMED_OUT:
                assert self.primaries == self.diverts == 0

    def wait(self, until: float) -> None:
        """Until then, or until something changes the entity's state."""
        state = self.entity.state
        while self.now < until and self.entity.state is state:
            self.pass_time(min([until, *self.moments()]))

    def moments(self) -> list[float]:
        due = [at for at, _ in self.meddling]
        if self.entity.timer_at is not None:
            due.append(self.entity.timer_at)
        return [max(at, self.now) for at in due]

    def pass_time(self, until: float) -> None:
        while (moments := self.moments()) and min(moments) <= until:
            self.now = max(self.now, min(moments))
            if self.meddling and self.meddling[0][0] <= self.now:
                self.entity.handle(self.meddling.pop(0)[1], self.now)
            else:
                self.entity.handle(TimerFired(), self.now)
        self.now = max(self.now, until)

    def in_time(self, moment: float) -> bool:
        return self.deadline is None or moment <= self.deadline + TOLERANCE_S


def world(
    policy: RetryPolicy,
    deadline: float | None,
    outcomes: list[tuple[FailureMeaning | None, float]],
    meddling: list[tuple[float, Event]],
    *,
    failover_interval_s: float = 5.0,
    queues: tuple[str, ...] = QUEUES,
) -> World:
    entity = EntityFailover(failover_interval_s=failover_interval_s, ping_interval_s=3.0)
    rotation = Rotation(queues)
    choice = KeptChoice(rotation, lambda queues: queues[0])
    call = SendCall(entity, choice, policy, deadline=deadline)
    script = sorted(meddling, key=lambda step: step[0])
    return World(call, entity, rotation, policy, deadline, list(outcomes), script)


@settings(max_examples=max(400, settings().max_examples))
@given(
    POLICIES,
    DEADLINES,
    OUTCOMES,
    MEDDLING,
    st.sampled_from([0.0, 1.0, 5.0, 60.0]),
    st.sampled_from([(), QUEUES[:1], QUEUES]),
)
def test_a_call_ends_exactly_once_in_time_and_after_bounded_attempts(
    policy: RetryPolicy,
    deadline: float | None,
    outcomes: list[tuple[FailureMeaning | None, float]],
    meddling: list[tuple[float, Event]],
    failover_interval_s: float,
    queues: tuple[str, ...],
) -> None:
    it = world(
        policy,
        deadline,
        outcomes,
        meddling,
        failover_interval_s=failover_interval_s,
        queues=queues,
    )
    ending = it.run()
    assert ending in {"primary", *queues, *CallEnding.__members__}
    assert it.in_time(it.now)
    # Each divert may end in a return to the primary; a queue is tried once, throttling aside.
    assert it.diverts <= len(queues) + policy.total
    assert it.primaries <= 1 + 2 * policy.total + it.diverts


@given(POLICIES, st.floats(0, 20), st.lists(st.floats(0, 1), min_size=30, max_size=30))
def test_patience_beyond_the_failover_interval_never_sees_an_error(
    policy: RetryPolicy, failover_interval_s: float, parts: list[float]
) -> None:
    # The first attempt may take its whole time to fail, and so may one that spans the failover.
    patience = failover_interval_s + 2 * policy.attempt_timeout_s + 0.01
    dead: list[tuple[FailureMeaning | None, float]] = [
        (FailureMeaning.UNREACHABLE, part) for part in parts
    ]
    it = world(policy, patience, dead, [], failover_interval_s=failover_interval_s)
    # The primary is dead for good; every backlog queue takes what it gets.
    steps = it.call.start(0.0)
    while not isinstance(steps[-1], DivertTo):
        assert not isinstance(steps[-1], Raise), steps
        steps = it.perform(steps[-1])
    assert steps[-1].queue in QUEUES
    assert it.in_time(it.now)


@given(
    POLICIES,
    st.lists(st.sampled_from([FailureMeaning.UNREACHABLE, FailureMeaning.QUOTA]), max_size=2),
)
def test_one_good_queue_of_three_is_enough(policy: RetryPolicy, bad: list[FailureMeaning]) -> None:
    outcomes: list[tuple[FailureMeaning | None, float]] = [(meaning, 0.5) for meaning in bad]
    it = world(policy, None, outcomes, [(0.0, ForceFailover())])
    it.pass_time(0.0)
    assert it.run() == QUEUES[len(bad)]
    assert it.rotation.available(it.now) == [*QUEUES[len(bad) :]]
