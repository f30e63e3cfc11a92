"""The bill of one month in one tier of Service Bus: a line for each meter, and assumptions.

    Basic       operations
    Standard    base charge, operations past the free ones, connections past the free ones
    Premium     hours of messaging units; operations and connections are included
    each        data out of the region, where the book has a price for it

An amount of None means that the book has no price. It does not count as 0: the total has the priced
lines only, and `not_priced` names the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final

from twinbus.cost.prices import PriceBook

MONTH_HOURS: Final = 730
"""A twelfth of a year, as in Azure's own calculator."""

CONNECTION_HOURS: Final = 744
"""Azure divides the sum of a month's hourly connection peaks by this."""

GEO_INSTANCES: Final = 2
"""A geo-replicated namespace is charged in its primary and in its secondary region."""


class ServiceTier(StrEnum):
    BASIC = "basic"
    STANDARD = "standard"
    PREMIUM = "premium"


@dataclass(frozen=True, kw_only=True, slots=True)
class MonthUse:
    """The usage of one month, over all namespaces."""

    operation_units: int = 0
    """Billed operations: one for each started 64 KiB."""
    connections_peak: int = 0
    bytes_out: int = 0
    hours: int = MONTH_HOURS
    namespaces: int = 2
    """Premium namespaces; each is charged by the hour."""
    messaging_units: int = 1
    """Of each Premium namespace."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} must be a whole number from 0; got {value!r}")


@dataclass(frozen=True, slots=True)
class BillLine:
    """One quantity and its cost."""

    name: str
    meter: str
    """The key of the meter in the price book."""
    quantity: int
    unit: str
    amount: Decimal | None
    """None: not priced."""
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class MonthlyBill:
    """The lines of one month, by one price book."""

    tier: str
    price_book: str
    currency: str
    lines: tuple[BillLine, ...]
    assumptions: tuple[str, ...]

    @property
    def total(self) -> Decimal:
        return sum((line.amount for line in self.lines if line.amount is not None), Decimal(0))

    @property
    def not_priced(self) -> tuple[str, ...]:
        """Names of lines with a quantity but no price; the total lacks them."""
        return tuple(line.name for line in self.lines if line.amount is None and line.quantity)

    def line(self, name: str) -> BillLine:
        """Return the line of this name, which the tier must have."""
        return next(line for line in self.lines if line.name == name)

    def as_json(self) -> dict[str, Any]:
        """Return the bill for `json.dumps`; amounts are exact strings."""
        return {
            "tier": self.tier,
            "price_book": self.price_book,
            "currency": self.currency,
            "lines": [
                {**asdict(line), "amount": exact_or_none(line.amount)} for line in self.lines
            ],
            "total": exact(self.total),
            "not_priced": list(self.not_priced),
            "assumptions": list(self.assumptions),
        }


def exact(amount: Decimal) -> str:
    """Return all significant digits of an amount: 79.6, 0, 0.0000008."""
    return f"{amount.normalize():f}"


def exact_or_none(amount: Decimal | None) -> str | None:
    return None if amount is None else exact(amount)


def operations_meter(tier: ServiceTier) -> str | None:
    """Return the key of the meter of operations in a tier; None: they are included."""
    return {ServiceTier.BASIC: "basic_operations", ServiceTier.STANDARD: "operations"}.get(tier)


def bill(
    use: MonthUse, tier: ServiceTier, prices: PriceBook, *, other_units: int = 0
) -> MonthlyBill:
    """Return the bill of a month of `use` in a tier.

    `other_units` are operations of other work in the same month. They use up the free amount and
    the expensive tiers first, and are not in the bill.
    """
    return MonthlyBill(
        tier=tier.value,
        price_book=prices.name,
        currency=prices.currency,
        lines=(
            *_tier_lines(use, tier, prices, other_units),
            _line(prices, "egress", "egress", use.bytes_out),
        ),
        assumptions=tuple(_assumptions(use, tier, prices, other_units)),
    )


def geo_replication_bill(use: MonthUse, prices: PriceBook, *, replicated_bytes: int) -> MonthlyBill:
    """Return the bill of the same month with Premium Geo-Replication instead of a pair."""
    copied = _line(prices, "geo-replication", "geo_replication", replicated_bytes)
    egress = _line(prices, "egress", "egress", use.bytes_out)
    return MonthlyBill(
        tier="premium geo-replication",
        price_book=prices.name,
        currency=prices.currency,
        lines=(*_premium_lines(prices, GEO_INSTANCES, use), copied, egress),
        assumptions=(
            "messaging units are charged in both regions, outage or not, and each GB copied",
            *_assumptions(use, ServiceTier.PREMIUM, prices, 0),
        ),
    )


def _tier_lines(
    use: MonthUse, tier: ServiceTier, prices: PriceBook, other_units: int
) -> Iterator[BillLine]:
    key = operations_meter(tier)
    if key is None:
        yield from _premium_lines(prices, use.namespaces, use)
        return
    if tier is ServiceTier.STANDARD:
        yield _base_line(use, prices)
    yield _line(prices, "operations", key, use.operation_units, other_units)
    if tier is ServiceTier.STANDARD:
        yield _line(prices, "connections", "connections", use.connections_peak)
    else:
        note = "the book has no price of connections for Basic"
        yield BillLine("connections", "", use.connections_peak, "at the peak", None, note)


def _line(prices: PriceBook, name: str, key: str, quantity: int, already: int = 0) -> BillLine:
    amount = prices.meter(key).cost(quantity, already)
    return BillLine(name, key, quantity, _UNITS[key], amount)


_UNITS: Final = {
    "basic_operations": "units",
    "operations": "units",
    "base": "hours",
    "connections": "at the peak",
    "premium": "unit hours",
    "geo_replication": "bytes",
    "egress": "bytes",
}


def _base_line(use: MonthUse, prices: PriceBook) -> BillLine:
    """Return the base charge by the hour, or by the month if the book has only that price."""
    if prices.meter("base").priced:
        return _line(prices, "base charge", "base", use.hours)
    return BillLine("base charge", "base_month", 1, "month", prices.meter("base_month").cost(1))


def _premium_lines(prices: PriceBook, namespaces: int, use: MonthUse) -> Iterator[BillLine]:
    hours = namespaces * use.messaging_units * use.hours
    yield _line(prices, "messaging units", "premium", hours)
    rest = Decimal(0), "included in Premium"
    yield BillLine("operations", "premium", use.operation_units, "units", *rest)
    yield BillLine("connections", "premium", use.connections_peak, "at the peak", *rest)


def _assumptions(
    use: MonthUse, tier: ServiceTier, prices: PriceBook, other_units: int
) -> Iterator[str]:
    yield (
        f"prices of {prices.region} of {prices.retrieved}, {prices.currency}, without discounts or"
        f" taxes: {prices.source}"
    )
    yield f"a month of {use.hours} hours"
    if tier is ServiceTier.STANDARD:
        yield (
            "the base charge is paid once for all Standard namespaces of a subscription, and both"
            " namespaces of the pair are in one"
        )
        yield (
            "operations and connections of both namespaces share one free amount"
            f" ({prices.meter('operations').free:,} and {prices.meter('connections').free:,})"
        )
        yield (
            "connections as if their peak stood in every hour; Azure adds up the peaks of the hours"
            f" and divides by {CONNECTION_HOURS}"
        )
    if tier is ServiceTier.PREMIUM:
        yield f"{use.messaging_units} messaging unit(s) in each Premium namespace are enough"
    if other_units:
        yield f"{other_units:,} operations of other work come first in the month's tiers"
    if use.bytes_out:
        yield "data into and inside a region is free; a GB is 1,000,000,000 bytes"
