"""A lease is relied on for less time than the service keeps it, counted from the question."""

from __future__ import annotations

import pytest

from twinbus.syphon.core.lease_validity import (
    LEASE_LOCK_S,
    LOCK_LEAST_S,
    LeaseValidity,
    lease_address,
)


def test_a_lease_ends_before_its_lock_counted_from_the_question() -> None:
    tenure = LeaseValidity()
    assert not tenure.holds(0.0)
    tenure.granted(100.0, 30.0)
    assert tenure.holds(123.9)
    assert not tenure.holds(124.0)
    assert tenure.renew_at == 107.5


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
    ("lock_s", "relied_on_s"),
    [(300.0, LEASE_LOCK_S), (-20.0, LOCK_LEAST_S), (10.0, 10.0)],
    ids=["longer than created", "a clock that is ahead", "shorter"],
)
def test_what_the_clocks_make_of_a_lock_is_kept_within_bounds(
    lock_s: float, relied_on_s: float
) -> None:
    tenure = LeaseValidity()
    tenure.granted(0.0, lock_s)
    assert tenure.ends_at == pytest.approx(relied_on_s * 0.8)


def test_a_queue_with_another_name_has_a_lease_of_its_own() -> None:
    assert lease_address("backlog") == ("backlog/x-twinbus-lease", "0")
