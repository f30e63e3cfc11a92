"""Patterns of outages: how they are read."""

from __future__ import annotations

import math

import pytest

from twinbus.cost.arithmetic import QuantityError
from twinbus.planning.question import Lengths, OutagePattern, parse_pattern


def test_a_pattern_is_read_as_people_write_it() -> None:
    assert parse_pattern("2/year lognormal 40min") == OutagePattern(
        per_year=2.0, lengths=Lengths.LOGNORMAL, median_s=2_400.0
    )
    assert parse_pattern("exactly 12/year FIXED 1 h 30 min") == OutagePattern(
        per_year=12.0, lengths=Lengths.FIXED, median_s=5_400.0, is_exact=True
    )
    monthly = parse_pattern("1/month exponential 90s", sigma=0.5)
    assert (monthly.per_year, monthly.median_s, monthly.sigma) == (12.0, 90.0, 0.5)
    happened = parse_pattern(" West-Europe-2025-11 ")
    # 17:00 to 02:25 are nine hours and 25 minutes.
    assert happened == parse_pattern("exactly 1/year fixed 9h25min")
    assert str(parse_pattern("2/year lognormal 40min")) == "2/year lognormal 2400s (sigma 1)"


@pytest.mark.parametrize(
    ("text", "sigma", "says"),
    [
        ("2/year weibull 40min", 1.0, "lengths are lognormal, exponential, fixed; got 'weibull'"),
        ("2/year", 1.0, "outages must be like '2/year lognormal 40min'"),
        ("", 1.0, "outages must be like"),
        ("west-europe-2024-11", 1.0, "or one of west-europe-2025-11; got 'west-europe-2024-11'"),
        ("-2/year fixed 40min", 1.0, "outages must not be negative"),
        ("500/year fixed 1min", 1.0, "0 to 400 a year; got 500"),
        ("2/year fixed 0s", 1.0, "longer than 0"),
        ("2/year fixed 31d", 1.0, "at most 30 days"),
        ("2/year fixed soon", 1.0, "the length of outages must be a number and"),
        ("exactly 2.5/year fixed 1min", 1.0, "exactly 2.5 a year is no whole number"),
        ("2/year lognormal 40min", 0.0, "sigma must be more than 0 and at most 3; got 0"),
        ("2/year lognormal 40min", -1.0, "sigma must be more than 0"),
        ("2/year lognormal 40min", math.nan, "sigma must be more than 0"),
    ],
)
def test_a_pattern_that_makes_no_sense_is_one_line(text: str, sigma: float, says: str) -> None:
    with pytest.raises(QuantityError) as refused:
        parse_pattern(text, sigma)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
