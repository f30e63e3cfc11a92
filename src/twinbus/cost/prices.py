"""Price books: JSON files with a date, a source and the meters of Service Bus. No price is in code.

The books that ship with Twinbus are in the directory `prices` beside this file. `twinbus prices
import` makes others from the Azure Retail Prices API. A meter without tiers has no price, which is
not the same as free.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, Final, TypeVar

from twinbus.errors import TwinbusError

T = TypeVar("T")

FORMAT: Final = 1
"""The file format that this code reads."""

OLD_AFTER_DAYS: Final = 180
"""Azure changes its prices without notice, so an older book gets a warning."""

NEEDED_METERS: Final[Mapping[str, str]] = {
    "basic_operations": "operations of the Basic tier",
    "operations": "operations of the Standard tier",
    "base": "the Standard tier's base charge, by the hour",
    "base_month": "the Standard tier's base charge, by the month",
    "connections": "brokered connections of the Standard tier",
    "premium": "hours of a Premium messaging unit",
    "geo_replication": "data that Premium Geo-Replication copies",
    "egress": "data out of the region",
}
"""The meters of all bills. A book has all of them, with or without a price."""

WHOLE_MAX: Final = 10**18
"""More than any count of a month."""


class PriceBookError(TwinbusError):
    """A price book cannot be used; the text names the file, the place in it and what it needs."""


@dataclass(frozen=True, slots=True)
class Tier:
    """From this quantity on (in operations, hours or bytes), each `per` of them costs `price`."""

    start: int
    price: Decimal


@dataclass(frozen=True, slots=True)
class Meter:
    """One charged quantity with its price tiers."""

    name: str
    unit: str
    per: int
    tiers: tuple[Tier, ...]
    source: str | None = None
    """Source of this meter's prices, if it is not the book's."""
    retrieved: date | None = None

    @property
    def priced(self) -> bool:
        return bool(self.tiers)

    @property
    def free(self) -> int:
        """The free quantity of a month."""
        return next((tier.start for tier in self.tiers if tier.price), 0)

    def cost(self, quantity: int, already: int = 0) -> Decimal | None:
        """Return the cost of `quantity` in a month, each part at its tier's price; None: no price.

        `already` was used before in the month. A started portion is charged in proportion, as Azure
        does.
        """
        if not self.tiers:
            return None
        assert quantity >= 0, f"a quantity of {quantity}"
        assert already >= 0, f"{already} used already"
        return self._from_nothing(already + quantity) - self._from_nothing(already)

    def _from_nothing(self, quantity: int) -> Decimal:
        total = Decimal(0)
        ends = [tier.start for tier in self.tiers[1:]] + [max(quantity, self.tiers[-1].start)]
        for tier, end in zip(self.tiers, ends, strict=True):
            inside = max(0, min(quantity, end) - tier.start)
            total += tier.price * inside / self.per
        return total

    def document(self) -> dict[str, Any]:
        """Return the meter as the file of a book has it."""
        return {
            "meter_name": self.name,
            "unit": self.unit,
            "per": self.per,
            "tiers": [{"from": tier.start, "price": f"{tier.price:f}"} for tier in self.tiers],
            "source": self.source,
            "retrieved": self.retrieved.isoformat() if self.retrieved else None,
        }

    def cost_past_free(self, quantity: int) -> Decimal | None:
        """Return the cost of `quantity` at the first price above 0, past the free part."""
        first = next((tier.price for tier in self.tiers if tier.price), None)
        if first is None:
            return Decimal(0) if self.tiers else None
        return first * quantity / self.per


@dataclass(frozen=True, slots=True)
class PriceBook:
    """Prices of one region on one day."""

    name: str
    source: str
    retrieved: date
    region: str
    currency: str
    meters: Mapping[str, Meter]

    def meter(self, key: str) -> Meter:
        """Return the meter of this key; PriceBookError if the book has none."""
        if key not in self.meters:
            raise PriceBookError(
                f"price book {self.name} has no meter {key!r}; it has {', '.join(self.meters)}"
            )
        return self.meters[key]

    def age_days(self, today: date) -> int:
        """Return the days since its oldest price was retrieved."""
        days = [meter.retrieved or self.retrieved for meter in self.meters.values()]
        return (today - min([self.retrieved, *days])).days

    def document(self) -> dict[str, Any]:
        """Return the book as a file has it."""
        return {
            "format": FORMAT,
            "source": self.source,
            "retrieved": self.retrieved.isoformat(),
            "region": self.region,
            "currency": self.currency,
            "meters": {key: meter.document() for key, meter in self.meters.items()},
        }

    def warnings(self, today: date) -> list[str]:
        """Return a warning if the prices are old."""
        age = self.age_days(today)
        if age <= OLD_AFTER_DAYS:
            return []
        old = f"the prices are {age} days old, more than {OLD_AFTER_DAYS}"
        return [f"{old}: get new ones from the Azure Retail Prices API and `twinbus prices import`"]


def standard() -> PriceBook:
    """Return the newest book that ships with Twinbus."""
    books = resources.files("twinbus.cost").joinpath("prices")
    entries = [entry for entry in books.iterdir() if entry.name.startswith("standard-")]
    read = [_read(entry.read_text("utf-8"), entry.name, None) for entry in entries]
    return max(read, key=lambda book: (book.retrieved, book.name))


def load(path: Path | str, today: date | None = None) -> PriceBook:
    """Return the book in a file; PriceBookError, in one line, if it is not valid."""
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise PriceBookError(f"price book {path}: {reason}") from error
    return _read(text, str(path), today)


def _read(text: str, where: str, today: date | None) -> PriceBook:
    return parse(read_json(text, f"price book {where}"), where, today)


def read_json(text: str, where: str) -> object:
    """Return the JSON document in a text, with fractions as exact decimals.

    `where` begins the error, which is one line.
    """
    try:
        document: object = json.loads(text, parse_float=Decimal)
    # Decimal raises InvalidOperation for an exponent out of range.
    except (ValueError, RecursionError, InvalidOperation) as error:
        raise PriceBookError(f"{where}: not JSON: {error}") from error
    return document


@dataclass(frozen=True, slots=True)
class PriceDocument:
    """One object of a JSON file."""

    content: Mapping[str, object]
    place: str
    """Precedes the name of a field in errors."""
    about: str = ""
    """Follows it."""

    @classmethod
    def of(cls, value: object, place: str, dot: str = ".") -> PriceDocument:
        """Return the object at a place; PriceBookError if the value is not an object."""
        if not isinstance(value, dict):
            raise PriceBookError(f"{place} must be an object; got {value!r:.60}")
        return cls(value, place + dot)

    def get(self, key: str, read: Callable[[Any], T]) -> T:
        """Return a field as `read` does; its ValueError says what the field must be."""
        found = self.content.get(key)
        try:
            return read(found)
        except ValueError as error:
            shown = str(found) if isinstance(found, Decimal) else repr(found)
            text = f"{self.place}{key}{self.about} must be {error}; got {shown:.60}"
            raise PriceBookError(text) from None

    def inner(self, key: str) -> PriceDocument:
        return PriceDocument.of(self.content.get(key), self.place + key)

    def objects(self, key: str) -> list[PriceDocument]:
        found = self.get(key, lambda value: required(value, isinstance(value, list), "a list"))
        return [PriceDocument.of(one, f"{self.place}{key}[{at}]") for at, one in enumerate(found)]

    def day(self, key: str, today: date | None) -> date:
        """Return a day, which must not be after `today`."""
        day = self.get(key, _day)
        if today is not None and day > today:
            raise PriceBookError(f"{self.place}{key} must not be after today, {today}; got {day}")
        return day


def required(value: T, is_fine: object, form: str) -> T:
    """Return the value; ValueError with the form if it is not fine."""
    if not is_fine:
        raise ValueError(form)
    return value


def matching(value: Any, pattern: str, form: str) -> str:
    """Return a text of this pattern; ValueError with the form if it is not one."""
    is_fine = isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII)
    return str(required(value, is_fine, form))


def currency(value: Any) -> str:
    """Return an ISO 4217 code, as Azure returns it."""
    return matching(value, "[A-Z]{3}", "three capital letters like USD")


def _text(value: Any) -> str:
    return str(required(value, isinstance(value, str) and value.strip(), "a text"))


def _whole(value: Any, least: int = 0) -> int:
    # True is an int in Python, but no number here.
    is_fine = type(value) is int and least <= value <= WHOLE_MAX
    return int(required(value, is_fine, f"a whole number from {least}"))


def _price(value: Any) -> Decimal:
    """Return a price. It is a string: most programs read a number as a binary fraction."""
    return Decimal(matching(value, r"\d{1,9}(?:\.\d{1,12})?", 'a string like "0.80", from 0'))


def _day(value: Any) -> date:
    form = "a day like 2026-10-05"
    try:
        return date.fromisoformat(matching(value, r"\d{4}-\d\d-\d\d", form))
    except ValueError:
        raise ValueError(form) from None


def parse(document: object, where: str, today: date | None = None) -> PriceBook:
    """Return the book in a decoded JSON document; `where` names it in errors.

    With `today` a book with a later date is refused.
    """
    top = PriceDocument.of(document, f"price book {where}", ": ")
    _check_format(top)
    meters = top.inner("meters")
    missing = [key for key in NEEDED_METERS if key not in meters.content]
    if missing:
        raise PriceBookError(
            f"{top.place}meters lacks {', '.join(missing)};"
            ' a meter that has no price has "tiers": []'
        )
    return PriceBook(
        name=Path(where).stem,
        source=top.get("source", _text),
        retrieved=top.day("retrieved", today),
        region=top.get("region", _text),
        currency=top.get("currency", currency),
        meters={key: _meter(meters.inner(key), today) for key in meters.content},
    )


def _check_format(top: PriceDocument) -> None:
    found = top.content.get("format")
    if found == FORMAT and found is not True:
        return
    newer = isinstance(found, int) and found > FORMAT
    hint = ": it is of a newer Twinbus, upgrade this one" if newer else ""
    raise PriceBookError(
        f"{top.place}format is {found!r:.60}, and this Twinbus reads {FORMAT}{hint}"
    )


def _meter(found: PriceDocument, today: date | None) -> Meter:
    tiers = tuple(
        Tier(tier.get("from", _whole), tier.get("price", _price)) for tier in found.objects("tiers")
    )
    starts = [tier.start for tier in tiers]
    if starts and starts[0] != 0:
        raise PriceBookError(
            f"{found.place}tiers lacks the tier from 0: the first begins at {starts[0]}"
        )
    if starts != sorted(set(starts)):
        raise PriceBookError(f"{found.place}tiers must rise; they begin at {starts!r:.60}")
    return Meter(
        name=found.get("meter_name", _text),
        unit=found.get("unit", _text),
        per=found.get("per", partial(_whole, least=1)),
        tiers=tiers,
        source=found.get("source", _text) if found.content.get("source") is not None else None,
        retrieved=found.day("retrieved", today)
        if found.content.get("retrieved") is not None
        else None,
    )
