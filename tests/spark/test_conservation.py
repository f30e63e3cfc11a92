"""Conservation: fates, duplicates, ages, skewed clocks; a ledger that hides a loss is found out."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from tests.spark.kept import write_lines
from tests.spark.ledgers import (
    EPOCH_MS,
    LABEL,
    Line,
    assert_rows,
    at_hand,
    came_out,
    completed,
    diverted,
    fates,
    forwarded,
    ledger,
    line,
    moved,
    received,
    sent,
)
from twinbus.console.report.sheets import conservation_sheet
from twinbus.ledger.record import WRITER, encode
from twinbus.pipeline.core.rules import BESIDE_FATES, FATES_OF_ACCEPTED
from twinbus.pipeline.reports.conservation import (
    BacklogSnapshot,
    _is_short,
    awaited_messages,
    conservation_report,
)
from twinbus.pipeline.reports.documents import ConservationReport, ReportRequest, ReportVerdict
from twinbus.pipeline.reports.judgement import unbalanced
from twinbus.pipeline.reports.ledger_tables import batch_tables
from twinbus.pipeline.store.current import current_tables
from twinbus.pipeline.store.writers import Recovery
from twinbus.pipeline.tables import availability, conservation, journeys, schemas
from twinbus.pipeline.tables.gold import is_followed
from twinbus.pipeline.tables.records import tallied
from twinbus.pipeline.tables.schemas import SIGHTINGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

DAY, NEXT_DAY = date(2025, 10, 9), date(2025, 10, 10)
QUEUE = "contoso/x-servicebus-transfer/3"
MINUTE = 60


def broker(operation: str, message_id: str, entity: str = QUEUE, **fields: Any) -> Line:
    """A line of the broker's own view."""
    return line(operation, message_id, entity=entity, view="broker", cause=None, **fields)


def test_what_is_accepted_is_the_sum_of_the_fates_of_each_entity(spark: SparkSession) -> None:
    records = ledger(
        spark,
        sent("direct"),
        *moved("moved"),
        # Its lines are in the wrong order, and the first is of yesterday's file.
        *(completed("late", 10), forwarded("late", 9), came_out("late", 8), diverted("late", 2)),
        diverted("waits"),
        *(diverted("set-aside"), line("dead_letter", "set-aside", 3, cause="syphon")),
        *(diverted("dropped"), came_out("dropped"), completed("dropped")),
        *(sent("refused", outcome="failed"), diverted("refused", outcome="failed")),
        *(sent("unsure", outcome="unknown"), received("unsure")),
        diverted("elsewhere", 15.2 * 3600, entity="News"),
        # Of these no record says that somebody sent them.
        *(came_out("unsent"), forwarded("unsent"), completed("unsent"), received("unsent")),
        *(forwarded("half"), completed("settled"), received("only")),
    )
    told = at_hand(fates(records))
    found = conservation.fate_sums(told)
    # day, label, destination, tried, accepted, raised, diverted, ambiguous, entered, received,
    # received_accepted, moved_unsent, received_unsent, reused, masked, twinned, at_twin,
    # broker_completed, second_copies, redeliveries | delivered, dead_lettered, expired, waiting,
    # lost, undecided
    expected = [
        (DAY, LABEL, "orders", 8, 6, 2, 5, 1, 5, 3, 0, 3, 1, *(0,) * 7, 3, 1, 0, 0, 1, 1),
        (NEXT_DAY, LABEL, "news", 1, 1, 0, 1, 0, 1, *(0,) * 16, 1),
    ]
    assert_rows(found, expected, schemas.FATE_SUMS)
    # A peek afterwards changes what it saw, and the sums with it.
    sightings = spark.createDataFrame([("orders", "waits", "waiting", LABEL)], schemas.SIGHTINGS)
    looked = conservation.fate_sums(journeys.with_peek(told, sightings))
    after = {row["destination"]: row for row in looked.collect()}
    assert (after["orders"]["waiting"], after["orders"]["undecided"]) == (1, 0)
    assert (after["news"]["lost"], after["news"]["undecided"]) == (1, 0)
    for row in after.values():
        assert row["accepted"] == sum(row[fate] for fate in FATES_OF_ACCEPTED)


