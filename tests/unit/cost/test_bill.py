"""Bills of a month, each amount worked out by hand from the book that ships."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.cost import Meter, PriceBook, Tier, standard
from twinbus.cost.bill import MonthUse, ServiceTier, bill, geo_replication_bill

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


def test_all_four_tiers_of_operations() -> None:
    use = MonthUse(operation_units=2_600 * M, hours=744)
    # 87 M at 0.80 are 69.60, 2,400 M at 0.50 are 1,200, 100 M at 0.20 are 20.
    assert bill(use, ServiceTier.STANDARD, standard()).line("operations").amount == Decimal(
        "1289.60"
    )


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
