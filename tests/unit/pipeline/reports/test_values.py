"""From sums to the bill, without Spark."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from twinbus.cost import CountingRule, Meter, Tier, standard
from twinbus.pipeline.reports.values import Charge, MonthlySum, bill, charges_by_kind

M = 1_000_000
SUMS = [
    MonthlySum("2026-01", "application", "send", False, 14 * M, 14 * M, 5_000, 0),
    MonthlySum("2026-02", "application", "send", False, 13 * M, 13 * M, 5_000, 0),
    MonthlySum("2026-02", "syphon", "complete", False, 2 * M, 2 * M, 0, 0),
    MonthlySum("2026-02", "consumer", "receive", True, M, M, 0, 7 * 10**9),
]


def test_each_month_has_its_own_free_operations() -> None:
    found = bill(SUMS, standard(), CountingRule())
    # January: one million past the free 13. February: 14 with the receives, one past them.
    assert found.amount == Decimal("1.60")
    assert (found.units, found.settlement_units) == (28 * M, 2 * M)
    assert found.amount_past_free == Decimal("22.40")
    assert (found.bytes_in, found.bytes_out, found.egress_amount) == (10_000, 7 * 10**9, None)


def test_settlement_is_charged_when_the_rule_says_so() -> None:
    found = bill(SUMS, standard(), CountingRule(count_settlement=True))
    assert (found.amount, found.units) == (Decimal("3.20"), 30 * M)
    assert found.settlement_counted


def test_egress_is_priced_when_the_book_has_a_price() -> None:
    book = standard()
    egress = Meter("Out", "1 GB", 10**9, (Tier(0, Decimal("0.05")),))
    priced = replace(book, meters={**book.meters, "egress": egress})
    assert bill(SUMS, priced, CountingRule()).egress_amount == Decimal("0.35")


def test_nothing_costs_nothing() -> None:
    found = bill([], standard(), CountingRule())
    assert found.units == 0
    assert found.amount == found.amount_past_free == Decimal(0)


def test_kinds_are_summed_over_the_months() -> None:
    assert charges_by_kind(SUMS) == (
        Charge("application", "send", False, 27 * M, 27 * M),
        Charge("consumer", "receive", True, M, M),
        Charge("syphon", "complete", False, 2 * M, 2 * M),
    )
