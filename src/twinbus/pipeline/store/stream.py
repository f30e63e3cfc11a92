"""The tables kept up to date by Structured Streaming: every ended file of the ledger is taken once.

    update    take what has come since, and return: a report does so first
    follow    go on taking until told to stop
    rebuild   throw the tables away and take everything again

A batch is written part by part and counts from its commit on (`store`); a batch that was committed
before a crash is passed over when the stream brings it again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import Observation
from pyspark.sql import functions as F

from twinbus.ledger.record import LedgerError
from twinbus.pipeline.spark.session import require_shared
from twinbus.pipeline.store import increment
from twinbus.pipeline.store.store import (
    BRONZE,
    JOURNEYS,
    REBUILD,
    SUMS,
    CommitConflict,
    Snapshot,
    TableStore,
)
from twinbus.pipeline.tables import bronze
from twinbus.pipeline.tables.gold import GoldTable
from twinbus.pipeline.tables.journeys import partial_journeys
from twinbus.pipeline.tables.schemas import CORRUPT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FOLLOW_S: Final = 10.0
"""Between two looks of `follow`: a file of the ledger is ended every few minutes."""

SUM_PARTS_MAX: Final = 16
"""Parts of a gold table that are added up when it is read; then a batch writes them as one."""

WRITES_AT_ONCE: Final = 4
"""Gold tables that are written at a time: each is a small job that mostly waits to be planned."""

TRIES: Final = 5
"""Of an update that another process got ahead of: each time there is less left to do."""

_FOR_EVER: Final = "100000d"
"""Spark would pass over files that are a week older than the newest, and a file that is adopted
from a dead process keeps its age."""

_PATTERN: Final = "*?[]{}\\"

_GOT_AHEAD: Final = ("CONCURRENT_STREAM_LOG_UPDATE", "CONCURRENT_QUERY")


def tables_place(ledger: Path | str, tables: Path | str | None = None) -> str:
    """Where the tables of a ledger are, unless another place is named."""
    # Spark passes over names that begin with `_`: they are no part of the ledger.
    return str(tables) if tables is not None else f"{str(ledger).rstrip('/')}/_tables"


def open_store(
    spark: SparkSession,
    ledger: Path | str,
    tables: Path | str | None = None,
    *,
    shared: bool = False,
) -> TableStore:
    """The store of a ledger's tables; LedgerError where there is no ledger or no use of them.

    `shared`, here and below: local paths are directories that all machines of the cluster mount.
    """
    require_shared(spark.sparkContext.master, (ledger, tables), shared=shared)
    bronze.location_of(ledger)
    _require_plain_name(ledger)
    store = TableStore(spark, tables_place(ledger, tables))
    _require_columns(store, store.require_whole())
    return store


def update(
    spark: SparkSession,
    ledger: Path | str,
    tables: Path | str | None = None,
    *,
    files_max: int | None = None,
    shared: bool = False,
) -> Snapshot:
    """Take every file that was ended since the last time; returns what the tables are then.

    `files_max` bounds a batch; without it one batch takes them all, which is the least work.
    """
    store = open_store(spark, ledger, tables, shared=shared)
    for _ in range(TRIES):
        with _streaming(spark, ledger, store, files_max=files_max) as query:
            query.awaitTermination()
            return store.latest()
    raise LedgerError(
        f"other processes keep updating the tables at {store.place}: wait for them, or read the"
        " tables as they are"
    )


def follow(
    spark: SparkSession,
    ledger: Path | str,
    tables: Path | str | None = None,
    *,
    stop: threading.Event,
    interval_s: float = FOLLOW_S,
    announce: Callable[[Snapshot], None] | None = None,
    shared: bool = False,
) -> None:
    """Take files as they are ended, every `interval_s`, until `stop` is set."""
    store = open_store(spark, ledger, tables, shared=shared)
    while not stop.is_set():
        with _streaming(spark, ledger, store, interval_s=interval_s, announce=announce) as query:
            while query.isActive and not stop.wait(0.2):
                pass
            query.stop()
            # After an error of its own it raises here.
            query.awaitTermination()


def rebuild(
    spark: SparkSession,
    ledger: Path | str,
    tables: Path | str | None = None,
    *,
    shared: bool = False,
) -> Snapshot:
    """Remove the tables and make them anew from the files of the ledger that are there."""
    require_shared(spark.sparkContext.master, (ledger, tables), shared=shared)
    bronze.location_of(ledger)
    store = TableStore(spark, tables_place(ledger, tables))
    store.require_raw()
    store.remove()
    return update(spark, ledger, tables, shared=shared)


@contextmanager
def _streaming(
    spark: SparkSession,
    ledger: Path | str,
    store: TableStore,
    *,
    interval_s: float | None = None,
    files_max: int | None = None,
    announce: Callable[[Snapshot], None] | None = None,
) -> Iterator[StreamingQuery]:
    """A running query for a `with` block; that another process got ahead of it is no error."""
    taking = _Taking(store, announce or (lambda snapshot: None))
    reader = spark.readStream.schema(bronze.LINES).options(**bronze.READING)
    reader = reader.options(pathGlobFilter=bronze.ENDED_FILES, maxFileAge=_FOR_EVER)
    if files_max is not None:
        reader = reader.option("maxFilesPerTrigger", files_max)
    writer = (
        reader.json(bronze.location_of(ledger))
        .writeStream.foreachBatch(taking)
        .option("checkpointLocation", store.checkpoint)
    )
    try:
        if interval_s is None:
            query = writer.trigger(availableNow=True).start()
        else:
            query = writer.trigger(processingTime=f"{int(interval_s * 1000)} milliseconds").start()
        try:
            yield query
        finally:
            query.stop()
    except StreamingQueryException as error:
        if isinstance(taking.error, CommitConflict) or any(
            word in str(error) for word in _GOT_AHEAD
        ):
            return
        if taking.error is not None:
            raise taking.error from None
        raise


class _Taking:
    """What is done with each batch of lines."""

    def __init__(self, store: TableStore, announce: Callable[[Snapshot], None]) -> None:
        self.error: Exception | None = None
        """What made the last batch fail; Spark passes on no more than its text."""
        self._store = store
        self._announce = announce
        self._tables = increment.kept_tables()

    def __call__(self, lines: DataFrame, batch: int) -> None:
        try:
            self._take(lines, batch)
        except Exception as error:
            self.error = error
            raise

    def _take(self, lines: DataFrame, batch: int) -> None:
        snapshot = self._store.latest()
        if batch <= snapshot.batch:
            # Committed before a crash, or by another process.
            return
        if batch != snapshot.batch + 1:
            raise LedgerError(
                f"the tables at {self._store.place} end at batch {snapshot.batch}, and the next"
                f" one is {batch}: commits are missing; {REBUILD}"
            )
        part = self._store.new_part(batch)
        after = replace(snapshot, batch=batch, gold=increment.signature_of(self._tables))
        after = self._take_records(self._take_lines(after, lines, part), snapshot, part)
        committed = self._store.commit(snapshot, after)
        self._store.sweep()
        self._announce(committed)

    def _take_lines(self, snapshot: Snapshot, lines: DataFrame, part: str) -> Snapshot:
        """Write the records among the lines, and count the others: in one pass."""
        seen = Observation()
        judged_lines = lines.withColumn("reason", bronze.reason())
        records = (
            judged_lines.observe(seen, *bronze.line_counts(F.col("reason")))
            .where(F.col("reason").isNull())
            .drop("reason", CORRUPT)
        )
        self._store.write(bronze.stored(records), BRONZE, part, partition_by=("day", "pair"))
        counts: dict[str, Any] = seen.get
        aside = dict(snapshot.set_aside)
        for why, count in bronze.set_aside(counts).items():
            aside[why] = aside.get(why, 0) + count
        told = replace(snapshot, records=snapshot.records + counts["records"], set_aside=aside)
        return told.with_part(BRONZE, part) if counts["records"] else told

    def _take_records(self, snapshot: Snapshot, before: Snapshot, part: str) -> Snapshot:
        """Write the journeys and the sums of the batch that has just been written."""
        if part not in snapshot.parts_of(BRONZE):
            return snapshot
        count = snapshot.records - before.records
        few = count <= increment.ONE_TASK_MAX
        store = self._store.for_few() if few else self._store.for_many(count)
        records = store.read(BRONZE, [part], bronze.STORED_RECORDS)
        source = records.coalesce(1) if few else records
        seen = Observation()
        journeys = increment.keyed(partial_journeys(source, one_task=few)).observe(
            seen, F.count("*").alias("rows"), F.count_if(F.col("receiver") != "").alias("fanned")
        )
        store.write(journeys.sortWithinPartitions("first_ms"), JOURNEYS, part)
        fan_out = seen.get["fanned"] > 0
        step = increment.Increment(
            self._store,
            before,
            records,
            store.read(JOURNEYS, [part], increment.STORED_JOURNEYS),
            messages=seen.get["rows"],
            fan_out=fan_out,
        )
        try:
            parts = self._write_sums(step, before, part)
        finally:
            step.close()
        return replace(
            snapshot.with_part(JOURNEYS, part),
            parts={**snapshot.with_part(JOURNEYS, part).parts, SUMS: parts},
            fan_out=snapshot.fan_out or fan_out,
        )

    def _write_sums(
        self, step: increment.Increment, before: Snapshot, part: str
    ) -> tuple[str, ...]:
        """Write what each gold table gains; the parts that it has then."""
        whole = len(before.parts_of(SUMS)) >= SUM_PARTS_MAX

        def write(table: GoldTable) -> None:
            rows = step.change_of(table)
            if whole:
                rows = increment.totals(self._store, before, table, rows)
            self._store.write(rows, f"{SUMS}-{table.name}", part)

        with ThreadPoolExecutor(WRITES_AT_ONCE) as pool:
            list(pool.map(write, self._tables))
        return (part,) if whole else (*before.parts_of(SUMS), part)


def _require_plain_name(ledger: Path | str) -> None:
    """LedgerError for a name that Spark's file source takes for a pattern, even escaped.

    It would then read every file as often as there are files.
    """
    found = sorted(set(str(ledger)) & set(_PATTERN))
    if found:
        raise LedgerError(
            f"tables cannot be kept of the ledger at {ledger}: Spark takes {' '.join(found)} in its"
            " path for a pattern; give the directory another name"
        )


def _require_columns(store: TableStore, snapshot: Snapshot) -> None:
    if snapshot.number >= 0 and snapshot.gold != increment.signature_of(increment.kept_tables()):
        raise LedgerError(
            f"the tables at {store.place} were made by another version of Twinbus and have other"
            f" columns: {REBUILD}"
        )
