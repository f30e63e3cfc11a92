"""Conservation against rows worked out by hand: fates, duplicates, ages and skewed clocks."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.ledgers import (
    LABEL,
    Line,
    assert_rows,
    at_hand,
    came_out,
    completed,
    diverted,
    fates,
    forwarded,
    line,
    moved,
    received,
    rows,
    sent,
)
from twinbus.pipeline.tables import availability, conservation, journeys, schemas
from twinbus.pipeline.tables.records import tallied

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

DAY, NEXT_DAY = date(2025, 10, 9), date(2025, 10, 10)
QUEUE = "contoso/x-servicebus-transfer/3"
MINUTE = 60


def ledger(spark: SparkSession, *lines: Line) -> DataFrame:
    return spark.createDataFrame(rows(list(lines)), schemas.LEDGER)


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
    # received_accepted, moved_unsent, received_unsent, reused, masked | delivered, dead_lettered,
    # expired, waiting, lost, undecided
    expected = [
        (DAY, LABEL, "orders", 8, 6, 2, 5, 1, 5, 3, 0, 3, 1, 0, 0, 3, 1, 0, 0, 1, 1),
        (NEXT_DAY, LABEL, "news", 1, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1),
    ]
    assert_rows(found, expected, schemas.FATE_SUMS)
    # A peek afterwards changes what it saw, and the sums with it.
    sightings = spark.createDataFrame([("orders", "waits", "waiting", LABEL)], schemas.SIGHTINGS)
    looked = conservation.fate_sums(journeys.with_peek(told, sightings))
    after = {row["destination"]: row for row in looked.collect()}
    assert (after["orders"]["waiting"], after["orders"]["undecided"]) == (1, 0)
    assert (after["news"]["lost"], after["news"]["undecided"]) == (1, 0)
    for row in after.values():
        assert row["accepted"] == sum(row[fate] for fate in journeys.FATES_OF_ACCEPTED)


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
    found = conservation.skews(fates(records))
    expected = [
        (LABEL, "orders", "divert, forward", 4096, 2),
        (LABEL, "orders", "forward, complete", 128, 1),
        (LABEL, "orders", "accept, receive", 4_194_304, 1),
    ]
    assert_rows(found, expected, schemas.SKEWS)


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
