"""`twinbus cost estimate`: the month it prints, and one line for what makes no sense."""

from __future__ import annotations

import json
import re

import pytest

from tests.unit.console.commands import run

Capsys = pytest.CaptureFixture[str]

ASKED = (
    "cost estimate --rate 150/min --size 2KB --entities 10 --clients 5 --outages 1/month"
    " --outage-length 1h"
).split()


@pytest.fixture(autouse=True)
def _books_that_ship(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWINBUS_PRICES", raising=False)


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
        "all 13,019,891 13,019,891",
        "base charge 720 hours 9.68 USD",
        "operations 13,019,891 units 0.015913 USD",
        "egress 13,289,472,000 bytes not priced",
        "total 9.69 USD",
        "the pair adds 0.015913 USD a month, without egress",
        "idle syphon: 40 receives an hour, 960 a day, 28,800 in 30 days",
        "Assumed:",
    ):
        assert expected in lines
    assert any(line.startswith("a message by the backlog: 4 units in 4 stages") for line in lines)


def test_json_has_the_same_figures_exactly(capsys: Capsys) -> None:
    found = json.loads(run(capsys, *ASKED, "--output", "json").out)
    assert (found["messages"], found["moved"], found["units"]) == (6_480_000, 9_000, 13_019_891)
    assert found["bill"]["total"] == "9.6934328"
    assert found["pair_adds"] == "0.0159128"
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


def test_help_has_an_example(capsys: Capsys) -> None:
    assert "Example: twinbus cost estimate --rate 500/s" in " ".join(
        run(capsys, "cost", "estimate", "--help").out.split()
    )
