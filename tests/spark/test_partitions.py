"""How many tasks and files a table gets follows its rows, not the settings of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

import pytest

from tests.spark.kept import write_lines
from tests.spark.ledgers import diverted, moved, received, sent
from twinbus.pipeline.reports.conservation import conservation_report
from twinbus.pipeline.reports.documents import ReportRequest
from twinbus.pipeline.spark.session import (
    ROWS_A_PARTITION,
    ROWS_A_TASK,
    SHUFFLE_PARTITIONS,
    session_for_few,
    session_for_many,
)
from twinbus.pipeline.store import current, increment, stream
from twinbus.pipeline.tables.gold import stored_schemas

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PARTITIONS = "spark.sql.shuffle.partitions"
AT_FIRST = "spark.sql.adaptive.coalescePartitions.initialPartitionNum"


@pytest.fixture
def cluster(spark: SparkSession) -> SparkSession:
    """A session with the partitions that Spark has on a cluster."""
    session = spark.newSession()
    session.conf.set(PARTITIONS, "200")
    # Not the matter here: to compile takes longer than to run.
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    return session


def stages_of(spark: SparkSession) -> Iterator[tuple[int, int]]:
    """Number and tasks of every stage that ran."""
    tracker = spark.sparkContext.statusTracker()
    for job in tracker.getJobIdsForGroup(None):
        found = tracker.getJobInfo(job)
        for stage_id in found.stageIds if found else ():
            stage = tracker.getStageInfo(stage_id)
            if stage and stage.numCompletedTasks:
                yield stage_id, stage.numTasks


@pytest.mark.soak  # three quarters of a minute of processor time, nearly all of it to plan
def test_a_small_ledger_on_a_cluster_has_few_tasks_and_one_file_a_table(
    cluster: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small as it is, it goes the way of larger ones.
    for module, limit in (
        (stream, "FEW_BYTES"),
        (current, "FEW_BYTES"),
        (current, "ONE_TASK_MAX"),
        (increment, "ONE_TASK_MAX"),
    ):
        monkeypatch.setattr(module, limit, 0)
    batches = (
        [sent("a"), diverted("b", 1), diverted("c", 2)],
        [*moved("b", 1, out_s=9)[1:], received("a", 3), received("b", 10)],
    )
    before = dict(stages_of(cluster))
    for number, lines in enumerate(batches):
        for place, line in enumerate(lines):
            write_lines(tmp_path, f"app-{number}{place}.jsonl", [line])
        stream.update(cluster, tmp_path)
    with current.current_tables(cluster, tmp_path) as tables:
        report = conservation_report(tables, ReportRequest(), None)
    assert (report.total.accepted, report.total.delivered) == (3, 2)
    ran = {stage: tasks for stage, tasks in stages_of(cluster) if stage not in before}
    assert ran
    assert max(ran.values()) <= 2 * SHUFFLE_PARTITIONS, ran
    store = stream.open_store(cluster, tmp_path)
    files = {name: len(store.lake.files(name, store.latest())) for name in stored_schemas()}
    # One for each batch.
    assert max(files.values()) <= len(batches), files
    assert cluster.conf.get(PARTITIONS) == "200"


def test_a_session_for_rows_has_partitions_by_their_number(cluster: SparkSession) -> None:
    def partitions(rows: int) -> int:
        return int(session_for_many(cluster, rows).conf.get(PARTITIONS) or 0)

    assert [partitions(rows) for rows in (0, 32_000)] == [SHUFFLE_PARTITIONS] * 2
    assert partitions(50 * ROWS_A_TASK) == 50
    # At most what the session has, until a task would have too much.
    assert partitions(500 * ROWS_A_TASK) == 200
    assert partitions(300 * ROWS_A_PARTITION) == 300
    # 200 are right for so many: the session itself will do, if it lists files by itself.
    cluster.conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", "1000")
    assert session_for_many(cluster, 500 * ROWS_A_TASK) is cluster


def test_partitions_that_a_platform_chooses_by_itself_are_left_to_it(spark: SparkSession) -> None:
    class Conf:
        getAll: ClassVar[dict[str, str]] = {}  # noqa: N815

        def get(self, name: str, default: str | None = None) -> str | None:
            return "auto" if name == PARTITIONS else spark.conf.get(name, default)

    class Platform:
        """A session of such a platform: Spark's own refuses the word."""

        conf = Conf()

    platform = cast("SparkSession", Platform())
    assert session_for_many(platform, 10 * ROWS_A_PARTITION) is platform


def test_a_session_beside_another_has_the_settings_that_were_made_in_it(
    cluster: SparkSession,
) -> None:
    cluster.conf.set("fs.azure.account.key.example", "secret")
    cluster.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    cluster.conf.set(AT_FIRST, "150")
    tables, few = session_for_many(cluster, 0), session_for_few(cluster)
    for session in (tables, few):
        assert session is not cluster
        assert session.conf.get("fs.azure.account.key.example") == "secret"
        assert session.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    assert tables.conf.get(AT_FIRST) == str(SHUFFLE_PARTITIONS)
    # Made once.
    assert session_for_few(cluster) is few
    cluster.conf.set("spark.sql.session.timeZone", "UTC")
    assert session_for_few(cluster).conf.get("spark.sql.session.timeZone") == "UTC"
