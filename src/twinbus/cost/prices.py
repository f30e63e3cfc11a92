"""Price books: JSON files with a date, a source and the meters of Service Bus. No price is in code.

The books that come with Twinbus are in the directory `prices` beside this file. One of your own is
a file of the same form, made from the Azure Retail Prices API; prices are strings, so that no digit
is lost. A meter without tiers is known and not priced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from importlib import resources
from pathlib import Path
from typing import Final, TypeGuard

from twinbus.errors import TwinbusError

__all__ = ["Meter", "PriceBook", "PriceBookError", "Tier", "load", "parse", "standard"]

FORMAT: Final = 1
"""The form of the file that this code reads."""

NEEDED_METERS: Final = ("operations", "egress")
"""What a bill of a pair is made of; a book may hold more."""


class PriceBookError(TwinbusError):
    """A price book cannot be used; the text names the file, the place in it and what it needs."""


@dataclass(frozen=True, slots=True)
class Tier:
    """From this quantity on (in single operations, hours, bytes) each `per` of them costs this."""

    start: int
    price: Decimal


@dataclass(frozen=True, slots=True)
class Meter:
    """One thing that is charged: in which portions, and at which price from which quantity on."""

    name: str
    unit: str
    per: int
    tiers: tuple[Tier, ...]

    @property
    def priced(self) -> bool:
        """False: the book knows the meter and no price for it."""
        return bool(self.tiers)

    def cost(self, quantity: int) -> Decimal | None:
        """What `quantity` in one month costs, each part at the price of its tier; None: no price.

        A started portion is charged by its part, as Azure does.
        """
        if not self.tiers:
            return None
        assert quantity >= 0, f"a quantity of {quantity}"
        total = Decimal(0)
        ends = [tier.start for tier in self.tiers[1:]] + [max(quantity, self.tiers[-1].start)]
        for tier, end in zip(self.tiers, ends, strict=True):
            inside = max(0, min(quantity, end) - tier.start)
            total += tier.price * inside / self.per
        return total

    def cost_past_free(self, quantity: int) -> Decimal | None:
        """What `quantity` costs once the month's free part is used up: at the first real price."""
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
        """The meter of this key; PriceBookError where the book has none."""
        if key not in self.meters:
            raise PriceBookError(
                f"price book {self.name} has no meter {key!r}; it has {', '.join(self.meters)}"
            )
        return self.meters[key]


def standard() -> PriceBook:
    """The newest book that comes with Twinbus."""
    books = resources.files("twinbus.cost").joinpath("prices")
    entries = [entry for entry in books.iterdir() if entry.name.startswith("standard-")]
    read = [parse(_json(entry.read_text("utf-8"), entry.name), entry.name) for entry in entries]
    return max(read, key=lambda book: (book.retrieved, book.name))


def load(path: Path | str) -> PriceBook:
    """The book in a file; PriceBookError, in one line, where it cannot be read or is not right."""
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise PriceBookError(f"price book {path}: {reason}") from error
    return parse(_json(text, str(path)), str(path))


def parse(document: object, where: str) -> PriceBook:
    """The book in a decoded JSON document; `where` names it in errors."""
    top = _object(document, where)
    if top.get("format") != FORMAT:
        raise PriceBookError(
            f"price book {where}: format is {top.get('format')!r}, and this Twinbus reads {FORMAT}"
        )
    meters = {
        key: _meter(value, f"{where}: meters.{key}")
        for key, value in _object(top.get("meters"), f"{where}: meters").items()
    }
    missing = [key for key in NEEDED_METERS if key not in meters]
    if missing:
        raise PriceBookError(
            f"price book {where}: meters lacks {', '.join(missing)}; a meter that has no price"
            ' has "tiers": []'
        )
    return PriceBook(
        name=Path(where).stem,
        source=_text(top, "source", where),
        retrieved=_date(_text(top, "retrieved", where), where),
        region=_text(top, "region", where),
        currency=_text(top, "currency", where),
        meters=meters,
    )


def _json(text: str, where: str) -> object:
    try:
        document: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PriceBookError(f"price book {where}: not JSON: {error}") from error
    return document


def _meter(value: object, where: str) -> Meter:
    found = _object(value, where)
    per = found.get("per")
    if not _whole(per) or per < 1:
        raise PriceBookError(f"price book {where}.per must be a whole number from 1; got {per!r}")
    tiers = found.get("tiers")
    if not isinstance(tiers, list):
        raise PriceBookError(f"price book {where}.tiers must be a list; got {tiers!r}")
    read = tuple(_tier(tier, f"{where}.tiers[{place}]") for place, tier in enumerate(tiers))
    starts = [tier.start for tier in read]
    if read and (starts[0] != 0 or starts != sorted(set(starts))):
        raise PriceBookError(f"price book {where}.tiers must begin at 0 and rise; got {starts}")
    return Meter(_text(found, "meter_name", where), _text(found, "unit", where), per, read)


def _tier(value: object, where: str) -> Tier:
    found = _object(value, where)
    start, price = found.get("from"), found.get("price")
    if not _whole(start) or start < 0:
        raise PriceBookError(
            f"price book {where}.from must be a whole number from 0; got {start!r}"
        )
    try:
        # A number would have been a binary fraction by now; a string keeps what was published.
        amount = Decimal(price) if isinstance(price, str) else Decimal("NaN")
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or amount < 0:
        raise PriceBookError(
            f'price book {where}.price must be a string like "0.80", from 0; got {price!r}'
        )
    return Tier(start, amount)


def _whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _object(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise PriceBookError(f"price book {where} must be an object; got {value!r:.60}")
    return value


def _text(found: Mapping[str, object], key: str, where: str) -> str:
    value = found.get(key)
    if not isinstance(value, str) or not value.strip():
        raise PriceBookError(f"price book {where}: {key} must be a text; got {value!r}")
    return value


def _date(text: str, where: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise PriceBookError(
            f"price book {where}: retrieved must be a day like 2026-10-05; got {text!r}"
        ) from error
