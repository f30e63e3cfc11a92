"""What tasks write: as many files as the rows need, and read back before anything is committed."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast
from unittest import mock

import pytest
from pyspark.sql import DataFrameReader, DataFrameWriter, Observation
from pyspark.sql.conf import RuntimeConfig

from tests.spark.kept import write_lines
from tests.spark.ledgers import diverted, moved, received, sent
from tests.unit.console.commands import run
from twinbus.console import COULD_NOT, USAGE_ERROR
from twinbus.ledger.record import LedgerError
from twinbus.pipeline.drain.drain import drain
from twinbus.pipeline.reports.conservation import conservation_report
from twinbus.pipeline.reports.documents import ReportRequest
from twinbus.pipeline.reports.ledger_tables import batch_tables
from twinbus.pipeline.spark import classic
from twinbus.pipeline.spark.session import (
    METHOD_BYTES_MAX,
    ROWS_A_PARTITION,
    ROWS_A_TASK,
    SHUFFLE_PARTITIONS,
    session_for_few,
    session_for_many,
)
from twinbus.pipeline.store import current, increment, stream
from twinbus.pipeline.store.compaction import compact
from twinbus.pipeline.store.current import current_tables
from twinbus.pipeline.store.place_files import PlaceFiles
from twinbus.pipeline.store.removal import retain
from twinbus.pipeline.store.store import TableStore
from twinbus.pipeline.store.stream import open_store, rebuild, update
from twinbus.pipeline.tables.gold import BRONZE, JOURNEYS, stored_schemas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

CLUSTER = "spark://cluster:7077"
PARTS = [
    (BRONZE, "2 records"),
    (JOURNEYS, "2 journeys"),
    ("fates", "2 rows of fates"),
]


@pytest.fixture(autouse=True)
def _by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small as these ledgers are, no batch of them is written by this process."""
    monkeypatch.setattr(stream, "few_batch", lambda *_: None)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A ledger of two pairs, whose records Spark keeps in a file each."""
    write_lines(tmp_path, "p-0.jsonl", [sent("a", pair="x+y"), diverted("b", pair="z+y")])
    return tmp_path


class PrivateDisk:
    """A worker whose directory nobody else sees: one file of each part of a kind is missing.

    Spark has written the file and counted its rows; only then does it go.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._write = DataFrameWriter.parquet

    def parquet(self, writer: DataFrameWriter, path: str) -> None:
        self._write(writer, path)
        if f"/{self._kind}/" in path:
            [file, *_] = sorted(Path(path.removeprefix("file:")).rglob("*.parquet"))
            file.unlink()

    def mounted(self) -> AbstractContextManager[object]:
        def parquet(writer: DataFrameWriter, path: str) -> None:
            self.parquet(writer, path)

        return mock.patch.object(DataFrameWriter, "parquet", parquet)


