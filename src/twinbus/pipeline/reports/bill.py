"""From monthly sums of operations to the bill, beside the documented arithmetic. No Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from twinbus.cost.arithmetic import SETTLEMENTS, CountingRule
from twinbus.cost.bill import MonthUse
from twinbus.cost.prices import Meter, PriceBook


@dataclass(frozen=True, kw_only=True)
class Bill:
    """The cost of operations by one price book."""

    price_book: str
    currency: str
    units: int
    """Charged units, by the counting rule in force."""
    settlement_units: int
    """Those of complete, defer and dead-letter: in `units` only if `settlement_counted`."""
    settlement_counted: bool
    amount: Decimal | None
    """If these were all operations of their months: often 0, because the first are free."""
    amount_past_free: Decimal | None
    """If other work has used up the free operations of the month."""
    bytes_in: int
    bytes_out: int
    egress_amount: Decimal | None
    """None: the book has no price for egress."""


class Charge(NamedTuple):
    """Operations of one cause and kind, over all days and entities."""

    cause: str
    operation: str
    assumed: bool
    operations: int
    units: int


class MonthlySum(NamedTuple):
    """Charges of one month, cause and operation, over all days, namespaces and entities."""

    month: str
    cause: str
    operation: str
    assumed: bool
    operations: int
    units: int
    bytes_in: int
    bytes_out: int


def charges_by_kind(sums: Sequence[MonthlySum]) -> tuple[Charge, ...]:
    """The sums over all months, in the order of cause and operation."""
    operations: Counter[tuple[str, str, bool]] = Counter()
    units: Counter[tuple[str, str, bool]] = Counter()
    for row in sums:
        kind = row.cause, row.operation, row.assumed
        operations[kind] += row.operations
        units[kind] += row.units
    return tuple(Charge(*kind, operations[kind], units[kind]) for kind in sorted(operations))


def month_uses(sums: Sequence[MonthlySum], rule: CountingRule) -> list[MonthUse]:
    """What each month is charged for by the rule, in the order of months."""
    counted = [row for row in sums if rule.count_settlement or row.operation not in SETTLEMENTS]
    return [
        MonthUse(
            operation_units=sum(row.units for row in counted if row.month == month),
            bytes_out=sum(row.bytes_out for row in counted if row.month == month),
        )
        for month in sorted({row.month for row in sums})
    ]


def bill(sums: Sequence[MonthlySum], prices: PriceBook, rule: CountingRule) -> Bill:
    """The bill of the sums: the units of each month by the tiers of a month."""
    months = month_uses(sums, rule)
    units = sum(month.operation_units for month in months)
    meter = prices.meter("operations")
    return Bill(
        price_book=prices.name,
        currency=prices.currency,
        units=units,
        settlement_units=sum(row.units for row in sums if row.operation in SETTLEMENTS),
        settlement_counted=rule.count_settlement,
        amount=_over_months(meter, [month.operation_units for month in months]),
        amount_past_free=meter.cost_past_free(units),
        bytes_in=sum(row.bytes_in for row in sums),
        bytes_out=sum(month.bytes_out for month in months),
        egress_amount=_over_months(prices.meter("egress"), [month.bytes_out for month in months]),
    )


def _over_months(meter: Meter, by_month: Sequence[int]) -> Decimal | None:
    if not meter.priced:
        return None
    amounts = (meter.cost(quantity) for quantity in by_month)
    return sum((amount for amount in amounts if amount is not None), Decimal(0))
