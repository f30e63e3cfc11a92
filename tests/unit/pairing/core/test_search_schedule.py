"""When a pair searches again: the documented waits, their bound, and what counts as a change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.pairing.core.search_schedule import (
    JITTER,
    LONGEST_S,
    UNREACHABLE_S,
    USUAL_S,
    is_same_reason,
    wait_after_loss_s,
    wait_s,
)

HOUR_S, DAY_S = 3_600.0, 86_400.0


@pytest.mark.parametrize(
    ("since_change_s", "answers", "expected"),
    [
        (0.0, True, 60.0),
        (HOUR_S - 1, True, 60.0),
        (2 * HOUR_S, True, 120.0),
        (4 * HOUR_S, True, 240.0),
        (5 * HOUR_S, True, 300.0),
        (300 * DAY_S, True, 300.0),
        (0.0, False, 5.0),
        (599.0, False, 5.0),
        (600.0, False, 60.0),
        (2 * HOUR_S, False, 120.0),
        (300 * DAY_S, False, 300.0),
    ],
)
def test_a_minute_in_the_first_hour_then_longer_up_to_five(
    since_change_s: float, answers: bool, expected: float
) -> None:
    assert wait_s(since_change_s, answers=answers, chance=0.0) == expected


@given(st.floats(0, 1e9), st.booleans(), st.floats(0, 1))
def test_chance_only_shortens_a_wait_and_by_a_fifth_at_most(
    since_change_s: float, answers: bool, chance: float
) -> None:
    longest = wait_s(since_change_s, answers=answers, chance=0.0)
    assert UNREACHABLE_S <= longest <= LONGEST_S
    assert longest * (1 - JITTER) <= wait_s(since_change_s, answers=answers, chance=chance)
    assert wait_s(since_change_s, answers=answers, chance=chance) <= longest


def searches(period_s: float, chance: float) -> int:
    at, count = 0.0, 0
    while (at := at + wait_s(at, answers=True, chance=chance)) <= period_s:
        count += 1
    return count


def test_the_number_of_searches_is_bounded() -> None:
    assert searches(HOUR_S, 0.0) == HOUR_S / USUAL_S
    assert searches(DAY_S, 0.0) == 385
    assert searches(30 * DAY_S, 1.0) < 11_000


def test_a_lost_queue_is_searched_at_once_but_not_again_and_again() -> None:
    assert wait_after_loss_s(HOUR_S, chance=0.0) == 0.0
    assert wait_after_loss_s(HOUR_S, chance=1.0) == 1.0
    assert wait_after_loss_s(1.0, chance=0.0) == 4.0


def test_marks_of_the_service_do_not_make_another_reason() -> None:
    text = "SubCode=40301: no. TrackingId:{}, SystemTracker:x.y, Timestamp:2026-11-16T0{}:00:00"
    assert is_same_reason(text.format("a1", 1), text.format("b2", 2))
    assert not is_same_reason(text.format("a", 1), "SubCode=40100: no. TrackingId:a")
    assert not is_same_reason(None, "")
