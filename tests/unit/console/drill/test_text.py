"""The report in a person's words."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.console.drill.drill_results import PASSED, drilled
from twinbus.console.drill import text as drill_words


def test_a_good_drill_is_told_from_the_kill_to_the_count() -> None:
    assert drill_words.headline(PASSED) == "Nothing was lost"
    assert drill_words.missing(PASSED) == []
    assert drill_words.story(PASSED) == [
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
    ]


def test_lost_messages_are_named_and_only_so_many() -> None:
    ids = tuple(f"orders-{number:06d}" for number in range(30))
    result = drilled(received=2_970, not_received=30, not_received_ids=ids)
    (line,) = drill_words.missing(result)
    assert drill_words.headline(result) == "30 messages lost"
    assert line.startswith("lost: orders-000000, orders-000001, ")
    assert line.endswith("orders-000019 and 10 more, see drill.json")
    one = drilled(received=2_999, not_received=1, not_received_ids=("orders-000007",))
    assert drill_words.headline(one) == "1 message lost"
    assert drill_words.missing(one) == ["lost: orders-000007"]


def test_what_is_left_in_the_backlog_is_not_called_lost() -> None:
    result = replace(
        drilled(received=2_999, not_received=1, not_received_ids=("a",), waiting=1),
        left_behind=frozenset({"a"}),
    )
    assert drill_words.headline(result) == "1 message not received"
    assert drill_words.missing(result) == [
        "still in the backlog: 1 message; the drain did not end its work"
    ]
    bad = [row.name for row in drill_words.rows(result) if row.is_bad]
    assert bad == ["received", "in the backlog"]


def test_a_doubt_is_said_and_no_proof_claimed() -> None:
    result = drilled(unrecorded=5)
    assert drill_words.headline(result) == "Nothing is proved"
    assert drill_words.missing(result) == [
        "not proved: 5 records could not be written to the ledger"
    ]


def test_an_outage_too_short_to_fail_over_is_told_so() -> None:
    result = drilled(states=(), drain_began_ms=None, drain_ended_ms=None, diverted=0, forwarded=0)
    story = " ".join(drill_words.story(result))
    assert "No entity failed over" in story
    assert "Spark brought" not in story
    values = {row.name: row.value for row in drill_words.rows(result)}
    assert values["time to fail over"] == values["time to recover"] == values["drain"] == "–"


def test_errors_and_duplicates_are_told_with_their_reason() -> None:
    result = drilled(raised=1, duplicates=2, duplicate_windows={"ambiguous": 2})
    assert "1 send raised an error, so their callers know." in drill_words.story(result)
    (row,) = [row for row in drill_words.rows(result) if row.name == "duplicates"]
    assert row.meaning == "2: a send that had no answer was done again elsewhere"
