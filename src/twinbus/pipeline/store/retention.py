"""What is old goes: records and settled journeys. Sums stay, and so do open journeys.

Reports are made from sums, so they say the same before and after, and name the first day whose
records are kept; the one that compares records (reconciliation) calls earlier days unknown. What
is given up is to look into old records again (`rebuild`, an audit of the records themselves), and
to place a record that comes later than all of the kept time: it would begin a journey of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

from pyspark.sql import functions as F

from twinbus.pipeline.store.compaction import (
    Announce,
    Replacement,
    commit_replacement,
    latest_of,
    require_same,
    write_journeys,
    write_records,
)
from twinbus.pipeline.store.increment import STORED_JOURNEYS
from twinbus.pipeline.store.store import BRONZE, JOURNEYS, Snapshot, TableStore
from twinbus.pipeline.tables.bronze import STORED_RECORDS
from twinbus.pipeline.tables.columns import day_of
from twinbus.pipeline.tables.journeys import MESSAGE_KEY, judged, merged

DAYS_MIN: Final = 1
"""Today is always kept: its journeys are still on their way."""


@dataclass(frozen=True)
class Retained:
    """What retention came to."""

    snapshot: Snapshot
    before: date
    """The first day that was kept."""
    records_removed: int
    journeys_removed: int
    journeys_open: int
    """Older than that, and kept: their outcome is not known yet."""


def retain(
    store: TableStore, days: int, *, today: date | None = None, announce: Announce | None = None
) -> Retained:
    """Remove records, and journeys that are settled, of before the last `days` days (UTC)."""
    assert days >= DAYS_MIN
    say = announce or (lambda line: None)
    snapshot = latest_of(store)
    first = (today or datetime.now(UTC).date()) - timedelta(days=days - 1)
    say(f"removing records of before {first}")
    records_removed = _remove_records(store, snapshot, first)
    say(f"removing journeys that were settled before {first}")
    journeys_removed, journeys_open = _remove_journeys(store, snapshot, first)
    store.sweep()
    return Retained(store.latest(), first, records_removed, journeys_removed, journeys_open)


def _remove_records(store: TableStore, snapshot: Snapshot, first: date) -> int:
    """Parts that are old altogether go; one that is old in part is written anew without it."""
    removed = 0
    is_old = F.col("day") < F.lit(first)
    for part in snapshot.parts_of(BRONZE):
        records = store.read(BRONZE, [part], STORED_RECORDS)
        old, kept = records.where(is_old).count(), records.where(~is_old).count()
        if not old:
            continue
        removed += old
        new = None
        if kept:
            new = store.new_part(snapshot.batch)
            written = write_records(store, records.where(~is_old), new)
            require_same(kept, written, "records", store)
        commit_replacement(store, Replacement(BRONZE, (part,), new, first.isoformat()))
    return removed


def _remove_journeys(store: TableStore, snapshot: Snapshot, first: date) -> tuple[int, int]:
    """All are written anew without the settled ones: a message can have rows in every part."""
    parts = snapshot.parts_of(JOURNEYS)
    if not parts:
        return 0, 0
    many = store.for_many(snapshot.records)
    rows = merged(many.read(JOURNEYS, parts, STORED_JOURNEYS).drop("key_hash"))
    messages = judged(rows, fan_out=snapshot.fan_out)
    is_old = day_of(F.col("last_ms")) < F.lit(first)
    # Nothing is awaited any more: it has a fate, or its send failed and was raised.
    is_settled = F.col("fate").isNull() | (F.col("fate") != "undecided")
    counted = messages.agg(
        F.count_if(is_old & is_settled).alias("settled"),
        F.count_if(is_old & ~is_settled).alias("open"),
        F.count("*").alias("all"),
    ).collect()[0]
    settled, still_open = counted["settled"], counted["open"]
    if not settled:
        return 0, still_open
    if settled == counted["all"]:
        commit_replacement(store, Replacement(JOURNEYS, parts, None))
        return settled, 0
    new = store.new_part(snapshot.batch)
    going = messages.where(is_old & is_settled).select(*MESSAGE_KEY)
    write_journeys(store, rows.join(going, list(MESSAGE_KEY), "left_anti"), new)
    left = store.read(JOURNEYS, [new], STORED_JOURNEYS).select(*MESSAGE_KEY)
    written = (left.distinct() if snapshot.fan_out else left).count()
    require_same(counted["all"] - settled, written, "journeys", store)
    commit_replacement(store, Replacement(JOURNEYS, parts, new))
    return settled, still_open