def test_the_broker_tells_what_became_of_a_message_in_a_backlog_queue(spark: SparkSession) -> None:
    told = ("waits", "expired", "ran-out", "aside", "dropped", "replayed", "taken", "in-vain")
    ids = (*told, "unseen", "moved")
    records = ledger(
        spark,
        *(diverted(each, backlog_queue=QUEUE) for each in ids),
        *(broker("send", each) for each in ids if each != "unseen"),
        broker("expire", "expired"),
        broker("dead_letter", "ran-out", error="TTLExpiredException: its time was over"),
        broker("dead_letter", "aside", error="twinbus: too large"),
        *(broker("receive", "dropped"), broker("complete", "dropped")),
        # Set aside, taken out of the dead-letter queue, and put back.
        broker("dead_letter", "replayed", error="twinbus: destination missing"),
        broker("complete", "replayed", entity=f"{QUEUE}/$DeadLetterQueue"),
        broker("send", "replayed"),
        # Taken out of it by hand; and put back, only to be completed without a forward.
        *(broker("dead_letter", "taken"), broker("complete", "taken", f"{QUEUE}/$DeadLetterQueue")),
        *(broker("dead_letter", "in-vain"), broker("send", "in-vain")),
        broker("complete", "in-vain", f"{QUEUE}/$DeadLetterQueue"),
        broker("complete", "in-vain"),
        # The forward is in no client's ledger: the destination has it all the same.
        *(broker("complete", "moved"), broker("send", "moved", entity="orders")),
    )
    partial = at_hand(journeys.partial_journeys(records))
    judged = at_hand(journeys.judged(partial))
    known = {row["message_id"]: row["fate"] for row in _of(judged, "orders")}
    assert known == {**dict.fromkeys(ids, "undecided"), "moved": "delivered"}
    asked = at_hand(conservation.with_broker_view(judged, partial, availability.states(records)))
    assert {row["message_id"]: row["fate"] for row in _of(asked, "orders")} == {
        "waits": "waiting",
        "expired": "expired",
        "ran-out": "expired",
        "aside": "dead_lettered",
        "dropped": "lost",
        "replayed": "waiting",
        "taken": "dead_lettered",
        "in-vain": "lost",
        "unseen": "undecided",
        "moved": "delivered",
    }
    # Rows about the backlog queue itself are about no accepted message.
    assert {row["fate"] for row in _of(asked, QUEUE)} == {None}


def asked_of_the_broker(records: DataFrame) -> DataFrame:
    """Fates after the broker's view was asked."""
    partial = at_hand(journeys.partial_journeys(records))
    states = availability.states(records)
    return at_hand(conservation.with_broker_view(journeys.judged(partial), partial, states))


def test_what_a_deleted_queue_held_is_undecided_until_somebody_looks(spark: SparkSession) -> None:
    def deleted(at_s: float, entity: str = QUEUE) -> Line:
        return line("manage", None, at_s, entity=entity, state="deleted", view="broker", cause=None)

    other = QUEUE.replace("/3", "/4")
    records = ledger(
        spark,
        *(diverted(each, 1) for each in ("swept", "anew", "elsewhere", "expired", "two")),
        *(broker("send", "swept", at_s=1), broker("receive", "swept", at_s=2)),
        *(broker("send", "expired", at_s=1), broker("expire", "expired", at_s=2)),
        deleted(10, QUEUE.upper()),
        # Stored in the queue of that name that was made afterwards; and in one that is still there.
        broker("send", "anew", at_s=11),
        broker("send", "elsewhere", other, at_s=1),
        *(broker("send", "two", at_s=1), broker("send", "two", other, at_s=1)),
        deleted(0.5, other),
    )
    asked = asked_of_the_broker(records)
    known = {
        "swept": "undecided",
        "anew": "waiting",
        "elsewhere": "waiting",
        "expired": "expired",
        "two": "waiting",
    }
    assert {row["message_id"]: row["fate"] for row in _of(asked, "orders")} == known
    # A look that finds one of them: what should be there and is not is lost.
    seen = spark.createDataFrame([("orders", "anew", "waiting", LABEL)], schemas.SIGHTINGS)
    looked = journeys.with_peek(asked, seen)
    lost = dict.fromkeys(("swept", "elsewhere", "two"), "lost")
    assert {row["message_id"]: row["fate"] for row in _of(looked, "orders")} == {**known, **lost}


