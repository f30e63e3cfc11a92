"""What is made of outcomes, by hand; patterns of outages; and the model of one outage."""

from __future__ import annotations

import heapq
import itertools
import json
import math
import random
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from tests.unit.planning.outcomes_made_up import asked, outcome, sure
from twinbus.cost import prices
from twinbus.cost.arithmetic import YEAR_S, CountingRule, QuantityError, idle_syphon_operations
from twinbus.pairing.core.attempts import RetryPolicy, backoff_s
from twinbus.pairing.core.failover import (
    EntityFailover,
    PingAnswered,
    PingFailed,
    SendFailed,
    SendPing,
    SendSucceeded,
    TimerFired,
)
from twinbus.planning.plan import PlanLimits, advise, operations_of, plan_of, year_money
from twinbus.planning.question import (
    Lengths,
    OutagePattern,
    SampledMean,
    Setting,
    Traffic,
    grid,
    parse_pattern,
)
from twinbus.planning.simulation import BacklogLevel, effect_of, fullest_share, next_level
from twinbus.status.document import EntityState

HOUR_S, DAY_S = 3_600, 86_400


def test_idle_polls_are_the_documented_40_960_and_28_800() -> None:
    counted = [
        idle_syphon_operations(queue_count=10, poll_s=900, period_s=period)
        for period in (HOUR_S, DAY_S, 30 * DAY_S)
    ]
    assert counted == [40, 960, 28_800]
    assert asked().polls_a_year(10) == 960 * 365
    assert asked(syphons=3).polls_a_year(10) == 3 * 960 * 365


def test_a_moved_message_is_four_operations_and_any_other_two() -> None:
    made = outcome(raised=sure(1_000), refused=sure(500))
    year = 500 * YEAR_S
    assert operations_of(made, asked()) == {
        "messages": 2 * (year - 2_000_000 - 1_500),
        "moved": 4 * 2_000_000,
        "pings": 64_000,
        "polls": 350_400,
    }
    settled = operations_of(made, asked(), CountingRule(count_settlement=True))
    assert (settled["messages"] / 3, settled["moved"]) == (year - 2_001_500, 6 * 2_000_000)
    large = asked(traffic=Traffic(rate_per_s=500, size_bytes=100 * 1024))
    assert operations_of(made, large)["moved"] == 4 * 2 * 2_000_000


def test_money_of_a_year_by_hand() -> None:
    # 10 a second: 315.36M messages a year, 52.56M operations an average month.
    small = asked(traffic=Traffic(rate_per_s=10, size_bytes=1_000, entities=2, clients=3))
    spent = year_money(outcome(diverted=sure(48_000), pings=sure(6_000)), small, prices.standard())
    # 39.56M past the free 13M at 0.80 and 730 hours of the base charge, in twelve months.
    alone = 12 * (Decimal("39.56") * Decimal("0.80") + 730 * Decimal("0.013441"))
    # Moved messages cost two more, and there are pings and polls.
    more = Decimal(2 * 48_000 + 6_000 + 350_400) / 1_000_000 * Decimal("0.80")
    assert spent.alone.total * 12 == alone
    assert spent.paired_year == alone + more
    assert spent.added_year == more
    # Two regions of one unit, and 315.36 GB copied at 0.09.
    premium = 2 * 12 * 730 * Decimal("0.9275") + Decimal("315.36") * Decimal("0.09")
    assert spent.geo_replication_year == premium
    assert spent.as_json()["not_priced"] == ["egress"]


def test_what_the_book_has_no_price_for_is_said(tmp_path: Path) -> None:
    book = Path(prices.__file__).parent / "prices"
    document: dict[str, Any] = json.loads(next(book.glob("standard-*.json")).read_text())
    document["meters"]["geo_replication"]["tiers"] = []
    path = tmp_path / "ours.json"
    path.write_text(json.dumps(document))
    spent = year_money(outcome(), asked(), prices.load(path))
    assert spent.geo_replication.not_priced == ("geo-replication",)


