"""One send call on the primary: retried, held, diverted or raised, never past its time."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.unit.pairing.send_world import BUSY, POLICY, QUEUES, REFUSED, World
from twinbus.options import SendAvailabilityOptions
from twinbus.pairing.core.attempts import (
    CallEnding,
    DivertTo,
    Raise,
    RetryPolicy,
    TryPrimary,
    WaitForRetry,
    backoff_s,
    call_limit_s,
)
from twinbus.pairing.core.failover import Freeze, PingFailed, SendFailed, SendSucceeded, TimerFired
from twinbus.servicebus.failures import FailureMeaning

UNTIL_DECIDED = replace(POLICY, total=None, failover_interval_s=60)


@pytest.mark.parametrize(("retry", "seconds"), [(1, 1.6), (2, 3.2), (3, 6.4), (7, 102.4), (8, 120)])
def test_the_back_off_is_the_sdks(retry: int, seconds: float) -> None:
    sdk: Any = importlib.import_module("azure.servicebus._base_handler")
    assert backoff_s(POLICY, retry) == pytest.approx(seconds)
    assert backoff_s(POLICY, retry) == sdk._get_backoff_time("exponential", 0.8, 120, retry)


def test_a_thousandth_back_off_does_not_overflow() -> None:
    assert backoff_s(POLICY, 1_000) == 120
    assert backoff_s(RetryPolicy(9, 0.0, 120, 5), 1_000) == 0


def test_jitter_makes_a_back_off_shorter_by_a_fifth_at_most() -> None:
    assert backoff_s(POLICY, 1, 1.0) == pytest.approx(1.28)
    world = World(jitter=lambda: 0.5)
    world.start(0.0)
    [wait] = world.primary_fails(0.0)
    assert isinstance(wait, WaitForRetry)
    assert wait.until == pytest.approx(1.44)


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        (POLICY, 36.2),
        (RetryPolicy(0, 0.8, 120, 5), 10),
        (RetryPolicy(2, 1.0, 3.0, 0.5), 2 + 3 + 4 * 0.5),
        (RetryPolicy(1_000, 0.8, 120, 60), 203.2 + 993 * 120 + 1_002 * 60),
        (UNTIL_DECIDED, 60 + 2 * 5 + 31.2),
    ],
)
def test_a_call_without_a_timeout_is_bounded_by_attempts_back_offs_and_one_divert(
    policy: RetryPolicy, seconds: float
) -> None:
    assert call_limit_s(policy) == pytest.approx(seconds)


def test_without_retry_total_a_call_retries_until_the_failover_and_is_diverted() -> None:
    world = World(policy=UNTIL_DECIDED)
    steps, now, attempts = world.start(0.0), 0.0, 0
    while steps == [TryPrimary(5)]:
        attempts += 1
        [wait] = world.primary_fails(now)
        assert isinstance(wait, WaitForRetry)
        now = min(wait.until, 60.0)
        if now == 60.0:
            world.entity.handle(TimerFired(), now)
        steps = world.woken(now)
    assert (attempts, now) == (6, 60.0)
    assert steps == [DivertTo(QUEUES[0], 5)]
    # From now on the divert's own bound holds.
    assert world.divert_fails(61.0) == [DivertTo(QUEUES[1], 5, is_turn=True)]
    assert world.call.ends_at == pytest.approx(60 + 31.2)


@pytest.mark.parametrize("queues", [QUEUES, ()], ids=["it is throttled", "there is no backlog"])
def test_without_retry_total_what_no_failover_ends_is_retried_three_times(
    queues: tuple[str, ...],
) -> None:
    world = World(policy=UNTIL_DECIDED, queues=queues)
    meaning = FailureMeaning.BUSY if queues else FailureMeaning.UNREACHABLE
    steps, now = world.start(0.0), 0.0
    for _ in range(3):
        [wait] = world.primary_fails(now, BUSY, meaning)
        assert isinstance(wait, WaitForRetry)
        now = wait.until
        steps = world.woken(now)
        assert steps == [TryPrimary(5)]
    assert world.primary_fails(now, BUSY, meaning) == [Raise(CallEnding.PRIMARY, BUSY)]


def test_without_retry_total_and_back_off_a_late_retry_still_waits_a_second() -> None:
    world = World(policy=replace(UNTIL_DECIDED, backoff_factor_s=0.0))
    world.start(0.0)
    waits = [world.primary_fails(0.0), world.primary_fails(0.0), world.primary_fails(0.0)]
    assert waits == [[WaitForRetry(0.0)]] * 3
    assert world.primary_fails(0.0) == [WaitForRetry(1.0)]


def test_a_call_without_a_timeout_makes_no_attempt_past_its_bound() -> None:
    [step] = World().start(35.0)
    assert isinstance(step, TryPrimary)
    assert step.timeout_s == pytest.approx(1.2)
    assert World().start(36.2) == [Raise(CallEnding.TIMED_OUT)]


def test_the_policy_is_the_options() -> None:
    assert RetryPolicy.of(SendAvailabilityOptions()) == UNTIL_DECIDED
    given = RetryPolicy.of(SendAvailabilityOptions(retry_total=3))
    assert given == replace(POLICY, failover_interval_s=60)


def test_a_healthy_send_is_one_attempt_of_the_full_time() -> None:
    assert World().start(0.0) == [TryPrimary(5)]
    assert World(timeout=30).start(0.0) == [TryPrimary(5)]


def test_no_attempt_outlives_the_callers_time() -> None:
    assert World(timeout=2).start(0.0) == [TryPrimary(2)]
    assert World(timeout=2).start(1.5) == [TryPrimary(0.5)]
    assert World(timeout=2).start(2.0) == [Raise(CallEnding.TIMED_OUT)]


def test_a_failed_attempt_is_retried_as_often_as_the_options_say_then_raised() -> None:
    world = World()
    world.start(0.0)
    now, waits = 0.0, []
    for _ in range(3):
        [wait] = world.primary_fails(now)
        assert isinstance(wait, WaitForRetry)
        waits.append(wait.until - now)
        now = wait.until
        assert world.woken(now) == [TryPrimary(5)]
    assert waits == pytest.approx([1.6, 3.2, 6.4])
    assert world.primary_fails(now) == [Raise(CallEnding.PRIMARY, REFUSED)]


@pytest.mark.parametrize(
    "meaning",
    [
        FailureMeaning.UNAUTHORIZED,
        FailureMeaning.NOT_FOUND,
        FailureMeaning.DISABLED,
        FailureMeaning.QUOTA,
        FailureMeaning.MESSAGE,
        FailureMeaning.OTHER,
    ],
)
def test_what_does_not_count_goes_to_the_caller_at_once(meaning: FailureMeaning) -> None:
    for failed_over in (False, True):
        world = World(timeout=100)
        world.start(0.0)
        if failed_over:
            world.fail_over(0.5)
        assert world.primary_fails(1.0, BUSY, meaning) == [Raise(CallEnding.PRIMARY, BUSY)]


def test_throttling_is_retried_but_does_not_count() -> None:
    world = World()
    world.start(0.0)
    assert world.primary_fails(0.0, BUSY, FailureMeaning.BUSY) == [WaitForRetry(1.6)]
    assert world.entity.failover_at is None


def test_a_retry_after_server_busy_waits_for_the_next_second_if_the_caller_has_the_time() -> None:
    quick = RetryPolicy(total=3, backoff_factor_s=0.05, backoff_max_s=120, attempt_timeout_s=5)
    for chance, timeout_s, until in (
        (0.0, 30.0, 1.0),
        (1.0, 30.0, 2.0),
        (0.5, 1.0, 0.5),
        (0.0, 0.15, 0.1),
    ):
        world = World(timeout=timeout_s, policy=quick, jitter=partial(float, chance))
        world.start(0.0)
        assert world.primary_fails(0.0, BUSY, FailureMeaning.BUSY) == [WaitForRetry(until)]


def test_what_the_users_classifier_counts_is_retried_too() -> None:
    world = World()
    world.start(0.0)
    odd = RuntimeError("odd")
    assert world.call.primary_failed(odd, FailureMeaning.OTHER, 0.0, counts=True) == [
        WaitForRetry(1.6)
    ]


def test_a_retry_that_would_come_too_late_is_not_waited_for() -> None:
    world = World(timeout=1.6)
    world.start(0.0)
    assert world.primary_fails(0.0) == [Raise(CallEnding.PRIMARY, REFUSED)]


def test_waking_early_for_nothing_goes_on_waiting() -> None:
    world = World()
    world.start(0.0)
    world.primary_fails(0.0)
    assert world.woken(1.0) == [WaitForRetry(1.6)]
    assert world.woken(1.6) == [TryPrimary(5)]


def test_a_call_that_waits_is_woken_by_the_failover_and_diverted() -> None:
    world = World(failover_interval_s=2)
    world.start(0.0)
    world.primary_fails(0.0)
    world.woken(1.6)
    assert world.primary_fails(1.6) == [WaitForRetry(1.6 + 3.2)]
    world.entity.handle(TimerFired(), 2.0)
    assert world.woken(2.0) == [DivertTo(QUEUES[0], 5)]


def test_an_attempt_that_fails_after_the_failover_is_diverted() -> None:
    world = World()
    world.start(0.0)
    world.fail_over(3.0)
    assert world.primary_fails(5.0) == [DivertTo(QUEUES[0], 5)]
    assert world.call.primary_error is REFUSED


def test_with_interval_zero_the_first_failure_is_diverted() -> None:
    world = World(failover_interval_s=0)
    world.start(0.0)
    assert world.primary_fails(0.0) == [DivertTo(QUEUES[0], 5)]


def test_a_failed_over_entity_is_not_tried_at_all() -> None:
    world = World(timeout=3)
    world.fail_over(0.0)
    assert world.start(1.0) == [DivertTo(QUEUES[0], 2)]


def test_patience_beyond_the_failover_interval_sees_no_error() -> None:
    world = World(timeout=100, failover_interval_s=60)
    world.start(0.0)
    now = 0.0
    for _ in range(3):
        [wait] = world.primary_fails(now)
        assert isinstance(wait, WaitForRetry)
        now = wait.until
        world.woken(now)
    assert world.primary_fails(now) == [WaitForRetry(100)]
    world.entity.handle(TimerFired(), 60.0)
    assert world.woken(60.0) == [DivertTo(QUEUES[0], 5)]


def test_patience_below_the_failover_interval_gets_the_error_early() -> None:
    world = World(timeout=50, policy=RetryPolicy(0, 0.8, 120, 5))
    world.start(0.0)
    assert world.primary_fails(0.0) == [Raise(CallEnding.PRIMARY, REFUSED)]


@pytest.mark.parametrize("spoiled_by", ["frozen", "unprotected"])
def test_nobody_holds_out_for_a_failover_that_cannot_come(spoiled_by: str) -> None:
    queues = () if spoiled_by == "unprotected" else QUEUES
    world = World(timeout=100, policy=RetryPolicy(0, 0.8, 120, 5), queues=queues)
    world.start(0.0)
    world.entity.handle(SendFailed(counts=True), 0.0)
    if spoiled_by == "frozen":
        world.entity.handle(Freeze(), 0.0)
    assert world.primary_fails(0.0) == [Raise(CallEnding.PRIMARY, REFUSED)]


def test_a_call_that_holds_out_ends_with_its_time() -> None:
    world = World(timeout=100, policy=RetryPolicy(0, 0.8, 120, 5))
    world.start(0.0)
    assert world.primary_fails(0.0) == [WaitForRetry(100)]
    world.entity.handle(Freeze(), 1.0)
    assert world.woken(1.0) == [Raise(CallEnding.PRIMARY, REFUSED)]
    assert world.woken(100.0) == [Raise(CallEnding.PRIMARY, REFUSED)]


def test_a_recovery_is_worth_one_more_attempt_to_a_call_that_holds_out() -> None:
    world = World(timeout=100, policy=RetryPolicy(1, 0.8, 120, 5))
    world.start(0.0)
    world.primary_fails(0.0)
    world.woken(1.6)
    assert world.primary_fails(1.6) == [WaitForRetry(100)]
    world.entity.handle(SendSucceeded(), 20.0)
    assert world.woken(20.0) == [TryPrimary(5)]
    # It failed all the same; the entity is suspect again, and fails over at 80.
    assert world.primary_fails(20.0) == [WaitForRetry(100)]
    world.entity.handle(SendSucceeded(), 30.0)
    assert world.woken(30.0) == [WaitForRetry(31.6)]
    assert world.woken(31.6) == [TryPrimary(5)]


def test_an_unusable_entity_is_an_error_and_fills_no_backlog() -> None:
    world = World(timeout=100)
    world.fail_over(0.0)
    world.entity.forced = False
    world.entity.handle(TimerFired(), 60.0)
    world.entity.handle(PingFailed(unusable=True, error="no such queue"), 60.0)
    assert world.start(61.0) == [Raise(CallEnding.UNUSABLE, None)]
    assert world.primary_fails(62.0) == [Raise(CallEnding.UNUSABLE, REFUSED)]
    assert world.entity.reason == "no such queue"


def test_a_call_stays_until_the_route_leads_elsewhere() -> None:
    world = World()
    world.start(0.0)
    seen = [world.call.stays]
    world.fail_over(1.0)
    seen.append(world.call.stays)
    world.woken(1.0)
    seen.append(world.call.stays)
    assert seen == [True, False, True]


def test_without_a_backlog_a_call_stays_on_the_primary_whatever_the_state() -> None:
    world = World(queues=())
    world.start(0.0)
    world.fail_over(1.0)
    assert world.call.stays
