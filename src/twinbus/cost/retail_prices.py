"""From pages of the Azure Retail Prices API to a price book: pure, no call is made.

    page       {"Items": [...], "NextPageLink": ..., "Count": ...}, or a list of pages or of items
    item       meterName, unitOfMeasure, tierMinimumUnits, retailPrice, armRegionName, currencyCode

An item that a bill of a pair has no use for is set aside, counted and listed. One that a bill needs
and that cannot be read stops the import: a tier dropped in silence would be a wrong price.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Final, NamedTuple

from twinbus.cost.price_documents import PriceBookError
from twinbus.cost.prices import FORMAT, NEEDED_METERS, PriceBook, parse
from twinbus.cost.retail_items import PriceItem, PricePage, items_of, pages_of

__all__ = ["Imported", "SetAside", "book_from"]

MAY_BE_MISSING: Final = frozenset({"geo_replication", "egress"})
"""Not sold in every region, and another service's; without a price they are not priced."""

BASE_FORMS: Final = frozenset({"base", "base_month"})
"""The same charge by the hour and by the month: one of them is enough."""

NEVER_ALL_FREE: Final = frozenset({"operations", "connections", "basic_operations", "premium"})


class SetAside(NamedTuple):
    """An item that is not in the book, and why."""

    place: str
    meter_name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Imported:
    """The book, the document it was made of, and what did not get into it."""

    document: Mapping[str, object]
    book: PriceBook
    taken: int
    set_aside: tuple[SetAside, ...]


class Wanted(NamedTuple):
    """One meter of the API in one of its units, and where it goes."""

    key: str
    service: str
    meter_name: str
    unit_of_measure: str
    per: int
    unit: str


_BUS: Final = "Service Bus"
_GB: Final = 1_000_000_000

WANTED: Final = (
    Wanted("basic_operations", _BUS, "Basic Messaging Operations", "1M", 10**6, "1M operations"),
    Wanted("operations", _BUS, "Standard Messaging Operations", "1M", 10**6, "1M operations"),
    Wanted("base", _BUS, "Standard Base Unit", "1/Hour", 1, "1 hour, once for a subscription"),
    Wanted("base_month", _BUS, "Standard Base Unit", "1/Month", 1, "1 month, the same charge"),
    Wanted("connections", _BUS, "Standard Brokered Connection", "1", 1, "1 connection, a month"),
    Wanted("premium", _BUS, "Premium Messaging Unit", "1/Hour", 1, "1 hour of a messaging unit"),
    *(
        Wanted(
            "geo_replication",
            _BUS,
            f"Geo Replication Zone {zone} Data Transfer",
            "1 GB",
            _GB,
            f"1 GB copied by Premium Geo-Replication, zone {zone}",
        )
        for zone in (1, 2, 3)
    ),
    Wanted("egress", "Bandwidth", "Standard Data Transfer Out", "1 GB", _GB, "1 GB out"),
)
"""Bandwidth is sold under several products; this is the one of traffic over Microsoft's network."""

EGRESS_PRODUCT: Final = "Rtn Preference: MGN"


def book_from(
    documents: Sequence[tuple[str, object]],
    *,
    retrieved: date,
    region: str | None = None,
    currency: str | None = None,
    like: PriceBook | None = None,
) -> Imported:
    """The price book in decoded files, each with the name that errors give it.

    With `like` a meter that has some and not all tiers of the same meter there is refused.
    """
    pages = [page for where, document in documents for page in pages_of(document, where)]
    _check_chain(pages)
    aside: list[SetAside] = []
    known = list(_known(items_of(pages), aside))
    if not known:
        raise PriceBookError(
            f"{_names(documents)}: no item is a meter of Service Bus; ask the API with"
            " $filter=serviceName eq 'Service Bus'"
        )
    chosen_region = _chosen("region", _plain(region), [item.region for _, item in known])
    chosen_currency = _chosen(
        "currency", currency and currency.upper(), [item.currency for _, item in known]
    )
    meters: dict[str, dict[str, object]] = {}
    taken = 0
    wanted_items = _of_this_bill(known, chosen_region, chosen_currency, retrieved, aside)
    for key, found in _by_key(wanted_items).items():
        newest = _newest(found, aside)
        taken += len(newest)
        meters[key] = _meter(key, newest, like)
    _check_all_there(meters, aside, f"{_names(documents)}: {chosen_region}, {chosen_currency}")
    document = _document(meters, retrieved, chosen_region, chosen_currency)
    book = parse(document, f"{chosen_region}-{retrieved}")
    return Imported(document, book, taken, tuple(aside))


def _check_chain(pages: Sequence[PricePage]) -> None:
    """A chain of n pages has n - 1 links; one more leads to a page that nobody gave us."""
    links = [page for page in pages if page.next_link]
    if pages and len(links) >= len(pages):
        raise PriceBookError(
            f"{links[-1].where}: NextPageLink names a page that is missing; import it too:"
            f" {links[-1].next_link!r:.300}"
        )


