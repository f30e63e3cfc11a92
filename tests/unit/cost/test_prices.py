"""Price books: the one that ships, tiers by hand, and one clear line for each that is wrong."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.cost.prices import NEEDED_METERS, Meter, PriceBookError, Tier, load, parse, standard

M = 1_000_000


def book(**changes: object) -> dict[str, Any]:
    return {
        "format": 1,
        "source": "a price list",
        "retrieved": "2026-10-05",
        "region": "here",
        "currency": "EUR",
        "meters": {
            **{
                key: {"meter_name": key, "unit": "1", "per": 1, "tiers": []}
                for key in NEEDED_METERS
            },
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
    ("meter", "quantity", "expected"),
    [
        ("operations", 0, "0"),
        ("operations", 13 * M, "0"),
        ("operations", 13 * M + 1, "0.0000008"),
        ("operations", 14 * M, "0.80"),
        # 87 M at 0.80 are 69.60; 2,400 M at 0.50 are 1,200; 100 M at 0.20 are 20.
        ("operations", 100 * M, "69.60"),
        ("operations", 101 * M, "70.10"),
        ("operations", 2_500 * M, "1269.60"),
        ("operations", 2_600 * M, "1289.60"),
        ("connections", 1_000, "0"),
        ("connections", 1_020, "0.60"),
        ("connections", 100_000, "2970"),
        ("connections", 100_001, "2970.025"),
        # 99,000 at 0.03, 400,000 at 0.025, 1,000 at 0.015.
        ("connections", 501_000, "12985"),
    ],
)
def test_each_part_of_a_month_has_the_price_of_its_tier(
    meter: str, quantity: int, expected: str
) -> None:
    assert standard().meter(meter).cost(quantity) == Decimal(expected)


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


def test_every_meter_of_the_book_has_the_published_price() -> None:
    found = standard()
    assert {
        key: [(tier.start, str(tier.price)) for tier in meter.tiers]
        for key, meter in found.meters.items()
        if key != "operations"
    } == {
        "basic_operations": [(0, "0.05")],
        "base": [(0, "0.013441")],
        "base_month": [(0, "10.00")],
        "connections": [(0, "0"), (1_000, "0.03"), (100_000, "0.025"), (500_000, "0.015")],
        "premium": [(0, "0.9275")],
        "geo_replication": [(0, "0.09")],
        "egress": [],
    }
    assert set(found.meters) == set(NEEDED_METERS)
    assert found.meter("geo_replication").retrieved == date(2026, 9, 20)
    assert [found.meter(key).free for key in ("operations", "connections", "egress")] == [
        13 * M,
        1_000,
        0,
    ]


def test_what_the_month_had_used_already_decides_the_tier() -> None:
    meter = standard().meter("operations")
    # Of 4 M after 99 M, one is at 0.80 and three at 0.50.
    assert meter.cost(4 * M, already=99 * M) == Decimal("2.30")
    assert meter.cost(4 * M, already=9 * M) == Decimal(0)
    assert meter.cost(0, already=99 * M) == Decimal(0)


def test_a_book_older_than_180_days_says_so() -> None:
    found = standard()
    assert found.age_days(date(2026, 11, 16)) == 57  # of its oldest price, of 2026-09-20
    assert found.warnings(date(2027, 3, 19)) == []
    (line,) = found.warnings(date(2027, 3, 20))
    assert line.startswith("the prices are 181 days old, more than 180: get new ones")


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
    with pytest.raises(PriceBookError, match=r"ours-2026 has no meter 'relay'; it has basic_ope"):
        found.meter("relay")


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
        (
            lambda document: document.update(format=2),
            "format is 2, .* reads 1: it is of a newer Twinbus, upgrade this one",
        ),
        (lambda document: document.update(format=True), "format is True, and this Twinbus reads 1"),
        (without("source"), "source must be a text; got None"),
        (lambda document: document.update(retrieved="soon"), "a day like 2026-10-05; got 'soon'"),
        (
            lambda document: document.update(retrieved="2026-11-17"),
            "retrieved must not be after today, 2026-11-16; got 2026-11-17",
        ),
        (lambda document: document.update(retrieved=20261005), "a day like 2026-10-05"),
        (lambda document: document.update(retrieved="20261005"), "a day like 2026-10-05"),
        (without("currency"), "currency must be three capital letters like USD; got None"),
        (lambda document: document.update(currency="usd"), "like USD; got 'usd'"),
        (lambda document: document.update(currency="€"), "like USD; got '€'"),
        (without("meters"), "meters must be an object; got None"),
        (without("meters", "egress"), "meters lacks egress"),
        (without("meters", "operations", "per"), "meters.operations.per must be a whole number"),
        (lambda document: document["meters"]["egress"].update(per=0), "egress.per .* got 0"),
        (without("meters", "operations", "tiers"), "operations.tiers must be a list"),
        (with_tiers({"from": 5, "price": "1"}), "tiers lacks the tier from 0: the first .* at 5"),
        (
            with_tiers({"from": 0, "price": "1"}, {"from": 0, "price": "2"}),
            r"operations.tiers must rise; they begin at \[0, 0\]",
        ),
        (
            with_tiers(*({"from": start, "price": "1"} for start in (0, 9, 5))),
            r"must rise; they begin at \[0, 9, 5\]",
        ),
        (with_tiers({"from": -1, "price": "1"}), r"tiers\[0\].from must be a whole number"),
        (with_tiers({"from": True, "price": "1"}), r"tiers\[0\].from .* got True"),
        (with_tiers({"from": 0, "price": 0.8}), r'a string like "0.80", from 0; got 0.8'),
        (with_tiers({"from": 0, "price": "-1"}), "got '-1'"),
        (with_tiers({"from": 0, "price": "NaN"}), "got 'NaN'"),
        (with_tiers({"from": 0, "price": "a lot"}), "got 'a lot'"),
        (with_tiers({"from": 0, "price": "1e99999999"}), "got '1e99999999'"),
        (with_tiers({"from": 10**30, "price": "1"}), r"tiers\[0\].from must be a whole number"),
        (
            lambda document: document["meters"]["premium"].update(retrieved="2027-01-01"),
            "meters.premium.retrieved must not be after today",
        ),
        (with_tiers("cheap"), r"tiers\[0\] must be an object; got 'cheap'"),
    ],
)
def test_a_book_that_is_wrong_says_where_and_what_it_needs(
    spoil: Callable[[dict[str, Any]], None], complaint: str
) -> None:
    document = copy.deepcopy(book())
    spoil(document)
    with pytest.raises(PriceBookError, match=complaint) as caught:
        parse(document, "my.json", date(2026, 11, 16))
    assert str(caught.value).startswith("price book my.json")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_book_is_one_line_too(tmp_path: Path) -> None:
    with pytest.raises(PriceBookError, match=r"nowhere\.json: No such file"):
        load(tmp_path / "nowhere.json")
    endless = b'{"a": 1e999999999999999999999}'
    for content, complaint in (
        (b"{", r"price book .*book\.json: not JSON"),
        (endless, "not JSON"),
        (b"\xff", "not UTF-8"),
        (b"[]", "an object"),
    ):
        (tmp_path / "book.json").write_bytes(content)
        with pytest.raises(PriceBookError, match=complaint):
            load(tmp_path / "book.json")


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=60)
@given(
    st.sampled_from(
        [
            ("format",),
            ("retrieved",),
            ("currency",),
            ("meters",),
            ("meters", "operations"),
            ("meters", "operations", "per"),
            ("meters", "operations", "tiers"),
            ("meters", "egress", "source"),
        ]
    ),
    JSON,
)
def test_no_document_breaks_the_reader(path: tuple[str, ...], value: object) -> None:
    document = inner = book()
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with contextlib.suppress(PriceBookError):
        cost = parse(document, "my.json", date(2026, 11, 16)).meter("operations").cost(10**12)
        assert cost is None or cost >= 0
