"""The secondary's health and verification, and what a pair counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.pairing.core.secondary import (
    FIRST_PACE_S,
    LONGEST_PACE_S,
    TURN_GRACE_S,
    DivertFault,
    SecondaryHealth,
    jittered,
)
from twinbus.pairing.core.status import CANCELLED, RECENT_S, RecentErrors

A, B, C = "queue a", "queue b", "queue c"


def fails(health: SecondaryHealth, queue: str, began: float, now: float) -> DivertFault:
    return health.no_answer(queue, "refused", began=began, now=now, timed_out=False)


def is_silent(health: SecondaryHealth, queue: str, began: float, now: float) -> DivertFault:
    return health.no_answer(queue, "no answer", began=began, now=now, timed_out=True)


def test_a_connection_that_fails_is_the_namespaces_whatever_the_queue() -> None:
    health = SecondaryHealth()
    assert not health.is_lost
    for queue in (A, B, C):
        assert fails(health, queue, 0.0, 0.1) is DivertFault.NAMESPACE
    assert (health.is_lost, health.reason) == (True, "refused")
    health.stored(A, 1.0)
    assert not health.is_lost


def test_a_connection_that_fails_while_others_are_answered_is_nobodys() -> None:
    health = SecondaryHealth()
    health.stored(B, 5.0)
    assert fails(health, A, 4.0, 6.0) is DivertFault.ATTEMPT
    assert not health.is_lost
    assert fails(health, A, 5.0, 6.0) is DivertFault.NAMESPACE


def test_silence_is_judged_by_what_else_was_heard_since_the_attempt_began() -> None:
    health = SecondaryHealth()
    health.stored(A, 2.0)
    assert is_silent(health, A, 1.0, 6.0) is DivertFault.ATTEMPT
    assert is_silent(health, B, 1.0, 6.0) is DivertFault.SILENT_QUEUE
    assert not health.is_lost
    assert is_silent(health, C, 2.0, 7.0) is DivertFault.NAMESPACE
    assert health.is_lost


def test_a_refusal_is_an_answer() -> None:
    health = SecondaryHealth()
    fails(health, A, 0.0, 1.0)
    health.answered(B, 2.0)
    assert not health.is_lost
    assert is_silent(health, A, 1.0, 6.0) is DivertFault.SILENT_QUEUE


@pytest.mark.parametrize(
    ("answers", "fault"),
    [
        ((), DivertFault.NAMESPACE),
        ((B,), DivertFault.SILENT_QUEUE),
        ((B, A), DivertFault.NAMESPACE),
    ],
    ids=["no queue answered", "another answered", "it answered too"],
)
def test_silence_in_an_outage_accuses_a_queue_only_when_it_is_silent_again(
    answers: tuple[str, ...], fault: DivertFault
) -> None:
    health = SecondaryHealth()
    assert is_silent(health, A, 0.0, 5.0) is DivertFault.NAMESPACE
    for queue in answers:
        health.stored(queue, 6.0)
    assert is_silent(health, A, 7.0, 12.0) is fault


def test_one_turn_at_a_time_at_a_pace_that_slows_down() -> None:
    health = SecondaryHealth()
    fails(health, A, 0.0, 0.0)
    assert health.is_turn(0.0)
    now, pauses = 0.0, []
    for _ in range(12):
        health.begin_turn(now, 5.0)
        assert not health.is_turn(now + 5.0)
        health.end_turn(now, 0.0)
        pauses.append(round(health.turn_at - now, 6))
        now = health.turn_at
        assert health.is_turn(now)
    assert pauses[:3] == pytest.approx([FIRST_PACE_S] * 3)
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PACE_S


def test_a_turn_without_an_end_ends_by_itself() -> None:
    health = SecondaryHealth()
    health.begin_turn(10.0, 5.0)
    assert not health.is_turn(15.0 + TURN_GRACE_S - 0.1)
    assert health.is_turn(15.0 + TURN_GRACE_S)


def test_a_success_ends_the_turns_and_the_slow_pace() -> None:
    health = SecondaryHealth()
    fails(health, A, 0.0, 0.0)
    health.begin_turn(100.0, 5.0)
    health.stored(B, 100.1)
    health.end_turn(100.1, 0.0)
    assert health.is_turn(100.1)
    fails(health, A, 200.0, 200.0)
    health.begin_turn(200.0, 5.0)
    health.end_turn(200.0, 0.0)
    assert health.turn_at == pytest.approx(200.0 + FIRST_PACE_S)


def test_a_refusal_does_not_end_the_waiting() -> None:
    """All queues are pulled: each turn is answered, and the pace slows down all the same."""
    health = SecondaryHealth()
    health.begin_turn(0.0, 5.0)
    health.answered(A, 8.0)
    health.end_turn(8.0, 0.0)
    assert health.turn_at == 12.0


def test_jitter_takes_a_fifth_off_at_most() -> None:
    assert [jittered(10.0, jitter) for jitter in (0.0, 0.5, 1.0)] == [10.0, 9.0, 8.0]
    health = SecondaryHealth()
    health.begin_turn(0.0, 5.0)
    health.end_turn(100.0, 1.0)
    assert health.turn_at == 104.0


@given(st.lists(st.integers(0, 300), max_size=200), st.integers(0, 400))
def test_the_count_is_that_of_the_last_sixty_seconds(raised: list[int], later: int) -> None:
    recent, times = RecentErrors(), sorted(raised)
    for at in times:
        recent.raised("not found", at + 0.5)
    now = (times[-1] if times else 0) + later
    assert recent.count(now + 0.9) == sum(now - RECENT_S < at for at in times)


def test_a_cancelled_call_counts_only_when_the_entity_stores_nothing() -> None:
    recent = RecentErrors()
    for second in range(20):  # Its callers give up now and then; the others are served.
        recent.own_fault(CANCELLED, stored=second, now=second)
    assert recent.count(20) == 0
    for second in range(20, 30):  # Every caller gives up, and nothing is stored.
        recent.own_fault(CANCELLED, stored=19, now=second)
    assert recent.count(30) == 6
    assert recent.reason == CANCELLED
    recent.own_fault(CANCELLED, stored=19, now=200)  # A lone one, minutes later.
    assert recent.count(200) == 0
