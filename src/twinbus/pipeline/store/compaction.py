"""Many small parts of the tables as few large ones: readers open files, and each costs them time.

A stream writes a part for each batch. Compaction writes the small ones anew as one (records by day
and pair, journeys with all rows of a message merged into one, sums added up), checks that nothing
is missing, and commits a snapshot that names the new part in place of the old ones, kind by kind. A
crash before that leaves the tables as they were, and remains that the next sweep removes; readers
of an earlier snapshot keep their files for `store.KEEP_S`.

The ledger's own files are not needed by anyone once their records are in the tables:
`remove_raw` takes away those that earlier batches than the last one took.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from twinbus.ledger.record import FILE_SUFFIX, LedgerError
from twinbus.pipeline.store.increment import STORED_JOURNEYS, kept_tables, keyed, totals
from twinbus.pipeline.store.raw_files import note_removal, taken_files
from twinbus.pipeline.store.store import (
    BRONZE,
    JOURNEYS,
    SUMS,
    CommitConflict,
    Snapshot,
    TableStore,
)
from twinbus.pipeline.tables.bronze import STORED_RECORDS
from twinbus.pipeline.tables.journeys import merged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LARGE_BYTES: Final = 1 << 30
"""A part of this size is left alone: a record is then written anew only a few times in its life."""

COMMIT_TRIES: Final = 20
"""While a stream commits batches of its own; what was written is still good, so a try is cheap."""

Announce = Callable[[str], None]


@dataclass(frozen=True)
class Replacement:
    """Parts of one kind and what is to stand in their place; no part: they go."""

    kind: str
    old: tuple[str, ...]
    new: str | None
    records_from: str = ""
    """The first day whose records are still there afterwards; "": as before."""


@dataclass(frozen=True)
class Compacted:
    """What compaction came to, by kind of table."""

    snapshot: Snapshot
    parts_before: dict[str, int]
    parts_after: dict[str, int]


def compact(
    store: TableStore, *, announce: Announce | None = None, large_bytes: int = LARGE_BYTES
) -> Compacted:
    """Write the small parts of every kind as one; the tables say the same before and after."""
    say = announce or (lambda line: None)
    before = after = latest_of(store)
    for kind, write in _WRITERS.items():
        small = _small_parts(store, before, kind, large_bytes)
        if len(small) > 1:
            say(f"compacting {len(small)} parts of {kind}")
            part = store.new_part(before.batch)
            write(store, before, small, part)
            # At once: a sweep removes what no commit has named for an hour.
            after = commit_replacement(store, Replacement(kind, small, part))
    store.sweep()
    kinds = list(_WRITERS)
    return Compacted(
        after,
        {kind: len(before.parts_of(kind)) for kind in kinds},
        {kind: len(after.parts_of(kind)) for kind in kinds},
    )


def latest_of(store: TableStore) -> Snapshot:
    """The last snapshot; LedgerError where there is none."""
    snapshot = store.latest()
    if snapshot.number < 0:
        raise LedgerError(
            f"there are no tables at {store.place} yet: make a report, or twinbus ledger update"
            " LEDGER"
        )
    return snapshot


def commit_replacement(store: TableStore, one: Replacement) -> Snapshot:
    """Commit what was written, on top of whatever others have committed meanwhile.

    Where another process has replaced the same parts, it is left as that one made it.
    """
    for _ in range(COMMIT_TRIES):
        latest = latest_of(store)
        there = latest.parts_of(one.kind)
        if not set(one.old) <= set(there):
            return latest
        after = replace(
            latest,
            parts={**latest.parts, one.kind: _replaced(there, one)},
            records_from=max(latest.records_from, one.records_from),
        )
        try:
            return store.commit(latest, after)
        except CommitConflict:
            continue
    raise LedgerError(
        f"other processes keep committing to the tables at {store.place}: nothing was changed; try"
        " again when they are done"
    )


def _replaced(there: Sequence[str], one: Replacement) -> tuple[str, ...]:
    """The parts with the new one where the first of the old ones was."""
    place = there.index(one.old[0])
    rest = [part for part in there if part not in one.old]
    kept_before = sum(part not in one.old for part in there[:place])
    return (*rest[:kept_before], *([one.new] if one.new else []), *rest[kept_before:])


def _small_parts(
    store: TableStore, snapshot: Snapshot, kind: str, large_bytes: int
) -> tuple[str, ...]:
    parts = snapshot.parts_of(kind)
    if kind == SUMS:
        return parts
    return tuple(part for part in parts if store.size_of(kind, part)[1] < large_bytes)


def _write_records(store: TableStore, snapshot: Snapshot, parts: Sequence[str], new: str) -> None:
    records = store.read(BRONZE, parts, STORED_RECORDS)
    require_same(records.count(), write_records(store, records, new), "records", store)


def write_records(store: TableStore, records: DataFrame, part: str) -> int:
    """Write records as few files for each day and pair, in the order of time; return how many."""
    placed = records.hint("rebalance", "day", "pair").sortWithinPartitions("day", "pair", "at_ms")
    return store.write(placed, BRONZE, part, partition_by=("day", "pair"))


def _write_journeys(store: TableStore, snapshot: Snapshot, parts: Sequence[str], new: str) -> None:
    many = store.for_many(snapshot.records)
    rows = many.read(JOURNEYS, parts, STORED_JOURNEYS).drop("key_hash")
    written = write_journeys(store, merged(rows), new)
    keys = ("destination", "message_id", "receiver")
    require_same(rows.select(*keys).distinct().count(), written, "journeys", store)


def write_journeys(store: TableStore, journeys: DataFrame, part: str) -> int:
    """Write merged journeys as files of a few days each, in the order of time; return how many.

    So a look-up for new records, which are mostly about young messages, passes over most files.
    """
    by_day = keyed(journeys).withColumn("day", F.floor(F.col("first_ms") / 86_400_000))
    placed = by_day.hint("rebalance", "day").sortWithinPartitions("first_ms").drop("day")
    return store.write(placed, JOURNEYS, part)


def _write_sums(store: TableStore, snapshot: Snapshot, parts: Sequence[str], new: str) -> None:
    only = replace(snapshot, parts={SUMS: tuple(parts)})
    for table in kept_tables():
        # Few rows each: one file.
        store.write(totals(store, only, table).coalesce(1), f"{SUMS}-{table.name}", new)


_WRITERS: Final = {BRONZE: _write_records, JOURNEYS: _write_journeys, SUMS: _write_sums}


def require_same(before: int, after: int, what: str, store: TableStore) -> None:
    """LedgerError where a part that was written anew is not whole: the old ones stay."""
    if before != after:
        raise LedgerError(
            f"{before:,} {what} at {store.place} were to be written anew and {after:,} were:"
            " nothing was changed; look at the disk, and try again"
        )


def remove_raw(store: TableStore) -> list[str]:
    """Remove the ledger's files that are safely in the tables; returns their addresses.

    Those of the last batch stay: who looks into the directory sees that a ledger is kept there.
    """
    snapshot = latest_of(store)
    going = sorted(
        path
        for path, batch in taken_files(store)
        if batch < snapshot.batch and path.endswith(FILE_SUFFIX)
    )
    # Killed after this, nothing is missing that is not noted.
    note_removal(store, going)
    return [path for path in going if store.remove_raw_file(path)]
