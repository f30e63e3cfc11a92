"""Delta tables that change as one: the table `sets` names the versions that belong together.

    <place>/<table>/<batch>-<attempt>/*.parquet    files that Spark wrote
    <place>/<table>/_delta_log/                    the versions of one table
    <place>/sets/                                  a row for each set: a version of every table

A change is made in three steps: Spark writes files under new names, each table gets a version with
them, and `sets` gets a row. Only the row makes it count. A process that dies earlier leaves
versions that no row names; the next version of the table is made from the named one, so it drops
what they added and restores what they removed.

Each version and each row are created only if no other process did (`CommitConflict`). All
paths in the tables are relative: they can be moved, copied and mounted elsewhere.

This module knows no Spark. `table_logs` has who carries the versions to the place.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import date
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction

from twinbus.ledger.record import FILE_SUFFIX, LedgerError
from twinbus.pipeline.store import REBUILD
from twinbus.pipeline.store.place_files import Bounds, first_line
from twinbus.pipeline.store.table_logs import logs_at

FORMAT: Final = 6
"""Increment when old readers would misread new tables."""

SETS: Final = "sets"

KEEP_H: Final = 24
"""How long files stay that the current set does not name: reports may read them, and a running
batch owns files that no version names yet."""

SET_FILES_MAX: Final = 50
"""Files of `sets`, one for each row, before the next commit merges them into one file."""

BOUNDED: Final[Mapping[str, tuple[Any, Any]]] = {
    "day": (date.min, date.max),
    **dict.fromkeys(("at_ms", "at_s", "first_ms", "last_ms"), (0, (1 << 63) - 1)),
}
"""Columns whose bounds the log has for each file, so that readers skip files: days and times, with
the bounds of a file that states none. No ids: what is in a log cannot be erased."""

_VERSION: Final = "_version"
_TOOK: Final = "took"
_FACTS: Final = "facts"

_SET_COLUMNS: Final = {
    "number": (pa.int64(), "Number of the set; the greatest is the newest."),
    "at_ms": (pa.int64(), "When the set was committed, in unix milliseconds."),
    "format": (pa.int64(), "Format of the tables."),
    "batch": (pa.int64(), "Last batch of the ledger's files that is in it."),
    "records": (pa.int64(), "Records in the tables."),
    "sum_parts": (pa.int64(), "Batches whose sums the gold tables have side by side."),
    "rejected": (pa.string(), "Lines of the ledger that are no record, by reason, as JSON."),
    "gold": (pa.string(), "Digest of the gold tables and their columns."),
    "records_from": (pa.string(), "First day whose records are kept; empty: all are."),
    "fan_out": (pa.bool_(), "Whether a message can have several rows in journeys."),
    "ledger": (pa.string(), "Id of the ledger, or its address; empty: the tables are inside it."),
    _TOOK: (pa.list_(pa.string()), "Files of the ledger that came with the set."),
    _FACTS: (pa.list_(pa.string()), "Size, hash and place in the chain of each of them, as JSON."),
}
"""Type and comment of the columns of `sets` beside the versions."""

_STATED: Final = "delta.dataSkippingStatsColumns"

_CONFIGURATION: Final = {
    # Delta-rs keeps what the newest version needs; the newest set may name an older one.
    "delta.enableExpiredLogCleanup": "false",
    # A reader that knows none would see removed rows.
    "delta.enableDeletionVectors": "false",
}
_NO_STATISTICS: Final = {"delta.dataSkippingNumIndexedCols": "0"}


class CommitConflict(Exception):
    """Another process committed first: start again from the latest snapshot."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One set: the state of all tables after one commit. `_SET_COLUMNS` describes the fields."""

    number: int = -1
    """Number of the set; -1: no set exists yet."""
    batch: int = -1
    versions: Mapping[str, int] = field(default_factory=dict)
    """Version of each table; a table without rows has none."""
    records: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    fan_out: bool = False
    """Whether a message can have several journeys: for the subscriptions that received it, or for
    records that do not name the pair."""
    gold: str = ""
    records_from: str = ""
    ledger: str = ""
    sum_parts: int = 0
    format: int = FORMAT