def test_the_longest_failover_interval_that_raises_few_enough_is_advised() -> None:
    found = [
        outcome(10, raised=sure(50)),
        outcome(30, raised=sure(15_000)),
        outcome(60, raised=sure(50_000)),
    ]
    # 15,768 are one of a million.
    advice = advise(found, asked(), PlanLimits())
    assert advice.outcome is found[1]
    assert "Fail over after 30 s, the longest compared" in advice.reason
    assert advice.misses == ()
    assert advise(found, asked(), PlanLimits(raised_per_million=5)).outcome is found[2]


def test_the_fewest_queues_that_are_seldom_full_and_the_cheapest_pings_are_advised() -> None:
    found = [
        outcome(queues=1, full=sure(0.3)),
        outcome(queues=5, full=sure(0.009)),
        outcome(queues=10),
        outcome(queues=5, ping_s=1, full=sure(0.009), pings=sure(4_000_000)),
        outcome(queues=5, ping_s=1800, full=sure(0.009), diverted=sure(3_000_000)),
    ]
    advice = advise(found, asked(), PlanLimits())
    assert advice.outcome is found[1]
    assert "5 backlog queues, the fewest" in advice.reason
    assert "ping every 60 s" in advice.reason


def test_where_nothing_is_good_enough_the_best_is_advised_and_it_is_said() -> None:
    found = [
        outcome(queues=5, full=sure(0.5), raised=sure(90_000)),
        outcome(queues=10, full=sure(0.2), raised=sure(80_000)),
        outcome(60, queues=10, full=sure(0.2), raised=sure(90_000)),
    ]
    advice = advise(found, asked(), PlanLimits())
    assert advice.outcome is found[1]
    assert "the best has 0.2: compare more or larger backlog queues" in advice.misses[0]
    assert "compare shorter failover intervals" in advice.misses[1]
    assert "which raises the fewest" in advice.reason


def test_a_setting_that_refuses_more_is_not_taken_for_a_cheap_one() -> None:
    unsure = SampledMean(0.2, 0.01)
    found = [
        outcome(ping_s=60, full=unsure, diverted=sure(2_000_000)),
        outcome(ping_s=1800, full=unsure, diverted=sure(1_000_000), refused=sure(5_000_000)),
    ]
    assert advise(found, asked(), PlanLimits()).outcome is found[0]


def test_a_pair_never_costs_less_because_its_backlog_was_full() -> None:
    spent = year_money(outcome(refused=sure(1e9)), asked(), prices.standard())
    assert spent.added_year > 0


def test_a_plan_is_json_with_every_setting() -> None:
    found = [outcome(10), outcome(60, raised=SampledMean(50_000, 300))]
    plan = plan_of(asked(), found, prices.standard())
    document = json.loads(json.dumps(plan.as_json()))
    assert document["recommended"] == document["settings"][0]
    assert document["settings"][1]["raised_before_failover"] == {"mean": 50_000, "error": 300}
    assert document["question"]["outages"] == ["2/year lognormal 2400s (sigma 1)"]
    assert plan.warnings == ()


