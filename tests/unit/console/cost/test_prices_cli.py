"""`twinbus prices`: what it prints, writes and refuses, each refusal one line and status 2."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.unit.console.commands import run
from twinbus.cost.prices import load, standard

PAGE = Path(__file__).parents[2] / "cost" / "retail_prices_uksouth.json"

Capsys = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TWINBUS_PRICES", raising=False)


def spoiled(name: str, old: str, new: str) -> Path:
    """A copy of the page in which something is different."""
    text = PAGE.read_text()
    assert old in text
    path = Path(name)
    path.write_text(text.replace(old, new))
    return path


def test_show_names_book_source_date_and_every_price(capsys: Capsys) -> None:
    shown = run(capsys, "prices", "show")
    assert (shown.status, shown.err) == (0, "")
    for part in (
        "standard-uksouth-2026-10-05",
        "Azure Retail Prices API",
        "retrieved  2026-10-05, ",
        "region     uksouth",
        "13,000,000        0.80",
        "not priced  1 GB out of the region",
    ):
        assert part in shown.out


def test_show_as_json_has_exact_prices_and_no_price_where_there_is_none(capsys: Capsys) -> None:
    found = json.loads(run(capsys, "prices", "show", "--output", "json").out)
    assert found["meters"]["base"]["tiers"] == [{"from": 0, "price": "0.013441"}]
    assert found["meters"]["egress"]["tiers"] == []
    assert found["meters"]["geo_replication"]["retrieved"] == "2026-09-20"


def test_an_old_book_is_pointed_out(capsys: Capsys) -> None:
    assert run(capsys, "prices", "import", str(PAGE), "--retrieved", "2024-07-02").status == 0
    shown = run(capsys, "prices", "show", "--prices", "prices-uksouth-2024-07-02.json")
    assert "days old, more than 180" in shown.out.splitlines()[-1]
    told = run(
        capsys, "prices", "show", "--prices", "prices-uksouth-2024-07-02.json", "--output", "json"
    )
    assert len(json.loads(told.out)["warnings"]) == 1


def test_import_writes_a_book_and_lists_what_it_set_aside(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(capsys, "prices", "import", str(PAGE), "--to", "ours.json")
    assert (done.status, done.err) == (0, "")
    assert "from 13 items" in done.out
    assert "set aside: 5 items" in done.out
    assert "2  Hybrid Connections Data Transfer  no meter of a pair's bill" in done.out
    assert "not priced: Standard Data Transfer Out" in done.out
    assert [path.name for path in Path().iterdir()] == ["ours.json"]
    book = load("ours.json")
    assert book.meter("operations").tiers == standard().meter("operations").tiers
    monkeypatch.setenv("TWINBUS_PRICES", "ours.json")
    assert run(capsys, "prices", "show").out.startswith("ours\n")


def test_import_as_json_lists_each_item(capsys: Capsys) -> None:
    done = run(capsys, "prices", "import", str(PAGE), "--to", "ours.json", "--output", "json")
    found = json.loads(done.out)
    assert (found["taken"], len(found["set_aside"]), found["written"]) == (13, 5, "ours.json")
    assert found["not_priced"] == ["egress"]
    assert found["set_aside"][0]["place"].startswith("retail_prices_uksouth.json: Items[")


def test_the_day_of_the_book_is_that_of_the_file(capsys: Capsys) -> None:
    path = spoiled("page.json", "uksouth", "eastus")
    fetched = datetime.now(UTC) - timedelta(days=40)
    os.utime(path, (fetched.timestamp(), fetched.timestamp()))
    assert run(capsys, "prices", "import", "page.json").status == 0
    assert load(f"prices-eastus-{fetched.date()}.json").retrieved == fetched.date()


def test_a_book_is_replaced_and_another_file_is_not(capsys: Capsys) -> None:
    for _ in range(2):
        assert run(capsys, "prices", "import", str(PAGE), "--to", "ours.json").status == 0
    Path("notes.txt").write_text("mine")
    done = run(capsys, "prices", "import", str(PAGE), "--to", "notes.txt")
    assert (done.status, done.err) == (
        2,
        "twinbus: --to notes.txt exists and is not a price book: give another file\n",
    )
    assert Path("notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"Premium Messaging Unit"', '"Something Else"', "no price for premium"),
        (
            '"tierMinimumUnits": 0.0, "retailPrice": 0.0,',
            '"tierMinimumUnits": 1.0, "retailPrice": 0.0,',
            "lacks its tier from 0",
        ),
        ('"tierMinimumUnits": 100.0', '"tierMinimumUnits": 13.0', "two prices"),
        ('"retailPrice": 0.9275', '"retailPrice": -0.9275', "a number from 0 to 999,999,999"),
        ('"NextPageLink": null', '"NextPageLink": "https://prices/?$skip=18"', "is missing"),
        ('"Count": 18', '"Count": 1000', "Count says 1000 and there are 18 Items"),
        ('"Items": [', '"Items": ', "not JSON"),
        ('"unitOfMeasure": "1M"', '"unitOfMeasure": "10M"', "unitOfMeasure"),
    ],
)
def test_what_makes_no_book_is_one_line_and_nothing_is_written(
    capsys: Capsys, old: str, new: str, complaint: str
) -> None:
    spoiled("page.json", old, new)
    done = run(capsys, "prices", "import", "page.json", "--to", "ours.json")
    assert (done.status, done.out) == (2, "")
    assert complaint in done.err
    assert done.err.startswith("twinbus: ")
    assert done.err.count("\n") == 1
    assert not Path("ours.json").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("import", "gone.json"), "gone.json: No such file"),
        (("import", "."), "Is a directory"),
        (("import", str(PAGE), "--region", "mars"), "--region mars: the items have no price of it"),
        (("import", str(PAGE), "--currency", "EUR"), "--currency EUR: .* only of USD"),
        (("import", str(PAGE), "--to", "no/where.json"), "--to no/where.json: No such file"),
        (("import", str(PAGE), "--retrieved", "soon"), "--retrieved must be a day"),
        (("import", str(PAGE), "--retrieved", "2999-01-01"), "must not be after today"),
        (("show", "--prices", "gone.json"), "price book gone.json: No such file"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(
    capsys: Capsys, words: tuple[str, ...], complaint: str
) -> None:
    done = run(capsys, "prices", *words)
    assert (done.status, done.out) == (2, "")
    assert re.search(complaint, done.err), done.err
    assert done.err.count("\n") == 1


def test_fewer_tiers_are_taken_when_asked(capsys: Capsys) -> None:
    found = json.loads(PAGE.read_text())
    found["Items"] = [item for item in found["Items"] if item["tierMinimumUnits"] != 100]
    found["Count"] = len(found["Items"])
    Path("page.json").write_text(json.dumps(found))
    refused = run(capsys, "prices", "import", "page.json", "--to", "ours.json")
    assert "lacks its tier from 100,000,000" in refused.err
    taken = run(capsys, "prices", "import", "page.json", "--to", "ours.json", "--fewer-tiers")
    assert taken.status == 0


def test_a_broken_book_names_the_place(capsys: Capsys) -> None:
    run(capsys, "prices", "import", str(PAGE), "--to", "ours.json")
    text = Path("ours.json").read_text()
    Path("ours.json").write_text(text.replace('"0.9275"', '"-1"'))
    done = run(capsys, "prices", "show", "--prices", "ours.json")
    assert (done.status, done.err) == (
        2,
        (
            "twinbus: price book ours.json: meters.premium.tiers[0].price must be a string like"
            " \"0.80\", from 0; got '-1'\n"
        ),
    )


@pytest.mark.parametrize("words", [("show",), ("import",)])
def test_help_has_an_example(capsys: Capsys, words: tuple[str, ...]) -> None:
    assert "Example: " in run(capsys, "prices", *words, "--help").out
