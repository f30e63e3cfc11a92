"""The pure tables on small ledgers, against rows worked out by hand."""

from __future__ import annotations

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
    line,
    moved,
    received,
    rows,
    sent,
)
from twinbus.ledger.record import FIELDS
from twinbus.pipeline.tables import availability, conservation, gold, schemas
from twinbus.pipeline.tables.journeys import with_peek
from twinbus.pipeline.tables.records import tallied

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def ledger(spark: SparkSession) -> Any:
    def make(*lines: Line | list[Line]) -> DataFrame:
        flat = [one for part in lines for one in (part if isinstance(part, list) else [part])]
        return spark.createDataFrame(rows(flat), schemas.LEDGER)

    return make


def fates_of(table: DataFrame) -> dict[str, str | None]:
    return {row["message_id"]: row["fate"] for row in table.collect()}


def test_the_schema_is_that_of_the_ledgers_lines() -> None:
    kinds = {"bigint": int, "string": str}
    fields = {field.name: kinds[field.dataType.simpleString()] for field in schemas.LEDGER}
    # The others are of lines that are no records.
    assert fields.items() <= FIELDS.items()
    assert "lines" in fields
    assert "hash" not in fields


def test_every_message_has_the_fate_that_its_lines_tell(ledger: Any) -> None:
    operations = ledger(
        sent("direct"),
        moved("moved"),
        [diverted("waits"), came_out("waits")],
        [diverted("dropped"), came_out("dropped"), completed("dropped")],
        [diverted("poison"), came_out("poison"), line("dead_letter", "poison", cause="syphon")],
        [diverted("quiet-forward"), received("quiet-forward")],
        # Asked again elsewhere, and both were carried out.
        [sent("twice", outcome="unknown"), *moved("twice")],
        sent("refused", outcome="failed"),
        [sent("silent", outcome="unknown"), received("silent")],
        # What a consumer completes is not what the syphon completes.
        [diverted("consumer"), completed("consumer", cause="consumer")],
        [diverted("failed-forward"), forwarded("failed-forward", outcome="failed")],
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


def test_a_message_is_its_destination_and_its_id(ledger: Any) -> None:
    operations = ledger(
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


def test_the_columns_of_fates_are_those_of_its_schema(ledger: Any) -> None:
    table = fates(ledger(sent("a")))
    found = [(field.name, field.dataType) for field in table.schema]
    assert found == [(field.name, field.dataType) for field in schemas.FATES]


def test_duplicates_are_counted_by_entity_and_placed_in_their_window(ledger: Any) -> None:
    topic = "news/Subscriptions/"
    operations = ledger(
        [sent("once"), received("once")],
        [sent("unsure", outcome="unknown"), *moved("unsure"), received("unsure")],
        received("unsure"),
        [*moved("crash"), forwarded("crash"), received("crash"), received("crash")],
        [sent("odd"), received("odd"), received("odd"), received("odd")],
        # One message, two subscriptions: no duplicate. A third receipt is one.
        sent("fan", entity="news"),
        [received("fan", entity=topic + "a"), received("fan", entity=topic + "b")],
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


def test_sends_by_route_and_the_depth_of_the_backlog_over_time(
    spark: SparkSession, ledger: Any
) -> None:
    operations = ledger(
        [sent("a", 0.1), sent("b", 0.9), sent("c", 1.0), sent("x", 1.1, outcome="failed")],
        [diverted("d", 2.0), diverted("e", 2.5), diverted("f", 4.0)],
        # Stored without an answer, as its coming out shows; then one that never was.
        [diverted("g", 4.5, outcome="unknown"), came_out("g", 9)],
        diverted("h", 4.6, outcome="unknown"),
        [forwarded("d", 9.2), completed("d", 9.3), forwarded("e", 10.1), completed("g", 11)],
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
