"""Made ledgers: the audit finds in them what was planted, by id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from bench import ledger_maker as maker
from twinbus.pipeline.tables.journeys import judged, merged, partial_journeys
from twinbus.pipeline.tables.schemas import LEDGER

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

PLAN = maker.Plan(4_000, seed=7)


@pytest.fixture(scope="module")
def ledger(spark: SparkSession) -> DataFrame:
    return maker.made(spark, PLAN).cache()


def fates_of(records: DataFrame) -> DataFrame:
    return judged(merged(partial_journeys(records)))


def test_the_audit_of_a_made_ledger_finds_what_was_planted(ledger: DataFrame) -> None:
    messages, truth = fates_of(ledger).cache(), PLAN.truth()
    is_fate = {name: F.col("fate") == name for name in ("delivered", "dead_lettered", "undecided")}
    counted = messages.agg(
        F.count_if("accepted").alias("accepted"),
        F.count_if(F.col("received") & F.col("accepted")).alias("received"),
        F.count_if("diverted").alias("diverted"),
        F.count_if("ambiguous").alias("ambiguous"),
        F.count_if(F.col("tried") & ~F.col("accepted")).alias("raised"),
        *(F.count_if(condition).alias(name) for name, condition in is_fate.items()),
    ).collect()[0]
    assert {name: getattr(truth, name) for name in counted.asDict()} == counted.asDict()
    lost = messages.where(F.col("fate") == "lost").collect()
    assert sorted(row["message_id"] for row in lost) == PLAN.lost_ids()
    twice = messages.where(F.col("repeats") > 0).collect()
    assert sorted(row["message_id"] for row in twice) == PLAN.duplicate_ids()
    assert {row["forwards"] for row in twice} == {2}


def test_it_is_a_ledger_of_so_many_records_by_day_and_pair(ledger: DataFrame) -> None:
    assert ledger.columns == [*LEDGER.fieldNames(), maker.DAY]
    assert [field.dataType for field in ledger.schema][:-1] == [one.dataType for one in LEDGER]
    shards = ledger.groupBy("day", "pair").count().collect()
    assert sorted(row["count"] for row in shards) == [PLAN.shard_records] * PLAN.shards
    of_time = F.to_date(F.timestamp_millis("at_ms"))
    assert ledger.where(of_time != F.col("day")).count() == 0
    assert ledger.where("message_id is not null and length(message_id) != 36").count() == 0


def test_the_same_plan_makes_the_same_records_whatever_the_tasks(
    spark: SparkSession, ledger: DataFrame
) -> None:
    again = maker.made(spark, PLAN, tasks=3)
    assert _digest(again) == _digest(ledger)
    other = maker.made(spark, maker.Plan(4_000, seed=8))
    assert _digest(other) != _digest(ledger)


def test_late_records_decide_what_was_undecided(spark: SparkSession, ledger: DataFrame) -> None:
    late = maker.late_records(spark, PLAN)
    assert late.count() == 3 * PLAN.truth().undecided
    fates = fates_of(ledger.unionByName(late)).groupBy("fate").count().collect()
    counted = {row["fate"]: row["count"] for row in fates}
    assert "undecided" not in counted
    assert counted["delivered"] == PLAN.truth().delivered + PLAN.truth().undecided


def test_a_later_plan_is_about_other_messages_and_days(
    spark: SparkSession, ledger: DataFrame, tmp_path: Path
) -> None:
    later = maker.made(spark, maker.Plan(2_000, seed=7, first_shard=PLAN.shards))
    maker.write_bronze(later, str(tmp_path / "bronze"))
    stored = spark.read.parquet(str(tmp_path / "bronze"))
    assert stored.count() == 2_000
    same = stored.join(
        ledger, (stored.message_id == ledger.message_id) | (stored.day == ledger.day)
    )
    assert same.isEmpty()
    assert len(list((tmp_path / "bronze").glob("day=*/pair=*/*.zstd.parquet"))) == 2


def _digest(records: DataFrame) -> int:
    found: int = records.agg(F.bit_xor(F.xxhash64(*records.columns))).collect()[0][0]
    return found
