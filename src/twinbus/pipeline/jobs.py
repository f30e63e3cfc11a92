"""The only place where tables are read and worked out: one ledger in, one `Report` out.

Nothing here knows a number that is not in the ledger, the price book or the peek snapshot. A
session is the caller's (`session.spark_session`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from twinbus.cost.arithmetic import CountingRule
from twinbus.pipeline.report import (
    Charge,
    Depth,
    Duplicate,
    Report,
    Sends,
    Sighting,
    StateChange,
)
from twinbus.pipeline.reports.findings import (
    MonthlySum,
    Overview,
    assumed,
    bill,
    charges_by_kind,
    unknown,
)
from twinbus.pipeline.tables.availability import states
from twinbus.pipeline.tables.bronze import read_ledger, reason
from twinbus.pipeline.tables.charges import assumed_receives, charges, counted, monthly
from twinbus.pipeline.tables.conservation import (
    FATES_OF_ACCEPTED,
    backlog_depth,
    duplicates,
    in_backlog,
    sends_by_route,
    witnessed,
)
from twinbus.pipeline.tables.journeys import judged, looked_at, partial_journeys
from twinbus.pipeline.tables.schemas import CORRUPT, SIGHTINGS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from twinbus.cost.prices import PriceBook

__all__ = ["tables"]

IDS_MAX: Final = 100
"""Ids that a report names unless told otherwise: enough to look into, and it stays a report."""

STATES_MAX: Final = 1_000
"""State changes that a report lists: a primary that flaps for a day has fewer."""


def tables(
    spark: SparkSession,
    ledger_directory: Path | str,
    prices: PriceBook,
    *,
    snapshot: Iterable[Sighting] | None = None,
    rule: CountingRule | None = None,
    ids_max: int = IDS_MAX,
) -> Report:
    """What the ledger in a directory (or at a Hadoop URL) says: conservation and charges.

    `snapshot` is what peeks into all backlog queues and their dead-letter queues saw after the
    traffic ended; empty: they saw nothing; None: nobody looked. `ids_max` is how many ids of a
    kind (lost, not received, duplicated) the report names.
    """
    # Judged once: all tables read from these.
    lines = read_ledger(spark, ledger_directory).withColumn("reason", reason()).cache()
    try:
        records = lines.where(F.col("reason").isNull()).drop("reason", CORRUPT)
        table = _Tables(spark, lines, records, snapshot, ids_max)
        return table.report(prices, rule or CountingRule())
    finally:
        lines.unpersist()


class _Tables:
    """The tables of one ledger, each worked out once.

    What is small by then (a row for a second, a month, a window) is sorted here and not by Spark,
    which would run a job more for it.
    """

    def __init__(
        self,
        spark: SparkSession,
        lines: DataFrame,
        records: DataFrame,
        snapshot: Iterable[Sighting] | None,
        ids_max: int,
    ) -> None:
        self._lines = lines
        self._ids_max = ids_max
        self._all = records
        # The broker's own view tells the same operations again.
        self._records = records.where(F.coalesce(F.col("view"), F.lit("client")) == "client")
        self._looked = snapshot is not None
        self._sightings = spark.createDataFrame(list(snapshot or ()), SIGHTINGS)

    def report(self, prices: PriceBook, rule: CountingRule) -> Report:
        seen = self._overview()
        self._fates = self._judge(asks_broker=seen.broker_records > 0).cache()
        try:
            return self._report(seen, prices, rule)
        finally:
            self._fates.unpersist()

    def _judge(self, *, asks_broker: bool) -> DataFrame:
        """Every message with its fate, by all that is known."""
        found = judged(partial_journeys(self._all), fan_out=self._fan_out)
        if asks_broker:
            there = in_backlog(F.col("destination"))
            found = witnessed(found.where(~there), found.where(there), states(self._all))
        return looked_at(found, self._sightings) if self._looked else found

    def _report(self, seen: Overview, prices: PriceBook, rule: CountingRule) -> Report:
        told = self._told()
        sums = self._sums(assume_receives=not seen.receives)
        kinds = charges_by_kind(sums)
        windows = self._duplicate_windows() if seen.receives else {}
        accepted, lost, undecided = told["accepted"], told["lost"], told["undecided"]
        received = told["received_accepted"] if seen.receives else None
        all_came = received in {None, accepted}
        return Report(
            accepted=accepted,
            delivered=told["delivered"],
            received=received,
            not_received=None if received is None else accepted - received,
            not_received_ids=() if all_came else self._ids(~F.col("received")),
            received_unaccepted=told["received"] - told["received_accepted"],
            waiting=told["waiting"] or (0 if self._looked else None),
            dead_lettered=told["dead_lettered"] or (0 if self._looked else None),
            expired=told["expired"] or (None if lost or undecided else 0),
            lost=None if undecided else lost,
            lost_at_least=lost,
            lost_ids=self._ids(F.col("fate") == "lost") if lost else (),
            undecided=undecided,
            duplicates=sum(windows.values()),
            duplicate_windows=windows,
            duplicate_ids=self._duplicate_ids() if windows else (),
            diverted=told["diverted"],
            ambiguous=told["ambiguous"],
            raised=told["raised"],
            charges=kinds,
            operations_by_cause=_recorded_by_cause(kinds),
            bill=bill(sums, prices, rule),
            states=self._states() if seen.states else (),
            drain_began_ms=seen.drain_began_ms,
            drain_ended_ms=seen.drain_ended_ms,
            forwarded=seen.forwards,
            bucket_s=seen.bucket_s,
            sends=self._sends(seen.bucket_s),
            backlog=self._depth(seen.bucket_s) if told["entered"] else (),
            records=seen.records,
            set_aside=seen.lines - seen.records,
            unrecorded=seen.unrecorded,
            unknown=tuple(unknown(seen, told, looked=self._looked)),
            assumed=tuple(assumed(seen, told)),
        )

    def _overview(self) -> Overview:
        record = F.col("reason").isNull()
        client = record & (F.coalesce(F.col("view"), F.lit("client")) == "client")
        operation, at_ms = F.col("operation"), F.col("at_ms")
        ok = client & (F.coalesce(F.col("outcome"), F.lit("ok")) == "ok")
        about_a_message = ok & operation.isin("send", "divert")
        nameless = F.col("message_id").isNull() | F.col("entity").isNull()
        out = ok & (operation == "backlog_receive") & F.col("message_id").isNotNull()
        settled = ok & operation.isin("complete", "dead_letter")
        settled &= F.coalesce(F.col("cause"), F.lit("")) != "consumer"
        at_subscription = F.lower("entity").contains("/subscriptions/")
        row = self._lines.agg(
            F.count_if(ok & (operation == "receive") & at_subscription).alias("fanned"),
            F.count("*").alias("lines"),
            F.count_if(record).alias("records"),
            F.count_if(record & ~client).alias("broker_records"),
            F.coalesce(F.sum(F.when(record, F.col("unrecorded"))), F.lit(0)).alias("unrecorded"),
            F.count_if(about_a_message & nameless).alias("nameless"),
            F.count_if(ok & (operation == "receive")).alias("receives"),
            F.count_if(ok & (operation == "forward")).alias("forwards"),
            F.min(F.when(record, at_ms)).alias("first_ms"),
            F.max(F.when(record, at_ms)).alias("last_ms"),
            F.min(F.when(out, at_ms)).alias("drain_began_ms"),
            F.max(F.when(settled, at_ms)).alias("drain_ended_ms"),
            F.count_if(client & (operation == "state") & F.col("entity").isNotNull()).alias(
                "states"
            ),
        ).collect()[0]
        told = row.asDict()
        self._fan_out = told.pop("fanned") > 0
        return Overview(**told)

    def _told(self) -> dict[str, int]:
        """Counts of messages by what is known of them, and by fate."""
        accepted, received = F.col("accepted"), F.col("received")
        row = self._fates.agg(
            F.count_if(accepted).alias("accepted"),
            F.count_if(received).alias("received"),
            F.count_if(accepted & received).alias("received_accepted"),
            F.count_if(F.col("diverted")).alias("diverted"),
            F.count_if(F.col("ambiguous")).alias("ambiguous"),
            F.count_if(F.col("tried") & ~accepted).alias("raised"),
            F.count_if(F.col("entered_ms").isNotNull()).alias("entered"),
            *(F.count_if(F.col("fate") == fate).alias(fate) for fate in FATES_OF_ACCEPTED),
        ).collect()[0]
        counts: dict[str, int] = row.asDict()
        return counts

    def _ids(self, condition: Column) -> tuple[str, ...]:
        found = self._fates.where(F.col("accepted") & condition).select("message_id")
        return tuple(
            row["message_id"] for row in found.orderBy("message_id").limit(self._ids_max).collect()
        )

    def _sums(self, *, assume_receives: bool) -> list[MonthlySum]:
        """Sums by month: the price of a unit depends on how many its month had."""
        table = counted(charges(self._records))
        if assume_receives:
            table = table.unionAll(assumed_receives(self._fates))
        return [MonthlySum(*row) for row in monthly(table).collect()]

    def _duplicate_windows(self) -> dict[str, int]:
        by_window = duplicates(self._records, self._fates).groupBy("window")
        counted = by_window.agg(F.count_distinct("destination", "message_id").alias("messages"))
        return {row["window"]: row["messages"] for row in sorted(counted.collect())}

    def _duplicate_ids(self) -> tuple[Duplicate, ...]:
        named = duplicates(self._records, self._fates).select(*Duplicate._fields)
        rows = named.orderBy("entity", "message_id").limit(self._ids_max).collect()
        return tuple(Duplicate(*row) for row in rows)

    def _sends(self, bucket_s: int) -> tuple[Sends, ...]:
        rows = sends_by_route(self._records, bucket_s).collect()
        return tuple(sorted(Sends(*row) for row in rows))

    def _depth(self, bucket_s: int) -> tuple[Depth, ...]:
        rows = backlog_depth(self._fates, bucket_s).collect()
        return tuple(sorted(Depth(*row) for row in rows))

    def _states(self) -> tuple[StateChange, ...]:
        changes = self._records.where(
            (F.col("operation") == "state") & F.col("entity").isNotNull()
        ).select("at_ms", "entity", "state", "process")
        rows = changes.orderBy("at_ms").limit(STATES_MAX).collect()
        return tuple(StateChange(*row) for row in rows)


def _recorded_by_cause(kinds: Iterable[Charge]) -> dict[str, int]:
    causes: dict[str, int] = {}
    for kind in kinds:
        if not kind.assumed:
            causes[kind.cause] = causes.get(kind.cause, 0) + kind.operations
    return causes
