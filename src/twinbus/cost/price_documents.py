"""Reads and checks the fields of a price document; an error is one line that names the place."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Final

from twinbus.errors import TwinbusError

CURRENCY: Final = re.compile(r"[A-Z]{3}")
"""An ISO 4217 code, as Azure returns it."""

WHOLE_MAX: Final = 10**18
"""More than any count of a month."""

_PRICE: Final = re.compile(r"\d{1,9}(?:\.\d{1,12})?", re.ASCII)
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


class PriceBookError(TwinbusError):
    """A price book cannot be used; the text names the file, the place in it and what it needs."""


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
    """One object of a price book, and its place for errors."""

    content: Mapping[str, object]
    place: str
    is_top: bool = False

    @classmethod
    def of(cls, value: object, place: str, *, is_top: bool = True) -> PriceDocument:
        """Return the object at a place; PriceBookError if the value is no object."""
        if not isinstance(value, dict):
            raise PriceBookError(f"{place} must be an object; got {value!r:.60}")
        return cls(value, place, is_top)

    def at(self, key: str) -> str:
        """Return the place of a field for an error."""
        return f"{self.place}: {key}" if self.is_top else f"{self.place}.{key}"

    def inner(self, key: str) -> PriceDocument:
        return PriceDocument.of(self.content.get(key), self.at(key), is_top=False)

    def objects(self, key: str) -> list[PriceDocument]:
        """Return the objects in a list."""
        found = self.content.get(key)
        if not isinstance(found, list):
            raise self._wrong(key, "a list")
        return [
            PriceDocument.of(value, f"{self.at(key)}[{index}]", is_top=False)
            for index, value in enumerate(found)
        ]

    def text(self, key: str) -> str:
        found = self.content.get(key)
        if not isinstance(found, str) or not found.strip():
            raise self._wrong(key, "a text")
        return found

    def whole(self, key: str, least: int) -> int:
        found = self.content.get(key)
        # True is an int in Python, but no number here.
        if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= WHOLE_MAX:
            raise self._wrong(key, f"a whole number from {least}")
        return found

    def price(self, key: str) -> Decimal:
        """Return a price. It is a string: most programs read a number as a binary fraction."""
        found = self.content.get(key)
        if not isinstance(found, str) or not _PRICE.fullmatch(found):
            raise self._wrong(key, 'a string like "0.80", from 0')
        return Decimal(found)

    def currency(self, key: str) -> str:
        found = self.content.get(key)
        if not isinstance(found, str) or not CURRENCY.fullmatch(found):
            raise self._wrong(key, "three capital letters like USD")
        return found

    def day(self, key: str, today: date | None) -> date:
        """Return a day, which must not be after `today`."""
        found = self.content.get(key)
        try:
            if not isinstance(found, str) or not _DAY.fullmatch(found):
                raise ValueError(found)
            day = date.fromisoformat(found)
        except ValueError:
            raise self._wrong(key, "a day like 2026-10-05") from None
        if today is not None and day > today:
            raise PriceBookError(f"{self.at(key)} must not be after today, {today}; got {found}")
        return day

    def _wrong(self, key: str, needed: str) -> PriceBookError:
        found = self.content.get(key)
        shown = str(found) if isinstance(found, Decimal) else f"{found!r:.60}"
        return PriceBookError(f"{self.at(key)} must be {needed}; got {shown}")
