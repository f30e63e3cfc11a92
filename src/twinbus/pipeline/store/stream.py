"""Keeps the tables up to date: takes every ended file of the ledger once, in batches.

    update    take the files that ended since the last update; a report does so first
    rebuild   remove the tables and take all files again

A file never changes once it is ended. The row of `sets` that makes a batch count names its files,
relative to the ledger: so a file is taken once, whatever dies, and wherever the ledger is moved.
The row also has size, hash and place in the chain of each file, so that reports notice files that
changed or are missing (`inspection`).

Tables belong to one ledger, by its id; those of another ledger are refused.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from twinbus.ledger.facts import TABLES, stem_of
from twinbus.ledger.files import ID_NAME
from twinbus.ledger.record import LedgerError
from twinbus.pipeline.core.lines import REASONS
from twinbus.pipeline.spark.session import master_of, require_shared
from twinbus.pipeline.store import expectations, increment
from twinbus.pipeline.store.compaction import compact, pays, require_raw
from twinbus.pipeline.store.few_batch import few_batch
from twinbus.pipeline.store.few_lines import require_small
from twinbus.pipeline.store.inspection import LedgerFolder
from twinbus.pipeline.store.lake import CommitConflict, DataFile, Snapshot, TableChange
from twinbus.pipeline.store.place_files import PlaceFiles, address
from twinbus.pipeline.store.quarantine import quarantined
from twinbus.pipeline.store.store import Observed, TableStore, ledger_paths
from twinbus.pipeline.store.writers import KnownFile, known_from_json
from twinbus.pipeline.tables import bronze
from twinbus.pipeline.tables.gold import (
    BRONZE,
    EXPECTATIONS,
    JOURNEYS,
    GoldTable,
    kept_tables,
    signature_of,
)
from twinbus.pipeline.tables.journeys import partial_journeys
from twinbus.pipeline.tables.quarantine import QUARANTINE
from twinbus.pipeline.tables.schemas import CORRUPT, day_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FEW_BYTES: Final = 12_500_000
"""Size of ledger files with about `increment.ONE_TASK_MAX` records."""

TASK_BYTES: Final = 16 << 20
"""Ledger files that one task writes as one file; Spark alone would start a task for a few files."""

WRITES_AT_ONCE: Final = 4
"""Gold tables written at a time: each is a small job that mostly waits for its plan."""

TRIES: Final = 5
"""Tries of an update that other processes overtake: each time there is less left to do."""

Announce = Callable[[Snapshot], None]


def tables_place(ledger: Path | str, tables: Path | str | None = None) -> str:
    """Return the place of a ledger's tables: the named one, or inside the ledger."""
    # Spark skips names that begin with `_`, so they are not read as part of the ledger.
    return str(tables) if tables is not None else f"{str(ledger).rstrip('/')}/{TABLES}"


def open_store(
    spark: SparkSession | None,
    ledger: Path | str,
    tables: Path | str | None = None,
    *,
    shared: bool = False,
) -> TableStore:
    """Return the store of a ledger's tables; LedgerError without a ledger or usable tables.

    Without Spark it reads and writes few rows. `shared`, here and below: local paths are
    directories that all machines of the cluster mount.
    """
    if spark is not None:
        require_shared(master_of(spark), (ledger, tables), shared=shared)
    bronze.location_of(ledger)
    store = TableStore(spark, tables_place(ledger, tables))
    snapshot = store.require_whole()
    if snapshot.number >= 0 and snapshot.gold != signature_of(kept_tables()):
        raise LedgerError(
            f"the tables at {store.place} were made by another version of Twinbus and have other"
            f" columns{store.way_out}"
        )
    _require_same_ledger(store, ledger, snapshot)
    return store


def update(
    spark: SparkSession | None,
    ledger: Path | str,
    tables: Path | str | None = None,
    *,
    files_max: int | None = None,
    announce: Announce | None = None,
    say: Callable[[str], None] | None = None,
    shared: bool = False,
) -> Snapshot:
    """Take every file that ended since the last update; return the new state of the tables.

    `files_max` limits a batch; without it one batch takes all files, which is the least work.
    `announce` gets each batch, `say` a line if another process was faster. Without Spark this
    process takes a batch of few records; NeedsSpark if there is more to do.
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


def rebuild(
    spark: SparkSession,
    ledger: Path | str,
    tables: Path | str | None = None,
    *,
    shared: bool = False,
) -> Snapshot:
    """Remove the tables and build them again from the files of the ledger.

    LedgerError, before anything is removed, if the tables are the only copy of records.
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
    """Take the files that are not in the tables yet, batch by batch."""
    folder = LedgerFolder(ledger)
    while True:
        # The snapshot first: a later set of another process makes this commit fail.
        snapshot, new = store.latest(), dict[str, KnownFile]()
        there = store.lake.taken()
        if store.session_if_any is None:
            # Before they are read for their facts: Spark's turn would read them again.
            stems, files = set(map(stem_of, there)), PlaceFiles(ledger).ledger_files()
            new_files = {name: files[name] for name in files if stem_of(name) not in stems}
            require_small(new_files, FEW_BYTES)
        if folder.has_new(there):
            taken = taken_files(store)
            new = dict(list(folder.inspect(taken).new(taken).items())[:files_max])
        if not new:
            return compact(store).snapshot if pays(store, snapshot) else snapshot
        announce(_Batch(store, snapshot, new).take(ledger))


def taken_files(store: TableStore) -> dict[str, KnownFile]:
    """Return the files whose records are in the tables, as they were when taken."""
    return {name: known_from_json(text) for name, text in store.lake.facts().items()}