def test_where_the_model_is_not_exact_the_plan_warns() -> None:
    seldom = asked(traffic=Traffic(rate_per_s=1, size_bytes=1, entities=40, clients=20))
    (warning,) = plan_of(seldom, [outcome()], prices.standard()).warnings
    assert "only every 800 s" in warning


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"years": 0}, "years must be from 1 to 1,000,000; got 0"),
        ({"queue_bytes": 10}, "1 to 80 GB"),
        ({"drain_per_s": 0.0}, "never drained"),
        ({"patterns": ()}, "outages must be named"),
        ({"syphons": 0}, "syphons must be from 1"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(QuantityError, match=says):
        asked(**change)


def test_settings_keep_to_the_ranges_of_the_options() -> None:
    assert len(grid([0, 60, 60], [1], [1, 100])) == 4
    for wrong in (
        ([3_601], [60], [10]),
        ([60], [0.5], [10]),
        ([60], [60], [101]),
        ([-1], [9], [9]),
    ):
        with pytest.raises(QuantityError, match="must be from"):
            grid(*wrong)
    with pytest.raises(QuantityError, match="settings to compare"):
        grid(range(100), range(1, 7), [10])


def test_a_pattern_is_read_as_people_write_it() -> None:
    assert parse_pattern("2/year lognormal 40min") == OutagePattern(
        per_year=2.0, lengths=Lengths.LOGNORMAL, median_s=2_400.0
    )
    assert parse_pattern("exactly 12/year FIXED 1 h 30 min") == OutagePattern(
        per_year=12.0, lengths=Lengths.FIXED, median_s=5_400.0, is_exact=True
    )
    monthly = parse_pattern("1/month exponential 90s", sigma=0.5)
    assert (monthly.per_year, monthly.median_s, monthly.sigma) == (12.0, 90.0, 0.5)
    happened = parse_pattern(" West-Europe-2025-11 ")
    # 17:00 to 02:25 are nine hours and 25 minutes.
    assert happened == parse_pattern("exactly 1/year fixed 9h25min")
    assert str(parse_pattern("2/year lognormal 40min")) == "2/year lognormal 2400s (sigma 1)"


@pytest.mark.parametrize(
    ("text", "sigma", "says"),
    [
        ("2/year weibull 40min", 1.0, "lengths are lognormal, exponential, fixed; got 'weibull'"),
        ("2/year", 1.0, "outages must be like '2/year lognormal 40min'"),
        ("", 1.0, "outages must be like"),
        ("west-europe-2024-11", 1.0, "or one of west-europe-2025-11; got 'west-europe-2024-11'"),
        ("-2/year fixed 40min", 1.0, "outages must not be negative"),
        ("500/year fixed 1min", 1.0, "0 to 400 a year; got 500"),
        ("2/year fixed 0s", 1.0, "longer than 0"),
        ("2/year fixed 31d", 1.0, "at most 30 days"),
        ("2/year fixed soon", 1.0, "the length of outages must be a number and"),
        ("exactly 2.5/year fixed 1min", 1.0, "exactly 2.5 a year is no whole number"),
        ("2/year lognormal 40min", 0.0, "sigma must be more than 0 and at most 3; got 0"),
        ("2/year lognormal 40min", -1.0, "sigma must be more than 0"),
        ("2/year lognormal 40min", math.nan, "sigma must be more than 0"),
    ],
)
def test_a_pattern_that_makes_no_sense_is_one_line(text: str, sigma: float, says: str) -> None:
    with pytest.raises(QuantityError) as refused:
        parse_pattern(text, sigma)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


MINUTE_S = 60.0
BUSY = Traffic(rate_per_s=500, size_bytes=2_048, entities=40, clients=20)
"""One client sends to one entity every 1.6 s."""


def test_a_short_outage_raises_to_those_who_do_not_wait_and_diverts_nothing() -> None:
    effect = effect_of(30.0, 60.0, 60.0, BUSY)
    assert effect.failed_over == effect.pings == effect.diverted_s == effect.overhang_s == 0
    # Begun in the first 18.8 of 30 seconds: the others' retries last until it is back.
    assert effect.raised_s == pytest.approx(30.0 - 11.2)


def test_an_outage_of_40_minutes_by_hand() -> None:
    effect = effect_of(40 * MINUTE_S, 60.0, 60.0, BUSY)
    # Failed over after 60 to 61.6 s; pings 120.., 180.., ...: the 39th begins at 2400 to 2401.6.
    assert effect.failed_over == 1
    assert effect.pings == pytest.approx(39)
    assert effect.raised_s == pytest.approx(60.8 - 11.2)
    assert effect.diverted_s == pytest.approx(39 * 60 + 11.2)
    assert effect.overhang_s == pytest.approx(0.8)


def test_a_patient_caller_sees_no_error_and_everything_since_the_begin_is_diverted() -> None:
    patient = Traffic(rate_per_s=500, size_bytes=1, entities=40, clients=20, patience_s=120)
    effect = effect_of(40 * MINUTE_S, 60.0, 60.0, patient)
    assert effect.raised_s == pytest.approx(0.0, abs=1e-9)
    assert effect.diverted_s == pytest.approx(39 * 60 + 60.8)


def test_failover_at_once_still_waits_for_the_first_send() -> None:
    seldom = Traffic(rate_per_s=0.01, size_bytes=1, patience_s=0.0)
    effect = effect_of(50.0, 0.0, 1.0, seldom)
    # One send in 100 s: in every second outage it comes, and finds a failover that is 0 s away.
    assert effect.failed_over == pytest.approx(0.5)
    assert effect.raised_s == pytest.approx(mean(min(50, (n + 0.5) / 10) for n in range(1000)))


LINKS = 60
CASES = [
    # length, failover interval, ping interval, gap, attempt
    (200.0, 10.0, 30.0, 0.37, 0.0),
    (200.0, 60.0, 7.0, 0.37, 0.0),
    (45.0, 60.0, 60.0, 0.37, 0.0),
    (61.0, 60.0, 60.0, 0.17, 0.0),
    (300.0, 5.0, 60.0, 37.0, 0.0),
    (300.0, 0.0, 1.0, 9.7, 0.0),
    (300.0, 20.0, 45.0, 157.0, 0.0),
    (400.0, 60.0, 20.0, 0.73, 5.0),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_closed_form_is_what_the_state_machine_does(case: tuple[float, ...]) -> None:
    length_s, failover_s, ping_s, gap_s, attempt_s = case
    traffic = Traffic(
        rate_per_s=LINKS / gap_s,
        size_bytes=1,
        entities=LINKS,
        patience_s=11.2 + 4 * attempt_s,
        failed_attempt_s=attempt_s,
    )
    lived = live(length_s, Setting(failover_s, ping_s, 1), traffic, LINKS)
    effect = effect_of(length_s, failover_s, ping_s, traffic)
    assert lived.failed_over == pytest.approx(effect.failed_over * LINKS, abs=1)
    assert lived.pings == pytest.approx(effect.pings * LINKS, rel=0.01, abs=2)
    # Sends are whole, and the model's are a stream: one send of each link lies between.
    rate = traffic.rate_per_s
    assert lived.raised == pytest.approx(effect.raised_s * rate, abs=LINKS)
    assert lived.diverted == pytest.approx(effect.diverted_s * rate, abs=LINKS)
    assert lived.after == pytest.approx(effect.overhang_s * rate, abs=LINKS)


def test_the_model_leaves_out_failovers_of_entities_that_are_seldom_sent_to() -> None:
    traffic = Traffic(rate_per_s=100, size_bytes=1)
    after = next_level(
        BacklogLevel(), 30_000.0, 0.0, 1e6, traffic=traffic, drain_per_s=250, capacity=1e9
    )
    assert after == BacklogLevel(peak=30_000.0, longest_drain_s=120.0)


def test_a_backlog_that_is_not_drained_in_time_is_added_to_and_may_be_full() -> None:
    traffic = Traffic(rate_per_s=100, size_bytes=1)
    bounds = {"traffic": traffic, "drain_per_s": 10.0, "capacity": 50_000.0}
    first = next_level(BacklogLevel(), 30_000.0, 0.0, 1_000.0, **bounds)  # type: ignore[arg-type]
    assert (first.waiting, first.refused) == (20_000.0, 0.0)
    second = next_level(first, 40_000.0, 0.0, 0.0, **bounds)  # type: ignore[arg-type]
    assert second == BacklogLevel(
        waiting=50_000.0, refused=10_000.0, peak=50_000.0, longest_drain_s=5_000.0
    )


def test_what_is_diverted_after_the_primary_is_back_meets_a_syphon_at_work() -> None:
    traffic = Traffic(rate_per_s=100, size_bytes=1)
    # 1,000 before it is back, then 100 a second come and 40 go for 50 s.
    after = next_level(
        BacklogLevel(), 6_000.0, 50.0, 1e6, traffic=traffic, drain_per_s=40, capacity=1e9
    )
    assert after.peak == 1_000 + 50 * 60
    assert after.longest_drain_s == 6_000 / 40


@pytest.mark.parametrize(("queues", "senders"), [(10, 800), (4, 12), (20, 100), (1, 5), (10, 1)])
def test_the_fullest_queue_has_the_share_that_drawing_gives_it(queues: int, senders: int) -> None:
    chance = random.Random(7)
    drawn = mean(
        max(Counter(chance.randrange(queues) for _ in range(senders)).values()) / senders
        for _ in range(400)
    )
    assert fullest_share(queues, senders) == pytest.approx(drawn, rel=0.1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rate_per_s": 0}, "rate must be more than 0"),
        ({"rate_per_s": -5}, "rate must be more than 0"),
        ({"entities": 0}, "entities must be 1 or more; got 0"),
        ({"clients": 0}, "clients must be 1 or more; got 0"),
        ({"patience_s": -1.0}, "patience must be 0 seconds or more"),
    ],
)
def test_traffic_that_cannot_be_is_refused(change: dict[str, float], says: str) -> None:
    with pytest.raises(QuantityError, match=says):
        Traffic(**{"rate_per_s": 1, "size_bytes": 1, **change})  # type: ignore[arg-type]


RETRIES = 3
POLICY = RetryPolicy(
    total=RETRIES, backoff_factor_s=0.8, backoff_max_s=120.0, attempt_timeout_s=5.0
)


@dataclass
class Lived:
    raised: int = 0
    diverted: int = 0
    pings: int = 0
    failed_over: int = 0
    after: int = 0
    """Diverted although the primary was back."""


def live(length_s: float, setting: Setting, traffic: Traffic, links: int) -> Lived:
    """What the outage does to `links` of the traffic's, their first sends spread over the gap.

    Slow and plain, with the real state machine: the closed form must come out of it too.
    """
    lived = Lived()
    for number in range(links):
        _Link(length_s, setting, traffic, (number + 0.5) / links * traffic.gap_s, lived).run()
    return lived


class _Link:
    """One client and one entity."""

    def __init__(
        self, length_s: float, setting: Setting, traffic: Traffic, first_s: float, lived: Lived
    ) -> None:
        self.length_s, self.traffic, self.lived = length_s, traffic, lived
        self.entity = EntityFailover(
            failover_interval_s=setting.failover_interval_s,
            ping_interval_s=setting.ping_interval_s,
        )
        self.events: list[tuple[float, int, str, Any]] = []
        self.order = itertools.count()
        self.waiting: set[int] = set()
        self.at("send", first_s, 0)

    def at(self, what: str, when_s: float, which: Any = None) -> None:
        heapq.heappush(self.events, (when_s, next(self.order), what, which))

    def run(self) -> None:
        while self.events:
            now, _, what, which = heapq.heappop(self.events)
            getattr(self, what)(now, which)

    def send(self, now: float, number: int) -> None:
        if now < self.length_s or self.entity.state is not EntityState.HEALTHY:
            self.at("send", now + self.traffic.gap_s, number + 1)
        self.attempt(now, (number, 0))

    def attempt(self, now: float, which: tuple[int, int]) -> None:
        if self.entity.state is EntityState.FAILED_OVER:
            self.divert(now)
        elif now >= self.length_s:
            self.handle(SendSucceeded(), now)
        else:
            self.at("failed", now + self.traffic.failed_attempt_s, which)

    def failed(self, now: float, which: tuple[int, int]) -> None:
        number, retry = which
        self.handle(SendFailed(counts=True, error="refused"), now)
        if self.entity.state is EntityState.FAILED_OVER:
            self.divert(now)
        elif retry < RETRIES:
            # It is not asleep for the failover: the real call is woken and diverted at once.
            self.waiting.add(number)
            self.at("retry", now + backoff_s(POLICY, retry + 1), (number, retry + 1))
        else:
            self.lived.raised += 1

    def retry(self, now: float, which: tuple[int, int]) -> None:
        if which[0] in self.waiting:
            self.waiting.discard(which[0])
            self.attempt(now, which)

    def timer(self, now: float, _: None) -> None:
        if self.entity.timer_at is not None and now >= self.entity.timer_at:
            self.handle(TimerFired(), now)

    def divert(self, now: float) -> None:
        self.lived.diverted += 1
        self.lived.after += now >= self.length_s

    def handle(self, event: Any, now: float) -> None:
        before = self.entity.state
        for action in self.entity.handle(event, now):
            if isinstance(action, SendPing):
                self.lived.pings += 1
                takes_s = 0.0 if now >= self.length_s else self.traffic.failed_attempt_s
                self.at("ping_ended", now + takes_s, now >= self.length_s)
        if self.entity.timer_at is not None:
            self.at("timer", self.entity.timer_at)
        if before is not EntityState.FAILED_OVER and self.entity.state is EntityState.FAILED_OVER:
            self.lived.failed_over += 1
            for _ in self.waiting:
                self.divert(now)
            self.waiting.clear()

    def ping_ended(self, now: float, is_answered: bool) -> None:
        self.handle(PingAnswered() if is_answered else PingFailed(error="refused"), now)
