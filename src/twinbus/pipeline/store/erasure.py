"""Erases the id of a message: a random name replaces it everywhere.

Its records, its journey and its lines in the ledger stay, without other fields that could identify
the message. So its fate still counts: a lost message stays lost, an undecided one unknown, and a
rebuild gives the same result. Nothing leads from the new name to the id.

The files that held the id are removed at once: a report that still reads them fails, and can be
made again.
"""

from __future__ import annotations

import gzip
import json
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from pyspark.sql import functions as F

from twinbus.ledger.facts import GZIP_SUFFIX, WriterNote, note_file, stem_of
from twinbus.ledger.files import process_name
from twinbus.ledger.open_file import HOST
from twinbus.ledger.reader import is_readable
from twinbus.ledger.record import OPEN_SUFFIX, LedgerError
from twinbus.pipeline.store.compaction import (
    COMMIT_TRIES,
    Announce,
    commit_changes,
    latest_of,
    require_same,
    rows_of,
)
from twinbus.pipeline.store.increment import with_key_hash
from twinbus.pipeline.store.lake import DataFile, Snapshot, TableChange
from twinbus.pipeline.store.place_files import PlaceFiles
from twinbus.pipeline.store.store import TableStore, ledger_paths, paths_of
from twinbus.pipeline.tables.gold import BRONZE, JOURNEYS, NOTABLE
from twinbus.pipeline.tables.journeys import ERASED, RAN_OUT, is_erased_id

_ORDER: Final = {BRONZE: "at_ms", JOURNEYS: "first_ms", NOTABLE.name: "first_ms"}
"""The tables that name messages, and the column by which their files are ordered."""

_TELLING: Final = ("client", "sequence_number", "trace_id")
"""Fields of a record that identify its message in another system."""

_AT_WORK: Final = "_erasing.json"
"""Holds the id and its new name until the end: an erasure that was killed continues with the same
name, or the records of one message would become those of two."""


@dataclass(frozen=True)
class Erased:
    """The result of an erasure."""

    snapshot: Snapshot
    records: int
    """Rows of `bronze` that named the message."""
    raw_files: int
    """Ledger files that were rewritten."""


def erase(
    store: TableStore, ledger: str, message_id: str, *, announce: Announce | None = None
) -> Erased:
    """Remove the id of a message; LedgerError, and no change, if an open file has it."""
    say = announce or (lambda line: None)
    say(f"looking for message {message_id} in the ledger's files")
    files = PlaceFiles(ledger)
    names = _naming(store, files, message_id)
    still_open = [name for name in names if name.endswith(OPEN_SUFFIX)]
    if still_open:
        raise LedgerError(
            f"message {message_id} was not erased: {still_open[0]} names it and is still being"
            " written; close its process, and erase again"
        )
    new_id = _new_id(files, message_id)
    # The files first: so tables take no more records with the id.
    for name in names:
        before = files.content(name)
        lines = before.split(b"\n")
        after = b"\n".join(_renamed(line, message_id, new_id) for line in lines)
        # The note first: a kill after it leaves no unexplained change.
        _sign_off(files, name, before, after)
        packed = gzip.compress(after) if name.endswith(GZIP_SUFFIX) else after
        files.put(name, packed)
    say(f"looking for message {message_id} in the tables")
    records = _erase_from_tables(store, message_id, new_id)
    store.lake.sweep(keep_h=0)
    files.remove(_AT_WORK)
    return Erased(store.latest(), records, len(names))


def _sign_off(files: PlaceFiles, name: str, before: bytes, after: bytes) -> None:
    """Put a file into the ledger that notes the new hash of another one."""
    at_ms = time.time_ns() // 1_000_000
    note = WriterNote(
        "erased",
        at_ms,
        stem_of(name),
        hash_before=sha256(before).hexdigest(),
        hash_after=sha256(after).hexdigest(),
    )
    files.put(*note_file(process_name("erase"), HOST, at_ms, [note]))