class _Batch:
    """Some files of the ledger as one change of all tables."""

    def __init__(self, store: TableStore, before: Snapshot, files: Mapping[str, KnownFile]) -> None:
        self._store = store
        self._before = before
        self._files = files
        self._size_bytes = sum(file.disk_bytes for file in files.values())
        self._told = {"batch": before.batch + 1, "taken_ms": time.time_ns() // 1_000_000}
        """What all lines of the batch have in common."""
        self._part = store.new_part(before.batch + 1)
        self._tables = kept_tables()
        self._changes: dict[str, TableChange] = {}

    def take(self, ledger: str) -> Snapshot:
        few = few_batch(self._store, self._before, ledger, self._files, FEW_BYTES)
        if few is None:
            counts = self._write_records(self._lines(ledger))
        else:
            counts = {**dict.fromkeys(REASONS, 0), "records": few.records}
        set_aside = bronze.rejected(counts)
        rejected = Counter(self._before.rejected)
        rejected.update(set_aside)
        if set_aside:
            kept = quarantined(self._store, ledger, self._files, self._told, self._part)
            self._changes[QUARANTINE] = TableChange(kept)
        after = replace(
            self._before,
            batch=self._before.batch + 1,
            records=self._before.records + counts["records"],
            rejected=dict(rejected),
            gold=signature_of(self._tables),
            ledger=_identity_of(self._store, ledger),
        )
        if few is not None:
            self._changes |= few.changes(self._told, self._part)
            parts = self._before.sum_parts + 1
            after = replace(after, fan_out=after.fan_out or few.fan_out, sum_parts=parts)
        elif counts["records"]:
            after = self._take_records(after, counts["records"])
        self._changes[EXPECTATIONS] = expectations.noted(
            self._store, self._before, after, self._changes, self._part
        )
        took = {name: file.as_json() for name, file in self._files.items()}
        committed = self._store.lake.publish(self._before, after, self._changes, took)
        if committed.sum_parts == 1:
            self._store.lake.sweep()
        return committed

    def _lines(self, ledger: str) -> DataFrame:
        """Return the lines of the files, with the columns that lines of a batch share."""
        few = self._size_bytes <= FEW_BYTES
        session = self._store.for_few().session if few else self._store.session
        reader = session.read.schema(bronze.LINES).options(**bronze.READING)
        lines = reader.json(ledger_paths(ledger, self._files)).withColumns(
            {"file": bronze.file_name(), **{name: F.lit(one) for name, one in self._told.items()}}
        )
        return lines.coalesce(max(1, self._size_bytes // TASK_BYTES))

    def _write_records(self, lines: DataFrame) -> Mapping[str, int]:
        """Write the records among the lines and count the others, in one pass."""
        reasoned = lines.withColumn("reason", bronze.reason())
        observed = Observed(reasoned, *bronze.line_counts(F.col("reason")))
        records = (
            observed.rows.where(F.col("reason").isNull())
            .drop("reason", CORRUPT)
            .withColumn("day", day_of(F.col("at_ms")))
        )
        files = self._store.write(records, BRONZE, self._part)
        self._changes[BRONZE] = TableChange(files)
        counts = observed.counts_for("records", files, self._store.place)
        return {**dict.fromkeys(REASONS, 0), **counts}

    def _take_records(self, after: Snapshot, count: int) -> Snapshot:
        """Write the journeys and the sums of the records written just now."""
        few = count <= increment.ONE_TASK_MAX
        store = self._store.for_few() if few else self._store.for_many(count)
        records = self._written(store, BRONZE)
        source = records.coalesce(1) if few else records
        observed = Observed(
            increment.with_key_hash(partial_journeys(source, one_task=few)),
            F.count("*").alias("rows"),
            increment.shared_message_rows().alias("shared"),
        )
        ordered = observed.rows.sortWithinPartitions("first_ms")
        files = store.write(ordered, JOURNEYS, self._part)
        self._changes[JOURNEYS] = TableChange(files)
        counts = observed.counts_for("rows", files, store.place)
        fan_out = counts.get("shared", 0) > 0
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
        """Write the change of each gold table; return how many batches it then holds separately."""
        whole = self._before.sum_parts >= increment.SUM_PARTS_MAX

        def write(table: GoldTable) -> TableChange:
            rows, replaced = step.change_of(table), tuple[DataFile, ...]()
            if whole:
                rows = increment.totals(self._store, self._before, table, rows)
                replaced = self._store.lake.files(table.name, self._before)
            # One file, unless it were large.
            placed = rows.coalesce(1) if one_task else rows.hint("rebalance")
            return TableChange(self._store.write(placed, table.name, self._part), replaced)

        with ThreadPoolExecutor(WRITES_AT_ONCE) as pool:
            changes = list(pool.map(write, self._tables))
        names = [table.name for table in self._tables]
        self._changes.update(zip(names, changes, strict=True))
        return 1 if whole else self._before.sum_parts + 1


def _identity_of(store: TableStore, ledger: Path | str) -> str:
    """Return the id of a ledger, or its address if it has none.

    "": it has no id, and the tables are inside it, wherever both are moved.
    """
    identity = PlaceFiles(str(ledger)).text(ID_NAME).strip()
    if identity:
        return identity
    place = address(str(ledger))
    return "" if store.place.startswith(f"{place}/") else place


def _require_same_ledger(store: TableStore, ledger: Path | str, snapshot: Snapshot) -> None:
    identity = _identity_of(store, ledger)
    # The ledger had no id when the tables were made, or they are inside it.
    is_same = snapshot.ledger in {"", identity, address(str(ledger))} or not identity
    if not is_same:
        raise LedgerError(
            f"the tables at {store.place} belong to another ledger than {ledger}: name other tables"
            " (--tables), or their own ledger"
        )
