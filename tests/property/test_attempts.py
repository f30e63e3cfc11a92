"""One send call in any world: it ends once, in time, and in one place."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.pairing.core.attempts import (
    LATE_PAUSE_S,
    CallEnding,
    DivertTo,
    PullQueue,
    Raise,
    RetryPolicy,
    SendDecisions,
    Step,
    TryPrimary,
    WaitForRetry,
    WaitForSecondary,
    call_limit_s,
)
from twinbus.pairing.core.backlog import KeptChoice, Rotation
from twinbus.pairing.core.failover import (
    EntityFailover,
    Event,
    ForceFailover,
    Freeze,
    MarkHealthy,
    PingAnswered,
    PingFailed,
    Route,
    SendFailed,
    SendSucceeded,
    TimerFired,
    Unfreeze,
)
from twinbus.pairing.core.secondary import FIRST_PACE_S, DivertFault
from twinbus.pairing.core.twins import TwinFirst
from twinbus.servicebus.failures import FailureMeaning
from twinbus.servicebus.names import backlog_paths

QUEUES = backlog_paths("contoso", 3)
TWIN = "orders"
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
    total=st.none() | st.integers(0, 4),
    backoff_factor_s=st.sampled_from([0.0, 0.1, 0.8]),
    backoff_max_s=st.sampled_from([0.5, 120.0]),
    attempt_timeout_s=st.sampled_from([0.5, 5.0]),
    failover_interval_s=st.sampled_from([0.0, 5.0]),
)
DEADLINES = st.one_of(st.none(), st.floats(0.001, 150))


@dataclass
class World:
    """Plays the shell for one call, with scripted outcomes, and checks each step as it comes."""

    call: SendDecisions
    entity: EntityFailover
    rotation: Rotation
    policy: RetryPolicy
    ends_at: float
    outcomes: list[tuple[FailureMeaning | None, float]]
    meddling: list[tuple[float, Event]]
    now: float = 0.0
    ended: list[str] = field(default_factory=list)
    primaries: int = 0
    diverts: int = 0
    turns: int = 0
    backoffs: int = 0
    spent: set[str] = field(default_factory=set)
    """Queues that did not take this call's message, for another reason than a pull."""

    def run(self) -> str:
        """How the call ended: "primary", a queue's path, or the ending of its error."""
        steps = self.call.start(self.now)
        while not self.ended:
            *pulls, step = steps
            for pull in pulls:
                assert isinstance(pull, PullQueue)
                self.rotation.pull(pull.queue, pull.reason, self.now, cause=pull.cause)
            steps = self.perform(step)
        [ending] = self.ended
        return ending

    def perform(self, step: Step) -> list[Step]:
        match step:
            case TryPrimary(timeout_s):
                assert self.entity.route is Route.PRIMARY or not self.call._backlog.protected
                self.primaries += 1
                return self.attempt(timeout_s, queue=None)
            case DivertTo(queue, timeout_s, is_turn):
                assert self.entity.route is Route.BACKLOG
                assert queue not in self.spent, "a queue that refused it is not tried again"
                is_usable = self.rotation.is_in(queue, self.now)
                assert is_turn == (self.rotation.secondary.is_lost or not is_usable)
                self.diverts += 1
                return self.attempt(timeout_s, queue, is_turn=is_turn)
            case WaitForSecondary(until):
                assert until == self.call.ends_at <= self.ends_at
                turn_at = self.rotation.secondary.turn_at
                # Another call may free this one at once; it then has no turn to wait for.
                self.wait(min(until, max(turn_at, self.now + FIRST_PACE_S)))
                return self.call.wait_ended(self.now)
            case WaitForRetry(until):
                assert until >= self.now
                assert self.in_time(until)
                self.wait(until)
                return self.call.wait_ended(self.now)
            case Raise(ending, error):
                self.check_ending(ending, error)
                self.ended.append(ending.name)
                return []
        raise AssertionError(f"{step} is no last step")

    def attempt(self, timeout_s: float, queue: str | None, *, is_turn: bool = False) -> list[Step]:
        assert 0 < timeout_s <= self.policy.attempt_timeout_s
        assert self.in_time(self.now + timeout_s)
        began = self.now
        if is_turn:
            self.turns += 1
            self.rotation.secondary.begin_turn(self.now, timeout_s)
        meaning, part = self.outcomes.pop(0) if self.outcomes else (None, 0.0)
        self.pass_time(self.now + timeout_s * part)
        if meaning is None:
            self.ended.append(queue or "primary")
            return []
        if queue is None:
            self.entity.handle(SendFailed(counts=meaning.counts), self.now)
            return self.call.primary_failed(
                OSError("down"), meaning, self.now, counts=meaning.counts
            )
        fault = self.judge(queue, meaning, began, is_cut=timeout_s < self.policy.attempt_timeout_s)
        steps = self.call.divert_failed(OSError("down"), meaning, fault, self.now)
        if is_turn:
            self.rotation.secondary.end_turn(self.now, 0.0)
        is_retried = isinstance(steps[-1], WaitForRetry)
        if isinstance(steps[-1], WaitForRetry):
            busy = meaning in (FailureMeaning.BUSY, FailureMeaning.STALE)
            assert busy or fault is DivertFault.ATTEMPT
            assert steps[-1].until - self.now >= FIRST_PACE_S - TOLERANCE_S
            self.backoffs += 1
        if not meaning.pulls_queue and not is_retried:
            self.spent.add(queue)
        pulls = [step.queue for step in steps if isinstance(step, PullQueue)]
        is_queues = meaning.pulls_queue and fault in (DivertFault.QUEUE, DivertFault.SILENT_QUEUE)
        assert pulls == ([queue] if is_queues else [])
        return steps

    def judge(
        self, queue: str, meaning: FailureMeaning, began: float, *, is_cut: bool
    ) -> DivertFault:
        """Whose fault a failed divert is, as the shell finds out."""
        secondary = self.rotation.secondary
        if meaning is not FailureMeaning.UNREACHABLE:
            if meaning is not FailureMeaning.OTHER:
                secondary.answered(queue, self.now)
            return DivertFault.QUEUE
        timed_out = self.now - began >= self.policy.attempt_timeout_s
        if is_cut and self.now >= self.call.ends_at:
            return DivertFault.CALLER
        return secondary.no_answer(queue, "down", began=began, now=self.now, timed_out=timed_out)

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
        return moment <= self.ends_at + TOLERANCE_S


