"""From the retail price API's JSON to a price book, and one line for what cannot become one.

The fixture has the API's fields, as documented, and the prices of the book that ships; its ids and
days are made up. Prices of further items in these tests are made up too.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.cost.prices import NEEDED_METERS, PriceBookError, parse, read_json, standard
from twinbus.cost.retail_prices import Imported, book_from

ANYTHING: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.decimals(),
    st.floats(),
    st.text(max_size=9),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
FIXTURE = Path(__file__).with_name("retail_prices_uksouth.json")
DAY = date(2026, 10, 5)


def page() -> dict[str, Any]:
    found = read_json(FIXTURE.read_text(), FIXTURE.name)
    assert isinstance(found, dict)
    return found


def imported(*documents: object, **options: Any) -> Imported:
    named = [(f"page{number}.json", document) for number, document in enumerate(documents)]
    return book_from(named, **{"retrieved": DAY, "like": standard(), **options})


def items(found: dict[str, Any], meter: str) -> list[dict[str, Any]]:
    return [item for item in found["Items"] if item["meterName"] == meter]


def tiers(found: Imported) -> dict[str, list[tuple[int, str]]]:
    return {
        key: [(tier.start, f"{tier.price.normalize():f}") for tier in meter.tiers]
        for key, meter in found.book.meters.items()
    }


def recounted(found: dict[str, Any]) -> dict[str, Any]:
    found["Count"] = len(found["Items"])
    return found


def test_a_page_of_the_api_becomes_the_book_that_ships() -> None:
    found = imported(page())
    ours = standard()
    assert tiers(found) == {
        key: [(tier.start, f"{tier.price.normalize():f}") for tier in ours.meter(key).tiers]
        for key in NEEDED_METERS
    }
    assert (found.book.region, found.book.currency, found.book.retrieved) == ("uksouth", "USD", DAY)
    assert found.taken == 13


def test_items_that_a_bill_has_no_use_for_are_counted_and_listed() -> None:
    found = imported(page())
    assert len(found.set_aside) == 5
    assert {aside.meter_name for aside in found.set_aside} == {
        "Hybrid Connections Data Transfer",
        "Hybrid Connections Listener Unit",
        "WCF Relay",
        "WCF Relay Message",
    }
    assert {aside.reason for aside in found.set_aside} == {"no meter of a pair's bill"}
    assert found.set_aside[0].place.startswith("page0.json: Items[")


def test_the_document_is_json_and_reads_as_the_same_book() -> None:
    found = imported(page())
    again = parse(json.loads(json.dumps(found.book.document())), f"uksouth-{DAY}")
    assert again == found.book
    # No digit is lost on the way through a number with a point.
    assert str(again.meter("base").tiers[0].price) == "0.013441"


def test_several_pages_are_one_book_in_any_form() -> None:
    whole = page()
    first, second = page(), page()
    first.update(Items=whole["Items"][:7], NextPageLink="https://prices/?$skip=7", Count=7)
    second.update(Items=whole["Items"][7:], Count=11)
    expected = imported(whole).book
    assert imported(first, second).book == expected
    assert imported([second, first]).book == expected
    assert imported(whole["Items"]).book == expected


def test_a_page_that_is_missing_is_named() -> None:
    first = page()
    first.update(NextPageLink="https://prices.azure.com/api/retail/prices?$skip=100")
    with pytest.raises(PriceBookError, match=r"page0.json: NextPageLink names .*\?\$skip=100'$"):
        imported(first)


def test_a_price_that_was_superseded_is_set_aside() -> None:
    found = page()
    (old,) = items(found, "Premium Messaging Unit")
    new = {**old, "effectiveStartDate": "2026-01-01T00:00:00Z"}
    old.update(retailPrice=5, unitPrice=5)
    future = {**old, "effectiveStartDate": "2026-10-06T00:00:00Z"}
    ended = {**old, "effectiveEndDate": "2025-01-01T00:00:00Z"}
    found["Items"] += [new, dict(new), future, ended]
    read = imported(recounted(found))
    assert tiers(read)["premium"] == [(0, "0.9275")]
    reasons = [aside.reason for aside in read.set_aside if aside.meter_name == old["meterName"]]
    assert sorted(reason[:23] for reason in reasons) == [
        "in force from 2026-10-0",
        "in force until 2025-01-",
        "repeats page0.json: Ite",
        "superseded on 2026-01-0",
    ]


def test_other_regions_currencies_and_kinds_of_price_are_set_aside_once_one_is_chosen() -> None:
    found = page()
    (premium,) = items(found, "Premium Messaging Unit")
    found["Items"] += [
        {**premium, "armRegionName": "eastus", "retailPrice": 7, "unitPrice": 7},
        {**premium, "currencyCode": "EUR", "retailPrice": 7, "unitPrice": 7},
        {**premium, "type": "Reservation", "retailPrice": 7, "unitPrice": 7},
        {**premium, "productName": "Event Hubs", "serviceName": "Event Hubs"},
        "no item at all",
    ]
    recounted(found)
    with pytest.raises(PriceBookError, match="give --region, one of eastus, uksouth"):
        imported(found)
    with pytest.raises(PriceBookError, match="give --currency, one of EUR, USD"):
        imported(found, region="uksouth")
    read = imported(found, region="UK South", currency="usd")
    assert [aside.reason for aside in read.set_aside[5:]] == [
        "no meter of a pair's bill",
        "it has no meterName: not understood",
        "of the region eastus",
        "in EUR",
        "a price of the type Reservation",
    ]
    assert len(read.set_aside) == 10
    with pytest.raises(PriceBookError, match=r"--region mars: .* only of eastus, uksouth"):
        imported(found, region="mars")
    with pytest.raises(PriceBookError, match=r"--currency GBP: .* only of EUR, USD"):
        imported(found, region="uksouth", currency="GBP")


def test_egress_comes_from_the_bandwidth_of_the_region() -> None:
    found = page()
    out = {
        **found["Items"][0],
        "serviceName": "Bandwidth",
        "productName": "Rtn Preference: MGN",
        "skuName": "Standard",
        "meterName": "Standard Data Transfer Out",
        "unitOfMeasure": "1 GB",
    }
    found["Items"] += [
        {**out, "tierMinimumUnits": 0, "retailPrice": 0, "unitPrice": 0},
        {**out, "tierMinimumUnits": 100, "retailPrice": 3, "unitPrice": 3},
        {**out, "productName": "Bandwidth - Routing Preference: Internet"},
    ]
    read = imported(recounted(found))
    assert tiers(read)["egress"] == [(0, "0"), (100 * 10**9, "3")]
    assert len(read.set_aside) == 6


def test_what_a_region_does_not_sell_is_not_priced() -> None:
    found = page()
    found["Items"] = [item for item in found["Items"] if "Geo" not in item["meterName"]]
    read = imported(recounted(found))
    assert not read.book.meter("geo_replication").priced
    assert "not in the prices that were imported" in read.book.meter("geo_replication").unit


def without(meter: str, start: int | None = None) -> Callable[[dict[str, Any]], object]:
    def cut(found: dict[str, Any]) -> None:
        found["Items"] = [
            item
            for item in found["Items"]
            if item["meterName"] != meter or start not in {None, int(item["tierMinimumUnits"])}
        ]

    return cut


def changed(meter: str, **fields: object) -> Callable[[dict[str, Any]], object]:
    return lambda found: items(found, meter)[0].update(fields)


OPERATIONS, PREMIUM = "Standard Messaging Operations", "Premium Messaging Unit"
CONNECTIONS = "Standard Brokered Connection"


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (without(PREMIUM), r"page0.json: uksouth, USD: no price for premium \(hours of a Premium"),
        (without("Basic Messaging Operations"), "no price for basic_operations"),
        (without("Standard Base Unit"), "no price for base .*, base_month"),
        (
            changed(PREMIUM, effectiveStartDate="2026-12-01T00:00:00Z"),
            r"no price for premium .*; page0.json: Items\[\d+\] is set aside: in force from 2026",
        ),
        (without(OPERATIONS, 0), f"{OPERATIONS} lacks its tier from 0: the first .* 13,000,000"),
        (without(OPERATIONS, 100), f"{OPERATIONS} lacks its tier from 100,000,000, which standard"),
        (without(CONNECTIONS, 500_000), f"{CONNECTIONS} lacks its tier from 500,000"),
        (
            changed(PREMIUM, retailPrice=0, unitPrice=0),
            f"{PREMIUM} has only a free tier: those with a price are missing",
        ),
        (changed(PREMIUM, retailPrice=-1), r"Items\[\d+\].retailPrice of Premium .* got -1"),
        (changed(PREMIUM, retailPrice="1"), "must be a number from 0 to 999,999,999 .* got '1'"),
        (changed(PREMIUM, retailPrice=True), "must be a number from 0 .* got True"),
        (changed(PREMIUM, unitPrice=9), "retailPrice 0.9275 and unitPrice 9 differ"),
        (changed(PREMIUM, tierMinimumUnits=None), "tierMinimumUnits of Premium .* a number"),
        (changed(PREMIUM, unitOfMeasure="1 Fortnight"), "must be 1/Hour; got '1 Fortnight'"),
        (changed(PREMIUM, currencyCode="usd"), "currencyCode of Premium .* got 'usd'"),
        (
            changed(PREMIUM, armRegionName="../../x"),
            "armRegionName of .* like uksouth; got '../../",
        ),
        (changed(PREMIUM, effectiveStartDate="soon"), "effectiveStartDate of .* got 'soon'"),
        (
            lambda found: found["Items"].append(
                {**items(found, PREMIUM)[0], "retailPrice": 8, "unitPrice": 8}
            ),
            "give Premium Messaging Unit from 0 two prices",
        ),
        (
            lambda found: found["Items"].append(
                {
                    **items(found, "Geo Replication Zone 1 Data Transfer")[0],
                    "meterName": "Geo Replication Zone 2 Data Transfer",
                }
            ),
            "leave out the zone that is not this region's",
        ),
        (lambda found: found.update(Items=[]), "page0.json: no item is a meter of Service Bus"),
        (
            lambda found: found.update(Items=None),
            "page0.json: Items must be a list: this is not a page of the Azure Retail",
        ),
    ],
)
def test_prices_that_make_no_book_are_one_line(
    spoil: Callable[[dict[str, Any]], object], complaint: str
) -> None:
    found = page()
    spoil(found)
    if isinstance(found["Items"], list):
        recounted(found)
    with pytest.raises(PriceBookError, match=complaint) as caught:
        imported(found)
    assert "\n" not in str(caught.value)


def test_a_page_cut_short_is_found_by_its_count() -> None:
    found = page()
    found["Items"].pop()
    with pytest.raises(PriceBookError, match=r"page0.json: Count says 18 and there are 17 Items"):
        imported(found)


def test_fewer_tiers_are_taken_when_nothing_is_compared() -> None:
    found = page()
    without(OPERATIONS, 100)(found)
    read = imported(recounted(found), like=None)
    assert [start for start, _ in tiers(read)["operations"]] == [0, 13_000_000, 2_500_000_000]


@st.composite
def broken(draw: st.DrawFn) -> dict[str, Any]:
    """A page in which some fields of some items are anything at all, or gone."""
    found = page()
    for _ in range(draw(st.integers(1, 4))):
        item = draw(st.sampled_from(found["Items"]))
        name = draw(st.sampled_from(sorted(item)))
        item[name] = draw(ANYTHING)
        if draw(st.booleans()):
            del item[name]
    return found


@settings(max_examples=60)
@given(broken())
def test_no_page_breaks_the_import(found: dict[str, Any]) -> None:
    with contextlib.suppress(PriceBookError):
        made = imported(found)
        assert parse(made.book.document(), made.book.name) == made.book
