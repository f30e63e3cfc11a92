"""`twinbus plan`: the words of its answer, and one line for what was asked wrongly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.console.commands import run
from tests.unit.console.pages import assert_self_contained
from tests.unit.planning.outcomes_made_up import asked, outcome, sure
from twinbus.console.plan.making import default_patience_s, plan_sheet
from twinbus.console.sheet import page_of, text_of
from twinbus.cost import prices
from twinbus.planning.plan import Plan, plan_of
from twinbus.planning.question import Traffic

GOOD = {"--rate": "500/s", "--outages": "2/year lognormal 40min"}


OUTCOMES = [
    outcome(10, queues=5, full=sure(0.4)),
    outcome(10, queues=10, raised=sure(50)),
    outcome(60, queues=10, raised=sure(50_000)),
]


def made_up() -> Plan:
    return plan_of(asked(), OUTCOMES, prices.standard())


def test_the_text_says_what_to_take_why_and_what_the_others_do() -> None:
    text = text_of(plan_sheet(made_up(), ["the prices are old"])).splitlines()
    assert text[0] == "Fail over after 10 s, ping every 1 min 0 s, backlog in 10 queues"
    assert text[1] == "warning: the prices are old"
    assert text[2] == "failover_interval=10  ping_primary_interval=60  backlog_queue_count=10"
    assert text[3].startswith("Fail over after 10 s, the longest compared")
    whole = "\n".join(text)
    # 500 a second for 5 and for 10 minutes.
    assert "a person starts it; then 5 to 10 min (Microsoft, " in whole
    assert "in which 150,000 to 300,000 sends come" in whole
    assert "pings, polls             64,000 and 350,400 a year" in whole
    assert "the longest of a year takes 1 h 20 min (half of the years)" in whole
    assert "without egress: not priced" in whole
    starred = [line.split() for line in text if line.startswith("  *")]
    # Once among the failover intervals and once among the numbers of queues.
    assert [line[1:7] for line in starred] == [["10", "s", "1", "min", "0", "s"]] * 2
    bars = text[
        text.index("Sends that raise before the failover in a year, by failover interval") :
    ]
    assert bars[1].split() == ["10", "s", "█", "50"]
    assert bars[2].split()[-2:] == ["█" * 40, "50,000"]


def test_one_number_for_the_sends_that_raise() -> None:
    # Nearly all of them because the backlog is full.
    full: dict[str, Any] = {
        "raised": sure(49.5),
        "refused": sure(28_558.5),
        "full": sure(0.3),
    }
    plan = plan_of(asked(), [outcome(10, **full), outcome(60, **full)], prices.standard())
    text = text_of(plan_sheet(plan, [])).splitlines()
    fact = next(line for line in text if line.strip().startswith("raised  "))
    assert fact.split()[1:4] == ["28,608", "sends", "a"]
    row = next(line for line in text if line.startswith("  *"))
    assert "28,608" in row.split()
    # What is only a part of it is called so: in the reason, and in the fact.
    parts = [line for line in text if "of a million" in line]
    assert len(parts) == 2
    assert all("before" in line for line in parts)
    assert plan.as_json()["recommended"]["raised"] == 28_608
    assert plan.as_json()["recommended"]["raised_before_failover"]["mean"] == 49.5


def test_the_page_has_charts_and_every_setting_and_needs_nothing_else() -> None:
    page = page_of(plan_sheet(made_up(), []))
    assert "Fail over after 10 s, ping every 1 min 0 s, backlog in 10 queues" in page
    assert page.count('<div class="bars">') == 3
    assert page.count("<tr") == 1 + 3 + len(plan_sheet(made_up(), []).tables[0].rows)
    assert_self_contained(page)


def test_a_send_without_a_timeout_tries_as_long_as_its_retries_last() -> None:
    assert default_patience_s(0.0) == pytest.approx(1.6 + 3.2 + 6.4)
    assert default_patience_s(0.0) == pytest.approx(Traffic(rate_per_s=1, size_bytes=1).patience_s)
    assert default_patience_s(5.0) == pytest.approx(11.2 + 4 * 5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"--rate": "-5/s"}, "--rate must not be negative; got '-5/s'"),
        ({"--rate": "0/s"}, "--rate must be more than 0"),
        ({"--rate": "fast"}, "--rate must be a number and a time"),
        ({"--outages": "2/year weibull 40min"}, "lengths are lognormal, exponential, fixed"),
        ({"--sigma": "0"}, "sigma must be more than 0 and at most 3; got 0"),
        ({"--sigma": "-1"}, "sigma must be more than 0"),
        ({"--entities": "0"}, "--entities must be from 1 to 100,000; got 0"),
        ({"--clients": "-3"}, "--clients must be from 1 to 100,000; got -3"),
        ({"--size": "1MB"}, "--size must be at most 262,144 bytes"),
        ({"--queues": "5,lots"}, "--queues must be whole numbers"),
        ({"--queues": "0"}, "queues must be from 1 to 100; got 0"),
        ({"--failover-interval": "2h"}, "failover interval must be from 0 to 3,600 seconds"),
        ({"--ping-interval": "0"}, "ping interval must be from 1 to 1,800 seconds"),
        ({"--backlog-size": "100GB"}, "--backlog-size must be at most"),
        ({"--backlog-size": "5MB"}, "must be 1 to 80 GB"),
        ({"--rate-limit": "0"}, "--rate-limit must be more than 0"),
        ({"--rate-limit": "500/s", "--shared-limit": ""}, "leaves nothing for the backlog"),
        ({"--years": "0"}, "years must be from 1 to 1,000,000; got 0"),
        ({"--seed": "-1"}, "--seed must be from 0"),
        ({"--messaging-units": "3"}, "--messaging-units must be one of 1, 2, 4, 8, 16"),
        ({"--settlement": "maybe"}, "--settlement must be free or counted"),
        ({"--full-years": "2"}, "full years must be 0 to 1"),
        ({"--hang": "2min"}, "--hang must be from 0 to 60 seconds"),
        ({"--prices": "/nowhere/prices.json"}, "price book /nowhere/prices.json: No such file"),
        ({"--to": "/nowhere/plan.html"}, "cannot be written to /nowhere/plan.html"),
    ],
    ids=str,
)
def test_what_is_asked_wrongly_is_one_line_and_no_spark(
    change: dict[str, str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [word for pair in {**GOOD, **change}.items() for word in pair if word]
    monkeypatch.setattr(
        "twinbus.console.plan.making._simulate", lambda *_: pytest.fail("it went on")
    )
    printed = run(capsys, "plan", *words)
    assert (printed.status, printed.out) == (2, "")
    assert says in printed.err
    assert printed.err.startswith("twinbus: ")
    assert printed.err.count("\n") == 1


def test_an_outage_that_happened_is_planned_for_by_its_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--rate", "500/s", "--outage", "west-europe-2025-11", "--output", "json"]
    plan = json.loads(run(capsys, "plan", *words, "--years", "20").out)
    assert plan["question"]["outages"] == ["exactly 1/year fixed 33900s"]
    promotion = plan["geo_replication_promotion"]
    assert (promotion["seconds"], promotion["sends"]) == ([300, 600], [150_000, 300_000])


def test_a_plan_goes_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for output in ("text", "json", "html"):
        path = tmp_path / f"plan.{output}"
        words = [word for pair in GOOD.items() for word in pair]
        ran = run(capsys, "plan", *words, "--years", "20", "--output", output, "--to", str(path))
        assert ran == (0, "", f"twinbus: the plan is in {path}\n")
        assert "10" in path.read_text()
