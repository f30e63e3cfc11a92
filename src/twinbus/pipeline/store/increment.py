"""The change that new records make to the tables: a stream commits it, a report does not.

Tables of records get the sums of the new records. Tables of messages also need the earlier facts of
the messages in the new records. These are looked up in the journeys of all earlier batches: first
in the narrow columns (a hash of the key, and the first time, by which rows are ordered), then in
the files and the span of time that have them. Everything else is in proportion to the new records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.pipeline import functions as F
from twinbus.pipeline.spark.kept_rows import persisted, release, without_history
from twinbus.pipeline.store.lake import Snapshot
from twinbus.pipeline.store.store import TableStore, paths_of
from twinbus.pipeline.tables.gold import BUCKET_S, JOURNEYS, GoldTable, Sources, is_followed
from twinbus.pipeline.tables.gold import merged as merged_sums
from twinbus.pipeline.tables.journeys import MESSAGE_KEY, judged, merged
from twinbus.pipeline.tables.records import may_share_messages, receivers_of, tallied

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BROADCAST_MAX: Final = 1_000_000
"""Messages whose hashes are sent to every task of a look-up (16 MB); for more, Spark decides."""

ONE_TASK_MAX: Final = 50_000
"""Records, or messages, of a step that one task does alone, without compiled code: for fewer,
planning, compiling and distributing take longer than the work itself. An update of 35,000 records
took 26 s of processor time and 15 jobs this way, 31 s and 43 jobs the other way."""


SUM_PARTS_MAX: Final = 16
"""Batches of a gold table that readers sum up; the next batch then merges them."""


def with_key_hash(journeys: DataFrame) -> DataFrame:
    """Return journeys as they are stored."""
    # Two messages with one hash only cost a needless look-up: see `_earlier`.
    return journeys.withColumn("key_hash", F.xxhash64(*MESSAGE_KEY))


def shared_message_rows() -> Column:
    """Return an aggregate over journeys: how many may share their message with other rows."""
    return F.count_if((F.col("receiver") != "") | ~F.col("labelled"))


class Increment:
    """The change that new records make to the tables of a snapshot. Close it after use."""

    def __init__(
        self,
        store: TableStore,
        snapshot: Snapshot,
        records: DataFrame,
        fresh: DataFrame,
        *,
        messages: int,
        fan_out: bool,
    ) -> None:
        """`fresh` are the stored journeys of these records, `messages` their number of rows.

        Both may belong to another session than the store's, which then does the step.
        """
        one_task = messages <= ONE_TASK_MAX
        if one_task:
            records, fresh = records.coalesce(1), fresh.coalesce(1)
        self._kept: list[DataFrame] = []
        tallies = self._keep(tallied(records, bucket_s=BUCKET_S))
        self._records = records, tallies
        plain = fresh.drop("key_hash")
        earlier = _earlier(store, snapshot, fresh, messages)
        if earlier is None:
            # Nothing to merge.
            self._before: Sources | None = None
            messages_now = (
                judged_by(plain, fan_out=fan_out)
                if one_task
                else judged(
                    plain,
                    receivers=receivers_of(tallies),
                    all_labelled=not may_share_messages(tallies),
                )
            )
            followed = messages_now.where(is_followed())
            self._after = self._sources(
                messages_now, followed if one_task else self._keep(followed)
            )
            return
        fan_out |= snapshot.fan_out
        # The session of a union is that of its first part.
        earlier = plain.limit(0).unionByName(earlier)
        old = self._keep(earlier.coalesce(1) if one_task else earlier)
        both = plain.unionByName(old)
        before = merged(old, one_task=one_task)
        after = merged(both.coalesce(1) if one_task else both, one_task=one_task)
        before, after = (self._keep(judged_by(rows, fan_out=fan_out)) for rows in (before, after))
        if one_task:
            # Without this Spark plans them again for each table, which takes longer than the work.
            before, after = without_history(before), without_history(after)
        self._before = self._sources(before, before)
        self._after = self._sources(after, after)

    def change_of(self, table: GoldTable) -> DataFrame:
        """Return the rows that one table gains."""
        now = table.rows(self._after)
        # Later records of a message change its share of a table of messages only.
        if self._before is None or table.source in {"records", "tallies"}:
            return now
        # Not summed here: readers of the table sum all its rows.
        taken_back = [(-F.col(name)).alias(name) for name in table.sums]
        return now.unionByName(table.rows(self._before).select(*table.keys, *taken_back))

    def close(self) -> None:
        """Release the rows that Spark caches for this step."""
        release(self._kept)
        self._kept.clear()

    def _sources(self, messages: DataFrame, followed: DataFrame) -> Sources:
        return Sources(*self._records, messages, followed)

    def _keep(self, frame: DataFrame) -> DataFrame:
        kept = persisted(frame)
        self._kept.append(kept)
        return kept


def judged_by(journeys: DataFrame, *, fan_out: bool) -> DataFrame:
    """Return the messages of merged journeys; `fan_out` as in `Snapshot`."""
    return judged(journeys) if fan_out else judged(journeys, receivers={}, all_labelled=True)


def _earlier(
    store: TableStore, snapshot: Snapshot, fresh: DataFrame, messages: int
) -> DataFrame | None:
    """Return the rows of earlier batches about these messages; None if there are none.

    Rows of another message with the same hash may be among them: they are equal before and after,
    and change nothing.
    """
    if not store.lake.files(JOURNEYS, snapshot):
        return None
    stored = store.read(JOURNEYS, snapshot)
    # A hash twice finds nothing more, and to find them costs a shuffle of all messages.
    wanted = fresh.select("key_hash")
    if store.session_if_any is None:
        there = stored.join(wanted, "key_hash", "left_semi").drop("key_hash")
        return there if there.count() else None
    if messages <= BROADCAST_MAX:
        wanted = F.broadcast(wanted)
    found = (
        stored.select("key_hash", "first_ms", F.col("_metadata.file_path").alias("file"))
        .join(wanted, "key_hash", "left_semi")
        .groupBy("file")
        .agg(F.min("first_ms").alias("first_ms"), F.max("first_ms").alias("last_ms"))
        .collect()
    )
    if not found:
        return None
    begin_ms, end_ms = min(row["first_ms"] for row in found), max(row["last_ms"] for row in found)
    return (
        store.read_files(JOURNEYS, paths_of(row["file"] for row in found))
        .where(F.col("first_ms").between(begin_ms, end_ms))
        .join(wanted, "key_hash", "left_semi")
        .drop("key_hash")
    )


def totals(
    store: TableStore, snapshot: Snapshot, table: GoldTable, change: DataFrame | None = None
) -> DataFrame:
    """Return a table's rows in a snapshot, with a change added to them."""
    if not store.lake.files(table.name, snapshot):
        return store.read(table.name, snapshot) if change is None else merged_sums(table, [change])
    committed = store.read(table.name, snapshot)
    return merged_sums(table, [committed] if change is None else [committed, change])
