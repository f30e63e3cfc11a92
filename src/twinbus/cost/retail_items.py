"""Reads pages and items of the Azure Retail Prices API; an error names its place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Final

from twinbus.cost.price_documents import CURRENCY, PriceBookError

REGION: Final = re.compile(r"[a-z0-9-]{1,50}", re.ASCII)

PRICE_MAX: Final = Decimal(10) ** 9
PRICE_DIGITS_MAX: Final = 12
"""Decimal places, as many as a price book takes; Azure uses about six."""


@dataclass(frozen=True, slots=True)
class PricePage:
    """One answer of the API, with its place in a file."""

    where: str
    path: str
    items: list[object]
    next_link: str | None


@dataclass(frozen=True, slots=True)
class PriceItem:
    """One price. A text field of another type reads as empty; numbers are checked when read."""

    place: str
    content: Mapping[str, object]

    def text(self, name: str) -> str:
        found = self.content.get(name)
        return found.strip() if isinstance(found, str) else ""

    @property
    def meter_name(self) -> str:
        return self.text("meterName")

    @property
    def region(self) -> str:
        """The region: a plain word, because it may become part of a file name."""
        found = self.text("armRegionName").lower() or "global"
        if not REGION.fullmatch(found):
            raise self._wrong("armRegionName", "letters and digits, like uksouth")
        return found

    @property
    def currency(self) -> str:
        """The currency; PriceBookError if it is not three capital letters."""
        found = self.text("currencyCode")
        if not CURRENCY.fullmatch(found):
            raise self._wrong("currencyCode", "three capital letters like USD")
        return found

    @property
    def effective(self) -> date:
        """The first day of this price."""
        return self._day("effectiveStartDate") or date.min

    def price(self) -> Decimal:
        """Return the retail price, without discounts."""
        price = self._number("retailPrice")
        unit_price = self._number("unitPrice") if "unitPrice" in self.content else price
        if price != unit_price:
            raise PriceBookError(
                f"{self.place} of {self.meter_name}: retailPrice {price} and unitPrice"
                f" {unit_price} differ; only retail prices can be imported"
            )
        return price

    def tier_start(self, per: int) -> int:
        """Return the start of the tier in operations, hours or bytes."""
        start = self._number("tierMinimumUnits") * per
        if start != start.to_integral_value():
            raise self._wrong("tierMinimumUnits", f"whole when it is times {per:,}")
        return int(start)

    def unfit(self, region: str, currency: str, on: date) -> str | None:
        """Return why the item is no price of this region, currency and day; None: it is."""
        end = self._day("effectiveEndDate")
        if self.region != region:
            return f"of the region {self.region}"
        if self.currency != currency:
            return f"in {self.currency}"
        if self.text("type") not in {"", "Consumption"}:
            return f"a price of the type {self.text('type')}"
        if self.effective > on:
            return f"in force from {self.effective} only"
        if end is not None and end < on:
            return f"in force until {end}"
        return None

    def _number(self, name: str) -> Decimal:
        found = self.content.get(name)
        # True is a number in Python, but no price.
        if isinstance(found, bool) or not isinstance(found, int | Decimal):
            raise self._wrong(name, "a number")
        number = Decimal(found)
        if not number.is_finite() or not 0 <= number <= PRICE_MAX:
            raise self._wrong(name, f"from 0 to {PRICE_MAX:,}")
        exponent = number.normalize().as_tuple().exponent
        if isinstance(exponent, int) and -exponent > PRICE_DIGITS_MAX:
            raise self._wrong(name, f"a number of at most {PRICE_DIGITS_MAX} decimal places")
        return number

    def _day(self, name: str) -> date | None:
        if self.content.get(name) is None:
            return None
        try:
            return date.fromisoformat(self.text(name)[:10])
        except ValueError:
            raise self._wrong(name, "a day like 2026-10-05T00:00:00Z") from None

    def _wrong(self, name: str, needed: str) -> PriceBookError:
        found = self.content.get(name)
        shown = str(found) if isinstance(found, Decimal) else repr(found)
        return PriceBookError(
            f"{self.place}.{name} of {self.meter_name} must be {needed}; got {shown:.60}"
        )


def pages_of(document: object, where: str) -> list[PricePage]:
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
            f"{where}: {path}Items must be a list: this is no page of the Azure Retail Prices API"
        )
    count, link = entry.get("Count"), entry.get("NextPageLink")
    if isinstance(count, int) and count != len(items):
        raise PriceBookError(
            f"{where}: {path}Count says {count} and there are {len(items)} Items;"
            " fetch the page again"
        )
    return PricePage(where, f"{path}Items", items, link if isinstance(link, str) and link else None)


def items_of(pages: Iterable[PricePage]) -> list[PriceItem]:
    """Return all items of all pages; an entry that is no object becomes an item without fields."""
    return [
        PriceItem(f"{page.where}: {page.path}[{index}]", entry if isinstance(entry, dict) else {})
        for page in pages
        for index, entry in enumerate(page.items)
    ]