def test_an_id_of_two_destinations_is_not_told_by_the_other_ones_copy(spark: SparkSession) -> None:
    both = ("orders", "billing")
    ids = ("1", "wait", "one", "again")
    records = ledger(
        spark,
        *(diverted(name, entity=entity) for name in ids for entity in both),
        *(broker("send", name) for name in ids for _ in both),
        # That of orders is set aside; a syphon completes that of billing and never forwards it.
        line("dead_letter", "1", 3, cause="syphon"),
        broker("dead_letter", "1", error="twinbus: too large"),
        completed("1", 3, entity="billing"),
        broker("complete", "1"),
        # One of the two is gone, and nobody says which.
        broker("complete", "one"),
        # That of orders was set aside, put back and delivered; that of billing is lost.
        *(broker("dead_letter", "again"), broker("send", "again"), forwarded("again", 9)),
        completed("again", 9),
        *(completed("again", 9, entity="billing"), broker("complete", "again")),
        broker("complete", "again"),
    )
    asked = asked_of_the_broker(records)
    found = {
        entity: {row["message_id"]: row["fate"] for row in _of(asked, entity)} for entity in both
    }
    known = {"wait": "waiting", "one": "undecided"}
    assert found == {
        "orders": {**known, "1": "dead_lettered", "again": "delivered"},
        "billing": {**known, "1": "lost", "again": "lost"},
    }


def _of(table: DataFrame, destination: str) -> list[Any]:
    return table.where(table["destination"] == destination).collect()


def test_duplicates_fall_into_a_window_and_the_broker_explains_more(spark: SparkSession) -> None:
    topic = "news/Subscriptions/"
    records = ledger(
        spark,
        *(sent("once"), received("once"), broker("send", "once", "orders")),
        *(sent("unsure", outcome="unknown"), *moved("unsure")),
        *(received("unsure"), received("unsure")),
        *(*moved("crash"), forwarded("crash", 12), received("crash"), received("crash")),
        *(sent("odd"), received("odd"), received("odd"), received("odd")),
        # Stored once and received twice; stored twice, which no consumer tells.
        *(sent("again"), broker("send", "again", "orders")),
        *(received("again"), received("again")),
        *(sent("two"), broker("send", "two", "orders"), broker("send", "two", "orders")),
        # The second copy was dropped by duplicate detection.
        *(sent("caught"), broker("send", "caught", "orders")),
        broker("send", "caught", "orders", state="duplicate"),
        # Two subscriptions have it once each; of the other message one has two.
        sent("fan", entity="news"),
        *(received("fan", entity=topic + "a"), received("fan", entity=topic + "b")),
        sent("fan-2", entity="news"),
        *(received("fan-2", entity=topic + "a"), received("fan-2", entity=topic + "B")),
        received("fan-2", entity=topic + "b"),
        # Diverted twice without an answer: two copies in the backlog, none at its entity.
        *(broker("send", "pending"), broker("send", "pending")),
    )
    told = at_hand(fates(records))
    found = conservation.named_duplicates(told).collect()
    assert sorted(map(tuple, found)) == sorted(
        [
            ("orders", "orders", "unsure", 2, "ambiguous", LABEL),
            ("orders", "orders", "crash", 2, "syphon", LABEL),
            ("orders", "orders", "odd", 3, "unexplained", LABEL),
            ("orders", "orders", "again", 2, "redelivered", LABEL),
            ("orders", "orders", "two", 2, "stored_twice", LABEL),
            ("news/subscriptions/b", "news", "fan-2", 2, "unexplained", LABEL),
        ]
    )


