"""Values as a person reads them."""

from __future__ import annotations

from decimal import Decimal

from twinbus.console.terminal.table import money


def test_money_is_exact_enough_to_see_and_unknown_is_not_nothing() -> None:
    assert money(Decimal("0.007232"), "USD") == "0.007232 USD"
    assert money(Decimal("12.3456"), "USD") == "12.35 USD"
    assert money(Decimal("1234567.8"), "USD") == "1,234,567.80 USD"
    assert money(Decimal(0), "USD") == "0.00 USD"
    assert money(None, "USD") == "not priced"
