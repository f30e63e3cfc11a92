"""Quantities, counting rules and bills of a month, against figures worked out by hand."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.cost.arithmetic import (
    CountingRule,
    QuantityError,
    idle_syphon_operations,
    message_units,
    parse_duration,
    parse_frequency,
    parse_rate,
    parse_size,
    ping_operations,
    search_count,
    search_operations,
    units,
)
from twinbus.cost.bill import MonthUse, ServiceTier, bill, geo_replication_bill
from twinbus.cost.prices import Meter, PriceBook, Tier, standard
from twinbus.pairing.core.secondary import search_wait_s

M = 1_000_000
GB = 1_000_000_000
USE = MonthUse(operation_units=120 * M, connections_peak=1_020, bytes_out=5 * GB, hours=720)


def with_price(key: str, *tiers: Tier) -> PriceBook:
    book = standard()
    return replace(book, meters={**book.meters, key: replace(book.meter(key), tiers=tiers)})


def amounts(use: MonthUse, tier: ServiceTier, **more: int) -> dict[str, str | None]:
    return {
        line.name: None if line.amount is None else f"{line.amount:f}"
        for line in bill(use, tier, standard(), **more).lines
    }


def test_a_standard_month_crosses_tiers_of_operations_and_of_connections() -> None:
    found = bill(USE, ServiceTier.STANDARD, standard())
    # 720 h at 0.013441; 87 M at 0.80 and 20 M at 0.50; 20 connections at 0.03.
    assert [(line.name, line.quantity, line.amount) for line in found.lines] == [
        ("base charge", 720, Decimal("9.67752")),
        ("operations", 120 * M, Decimal("79.60")),
        ("connections", 1_020, Decimal("0.60")),
        ("egress", 5 * GB, None),
    ]
    assert found.total == Decimal("89.87752")
    assert found.not_priced == ("egress",)
    assert (found.tier, found.currency) == ("standard", "USD")


def test_operations_of_other_work_use_up_the_free_ones() -> None:
    use = replace(USE, operation_units=4 * M)
    alone = bill(use, ServiceTier.STANDARD, standard())
    assert alone.line("operations").amount == Decimal(0)
    # One million of them at 0.80, three at 0.50.
    beside = bill(use, ServiceTier.STANDARD, standard(), other_units=99 * M)
    assert beside.line("operations").amount == Decimal("2.30")
    assert "99,000,000 operations of other work come first in the month's tiers" in (
        beside.assumptions
    )


def test_basic_has_no_free_operations_and_no_base_charge() -> None:
    found = bill(USE, ServiceTier.BASIC, standard())
    assert found.line("operations").amount == Decimal("6.00")  # 120 at 0.05
    assert found.not_priced == ("connections", "egress")
    assert found.total == Decimal("6.00")


def test_premium_includes_operations_and_is_paid_by_the_hour_of_both_namespaces() -> None:
    use = replace(USE, messaging_units=2)
    # 2 namespaces, 2 units, 720 hours at 0.9275.
    assert amounts(use, ServiceTier.PREMIUM) == {
        "messaging units": "2671.2000",
        "operations": "0",
        "connections": "0",
        "egress": None,
    }


def test_geo_replication_is_two_regions_and_the_data_between_them() -> None:
    use = MonthUse(hours=730, bytes_out=GB)
    found = geo_replication_bill(use, standard(), replicated_bytes=100 * GB)
    assert found.line("messaging units").amount == Decimal("1354.15")
    assert found.line("geo-replication").amount == Decimal("9.00")
    assert found.total == Decimal("1363.15")
    assert found.not_priced == ("egress",)


def test_egress_with_a_price_is_in_the_total() -> None:
    book = with_price("egress", Tier(0, Decimal(0)), Tier(2 * GB, Decimal("0.10")))
    found = bill(MonthUse(bytes_out=5 * GB, hours=0), ServiceTier.STANDARD, book)
    assert (found.total, found.not_priced) == (Decimal("0.30"), ())


def test_a_book_with_the_monthly_base_charge_alone_is_used_as_it_is() -> None:
    line = bill(USE, ServiceTier.STANDARD, with_price("base")).line("base charge")
    assert (line.quantity, line.unit, line.amount) == (1, "month", Decimal("10.00"))


def test_nothing_used_is_not_missing() -> None:
    found = bill(MonthUse(hours=0), ServiceTier.STANDARD, standard())
    assert (found.total, found.not_priced) == (Decimal(0), ())


def test_the_assumptions_say_book_hours_and_what_is_shared() -> None:
    text = "\n".join(bill(USE, ServiceTier.STANDARD, standard()).assumptions)
    for part in (
        "prices of uksouth of 2026-10-05, USD",
        "a month of 720 hours",
        "once for all Standard namespaces of a subscription",
        "(13,000,000 and 1,000)",
        "divides by 744",
        "a GB is 1,000,000,000 bytes",
    ):
        assert part in text


def test_a_bill_is_json_with_exact_amounts() -> None:
    found = json.loads(json.dumps(bill(USE, ServiceTier.STANDARD, standard()).as_json()))
    assert found["total"] == "89.87752"
    assert found["lines"][3] == {
        "name": "egress",
        "meter": "egress",
        "quantity": 5 * GB,
        "unit": "bytes",
        "amount": None,
        "note": "",
    }


def test_a_quantity_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="bytes_out must be a whole number from 0; got -1"):
        MonthUse(bytes_out=-1)


@given(st.integers(0, 10**11), st.integers(0, 10**11), st.sampled_from(list(ServiceTier)))
def test_a_month_in_two_parts_costs_what_it_costs_in_one(
    first: int, second: int, tier: ServiceTier
) -> None:
    def operations(units: int, before: int = 0) -> Decimal:
        use = MonthUse(operation_units=units)
        amount = bill(use, tier, standard(), other_units=before).line("operations").amount
        assert amount is not None
        return amount

    assert operations(first) + operations(second, first) == operations(first + second)


def test_a_meter_knows_its_free_part() -> None:
    assert Meter("m", "1", 1, (Tier(0, Decimal(1)),)).free == 0


KB = 1024

HOUR_S, DAY_S = 3_600, 86_400

SETTLED = CountingRule(count_settlement=True)


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [
        (None, 1),
        (0, 1),
        (1, 1),
        (64 * KB, 1),
        (64 * KB + 1, 2),
        (96 * KB, 2),
        (128 * KB, 2),
        (256 * KB, 4),
        (100 * KB * KB, 1_600),
    ],
)
def test_a_started_64_kib_is_a_unit_and_nothing_is_one_too(
    size_bytes: int | None, expected: int
) -> None:
    assert units(size_bytes) == expected


@given(st.integers(0, 10**9))
def test_units_are_the_fewest_that_hold_the_message(size_bytes: int) -> None:
    assert (units(size_bytes) - 1) * 64 * KB < max(size_bytes, 1) <= units(size_bytes) * 64 * KB


def test_an_idle_syphon_costs_what_the_documentation_says() -> None:
    def idle(period_s: float, poll_s: float = 900) -> int:
        return idle_syphon_operations(queue_count=10, poll_s=poll_s, period_s=period_s)

    assert idle(HOUR_S) == 40
    assert idle(DAY_S) == 960
    assert idle(30 * DAY_S) == 28_800
    # The same with receives of a minute, as an older SDK had them.
    assert idle(30 * DAY_S, poll_s=60) == 432_000


def test_a_moved_message_is_four_stages_and_six_with_settlement() -> None:
    assert message_units(1_000, moved=True) == 4
    assert message_units(1_000, SETTLED, moved=True) == 6
    assert message_units(96 * KB, moved=True) == 8
    assert message_units(96 * KB, SETTLED, moved=True) == 10
    assert message_units(1_000) == 2
    assert message_units(1_000, SETTLED) == 3


def test_pings_of_many_clients_add_up() -> None:
    # 50 entities, 20 clients, one a minute, an hour.
    assert (
        ping_operations(entity_count=50, client_count=20, interval_s=60, outage_s=HOUR_S) == 60_000
    )


@pytest.mark.parametrize("period_s", [HOUR_S, DAY_S, 30 * DAY_S])
def test_searches_for_a_missing_queue_are_those_of_the_pairs_schedule(period_s: int) -> None:
    at, count = 0.0, 0
    while (at := at + search_wait_s(at, answers=True, chance=1.0)) <= period_s:
        count += 1
    assert search_count(period_s) == count
    # By hand: 75 in the first hour, then 15 an hour in the end.
    assert search_count(HOUR_S) == 75
    assert search_count(30 * DAY_S) < 11_000


def test_a_search_is_a_listing_and_a_call_for_each_missing_queue() -> None:
    month_s = 30 * DAY_S
    assert search_operations(missing_count=0, client_count=20, period_s=month_s) == 0
    found = search_operations(missing_count=10, client_count=2, period_s=HOUR_S)
    assert found == 2 * 75 * 11


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_rate, "500/s", 500),
        (parse_rate, "500", 500),
        (parse_rate, "30000/min", 500),
        (parse_rate, "2M/day", Fraction(2_000_000, 86_400)),
        (parse_rate, " 1.5k / sec ", 1_500),
        (parse_rate, "0.5/h", Fraction(1, 7_200)),
        (parse_rate, "1/week", Fraction(1, 604_800)),
        (parse_size, "2KB", 2_048),
        (parse_size, "2kb", 2_048),
        (parse_size, "64KiB", 65_536),
        (parse_size, "256 KB", 262_144),
        (parse_size, "1.5MB", 1_572_864),
        (parse_size, "700", 700),
        (parse_size, "0", 0),
        (parse_size, "0.3 KB", 308),  # 307.2 bytes: a part of a byte is a whole one
        (parse_duration, "60s", 60),
        (parse_duration, "60", 60),
        (parse_duration, "40min", 2_400),
        (parse_duration, "40 m", 2_400),
        (parse_duration, "1h30min", 5_400),
        (parse_duration, "1h 30min 5s", 5_405),
        (parse_duration, "250ms", Fraction(1, 4)),
        (parse_duration, "2 days", 172_800),
        (parse_frequency, "2/year", 2),
        (parse_frequency, "1/month", 12),
        (parse_frequency, "0/year", 0),
        (parse_frequency, "1/day", 365),
        (parse_frequency, "0.5/y", Fraction(1, 2)),
    ],
)
def test_a_quantity_is_read_exactly(
    parse: Callable[[str], object], text: str, value: int | Fraction
) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "complaint"),
    [
        (parse_rate, "-5/s", "--it must not be negative; got '-5/s'"),
        (parse_rate, "0/s", "--it must be more than 0 and at most 10,000,000 a second; got '0/s'"),
        (parse_rate, "11M/s", "at most 10,000,000 a second; got '11M/s'"),
        (parse_rate, "fast", "like 500/s, 30000/min or 2M/day; got 'fast'"),
        (parse_rate, "5/fortnight", "like 500/s"),
        (parse_rate, "2m/day", "like 500/s"),
        (parse_rate, "1,000/s", "like 500/s"),
        (parse_rate, "", "like 500/s"),
        (parse_rate, "1e9/s", "like 500/s"),
        (parse_rate, "9" * 16, "like 500/s"),
        (parse_size, "101MB", "--it must be at most 104,857,600 bytes; got '101MB'"),
        (parse_size, "-1", "must not be negative"),
        (parse_size, "2 TB", "like 2KB or 64KiB; got '2 TB'"),
        (parse_size, "KB", "like 2KB"),
        (parse_duration, "2y", "from 0 to 31,536,000 seconds; got '2y'"),
        (parse_duration, "", "like 60s, 40min or 1h30min; got ''"),
        (parse_duration, "40 parsec", "like 60s"),
        (parse_duration, "1h30", "like 60s"),
        (parse_duration, "-1s", "must not be negative"),
        (parse_frequency, "2", "like 2/year or 1/month; got '2'"),
        (parse_frequency, "1/s", "at most 8,760 a year; got '1/s'"),
        (parse_frequency, "1/eon", "like 2/year"),
        (parse_frequency, "-1/year", "must not be negative"),
    ],
)
def test_what_cannot_be_read_is_one_line_with_the_option_and_the_form(
    parse: Callable[[str, str], object], text: str, complaint: str
) -> None:
    with pytest.raises(QuantityError) as caught:
        parse(text, "--it")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=30))
def test_no_text_breaks_a_parser(text: str) -> None:
    for parse in (parse_rate, parse_size, parse_duration, parse_frequency):
        with contextlib.suppress(QuantityError):
            assert parse(text) >= 0