def test_a_backlog_older_than_the_detection_window_is_flagged(spark: SparkSession) -> None:
    def moved_after(age_s: float, entity: str = "orders") -> list[Line]:
        name = f"{entity}-{age_s}"
        return [diverted(name, 0, entity=entity), forwarded(name, age_s, entity=entity)]

    lines = [
        *moved_after(10 * MINUTE),
        *moved_after(10 * MINUTE + 0.001),
        *moved_after(10 * MINUTE + 5),
        *moved_after(2 * 3600 + 1),
        *moved_after(30 * MINUTE, "News"),
        *moved_after(-5, "skewed"),
        # Not forwarded: its age is not known yet.
        diverted("waits", 0),
    ]
    table = at_hand(conservation.ages(fates(ledger(spark, *lines))))
    expected = [
        (LABEL, "orders", 600, 1),
        (LABEL, "orders", 601, 1),
        (LABEL, "orders", 605, 1),
        (LABEL, "orders", 7260, 1),
        (LABEL, "news", 1800, 1),
        (LABEL, "skewed", 0, 1),
    ]
    assert_rows(table, expected, schemas.AGES)
    assert _flagged(table, 600) == [(LABEL, "news", 1, 1800), (LABEL, "orders", 3, 7260)]
    assert _flagged(table, 1800) == [(LABEL, "orders", 1, 7260)]
    assert _flagged(table, 0) == []


def _flagged(ages: DataFrame, detection_s: int) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in conservation.aged(ages, detection_s).collect())


def test_clocks_that_disagree_are_counted_with_how_much(spark: SparkSession) -> None:
    records = ledger(
        spark,
        # By 3 s, by 4.096 s and not at all.
        *(diverted("a", 10), forwarded("a", 7), completed("a", 7)),
        *(diverted("b", 10), forwarded("b", 5.904), completed("b", 12)),
        *moved("c"),
        *(diverted("d", 1), forwarded("d", 10), completed("d", 9.9)),
        # Two forwards, and the first was completed: no clock is wrong.
        *(diverted("g", 1), forwarded("g", 5), completed("g", 6), forwarded("g", 7)),
        # Received before the sender had its answer: usual. An hour before: the clock.
        *(sent("e", 2), received("e", 1)),
        *(sent("f", 3600 + 61), received("f", 0)),
    )
    messages = at_hand(fates(records))
    expected = [
        (LABEL, "orders", "divert, forward", 4096, 2),
        (LABEL, "orders", "forward, complete", 128, 1),
        (LABEL, "orders", "accept, receive", 4_194_304, 1),
    ]
    assert_rows(conservation.skews(messages), expected, schemas.SKEWS)
    # A batch counts them of some of its messages, which "e" is none of.
    followed = messages.where(is_followed())
    assert_rows(conservation.skews(followed), expected, schemas.SKEWS)
    outside = followed.where("entered_ms is null").collect()
    assert [row["message_id"] for row in outside] == ["f"]


def test_lines_of_each_day_and_what_they_leave_out(spark: SparkSession) -> None:
    records = ledger(
        spark,
        sent("a"),
        line("send", None),
        sent("nowhere", entity=None),
        sent("failed", entity=None, outcome="failed"),
        line("state", None, 15.2 * 3600, entity=None, unrecorded=7),
        broker("send", "a"),
    )
    expected = [(DAY, "client", 4, 2, 0), (NEXT_DAY, "client", 1, 0, 7), (DAY, "broker", 1, 0, 0)]
    assert_rows(conservation.lines(tallied(records, bucket_s=60)), expected, schemas.LINES)


ALL = ReportRequest()
FIRST_QUEUE = "contoso/x-servicebus-transfer/0"


def stored(operation: str, message_id: str, at_s: float = 0, **fields: Any) -> Line:
    """What the seen says of a message in a backlog queue."""
    return line(operation, message_id, at_s, **{"view": "broker", "entity": FIRST_QUEUE, **fields})


def test_fates_that_do_not_add_up_to_what_was_accepted_are_told() -> None:
    row = {
        "destination": "orders",
        "accepted": 3,
        **dict.fromkeys((*FATES_OF_ACCEPTED, *BESIDE_FATES), 0),
    }
    [sentence] = unbalanced([{**row, "delivered": 2}, {**row, "delivered": 2, "lost": 1}])
    assert "3 messages of orders were accepted and 2 have a fate" in sentence
    assert not [*unbalanced([{**row, "delivered": 1, "waiting": 1, "undecided": 1}])]


