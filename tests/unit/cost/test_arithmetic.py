"""The counting rules, against figures worked out by hand from the published ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.cost.arithmetic import (
    CountingRule,
    idle_syphon_operations,
    message_units,
    moved_message_units,
    ping_operations,
    search_count,
    search_operations,
    units,
)
from twinbus.pairing.core.secondary import search_wait_s

KB = 1024
HOUR_S, DAY_S = 3_600, 86_400
SETTLED = CountingRule(count_settlement=True)


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [
        (None, 1),
        (0, 1),
        (1, 1),
        (64 * KB, 1),
        (64 * KB + 1, 2),
        (96 * KB, 2),
        (128 * KB, 2),
        (256 * KB, 4),
        (100 * KB * KB, 1_600),
    ],
)
def test_a_started_64_kib_is_a_unit_and_nothing_is_one_too(
    size_bytes: int | None, expected: int
) -> None:
    assert units(size_bytes) == expected


@given(st.integers(0, 10**9))
def test_units_are_the_fewest_that_hold_the_message(size_bytes: int) -> None:
    assert (units(size_bytes) - 1) * 64 * KB < max(size_bytes, 1) <= units(size_bytes) * 64 * KB


def test_an_idle_syphon_costs_what_the_documentation_says() -> None:
    def idle(period_s: float, poll_s: float = 900) -> int:
        return idle_syphon_operations(queue_count=10, poll_s=poll_s, period_s=period_s)

    assert idle(HOUR_S) == 40
    assert idle(DAY_S) == 960
    assert idle(30 * DAY_S) == 28_800
    # The same with receives of a minute, as an older SDK had them.
    assert idle(30 * DAY_S, poll_s=60) == 432_000


def test_a_moved_message_is_four_stages_and_six_with_settlement() -> None:
    assert moved_message_units(1_000) == 4
    assert moved_message_units(1_000, SETTLED) == 6
    assert moved_message_units(96 * KB) == 8
    assert moved_message_units(96 * KB, SETTLED) == 10
    assert message_units(1_000) == 2
    assert message_units(1_000, SETTLED) == 3


def test_pings_of_many_clients_add_up() -> None:
    # 50 entities, 20 clients, one a minute, an hour.
    assert (
        ping_operations(entity_count=50, client_count=20, interval_s=60, outage_s=HOUR_S) == 60_000
    )


@pytest.mark.parametrize("period_s", [HOUR_S, DAY_S, 30 * DAY_S])
def test_searches_for_a_missing_queue_are_those_of_the_pairs_schedule(period_s: int) -> None:
    at, count = 0.0, 0
    while (at := at + search_wait_s(at, answers=True, chance=1.0)) <= period_s:
        count += 1
    assert search_count(period_s) == count
    # By hand: 75 in the first hour, then 15 an hour in the end.
    assert search_count(HOUR_S) == 75
    assert search_count(30 * DAY_S) < 11_000


def test_a_search_is_a_listing_and_a_call_for_each_missing_queue() -> None:
    month_s = 30 * DAY_S
    assert search_operations(missing_count=0, client_count=20, period_s=month_s) == 0
    found = search_operations(missing_count=10, client_count=2, period_s=HOUR_S)
    assert found == 2 * 75 * 11
