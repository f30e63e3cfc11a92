"""The report of a drill, and the options that it repeats."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from tests.unit.console.commands import run
from tests.unit.console.drill.drill_results import PASSED, drilled
from twinbus.console.drill import commands, world
from twinbus.console.drill.result import DrillPlan
from twinbus.console.drill.sheet import drill_sheet
from twinbus.console.sheet import page_of, text_of

KNOWN = "west-europe-2025-11"


def test_a_good_drill_is_told_from_the_kill_to_the_count() -> None:
    assert drill_sheet(PASSED).headline == "Nothing was lost"
    assert drill_sheet(PASSED).alerts == ()
    assert drill_sheet(PASSED).story == (
        (
            "4 senders sent 3,000 messages at 188 a second; the primary was killed with SIGKILL"
            " after 3 s and was down for 8.8 s."
        ),
        (
            "Its entities failed over 2.1 s after the kill, and 1,500 messages went to 4 backlog"
            " queues in the secondary."
        ),
        "No send raised an error: the callers did not notice.",
        "The ping found the primary 0.6 s after it was back.",
        "Spark brought 1,500 messages home in 2.0 s, 750 a second.",
        "The receivers got 3,000 of 3,000 accepted messages: 0 lost, 0 duplicates.",
    )


def test_a_drill_through_a_gateway_says_so_and_which_client_sent() -> None:
    plan = replace(PASSED.plan, gateway=True)
    result = replace(PASSED, plan=plan, client="the plain Python SDK (7.15)")
    assert drill_sheet(result).story[1] == (
        "The senders know nothing of Twinbus: the plain Python SDK (7.15), through a gateway."
    )
    assert " --queues 4 --gateway\n" in text_of(drill_sheet(result))
    assert result.as_json()["client"] == result.client
    assert PASSED.as_json()["client"] is None


def test_lost_messages_are_named_and_only_so_many() -> None:
    ids = tuple(f"orders-{number:06d}" for number in range(30))
    result = drilled(received=2_970, not_received_ids=ids)
    (line,) = drill_sheet(result).alerts
    assert drill_sheet(result).headline == "30 messages lost"
    assert line.startswith("lost: orders-000000, orders-000001, ")
    assert line.endswith("orders-000019 and 10 more, see drill.json")
    one = drilled(received=2_999, not_received_ids=("orders-000007",))
    assert drill_sheet(one).headline == "1 message lost"
    assert drill_sheet(one).alerts == ("lost: orders-000007",)


def test_what_is_left_in_the_backlog_is_not_called_lost() -> None:
    result = replace(
        drilled(received=2_999, not_received_ids=("a",), waiting=1),
        left_behind=frozenset({"a"}),
    )
    assert drill_sheet(result).headline == "1 message not received"
    assert drill_sheet(result).alerts == (
        "still in the backlog: 1 message; the drain did not finish",
    )
    numbers = drill_sheet(result).tables[0]
    bad = [row[0] for index, row in enumerate(numbers.rows) if index in numbers.bad]
    assert bad == ["received", "in the backlog"]


def test_a_doubt_is_said_and_no_proof_claimed() -> None:
    result = drilled(unrecorded=5)
    assert drill_sheet(result).headline == "Nothing is proved"
    assert drill_sheet(result).alerts == (
        "not proved: 5 records could not be written to the ledger",
    )


def test_an_outage_too_short_to_fail_over_is_told_so() -> None:
    result = drilled(windows=(), drain_began_ms=None, drain_ended_ms=None, sends=(), forwarded=0)
    story = " ".join(drill_sheet(result).story)
    assert "No entity failed over" in story
    assert "Spark brought" not in story
    values = {name: value for name, value, _ in drill_sheet(result).tables[0].rows}
    assert values["time to fail over"] == values["time to recover"] == values["drain"] == "–"


def test_errors_and_duplicates_are_told_with_their_reason() -> None:
    result = drilled(raised=1, duplicates=2, duplicate_windows={"ambiguous": 2})
    assert "1 send raised an error, so their callers know." in drill_sheet(result).story
    (meaning,) = [row[2] for row in drill_sheet(result).tables[0].rows if row[0] == "duplicates"]
    assert meaning == "2: a send that had no answer was done again elsewhere"


def test_the_text_has_the_answer_first_and_the_numbers_without_a_heading() -> None:
    lines = text_of(drill_sheet(PASSED)).splitlines()
    assert lines[0] == "Nothing was lost"
    numbers = lines[lines.index("Every number") + 1 :]
    assert numbers[0].split() == ["accepted", "3,000", "send_messages", "returned"]


def planned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> DrillPlan:
    """The plan that the command makes of its options."""
    plans: list[DrillPlan] = []

    def drill(plan: DrillPlan, *_: object, is_page_wanted: bool) -> int:
        assert not is_page_wanted
        plans.append(plan)
        return 0

    monkeypatch.setattr(commands, "run", drill)
    assert run(capsys, "drill", *words).status == 0
    (plan,) = plans
    return plan


def test_a_known_outage_is_played_a_thousand_times_faster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = planned(monkeypatch, capsys, "--outage", KNOWN)
    assert (plan.outage_s, plan.stands_for) == (33.9, KNOWN)


def test_the_report_of_a_known_outage_has_geo_replication_beside_it() -> None:
    # 1,190 messages in 3 + 33.9 + 5 s: 28.4 a second.
    plan = DrillPlan(messages=1_190, outage_s=33.9, failover_interval_s=2.0, stands_for=KNOWN)
    result = replace(PASSED, plan=plan)
    (section,) = [one for one in drill_sheet(result).sections if "stands for" in one.title]
    outage, backlog, geo = section.lines
    assert outage.startswith("West Europe, 5 November 2025, 17:00 to 02:25 UTC: 9 h 25 min, played")
    # 28.4 a second for 33,898 s are 962,736 messages, and a moved one has two operations more.
    assert "the backlog adds 1,925,471 operations to the month: 1.54 USD" in backlog
    assert "5 to 10 min (Microsoft, " in geo
    assert "8,520 to 17,041 sends" in geo
    # Two regions, 730 hours, 0.9275 each.
    assert "cost 1,354.15 USD a month" in geo
    assert f"--outage {KNOWN} --failover-interval 2" in text_of(drill_sheet(result))
    assert "stands for" not in text_of(drill_sheet(PASSED))


class Started(Exception):
    """A process was started with these words."""


def started(_: object, words: list[str], **__: object) -> None:
    raise Started(words)


@pytest.mark.parametrize(
    ("words", "like"), [((), None), (("--like", "azure-standard"), "azure-standard")]
)
def test_the_option_reaches_both_namespaces(
    words: tuple[str, ...],
    like: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = planned(monkeypatch, capsys, *words)
    assert plan.like == like
    monkeypatch.setattr(subprocess.Popen, "__init__", started)
    with world.World(plan.like) as drilled:
        for side in (drilled.primary, drilled.secondary):
            with pytest.raises(Started) as caught:
                side.start()
            command = caught.value.args[0]
            assert "serve" in command
            assert command[command.index("--ledger") + 2 :] == (["--like", like] if like else [])


def test_the_report_repeats_the_option() -> None:
    limited = replace(PASSED, plan=replace(PASSED.plan, like="azure-standard"))
    assert " --like azure-standard" in page_of(drill_sheet(limited))
    assert "--like" not in page_of(drill_sheet(PASSED))
