"""Closing and faulting one side of a pair, and the five seconds, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.errors import PairClosedError, PairFaultedError
from twinbus.pairing.core.failover import TimerFired
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
