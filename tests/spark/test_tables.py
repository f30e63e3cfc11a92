"""The pure tables and the journeys of messages on small ledgers, against hand-made rows."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from tests.spark.ledgers import (
    EPOCH_MS,
    LABEL,
    Line,
    assert_rows,
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
from twinbus.ledger.record import FIELDS
from twinbus.pipeline.tables import availability, conservation, gold, schemas
from twinbus.pipeline.tables.journeys import judged, merged, partial_journeys, with_peek
from twinbus.pipeline.tables.records import may_share_messages, receivers_of, tallied
from twinbus.pipeline.tables.schemas import FATES, JOURNEYS, SIGHTINGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def fates_of(table: DataFrame) -> dict[str, str | None]:
    return {row["message_id"]: row["fate"] for row in table.collect()}


def test_the_schema_is_that_of_the_ledgers_lines() -> None:
    kinds = {"bigint": int, "string": str}
    fields = {field.name: kinds[field.dataType.simpleString()] for field in schemas.LEDGER}
    # The others are of lines that are no records.
    assert fields.items() <= FIELDS.items()
    assert "lines" in fields
    assert "hash" not in fields


def test_every_message_has_the_fate_that_its_lines_tell(spark: SparkSession) -> None:
    operations = ledger(
        spark,
        sent("direct"),
        *moved("moved"),
        *[diverted("waits"), came_out("waits")],
        *[diverted("dropped"), came_out("dropped"), completed("dropped")],
        *[diverted("poison"), came_out("poison"), line("dead_letter", "poison", cause="syphon")],
        *[diverted("quiet-forward"), received("quiet-forward")],
        # Asked again elsewhere, and both were carried out.
        *[sent("twice", outcome="unknown"), *moved("twice")],
        sent("refused", outcome="failed"),
        *[sent("silent", outcome="unknown"), received("silent")],
        # What a consumer completes is not what the syphon completes.
        *[diverted("consumer"), completed("consumer", cause="consumer")],
        *[diverted("failed-forward"), forwarded("failed-forward", outcome="failed")],
    )
    blind = {
        "direct": "delivered",
        "moved": "delivered",
        "waits": "undecided",
        "dropped": "lost",
        "poison": "dead_lettered",
        "quiet-forward": "delivered",
        "twice": "delivered",
        "refused": None,
        "silent": None,
        "consumer": "undecided",
        "failed-forward": "undecided",
    }
    assert fates_of(fates(operations)) == blind
    sightings = operations.sparkSession.createDataFrame(
        [
            ("Orders", "waits", "waiting", LABEL),
            ("orders", "consumer", "dead_lettered", LABEL),
            # A copy that the syphon has yet to complete: the message is delivered all the same.
            ("orders", "moved", "waiting", LABEL),
            ("other", "failed-forward", "waiting", LABEL),
        ],
        schemas.SIGHTINGS,
    )
    assert fates_of(with_peek(fates(operations), sightings)) == {
        **blind,
        "waits": "waiting",
        "consumer": "dead_lettered",
        "failed-forward": "lost",
    }


def test_a_message_is_its_destination_and_its_id(spark: SparkSession) -> None:
    operations = ledger(
        spark,
        sent("1", entity="Orders"),
        diverted("1", entity="news"),
        received("1", entity="news/Subscriptions/all"),
        diverted("1", entity="audit"),
        sent("nobody", entity=None),
    )
    table = fates(operations)
    found = {(row["destination"], row["fate"], row["received"]) for row in table.collect()}
    assert found == {
        ("orders", "delivered", False),
        ("news", "delivered", True),
        ("audit", "undecided", False),
    }


def test_the_columns_of_fates_are_those_of_its_schema(spark: SparkSession) -> None:
    table = fates(ledger(spark, sent("a")))
    found = [(field.name, field.dataType) for field in table.schema]
    assert found == [(field.name, field.dataType) for field in schemas.FATES]


def test_duplicates_are_counted_by_entity_and_placed_in_their_window(spark: SparkSession) -> None:
    topic = "news/Subscriptions/"
    operations = ledger(
        spark,
        *[sent("once"), received("once")],
        *[sent("unsure", outcome="unknown"), *moved("unsure"), received("unsure")],
        received("unsure"),
        *[*moved("crash"), forwarded("crash"), received("crash"), received("crash")],
        *[sent("odd"), received("odd"), received("odd"), received("odd")],
        # One message, two subscriptions: no duplicate. A third receipt is one.
        sent("fan", entity="news"),
        *[received("fan", entity=topic + "a"), received("fan", entity=topic + "b")],
        received("fan", entity=topic + "B"),
    )
    found = conservation.named_duplicates(fates(operations))
    expected = [
        ("orders", "orders", "unsure", 2, "ambiguous", LABEL),
        ("orders", "orders", "crash", 2, "syphon", LABEL),
        ("orders", "orders", "odd", 3, "unexplained", LABEL),
        ("news/subscriptions/b", "news", "fan", 2, "unexplained", LABEL),
    ]
    assert sorted(map(tuple, found.collect())) == sorted(expected)


def test_sends_by_route_and_the_depth_of_the_backlog_over_time(spark: SparkSession) -> None:
    operations = ledger(
        spark,
        *[sent("a", 0.1), sent("b", 0.9), sent("c", 1.0), sent("x", 1.1, outcome="failed")],
        *[diverted("d", 2.0), diverted("e", 2.5), diverted("f", 4.0)],
        # Stored without an answer, as its coming out shows; then one that never was.
        *[diverted("g", 4.5, outcome="unknown"), came_out("g", 9)],
        diverted("h", 4.6, outcome="unknown"),
        *[forwarded("d", 9.2), completed("d", 9.3), forwarded("e", 10.1), completed("g", 11)],
    )
    second = EPOCH_MS // 1000
    traffic = availability.traffic(tallied(operations, bucket_s=1), bucket_s=1)
    sends = traffic.where("sent + diverted > 0")
    found = sends.select(F.col("at_s") - second, "sent", "diverted").collect()
    assert sorted(map(tuple, found)) == [(0, 2, 0), (1, 1, 0), (2, 0, 2), (4, 0, 1)]
    table = fates(operations)
    changes = {2: 2, 4: 4, 9: 3, 10: 2, 11: 1}
    assert {at: count for at, count in _depth(table, 1).items() if at in changes} == changes
    assert _depth(table, 10) == {0: 3 + 1 - 1, 10: 1}


def _depth(table: DataFrame, bucket_s: int) -> dict[int, int]:
    """Messages in the backlog at the end of the buckets, in seconds from the epoch."""
    stays = availability.stays(table, bucket_s=1)
    points = availability.backlog_over_time(stays, bucket_s=bucket_s).collect()
    return {row["at_s"] - EPOCH_MS // 1000: row["depth"] for row in points}


RAISED = next(table for table in gold.gold_tables() if table.name == "raised")


def test_parts_are_added_up_and_what_came_to_nothing_is_left_out(spark: SparkSession) -> None:
    parts = [
        [(60, "p", "a", 2), (60, "p", "b", 1)],
        [(60, "p", "a", 3), (60, "q", "a", 1)],
        [(60, "p", "b", -1)],
    ]
    frames = [spark.createDataFrame(part, schemas.RAISED) for part in parts]
    assert_rows(gold.merged(RAISED, frames), [(60, "p", "a", 5), (60, "q", "a", 1)], schemas.RAISED)


def test_every_table_has_the_columns_of_its_schema(spark: SparkSession) -> None:
    records = spark.createDataFrame([], schemas.LEDGER)
    messages = spark.createDataFrame([], schemas.FATES)
    sources = gold.Sources(records, tallied(records, bucket_s=60), messages, messages)
    tables = gold.gold_tables()
    assert len({table.name for table in tables}) == len(tables)
    for table in tables:
        whole = table.rows(sources)
        found = [(field.name, field.dataType) for field in whole.schema]
        assert found == [(field.name, field.dataType) for field in table.schema], table.name
        assert table.sums
        assert gold.merged(table, [whole]).columns == table.schema.fieldNames()


SUBSCRIPTION = "news/Subscriptions/"

LINES: list[Line] = [
    *[sent("direct", 1), received("direct", 2)],
    *moved("moved", 3, out_s=9),
    # The syphon's clock is behind that of the sender: it leaves before it came.
    *[diverted("skewed", 20), *moved("skewed", 20, out_s=15)[1:]],
    *[sent("unsure", 4, outcome="unknown", latency_us=1_500_000)],
    sent("unsure", 5, outcome="failed"),
    *[diverted("unsure", 6), line("defer", "unsure", 7, cause="syphon")],
    # One message, two subscriptions: no duplicate. A third receipt is one.
    sent("fan", 1, entity="News"),
    *[received("fan", 2, entity=SUBSCRIPTION + "a"), received("fan", 4, entity=SUBSCRIPTION + "b")],
    received("fan", 3, entity=SUBSCRIPTION + "B"),
    # The broker's view: of one without an answer, of one that ran out of time, of one it refused.
    *[diverted("kept", 1), line("send", "kept", 1, view="broker")],
    *[diverted("late", 1), line("expire", "late", 60, view="broker")],
    *[diverted("poison", 1), line("dead_letter", "poison", 5, view="broker", error="bad")],
    *[diverted("gone", 1), came_out("gone", 2), completed("gone", 3)],
    # Dead letters: one is there; the other was put back and then completed without a forward.
    *[diverted("aside", 1), line("dead_letter", "aside", 2, cause="syphon")],
    *[diverted("back", 1), line("dead_letter", "back", 2, cause="syphon"), completed("back", 9)],
    # What a consumer settles is not what the syphon settles.
    *[diverted("mine", 1), completed("mine", 2, cause="consumer")],
    *[sent("nobody", entity=None), line("send", None)],
]


LABELLED = [one for one in LINES if one.get("view") != "broker"]


def journeys_of(session: SparkSession, lines: list[Line]) -> DataFrame:
    records = ledger(session, *lines)
    return partial_journeys(records, one_task=True)


def by_id(table: DataFrame, *names: str) -> dict[str, Any]:
    return {
        row["message_id"]: row[names[0]] if len(names) == 1 else tuple(row[name] for name in names)
        for row in table.collect()
    }


def test_every_message_has_the_facts_and_the_fate_that_its_lines_tell(spark: SparkSession) -> None:
    journeys = journeys_of(spark, LINES)
    assert [(field.name, field.dataType) for field in journeys.schema] == [
        (field.name, field.dataType) for field in JOURNEYS
    ]
    facts = {(row["message_id"], row["receiver"]): row for row in journeys.collect()}
    unsure = facts["unsure", ""].asDict()
    told = [name for name, value in unsure.items() if value is True]
    assert told == ["tried", "diverted", "ambiguous", "deferred", "labelled"]
    assert (unsure["failed_sends"], unsure["receipts"], unsure["size_bytes"]) == (1, 0, 150)
    times = {
        name: value - EPOCH_MS for name, value in unsure.items() if name[-3:] == "_ms" and value
    }
    assert times == {
        "first_ms": 4_000,
        "last_ms": 7_000,
        "accepted_ms": 6_000,
        "diverted_ms": 6_000,
        "tried_ms": 6_000,
        "begun_ms": 2_500,
    }
    subscriptions = {key[1]: row["receipts"] for key, row in facts.items() if key[0] == "fan"}
    assert subscriptions == {"": 0, "news/subscriptions/a": 1, "news/subscriptions/b": 2}
    fates = judged(journeys)
    assert fates.columns == FATES.fieldNames()
    found = by_id(fates, "fate", "times", "repeats", "repeated_at")
    assert found == {
        "direct": ("delivered", 1, 0, None),
        "moved": ("delivered", 0, 0, None),
        "skewed": ("delivered", 0, 0, None),
        "unsure": ("undecided", 0, 0, None),
        "fan": ("delivered", 2, 1, "news/subscriptions/b"),
        "kept": ("delivered", 0, 0, None),
        "late": ("expired", 0, 0, None),
        "poison": ("dead_lettered", 0, 0, None),
        "gone": ("lost", 0, 0, None),
        "aside": ("dead_lettered", 0, 0, None),
        "back": ("undecided", 0, 0, None),
        "mine": ("undecided", 0, 0, None),
    }
    seen = [
        *[("orders", "late", "dead_lettered", LABEL), ("Orders", "unsure", "waiting", "Contoso")],
        # A copy of each: it still waits. And one of another queue's message.
        *[("orders", "poison", place, LABEL) for place in ("dead_lettered", "waiting")],
        *[("other", "mine", "waiting", LABEL), ("orders", "mine", "waiting", "other")],
    ]
    looked = by_id(with_peek(fates, spark.createDataFrame(seen, SIGHTINGS)), "fate")
    assert looked == {
        **{name: fate[0] for name, fate in found.items()},
        "unsure": "waiting",
        "poison": "waiting",
        "back": "lost",
        "mine": "lost",
    }


def test_nothing_leaves_the_backlog_before_it_came(spark: SparkSession) -> None:
    from twinbus.pipeline.tables.availability import backlog_over_time, stays

    lines = [diverted("skewed", 20), *moved("skewed", 20, out_s=15)[1:], diverted("other", 16)]
    found = stays(judged(journeys_of(spark, lines)), bucket_s=1)
    depth = backlog_over_time(found, bucket_s=1).select("at_s", "depth")
    second = EPOCH_MS // 1000
    # A point at each change, and one in the second before it.
    assert sorted(map(tuple, depth.collect())) == [(second + at, 1) for at in (16, 19, 20)]


def test_a_receipt_tells_that_a_message_left_the_backlog(spark: SparkSession) -> None:
    lines = [
        *[diverted("killed", 1), came_out("killed", 5), received("killed", 9)],
        *[*moved("told", 1, out_s=5), received("told", 9)],
        # The primary may have it too, and the consumer that copy.
        *[sent("unsure", 1, outcome="unknown"), diverted("unsure", 2), received("unsure", 9)],
        *[sent("twice", 1), diverted("twice", 2), received("twice", 9)],
        diverted("waits", 1),
    ]
    left = by_id(judged(journeys_of(spark, lines)), "left_ms")
    assert {name: at_ms and (at_ms - EPOCH_MS) // 1000 for name, at_ms in left.items()} == {
        "killed": 9,
        "told": 5,
        "unsure": None,
        "twice": None,
        "waits": None,
    }


def test_facts_merge_in_any_order_and_any_lots(spark: SparkSession) -> None:
    chance = random.Random(6)
    whole = sorted(journeys_of(spark, LINES).collect())
    for lots in (2, 5):
        lines = chance.sample(LINES, len(LINES))
        parts = [journeys_of(spark, lines[lot::lots]) for lot in range(lots)]
        together = parts[0]
        for part in parts[1:]:
            together = together.unionAll(part)
        assert sorted(merged(together.coalesce(1), one_task=True).collect()) == whole


def test_without_a_fan_out_a_message_is_its_only_row(spark: SparkSession) -> None:
    lines = [one for one in LABELLED if "/" not in (one["entity"] or "")]
    lines += [received("twice", 1), received("twice", 2), forwarded("twice", 1)]
    journeys = journeys_of(spark, lines)
    folded, alone = judged(journeys), judged(journeys, receivers={}, all_labelled=True)
    assert sorted(map(str, folded.collect())) == sorted(map(str, alone.collect()))


def test_messages_are_the_same_whether_receivers_are_known_or_not(spark: SparkSession) -> None:
    at = ("events/subscriptions/a", "events/subscriptions/B")
    lines = [
        *LABELLED,
        *(sent(name, 1, entity="Events") for name in ("tie", "once", "most", "queue")),
        *(received("tie", 2, entity=entity) for entity in (*at, *at)),
        *(received("once", 2, entity=entity) for entity in at),
        *(received("most", 2, entity=entity) for entity in (at[0], *at, at[0])),
        *(received("queue", 2, entity="events") for _ in range(2)),
        received("failed", 2, entity="other/subscriptions/c", outcome="failed"),
    ]
    records = ledger(spark, *lines)
    receivers = receivers_of(tallied(records, bucket_s=60))
    assert {"events/subscriptions/a", "events/subscriptions/b"} <= receivers.keys()
    assert "other/subscriptions/c" not in receivers
    journeys = partial_journeys(records, one_task=True)
    assert not may_share_messages(tallied(records, bucket_s=60))
    known, unknown = judged(journeys, receivers=receivers, all_labelled=True), judged(journeys)
    assert known.dtypes == unknown.dtypes
    assert sorted(map(str, known.collect())) == sorted(map(str, unknown.collect()))
    found = by_id(known, "times", "repeated_at")
    assert found["tie"] == (2, "events/subscriptions/b")
    assert found["most"] == (3, "events/subscriptions/a")
    assert found["queue"] == (2, "events")
    assert found["once"] == (1, None)
