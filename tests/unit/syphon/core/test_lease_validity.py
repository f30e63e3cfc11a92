"""A lease is relied on for less time than the service keeps it, counted from the question."""

from __future__ import annotations

import pytest

from twinbus.syphon.core.lease_validity import (
    LEASE_LOCK_S,
    LOCK_ASSUMED_S,
    LOCK_LEAST_S,
    SILENCE_S,
    STANDBY_SHARE,
    LeaseValidity,
    handover_s,
    lease_address,
    relied_on_s,
)


def test_a_lease_ends_before_its_lock_counted_from_the_question() -> None:
    tenure = LeaseValidity()
    assert not tenure.holds(0.0)
    tenure.granted(100.0, 30.0)
    assert tenure.holds(123.9)
    assert not tenure.holds(124.0)
    assert tenure.renew_at == 112.0


def test_a_renewal_prolongs_it_and_one_that_failed_is_tried_again_in_time() -> None:
    tenure = LeaseValidity()
    tenure.granted(100.0, 30.0)
    tenure.not_renewed(108.0)
    assert 108.0 < tenure.renew_at < tenure.ends_at
    tenure.granted(112.0, 30.0)
    assert tenure.ends_at == 136.0
    tenure.lost()
    assert not tenure.holds(113.0)


@pytest.mark.parametrize(
    ("lock_s", "expected_s"),
    [(300.0, LOCK_ASSUMED_S), (-20.0, LOCK_LEAST_S), (10.0, 10.0)],
    ids=["longer than assumed", "a clock that is ahead", "shorter"],
)
def test_what_the_clocks_make_of_a_lock_is_kept_within_bounds(
    lock_s: float, expected_s: float
) -> None:
    assert relied_on_s(lock_s, None) == expected_s


@pytest.mark.parametrize("by_clock_s", [-3_600.0, 10.0, 240.0, 7_200.0])
def test_a_lock_duration_that_was_read_depends_on_no_clock(by_clock_s: float) -> None:
    assert relied_on_s(by_clock_s, 240.0) == 240.0


def test_after_the_death_of_a_machine_a_standby_takes_over_within_five_minutes() -> None:
    latest_attempt_s = 1.5 * STANDBY_SHARE * LEASE_LOCK_S
    assert LEASE_LOCK_S + latest_attempt_s + handover_s(LEASE_LOCK_S) <= 300.0


def test_a_standby_waits_until_the_former_holder_must_have_stopped() -> None:
    for lock_s in (5.0, 30.0, LEASE_LOCK_S):
        former = LeaseValidity()
        former.granted(0.0, lock_s)
        assert handover_s(lock_s) == min(SILENCE_S, former.ends_at)


def test_a_queue_with_another_name_has_a_lease_of_its_own() -> None:
    assert lease_address("backlog") == ("backlog/x-twinbus-lease", "0")
