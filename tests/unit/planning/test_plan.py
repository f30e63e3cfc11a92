"""What is made of outcomes: operations and money by hand, and the advice with its reasons."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.unit.planning.outcomes_made_up import asked, outcome, sure
from twinbus.cost import prices
from twinbus.cost.arithmetic import YEAR_S, CountingRule, QuantityError, idle_syphon_operations
from twinbus.planning.plan import PlanLimits, advise, operations_of, plan_of, year_money
from twinbus.planning.question import SampledMean, Traffic, grid

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
