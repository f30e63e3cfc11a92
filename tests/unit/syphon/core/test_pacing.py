"""A rate shared by pumps, in virtual time: never exceeded, used up, and fair.

And the governor of that rate, against primaries that throttle or grow slow.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.syphon.core.pump_world import World
from twinbus.syphon.core.actions import WaitUntil
from twinbus.syphon.core.pacing import (
    BUSY,
    DRAIN_WINDOW_S,
    FIRST_PER_S,
    FLOOR_PER_S,
    HIGHEST_PER_S,
    IN_MEMORY_S,
    LONGEST_MISSING_S,
    LONGEST_RECONNECT_S,
    OPEN_PER_S,
    SLICE_S,
    STANDARD_PER_S,
    DrainMeter,
    Governor,
    Pace,
    Rate,
    ReconnectBackoff,
    time_to_empty_s,
)

STEP_S = 0.01

Send = tuple[float, str, str]


def sent_by(paces: dict[str, Pace], demand: dict[str, list[str]], seconds: float) -> list[Send]:
    """Have paces send to their destinations for a while; each send with its time."""
    sends: list[Send] = []
    for step in range(int(seconds / STEP_S)):
        now = step * STEP_S
        for name, pace in paces.items():
            for destination in demand[name]:
                count = pace.allowed(destination, 1_000, now)
                sends += [(now, name, destination)] * count
    return sends


def test_a_rate_is_used_up_and_never_exceeded() -> None:
    sends = sent_by({"a": Pace(Rate(500))}, {"a": ["orders"]}, 10.0)
    assert len(sends) == pytest.approx(5_000, rel=0.03)
    times = [now for now, _, _ in sends]
    for start in range(9):
        inside = sum(start <= now < start + 1 for now in times)
        assert inside <= 500 * (1 + 2 * SLICE_S)


def test_pumps_and_destinations_take_turns_whoever_asks_oftener() -> None:
    rate = Rate(300)
    paces = {"a": Pace(rate), "b": Pace(rate), "idle": Pace(rate)}
    demand: dict[str, list[str]] = {
        "a": ["orders", "orders", "orders", "events"],
        "b": ["orders"],
        "idle": [],
    }
    sends = sent_by(paces, demand, 20.0)
    by_pump = Counter(name for _, name, _ in sends)
    by_destination = Counter(d for _, name, d in sends if name == "a")
    assert sum(by_pump.values()) == pytest.approx(6_000, rel=0.03)
    assert by_pump["a"] == pytest.approx(by_pump["b"], rel=0.05)
    assert by_destination["orders"] == pytest.approx(by_destination["events"], rel=0.05)


def test_a_quiet_time_is_not_saved_up() -> None:
    pace = Pace(Rate(100))
    assert pace.allowed("orders", 1_000, 0.0) == 10
    at_once = 0
    while count := pace.allowed("orders", 1_000, 60.0):
        at_once += count
    assert at_once <= 100 * 3 * SLICE_S


def test_less_than_one_a_second_goes_one_by_one() -> None:
    sends = sent_by({"a": Pace(Rate(0.5))}, {"a": ["orders"]}, 20.0)
    # The first at once, then one every two seconds.
    assert len(sends) == 11


@pytest.mark.parametrize("per_s", [0, -1, 2_000_000, float("nan")])
def test_a_rate_that_makes_no_sense_is_refused(per_s: float) -> None:
    with pytest.raises(ValueError, match="messages a second; got"):
        Rate(per_s)


def test_the_standard_rate_leaves_the_application_half_of_a_namespace() -> None:
    # A send by the syphon and a receive by the consumer, of 1,000 credits a second.
    assert STANDARD_PER_S * 2 == 1_000 / 2


def test_shares_of_those_who_work_and_of_those_who_wait() -> None:
    rate = Rate(100)
    first, second = Pace(rate), Pace(rate)
    assert first.share == 100 * IN_MEMORY_S / 2
    first.is_working = True
    assert (first.share, second.share) == (100 * IN_MEMORY_S, 100 * IN_MEMORY_S / 2)
    second.leave()
    assert first.share == 100 * IN_MEMORY_S
    assert Pace(Rate(0.1)).share == 2


def run_at(world: World, seconds: float) -> None:
    """Let a world run with answers at once, ticking when the pump asks for it."""
    ends = world.now + seconds
    while world.now < ends:
        world.deliver(1_000)
        for path in list(world.attaching):
            world.attach(path)
        for path in list(world.attached):
            world.grant(path)
        world.accept(len(world.sent))
        world.renew()
        world.confirm(len(world.settling))
        world.tick(STEP_S)


def paced(per_s: float, *, strict: bool = False) -> World:
    world = World(strict=strict, pace=Pace(Rate(per_s)))
    world.primary_up()
    world.secondary_up()
    world.tick(0.0)
    world.answer_look()
    return world


@pytest.mark.parametrize("per_s", [1, 20, 200])
def test_a_pump_keeps_to_its_rate_and_takes_in_no_more_than_it_can_send(per_s: float) -> None:
    world = paced(per_s)
    world.store("orders", int(per_s) + 10)
    world.store("events", int(per_s) + 10)
    most = 0
    for _ in range(20):
        run_at(world, 0.1)
        most = max(most, world.pump.in_flight + world.pump.credit)
    assert world.pump.forwarded == pytest.approx(2 * per_s, rel=0.1, abs=2)
    assert most <= max(4, per_s * IN_MEMORY_S)


def test_a_slow_pump_serves_every_destination() -> None:
    world = paced(40)
    # Mixed, so that all of them are in hand at a time.
    for _ in range(100):
        for path in ("a", "b", "c", "d"):
            world.store(path)
    run_at(world, 5.0)
    took = Counter(world.queue[number].path for number in world.in_primary)
    assert sum(took.values()) == pytest.approx(200, rel=0.1)
    assert max(took.values()) - min(took.values()) <= 8


def test_a_timer_that_fires_early_is_set_again() -> None:
    world = paced(20)
    world.store("orders", 10)
    world.deliver(10)
    world.attach("orders")
    world.grant("orders")
    assert len(world.sent) < 10
    until = world.waits_until
    early = world.pump.rate_due(until - 0.001)
    assert early == [WaitUntil(until)]
    world.now = until
    before = len(world.sent)
    world.perform(world.pump.rate_due(until))
    assert len(world.sent) > before


def test_strict_order_keeps_to_the_rate_too() -> None:
    world = paced(50, strict=True)
    for session in ("s1", "s2", "s3"):
        world.store("orders", 60, session)
    for _ in range(20):
        while world.surveys:
            world.answer_survey()
        while world.fetches:
            world.answer_fetch()
        run_at(world, 0.1)
    assert 20 <= world.pump.forwarded <= 50 * 2 * 1.1
    world.settle_everything()
    assert len(world.in_primary) == 180


def test_a_changed_rate_counts_at_once_and_slices_of_the_old_one_do_not() -> None:
    rate = Rate(0.1)
    first, second = Pace(rate), Pace(rate)
    assert first.allowed("orders", 10, 0.0) == 1
    assert second.allowed("orders", 10, 0.0) == 0, "its slice begins in ten seconds"
    rate.limit_to(1_000)
    sent = sum(second.allowed("orders", 1_000, 1.0 + step * STEP_S) for step in range(100))
    assert sent > 0
    for step in range(300):
        rate.governor.accepted(10, 0.01, 2.0 + step * STEP_S)
    assert rate.governor.per_s == 1_000
    rate.limit_to(5)
    assert rate.governor.per_s == 5
    with pytest.raises(ValueError, match="a rate is"):
        rate.limit_to(-1)
    rate.limit_to(None)
    for step in range(2_000):
        rate.governor.accepted(5_000, 0.01, 10.0 + step * STEP_S)
    assert rate.governor.is_open


def test_a_steady_speed_is_seen_within_seconds() -> None:
    meter = DrainMeter()
    for tenth in range(100):
        meter.moved(50, tenth / 10)
    assert meter.per_s(10.0) == pytest.approx(500, rel=0.02)


def test_the_speed_is_that_of_the_last_window() -> None:
    meter = DrainMeter()
    for second in range(60):
        meter.moved(1_000, float(second))
    for second in range(60, 60 + DRAIN_WINDOW_S):
        meter.moved(10, float(second))
    assert meter.per_s(60.0 + DRAIN_WINDOW_S - 0.01) == pytest.approx(10, rel=0.05)


def test_a_standstill_is_seen_when_the_window_is_over() -> None:
    meter = DrainMeter()
    meter.moved(1_000, 0.0)
    assert meter.per_s(10.0) == pytest.approx(100)
    assert meter.per_s(DRAIN_WINDOW_S + 1.0) == 0


def test_the_first_batch_is_no_speed_and_nothing_is_none() -> None:
    meter = DrainMeter()
    assert meter.per_s(5.0) == 0
    meter.moved(0, 5.0)
    meter.moved(300, 5.001)
    assert meter.per_s(5.002) == 300


def test_memory_is_the_window_only() -> None:
    meter = DrainMeter()
    for second in range(10_000):
        meter.moved(1, float(second))
    assert len(meter.seconds) == DRAIN_WINDOW_S


def test_time_to_empty() -> None:
    assert time_to_empty_s(3_600, 2.0) == 1_800
    assert time_to_empty_s(0, 0.0) == 0
    assert time_to_empty_s(5, 0.0) is None


def test_pauses_double_up_to_the_longest_and_begin_anew_after_a_connection_that_held() -> None:
    patience = ReconnectBackoff(lambda: 0.0)
    assert [patience.after(0.1) for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert patience.after(LONGEST_RECONNECT_S + 0.1) == 0.5
    assert patience.after(0.0) == 1.0


def test_chance_shortens_a_pause_by_half_at_most() -> None:
    assert ReconnectBackoff(lambda: 1.0).after(0.0) == 0.25
    assert ReconnectBackoff(lambda: 0.5).after(0.0) == 0.375


def test_a_queue_that_does_not_exist_is_tried_once_a_minute() -> None:
    patience = ReconnectBackoff(lambda: 0.0)
    pauses = [patience.after(0.1, is_missing=True) for _ in range(9)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_MISSING_S, LONGEST_MISSING_S]
    assert patience.after(0.1) == LONGEST_RECONNECT_S, "an outage after it is tried often"


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