@pytest.mark.parametrize(
    "tables_of", [current_tables, pytest.param(batch_tables, marks=pytest.mark.soak)]
)
def test_what_can_hide_a_loss_is_unknown_and_a_copy_counts_once(
    spark: SparkSession, tmp_path: Path, tables_of: Callable[..., Any]
) -> None:
    clients = [
        *(*moved("known"), received("known", 11), diverted("waits")),
        # The same id for two messages: the second was lost.
        *(*moved("again"), diverted("again", 20), came_out("again", 30), completed("again", 30)),
        # Sent again by a careful sender: both are known to be at their destination.
        *(sent("twice"), sent("twice", 1), sent("both"), *moved("both")),
    ]
    write_lines(tmp_path, "test-00000.jsonl", clients)
    first = tmp_path / "test-00000.jsonl"
    shutil.copy(first, tmp_path / "test-00000-copy.jsonl")
    (tmp_path / "test-00000.jsonl.open").write_bytes(first.read_bytes()[:-40])
    packed = json.dumps(sent("packed")).encode() + b"\n"
    (tmp_path / "test-00001.jsonl.gz").write_bytes(gzip.compress(packed))
    seen = [
        line("state", view="broker", namespace="east", state="serving", entity=None),
        *(
            stored("send", "known"),
            stored("receive", "known", 9),
            stored("complete", "known", 9),
        ),
        # The ledger of its sender is missing: it was stored, completed, and never forwarded.
        *(
            stored("send", "gone"),
            stored("receive", "gone", 9),
            stored("complete", "gone", 9),
        ),
        stored("send", "waits"),
    ]
    write_lines(tmp_path, "broker-00000.jsonl", seen)
    # A broker that never said that it stopped.
    last = tmp_path / "broker-00000.jsonl"
    begin = encode("broker", EPOCH_MS, WRITER, {"state": "begin", "number": 0, "interval_ms": 0})
    last.write_bytes(begin + last.read_bytes())
    with tables_of(spark, tmp_path) as tables:
        _assert_unknown(conservation_report(tables, ALL, None, in_brief=True))
        copies = {"test-00000-copy.jsonl", "test-00000.jsonl.open"}
        assert tables.inspected.refused.keys() == copies
        # A successor of the seen must find what was there by the records.
        [gap] = tables.inspected.gaps
        for messages, is_short in ((0, True), (1, False)):
            gaps = (replace(gap, recovery=Recovery(EPOCH_MS + 60_000, messages)),)
            told = Mock(
                inspected=replace(tables.inspected, gaps=gaps), in_backlog=tables.in_backlog
            )
            assert _is_short(told) == is_short


def _assert_unknown(report: ConservationReport) -> None:
    assert report.verdict is ReportVerdict.UNKNOWN
    [unsent, masked] = report.incomplete
    assert unsent.startswith("1 messages were stored in a backlog queue, as the broker's")
    assert masked.startswith("1 ids were accepted more than once and diverted more often")
    said = "3 ids accepted more than once: each counts as one message"
    assert any(one.startswith(said) for one in conservation_sheet(report).lines)
    assert (report.reused, report.total.accepted, report.total.undecided) == (3, 6, 1)
    assert (report.scope.records, report.total.duplicates) == (29, 0)
    [gap] = report.scope.gaps
    assert (gap.process, gap.is_open) == ("broker", True)
    assert gap.sentence in report.unknown
    assert sum("not read" in one for one in report.scope.remarks) == 2


def test_a_peek_calls_lost_what_the_ledger_knew_before_it_whatever_the_clocks_say(
    spark: SparkSession, tmp_path: Path
) -> None:
    # What a peek cannot find because its id was erased.
    erased = diverted(f"erased:{'0' * 32}")
    write_lines(tmp_path, "p-0.jsonl", [diverted("early", 3_600), erased, sent("a")])
    # After the peek, by a sender whose clock is an hour behind; "early" is by one that is ahead.
    write_lines(tmp_path, "p-1.jsonl", [diverted("late", -3_600)])
    seen, began_ms = spark.createDataFrame([], SIGHTINGS), EPOCH_MS + 60_000
    with batch_tables(spark, tmp_path) as tables:
        awaited = awaited_messages(tables).where("message_id <> 'late'")
        look = BacklogSnapshot(seen, began_ms, awaited=awaited)
        report = conservation_report(tables, ALL, look, in_brief=True)
    fates = {message.message_id: message.fate for message in report.messages}
    assert fates == {"early": "lost", "late": "undecided", erased["message_id"]: "undecided"}
    assert "waiting and lost of 1 erased messages: a peek cannot find them without ids" in (
        report.unknown
    )
