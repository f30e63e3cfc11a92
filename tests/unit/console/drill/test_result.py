"""A drill: its conclusion, its progress, its report and its page."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.console.commands import run
from tests.unit.console.drill.drill_results import PASSED, WINDOWS, drilled, window
from tests.unit.console.pages import assert_self_contained
from twinbus.console.drill import phases, world
from twinbus.console.drill.result import DrillPlan, DrillResult
from twinbus.console.drill.sheet import drill_sheet
from twinbus.console.drill.world import DrillPage, DrillScreen
from twinbus.console.sheet import page_of, text_of
from twinbus.pipeline.reports.documents import DuplicateMessage
from twinbus.pipeline.reports.values import Charge
from twinbus.pipeline.store.writers import SENDS, WriterGap
from twinbus.run_directory import VARIABLE


def test_a_drill_in_which_all_came_back_passes() -> None:
    assert PASSED.passed
    assert (PASSED.lost, PASSED.lost_ids, PASSED.doubts) == (0, (), ())


def test_a_message_that_was_acknowledged_and_never_came_is_lost() -> None:
    # The table says delivered, for the primary took it; the receivers emptied the primary.
    result = drilled(received=2_999, not_received_ids=("orders-000007",))
    assert (result.lost, result.lost_ids) == (1, ("orders-000007",))
    assert not result.passed


def test_a_message_left_in_the_backlog_is_not_lost_but_the_drill_fails() -> None:
    left = replace(
        drilled(received=2_998, not_received_ids=("a", "b"), waiting=2),
        left_behind=frozenset({"a", "b"}),
    )
    assert (left.lost, left.lost_ids, left.not_received) == (0, (), 2)
    assert not left.passed


def test_lost_ids_are_named_once_and_without_those_that_a_peek_saw() -> None:
    result = drilled(
        received=2_997,
        not_received_ids=("b", "a", "c"),
        dead_lettered=1,
    )
    assert replace(result, left_behind=frozenset({"c"})).lost_ids == ("a", "b")
    assert result.lost == 2


GAP = WriterGap(
    process="app-1",
    from_ms=1,
    to_ms=2,
    roles=("sender",),
    doubts=(SENDS,),
    closed_by=None,
    sentence="app-1 stopped without an end",
)


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({"unrecorded": 2}, "2 records could not be written"),
        ({"rejected": {"torn": 1}}, "1 lines of the ledger cannot be read"),
        ({"accepted": 2_999, "received": 2_999}, "3,000 sends returned"),
        ({"accepted": 0, "received": 0}, "no message was accepted"),
        ({"received": None}, "no receiver wrote"),
        ({"undecided": 3}, "3 messages are undecided"),
        ({"missing": ("records are missing",)}, "records are missing"),
        ({"gaps": (GAP,)}, "app-1 stopped without an end"),
    ],
)
def test_a_ledger_that_is_not_whole_proves_nothing(changes: dict[str, Any], doubt: str) -> None:
    result = drilled(**changes)
    assert not result.passed
    assert any(doubt in line for line in result.doubts)


def test_times_run_to_the_last_entity_and_leave_out_what_was_before() -> None:
    early, late = window("orders", 1_000, 2_000), window("slow", 5_000, 13_000)
    result = drilled(windows=(early, *WINDOWS, late))
    assert result.failover_s == pytest.approx(2.1)
    assert result.recover_s == pytest.approx(1.2)
    assert result.drain_s == 2.0
    assert result.drain_rate == 750.0


def test_without_a_failover_there_are_no_times() -> None:
    result = drilled(windows=(), drain_began_ms=None, drain_ended_ms=None, sends=(), forwarded=0)
    times = result.failover_s, result.recover_s, result.drain_s, result.drain_rate
    assert times == (None, None, None, None)
    assert result.passed


def test_a_receive_gap_that_is_not_known_of_every_entity_is_not_printed() -> None:
    unknown = WINDOWS[2]._replace(receive_gap_ms=None)
    result = drilled(windows=(*WINDOWS[:2], unknown))
    assert (result.receive_gap_s, result.backlog_receive_gap_s) == (None, 9.78)
    assert "without a message" not in " ".join(drill_sheet(result).story)
    values = {name: value for name, value, _ in drill_sheet(result).tables[0].rows}
    assert (values["receive gap"], values["without a twin"]) == ("–", "9.8 s")


def test_messages_left_in_twins_prove_nothing() -> None:
    result = replace(PASSED, in_twins=2)
    assert not result.passed
    assert drill_sheet(result).alerts == ("not proved: 2 messages are left in twins",)


def test_receivers_of_one_entity_are_enough_to_know_what_was_received() -> None:
    silent = PASSED.total._replace(entity="events", accepted=10, received=None)
    conservation = PASSED.report.conservation
    heard = replace(conservation, entities=(*conservation.entities, silent))
    result = replace(PASSED, report=replace(PASSED.report, conservation=heard))
    assert result.received == 3_000


def test_the_json_has_what_was_promised_and_is_plain() -> None:
    found = json.loads(json.dumps(PASSED.as_json()))
    promised = "accepted delivered received lost duplicates diverted caller_errors".split()
    assert [found[key] for key in promised] == [3_000, 3_000, 3_000, 0, 0, 1_500, 0]
    assert (found["failover_s"], found["recover_s"], found["drain_s"]) == (2.1, 0.6, 2.0)
    assert (found["receive_gap_s"], found["backlog_receive_gap_s"]) == (2.31, 9.78)
    assert (found["twinned"], found["in_twins"]) == (996, 0)
    assert found["charges"][0]["operations"] == 1_500
    assert found["bill"]["amount_past_free"] == "0.007232"


@given(st.integers(1, 10_000), st.integers(1, 64), st.floats(0, 3_600), st.floats(0.001, 3_600))
def test_every_message_has_one_sender_and_the_outage_lies_inside_the_traffic(
    messages: int, senders: int, outage_s: float, interval_s: float
) -> None:
    plan = DrillPlan(
        messages=messages, senders=senders, outage_s=outage_s, failover_interval_s=interval_s
    )
    shares = [number for sender in range(senders) for number in plan.share(sender)]
    assert sorted(shares) == list(range(messages))
    assert plan.kill_after_s > 0
    assert plan.kill_after_s + outage_s < plan.traffic_s


def page(result: DrillResult) -> str:
    return page_of(drill_sheet(result))


def test_the_page_is_well_formed_and_loads_nothing() -> None:
    whole = page(PASSED)
    assert_self_contained(whole)
    assert '<div id="outage"></div>' in whole


def test_the_answer_is_on_top_and_what_is_lost_beside_it() -> None:
    good, bad = page(PASSED), page(lossy())
    assert '<div class="headline" data-level="healthy"><div><h1>Nothing was lost</h1>' in good
    assert 'data-level="unprotected"><div><h1>1 message lost</h1>' in bad
    assert bad.index("lost: orders-000007") < bad.index("What happened")


def test_an_id_that_looks_like_markup_stays_text() -> None:
    whole = page(lossy("<script>alert(1)</script>"))
    assert "<script>" not in whole
    assert "&lt;script&gt;" in whole


def lossy(lost_id: str = "orders-000007") -> DrillResult:
    return drilled(received=2_999, not_received_ids=(lost_id,))


def test_the_outage_has_its_moments_its_sends_and_its_backlog() -> None:
    drawn: Any = drill_sheet(PASSED).charts[0]
    data = drawn.data
    (band,) = data["bands"]
    moments = PASSED.moments
    assert band == (moments.killed_ms / 1000, moments.back_ms / 1000, "primary down")
    assert [label for _, label in data["markers"]] == [
        "primary killed",
        "failed over",
        "primary back",
        "ping answered",
        "drain by Spark",
    ]
    assert data["from"] <= data["sends"][0][0]
    assert data["sends"][0][1:] == (188, 0)
    assert data["depth"][-1] == (data["to"], 0)
    assert sum(diverted for *_, diverted in data["sends"]) == 558 + 6 * 157


def test_causes_are_bars_in_the_order_in_which_a_message_meets_them() -> None:
    kinds = [Charge(cause, "send", False, 1, 1) for cause in ("consumer", "odd", "application")]
    whole = page(drilled(by_kind=tuple(kinds)))
    section = whole[whole.index("Operations by cause") :]
    places = [section.index(f">{words}<") for words in ("sends to the primary", "odd")]
    assert places == sorted(places)
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", section)]
    assert widths == [100.0, 100.0, 100.0]


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_when_a_phase_begins_and_one_when_it_ends() -> None:
    text = io.StringIO()
    with DrillScreen(text) as screen, screen.phase("drain", "10 messages wait", 10) as phase:
        phase.reach(5)
        phase.note = "10 messages are home"
    first, last = text.getvalue().splitlines()
    assert first == "drain    10 messages wait ..."
    assert last.startswith("drain ")
    assert last.endswith(" s  10 messages are home")
    assert list(screen.took_s) == ["drain"]


def test_a_log_gets_a_line_of_a_long_phase_every_five_seconds() -> None:
    text = io.StringIO()
    screen = DrillScreen(text)
    began = time.monotonic()
    with screen.phase("count", "reading the ledger", 10) as phase:
        phase.reach(5)
        screen.refresh(began + 4.9)
        assert len(text.getvalue().splitlines()) == 1
        screen.refresh(time.monotonic() + 5.0)
    _, long, _ = text.getvalue().splitlines()
    assert "50%" in long
    assert long.endswith("reading the ledger")


def test_a_phase_that_is_stopped_says_so_and_took_no_time() -> None:
    text = io.StringIO()
    screen = DrillScreen(text)
    with pytest.raises(KeyboardInterrupt), screen, screen.phase("send", "3 messages"):
        raise KeyboardInterrupt
    assert text.getvalue().splitlines()[-1].endswith("stopped")
    assert screen.took_s == {}


def test_a_terminal_shows_the_running_phases_with_their_bars_and_keeps_a_line_of_each() -> None:
    text = Terminal()
    with DrillScreen(text) as screen:
        with screen.phase("Spark", "starting Spark"), screen.phase("send", "rows") as send:
            send.total = 4
            send.reach(1, "3 senders")
            live = screen.text()
        with screen.phase("receive", "plain receivers"):
            pass
    assert live.startswith("Spark ")
    assert "starting Spark  |  send  " in live
    assert "[######..................]  25%" in live
    assert live.endswith(" s  3 senders")
    lines = text.getvalue().replace("\r\x1b[K", "\n").splitlines()
    assert [line.split()[0] for line in lines if line.endswith(("3 senders", "receivers"))][-1] == (
        "receive"
    )
    assert screen.text() == ""


@pytest.mark.parametrize("before", [None, "/run/mine"])
def test_a_drill_with_a_page_has_a_run_directory_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: str | None
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(VARIABLE, before)
    world: Any = SimpleNamespace(directory=tmp_path)
    with DrillPage(world):
        assert os.environ[VARIABLE] == str(tmp_path / "run")
        assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    assert os.environ.get(VARIABLE) == before


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
            "Its entities failed over 2.1 s after the kill: 996 messages went to the twins of"
            " orders and events, 504 to 4 backlog queues in the secondary."
        ),
        (
            "The longest time without a message was 2.3 s for the consumers of orders and events,"
            " which have twins, and 9.8 s for those of payments, which has none."
        ),
        "No send raised an error: the callers did not notice.",
        "The ping found the primary 0.6 s after it was back.",
        "Spark brought 1,500 messages home in 2.0 s, 750 a second.",
        "The consumers got 3,000 of 3,000 accepted messages: 0 lost, 0 duplicates.",
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


def test_a_message_that_the_kill_caught_before_its_completion_is_no_duplicate() -> None:
    windows = {"redelivered": 2, "ambiguous": 1}
    result = drilled(duplicates=3, duplicate_windows=windows)
    assert (result.duplicates, result.redelivered) == (1, 2)
    assert drill_sheet(result).story[-1] == (
        "The primary delivered 2 messages again: the kill hit between delivery and completion."
    )
    rows = {name: (value, meaning) for name, value, meaning in drill_sheet(result).tables[0].rows}
    assert rows["delivered again"] == ("2", "the kill hit before its completion")
    assert rows["duplicates"] == ("1", "1: a send that had no answer was done again elsewhere")
    assert "delivered again" not in [row[0] for row in drill_sheet(PASSED).tables[0].rows]


def test_a_copy_that_came_twice_from_one_place_is_no_duplicate_either() -> None:
    found = tuple(
        DuplicateMessage("orders", name, 2, window)
        for name, window in (("a", "unexplained"), ("b", "unexplained"), ("c", "ambiguous"))
    )
    result = drilled(duplicates=3, duplicate_windows={"unexplained": 2, "ambiguous": 1})
    conservation = replace(result.report.conservation, duplicates=found)
    report = replace(result.report, conservation=conservation)
    again = replace(result, report=report, came_again=frozenset({"a", "c", "other"}))
    assert (again.redelivered, again.duplicates) == (1, 2)


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

    monkeypatch.setattr(phases, "run", drill)
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