def _new_id(files: PlaceFiles, message_id: str) -> str:
    """Return the name that replaces an id: noted first, and found again after a kill."""
    with suppress(ValueError, KeyError, TypeError):
        found = json.loads(files.text(_AT_WORK))
        if found["message_id"] == message_id and is_erased_id(found["new_id"]):
            return str(found["new_id"])
    new_id = f"{ERASED}{uuid.uuid4().hex}"
    note = json.dumps({"message_id": message_id, "new_id": new_id})
    files.put(_AT_WORK, note.encode())
    return new_id


def _erase_from_tables(store: TableStore, message_id: str, new_id: str) -> int:
    """Rename a message in every table; return how many records it had."""
    records = 0
    for _ in range(COMMIT_TRIES):
        # Another process may replace files meanwhile, so repeat until nothing is found.
        snapshot = latest_of(store)
        found = {
            table: change
            for table in _ORDER
            if (change := _without(store, snapshot, table, message_id, new_id)) is not None
        }
        if not found:
            return records
        if commit_changes(store, {table: change for table, (change, _) in found.items()}):
            records += found[BRONZE][1] if BRONZE in found else 0
    raise LedgerError(
        f"other processes keep committing to the tables at {store.place}: try again when they are"
        " done"
    )


def _without(
    store: TableStore, snapshot: Snapshot, table: str, message_id: str, new_id: str
) -> tuple[TableChange, int] | None:
    """Rewrite the files that name a message, and count its rows; None if no file does."""
    files = {file.path: file for file in store.lake.files(table, snapshot)}
    if not files:
        return None
    is_it = F.col("message_id") == message_id
    many = store.for_many(snapshot.records)
    found = (
        many.read(table, snapshot)
        .where(is_it)
        .groupBy(F.col("_metadata.file_path").alias("file"))
        .count()
        .collect()
    )
    if not found:
        return None
    old = tuple(files[path] for path in paths_of(row["file"] for row in found))
    rows = many.read_files(table, [file.path for file in old])
    changed = {"message_id": F.lit(new_id)}
    if table == BRONZE:
        changed |= {name: F.lit(None).cast(rows.schema[name].dataType) for name in _TELLING}
        changed["error"] = F.when(F.startswith(F.col("error"), F.lit(RAN_OUT)), F.lit(RAN_OUT))
    renamed = rows.withColumns(
        {name: F.when(is_it, value).otherwise(F.col(name)) for name, value in changed.items()}
    )
    if table == JOURNEYS:
        renamed = with_key_hash(renamed)
    placed = renamed.select(*rows.columns).sortWithinPartitions(_ORDER[table])
    new: tuple[DataFile, ...] = store.write(placed, table, store.new_part(snapshot.batch))
    require_same(rows_of(old), rows_of(new), f"rows of {table}", store)
    return TableChange(new, old), sum(row["count"] for row in found)


def _naming(store: TableStore, files: PlaceFiles, message_id: str) -> list[str]:
    """Return the ledger's files that contain the id."""
    names = sorted(filter(is_readable, files.ledger_files()))
    found = (
        store.session.read.text(ledger_paths(files.place, names))
        .where(F.contains(F.col("value"), F.lit(_written(message_id))))
        .select(F.col("_metadata.file_path").alias("file"))
        .distinct()
        .collect()
    )
    there = {path.rpartition("/")[2] for path in paths_of(row["file"] for row in found)}
    return [name for name in names if name in there]


def _renamed(line: bytes, message_id: str, new_id: str) -> bytes:
    """Return a line of the ledger without the id."""
    written = _written(message_id).encode()
    if written not in line:
        return line
    try:
        record = json.loads(line)
    except ValueError:
        # A damaged line stays damaged: it still counts as rejected.
        return line.replace(written, new_id.encode())
    if not isinstance(record, dict) or record.get("message_id") != message_id:
        return line
    record["message_id"] = new_id
    error = str(record.pop("error", ""))
    if error.startswith(RAN_OUT):
        record["error"] = RAN_OUT
    return json.dumps(
        {name: value for name, value in record.items() if name not in _TELLING},
        separators=(",", ":"),
    ).encode()


def _written(message_id: str) -> str:
    """Return an id as it is in a line: the ledger's files are ASCII."""
    return json.dumps(message_id)[1:-1]
