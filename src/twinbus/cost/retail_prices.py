"""Makes a price book from pages of the Azure Retail Prices API. Pure: no call is made.

    page       {"Items": [...], "NextPageLink": ..., "Count": ...}, or a list of pages or of items
    item       meterName, unitOfMeasure, tierMinimumUnits, retailPrice, armRegionName, currencyCode

An item that no bill of a pair needs is set aside and listed. An item that a bill needs and that
cannot be read stops the import: a tier dropped in silence would be a wrong price.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Final, NamedTuple

from twinbus.cost.price_documents import PriceBookError
from twinbus.cost.prices import FORMAT, NEEDED_METERS, PriceBook, parse
from twinbus.cost.retail_items import PriceItem, PricePage, items_of, pages_of

MAY_BE_MISSING: Final = frozenset({"geo_replication", "egress"})
"""Not sold in every region, or sold by another service; a book may leave them unpriced."""

BASE_FORMS: Final = frozenset({"base", "base_month"})
"""The same charge by the hour and by the month: a book needs one of them."""

NEVER_ALL_FREE: Final = frozenset({"operations", "connections", "basic_operations", "premium"})


class SetAside(NamedTuple):
    """An item that is not in the book, and why."""

    place: str
    meter_name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Imported:
    """The book, the document it was made of, and the items that are not in it."""

    document: Mapping[str, object]
    book: PriceBook
    taken: int
    set_aside: tuple[SetAside, ...]


class RetailMeter(NamedTuple):
    """One meter of the API in one of its units, and its key in a price book."""

    key: str
    meter_name: str
    unit_of_measure: str
    per: int
    unit: str

    def is_of(self, item: PriceItem) -> bool:
        """Whether the item is a price of this meter, in whichever unit."""
        if item.meter_name != self.meter_name:
            return False
        if self.key == "egress":
            return item.text("productName") == EGRESS_PRODUCT
        return (item.text("serviceName") or item.text("productName")) == "Service Bus"

    def has_unit_of(self, item: PriceItem) -> bool:
        """Whether the item is in this unit. The API writes both `1/Hour` and `1 Hour`."""
        units = (self.unit_of_measure, item.text("unitOfMeasure"))
        return len({unit.replace(" ", "/").lower() for unit in units}) == 1


class MeterItem(NamedTuple):
    """An item, and the meter that it is a price of."""

    meter: RetailMeter
    item: PriceItem


_GB: Final = 1_000_000_000

RETAIL_METERS: Final = (
    RetailMeter("basic_operations", "Basic Messaging Operations", "1M", 10**6, "1M operations"),
    RetailMeter("operations", "Standard Messaging Operations", "1M", 10**6, "1M operations"),
    RetailMeter("base", "Standard Base Unit", "1/Hour", 1, "1 hour, once for a subscription"),
    RetailMeter("base_month", "Standard Base Unit", "1/Month", 1, "1 month, the same charge"),
    RetailMeter("connections", "Standard Brokered Connection", "1", 1, "1 connection, a month"),
    RetailMeter("premium", "Premium Messaging Unit", "1/Hour", 1, "1 hour of a messaging unit"),
    *(
        RetailMeter(
            "geo_replication",
            f"Geo Replication Zone {zone} Data Transfer",
            "1 GB",
            _GB,
            f"1 GB copied by Premium Geo-Replication, zone {zone}",
        )
        for zone in (1, 2, 3)
    ),
    RetailMeter("egress", "Standard Data Transfer Out", "1 GB", _GB, "1 GB out"),
)

EGRESS_PRODUCT: Final = "Rtn Preference: MGN"
"""Bandwidth is sold as several products; this one is traffic over Microsoft's network."""


def book_from(
    documents: Sequence[tuple[str, object]],
    *,
    retrieved: date,
    region: str | None = None,
    currency: str | None = None,
    like: PriceBook | None = None,
) -> Imported:
    """Return the price book in decoded files; each comes with the name that errors give it.

    With `like`, a meter that has only some tiers of the same meter there is refused.
    """
    pages = [page for where, document in documents for page in pages_of(document, where)]
    _check_chain(pages)
    files = ", ".join(where for where, _ in documents)
    aside: list[SetAside] = []
    known = _known(items_of(pages), aside)
    if not known:
        raise PriceBookError(
            f"{files}: no item is a meter of Service Bus; ask the API with"
            " $filter=serviceName eq 'Service Bus'"
        )
    region = "".join(region.split()).lower() if region else None
    region = _chosen("region", region, [item.region for _, item in known])
    currency = currency and currency.upper()
    currency = _chosen("currency", currency, [item.currency for _, item in known])
    by_key: dict[str, list[MeterItem]] = defaultdict(list)
    for found in known:
        reason = found.item.unfit(region, currency, retrieved)
        if reason is None:
            _add(by_key[found.meter.key], found)
        else:
            aside.append(SetAside(found.item.place, found.item.meter_name, reason))
    newest = {key: _newest(by_key[key], aside) for key in NEEDED_METERS if key in by_key}
    meters = {key: _meter(key, found, like) for key, found in newest.items()}
    _check_complete(meters, aside, f"{files}: {region}, {currency}")
    document = _document(meters, retrieved, region, currency)
    book = parse(document, f"{region}-{retrieved}")
    return Imported(document, book, sum(map(len, newest.values())), tuple(aside))


def _check_chain(pages: Sequence[PricePage]) -> None:
    """Refuse a chain with a missing page: n pages have n - 1 links."""
    links = [page for page in pages if page.next_link]
    if pages and len(links) >= len(pages):
        raise PriceBookError(
            f"{links[-1].where}: NextPageLink names a page that is missing; import it too:"
            f" {links[-1].next_link!r:.300}"
        )


