"""Many small files of the tables as few large ones: readers open files, and each costs them time.

A batch writes at least one file to each table. Compaction writes the small ones anew (records by
day and pair, journeys with all rows of a message merged into one, sums added up), checks that
nothing is missing, and commits a set in which the new files replace the old ones, kind by kind. A
crash before that leaves the tables as they were. `update` compacts by itself when it pays (`pays`).

The ledger's own files are not needed by anyone once their records are in the tables:
`remove_raw` takes away those that earlier batches than the last one took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from twinbus.ledger import missing
from twinbus.ledger.record import LedgerError
from twinbus.pipeline.store.increment import keyed, totals
from twinbus.pipeline.store.lake import CommitConflict, DataFile, Snapshot, TableChange
from twinbus.pipeline.store.store import ONLY_COPY, TableStore
from twinbus.pipeline.tables.gold import BRONZE, JOURNEYS, SUMS, kept_tables
from twinbus.pipeline.tables.journeys import MESSAGE, merged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LARGE_BYTES: Final = 1 << 24
"""A file of this size is left alone: a record is then written anew only a few times in its life."""

SMALL_FILES_MAX: Final = 64
"""Small files of a table before an update writes them anew: to open one takes milliseconds."""

TINY_BYTES: Final = LARGE_BYTES // 4
"""Small files that have this size on average would not become much fewer."""

COMMIT_TRIES: Final = 20
"""While others commit batches of their own; what was written is still good, so a try is cheap."""

Announce = Callable[[str], None]
Changes = dict[str, TableChange]


@dataclass(frozen=True)
class Compacted:
    """What compaction came to: files by kind of table."""

    snapshot: Snapshot
    files_before: dict[str, int]
    files_after: dict[str, int]


def pays(store: TableStore, snapshot: Snapshot) -> bool:
    """Whether a table of records or journeys has so many small files that readers notice."""
    for table in _WRITERS:
        small = _small(store, snapshot, table)
        mean_bytes = sum(file.size_bytes for file in small) / max(1, len(small))
        if len(small) > SMALL_FILES_MAX and mean_bytes < TINY_BYTES:
            return True
    return False


def compact(store: TableStore, *, announce: Announce | None = None) -> Compacted:
    """Write the small files of every table as few; the tables say the same before and after."""
    say = announce or (lambda line: None)
    before = latest_of(store)
    part = store.new_part(before.batch)
    for table, write in _WRITERS.items():
        small = _small(store, before, table)
        if len(small) > 1:
            say(f"compacting {len(small)} files of {table}")
            new = write(store, before, small, part)
            commit_changes(store, {table: TableChange(new, small)})
    sums = _compacted_sums(store, before, part)
    if sums:
        commit_changes(store, sums, sum_parts=1)
    store.sweep()
    after = store.latest()
    return Compacted(after, files_by_kind(store, before), files_by_kind(store, after))


def files_by_kind(store: TableStore, snapshot: Snapshot) -> dict[str, int]:
    """How many files there are of records, of journeys, and of all gold tables."""
    return {kind: len(files) for kind, files in files_of_kinds(store, snapshot).items()}


def files_of_kinds(store: TableStore, snapshot: Snapshot) -> dict[str, list[DataFile]]:
    """The files of records, of journeys, and of all gold tables."""
    kinds = {BRONZE: [BRONZE], JOURNEYS: [JOURNEYS], SUMS: [one.name for one in kept_tables()]}
    return {
        kind: [file for table in tables for file in store.lake.files(table, snapshot)]
        for kind, tables in kinds.items()
    }


def latest_of(store: TableStore) -> Snapshot:
    """The last snapshot; LedgerError where there is none."""
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
    """Commit what was written, on top of whatever others have committed meanwhile.

    None: another process has replaced the same files, and all is left as that one made it.
    `records_from` is the first day whose records are still there afterwards; "": as before.
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
            return store.commit(latest, after, changes)
        except CommitConflict:
            continue
    raise LedgerError(
        f"other processes keep committing to the tables at {store.place}: nothing was changed; try"
        " again when they are done"
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

    So a look-up for new records, which are mostly about young messages, passes over most files.
    """
    by_day = keyed(journeys).withColumn("day", F.floor(F.col("first_ms") / 86_400_000))
    placed = by_day.hint("rebalance", "day").sortWithinPartitions("first_ms").drop("day")
    return store.write(placed, JOURNEYS, part)


def _compacted_sums(store: TableStore, snapshot: Snapshot, part: str) -> Changes:
    changes = {}
    for table in kept_tables():
        old = store.lake.files(table.name, snapshot)
        if len(old) > 1:
            # Few rows each: one file.
            rows = totals(store, snapshot, table).coalesce(1)
            changes[table.name] = TableChange(store.write(rows, table.name, part), old)
    return changes


_WRITERS: Final = {BRONZE: _write_records, JOURNEYS: _write_journeys}


def rows_of(files: Sequence[DataFile]) -> int:
    """How many rows are in these files."""
    return sum(file.rows for file in files)


def require_same(before: int, after: int, what: str, store: TableStore) -> None:
    """LedgerError where what was written anew is not whole: the old files stay."""
    if before != after:
        raise LedgerError(
            f"{before:,} {what} at {store.place} were to be written anew and {after:,} were:"
            " nothing was changed; look at the disk, and try again"
        )


def remove_raw(store: TableStore, ledger: str) -> list[str]:
    """Remove the ledger's files that are safely in the tables; returns their names.

    Those of the last batch stay: who looks into the directory sees that a ledger is kept there.
    """
    last = latest_of(store).batch
    going = sorted(name for name, batch in store.lake.taken().items() if batch < last)
    # Killed after this, nothing is missing that is not noted.
    note_removal(store, ledger, going)
    return [name for name in going if store.remove_raw_file(ledger, name)]


def note_removal(store: TableStore, ledger: str, going: Iterable[str]) -> None:
    """Note which files of a ledger are about to be removed: in the ledger, and at the tables."""
    names = set(going)
    notes = (missing.noted_files(text) for text in _listed(store, ledger)[1])
    new = names.difference(*(noted for noted in notes if noted is not None))
    if new:
        store.put_text(ledger, missing.note_name(), missing.new_note(new))
    if names:
        store.mark_raw_removed()


def require_raw(store: TableStore, ledger: str) -> None:
    """LedgerError where the ledger's files cannot make the tables again."""
    is_only_copy = store.is_only_copy
    if not is_only_copy:
        # With other tables of this ledger: these are a copy that may be the last.
        removed = missing.missing_files(*_listed(store, ledger)).removed
        is_only_copy = bool(removed and store.lake.taken().keys() & set(removed))
    if is_only_copy:
        raise LedgerError(
            f"the tables at {store.place} cannot be rebuilt: they are {ONLY_COPY} (compact"
            " --remove-raw); the version of Twinbus that made them reads them"
        )


def _listed(store: TableStore, place: str) -> tuple[list[str], list[str]]:
    """The names of a ledger's files, and the texts of the notes among them."""
    names = [name for name, _ in store.files_at(place)]
    return names, [store.text_at(place, name) for name in names if missing.is_note(name)]
