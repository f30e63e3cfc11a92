"""Price books: the one that ships, tiers by hand, and one clear line for each that is wrong."""

from __future__ import annotations

import copy
import json
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.cost import Meter, PriceBookError, Tier, load, standard
from twinbus.cost.prices import parse

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

M = 1_000_000


def book(**changes: object) -> dict[str, Any]:
    return {
        "format": 1,
        "source": "a price list",
        "retrieved": "2026-10-05",
        "region": "here",
        "currency": "EUR",
        "meters": {
            "operations": {
                "meter_name": "Operations",
                "unit": "ten",
                "per": 10,
                "tiers": [{"from": 0, "price": "0"}, {"from": 100, "price": "0.30"}],
            },
            "egress": {"meter_name": "Out", "unit": "1 GB", "per": 10**9, "tiers": []},
        },
        **changes,
    }


def test_the_book_that_ships_is_dated_and_has_the_published_tiers() -> None:
    found = standard()
    assert found.name == "standard-uksouth-2026-10-05"
    assert (found.region, found.currency) == ("uksouth", "USD")
    assert found.retrieved == date(2026, 10, 5)
    assert found.source
    assert [(tier.start, str(tier.price)) for tier in found.meter("operations").tiers] == [
        (0, "0"),
        (13 * M, "0.80"),
        (100 * M, "0.50"),
        (2_500 * M, "0.20"),
    ]
    assert not found.meter("egress").priced


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        (0, "0"),
        (13 * M, "0"),
        (13 * M + 1, "0.0000008"),
        (14 * M, "0.80"),
        (100 * M, "69.60"),
        (101 * M, "70.10"),
        (2_500 * M, "1269.60"),
        (2_600 * M, "1289.60"),
    ],
)
def test_each_part_of_a_month_has_the_price_of_its_tier(operations: int, expected: str) -> None:
    # 87 M at 0.80 are 69.60; 2,400 M at 0.50 are 1,200; 100 M at 0.20 are 20.
    assert standard().meter("operations").cost(operations) == Decimal(expected)


def test_the_worked_comparison_comes_out() -> None:
    meter = standard().meter("operations")
    # A million messages by the backlog are three million operations more.
    assert meter.cost_past_free(3 * M) == Decimal("2.40")
    assert meter.cost_past_free(60_000) == Decimal("0.048")
    base = standard().meter("base").cost(744)
    assert base is not None
    assert round(base, 2) == Decimal("10.00")
    premium = standard().meter("premium").cost(2 * 730)
    assert premium == Decimal("1354.15")


def test_no_price_is_none_and_not_zero() -> None:
    egress = standard().meter("egress")
    assert egress.cost(10**9) is None
    assert egress.cost_past_free(10**9) is None
    free = Meter("free", "1", 1, (Tier(0, Decimal(0)),))
    assert free.cost(5) == free.cost_past_free(5) == Decimal(0)


@given(st.integers(0, 10**10), st.integers(0, 10**10))
def test_more_never_costs_less_and_parts_never_cost_more_than_the_first_price(
    some: int, more: int
) -> None:
    meter = standard().meter("operations")
    first, both, dearest = meter.cost(some), meter.cost(some + more), meter.cost_past_free(some)
    assert first is not None
    assert both is not None
    assert dearest is not None
    assert 0 <= first <= both
    assert first <= dearest


def test_a_book_of_ones_own_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "ours-2026.json"
    path.write_text(json.dumps(book()))
    found = load(path)
    assert (found.name, found.currency) == ("ours-2026", "EUR")
    # 30 past the free 100, by the ten.
    assert found.meter("operations").cost(130) == Decimal("0.90")
    with pytest.raises(PriceBookError, match=r"ours-2026 has no meter 'premium'; it has operatio"):
        found.meter("premium")


def without(*path: str) -> Callable[[dict[str, Any]], None]:
    def cut(document: dict[str, Any]) -> None:
        for key in path[:-1]:
            document = document[key]
        del document[path[-1]]

    return cut


def with_tiers(*tiers: object) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["meters"]["operations"].update(tiers=list(tiers))


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (without("format"), "format is None, and this Twinbus reads 1"),
        (lambda document: document.update(format=2), "format is 2"),
        (without("source"), "source must be a text; got None"),
        (lambda document: document.update(retrieved="soon"), "a day like 2026-10-05; got 'soon'"),
        (without("currency"), "currency must be a text"),
        (without("meters"), "meters must be an object; got None"),
        (without("meters", "egress"), "meters lacks egress"),
        (without("meters", "operations", "per"), "meters.operations.per must be a whole number"),
        (lambda document: document["meters"]["egress"].update(per=0), "egress.per .* got 0"),
        (without("meters", "operations", "tiers"), "operations.tiers must be a list"),
        (with_tiers({"from": 5, "price": "1"}), r"must begin at 0 and rise; got \[5\]"),
        (
            with_tiers({"from": 0, "price": "1"}, {"from": 0, "price": "2"}),
            r"begin at 0 and rise; got \[0, 0\]",
        ),
        (with_tiers({"from": -1, "price": "1"}), r"tiers\[0\].from must be a whole number"),
        (with_tiers({"from": True, "price": "1"}), r"tiers\[0\].from .* got True"),
        (with_tiers({"from": 0, "price": 0.8}), r'a string like "0.80", from 0; got 0.8'),
        (with_tiers({"from": 0, "price": "-1"}), "got '-1'"),
        (with_tiers({"from": 0, "price": "NaN"}), "got 'NaN'"),
        (with_tiers({"from": 0, "price": "a lot"}), "got 'a lot'"),
        (with_tiers("cheap"), r"tiers\[0\] must be an object; got 'cheap'"),
    ],
)
def test_a_book_that_is_wrong_says_where_and_what_it_needs(
    spoil: Callable[[dict[str, Any]], None], complaint: str
) -> None:
    document = copy.deepcopy(book())
    spoil(document)
    with pytest.raises(PriceBookError, match=complaint) as caught:
        parse(document, "my.json")
    assert str(caught.value).startswith("price book my.json")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_book_is_one_line_too(tmp_path: Path) -> None:
    with pytest.raises(PriceBookError, match=r"nowhere\.json: No such file"):
        load(tmp_path / "nowhere.json")
    for content, complaint in ((b"{", "not JSON"), (b"\xff", "not UTF-8"), (b"[]", "an object")):
        (tmp_path / "book.json").write_bytes(content)
        with pytest.raises(PriceBookError, match=complaint):
            load(tmp_path / "book.json")
