"""Delta tables that change as one: the table `sets` names the versions that belong together.

    <place>/<table>/<batch>-<attempt>/*.parquet    files that Spark wrote
    <place>/<table>/_delta_log/                    the versions of one table
    <place>/sets/                                  a row for each set: a version of every table

A change is made in three steps: Spark writes files under new names, each table gets a version with
them, and `sets` gets a row. Only the row makes it count. A process that dies earlier leaves
versions that no row names; the next version of the table is made from the named one, so it drops
what they added and restores what they removed.

Delta-rs creates each version and each row only if no other process did (`CommitConflict`). All
paths in the tables are relative: they can be moved, copied and mounted elsewhere.

This module knows no Spark. Credentials for a URL come from the environment, as delta-rs reads them.
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.fs as pa_fs  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, CommitProperties, RemoveAction

from twinbus.ledger.record import FILE_SUFFIX, LedgerError

FORMAT: Final = 5
"""Goes up when a reader of today would misread tables of tomorrow. 1 and 2 were no Delta tables, 3
had no labels of primaries, 4 knew the ledger's files by their names only."""

SETS: Final = "sets"

KEEP_H: Final = 24
"""How long files stay that the current set does not name: reports may read them, and a batch that
is being written owns files that no version names yet."""

REBUILD: Final = "rebuild them (twinbus ledger rebuild LEDGER)"
"""What helps where tables are not whole: the ledger's files have all that was in them."""

SET_FILES_MAX: Final = 50
"""Files of `sets`, one for each row, before a row is written with all others as one."""

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
    "set_aside": (pa.string(), "Lines of the ledger that are no record, by reason, as JSON."),
    "gold": (pa.string(), "Digest of the gold tables and their columns."),
    "records_from": (pa.string(), "First day whose records are kept; empty: all are."),
    "fan_out": (pa.bool_(), "Whether a message can have several rows in journeys."),
    "ledger": (pa.string(), "Id of the ledger, or its address; empty: the tables are inside it."),
    _TOOK: (pa.list_(pa.string()), "Files of the ledger that came with the set."),
    _FACTS: (pa.list_(pa.string()), "Size, hash and place in the chain of each of them, as JSON."),
}
"""Type and comment of the columns of `sets` beside the versions."""

_CONFIGURATION: Final = {
    # Delta-rs keeps what the newest version needs; the newest set may name an older one.
    "delta.enableExpiredLogCleanup": "false"
}


