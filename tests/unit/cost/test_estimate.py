"""The quick arithmetic, against months worked out by hand."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.client.administration import LIST_PAGE
from twinbus.client.lock_validity import LEASE_LOCK_S, RENEW_SHARE, STANDBY_SHARE
from twinbus.cost import arithmetic
from twinbus.cost.arithmetic import (
    CountingRule,
    QuantityError,
    deferred_search_operations,
    message_units,
    search_count,
)
from twinbus.cost.bill import ServiceTier
from twinbus.cost.estimate import CostEstimate, Workload, estimate
from twinbus.cost.prices import standard
from twinbus.fleet.core.board_turns import HEALTHY_LOOK_S, LOOK_EVERY_S, POST_EVERY_MAX_S
from twinbus.pairing.core.processing import LockRenewal
from twinbus.pairing.core.secondary import JITTER, LIST_IDLE_S
from twinbus.pairing.core.twins import READ_EVERY_S
from twinbus.pairing.lifecycle.twin_marks import SINGLE_MAX
from twinbus.pairing.receiving.watchdog import SILENT_LEAST_S
from twinbus.syphon.core.destination import VALID_S
from twinbus.syphon.twin_search import TOPICS_EVERY_S

KB = 1024
SETTLED = CountingRule(count_settlement=True)


def made(work: Workload) -> CostEstimate:
    return estimate(work, standard())


def by_cause(found: CostEstimate) -> dict[str, tuple[int, int, Decimal | None]]:
    return {cause.cause: (cause.operations, cause.units, cause.amount) for cause in found.causes}


def test_a_small_application_stays_free_and_the_polls_cross_the_free_13_million() -> None:
    found = made(
        Workload(
            rate_per_s=Fraction(5, 2),
            size_bytes=2 * KB,
            entities=10,
            clients=5,
            outages_per_year=Fraction(12),
            outage_s=Fraction(3_600),
        )
    )
    # 2.5 a second are 6,480,000 in 30 days, of which an hour are 9,000.
    assert (found.messages, found.moved) == (6_480_000, 9_000)
    assert by_cause(found) == {
        # 6,471,000 sent and received, and 9,000 received after the backlog.
        "application": (12_951_000, 12_951_000, Decimal(0)),
        "failover": (9_000, 9_000, Decimal(0)),
        # 10 entities, 5 clients, 60 minutes.
        "ping": (3_000, 3_000, Decimal(0)),
        # 9,000 received and sent, and 10 queues searched for deferred messages 721 times.
        "syphon": (25_210, 25_210, Decimal(0)),
        # With the polls the month has 13,017,010: 17,010 past the free ones at 0.80 a million.
        "poll": (28_800, 28_800, Decimal("0.013608")),
        # The queues are listed at the start, and 2,880 times.
        "administration": (2_881, 2_881, Decimal("0.0023048")),
        # 5 hosts look at the start and 2,880 times; in an hour of outage 300 times, with 60 posts.
        "board": (16_205, 16_205, Decimal("0.012964")),
    }
    assert found.units == 13_036_096
    assert found.bill.line("base charge").amount == Decimal("9.67752")
    # 5 x 10 connections, 5 x 10 more in the outage, 20 of the syphon: all free.
    assert found.bill.line("connections").quantity == 120
    assert found.bill.total == Decimal("9.7063968")
    assert found.added == Decimal("0.0288768")


def test_large_messages_with_settlement_cross_100_million() -> None:
    found = made(
        Workload(
            rate_per_s=Fraction(8),
            size_bytes=96 * KB,
            outages_per_year=Fraction(12),
            outage_s=Fraction(2_400),
            rule=SETTLED,
        )
    )
    # 20,736,000 messages of two units; 8 x 2,400 of them moved, 20,716,800 not.
    assert (found.messages, found.moved) == (20_736_000, 19_200)
    assert by_cause(found) == {
        # 5 units for each direct message, 3 for the last stage of each moved one: 103,641,600.
        # 87 M at 0.80 and 3.6416 M at 0.50.
        "application": (62_188_800, 103_641_600, Decimal("71.4208")),
        "failover": (19_200, 38_400, Decimal("0.0192")),
        "ping": (40, 40, Decimal("0.00002")),
        "syphon": (64_810, 103_210, Decimal("0.051605")),
        "poll": (28_800, 28_800, Decimal("0.0144")),
        "administration": (2_881, 2_881, Decimal("0.0014405")),
        "board": (3_121, 3_121, Decimal("0.0015605")),
    }
    assert found.bill.line("operations").amount == Decimal("71.509026")
    # Every message out of the primary, and the moved ones out of the secondary too.
    assert found.bill.line("egress").quantity == (20_736_000 + 19_200) * 96 * KB
    assert found.bill.not_priced == ("egress",)


def test_a_large_application_in_the_last_tier() -> None:
    found = made(Workload(rate_per_s=Fraction(500), size_bytes=2 * KB, entities=40, clients=20))
    assert (found.messages, found.moved) == (1_296_000_000, 200_000)
    # Twice a year: a sixth of 40 x 20 x 40 pings a month, rounded.
    assert [(cause.cause, cause.units) for cause in found.causes] == [
        ("application", 2_591_800_000),
        ("failover", 200_000),
        ("ping", 5_333),
        ("syphon", 407_210),
        ("poll", 28_800),
        ("administration", 2_881),
        ("board", 58_420),
    ]
    # 69.60 + 1,200 + 91.8 M at 0.20; the others at 0.20 too.
    assert [cause.amount for cause in found.causes] == [
        Decimal("1287.96"),
        Decimal("0.04"),
        Decimal("0.0010666"),
        Decimal("0.081442"),
        Decimal("0.00576"),
        Decimal("0.0005762"),
        Decimal("0.011684"),
    ]
    # 800 connections, 200 more in the outage, 20 of the syphon: 20 past the free thousand.
    assert found.bill.line("connections").amount == Decimal("0.60")
    # Against 2,592 M operations and 800 connections without a pair.
    assert found.added == Decimal("0.7005288")
    # 2 x 720 h at 0.9275, and 1,296 M x 2,048 bytes at 0.09 a GB.
    assert found.geo_replication.total == Decimal("1335.60") + Decimal("238.87872")


def test_the_documented_figures_come_out_exactly() -> None:
    found = made(Workload(rate_per_s=Fraction(1), size_bytes=1_000))
    assert found.idle_receives == {"hour": 40, "day": 960, "month": 28_800}
    assert found.moved_stages == {
        "send to the backlog": 1,
        "receive from the backlog": 1,
        "send to the primary": 1,
        "receive from the primary": 1,
    }
    settled = made(Workload(rate_per_s=Fraction(1), size_bytes=1_000, rule=SETTLED))
    assert sum(settled.moved_stages.values()) == 6
    minute = made(Workload(rate_per_s=Fraction(1), size_bytes=1_000, poll_s=Fraction(60)))
    assert minute.idle_receives["month"] == 432_000


def test_premium_pays_hours_and_the_pair_a_second_namespace() -> None:
    found = made(
        Workload(
            rate_per_s=Fraction(100),
            size_bytes=KB * KB,
            tier=ServiceTier.PREMIUM,
            messaging_units=4,
        )
    )
    assert {cause.amount for cause in found.causes} == {Decimal(0)}
    # 2 namespaces, 4 units, 720 h at 0.9275; alone the half.
    assert found.bill.total == Decimal("5342.40")
    assert found.added == Decimal("2671.20")


def test_basic_pays_every_operation() -> None:
    found = made(Workload(rate_per_s=Fraction(10), size_bytes=KB, tier=ServiceTier.BASIC))
    # 25,920,000 messages, 4,000 moved (four operations instead of two), 7 pings, 28,800 polls,
    # 7,210 searches for deferred messages, 2,881 for new queues, 2,921 looks and posts.
    assert found.units == 51_840_000 + 8_000 + 7 + 28_800 + 7_210 + 2_881 + 2_921
    assert found.bill.line("operations").amount == Decimal("2.59449095")
    assert any("no duplicate detection" in line for line in found.warnings)


def test_no_outage_leaves_the_requests_of_an_idle_syphon() -> None:
    found = made(Workload(rate_per_s=Fraction(1), size_bytes=0, outages_per_year=Fraction(0)))
    assert found.moved == 0
    assert [cause.units for cause in found.causes] == [5_184_000, 0, 0, 7_210, 28_800, 2_881, 2_881]


def test_a_queue_that_stays_missing_costs_what_its_searches_cost() -> None:
    found = made(Workload(rate_per_s=Fraction(1), size_bytes=0, clients=20, missing_queues=2))
    # 20 clients, each time a listing and two queues to create.
    searches = search_count(30 * 86_400)
    assert by_cause(found)["administration"][0] == 20 * searches * 3 + 2_881
    assert any(f"{searches:,} times at most" in line for line in found.assumptions)
    healthy = made(Workload(rate_per_s=Fraction(1), size_bytes=0, clients=20))
    assert by_cause(healthy)["administration"][0] == 2_881
    assert any("no client searches" in line for line in healthy.assumptions)


def test_leases_cost_their_renewals_and_the_attempts_of_standbys() -> None:
    found = made(Workload(rate_per_s=Fraction(1), size_bytes=0, lease=True))
    # The lock duration is read once, 10 sessions are accepted, marked and renewed every 80 s.
    assert by_cause(found)["lease"][0] == 1 + 10 * (4 + 32_400)
    pair = made(Workload(rate_per_s=Fraction(1), size_bytes=0, lease=True, standbys=1))
    # The standby tries to get each every 25 s, and lists the queues too.
    assert by_cause(pair)["lease"][0] == 2 + 10 * (4 + 32_400) + 10 * (1 + 103_680)
    assert by_cause(pair)["administration"][0] == 2 * 2_881
    with pytest.raises(QuantityError, match="give --lease too"):
        Workload(rate_per_s=Fraction(1), size_bytes=0, standbys=1)


def test_a_message_by_a_twin_has_two_stages_and_the_syphon_moves_none() -> None:
    given = {"rate_per_s": Fraction(5), "size_bytes": 96 * KB, "rule": SETTLED, "entities": 40}
    work = Workload(**given, clients=20, receivers=60, twins=True)  # type: ignore[arg-type]
    found, by_backlog = made(work), made(Workload(**given, clients=20))  # type: ignore[arg-type]
    assert found.moved_stages == {
        "send to the twin": 2,
        "receive from the twin": 2,
        "complete in the twin": 1,
    }
    causes, before = by_cause(found), by_cause(by_backlog)
    assert causes["application"] == before["application"]
    assert causes["failover"][:2] == before["failover"][:2] == (found.moved, 2 * found.moved)
    assert causes["syphon"][:2] == (7_210, 7_210), "only its searches for deferred messages"
    # 40 twins are more than are read one by one: queues and topics are listed, 10,800 times and
    # at the start; 60 receivers read a mark each; the syphon looks for topics every hour.
    marks, topics = 20 * 2 * 10_801 + 60, 721
    assert causes["administration"][0] == 2_881 + marks + topics
    # Each message leaves a namespace once.
    assert found.bill.line("egress").quantity == found.messages * 96 * KB
    assert any("the syphon moves none home" in line for line in found.assumptions)


def test_few_marks_are_read_one_by_one_and_many_by_pages() -> None:
    month_s = 30 * 86_400
    count = partial(arithmetic.twin_mark_operations, client_count=1, period_s=month_s)
    assert count(twin_count=10) == 10 * 10_801
    assert count(twin_count=11) == 2 * 10_801
    assert count(twin_count=101) == 3 * 10_801


def test_receivers_that_wait_cost_nothing_and_say_how_often_they_are_checked() -> None:
    plain = {"rate_per_s": Fraction(1), "size_bytes": 0}
    found = made(Workload(**plain, receivers=2))  # type: ignore[arg-type]
    assert by_cause(found) == by_cause(made(Workload(**plain)))  # type: ignore[arg-type]
    assert any("at most 172,800 times a month" in line for line in found.assumptions)
    twins = made(Workload(**plain, receivers=1, twins=True))  # type: ignore[arg-type]
    assert any("at most 172,800 times a month" in line for line in twins.assumptions)


@pytest.mark.parametrize(
    ("handling_s", "lock_s", "count"),
    [(0, 60, 0), (30, 60, 0), (31, 60, 1), (60, 60, 1), (61, 60, 2), (600, 300, 3), (2, 5, 0)],
)
def test_the_lock_of_a_long_handler_is_renewed_at_each_half(
    handling_s: int, lock_s: int, count: int
) -> None:
    # As the processor's own core does it.
    core, at, renewed = LockRenewal(lock_s, 0.0, until=handling_s), 0.0, 0
    while core.timer_at is not None:
        at, renewed = core.timer_at, renewed + 1
        core.renewed(lock_s, at)
    assert arithmetic.renewals(handling_s, lock_s) == renewed == count
    work = Workload(
        rate_per_s=Fraction(1),
        size_bytes=0,
        handling_s=Fraction(handling_s),
        lock_s=Fraction(lock_s),
    )
    found = made(work)
    assert by_cause(found).get("consumer", (0, 0, None))[:2] == (2_592_000 * count,) * 2
    # A receiver without a pair renews as often.
    assert found.added < Decimal("0.10")


def test_the_times_of_twins_and_receivers_are_those_of_the_pair() -> None:
    assert arithmetic.TWIN_MARK_S == READ_EVERY_S * (1 - JITTER)
    assert arithmetic.TWIN_MARKS_SINGLE_MAX == SINGLE_MAX
    assert arithmetic.TWIN_TOPICS_S == TOPICS_EVERY_S
    assert arithmetic.LIST_PAGE == LIST_PAGE
    assert arithmetic.RECEIVER_CHECK_S == SILENT_LEAST_S


def test_the_times_of_the_notice_board_are_those_of_the_fleet() -> None:
    assert arithmetic.BOARD_LOOK_S == HEALTHY_LOOK_S
    assert arithmetic.BOARD_OUTAGE_LOOK_S == LOOK_EVERY_S
    assert arithmetic.BOARD_POST_S == POST_EVERY_MAX_S


def test_the_times_of_an_idle_syphon_are_those_of_the_syphon() -> None:
    assert arithmetic.LEASE_RENEW_S == LEASE_LOCK_S * RENEW_SHARE
    assert arithmetic.LEASE_STANDBY_S == LEASE_LOCK_S * STANDBY_SHARE
    assert arithmetic.DEFERRED_SEARCH_S == VALID_S
    assert arithmetic.QUEUE_SEARCH_S == LIST_IDLE_S


def test_a_rate_that_one_namespace_does_not_take_is_pointed_out() -> None:
    assert made(Workload(rate_per_s=Fraction(500), size_bytes=1)).warnings == ()
    (line,) = made(Workload(rate_per_s=Fraction(501), size_bytes=1)).warnings
    assert line.startswith("501 messages a second, sent and received, are more than the 1,000")


def test_an_estimate_is_json() -> None:
    work = Workload(rate_per_s=Fraction(10), size_bytes=KB, connections=2_000)
    found = json.loads(json.dumps(made(work).as_json()))
    assert found["causes"][4] == {
        "cause": "poll",
        "operations": 28_800,
        "units": 28_800,
        "bytes_out": 0,
        "amount": "0.02304",
    }
    assert found["bill"]["not_priced"] == ["egress"]
    assert found["bill"]["lines"][2]["amount"] == "30"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"rate_per_s": Fraction(0)}, "rate must be more than 0"),
        ({"size_bytes": 256 * KB + 1}, "size must be at most 262,144 bytes, .* tier standard"),
        ({"size_bytes": -1}, "size must be"),
        ({"entities": 0}, "entities must be from 1 to 100,000; got 0"),
        ({"clients": 100_001}, "clients must be from 1 to 100,000"),
        ({"queues": 101}, "queues must be from 1 to 100; got 101"),
        ({"receivers": -1}, "receivers must be from 0 to 100,000; got -1"),
        ({"missing_queues": 11}, "missing-queues must be from 0 to 10, .* got 11"),
        ({"outages_per_year": Fraction(8_760), "outage_s": Fraction(7_200)}, "outages, 8760 a y"),
    ],
)
def test_what_no_namespace_could_be_is_refused(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(QuantityError, match=complaint):
        Workload(**{"rate_per_s": Fraction(1), "size_bytes": 1, **change})  # type: ignore[arg-type]


@given(
    rate=st.fractions(Fraction(1, 1000), 2_000),
    size=st.integers(0, 256 * KB),
    outages=st.fractions(0, 100),
    length=st.fractions(0, 86_400),
    tier=st.sampled_from(list(ServiceTier)),
    rule=st.sampled_from([SETTLED, CountingRule()]),
)
def test_causes_add_up_to_the_stages_and_to_the_bill(
    rate: Fraction,
    size: int,
    outages: Fraction,
    length: Fraction,
    tier: ServiceTier,
    rule: CountingRule,
) -> None:
    work = Workload(
        rate_per_s=rate,
        size_bytes=size,
        outages_per_year=outages,
        outage_s=length,
        tier=tier,
        rule=rule,
    )
    found = made(work)
    units = {cause.cause: cause.units for cause in found.causes}
    units["syphon"] -= deferred_search_operations(queue_count=10, period_s=30 * 86_400)
    assert units["application"] + units["failover"] + units["syphon"] == (
        (found.messages - found.moved) * message_units(size, rule)
        + found.moved * message_units(size, rule, moved=True)
    )
    amounts = [cause.amount for cause in found.causes if cause.amount is not None]
    assert sum(amounts, Decimal(0)) == found.bill.line("operations").amount
    assert found.added >= 0