@dataclass(frozen=True)
class DataFile:
    path: str
    """Relative to the table."""
    size_bytes: int
    rows: int
    modified_ms: int
    bounds: Bounds = field(default_factory=dict, compare=False)
    """Of `BOUNDED` columns."""


@dataclass(frozen=True)
class TableChange:
    """The files that one commit adds to a table and removes from it."""

    added: Sequence[DataFile] = ()
    removed: Sequence[DataFile] = ()
    same_rows: bool = False
    """Whether the added files have the rows of the removed ones: streams that follow the table
    then skip the change."""


class Lake:
    """The Delta tables at one place."""

    def __init__(
        self, place: str, schemas: Mapping[str, str], comments: Mapping[str, str] | None = None
    ) -> None:
        """`schemas` are the columns of each table as JSON, in the form of Spark and Delta.

        `comments` describe the tables.
        """
        self._place = place.removeprefix("file://").removeprefix("file:")
        self._logs = logs_at(self._place)
        self._schemas = schemas
        self._comments = {SETS: "Which versions of the tables belong together.", **(comments or {})}
        self._files: dict[str, tuple[int, tuple[DataFile, ...]]] = {}
        """The last requested version of each table, with its files."""

    def latest(self) -> Snapshot:
        """Return the newest set; LedgerError if its tables cannot be used."""
        rows = self._sets(but=(_TOOK, _FACTS))
        return self._snapshot(_newest(rows)) if rows else Snapshot()

    def taken(self) -> dict[str, int]:
        """Return the batch of each ledger file whose records are in the tables, by name."""
        taken = {name: row["batch"] for row in self._sets(but=(_FACTS,)) for name in row[_TOOK]}
        for name in taken:
            # `compact --remove-raw` deletes these files: no name may point elsewhere.
            if "/" in name or not name.endswith((FILE_SUFFIX, f"{FILE_SUFFIX}.gz")):
                raise LedgerError(
                    f"the table {SETS} at {self._place} names {name!r}, which is not the name of"
                    f" a ledger file: {REBUILD}"
                )
        return taken

    def facts(self) -> dict[str, str]:
        """Return the facts of each of these files, as given when the tables took it."""
        return {
            name: text
            for row in self._sets()
            for name, text in zip(row[_TOOK], row[_FACTS], strict=True)
        }

    def files(self, table: str, snapshot: Snapshot) -> tuple[DataFile, ...]:
        version = snapshot.versions.get(table)
        if version is None:
            return ()
        known, files = self._files.get(table, (-1, ()))
        if known != version:
            with self._in_words(table):
                found = _files_of(DeltaTable(self._uri(table), version=version))
            files = tuple(found.values())
            self._files[table] = (version, files)
        return files

    def rows(self, table: str, file: DataFile) -> list[dict[str, Any]]:
        """Read a small file of a table, without Spark."""
        with self._in_words(table):
            read = pq.read_table(file.path, filesystem=self._logs.files(table))
        rows: list[dict[str, Any]] = read.to_pylist()
        return rows

    def columns(
        self, table: str, files: Sequence[DataFile], names: Sequence[str]
    ) -> dict[str, list[Any]]:
        """Read the rows of small files by columns; one that a file lacks has null there."""
        found: dict[str, list[Any]] = {name: [] for name in names}
        with self._in_words(table):
            for file in files:
                read = pq.read_table(file.path, filesystem=self._logs.files(table))
                there = {*read.column_names}
                for name in names:
                    values = read[name].to_pylist() if name in there else [None] * file.rows
                    found[name] += values
        return found

    def find(self, table: str, snapshot: Snapshot, column: str, value: str) -> list[dict[str, Any]]:
        """Return the rows with a value in a column, without Spark; this reads the whole column."""
        version = snapshot.versions.get(table)
        if version is None:
            return []
        with self._in_words(table):
            opened, place = DeltaTable(self._uri(table), version=version), self._logs
            found = opened.to_pyarrow_dataset(filesystem=place.files_to_read(table))
            selected = found.to_table(filter=pc.field(column) == value)
        rows: list[dict[str, Any]] = selected.to_pylist()
        return rows

    def write_rows(self, table: str, path: str, rows: Sequence[Mapping[str, Any]]) -> DataFile:
        """Write few rows as a file of a table, without Spark."""
        with self._in_words(table):
            if "://" not in self._place:
                Path(self._place, table).mkdir(parents=True, exist_ok=True)
            schema = pa.schema(_columns(self._schemas[table]).to_arrow())
            return self._write(table, path, rows, schema)

    def publish(
        self,
        before: Snapshot,
        after: Snapshot,
        changes: Mapping[str, TableChange],
        took: Mapping[str, str] | None = None,
    ) -> Snapshot:
        """Commit `after` on top of `before` atomically. CommitConflict if another came first.

        `took` maps the ledger files whose records are in the commit to their facts.
        """
        versions = dict(before.versions)
        for table in self._schemas:
            change = changes.get(table, TableChange())
            if change.added or change.removed or table not in versions:
                versions[table] = self._advance(table, before, change)
        committed = replace(after, number=before.number + 1, versions=versions, format=FORMAT)
        self._append(committed, before, took or {})
        return committed

    def sweep(self, *, keep_h: int = KEEP_H) -> None:
        """Remove files that no set of the last hours names; 0: only files removed just now."""
        kept = self._kept_sets(int((time.time() - keep_h * 3600) * 1000))
        for table in (*self._schemas, SETS):
            of_sets = {row.get(f"{table}{_VERSION}") for row in kept} if table != SETS else set()
            named = sorted(version for version in of_sets if version is not None)
            try:
                with self._in_words(table):
                    found = self._open(table)
                    if found is None:
                        continue
                    self._logs.vacuum(found, table, named, keep_h)
                    if keep_h:
                        self._logs.shorten(self._open(table) or found, table, named)
            except CommitConflict as error:
                if keep_h:
                    continue  # The next sweep removes them.
                raise LedgerError(
                    f"old files of {table} at {self._place} were not removed: another process"
                    f" changed the table meanwhile ({error}): try again"
                ) from None

    def _advance(self, table: str, before: Snapshot, change: TableChange) -> int:
        """Make a version of a table: a snapshot's files with a change; return its number."""
        with self._in_words(table):
            latest = self._open(table) or self._create(
                table, _columns(self._schemas[table]), _statistics_of(self._schemas[table])
            )
            self._add_columns(table, latest, _columns(self._schemas[table]))
            now = _files_of(latest)
            wanted = {one.path: one for one in self.files(table, before)}
            for one in change.removed:
                if wanted.pop(one.path, None) is None:
                    raise CommitConflict(f"{table}/{one.path} has been replaced")
            wanted.update((one.path, one) for one in change.added)
            stated = _stated(latest)
            # What a process that died has left, or removed, changes the rows of the last version.
            moved = {one.path for one in (*change.added, *change.removed) if change.same_rows}
            actions: list[AddAction | RemoveAction] = [
                *(
                    _add(one, stated, path not in moved)
                    for path, one in wanted.items()
                    if path not in now
                ),
                *(
                    _remove(one, path not in moved)
                    for path, one in now.items()
                    if path not in wanted
                ),
            ]
            if not actions:
                return latest.version()
            return self._commit(table, latest, actions, "compact" if moved else "update")

    def _append(self, committed: Snapshot, before: Snapshot, took: Mapping[str, str]) -> None:
        """Add the row of a set, which makes it count."""
        row = {
            **{one.name: getattr(committed, one.name) for one in fields(Snapshot)},
            **{f"{table}{_VERSION}": version for table, version in committed.versions.items()},
            "at_ms": int(time.time() * 1000),
            "rejected": json.dumps(dict(committed.rejected)),
            _TOOK: list(took),
            _FACTS: list(took.values()),
        }
        schema = self._set_schema()
        with self._in_words(SETS):
            sets = self._open(SETS) or self._create(SETS, Schema.from_arrow(schema), _NO_STATISTICS)
            there = _files_of(sets)
            is_full = len(there) >= SET_FILES_MAX
            names = None if is_full else ["number"]
            place = self._logs.files_to_read(SETS)
            rows = sets.to_pyarrow_table(columns=names, filesystem=place).to_pylist()
            if _newest(rows).get("number", -1) != before.number:
                raise CommitConflict(SETS)
            # The sets may be of an earlier version.
            self._add_columns(SETS, sets, Schema.from_arrow(schema))
            file = self._write_sets([*rows, row] if is_full else [row], schema)
            # Only on top of the version that was read.
            merged = map(_remove, there.values()) if is_full else ()
            self._commit(SETS, sets, [_add(file, ()), *merged], "set")

    def _write_sets(self, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> DataFile:
        """Write rows of `sets` as a file; delta-rs's own writer refuses some paths."""
        return self._write(SETS, f"set-{uuid.uuid4().hex}.parquet", rows, schema)

    def _write(
        self, table: str, path: str, rows: Sequence[Mapping[str, Any]], schema: pa.Schema
    ) -> DataFile:
        place = self._logs.files(table)
        pq.write_table(
            pa.Table.from_pylist(rows, schema), path, filesystem=place, compression="zstd"
        )
        return DataFile(path, place.get_file_info(path).size, len(rows), int(time.time() * 1000))

    def _commit(
        self, name: str, table: DeltaTable, actions: Sequence[AddAction | RemoveAction], step: str
    ) -> int:
        """Commit the version after the open one; return its number.

        `step` is in the history of the table, where delta-rs calls every commit a write.
        """
        # Without this delta-rs would append after another process's version if both only add files.
        alone = CommitProperties(max_commit_retries=0, custom_metadata={"twinbus": step})
        table.create_write_transaction(
            list(actions), "append", table.schema(), commit_properties=alone
        )
        self._logs.written(name)
        return table.version() + 1

    def _add_columns(self, name: str, table: DeltaTable, schema: Schema) -> None:
        """Add the columns that a table of an earlier version lacks; its rows have null there."""
        names = {one.name for one in table.schema().fields}
        missing = [one for one in schema.fields if one.name not in names]
        if missing:
            table.alter.add_columns(missing)
            self._logs.written(name)

    def _snapshot(self, row: Mapping[str, Any]) -> Snapshot:
        if row["format"] != FORMAT:
            raise LedgerError(
                f"the tables at {self._place} have format {row['format']}, and this version of"
                f" Twinbus reads format {FORMAT}: use the version that made them, or {REBUILD}"
            )
        versions = {
            name.removesuffix(_VERSION): version
            for name, version in row.items()
            # A set of an earlier version lacks the tables that came later.
            if name.endswith(_VERSION) and version is not None
        }
        known = {one.name: row[one.name] for one in fields(Snapshot) if one.name in row}
        return Snapshot(**{**known, "versions": versions, "rejected": json.loads(row["rejected"])})

    def _sets(self, *, but: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Return the rows of `sets`, without some columns."""
        with self._in_words(SETS):
            sets = self._open(SETS)
            if sets is None:
                return []
            names = [one.name for one in sets.schema().fields if one.name not in but]
            found = sets.to_pyarrow_table(columns=names, filesystem=self._logs.files_to_read(SETS))
            rows: list[dict[str, Any]] = found.to_pylist()
            return rows

    def _set_schema(self) -> pa.Schema:
        versions = {
            f"{table}{_VERSION}": (pa.int64(), f"Version of {table} that belongs to the set.")
            for table in self._schemas
        }
        return pa.schema(
            [
                pa.field(name, kind, metadata={"comment": comment})
                for name, (kind, comment) in {**_SET_COLUMNS, **versions}.items()
            ]
        )

    def _kept_sets(self, limit_ms: int) -> list[dict[str, Any]]:
        """Return the sets that were current at this time or later."""
        rows = sorted(self._sets(but=(_TOOK, _FACTS)), key=lambda row: row["number"])
        ended = sum(row["at_ms"] <= limit_ms for row in rows)
        return rows[max(0, ended - 1) :]

    def _create(self, table: str, schema: Schema, statistics: Mapping[str, str]) -> DeltaTable:
        try:
            created = DeltaTable.create(
                self._uri(table),
                schema,
                name=table,
                description=self._comments.get(table),
                configuration={**_CONFIGURATION, **statistics},
            )
            self._logs.written(table)
            return created
        except DeltaError as error:
            if self._open(table) is None:
                raise
            raise CommitConflict(f"{table} has just been created") from error

    def _open(self, table: str) -> DeltaTable | None:
        try:
            return DeltaTable(self._uri(table))
        except TableNotFoundError:
            return None

    def _uri(self, table: str) -> str:
        if "%" in self._place:
            raise LedgerError(
                f"tables cannot be kept at {self._place}: delta-rs reads % in a path as an escape;"
                " give the directory another name"
            )
        return self._logs.address(table)

    @contextmanager
    def _in_words(self, table: str) -> Iterator[None]:
        """Raise what delta-rs raises as CommitConflict or LedgerError."""
        try:
            yield
        except (CommitFailedError, FileExistsError) as error:
            raise CommitConflict(f"{table}: {first_line(error)}") from None
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise LedgerError(
                f"the table {table} at {self._place} cannot be used ({first_line(error)}): check"
                f" the place, or {REBUILD}"
            ) from None


def _columns(text: str) -> Schema:
    """Return the columns of a table, all nullable, as they are in Parquet files of Spark."""
    document = json.loads(text)
    for one in document["fields"]:
        one["nullable"] = True
    return Schema.from_json(json.dumps(document))


def _newest(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return max(rows, key=lambda row: int(row["number"]), default={})


def _files_of(table: DeltaTable) -> dict[str, DataFile]:
    stated = _stated(table)
    found = (
        DataFile(
            unquote(row["path"]),
            row["size_bytes"],
            row["num_records"],
            row["modification_time"],
            {name: (row["min"][name], row["max"][name]) for name in stated if _has(row, name)},
        )
        for row in pa.table(table.get_add_actions()).to_pylist()
    )
    return {file.path: file for file in found}


def _has(row: Mapping[str, Any], name: str) -> bool:
    return row["min"].get(name) is not None and row["max"].get(name) is not None


def _statistics_of(text: str) -> Mapping[str, str]:
    """Return the settings of a new table by which its log has bounds of these columns only."""
    columns = json.loads(text)["fields"]
    names = [one["name"] for one in columns if one["name"] in BOUNDED and not one["nullable"]]
    return {_STATED: ",".join(names)} if names else _NO_STATISTICS


def _stated(table: DeltaTable) -> tuple[str, ...]:
    """Return the columns of whose bounds a table's log has all; none in tables of earlier versions.

    Delta-rs 1.6 hides the rows of files with bounds of only some of them (from pyarrow).
    """
    return tuple(filter(None, table.metadata().configuration.get(_STATED, "").split(",")))


def _add(file: DataFile, stated: Sequence[str], is_change: bool = True) -> AddAction:
    bounds = {name: file.bounds.get(name) or BOUNDED[name] for name in stated}
    said = {
        "numRecords": file.rows,
        "minValues": {name: least for name, (least, _) in bounds.items()},
        "maxValues": {name: greatest for name, (_, greatest) in bounds.items()},
    }
    # A day in the form of ISO 8601.
    stats = json.dumps(said, default=str)
    return AddAction(file.path, file.size_bytes, {}, file.modified_ms, is_change, stats)


def _remove(file: DataFile, is_change: bool = True) -> RemoveAction:
    return RemoveAction(file.path, is_change, int(time.time() * 1000), file.size_bytes, {})
