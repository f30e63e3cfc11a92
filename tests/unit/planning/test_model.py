"""The model of one outage: by hand, and against the real state machine, send by send."""

from __future__ import annotations

import random
from collections import Counter
from statistics import mean

import pytest

from tests.unit.planning.event_by_event import live
from twinbus.cost.arithmetic import QuantityError
from twinbus.planning.question import Setting, Traffic
from twinbus.planning.simulation import BacklogLevel, effect_of, fullest_share, next_level

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
