"""Makes a price book from pages of the Azure Retail Prices API. Pure: no call is made.

    page       {"Items": [...], "NextPageLink": ..., "Count": ...}, or a list of pages or of items
    item       meterName, unitOfMeasure, tierMinimumUnits, retailPrice, armRegionName, currencyCode

An item that no bill of a pair needs is set aside and listed. An item that a bill needs and that
cannot be read stops the import: a tier dropped in silence would be a wrong price.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import Any, Final, NamedTuple

from twinbus.cost.prices import (
    NEEDED_METERS,
    Meter,
    PriceBook,
    PriceBookError,
    PriceDocument,
    Tier,
    currency,
    matching,
    required,
)

PRICE_MAX: Final = Decimal(999_999_999)
"""The largest price that a book takes."""
PRICE_DIGITS_MAX: Final = 12
"""Decimal places, as many as a price book takes; Azure uses about six."""

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
    """The book, the number of items in it, and the items that are not."""

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

    def is_of(self, item: PriceDocument) -> bool:
        """Whether the item is a price of this meter, in whichever unit."""
        if _text(item, "meterName") != self.meter_name:
            return False
        if self.key == "egress":
            return _text(item, "productName") == EGRESS_PRODUCT
        return (_text(item, "serviceName") or _text(item, "productName")) == "Service Bus"

    def has_unit_of(self, item: PriceDocument) -> bool:
        """Whether the item is in this unit. The API writes both `1/Hour` and `1 Hour`."""
        units = (self.unit_of_measure, _text(item, "unitOfMeasure"))
        return len({unit.replace(" ", "/").lower() for unit in units}) == 1


@dataclass(frozen=True, slots=True)
class RetailPrice:
    """One item that is a price of a known meter."""

    meter: RetailMeter
    place: str
    region: str
    """A plain word, because it may become part of a file name."""
    currency: str
    kind: str
    effective: date
    """The first day of this price."""
    ends: date | None
    start: int
    """Of its tier, in operations, hours or bytes."""
    price: Decimal

    @classmethod
    def of(cls, meter: RetailMeter, item: PriceDocument) -> RetailPrice:
        """Return the price of an item; PriceBookError if a field of it cannot be read."""
        place, price = item.place.rstrip("."), item.get("retailPrice", _number)
        unit_price = item.get("unitPrice", _number) if "unitPrice" in item.content else price
        if price != unit_price:
            raise PriceBookError(
                f"{place}{item.about}: retailPrice {price} and unitPrice {unit_price} differ;"
                " only retail prices can be imported"
            )
        start = item.get("tierMinimumUnits", _number) * meter.per
        if start != start.to_integral_value():
            raise PriceBookError(
                f"{place}.tierMinimumUnits{item.about} must be whole when it is times"
                f" {meter.per:,}; got {start / meter.per}"
            )
        return cls(
            meter=meter,
            place=place,
            region=item.get("armRegionName", _region),
            currency=item.get("currencyCode", currency),
            kind=_text(item, "type"),
            effective=item.get("effectiveStartDate", _day) or date.min,
            ends=item.get("effectiveEndDate", _day),
            start=int(start),
            price=price,
        )

    def unfit(self, region: str, currency: str, on: date) -> str | None:
        """Return why this price is not of the region, currency and day; None: it is."""
        if self.region != region:
            return f"of the region {self.region}"
        if self.currency != currency:
            return f"in {self.currency}"
        if self.kind not in {"", "Consumption"}:
            return f"a price of the type {self.kind}"
        if self.effective > on:
            return f"in force from {self.effective} only"
        if self.ends is not None and self.ends < on:
            return f"in force until {self.ends}"
        return None


def _text(item: PriceDocument, key: str) -> str:
    """Return a text of an item; a field of another type reads as empty."""
    found = item.content.get(key)
    return found.strip() if isinstance(found, str) else ""


def _number(value: Any) -> Decimal:
    form = f"a number from 0 to {PRICE_MAX:,} with at most {PRICE_DIGITS_MAX} decimals"
    # True is a number in Python, but no price.
    is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    number = Decimal(required(value, is_number, form))
    required(number, number.is_finite() and 0 <= number <= PRICE_MAX, form)
    exponent = number.normalize().as_tuple().exponent
    return required(number, not isinstance(exponent, int) or -exponent <= PRICE_DIGITS_MAX, form)


def _region(value: Any) -> str:
    name = value.strip().lower() if isinstance(value, str) else ""
    return matching(name or "global", "[a-z0-9-]{1,50}", "letters and digits, like uksouth")


def _day(value: Any) -> date | None:
    try:
        return None if value is None else date.fromisoformat(str(value).strip()[:10])
    except ValueError:
        raise ValueError("a day like 2026-10-05T00:00:00Z") from None


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
    pages = [page for where, document in documents for page in _pages(document, where)]
    _check_chain(pages)
    files = ", ".join(where for where, _ in documents)
    aside: list[SetAside] = []
    known = list(_known(pages, aside))
    if not known:
        raise PriceBookError(
            f"{files}: no item is a meter of Service Bus; ask the API with"
            " $filter=serviceName eq 'Service Bus'"
        )
    region = "".join(region.split()).lower() if region else None
    region = _chosen("region", region, [one.region for one in known])
    currency = currency and currency.upper()
    currency = _chosen("currency", currency, [one.currency for one in known])
    by_key: dict[str, list[RetailPrice]] = defaultdict(list)
    for one in known:
        reason = one.unfit(region, currency, retrieved)
        if reason is None:
            _add(by_key[one.meter.key], one)
        else:
            aside.append(SetAside(one.place, one.meter.meter_name, reason))
    newest = {key: _newest(by_key[key], aside) for key in NEEDED_METERS if key in by_key}
    meters = {key: _meter(key, found, like) for key, found in newest.items()}
    _check_complete(meters, aside, f"{files}: {region}, {currency}")
    for meter in RETAIL_METERS:
        unit = f"{meter.unit}; not in the prices that were imported"
        meters.setdefault(meter.key, Meter(meter.meter_name, unit, meter.per, ()))
    book = PriceBook(
        name=f"{region}-{retrieved}",
        source=f"Azure Retail Prices API, armRegionName '{region}'",
        retrieved=retrieved,
        region=region,
        currency=currency,
        meters={key: meters[key] for key in NEEDED_METERS},
    )
    return Imported(book, sum(map(len, newest.values())), tuple(aside))


class PricePage(NamedTuple):
    """One answer of the API, with its file and its place there."""

    where: str
    path: str
    items: Sequence[object]
    next_link: object


def _pages(document: object, where: str) -> list[PricePage]:
    """Return the pages in a decoded file: a page, a list of pages, or a list of items."""
    if isinstance(document, list):
        if any(isinstance(entry, dict) and "Items" in entry for entry in document):
            return [_page(entry, where, f"[{index}].") for index, entry in enumerate(document)]
        return [PricePage(where, "", document, None)]
    return [_page(document, where, "")]


def _page(entry: object, where: str, path: str) -> PricePage:
    items = entry.get("Items") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(items, list):
        raise PriceBookError(
            f"{where}: {path}Items must be a list: this is not a page of the Azure Retail Prices"
            " API"
        )
    count = entry.get("Count")
    if isinstance(count, int) and count != len(items):
        raise PriceBookError(
            f"{where}: {path}Count says {count} and there are {len(items)} Items;"
            " fetch the page again"
        )
    return PricePage(where, f"{path}Items", items, entry.get("NextPageLink"))


def _check_chain(pages: Sequence[PricePage]) -> None:
    """Refuse a chain with a missing page: n pages have n - 1 links."""
    links = [page for page in pages if page.next_link]
    if pages and len(links) >= len(pages):
        raise PriceBookError(
            f"{links[-1].where}: NextPageLink names a page that is missing; import it too:"
            f" {links[-1].next_link!r:.300}"
        )


def _known(pages: Sequence[PricePage], aside: list[SetAside]) -> Iterator[RetailPrice]:
    """Yield the prices of a pair's bill; the other items are set aside."""
    for page, index, entry in ((p, i, one) for p in pages for i, one in enumerate(p.items)):
        place = f"{page.where}: {page.path}[{index}]"
        item = PriceDocument(entry if isinstance(entry, dict) else {}, f"{place}.")
        name = _text(item, "meterName")
        meters = [meter for meter in RETAIL_METERS if meter.is_of(item)]
        if not meters:
            reason = "no meter of a pair's bill" if name else "it has no meterName: not understood"
            aside.append(SetAside(place, name, reason))
            continue
        meter = next((meter for meter in meters if meter.has_unit_of(item)), None)
        if meter is None:
            units = " or ".join(meter.unit_of_measure for meter in meters)
            raise PriceBookError(
                f"{place}.unitOfMeasure of {name} must be {units};"
                f" got {_text(item, 'unitOfMeasure')!r:.60}"
            )
        yield RetailPrice.of(meter, replace(item, about=f" of {name}"))


