"""Credits of a namespace: what a second allows, and what it owes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.broker.engine.credits import CreditAccount
from twinbus.broker.refusals import ServerBusy


def test_a_second_has_its_credits_and_the_next_has_them_again() -> None:
    account = CreditAccount(3)
    for _ in range(3):
        account.require(1, 10_200)
    with pytest.raises(ServerBusy, match=r"Error code: 50009\. Please wait 2 seconds"):
        account.require(1, 10_999)
    assert (account.throttled, account.wait_ms(10_999)) == (1, 1)
    account.require(1, 11_000)
    assert account.left(11_999) == 2


def test_an_overdraft_is_missing_later_and_quiet_seconds_are_not_saved() -> None:
    account = CreditAccount(10)
    account.require(25, 1_000)
    with pytest.raises(ServerBusy):
        account.require(1, 2_500)
    assert account.left(3_000) == 5
    assert account.left(60_000) == 10


def test_a_clock_that_is_set_back_does_not_stop_the_namespace() -> None:
    account = CreditAccount(1)
    account.require(1, 50_000)
    account.require(1, 20_000)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 40)), max_size=60))
def test_no_more_is_taken_than_the_seconds_gave_and_one_overdraft(
    requests: list[tuple[int, int]],
) -> None:
    per_s, now_ms, taken = 20, 1_000, 0
    account = CreditAccount(per_s)
    for wait_ms, cost in requests:
        now_ms += wait_ms
        try:
            account.require(cost, now_ms)
            taken += cost
        except ServerBusy:
            assert account.left(now_ms) < 1
    assert taken < per_s * (now_ms // 1000) + 40
