"""Removes old records and old settled journeys. Sums and open journeys stay.

Reports are made from sums, so their figures stay the same, and they name the first day whose
records are kept. Only reconciliation, which compares records, calls earlier days unknown. Lost are
the ways back to old records (`rebuild`, an audit of the records themselves) and the journey of a
record that arrives later than the kept time: such a record begins a journey of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final, TypeVar

from pyspark.sql import functions as F

from twinbus.ledger.record import LedgerError
from twinbus.pipeline.store.compaction import (
    COMMIT_TRIES,
    Announce,
    commit_changes,
    latest_of,
    require_same,
    rows_of,
    write_journeys,
    write_records,
)
from twinbus.pipeline.store.increment import judged_by
from twinbus.pipeline.store.lake import DataFile, Snapshot, TableChange
from twinbus.pipeline.store.store import TableStore, paths_of
from twinbus.pipeline.tables.gold import BRONZE, JOURNEYS
from twinbus.pipeline.tables.journeys import MESSAGE_KEY, merged
from twinbus.pipeline.tables.schemas import day_of

T = TypeVar("T")

DAYS_MIN: Final = 1
"""Today is always kept: its journeys are not complete."""


@dataclass(frozen=True)
class Retained:
    """The result of a retention."""

    snapshot: Snapshot
    before: date
    """The first day that was kept."""
    records_removed: int
    journeys_removed: int
    journeys_open: int
    """Older journeys that are kept because their outcome is not known yet."""


def retain(
    store: TableStore, days: int, *, today: date | None = None, announce: Announce | None = None
) -> Retained:
    """Remove records and settled journeys from before the last `days` days (UTC)."""
    assert days >= DAYS_MIN
    say = announce or (lambda line: None)
    first = (today or datetime.now(UTC).date()) - timedelta(days=days - 1)
    say(f"removing records of before {first}")
    records_removed = _committed(store, lambda latest: _remove_records(store, latest, first))
    say(f"removing journeys that were settled before {first}")
    journeys_removed, journeys_open = _committed(
        store, lambda latest: _remove_journeys(store, latest, first)
    )
    store.lake.sweep()
    return Retained(store.latest(), first, records_removed, journeys_removed, journeys_open)


def _committed(store: TableStore, remove: Callable[[Snapshot], T | None]) -> T:
    """Repeat a step until it is committed: a compaction may replace its files meanwhile."""
    for _ in range(COMMIT_TRIES):
        done = remove(latest_of(store))
        if done is not None:
            return done
    raise LedgerError(
        f"other processes keep committing to the tables at {store.place}: try again when they are"
        " done"
    )


def _remove_records(store: TableStore, snapshot: Snapshot, first: date) -> int | None:
    """Delete files that hold only old records; rewrite the others without them.

    None, here and below: another process has replaced the files.
    """
    if not store.lake.files(BRONZE, snapshot):
        return 0
    is_old = F.col("day") < F.lit(first)
    counts = (
        store.read(BRONZE, snapshot)
        .groupBy(F.col("_metadata.file_path").alias("file"))
        .agg(F.count_if(is_old).alias("old"), F.count_if(~is_old).alias("kept"))
        .where("old > 0")
        .collect()
    )
    if not counts:
        return 0
    touched = files_at(store, BRONZE, snapshot, (row["file"] for row in counts))
    kept, new = sum(row["kept"] for row in counts), tuple[DataFile, ...]()
    if kept:
        mixed = paths_of(row["file"] for row in counts if row["kept"])
        records = store.read_files(BRONZE, mixed).where(~is_old)
        new = write_records(store, records, store.new_part(snapshot.batch))
        require_same(kept, rows_of(new), "records", store)
    changes = {BRONZE: TableChange(new, touched)}
    if commit_changes(store, changes, records_from=first.isoformat()) is None:
        return None
    removed: int = sum(row["old"] for row in counts)
    return removed


def files_at(
    store: TableStore, table: str, snapshot: Snapshot, addresses: Iterable[str]
) -> tuple[DataFile, ...]:
    """Return the files of a table with these addresses of Spark's."""
    paths = set(paths_of(addresses))
    return tuple(file for file in store.lake.files(table, snapshot) if file.path in paths)


def _remove_journeys(store: TableStore, snapshot: Snapshot, first: date) -> tuple[int, int] | None:
    """Rewrite all journeys without the settled ones: a message can have rows in every file."""
    old = store.lake.files(JOURNEYS, snapshot)
    if not old:
        return 0, 0
    many = store.for_many(snapshot.records)
    rows = merged(many.read(JOURNEYS, snapshot).drop("key_hash"))
    is_old = day_of(F.col("last_ms")) < F.lit(first)
    # Nothing more is expected: the message has a fate, or its send raised.
    is_settled = F.col("fate").isNull() | (F.col("fate") != "undecided")
    # Messages of one id in several pairs go together: a row may not name its pair.
    messages = (
        judged_by(rows, fan_out=snapshot.fan_out)
        .groupBy(*MESSAGE_KEY)
        .agg(
            F.bool_and(is_old & is_settled).alias("settled"),
            F.bool_or(is_old & ~is_settled).alias("open"),
        )
    )
    counted = messages.agg(
        F.count_if("settled").alias("settled"),
        F.count_if("open").alias("open"),
        F.count("*").alias("all"),
    ).collect()[0]
    settled, still_open = counted["settled"], counted["open"]
    if not settled:
        return 0, still_open
    new = tuple[DataFile, ...]()
    if settled < counted["all"]:
        going = messages.where("settled").select(*MESSAGE_KEY)
        left = rows.join(going, list(MESSAGE_KEY), "left_anti")
        new = write_journeys(store, left, store.new_part(snapshot.batch))
        written = store.read_files(JOURNEYS, [file.path for file in new]).select(*MESSAGE_KEY)
        count = written.distinct().count()
        require_same(counted["all"] - settled, count, "journeys", store)
    if commit_changes(store, {JOURNEYS: TableChange(new, old)}) is None:
        return None
    return settled, still_open
