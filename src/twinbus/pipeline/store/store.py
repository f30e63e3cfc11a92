"""The tables on disk: Parquet files that Spark writes and reads, in Delta tables (`lake`).

    <tables>/bronze/         every record
    <tables>/quarantine/     rejected lines
    <tables>/journeys/       what each batch says of its messages
    <tables>/<gold table>/   what each batch adds to a gold table
    <tables>/sets/           which versions of these belong together

A part of a table is written under a new name, and counts once a set names it. So a batch that died
is repeated beside its remains, two processes that do the same batch cannot mix their files (the
first set wins), and a reader keeps the files of its snapshot. Spark reads the files that the
versions name: it lists no directory, and needs no jar of Delta's.

Tasks count the rows of a part as they write it, and this process counts the rows that it can read
there. If a worker writes to its own disk, the two differ and the part is refused.

A place is a directory, or a URL that both Hadoop and delta-rs know.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from pyspark.sql import Observation
from pyspark.sql import functions as F

from twinbus.ledger.record import LedgerError
from twinbus.pipeline.functions import NeedsSpark
from twinbus.pipeline.here.rows import frame_of_columns
from twinbus.pipeline.spark import classic
from twinbus.pipeline.spark.session import session_for_few, session_for_many
from twinbus.pipeline.store import RAW_REMOVED, REBUILD
from twinbus.pipeline.store.lake import BOUNDED, SETS, DataFile, Lake, Snapshot
from twinbus.pipeline.store.place_files import PlaceFiles, address
from twinbus.pipeline.tables.gold import BRONZE, JOURNEYS, TABLE_COMMENTS, stored_schemas

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ROWS_HERE_MAX: Final = 100_000
"""Rows of a table that this process reads without Spark: about a second, and 100 MB."""

ONLY_COPY: Final = "the only copy of records whose files were removed"
"""Why such tables cannot be rebuilt, in error texts."""

_BEING_REMOVED: Final = "being-removed"
"""A mark: removing directories takes several steps, and half-removed tables look like tables."""
_WORDS: Final = {BRONZE: "records", JOURNEYS: "journeys"}


class TableStore:
    """The tables at one place, for one Spark session."""

    def __init__(self, spark: SparkSession | None, place: Path | str) -> None:
        """Without Spark the store reads and writes few rows, in this process."""
        self._given = spark
        self._session = None if spark is None else session_for_many(spark, 0)
        self.files = PlaceFiles(str(place))
        self.place = self.files.place
        self._schemas = stored_schemas()
        columns = {table: schema.json() for table, schema in self._schemas.items()}
        self.lake = Lake(self.place, columns, TABLE_COMMENTS)

    @property
    def session(self) -> SparkSession:
        """The session; NeedsSpark if the store was opened without one."""
        if self._session is None:
            raise NeedsSpark
        return self._session

    @property
    def session_if_any(self) -> SparkSession | None:
        """The session; None: this process reads and makes rows."""
        return self._session

    def for_few(self) -> TableStore:
        """Return the same tables with a session for few rows, which compiles no code for them."""
        return self if self._given is None else self._by(session_for_few(self._given))

    def for_many(self, rows: int) -> TableStore:
        """Return the same tables with a session for this number of rows; it may be this one."""
        return self if self._given is None else self._by(session_for_many(self._given, rows))

    def by_given(self) -> TableStore:
        """Return the same tables with the caller's own session, for frames that the caller gets."""
        return self if self._given is None else self._by(self._given)

    def _by(self, session: SparkSession) -> TableStore:
        if session is self._session:
            return self
        store = copy(self)
        store._session = session
        return store

    def latest(self) -> Snapshot:
        """Return the last snapshot; LedgerError if its tables cannot be used."""
        return self.lake.latest()

    def require_whole(self) -> Snapshot:
        """Return the last snapshot; LedgerError if an update would damage the tables."""
        names = self.files.names()
        if _BEING_REMOVED in names:
            raise LedgerError(
                f"a rebuild of the tables at {self.place} is running, or was interrupted: wait for"
                f" it, or {REBUILD}"
            )
        snapshot = self.latest()
        if snapshot.number < 0 and RAW_REMOVED in names:
            raise LedgerError(
                f"the tables at {self.place} have lost their table {SETS}, and are the only copy of"
                " records whose files were removed: restore it from a copy"
            )
        return snapshot

    def new_part(self, batch: int) -> str:
        """Return a new name for the files of one attempt at a batch."""
        return f"{batch}-{uuid.uuid4().hex[:12]}"

    def write(self, rows: DataFrame, table: str, part: str) -> tuple[DataFile, ...]:
        """Write one part; return its files. They count once a set names them.

        LedgerError if this process cannot read all the rows that tasks have written.
        """
        observed = Observed(rows, F.count("*").alias("rows"))
        writer = observed.rows.write.option("compression", "zstd")
        # Delta-rs never removes names with an underscore, so this file would stay for ever.
        writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        writer.parquet(f"{self.place}/{table}/{part}")
        written = observed.counts().get("rows", 0)
        files = tuple(self._written(table, part))
        found = sum(file.rows for file in files)
        if found and not written:
            raise _no_counts(self.place, found)
        if found != written:
            raise LedgerError(
                f"{written:,} {_WORDS.get(table, f'rows of {table}')} were written to"
                f" {self.place}/{table}/{part} and {found:,} can be read there, so nothing was"
                " committed: workers write to their own disks; keep the tables in a directory"
                " that all machines share, or at a URL that all machines reach"
            )
        if not found:
            self.files.remove(f"{table}/{part}")
        return tuple(file for file in files if file.rows)

    def write_here(
        self, rows: Sequence[Mapping[str, Any]], table: str, part: str
    ) -> tuple[DataFile, ...]:
        """Write few rows of this process as a part, without Spark; return its files."""
        if not rows:
            return ()
        file = self.lake.write_rows(table, f"{part}/0.parquet", rows)
        _, bounds = self.files.footer(f"{table}/{file.path}", BOUNDED)
        return (replace(file, bounds=bounds),)

    def read(self, table: str, snapshot: Snapshot) -> DataFrame:
        files = self.lake.files(table, snapshot)
        if self._session is not None:
            return self.read_files(table, [one.path for one in files])
        if sum(file.rows for file in files) > ROWS_HERE_MAX:
            raise NeedsSpark
        names = self._schemas[table].fieldNames()
        return frame_of_columns(self.lake.columns(table, files, names))

    def read_files(self, table: str, paths: Sequence[str]) -> DataFrame:
        schema = self._schemas[table]
        if not paths:
            # Not `createDataFrame`: it would make this session the active one of the process.
            columns = (F.lit(None).cast(one.dataType).alias(one.name) for one in schema)
            return self.session.range(1).select(*columns).limit(0)
        # Spark treats a path as a pattern.
        place = _literal(f"{self.place}/{table}")
        return self.session.read.schema(schema).parquet(*(f"{place}/{path}" for path in paths))

    def mark_raw_removed(self) -> None:
        """Mark these tables as the only copy of records, before the first file is removed."""
        if not self.is_only_copy:
            self.files.put(RAW_REMOVED, b"")

    @property
    def is_only_copy(self) -> bool:
        """Whether files of the ledger were removed whose records these tables hold."""
        return self.files.exists(RAW_REMOVED)

    @property
    def way_out(self) -> str:
        """The end of an error text: what to do with tables that this version does not read."""
        if self.is_only_copy:
            return f", and are {ONLY_COPY}: use the version of Twinbus that made them"
        return f": {REBUILD}"

    def remove(self) -> None:
        """Remove the tables, and nothing else at their place."""
        self.files.put(_BEING_REMOVED, b"")
        for name in self.files.names():
            if name in self._schemas or name == SETS:
                self.files.remove(name)
        self.files.remove(_BEING_REMOVED)

    def _written(self, table: str, part: str) -> Iterator[DataFile]:
        """Yield the files of a part that this process can read, with their row counts."""
        for file in self.files.found(f"{table}/{part}"):
            if file.name.endswith(".parquet"):
                rows, bounds = self.files.footer(f"{table}/{part}/{file.name}", BOUNDED)
                name = f"{part}/{file.name}"
                yield DataFile(name, file.size_bytes, rows, file.modified_ms, bounds)