def _known(items: Sequence[PriceItem], aside: list[SetAside]) -> list[MeterItem]:
    """Return the items of a pair's bill with their meters; the others are set aside."""
    known = []
    for item in items:
        meters = [meter for meter in RETAIL_METERS if meter.is_of(item)]
        if not meters:
            reason = "no meter of a pair's bill"
            if not item.meter_name:
                reason = "it has no meterName: not understood"
            aside.append(SetAside(item.place, item.meter_name, reason))
            continue
        meter = next((meter for meter in meters if meter.has_unit_of(item)), None)
        if meter is None:
            units = " or ".join(meter.unit_of_measure for meter in meters)
            raise PriceBookError(
                f"{item.place}.unitOfMeasure of {item.meter_name} must be {units};"
                f" got {item.text('unitOfMeasure')!r:.60}"
            )
        known.append(MeterItem(meter, item))
    return known


def _chosen(what: str, wanted: str | None, available: Sequence[str]) -> str:
    """Return the region or currency of the book."""
    names = sorted(set(available))
    if wanted is not None and wanted not in names:
        raise PriceBookError(
            f"--{what} {wanted}: the items have no price of it, only of {', '.join(names)}"
        )
    if wanted is None and len(names) > 1:
        raise PriceBookError(
            f"the items are of more than one {what}: give --{what}, one of {', '.join(names)}"
        )
    return wanted or names[0]


def _add(others: list[MeterItem], found: MeterItem) -> None:
    """Add an item to those of its key; a region has one zone of Geo-Replication."""
    if others and others[0].meter.meter_name != found.meter.meter_name:
        raise PriceBookError(
            f"{found.item.place} is {found.meter.meter_name} and {others[0].item.place} is"
            f" {others[0].meter.meter_name}: leave out the zone that is not this region's"
        )
    others.append(found)


def _newest(found: Sequence[MeterItem], aside: list[SetAside]) -> list[MeterItem]:
    """Return one item for each tier, the one with the latest start date."""
    by_start: dict[int, MeterItem] = {}
    for one in sorted(found, key=lambda one: one.item.effective, reverse=True):
        item = one.item
        start = item.tier_start(one.meter.per)
        kept = by_start.setdefault(start, one).item
        if kept is item:
            continue
        if kept.effective > item.effective:
            reason = f"superseded on {kept.effective} by {kept.place}"
        elif kept.price() == item.price():
            reason = f"repeats {kept.place}"
        else:
            raise PriceBookError(
                f"{item.place} and {kept.place} give {item.meter_name} from {start} two prices,"
                f" {item.price()} and {kept.price()}"
            )
        aside.append(SetAside(item.place, item.meter_name, reason))
    return [by_start[start] for start in sorted(by_start)]


def _meter(key: str, found: Sequence[MeterItem], like: PriceBook | None) -> dict[str, object]:
    meter = found[0].meter
    tiers = {item.tier_start(meter.per): item.price() for _, item in found}
    _check_tiers(key, meter.meter_name, tiers, like)
    return {
        "meter_name": meter.meter_name,
        "unit": meter.unit,
        "per": meter.per,
        "tiers": [{"from": start, "price": f"{price:f}"} for start, price in tiers.items()],
    }


def _check_tiers(key: str, name: str, tiers: Mapping[int, Decimal], like: PriceBook | None) -> None:
    starts = list(tiers)
    if starts[0] != 0:
        raise PriceBookError(
            f"{name} lacks its tier from 0: the first begins at {starts[0]:,}; import all its items"
        )
    if key in NEVER_ALL_FREE and not any(tiers.values()):
        raise PriceBookError(
            f"{name} has only a free tier: those with a price are missing; import all its items"
        )
    usual = [tier.start for tier in like.meter(key).tiers] if like is not None else []
    if set(starts) < set(usual):
        lacking = ", ".join(f"{start:,}" for start in usual if start not in tiers)
        raise PriceBookError(
            f"{name} lacks its tier from {lacking}, which {like and like.name} has; import all its"
            " items, or give --fewer-tiers if Azure has fewer now"
        )


def _check_complete(meters: Mapping[str, object], aside: Sequence[SetAside], where: str) -> None:
    missing = [key for key in NEEDED_METERS if key not in meters and key not in MAY_BE_MISSING]
    if not set(missing) >= BASE_FORMS:
        missing = [key for key in missing if key not in BASE_FORMS]
    if not missing:
        return
    unpriced = ", ".join(f"{key} ({NEEDED_METERS[key]})" for key in missing)
    problem = f"{where}: no price for {unpriced}"
    names = {meter.meter_name for meter in RETAIL_METERS if meter.key in missing}
    for place, name, reason in aside:
        if name in names:
            raise PriceBookError(f"{problem}; {place} is set aside: {reason}")
    raise PriceBookError(f"{problem}; ask the API for all of Service Bus")


def _document(
    meters: Mapping[str, dict[str, object]], retrieved: date, region: str, currency: str
) -> dict[str, object]:
    by_key = {meter.key: meter for meter in reversed(RETAIL_METERS)}
    unpriced = {
        key: {
            "meter_name": by_key[key].meter_name,
            "unit": f"{by_key[key].unit}; not in the prices that were imported",
            "per": by_key[key].per,
            "tiers": [],
        }
        for key in NEEDED_METERS
    }
    return {
        "format": FORMAT,
        "source": f"Azure Retail Prices API, armRegionName '{region}'",
        "retrieved": retrieved.isoformat(),
        "region": region,
        "currency": currency,
        "meters": {key: meters.get(key, unpriced[key]) for key in NEEDED_METERS},
    }
