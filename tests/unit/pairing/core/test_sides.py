"""Closing and faulting one side of a pair, and the health of the secondary."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.errors import PairClosedError, PairFaultedError
from twinbus.pairing.core.failover import TimerFired
from twinbus.pairing.core.secondary import (
    FIRST_PACE_S,
    LONGEST_PACE_S,
    TURN_GRACE_S,
    DivertFault,
    SecondaryHealth,
    jittered,
)
from twinbus.pairing.core.sides import (
    FOLLOW_S,
    ClosePair,
    CloseSide,
    FaultSide,
    PairSides,
    ReleaseSide,
    Side,
    SideChange,
)
from twinbus.pairing.core.status import CANCELLED, RECENT_S, RecentErrors
from twinbus.status.document import SideState
from twinbus.testing import VirtualClock

PRIMARY, SECONDARY = Side.PRIMARY, Side.SECONDARY
BROKEN = RuntimeError("the key was stolen")
EITHER = pytest.mark.parametrize("side", list(Side))
ENDS = pytest.mark.parametrize("end", [CloseSide, lambda side: FaultSide(side, BROKEN)])


def states(sides: PairSides) -> tuple[str, str]:
    return str(sides.state(PRIMARY)), str(sides.state(SECONDARY))


@EITHER
@ENDS
def test_where_the_syphon_runs_a_side_that_does_not_follow_is_faulted_after_five_seconds(
    side: Side, end: Any
) -> None:
    clock, sides = VirtualClock(100.0), PairSides(syphon=True)
    assert ReleaseSide(side) in sides.handle(end(side), clock.now)
    assert clock.run(sides, until=104.9) == []
    assert sides.state(side.other) is SideState.OPEN
    assert clock.run(sides, until=200.0) == [(105.0, ReleaseSide(side.other))]
    assert sides.state(side.other) is SideState.FAULTED
    assert f"the {side} was" in sides.reason(side.other)
    assert "did not follow within 5 s" in sides.reason(side.other)
    assert isinstance(sides.refusal(), PairFaultedError)


@EITHER
@ENDS
def test_a_side_that_follows_in_time_is_not_faulted_by_the_rule(side: Side, end: Any) -> None:
    clock, sides = VirtualClock(), PairSides(syphon=True)
    sides.handle(end(side), clock.now)
    clock.run(sides, until=4.9)
    sides.handle(CloseSide(side.other), clock.now)
    assert sides.timer_at is None
    assert sides.state(side.other) is SideState.CLOSED
    # An event of the timer that was on the way already.
    assert sides.handle(TimerFired(), 5.0) == ()


@EITHER
@ENDS
def test_without_a_syphon_the_other_side_is_left_alone(side: Side, end: Any) -> None:
    clock, sides = VirtualClock(), PairSides(syphon=False)
    sides.handle(end(side), clock.now)
    assert sides.timer_at is None
    assert clock.run(sides, until=1_000_000.0) == []
    assert sides.state(side.other) is SideState.OPEN


@pytest.mark.parametrize("syphon", [False, True])
def test_a_closed_or_faulted_primary_refuses_at_once_and_a_secondary_does_not(syphon: bool) -> None:
    closed, faulted, other = (PairSides(syphon=syphon) for _ in range(3))
    closed.handle(CloseSide(PRIMARY), 0.0)
    refusal = closed.refusal()
    assert isinstance(refusal, PairClosedError)
    assert "the primary side" in str(refusal)
    faulted.handle(FaultSide(PRIMARY, BROKEN), 0.0)
    refusal = faulted.refusal()
    assert isinstance(refusal, PairFaultedError)
    assert "RuntimeError: the key was stolen" in str(refusal)
    assert refusal.__cause__ is BROKEN
    # A fresh one each time: two tasks that raise the same object would mix up their tracebacks.
    assert faulted.refusal() is not refusal
    other.handle(FaultSide(SECONDARY, BROKEN), 0.0)
    assert other.refusal() is None


def test_closing_the_pair_ends_both_sides_and_no_timer_is_left() -> None:
    sides = PairSides(syphon=True)
    actions = sides.handle(ClosePair(), 0.0)
    assert [a for a in actions if isinstance(a, ReleaseSide)] == [
        ReleaseSide(PRIMARY),
        ReleaseSide(SECONDARY),
    ]
    assert states(sides) == ("closed", "closed")
    assert sides.timer_at is None
    assert sides.handle(ClosePair(), 1.0) == ()
    assert str(sides.refusal()).startswith("the pair was closed")


def test_closing_the_pair_is_following() -> None:
    clock, sides = VirtualClock(), PairSides(syphon=True)
    sides.handle(CloseSide(PRIMARY), clock.now)
    clock.run(sides, until=4.0)
    assert [a for a in sides.handle(ClosePair(), 4.0) if isinstance(a, ReleaseSide)] == [
        ReleaseSide(SECONDARY)
    ]
    assert clock.run(sides, until=100.0) == []
    assert states(sides) == ("closed", "closed")


def test_a_pair_faulted_by_the_rule_stays_so_when_it_is_closed() -> None:
    clock, sides = VirtualClock(), PairSides(syphon=True)
    sides.handle(CloseSide(SECONDARY), clock.now)
    assert sides.refusal() is None
    clock.run(sides, until=5.0)
    sides.handle(ClosePair(), 6.0)
    assert states(sides) == ("faulted", "closed")
    assert isinstance(sides.refusal(), PairFaultedError)


def test_the_first_end_of_a_side_is_the_one_that_stays() -> None:
    sides = PairSides(syphon=False)
    sides.handle(FaultSide(PRIMARY, BROKEN), 0.0)
    assert sides.handle(FaultSide(PRIMARY, ValueError("later")), 1.0) == ()
    assert sides.handle(CloseSide(PRIMARY), 2.0) == ()
    assert sides.state(PRIMARY) is SideState.FAULTED
    assert "stolen" in sides.reason(PRIMARY)
    sides.handle(CloseSide(SECONDARY), 3.0)
    assert sides.handle(FaultSide(SECONDARY, BROKEN), 4.0) == ()
    assert sides.state(SECONDARY) is SideState.CLOSED


def test_a_pair_whose_secondary_was_faulted_by_hand_is_simply_closed_later() -> None:
    sides = PairSides(syphon=False)
    sides.handle(FaultSide(SECONDARY, BROKEN), 0.0)
    sides.handle(ClosePair(), 1.0)
    assert isinstance(sides.refusal(), PairClosedError)


def test_every_end_is_announced_with_its_time_and_reason() -> None:
    clock, sides = VirtualClock(), PairSides(syphon=True)
    _, change = sides.handle(FaultSide(SECONDARY, BROKEN), 7.0)
    assert isinstance(change, SideChange)
    assert (change.side, change.before, change.after, change.at, change.reason) == (
        SECONDARY, SideState.OPEN, SideState.FAULTED, 7.0, "RuntimeError: the key was stolen",
    )  # fmt: skip
    timeline = clock.run(sides, until=50.0, announcements=True)
    assert [(at, type(action)) for at, action in timeline] == [
        (12.0, ReleaseSide),
        (12.0, SideChange),
    ]


EVENTS = st.sampled_from(
    [
        CloseSide(PRIMARY), CloseSide(SECONDARY), FaultSide(PRIMARY, BROKEN),
        FaultSide(SECONDARY, BROKEN), ClosePair(), TimerFired(),
    ]
)  # fmt: skip


@given(st.booleans(), st.lists(st.tuples(EVENTS, st.floats(0, 20)), max_size=12))
def test_whatever_happens_each_side_ends_once_and_where_a_syphon_runs_not_alone(
    syphon: bool, script: list[tuple[Any, float]]
) -> None:
    clock, sides = VirtualClock(), PairSides(syphon=syphon)
    let_go: list[Side] = []
    for event, wait_s in script:
        let_go += [a.side for a in sides.handle(event, clock.now) if isinstance(a, ReleaseSide)]
        timeline = clock.run(sides, until=clock.now + wait_s)
        let_go += [a.side for _, a in timeline if isinstance(a, ReleaseSide)]
        assert len(let_go) == len(set(let_go))
        ended = {side for side in Side if sides.state(side) is not SideState.OPEN}
        assert ended == set(let_go)
        assert (sides.timer_at is not None) == (syphon and len(ended) == 1)
        assert (sides.refusal() is not None) == (PRIMARY in ended)
    timeline = clock.run(sides, until=clock.now + FOLLOW_S)
    let_go += [a.side for _, a in timeline if isinstance(a, ReleaseSide)]
    assert not syphon or len(let_go) in {0, 2}


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
