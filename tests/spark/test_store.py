"""The tables on disk: when they cannot be used, and what a rebuild leaves when it dies."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.sql import SparkSession

from twinbus.ledger.facts import FileFacts
from twinbus.ledger.record import LedgerError
from twinbus.pipeline.store import stream
from twinbus.pipeline.store.compaction import Compacted
from twinbus.pipeline.store.current import current_tables
from twinbus.pipeline.store.lake import Snapshot
from twinbus.pipeline.store.store import TableStore
from twinbus.pipeline.store.stream import open_store, update
from twinbus.pipeline.store.writers import KnownFile
from twinbus.pipeline.tables.gold import gold_tables, kept_tables, signature_of

pytestmark = pytest.mark.spark


@pytest.fixture
def ledger(spark: SparkSession, tmp_path: Path) -> Path:
    """A ledger with tables that have no rows yet."""
    (tmp_path / "app-0.jsonl").touch()
    store = TableStore(spark, tmp_path / "_tables")
    told = Snapshot(batch=0, gold=signature_of(kept_tables()))
    file = KnownFile(FileFacts("app-0.jsonl"), 0)
    snapshot = store.lake.publish(Snapshot(), told, {}, {"app-0.jsonl": file.as_json()})
    assert open_store(spark, tmp_path).latest() == snapshot
    return tmp_path


def test_tables_of_other_columns_are_to_be_rebuilt(spark: SparkSession, ledger: Path) -> None:
    store = open_store(spark, ledger)
    store.lake.publish(store.latest(), Snapshot(gold="other"), {})
    with pytest.raises(LedgerError, match="have other columns: rebuild them"):
        open_store(spark, ledger)


def test_the_only_copy_without_its_sets_is_not_taken_for_empty(
    spark: SparkSession, ledger: Path
) -> None:
    TableStore(spark, ledger / "_tables").mark_raw_removed()
    shutil.rmtree(ledger / "_tables" / "sets")
    with pytest.raises(LedgerError, match=r"have lost their table sets.* restore it from a copy"):
        open_store(spark, ledger)


@pytest.mark.parametrize("survived", range(3))
def test_a_rebuild_that_dies_half_way_leaves_no_tables(
    spark: SparkSession, ledger: Path, monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    store = TableStore(spark, ledger / "_tables")
    remove, left = store.files.remove, iter(range(survived))

    def removes(name: str) -> bool:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return remove(name)

    monkeypatch.setattr(store.files, "remove", removes)
    with pytest.raises(KeyboardInterrupt):
        store.remove()
    with pytest.raises(LedgerError, match=r"was interrupted.*twinbus ledger rebuild LEDGER"):
        open_store(spark, ledger)
    TableStore(spark, ledger / "_tables").remove()
    assert open_store(spark, ledger).latest() == Snapshot()
    assert list((ledger / "_tables").iterdir()) == []


def test_many_files_are_read_without_a_job_to_list_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In a session that a user brought, with Spark's own limit."""
    session = spark.newSession()
    session.conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", "32")
    store = TableStore(session, tmp_path)
    paths = [f"0-a/part-{number}.parquet" for number in range(40)]
    (tmp_path / "raised" / "0-a").mkdir(parents=True)
    for path in paths:
        pq.write_table(pa.table({"messages": [1]}), tmp_path / "raised" / path)
    context = spark.sparkContext

    def jobs_of(read: Callable[[], object], name: str) -> int:
        context.setJobGroup(name, name)
        try:
            read()
            return len(context.statusTracker().getJobIdsForGroup(name))
        finally:
            context.setJobGroup("", "")

    files = [str(tmp_path / "raised" / path) for path in paths]
    plain = session.read.schema("messages long")
    assert jobs_of(lambda: plain.parquet(*files), "of the user") == 1
    assert jobs_of(lambda: store.read_files("raised", paths), "of the store") == 0


def test_a_session_of_the_user_is_neither_changed_nor_replaced(
    spark: SparkSession, ledger: Path
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "7")
    # As a notebook does: this one is the active session then.
    session.createDataFrame([(1,)], "number int")
    before = dict(session.conf.getAll)
    with current_tables(session, ledger) as tables:
        assert [tables.table(table.name).count() for table in gold_tables()] == [0] * 12
        assert tables.inspected.missing == ()
    assert dict(session.conf.getAll) == before
    assert SparkSession.getActiveSession() is session
    # Reports name what contradicts itself.
    lake = open_store(session, ledger).lake
    lake.publish(lake.latest(), replace(lake.latest(), records=7), {})
    with current_tables(session, ledger) as tables:
        [sentence] = tables.inspected.missing
    assert "contradict themselves: records of bronze (expectation records): the set co" in sentence


def test_an_update_compacts_when_it_pays(
    spark: SparkSession, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compacted: list[TableStore] = []

    def compact(store: TableStore) -> Compacted:
        compacted.append(store)
        return Compacted(store.latest(), {}, {})

    monkeypatch.setattr(stream, "compact", compact)
    update(spark, ledger)
    assert compacted == []
    monkeypatch.setattr(stream, "pays", lambda store, snapshot: True)
    assert update(spark, ledger) == compacted[0].latest()


def test_a_name_that_delta_misreads_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "a%20b"
    place.mkdir()
    (place / "app-0.jsonl").touch()
    with pytest.raises(LedgerError, match="reads % in a path as an escape"):
        open_store(spark, place)
