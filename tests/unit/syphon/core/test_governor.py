"""The governor against primaries that throttle or grow slow, in virtual time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.syphon.core.pacing import (
    BUSY,
    FIRST_PER_S,
    FLOOR_PER_S,
    HIGHEST_PER_S,
    OPEN_PER_S,
    Governor,
    Pace,
    Rate,
)

STEP_S = 0.01
ANSWER_S = 0.01


@dataclass
class Throttling:
    """A primary with a token bucket of one second's worth, used by a syphon and by live callers."""

    per_s: float
    live_per_s: float = 0.0
    tokens: float = field(init=False)
    live: int = 0
    live_refused: int = 0
    _live_due: float = 0.0

    def __post_init__(self) -> None:
        self.tokens = self.per_s

    def step(self) -> None:
        """Let one step of time pass; live callers send first."""
        self.tokens = min(self.per_s, self.tokens + self.per_s * STEP_S)
        self._live_due += self.live_per_s * STEP_S
        while self._live_due >= 1:
            self._live_due -= 1
            self.live += 1
            self.live_refused += not self.take()

    def take(self) -> bool:
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


@dataclass
class Drain:
    """A syphon with work without end, and the rate it is allowed."""

    primary: Throttling
    rate: Rate = field(default_factory=Rate)
    now: float = 0.0
    answer_s: float = ANSWER_S
    forwarded: int = 0
    rates: list[float] = field(default_factory=list)
    answers: deque[tuple[float, int, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.pace = Pace(self.rate)
        self.pace.is_working = True

    @property
    def governor(self) -> Governor:
        return self.rate.governor

    def run(self, seconds: float) -> int:
        """Run for a while; return how many messages were accepted."""
        before = self.forwarded
        for _ in range(round(seconds / STEP_S)):
            self.now += STEP_S
            self.primary.step()
            self._answer()
            most = 200 if self.governor.is_open else self.pace.allowed("orders", 200, self.now)
            taken = sum(self.primary.take() for _ in range(most))
            if most:
                self.answers.append((self.now + self.answer_s, taken, most - taken))
            self.rates.append(self.governor.per_s)
        return self.forwarded - before

    def _answer(self) -> None:
        while self.answers and self.answers[0][0] <= self.now:
            _, taken, refused = self.answers.popleft()
            if taken:
                self.forwarded += taken
                self.governor.accepted(taken, self.answer_s, self.now)
            if refused:
                self.governor.busy(self.now)


def test_an_unthrottled_primary_is_open_after_a_moment() -> None:
    drain = Drain(Throttling(1e9))
    drain.run(0.3)
    assert drain.governor.is_open
    assert drain.governor.limit == ""
    assert drain.rates[0] <= FIRST_PER_S


@pytest.mark.parametrize("per_s", [50, 300, 1_000, 5_000])
def test_it_converges_under_a_throttling_primary(per_s: float) -> None:
    drain = Drain(Throttling(per_s))
    drain.run(20.0)
    # It uses most of what the primary takes, and asks for little more.
    assert 0.6 * per_s <= drain.run(60.0) / 60 <= per_s * 1.02
    assert max(drain.rates[-round(60 / STEP_S) :]) < 2 * per_s
    assert drain.governor.limited_by == BUSY


@pytest.mark.parametrize(("per_s", "live_per_s"), [(300, 100), (300, 250), (1_000, 500)])
def test_live_traffic_gets_its_share(per_s: float, live_per_s: float) -> None:
    primary = Throttling(per_s, live_per_s)
    drain = Drain(primary)
    drain.run(10.0)
    primary.live = primary.live_refused = 0
    moved = drain.run(120.0) / 120
    assert primary.live_refused / primary.live < 0.05
    assert moved > 0.4 * (per_s - live_per_s)


def test_it_recovers_after_throttling_ends() -> None:
    primary = Throttling(100)
    drain = Drain(primary)
    drain.run(30.0)
    primary.per_s = primary.tokens = 1e9
    drain.run(30.0)
    assert drain.governor.is_open


def test_a_primary_that_refuses_everything_is_still_tried() -> None:
    primary = Throttling(300)
    drain = Drain(primary)
    drain.run(5.0)
    primary.per_s = primary.tokens = 0.0
    drain.run(60.0)
    assert drain.governor.per_s == FLOOR_PER_S
    primary.per_s = 300
    assert drain.run(30.0) > 1_000


def test_slow_answers_slow_it_down_and_a_few_in_flight_do_not() -> None:
    fast = Drain(Throttling(1e9))
    fast.run(1.0)
    fast.answer_s = 2.0
    fast.run(10.0)
    assert not fast.governor.is_open
    assert "takes" in fast.governor.limit
    few = Drain(Throttling(1e9), Rate(20))
    few.run(1.0)
    few.answer_s = 2.0
    few.run(20.0)
    assert few.governor.per_s == 20


def test_a_primary_that_comes_back_is_ramped_up_anew() -> None:
    drain = Drain(Throttling(1e9))
    drain.run(2.0)
    assert drain.governor.is_open
    drain.governor.restart(drain.now)
    assert drain.governor.limit == "at most 1,000/s: it ramps up"
    drain.run(0.3)
    assert drain.governor.is_open


def test_a_set_rate_is_the_maximum() -> None:
    drain = Drain(Throttling(1e9), Rate(400))
    assert drain.run(10.0) == pytest.approx(4_000, rel=0.05)
    assert drain.governor.limit == "at most 400/s: the rate is set"


events = st.tuples(
    st.sampled_from(["accepted", "busy", "restart"]),
    st.integers(1, 5_000),
    st.floats(0, 30),
    st.floats(0, 5),
)


@given(st.none() | st.floats(0.01, HIGHEST_PER_S), st.lists(events))
def test_it_never_stalls_and_never_exceeds_the_set_rate(
    most: float | None, told: list[tuple[str, int, float, float]]
) -> None:
    governor, now = Governor(most), 0.0
    for kind, count, latency_s, passed_s in told:
        now += passed_s
        if kind == "accepted":
            governor.accepted(count, latency_s, now)
        elif kind == "busy":
            governor.busy(now)
        else:
            governor.restart(now)
        lowest = FLOOR_PER_S if most is None else min(most, FLOOR_PER_S)
        assert lowest <= governor.per_s <= (most or HIGHEST_PER_S)
        assert governor.is_open == (most is None and governor.per_s >= OPEN_PER_S)


def test_an_entity_that_is_throttled_by_itself_does_not_slow_the_others() -> None:
    governor = Governor()
    for tenth in range(20):
        governor.accepted(1_000, 0.01, tenth / 10)
    assert governor.is_open
    governor.busy(2.0, accepted_at=float("-inf"))
    assert governor.is_open
    governor.busy(2.0, accepted_at=1.9)
    assert not governor.is_open


def test_a_refused_live_call_slows_a_drain_and_no_idle_syphon() -> None:
    governor = Governor()
    governor.busy_for_others(0.0)
    assert governor.per_s == FIRST_PER_S
    for tenth in range(20):
        governor.accepted(1_000, 0.01, tenth / 10)
    governor.busy_for_others(9.0)
    assert governor.is_open
    governor.accepted(1_000, 0.01, 9.5)
    governor.busy_for_others(9.6)
    assert governor.limit == "at most 500/s: the primary answers that it is busy"