class Observed:
    """Rows whose tasks count them while they write them."""

    def __init__(self, rows: DataFrame, *counts: Column) -> None:
        self._plain, self._columns, self._seen = rows, counts, Observation()
        self.rows = rows.observe(self._seen, *counts)

    def counts(self) -> dict[str, int]:
        """Return the counts, once the rows were written.

        Spark drops those of rows that it knows to be none. Spark Connect of 4.0 often drops them
        all (SPARK-54279): there the server counts the rows in a second pass.
        """
        told: dict[str, int] = self._seen.get
        if told or classic.is_classic(self._plain.sparkSession):
            return told
        [counted] = self._plain.agg(*self._columns).collect()
        return counted.asDict()

    def counts_for(self, column: str, files: Sequence[DataFile], place: str) -> dict[str, int]:
        """Return the counts of tasks that wrote files; `column` holds the rows that were written.

        LedgerError if Spark does not report the counts: without them rows could be missed.
        """
        counts = {column: 0, **self.counts()}
        found = sum(file.rows for file in files)
        if counts[column] != found:
            raise _no_counts(place, found)
        return counts


def _no_counts(place: str, found: int) -> LedgerError:
    return LedgerError(
        f"{found:,} rows were written to {place} and Spark does not report how many its tasks"
        " counted, so nothing was committed: run it again, or use a later Spark"
    )


def paths_of(addresses: Iterable[str]) -> list[str]:
    """Return paths relative to their table for addresses that Spark gives (`_metadata`)."""
    return ["/".join(unquote(address).rsplit("/", 2)[1:]) for address in addresses]


def ledger_paths(ledger: str, names: Iterable[str]) -> list[str]:
    """Return paths of a ledger's files for Spark, which treats a path as a pattern."""
    return [_literal(f"{address(ledger)}/{name}") for name in names]


def _literal(path: str) -> str:
    """Return a pattern that matches only this path."""
    return re.sub(r"([\\{}\[\]*?,])", r"\\\1", path)