def test_a_batch_that_cannot_be_read_back_is_not_committed(
    spark: SparkSession, ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with PrivateDisk(BRONZE).mounted():
        ran = run(capsys, "ledger", "update", str(ledger))
    assert (ran.status, ran.out, ran.err.count("\n")) == (COULD_NOT, "", 1)
    assert re.search(r": 2 records were written to .* and 0 can be read there", ran.err)
    assert "so nothing was committed" in ran.err
    assert "keep the tables in a directory that all machines share" in ran.err
    gold = r"1 rows of lines were written to .* and 0 can be read there"
    with PrivateDisk("lines").mounted(), pytest.raises(LedgerError, match=gold):
        update(spark, ledger)
    assert not (ledger / "_tables" / "sets").exists()
    # Once the directory is shared, the same command takes the whole batch.
    assert update(spark, ledger).records == 2


def test_counts_that_spark_does_not_tell_are_not_taken_for_nothing(
    spark: SparkSession, ledger: Path
) -> None:
    told: Callable[[Observation], dict[str, int]] = vars(Observation)["get"].fget

    def without(which: int) -> property:
        """The counts of each write, but for one of them."""
        numbers = iter(range(99))
        return property(lambda seen: {} if next(numbers) == which else told(seen))

    # Of the records twice, of the journeys twice.
    for which in range(4):
        with (
            mock.patch.object(Observation, "get", without(which)),
            pytest.raises(LedgerError, match=r"Spark does not report .*nothing was committed"),
        ):
            update(spark, ledger)
    assert not (ledger / "_tables" / "sets").exists()


def test_counts_that_connect_does_not_tell_are_made_by_the_server(
    spark: SparkSession, ledger: Path
) -> None:
    with (
        mock.patch.object(Observation, "get", property(lambda seen: {})),
        mock.patch.object(classic, "is_classic", return_value=False),
    ):
        assert update(spark, ledger).records == 2


@pytest.mark.parametrize(("kind", "words"), PARTS)
def test_every_kind_of_part_is_read_back(
    spark: SparkSession, tmp_path: Path, kind: str, words: str
) -> None:
    store = TableStore(spark, tmp_path).for_few()
    rows = store.session.createDataFrame([(1, "x"), (2, "y")], "number int, pair string")
    two = rows.repartition(2, "number")
    assert sum(file.rows for file in store.write(two, kind, "0-0a")) == 2
    assert store.write(rows.where("false"), kind, "0-0b") == ()
    told = rf"{words} were written to .*/{kind}/0-0d and \d can be read there"
    with PrivateDisk(kind).mounted(), pytest.raises(LedgerError, match=told):
        store.write(two, kind, "0-0d")


@pytest.mark.soak  # half a minute of Spark; CI has the read-back of every part above
def test_parts_that_are_written_anew_are_read_back_too(spark: SparkSession, ledger: Path) -> None:
    update(spark, ledger)
    write_lines(ledger, "p-1.jsonl", [sent("c", 5 * 86_400, pair="x+y")])
    before = update(spark, ledger)
    store = open_store(spark, ledger)
    for kind, _ in PARTS:
        # Each kind has a commit of its own: those before it are good.
        with PrivateDisk(kind).mounted(), pytest.raises(LedgerError, match="can be read there"):
            compact(store)
    assert store.read(BRONZE, store.latest()).count() == before.records == 3
    told, today = store.latest(), date(2025, 10, 14)
    with PrivateDisk(BRONZE).mounted(), pytest.raises(LedgerError, match="can be read there"):
        retain(store, 1, today=today)
    assert store.latest() == told


def renamed_when_listed(path: Path, name: str) -> AbstractContextManager[object]:
    """The driver lists the files; when the tasks come one has another name."""
    real = DataFrameReader.json

    def read(reader: DataFrameReader, place: str, **options: str) -> object:
        lines = real(reader, place, **options)
        path.rename(path.with_name(name))
        return lines

    return mock.patch.object(DataFrameReader, "json", read)


def test_open_files_that_no_worker_reads_are_not_passed_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_lines(tmp_path, "p-1.jsonl.open", moved("c"))
    listed = {"p-1.jsonl.open": 100, "empty-0.jsonl.open": 0}

    with (
        renamed_when_listed(tmp_path / "p-1.jsonl.open", "hidden"),
        mock.patch.object(PlaceFiles, "ledger_files", return_value=listed),
        pytest.raises(LedgerError, match=r"1 of the open files .* by Spark's workers \(p-1"),
        current_tables(spark, tmp_path),
    ):
        pass


def test_a_file_that_is_ended_at_every_look_is_not_passed_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_lines(tmp_path, "p-1.jsonl.open", moved("c"))
    with (
        mock.patch.object(current, "TRIES", 1),
        # Its process ends it.
        renamed_when_listed(tmp_path / "p-1.jsonl.open", "p-1.jsonl"),
        pytest.raises(LedgerError, match=r"1 files .* ended while they were read \(p-1\.jsonl\)"),
        current_tables(spark, tmp_path),
    ):
        pass
    with current_tables(spark, tmp_path) as tables:
        assert tables.records == len(moved("c"))


def test_local_paths_on_a_cluster_are_refused_unless_declared_shared(
    spark: SparkSession, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, master = RuntimeConfig.get, CLUSTER

    def get(conf: RuntimeConfig, key: str, *default: str | None) -> str | None:
        return master if key == "spark.master" else real(conf, key, *default)

    monkeypatch.setattr(RuntimeConfig, "get", get)
    refused = pytest.raises(LedgerError, match=rf"is a local path and {CLUSTER} is a cluster")
    with refused:
        update(spark, ledger)
    with refused:
        rebuild(spark, f"file://{ledger}")
    with refused, batch_tables(spark, ledger):
        pass
    with refused, current_tables(spark, "hdfs://host/ledger", ledger):
        pass
    with refused:
        drain(spark, "Endpoint=x", "Endpoint=y", ["q"], ledger_directory=ledger)
    assert not (ledger / "_tables").exists()
    assert open_store(spark, ledger, shared=True).latest().number < 0
    # Executors of `local-cluster` are processes of this machine.
    master = "local-cluster[2,1,1024]"
    assert open_store(spark, ledger).latest().number < 0


@pytest.mark.parametrize(
    "command",
    [
        *(["ledger", verb] for verb in ("status", "update", "rebuild", "compact")),
        ["ledger", "retain", "--days", "3"],
        *(["report", kind] for kind in ("charges", "availability", "conservation")),
        ["report", "reconciliation", "--tables", "none"],
    ],
    ids=" ".join,
)
def test_commands_refuse_local_paths_before_spark_starts(
    ledger: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    verb, word, *more = command
    ran = run(capsys, verb, word, str(ledger), *more, "--master", CLUSTER)
    assert (ran.status, ran.out, ran.err.count("\n")) == (USAGE_ERROR, "", 1)
    assert f"{ledger} is a local path and {CLUSTER} is a cluster" in ran.err
    assert "--shared" in ran.err


PARTITIONS = "spark.sql.shuffle.partitions"
METHOD_BYTES = "spark.sql.codegen.hugeMethodLimit"
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
    # 200 are right for so many: the session itself will do, if its other settings are.
    cluster.conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", "1000")
    cluster.conf.set(METHOD_BYTES, str(METHOD_BYTES_MAX))
    assert session_for_many(cluster, 500 * ROWS_A_TASK) is cluster


def test_a_session_for_rows_makes_no_method_that_java_does_not_compile(
    cluster: SparkSession,
) -> None:
    def limits() -> list[str | None]:
        sessions = (session_for_many(cluster, rows) for rows in (0, 500 * ROWS_A_TASK))
        return [session.conf.get(METHOD_BYTES) for session in sessions]

    cluster.conf.set(METHOD_BYTES, "65535")
    assert limits() == [str(METHOD_BYTES_MAX)] * 2
    cluster.conf.set(METHOD_BYTES, "4000")
    assert limits() == ["4000"] * 2


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
