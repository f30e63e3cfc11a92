"""One send call on the primary: retried, held, diverted or raised, never past its time."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.unit.pairing.send_world import BUSY, POLICY, QUEUES, World
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
from twinbus.pairing.core.failover import TimerFired
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
