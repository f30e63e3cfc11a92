"""Everything that names one message goes: its records, its journey, and its lines in the ledger.

Sums stay, for they name no message. The files that held it are removed at once: a report that
began earlier and still reads them fails, and can be made again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pyspark.sql import functions as F

from twinbus.ledger.record import FILE_SUFFIX, OPEN_SUFFIX, LedgerError
from twinbus.pipeline.store.compaction import (
    COMMIT_TRIES,
    Announce,
    commit_changes,
    latest_of,
    require_same,
    rows_of,
)
from twinbus.pipeline.store.lake import DataFile, Snapshot, TableChange
from twinbus.pipeline.store.layout import BRONZE, JOURNEYS
from twinbus.pipeline.store.store import TableStore, ledger_paths, paths_of
from twinbus.pipeline.tables.gold import NOTABLE

_ORDER: Final = {BRONZE: "at_ms", JOURNEYS: "first_ms", NOTABLE.name: "first_ms"}
"""The tables that name messages, and the column that their files are ordered by."""


@dataclass(frozen=True)
class Erased:
    """What an erasure came to."""

    snapshot: Snapshot
    records: int
    """Rows of `bronze` that are gone."""
    raw_files: int
    """Files of the ledger that were written anew without the message."""


def erase(
    store: TableStore, ledger: str, message_id: str, *, announce: Announce | None = None
) -> Erased:
    """Remove all that names a message; LedgerError where a file that is still written does."""
    say = announce or (lambda line: None)
    records = 0
    for _ in range(COMMIT_TRIES):
        # Another process may replace files meanwhile, so it is done when nothing is found.
        snapshot = latest_of(store)
        say(f"looking for message {message_id} in the tables")
        changes = {
            table: change
            for table in _ORDER
            if (change := _without(store, snapshot, table, message_id)) is not None
        }
        if not changes:
            break
        if commit_changes(store, changes) is not None and BRONZE in changes:
            change = changes[BRONZE]
            records += rows_of(change.removed) - rows_of(change.added)
    else:
        raise LedgerError(
            f"other processes keep committing to the tables at {store.place}: try again when they"
            " are done"
        )
    say(f"looking for message {message_id} in the ledger's files")
    names = _naming(store, ledger, message_id)
    ended = [name for name in names if name.endswith(FILE_SUFFIX)]
    for name in ended:
        kept = _lines_without(store.content_of(ledger, name), message_id)
        store.replace_content(ledger, name, b"\n".join(kept))
    store.sweep(keep_h=0)
    if len(ended) < len(names):
        left = next(name for name in names if name not in ended)
        raise LedgerError(
            f"message {message_id} was erased from the tables and from {len(ended)} files of the"
            f" ledger, but {left} is still being written: close its process, and erase again"
        )
    return Erased(store.latest(), records, len(ended))


def _without(
    store: TableStore, snapshot: Snapshot, table: str, message_id: str
) -> TableChange | None:
    """Write the files that name a message anew without it; None: no file does."""
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
    kept = rows.where(~F.coalesce(is_it, F.lit(False))).sortWithinPartitions(_ORDER[table])
    new: tuple[DataFile, ...] = store.write(kept, table, store.new_part(snapshot.batch))
    going = sum(row["count"] for row in found)
    require_same(rows_of(old) - going, rows_of(new), f"rows of {table}", store)
    return TableChange(new, old)


def _naming(store: TableStore, ledger: str, message_id: str) -> list[str]:
    """The ledger's files in which the id occurs."""
    suffixes = (FILE_SUFFIX, f"{FILE_SUFFIX}{OPEN_SUFFIX}")
    names = sorted(name for name, _ in store.files_at(ledger) if name.endswith(suffixes))
    found = (
        store.session.read.text(ledger_paths(ledger, names))
        .where(F.contains(F.col("value"), F.lit(_written(message_id))))
        .select(F.col("_metadata.file_path").alias("file"))
        .distinct()
        .collect()
    )
    there = {path.rpartition("/")[2] for path in paths_of(row["file"] for row in found)}
    return [name for name in names if name in there]


def _lines_without(content: bytes, message_id: str) -> Iterator[bytes]:
    written = _written(message_id).encode()
    for line in content.split(b"\n"):
        if written not in line or not _names(line, message_id):
            yield line


def _names(line: bytes, message_id: str) -> bool:
    try:
        told = json.loads(line)
    except ValueError:
        return True  # Cut off or damaged, and the id is in it.
    return not isinstance(told, dict) or told.get("message_id") == message_id


def _written(message_id: str) -> str:
    """An id as a line has it: the ledger's files are ASCII."""
    return json.dumps(message_id)[1:-1]
