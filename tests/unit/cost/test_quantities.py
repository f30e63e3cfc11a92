"""Rates, sizes and durations: what people write, by hand; and one clear line for the rest."""

from __future__ import annotations

import contextlib
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.cost.arithmetic import (
    QuantityError,
    parse_duration,
    parse_frequency,
    parse_rate,
    parse_size,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("text", "per_s"),
    [
        ("500/s", 500),
        ("500", 500),
        ("30000/min", 500),
        ("2M/day", Fraction(2_000_000, 86_400)),
        (" 1.5k / sec ", 1_500),
        ("0.5/h", Fraction(1, 7_200)),
        ("1/week", Fraction(1, 604_800)),
    ],
)
def test_a_rate_is_read_exactly(text: str, per_s: int | Fraction) -> None:
    assert parse_rate(text) == per_s


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("2KB", 2_048),
        ("2kb", 2_048),
        ("64KiB", 65_536),
        ("256 KB", 262_144),
        ("1.5MB", 1_572_864),
        ("700", 700),
        ("0", 0),
        ("0.3 KB", 308),  # 307.2 bytes: a part of a byte is a whole one
    ],
)
def test_a_size_counts_by_1024(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60s", 60),
        ("60", 60),
        ("40min", 2_400),
        ("40 m", 2_400),
        ("1h30min", 5_400),
        ("1h 30min 5s", 5_405),
        ("250ms", Fraction(1, 4)),
        ("2 days", 172_800),
    ],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: int | Fraction) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "per_year"),
    [("2/year", 2), ("1/month", 12), ("0/year", 0), ("1/day", 365), ("0.5/y", Fraction(1, 2))],
)
def test_a_frequency_is_read_by_the_year(text: str, per_year: int | Fraction) -> None:
    assert parse_frequency(text) == per_year


@pytest.mark.parametrize(
    ("parse", "text", "complaint"),
    [
        (parse_rate, "-5/s", "--it must not be negative; got '-5/s'"),
        (parse_rate, "0/s", "--it must be more than 0 and at most 10,000,000 a second; got '0/s'"),
        (parse_rate, "11M/s", "at most 10,000,000 a second; got '11M/s'"),
        (parse_rate, "fast", "like 500/s, 30000/min or 2M/day; got 'fast'"),
        (parse_rate, "5/fortnight", "like 500/s"),
        (parse_rate, "2m/day", "like 500/s"),
        (parse_rate, "1,000/s", "like 500/s"),
        (parse_rate, "", "like 500/s"),
        (parse_rate, "1e9/s", "like 500/s"),
        (parse_rate, "9" * 16, "like 500/s"),
        (parse_size, "101MB", "--it must be at most 104,857,600 bytes; got '101MB'"),
        (parse_size, "-1", "must not be negative"),
        (parse_size, "2 TB", "like 2KB or 64KiB; got '2 TB'"),
        (parse_size, "KB", "like 2KB"),
        (parse_duration, "2y", "from 0 to 31,536,000 seconds; got '2y'"),
        (parse_duration, "", "like 60s, 40min or 1h30min; got ''"),
        (parse_duration, "40 parsec", "like 60s"),
        (parse_duration, "1h30", "like 60s"),
        (parse_duration, "-1s", "must not be negative"),
        (parse_frequency, "2", "like 2/year or 1/month; got '2'"),
        (parse_frequency, "1/s", "at most 8,760 a year; got '1/s'"),
        (parse_frequency, "1/eon", "like 2/year"),
        (parse_frequency, "-1/year", "must not be negative"),
    ],
)
def test_what_cannot_be_read_is_one_line_with_the_option_and_the_form(
    parse: Callable[[str, str], object], text: str, complaint: str
) -> None:
    with pytest.raises(QuantityError) as caught:
        parse(text, "--it")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=30))
def test_no_text_breaks_a_parser(text: str) -> None:
    for parse in (parse_rate, parse_size, parse_duration, parse_frequency):
        with contextlib.suppress(QuantityError):
            assert parse(text) >= 0
