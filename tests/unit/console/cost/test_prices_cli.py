"""The commands of prices and of the cost estimate."""

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


ASKED = (
    "cost estimate --rate 150/min --size 2KB --entities 10 --clients 5 --outages 1/month"
    " --outage-length 1h"
).split()


def test_the_month_by_cause_the_bill_and_the_documented_figures(capsys: Capsys) -> None:
    shown = run(capsys, *ASKED)
    assert (shown.status, shown.err) == (0, "")
    lines = [re.sub(r"\s+", " ", line).strip() for line in shown.out.splitlines()]
    for expected in (
        "in a month of 30 days: 6,480,000 messages, 9,000 of them by the backlog",
        "application 12,951,000 12,951,000 0.00 USD",
        "failover 9,000 9,000 0.00 USD",
        "ping 3,000 3,000 0.00 USD",
        "syphon 25,210 25,210 0.00 USD",
        "poll 28,800 28,800 0.013608 USD",
        "administration 2,881 2,881 0.002305 USD",
        "board 16,205 16,205 0.012964 USD",
        "all 13,036,096 13,036,096",
        "base charge 720 hours 9.68 USD",
        "operations 13,036,096 units 0.028877 USD",
        "egress 13,289,472,000 bytes not priced",
        "total 9.71 USD",
        "the pair adds 0.028877 USD a month, without egress",
        "idle syphon: 40 receives an hour, 960 a day, 28,800 in 30 days",
        "Assumed:",
    ):
        assert expected in lines
    assert any(line.startswith("a message by the backlog: 4 units in 4 stages") for line in lines)


def test_json_has_the_same_figures_exactly(capsys: Capsys) -> None:
    found = json.loads(run(capsys, *ASKED, "--output", "json").out)
    assert (found["messages"], found["moved"], found["units"]) == (6_480_000, 9_000, 13_036_096)
    assert found["bill"]["total"] == "9.7063968"
    assert found["pair_adds"] == "0.0288768"
    assert found["idle_receives"] == {"hour": 40, "day": 960, "month": 28_800}
    assert found["idle_operations"] == 28_800 + 10 * 721 + 2_881
    assert found["assumptions"]


def test_settlement_counted_is_six_stages(capsys: Capsys) -> None:
    shown = run(capsys, *ASKED, "--settlement", "counted")
    assert "6 units in 6 stages" in shown.out
    assert "settlement is counted" in shown.out


def test_a_premium_pair_is_paid_by_the_hour(capsys: Capsys) -> None:
    shown = run(capsys, *ASKED, "--tier", "Premium", "--messaging-units", "2")
    assert "2,671.20 USD" in shown.out
    assert "included" in shown.out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--rate -5/s", "--rate must not be negative; got '-5/s'"),
        ("--rate 0/s", "--rate must be more than 0 and at most 10,000,000 a second"),
        ("--rate fast", "--rate must be a number and a time, like 500/s"),
        ("--size 300KB", "--size must be at most 262,144 bytes, the largest message of the tier"),
        ("--size 1GB", "--size must be at most 104,857,600 bytes; got '1GB'"),
        ("--tier gold", "--tier must be basic or standard or premium; got 'gold'"),
        ("--settlement maybe", "--settlement must be free or counted"),
        ("--entities 0", "--entities must be from 1 to 100,000; got 0"),
        ("--queues 101", "--queues must be from 1 to 100; got 101"),
        ("--ping-interval 0.5s", "--ping-interval must be from 1 to 1,800 seconds"),
        ("--poll 1h", "--poll must be from 1 to 900 seconds"),
        ("--outages often", "--outages must be a number and a time, like 2/year"),
        ("--outages 1/h --outage-length 1d", "--outages, 8760 a year of 86400 s, are longer"),
        ("--messaging-units 3", "--messaging-units must be one of 1, 2, 4, 8, 16; got 3"),
        ("--connections 99999999", "--connections must be at most 10,000,000"),
        ("--prices nowhere.json", "price book nowhere.json: No such file"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_status_2(
    capsys: Capsys, words: str, complaint: str
) -> None:
    done = run(capsys, *ASKED, *words.split())
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"twinbus: {complaint}"), done.err
    assert done.err.count("\n") == 1


def test_help_of_the_estimate_has_an_example(capsys: Capsys) -> None:
    assert "Example: twinbus cost estimate --rate 500/s" in " ".join(
        run(capsys, "cost", "estimate", "--help").out.split()
    )