def world(
    policy: RetryPolicy,
    deadline: float | None,
    outcomes: list[tuple[FailureMeaning | None, float]],
    meddling: list[tuple[float, Event]],
    *,
    failover_interval_s: float = 5.0,
    queues: tuple[str, ...] = QUEUES,
    has_twin: bool = False,
) -> World:
    entity = EntityFailover(failover_interval_s=failover_interval_s, ping_interval_s=3.0)
    rotation = Rotation(queues)
    choice = KeptChoice(rotation, lambda queues: queues[0])
    if has_twin:
        rotation.add_twin(TWIN)
        choice = TwinFirst(TWIN, rotation, choice)
    ends_at = call_limit_s(policy) if deadline is None else deadline
    call = SendDecisions(entity, choice, policy, ends_at=ends_at, is_patient=deadline is not None)
    script = sorted(meddling, key=lambda step: step[0])
    return World(call, entity, rotation, policy, ends_at, list(outcomes), script)


@settings(max_examples=max(400, settings().max_examples))
@given(
    POLICIES,
    DEADLINES,
    OUTCOMES,
    MEDDLING,
    st.sampled_from([0.0, 1.0, 5.0, 60.0]),
    st.sampled_from([(), QUEUES[:1], QUEUES]),
    st.booleans(),
)
def test_a_call_ends_exactly_once_in_time_and_after_bounded_attempts(
    policy: RetryPolicy,
    deadline: float | None,
    outcomes: list[tuple[FailureMeaning | None, float]],
    meddling: list[tuple[float, Event]],
    failover_interval_s: float,
    queues: tuple[str, ...],
    has_twin: bool,
) -> None:
    it = world(
        policy,
        deadline,
        outcomes,
        meddling,
        failover_interval_s=failover_interval_s,
        queues=queues,
        has_twin=has_twin,
    )
    ending = it.run()
    # Every bound holds for a twin as for one more queue.
    queues = (TWIN, *queues) if has_twin else queues
    assert ending in {"primary", *queues, *CallEnding.__members__}
    assert it.in_time(it.now)
    # Each divert may end in a return to the primary; without a turn a queue is tried once, once
    # more for each return from a pull, and once after each back-off.
    returns = sum(it.ends_at > 24 * count for count in range(1, 7))
    once_each = len(queues) * (1 + returns)
    assert it.diverts - it.turns <= once_each + policy.retries + it.turns + it.backoffs
    assert it.turns <= len(queues) * (it.ends_at / FIRST_PACE_S + 2)
    # After each recovery, of which others cause at most one each, the call tries once more; after
    # one that ends a divert it has all its retries.
    # Without a number of retries time alone bounds them, and the pauses between them.
    late = it.ends_at / LATE_PAUSE_S if policy.total is None else 0
    assert it.primaries <= (1 + policy.retries) * (1 + it.diverts) + len(meddling) + late


@given(POLICIES, st.floats(0, 20), st.lists(st.floats(0, 1), min_size=30, max_size=30))
def test_patience_beyond_the_failover_interval_never_sees_an_error(
    policy: RetryPolicy, failover_interval_s: float, parts: list[float]
) -> None:
    # The first attempt may take its whole time to fail, and so may one that spans the failover.
    patience: float | None = failover_interval_s + 2 * policy.attempt_timeout_s + 0.01
    if policy.total is None:
        # Nor does a call without a timeout.
        policy, patience = replace(policy, failover_interval_s=failover_interval_s), None
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
    # A lost connection is the namespace's: it costs a pause and pulls nothing.
    assert it.run() in QUEUES
    full = bad.count(FailureMeaning.QUOTA)
    assert len(it.rotation.available(it.now)) == len(QUEUES) - full