class CommitConflict(Exception):
    """Another process has committed first: look at the latest snapshot again."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One set: what the tables are after one commit."""

    number: int = -1
    """Of the set; -1: there is none yet."""
    batch: int = -1
    """The last batch of the ledger's files that is in it."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """By table; none: it has no rows."""
    records: int = 0
    set_aside: Mapping[str, int] = field(default_factory=dict)
    """Lines that are no record, by reason (`bronze.REASONS`)."""
    fan_out: bool = False
    """A message can have several journeys: of the subscriptions that received it, or of records
    that do not name the pair."""
    gold: str = ""
    """The gold tables it has, with their columns, as a digest."""
    records_from: str = ""
    """The first day (ISO 8601) whose records are kept; "": all are (`retention`)."""
    ledger: str = ""
    """The ledger that the tables are of: its id, else its address; "": they are inside it."""
    sum_parts: int = 0
    """Batches whose sums the gold tables have side by side."""
    format: int = FORMAT


@dataclass(frozen=True)
class DataFile:
    """One Parquet file of a table."""

    path: str
    """Relative to the table."""
    size_bytes: int
    rows: int
    modified_ms: int


@dataclass(frozen=True)
class TableChange:
    """What one commit does to the files of a table."""

    added: Sequence[DataFile] = ()
    removed: Sequence[DataFile] = ()


class Lake:
    """The Delta tables at one place."""

    def __init__(
        self, place: str, schemas: Mapping[str, str], comments: Mapping[str, str] | None = None
    ) -> None:
        """`schemas` are the columns of each table as JSON, which Spark and Delta write alike.

        `comments` say what each table is.
        """
        self._place = place.removeprefix("file://").removeprefix("file:")
        self._schemas = schemas
        self._comments = {SETS: "Which versions of the tables belong together.", **(comments or {})}
        self._files: dict[str, tuple[int, tuple[DataFile, ...]]] = {}
        """By table, the version that was asked for last, and its files."""

    def latest(self) -> Snapshot:
        """The newest set; LedgerError where its tables cannot be used."""
        with self._in_words(SETS):
            sets = self._open(SETS)
            if sets is None:
                return Snapshot()
            names = [one.name for one in sets.schema().fields if one.name not in (_TOOK, _FACTS)]
            rows: list[dict[str, Any]] = sets.to_pyarrow_table(columns=names).to_pylist()
        return self._snapshot(_newest(rows)) if rows else Snapshot()

    def taken(self) -> dict[str, int]:
        """The ledger's files whose records are in the tables, by name, and the batch of each."""
        with self._in_words(SETS):
            sets = self._open(SETS)
            if sets is None:
                return {}
            rows = sets.to_pyarrow_table(columns=["batch", _TOOK]).to_pylist()
        taken = {name: row["batch"] for row in rows for name in row[_TOOK]}
        for name in taken:
            # These are files that `compact --remove-raw` deletes: none may lead elsewhere.
            if "/" in name or not name.endswith((FILE_SUFFIX, f"{FILE_SUFFIX}.gz")):
                raise LedgerError(
                    f"the table {SETS} at {self._place} names {name!r}, which is no file of a"
                    f" ledger: {REBUILD}"
                )
        return taken

    def facts(self) -> dict[str, str]:
        """What is known of each of these files, as it was given when it was taken."""
        with self._in_words(SETS):
            sets = self._open(SETS)
            if sets is None:
                return {}
            rows = sets.to_pyarrow_table(columns=[_TOOK, _FACTS]).to_pylist()
        return {
            name: text for row in rows for name, text in zip(row[_TOOK], row[_FACTS], strict=True)
        }

    def files(self, table: str, snapshot: Snapshot) -> tuple[DataFile, ...]:
        """The files that a table has in a snapshot."""
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

    def publish(
        self,
        before: Snapshot,
        after: Snapshot,
        changes: Mapping[str, TableChange],
        took: Mapping[str, str] | None = None,
    ) -> Snapshot:
        """Make `after` follow `before`, at once or not at all; CommitConflict: another one does.

        `took` are files of the ledger whose records come with it, and what is known of each.
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
        """Remove files that no set of the last hours names; 0: only what was just removed."""
        kept = self._kept_sets(int((time.time() - keep_h * 3600) * 1000))
        for table in (*self._schemas, SETS):
            named = {row[f"{table}{_VERSION}"] for row in kept} if table != SETS else set()
            try:
                self._vacuum(table, sorted(named), keep_h)
            except CommitConflict as error:
                if keep_h:
                    continue  # What is old is as old for the next sweep.
                raise LedgerError(
                    f"old files of {table} at {self._place} were not removed, for another process"
                    f" changed the table meanwhile ({error}): try again"
                ) from None

    def _vacuum(self, table: str, versions: list[int], keep_h: int) -> None:
        with self._in_words(table):
            found = self._open(table)
            if found is None:
                return
            found.vacuum(
                retention_hours=keep_h,
                dry_run=False,
                enforce_retention_duration=False,
                # With the files that no version names: remains, and what is being written.
                full=keep_h > 0,
                keep_versions=versions or None,
            )
            if keep_h:
                self._remove_empty_directories(table, keep_h)

    def _advance(self, table: str, before: Snapshot, change: TableChange) -> int:
        """Give a table the files of a snapshot with a change; return the version that has them."""
        with self._in_words(table):
            latest = self._open(table) or self._create(table, _columns(self._schemas[table]))
            now = _files_of(latest)
            wanted = {one.path: one for one in self.files(table, before)}
            for one in change.removed:
                if wanted.pop(one.path, None) is None:
                    raise CommitConflict(f"{table}/{one.path} has been replaced")
            wanted.update((one.path, one) for one in change.added)
            actions: list[AddAction | RemoveAction] = [
                *(_add(one) for path, one in wanted.items() if path not in now),
                *(_remove(one) for path, one in now.items() if path not in wanted),
            ]
            if not actions:
                return latest.version()
            return self._commit(latest, actions)

    def _append(self, committed: Snapshot, before: Snapshot, took: Mapping[str, str]) -> None:
        """Add the row of a set: the one step that makes it count."""
        row = {
            **{one.name: getattr(committed, one.name) for one in fields(Snapshot)},
            **{f"{table}{_VERSION}": version for table, version in committed.versions.items()},
            "at_ms": int(time.time() * 1000),
            "set_aside": json.dumps(dict(committed.set_aside)),
            _TOOK: list(took),
            _FACTS: list(took.values()),
        }
        schema = self._set_schema()
        with self._in_words(SETS):
            sets = self._open(SETS) or self._create(SETS, Schema.from_arrow(schema))
            there = _files_of(sets)
            is_full = len(there) >= SET_FILES_MAX
            rows = sets.to_pyarrow_table(columns=None if is_full else ["number"]).to_pylist()
            if _newest(rows).get("number", -1) != before.number:
                raise CommitConflict(SETS)
            file = self._write_sets([*rows, row] if is_full else [row], schema)
            # After the version that was read, or not at all.
            self._commit(sets, [_add(file), *(map(_remove, there.values()) if is_full else ())])

    def _write_sets(self, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> DataFile:
        """Write rows of `sets` as a file; delta-rs's own writer refuses some names of places."""
        place = pa_fs.PyFileSystem(DeltaStorageHandler(self._uri(SETS)))
        name = f"set-{uuid.uuid4().hex}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema), name, filesystem=place)
        return DataFile(name, place.get_file_info(name).size, len(rows), int(time.time() * 1000))

    @staticmethod
    def _commit(table: DeltaTable, actions: Sequence[AddAction | RemoveAction]) -> int:
        """Make the version after the one that is open; return its number."""
        # Delta-rs would otherwise put it after another process's version if both only add files.
        alone = CommitProperties(max_commit_retries=0)
        table.create_write_transaction(
            list(actions), "append", table.schema(), commit_properties=alone
        )
        return table.version() + 1

    def _snapshot(self, row: Mapping[str, Any]) -> Snapshot:
        if row["format"] > FORMAT:
            raise LedgerError(
                f"the tables at {self._place} were made by a later version of Twinbus (format"
                f" {row['format']}, this one knows {FORMAT}): update Twinbus, or name other ones"
            )
        versions = {
            name.removesuffix(_VERSION): version
            for name, version in row.items()
            if name.endswith(_VERSION)
        }
        known = {one.name: row[one.name] for one in fields(Snapshot) if one.name in row}
        return Snapshot(
            **{**known, "versions": versions, "set_aside": json.loads(row["set_aside"])}
        )

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
        """The sets that were current at a time or after it."""
        sets = self._open(SETS)
        if sets is None:
            return []
        rows = sorted(sets.to_pyarrow_table().to_pylist(), key=lambda row: row["number"])
        ended = sum(row["at_ms"] <= limit_ms for row in rows)
        return rows[max(0, ended - 1) :]

    def _remove_empty_directories(self, table: str, keep_h: int) -> None:
        """Remove what a vacuum leaves of a part on a disk: checksums, and the directory.

        And the files of tasks that were killed: Spark has them in a `_temporary` of the part, and
        delta-rs leaves names with an underscore alone.
        """
        if "://" in self._place:
            return
        limit_s = time.time() - keep_h * 3600
        for part in Path(self._place, table).iterdir():
            is_old = part.is_dir() and part.name != "_delta_log" and part.stat().st_mtime < limit_s
            if is_old and not any(part.glob("*.parquet")):
                shutil.rmtree(part)

    def _create(self, table: str, schema: Schema) -> DeltaTable:
        try:
            return DeltaTable.create(
                self._uri(table),
                schema,
                name=table,
                description=self._comments.get(table),
                configuration=dict(_CONFIGURATION),
            )
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
                f"tables cannot be kept at {self._place}: delta-rs takes % in a path for an escape;"
                " give the directory another name"
            )
        return f"{self._place}/{table}"

    @contextmanager
    def _in_words(self, table: str) -> Iterator[None]:
        """Raise what delta-rs raises as CommitConflict or LedgerError."""
        try:
            yield
        except CommitFailedError as error:
            raise CommitConflict(f"{table}: {_first_line(error)}") from None
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise LedgerError(
                f"the table {table} at {self._place} cannot be used ({_first_line(error)}): look at"
                f" the place, or {REBUILD}"
            ) from None


def _columns(text: str) -> Schema:
    """The columns of a table, all of them nullable: Parquet files say so of every column."""
    told = json.loads(text)
    for one in told["fields"]:
        one["nullable"] = True
    return Schema.from_json(json.dumps(told))


def _newest(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return max(rows, key=lambda row: int(row["number"]), default={})


def _files_of(table: DeltaTable) -> dict[str, DataFile]:
    rows = pa.table(table.get_add_actions()).to_pylist()
    found = (
        DataFile(
            unquote(row["path"]),
            row["size_bytes"],
            row["num_records"],
            row["modification_time"],
        )
        for row in rows
    )
    return {one.path: one for one in found}


def _add(file: DataFile) -> AddAction:
    stats = json.dumps({"numRecords": file.rows})
    return AddAction(file.path, file.size_bytes, {}, file.modified_ms, True, stats)


def _remove(file: DataFile) -> RemoveAction:
    return RemoveAction(file.path, True, int(time.time() * 1000), file.size_bytes, {})


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
