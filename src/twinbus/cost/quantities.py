"""Parses rates, sizes, durations and frequencies exactly, to fractions and whole bytes.

    rate       500/s   30000/min   2M/day   0.5/h   a bare number is per second; k, M, G are
               powers of 1000
    size       2KB   64KiB   1.5 MB   700   KB and KiB both are 1024 bytes, MB and GB powers of it,
               as Service Bus means them where it bills by 64 KB and takes 256 KB; a bare number is
               bytes
    duration   250ms   60s   40min   1h30min   2 d   a bare number is seconds
    frequency  2/year   1/month   how often something happens, by a year of 365 days

Invalid text raises a `QuantityError` that names the option, the form, the limit and the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from twinbus.errors import TwinbusError

KB: Final = 1_024
"""Bytes of a KB, as in the 64 KB of a billed unit and the 256 KB of a Standard message."""

HOUR_S: Final = 3_600
DAY_S: Final = 86_400
YEAR_S: Final = 365 * DAY_S

RATE_MAX_PER_S: Final = 10_000_000
"""Ten thousand Standard namespaces at their limit."""

SIZE_MAX_BYTES: Final = 100 * KB * KB
"""Maximum message size of Service Bus (Premium)."""

DURATION_MAX_S: Final = YEAR_S
"""One year."""

FREQUENCY_MAX_PER_YEAR: Final = 365 * 24
"""One an hour."""

_NUMBER: Final = r"(\d{1,15}(?:\.\d{1,15})?|\.\d{1,15})"
"""Plain digits, bounded so that a number cannot exhaust memory."""

_RATE: Final = re.compile(rf"{_NUMBER}\s*([kKMG]?)\s*(?:/\s*(\w+))?", re.ASCII)
_SIZE: Final = re.compile(rf"{_NUMBER}\s*([a-z]*)", re.ASCII | re.IGNORECASE)
_FREQUENCY: Final = re.compile(rf"{_NUMBER}\s*/\s*(\w+)", re.ASCII)
_PART: Final = re.compile(rf"\s*{_NUMBER}\s*([a-z]+)\s*", re.ASCII | re.IGNORECASE)

_THOUSANDS: Final[Mapping[str, int]] = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9}

_SIZES: Final[Mapping[str, int]] = {
    name: KB**power
    for power, names in enumerate((("", "b"), ("kb", "kib"), ("mb", "mib"), ("gb", "gib")))
    for name in names
}

_PERIODS_S: Final[Mapping[str, Fraction]] = {
    name: seconds
    for names, seconds in (
        ("ms", Fraction(1, 1000)),
        ("s sec second seconds", Fraction(1)),
        ("m min minute minutes", Fraction(60)),
        ("h hour hours", Fraction(HOUR_S)),
        ("d day days", Fraction(DAY_S)),
        ("w week weeks", Fraction(7 * DAY_S)),
        ("month months", Fraction(YEAR_S, 12)),
        ("y year years", Fraction(YEAR_S)),
    )
    for name in names.split()
}


class QuantityError(TwinbusError, ValueError):
    """A rate, a size or a duration cannot be read or is out of its range; the text says which."""


def parse_rate(text: str, name: str = "rate", *, most: int = RATE_MAX_PER_S) -> Fraction:
    """Return messages per second: more than 0, at most `most`."""
    form = "a number and a time, like 500/s, 30000/min or 2M/day"
    found = _matched(_RATE, text, name, form)
    number, thousands, period = found.groups()
    seconds = _PERIODS_S.get((period or "s").lower())
    if seconds is None:
        raise _invalid(text, name, form)
    per_s = Fraction(number) * _THOUSANDS[thousands] / seconds
    if not 0 < per_s <= most:
        raise QuantityError(
            f"{name} must be more than 0 and at most {most:,} a second; got {text!r:.60}"
        )
    return per_s


def parse_size(text: str, name: str = "size", *, most: int = SIZE_MAX_BYTES) -> int:
    """Return bytes from 0 to `most`, rounded up."""
    form = "a number and B, KB or MB, like 2KB or 64KiB"
    number, unit = _matched(_SIZE, text, name, form).groups()
    if unit.lower() not in _SIZES:
        raise _invalid(text, name, form)
    exact = Fraction(number) * _SIZES[unit.lower()]
    size_bytes = -(-exact.numerator // exact.denominator)
    if size_bytes > most:
        raise QuantityError(f"{name} must be at most {most:,} bytes; got {text!r:.60}")
    return size_bytes


def parse_duration(
    text: str, name: str = "duration", *, least: float = 0, most: float = DURATION_MAX_S
) -> Fraction:
    """Return seconds from `least` to `most`."""
    form = "a number and ms, s, min, h or d, like 60s, 40min or 1h30min"
    seconds, at = Fraction(0), 0
    stripped = text.strip()
    if bare := re.fullmatch(_NUMBER, stripped, re.ASCII):
        seconds, at = Fraction(bare[1]), len(stripped)
    while at < len(stripped):
        part = _PART.match(stripped, at)
        if part is None or part[2].lower() not in _PERIODS_S:
            raise _invalid(text, name, form)
        seconds += Fraction(part[1]) * _PERIODS_S[part[2].lower()]
        at = part.end()
    if not stripped:
        raise _invalid(text, name, form)
    if not least <= seconds <= most:
        bounds = f"from {float(least):,.10g} to {float(most):,.10g} seconds"
        raise QuantityError(f"{name} must be {bounds}; got {text!r:.60}")
    return seconds


def parse_frequency(text: str, name: str = "frequency") -> Fraction:
    """Return times per year, from 0 to one an hour."""
    form = "a number and a time, like 2/year or 1/month"
    number, period = _matched(_FREQUENCY, text, name, form).groups()
    seconds = _PERIODS_S.get(period.lower())
    if seconds is None:
        raise _invalid(text, name, form)
    per_year = Fraction(number) * YEAR_S / seconds
    if per_year > FREQUENCY_MAX_PER_YEAR:
        most = f"{FREQUENCY_MAX_PER_YEAR:,}"
        raise QuantityError(f"{name} must be at most {most} a year; got {text!r:.60}")
    return per_year


def _matched(pattern: re.Pattern[str], text: str, name: str, form: str) -> re.Match[str]:
    found = pattern.fullmatch(text.strip())
    if found is None:
        raise _invalid(text, name, form)
    return found


def _invalid(text: str, name: str, form: str) -> QuantityError:
    if re.match(r"\s*-\s*[\d.]", text):
        return QuantityError(f"{name} must not be negative; got {text!r:.60}")
    return QuantityError(f"{name} must be {form}; got {text!r:.60}")