def _chosen(what: str, wanted: str | None, available: Sequence[str]) -> str:
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


def _add(others: list[RetailPrice], one: RetailPrice) -> None:
    """Add a price to those of its key; a region has one zone of Geo-Replication."""
    if others and others[0].meter.meter_name != one.meter.meter_name:
        raise PriceBookError(
            f"{one.place} is {one.meter.meter_name} and {others[0].place} is"
            f" {others[0].meter.meter_name}: leave out the zone that is not this region's"
        )
    others.append(one)


def _newest(found: Sequence[RetailPrice], aside: list[SetAside]) -> list[RetailPrice]:
    """Return one price for each tier, the one with the latest start date."""
    by_start: dict[int, RetailPrice] = {}
    for one in sorted(found, key=lambda one: one.effective, reverse=True):
        name, kept = one.meter.meter_name, by_start.setdefault(one.start, one)
        if kept is one:
            continue
        if kept.effective > one.effective:
            reason = f"superseded on {kept.effective} by {kept.place}"
        elif kept.price == one.price:
            reason = f"repeats {kept.place}"
        else:
            raise PriceBookError(
                f"{one.place} and {kept.place} give {name} from {one.start} two prices,"
                f" {one.price} and {kept.price}"
            )
        aside.append(SetAside(one.place, name, reason))
    return [by_start[start] for start in sorted(by_start)]


def _meter(key: str, found: Sequence[RetailPrice], like: PriceBook | None) -> Meter:
    meter = found[0].meter
    name, tiers = meter.meter_name, {one.start: one.price for one in found}
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
    prices = tuple(Tier(start, price) for start, price in tiers.items())
    return Meter(name, meter.unit, meter.per, prices)


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
