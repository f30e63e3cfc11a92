"""`twinbus ledger` and `twinbus plan` on the session that is there already; made ledgers."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from bench import ledger_maker as maker
from tests.spark.ledgers import diverted, received, sent
from tests.spark.test_compaction import write
from tests.unit.console.commands import run
from tests.unit.planning.outcomes_made_up import asked
from twinbus.console import COULD_NOT
from twinbus.pipeline.planner import simulate_on_spark
from twinbus.pipeline.reports.conservation import conservation_report
from twinbus.pipeline.reports.documents import ReportRequest
from twinbus.pipeline.store.current import current_tables
from twinbus.pipeline.tables.gold import BRONZE, JOURNEYS, SUMS
from twinbus.pipeline.tables.journeys import judged, merged, partial_journeys
from twinbus.pipeline.tables.schemas import LEDGER
from twinbus.planning.simulation import BLOCK_YEARS, simulate

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

KINDS = (BRONZE, JOURNEYS, SUMS)


def test_a_file_system_that_is_not_there_is_one_line(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = run(capsys, "ledger", "update", "nofs://host/ledger")
    assert ran.status == COULD_NOT
    [line] = ran.err.splitlines()
    assert line.startswith("twinbus: nofs://host/ledger/_tables cannot be used: ")


def test_the_commands_from_an_update_to_a_rebuild(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = datetime.now(UTC).date()

    def asked(verb: str, *more: str) -> list[str]:
        ran = run(capsys, "ledger", verb, str(tmp_path), *more)
        assert (ran.status, ran.err) == (0, "")
        return ran.out.splitlines()

    def told(verb: str, *more: str) -> dict[str, Any]:
        [line] = asked(verb, "--output", "json", *more)
        found: dict[str, Any] = json.loads(line)
        return found

    write(tmp_path, "app-0", [sent("a"), received("a", 1), diverted("waits")])
    (tmp_path / "foreign.jsonl").write_text("no record\n")
    place = f"file:{tmp_path}/_tables"
    first, writers, old = asked("status")
    assert first == f"{place}: no tables yet; make a report, or twinbus ledger update LEDGER"
    assert writers == "2 files of 1 writer, 1 of an earlier version"
    assert old.startswith("2 files (app-0.jsonl, foreign.jsonl) of an earlier version of Twinbus")
    assert asked("update") == ["3 records, 1 lines rejected, 1 foreign", "commit 0, batch 0"]
    write(tmp_path, "app-1", [received("a", 2)])
    aside = {"rejected": {"foreign": 1}}
    assert told("rebuild") == {"commit": 0, "batch": 0, "records": 4, **aside}
    write(tmp_path, "app-2", [received("a", 3)])
    assert told("update") == {"commit": 1, "batch": 1, "records": 5, **aside}

    head, commit, titles, *kinds, rejected, writers, _ = asked("status")
    assert rejected == "foreign.jsonl:1: foreign: no record"
    titles_of_lines, *lines = asked("show", "--message-id", "a")
    assert titles_of_lines.split() == ["at", "(UTC)", "operation", "outcome", "entity", "line"]
    places = ["app-0.jsonl:1", "app-0.jsonl:2", "app-1.jsonl:1", "app-2.jsonl:1", "delivered"]
    assert [line.split()[-1] for line in lines] == places
    assert asked("show", "--message-id", "b") == ["no record of message b is in the tables"]
    assert head == f"{place}: 5 records, 1 lines rejected, 1 foreign"
    assert (commit, titles.split()) == ("commit 1, batch 1", ["files", "size"])
    assert [line.split()[0] for line in kinds] == list(KINDS)
    assert writers == "4 files of 1 writer, 1 of an earlier version"
    *many, gone = asked("compact", "--remove-raw")
    assert many[:2] == [f"{kind}: 2 files -> 1" for kind in (BRONZE, JOURNEYS)]
    assert gone == "files of the ledger removed: 3"
    compacted = {"commit": 4, "batch": 1, "records": 5, **aside}
    again = told("compact")
    after = again.pop("files_after")
    assert again == {**compacted, "files_before": after, "raw_files_removed": None}
    assert (after[BRONZE], after[JOURNEYS]) == (1, 1)
    status = told("status")
    sizes, ledger, [line] = (status.pop(name) for name in ("kinds", "ledger", "quarantine"))
    assert (line["file"], line["line"], line["text"]) == ("foreign.jsonl", 1, "no record")
    assert ledger["gaps"] == []
    assert status == {**compacted, "place": place}
    assert {kind: one["files"] for kind, one in sizes.items()} == after
    assert all(one["bytes"] for one in sizes.values())

    removed, still_open = asked("retain", "--days", "1")
    assert removed.endswith(" on; removed: 5 records and 1 settled journeys")
    assert still_open == "1 older journeys are still open, and stay"
    retained = told("retain", "--days", "1")
    assert date.fromisoformat(retained.pop("first_day_kept")) >= began
    assert retained == {
        **compacted,
        "commit": 6,
        "records": 0,
        "records_removed": 0,
        "journeys_removed": 0,
        "journeys_open": 1,
    }
    # The tables hold the files that were removed, and say from which day on records are there.
    with current_tables(spark, tmp_path) as tables:
        report = conservation_report(tables, ReportRequest(), None)
    assert report.scope.missing == ()
    assert report.scope.records_from is not None
    assert report.scope.records_from >= began
    assert report.assumed[-1].startswith(f"records of before {report.scope.records_from} were")
    assert report.total.accepted == 2
    refused = run(capsys, "ledger", "rebuild", str(tmp_path))
    assert refused.status == COULD_NOT
    assert "they are the only copy of records" in refused.err


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


def test_spark_gives_the_same_figures_in_any_number_of_tasks(spark: SparkSession) -> None:
    question = asked(years=3 * BLOCK_YEARS + 500)
    expected = simulate(question)
    assert simulate_on_spark(spark, question) == expected
    assert simulate_on_spark(spark, question, blocks_a_task=1) == expected
