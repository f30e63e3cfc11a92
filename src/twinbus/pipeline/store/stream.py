"""The tables kept up to date: every ended file of the ledger is taken once, in batches.

    update    take what has come since, and return: a report does so first
    follow    go on taking until told to stop
    rebuild   throw the tables away and take everything again

A file never changes once it is ended. `sets` names the files of each batch, by their names in the
ledger's directory, in the row that makes the batch count: so a file is taken once, whatever dies,
and wherever the ledger is moved. With each name it has the size, the hash and the place in the
chain, so that reports notice what is changed or missing (`inspection`).

Tables belong to one ledger, by its id: another one is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import Observation
from pyspark.sql import functions as F

from twinbus.ledger.files import ID_NAME
from twinbus.ledger.record import LedgerError
from twinbus.pipeline.spark.session import master_of, require_shared
from twinbus.pipeline.store import increment
from twinbus.pipeline.store.compaction import compact, pays, require_raw
from twinbus.pipeline.store.inspection import LedgerFolder
from twinbus.pipeline.store.known_files import KnownFile, known_from_json
from twinbus.pipeline.store.lake import CommitConflict, DataFile, Snapshot, TableChange
from twinbus.pipeline.store.place_files import address
from twinbus.pipeline.store.store import TableStore, counts_of, ledger_paths
from twinbus.pipeline.tables import bronze
from twinbus.pipeline.tables.gold import (
    BRONZE,
    JOURNEYS,
    TABLES,
    GoldTable,
    kept_tables,
    signature_of,
)
from twinbus.pipeline.tables.journeys import partial_journeys
from twinbus.pipeline.tables.schemas import CORRUPT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOLLOW_S: Final = 10.0
"""Between two looks of `follow`: a file of the ledger is ended every few minutes."""

FEW_BYTES: Final = 12_500_000
"""Of files of the ledger: about `increment.ONE_TASK_MAX` records."""

TASK_BYTES: Final = 16 << 20
"""Of files of the ledger that a task writes as one file: Spark makes a task of every few files."""

SUM_PARTS_MAX: Final = 16
"""Batches of a gold table that are added up when it is read; then one writes them as one."""

WRITES_AT_ONCE: Final = 4
"""Gold tables that are written at a time: each is a small job that mostly waits to be planned."""

TRIES: Final = 5
"""Of an update that another process got ahead of: each time there is less left to do."""

Announce = Callable[[Snapshot], None]


def tables_place(ledger: Path | str, tables: Path | str | None = None) -> str:
    """Where the tables of a ledger are, unless another place is named."""
    # Spark passes over names that begin with `_`: they are no part of the ledger.
    return str(tables) if tables is not None else f"{str(ledger).rstrip('/')}/{TABLES}"


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
    require_shared(master_of(spark), (ledger, tables), shared=shared)
    return _opened(spark, ledger, tables)


def open_without_spark(ledger: Path | str, tables: Path | str | None = None) -> TableStore:
    """The same store for a caller that asks only for snapshots and files, in a second."""
    return _opened(None, ledger, tables)


def _opened(
    spark: SparkSession | None, ledger: Path | str, tables: Path | str | None
) -> TableStore:
    bronze.location_of(ledger)
    store = TableStore(spark, tables_place(ledger, tables))
    snapshot = store.require_whole()
    _require_columns(store, snapshot)
    _require_same_ledger(store, ledger, snapshot)
    return store


def update(
    spark: SparkSession,
    ledger: Path | str,
    tables: Path | str | None = None,
    *,
    files_max: int | None = None,
    announce: Announce | None = None,
    say: Callable[[str], None] | None = None,
    shared: bool = False,
) -> Snapshot:
    """Take every file that was ended since the last time; returns what the tables are then.

    `files_max` bounds a batch; without it one batch takes them all, which is the least work.
    `announce` gets each batch, `say` a line where another process was faster.
    """
    store = open_store(spark, ledger, tables, shared=shared)
    for _ in range(TRIES):
        try:
            return _take_all(store, str(ledger), files_max, announce or (lambda snapshot: None))
        except CommitConflict:
            if say is not None:
                say(f"another process has just changed the tables at {store.place}: starting again")
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
    announce: Announce | None = None,
    say: Callable[[str], None] | None = None,
    shared: bool = False,
) -> None:
    """Take files as they are ended, every `interval_s`, until `stop` is set."""
    while not stop.is_set():
        update(spark, ledger, tables, announce=announce, say=say, shared=shared)
        stop.wait(interval_s)


def rebuild(
    spark: SparkSession,
    ledger: Path | str,
    tables: Path | str | None = None,
    *,
    shared: bool = False,
) -> Snapshot:
    """Remove the tables and make them anew from the files of the ledger that are there.

    LedgerError, before anything is removed, where they are the only copy of records.
    """
    require_shared(master_of(spark), (ledger, tables), shared=shared)
    bronze.location_of(ledger)
    store = TableStore(spark, tables_place(ledger, tables))
    require_raw(store, str(ledger))
    store.remove()
    return update(spark, ledger, tables, shared=shared)


def _take_all(
    store: TableStore, ledger: str, files_max: int | None, announce: Announce
) -> Snapshot:
    """Take the files that are not in the tables, batch by batch."""
    folder = LedgerFolder(ledger)
    while True:
        # The snapshot first: a set that comes after it makes this process's own impossible.
        snapshot, new = store.latest(), dict[str, KnownFile]()
        if folder.has_new(store.lake.taken()):
            taken = taken_files(store)
            new = dict(list(folder.inspect(taken).new(taken).items())[:files_max])
        if not new:
            return compact(store).snapshot if pays(store, snapshot) else snapshot
        announce(_Batch(store, snapshot, new).take(ledger))


def taken_files(store: TableStore) -> dict[str, KnownFile]:
    """The files whose records are in the tables, as they were then."""
    return {name: known_from_json(text) for name, text in store.lake.facts().items()}


class _Batch:
    """Some files of the ledger as one change of all tables."""

    def __init__(self, store: TableStore, before: Snapshot, files: Mapping[str, KnownFile]) -> None:
        self._store = store
        self._before = before
        self._files = files
        self._size_bytes = sum(file.disk_bytes for file in files.values())
        self._part = store.new_part(before.batch + 1)
        self._tables = kept_tables()
        self._changes: dict[str, TableChange] = {}

    def take(self, ledger: str) -> Snapshot:
        """Write and commit what the files say."""
        few = self._size_bytes <= FEW_BYTES
        session = self._store.for_few().session if few else self._store.session
        reader = session.read.schema(bronze.LINES).options(**bronze.READING)
        lines = reader.json(ledger_paths(ledger, self._files))
        counts = self._write_records(lines.coalesce(max(1, self._size_bytes // TASK_BYTES)))
        aside = dict(self._before.set_aside)
        for why, count in bronze.set_aside(counts).items():
            aside[why] = aside.get(why, 0) + count
        after = replace(
            self._before,
            batch=self._before.batch + 1,
            records=self._before.records + counts["records"],
            set_aside=aside,
            gold=signature_of(self._tables),
            ledger=_identity_of(self._store, ledger),
        )
        if counts["records"]:
            after = self._take_records(after, counts["records"])
        took = {name: file.as_json() for name, file in self._files.items()}
        committed = self._store.commit(self._before, after, self._changes, took)
        if committed.sum_parts == 1:
            self._store.sweep()
        return committed

    def _write_records(self, lines: DataFrame) -> Mapping[str, int]:
        """Write the records among the lines, and count the others: in one pass."""
        seen = Observation()
        records = (
            lines.withColumn("reason", bronze.reason())
            .observe(seen, *bronze.line_counts(F.col("reason")))
            .where(F.col("reason").isNull())
            .drop("reason", CORRUPT)
        )
        files = self._store.write(bronze.stored(records), BRONZE, self._part)
        self._changes[BRONZE] = TableChange(files)
        counts = counts_of(seen, "records", files, self._store.place)
        return {**dict.fromkeys(bronze.REASONS, 0), **counts}

    def _take_records(self, after: Snapshot, count: int) -> Snapshot:
        """Write the journeys and the sums of the records that have just been written."""
        few = count <= increment.ONE_TASK_MAX
        store = self._store.for_few() if few else self._store.for_many(count)
        records = self._written(store, BRONZE)
        source = records.coalesce(1) if few else records
        seen = Observation()
        journeys = increment.keyed(partial_journeys(source, one_task=few)).observe(
            seen, F.count("*").alias("rows"), increment.fanned().alias("fanned")
        )
        ordered = journeys.sortWithinPartitions("first_ms")
        files = store.write(ordered, JOURNEYS, self._part)
        self._changes[JOURNEYS] = TableChange(files)
        counts = counts_of(seen, "rows", files, store.place)
        fan_out = counts.get("fanned", 0) > 0
        step = increment.Increment(
            self._store,
            self._before,
            records,
            self._written(store, JOURNEYS),
            messages=counts["rows"],
            fan_out=fan_out,
        )
        try:
            parts = self._write_sums(step, one_task=few)
        finally:
            step.close()
        return replace(after, fan_out=after.fan_out or fan_out, sum_parts=parts)

    def _written(self, store: TableStore, table: str) -> DataFrame:
        return store.read_files(table, [file.path for file in self._changes[table].added])

    def _write_sums(self, step: increment.Increment, *, one_task: bool) -> int:
        """Write what each gold table gains; return how many batches it has side by side then."""
        whole = self._before.sum_parts >= SUM_PARTS_MAX

        def write(table: GoldTable) -> TableChange:
            rows, replaced = step.change_of(table), tuple[DataFile, ...]()
            if whole:
                rows = increment.totals(self._store, self._before, table, rows)
                replaced = self._store.lake.files(table.name, self._before)
            # One file, unless it would be large.
            placed = rows.coalesce(1) if one_task else rows.hint("rebalance")
            return TableChange(self._store.write(placed, table.name, self._part), replaced)

        with ThreadPoolExecutor(WRITES_AT_ONCE) as pool:
            changes = list(pool.map(write, self._tables))
        names = [table.name for table in self._tables]
        self._changes.update(zip(names, changes, strict=True))
        return 1 if whole else self._before.sum_parts + 1


def _identity_of(store: TableStore, ledger: Path | str) -> str:
    """What tells a ledger from others: its id, or its address where it has none.

    "": it has none, and the tables are inside it, wherever both are moved.
    """
    identity = store.text_at(str(ledger), ID_NAME).strip()
    if identity:
        return identity
    place = address(str(ledger))
    return "" if store.place.startswith(f"{place}/") else place


def _require_same_ledger(store: TableStore, ledger: Path | str, snapshot: Snapshot) -> None:
    """LedgerError where the tables are of another ledger."""
    identity = _identity_of(store, ledger)
    # It had no id when the tables were made, or they are inside it.
    is_same = snapshot.ledger in {"", identity, address(str(ledger))} or not identity
    if not is_same:
        raise LedgerError(
            f"the tables at {store.place} belong to another ledger than {ledger}: name other tables"
            " (--tables), or the ledger that they were made from"
        )


def _require_columns(store: TableStore, snapshot: Snapshot) -> None:
    if snapshot.number >= 0 and snapshot.gold != signature_of(kept_tables()):
        raise LedgerError(
            f"the tables at {store.place} were made by another version of Twinbus and have other"
            f" columns{store.way_out}"
        )
