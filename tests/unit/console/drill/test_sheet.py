"""The text of a drill's report."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.console.drill.drill_results import PASSED, drilled
from twinbus.console.drill.sheet import drill_sheet
from twinbus.console.sheet.text import text_of


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
    result = replace(PASSED, plan=plan, client="Python (azure-servicebus 7.14.3; no npm)")
    assert drill_sheet(result).story[1] == (
        "The senders know nothing of Twinbus: Python (azure-servicebus 7.14.3; no npm), through a"
        " gateway."
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