def _known(items: Sequence[PriceItem], aside: list[SetAside]) -> list[tuple[Wanted, PriceItem]]:
    known = []
    for item in items:
        if not item.meter_name:
            aside.append(SetAside(item.place, "", "it has no meterName: not understood"))
            continue
        matching = [wanted for wanted in WANTED if _is_meter(item, wanted)]
        if not matching:
            aside.append(SetAside(item.place, item.meter_name, "no meter of a pair's bill"))
            continue
        for wanted in matching:
            if _same_unit(item.unit_of_measure, wanted.unit_of_measure):
                known.append((wanted, item))
                break
        else:
            units = " or ".join(wanted.unit_of_measure for wanted in matching)
            raise PriceBookError(
                f"{item.place}.unitOfMeasure of {item.meter_name} must be {units};"
                f" got {item.unit_of_measure!r:.60}"
            )
    return known


def _is_meter(item: PriceItem, wanted: Wanted) -> bool:
    if item.meter_name != wanted.meter_name:
        return False
    if wanted.key == "egress":
        return item.product == EGRESS_PRODUCT
    return (item.service or item.product) == wanted.service


def _same_unit(one: str, other: str) -> bool:
    """`1/Hour` and `1 Hour` are the same to the API, which writes both."""
    return one.replace(" ", "/").lower() == other.replace(" ", "/").lower()


def _plain(region: str | None) -> str | None:
    return re.sub(r"\s+", "", region).lower() if region else None


def _chosen(what: str, asked: str | None, there: Sequence[str]) -> str:
    names = sorted(set(there))
    if asked is not None and asked not in names:
        raise PriceBookError(
            f"--{what} {asked}: the items have no price of it, only of {', '.join(names)}"
        )
    if asked is None and len(names) > 1:
        raise PriceBookError(
            f"the items are of more than one {what}: say --{what}, one of {', '.join(names)}"
        )
    return asked or names[0]


def _of_this_bill(
    known: Sequence[tuple[Wanted, PriceItem]],
    region: str,
    currency: str,
    retrieved: date,
    aside: list[SetAside],
) -> list[tuple[Wanted, PriceItem]]:
    kept = []
    for wanted, item in known:
        reason = item.unfit(region, currency, retrieved)
        if reason is None:
            kept.append((wanted, item))
        else:
            aside.append(SetAside(item.place, item.meter_name, reason))
    return kept


def _by_key(found: Sequence[tuple[Wanted, PriceItem]]) -> dict[str, list[tuple[Wanted, PriceItem]]]:
    """The items of each meter; a region has one zone of Geo-Replication."""
    by_key: dict[str, list[tuple[Wanted, PriceItem]]] = defaultdict(list)
    for wanted, item in found:
        others = by_key[wanted.key]
        if others and others[0][0].meter_name != wanted.meter_name:
            raise PriceBookError(
                f"{item.place} is {wanted.meter_name} and {others[0][1].place} is"
                f" {others[0][0].meter_name}: leave out the zone that is not this region's"
            )
        others.append((wanted, item))
    return {key: by_key[key] for key in NEEDED_METERS if key in by_key}


def _newest(
    found: Sequence[tuple[Wanted, PriceItem]], aside: list[SetAside]
) -> list[tuple[Wanted, PriceItem]]:
    """One item for each tier: that in force since the latest day."""
    by_start: dict[int, tuple[Wanted, PriceItem]] = {}
    for wanted, item in sorted(found, key=lambda pair: pair[1].effective, reverse=True):
        start = item.tier_start(wanted.per)
        kept = by_start.setdefault(start, (wanted, item))[1]
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


def _meter(
    key: str, found: Sequence[tuple[Wanted, PriceItem]], like: PriceBook | None
) -> dict[str, object]:
    wanted = found[0][0]
    tiers = {item.tier_start(wanted.per): item.price() for _, item in found}
    _check_tiers(key, wanted.meter_name, tiers, like)
    return {
        "meter_name": wanted.meter_name,
        "unit": wanted.unit,
        "per": wanted.per,
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
            " items, or say --fewer-tiers if Azure has fewer now"
        )


def _check_all_there(meters: Mapping[str, object], aside: Sequence[SetAside], where: str) -> None:
    missing = [key for key in NEEDED_METERS if key not in meters and key not in MAY_BE_MISSING]
    if not set(missing) >= BASE_FORMS:
        missing = [key for key in missing if key not in BASE_FORMS]
    if not missing:
        return
    said = ", ".join(f"{key} ({NEEDED_METERS[key]})" for key in missing)
    names = {wanted.meter_name for wanted in WANTED if wanted.key in missing}
    for place, name, reason in aside:
        if name in names:
            raise PriceBookError(f"{where}: no price for {said}; {place} is set aside: {reason}")
    raise PriceBookError(f"{where}: no price for {said}; ask the API for all of Service Bus")


def _document(
    meters: Mapping[str, dict[str, object]], retrieved: date, region: str, currency: str
) -> dict[str, object]:
    names = {wanted.key: wanted for wanted in reversed(WANTED)}
    empty = {
        key: {
            "meter_name": names[key].meter_name,
            "unit": f"{names[key].unit}; not in the prices that were imported",
            "per": names[key].per,
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
        "meters": {key: meters.get(key, empty[key]) for key in NEEDED_METERS},
    }


def _names(documents: Sequence[tuple[str, object]]) -> str:
    return ", ".join(where for where, _ in documents)
