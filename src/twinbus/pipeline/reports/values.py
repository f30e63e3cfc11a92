"""Values of report documents: the bill of monthly sums, times, and all of them as JSON. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, NamedTuple

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


def iso(at_ms: int | None) -> str | None:
    """Return a time in UTC as ISO 8601, to the millisecond."""
    if at_ms is None:
        return None
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def day_of(at_ms: int) -> date:
    """Return the day of a time, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).date()


def fields_as_json(whole: Any) -> dict[str, Any]:
    return {one.name: plain(getattr(whole, one.name)) for one in fields(whole)}


def plain(value: Any) -> Any:
    match value:
        case Decimal() | StrEnum():
            return str(value)
        case date():
            return value.isoformat()
        case Mapping():
            return {key: plain(inner) for key, inner in value.items()}
        case tuple() if hasattr(value, "_asdict"):
            return {key: plain(inner) for key, inner in value._asdict().items()}
        case tuple() | list():
            return [plain(inner) for inner in value]
        case _ if is_dataclass(value):
            return fields_as_json(value)
        case _:
            return value
