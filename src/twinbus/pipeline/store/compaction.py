"""Merges many small files of the tables into few large ones: opening a file costs readers time.

A batch writes at least one file to each table. Compaction rewrites the small ones (records by day
and pair, journeys with all rows of a message merged into one, sums added up), checks that nothing
is missing, and commits a set in which the new files replace the old ones, kind by kind. A crash
before that leaves the tables as they were. `update` compacts by itself when it pays (`pays`).

Nothing needs the ledger's own files once their records are in the tables. `remove_raw` removes
those that earlier batches than the last one took. It leaves a note in the ledger before the first
file goes (`ledger.facts`), so that later readers of the files know that there were more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from twinbus.ledger import facts
from twinbus.ledger.record import LedgerError
from twinbus.pipeline.store.increment import totals, with_key_hash
from twinbus.pipeline.store.lake import CommitConflict, DataFile, Snapshot, TableChange
from twinbus.pipeline.store.place_files import PlaceFiles
from twinbus.pipeline.store.quarantine import written
from twinbus.pipeline.store.store import ONLY_COPY, TableStore
from twinbus.pipeline.tables.gold import BRONZE, JOURNEYS, SUMS, kept_tables
from twinbus.pipeline.tables.journeys import MESSAGE, merged
from twinbus.pipeline.tables.quarantine import QUARANTINE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LARGE_BYTES: Final = 1 << 24
"""Files of this size are not rewritten: so a record is rewritten only a few times in its life."""

SMALL_FILES_MAX: Final = 64
"""Small files of a table before an update merges them: opening one takes milliseconds."""

TINY_BYTES: Final = LARGE_BYTES // 4
"""Small files of this average size would not become much fewer."""

COMMIT_TRIES: Final = 20
"""Tries while others commit batches; the written files stay valid, so a try is cheap."""

Announce = Callable[[str], None]
Changes = dict[str, TableChange]


@dataclass(frozen=True)
class Compacted:
    """The result of a compaction: files by kind of table."""

    snapshot: Snapshot
    files_before: dict[str, int]
    files_after: dict[str, int]


def pays(store: TableStore, snapshot: Snapshot) -> bool:
    """Return whether records or journeys have so many small files that readers notice."""
    for table in _WRITERS:
        small = _small(store, snapshot, table)
        mean_bytes = sum(file.size_bytes for file in small) / max(1, len(small))
        if len(small) > SMALL_FILES_MAX and mean_bytes < TINY_BYTES:
            return True
    return False


def compact(store: TableStore, *, announce: Announce | None = None) -> Compacted:
    """Merge the small files of every table; the rows stay the same."""
    say = announce or (lambda line: None)
    before = latest_of(store)
    part = store.new_part(before.batch)
    for table, write in _WRITERS.items():
        small = _small(store, before, table)
        if len(small) > 1:
            say(f"compacting {len(small)} files of {table}")
            new = write(store, before, small, part)
            # Rows of journeys are merged, others stay as they are.
            commit_changes(store, {table: TableChange(new, small, same_rows=table != JOURNEYS)})
    sums = _compacted_sums(store, before, part)
    if sums:
        commit_changes(store, sums, sum_parts=1)
    store.lake.sweep()
    after = store.latest()
    kinds = (files_of_kinds(store, one) for one in (before, after))
    return Compacted(after, *({kind: len(one[kind]) for kind in one} for one in kinds))


def files_of_kinds(store: TableStore, snapshot: Snapshot) -> dict[str, list[DataFile]]:
    """Return the files of records, of journeys, and of all gold tables."""
    kinds = {BRONZE: [BRONZE], JOURNEYS: [JOURNEYS], SUMS: [one.name for one in kept_tables()]}
    return {
        kind: [file for table in tables for file in store.lake.files(table, snapshot)]
        for kind, tables in kinds.items()
    }


def latest_of(store: TableStore) -> Snapshot:
    """Return the last snapshot; LedgerError if there are no tables yet."""
    snapshot = store.latest()
    if snapshot.number < 0:
        raise LedgerError(
            f"there are no tables at {store.place} yet: make a report, or twinbus ledger update"
            " LEDGER"
        )
    return snapshot


def commit_changes(
    store: TableStore,
    changes: Mapping[str, TableChange],
    *,
    records_from: str = "",
    sum_parts: int | None = None,
) -> Snapshot | None:
    """Commit written files on top of what others have committed meanwhile.

    None: another process has replaced the same files; nothing is changed then. `records_from` is
    the first day whose records are kept; "": as before.
    """
    for _ in range(COMMIT_TRIES):
        latest = latest_of(store)
        for table, change in changes.items():
            if not set(change.removed) <= set(store.lake.files(table, latest)):
                return None
        bronze = changes.get(BRONZE, TableChange())
        after = replace(
            latest,
            records=latest.records + rows_of(bronze.added) - rows_of(bronze.removed),
            records_from=max(latest.records_from, records_from),
        )
        if sum_parts is not None:
            after = replace(after, sum_parts=sum_parts)
        try:
            return store.lake.publish(latest, after, changes)
        except CommitConflict:
            continue
    raise busy(store)


def busy(store: TableStore) -> LedgerError:
    """Return the error of a change that other processes keep overtaking."""
    return LedgerError(
        f"other processes keep committing to the tables at {store.place}: try again when they are"
        " done"
    )


def _small(store: TableStore, snapshot: Snapshot, table: str) -> tuple[DataFile, ...]:
    files = store.lake.files(table, snapshot)
    return tuple(file for file in files if file.size_bytes < LARGE_BYTES)


def _write_records(
    store: TableStore, snapshot: Snapshot, files: tuple[DataFile, ...], part: str
) -> tuple[DataFile, ...]:
    records = store.read_files(BRONZE, [file.path for file in files])
    new = write_records(store, records, part)
    require_same(rows_of(files), rows_of(new), "records", store)
    return new


def write_records(store: TableStore, records: DataFrame, part: str) -> tuple[DataFile, ...]:
    """Write records as few files, each of few days and pairs, in the order of time."""
    placed = records.hint("rebalance", "day", "pair").sortWithinPartitions("day", "pair", "at_ms")
    return store.write(placed, BRONZE, part)


def _write_journeys(
    store: TableStore, snapshot: Snapshot, files: tuple[DataFile, ...], part: str
) -> tuple[DataFile, ...]:
    many = store.for_many(snapshot.records)
    rows = many.read_files(JOURNEYS, [file.path for file in files]).drop("key_hash")
    new = write_journeys(store, merged(rows), part)
    keys = (*MESSAGE, "receiver")
    require_same(rows.select(*keys).distinct().count(), rows_of(new), "journeys", store)
    return new


def write_journeys(store: TableStore, journeys: DataFrame, part: str) -> tuple[DataFile, ...]:
    """Write merged journeys as files of a few days each, in the order of time.

    So a look-up for new records, which are mostly about young messages, skips most files.
    """
    by_day = with_key_hash(journeys).withColumn("day", F.floor(F.col("first_ms") / 86_400_000))
    placed = by_day.hint("rebalance", "day").sortWithinPartitions("first_ms").drop("day")
    return store.write(placed, JOURNEYS, part)


def _compacted_sums(store: TableStore, snapshot: Snapshot, part: str) -> Changes:
    changes = {}
    for table in kept_tables():
        old = store.lake.files(table.name, snapshot)
        if len(old) > 1:
            # Few rows, so one file.
            rows = totals(store, snapshot, table).coalesce(1)
            changes[table.name] = TableChange(store.write(rows, table.name, part), old)
    return changes


def _write_lines(
    store: TableStore, snapshot: Snapshot, files: tuple[DataFile, ...], part: str
) -> tuple[DataFile, ...]:
    rows = [row for file in files for row in store.lake.rows(QUARANTINE, file)]
    new = written(store, rows, part)
    require_same(rows_of(files), rows_of(new), "rejected lines", store)
    return new


_WRITERS: Final = {
    BRONZE: _write_records,
    QUARANTINE: _write_lines,
    JOURNEYS: _write_journeys,
}


def rows_of(files: Sequence[DataFile]) -> int:
    return sum(file.rows for file in files)


def require_same(before: int, after: int, what: str, store: TableStore) -> None:
    """Raise LedgerError if rewritten files lack rows: the old files stay."""
    if before != after:
        raise LedgerError(
            f"{before:,} {what} at {store.place} were to be rewritten and {after:,} were:"
            " nothing was changed; check the disk, and try again"
        )


def remove_raw(store: TableStore, ledger: str) -> list[str]:
    """Remove the ledger's files that are safely in the tables; return their names.

    Those of the last batch stay, so that the directory still shows a ledger.
    """
    last = latest_of(store).batch
    going = sorted(name for name, batch in store.lake.taken().items() if batch < last)
    # If the process is killed after this, the note names every missing file.
    note_removal(store, ledger, going)
    files = PlaceFiles(ledger)
    return [name for name in going if files.remove(name)]


def note_removal(store: TableStore, ledger: str, going: Iterable[str]) -> None:
    """Note in the ledger and at the tables which files are about to be removed."""
    names = set(going)
    notes = (facts.noted_files(text) for text in _listed(ledger)[1])
    new = names.difference(*(noted for noted in notes if noted is not None))
    if new:
        PlaceFiles(ledger).put(facts.note_name(), facts.new_note(new).encode())
    if names:
        store.mark_raw_removed()


def require_raw(store: TableStore, ledger: str) -> None:
    """Raise LedgerError if the tables cannot be rebuilt from the ledger's files."""
    is_only_copy = store.is_only_copy
    if not is_only_copy:
        # Other tables of this ledger removed files: these tables may be the last copy.
        removed = facts.missing_files(*_listed(ledger)).removed
        is_only_copy = bool(removed and store.lake.taken().keys() & set(removed))
    if is_only_copy:
        raise LedgerError(
            f"the tables at {store.place} cannot be rebuilt: they are {ONLY_COPY} (compact"
            " --remove-raw)"
        )


def _listed(ledger: str) -> tuple[list[str], list[str]]:
    """Return the names of a ledger's files, and the texts of the notes among them."""
    files = PlaceFiles(ledger)
    names = list(files.ledger_files())
    return names, [files.text(name) for name in names if facts.is_note(name)]
