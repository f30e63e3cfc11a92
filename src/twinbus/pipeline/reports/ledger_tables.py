"""The gold tables of one ledger, and the part of them that a report requests.

Tables by day answer for whole days, tables over time for whole buckets. A window that begins or
ends inside one includes all of it, and the report says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twinbus.errors import TwinbusError
from twinbus.pipeline import functions as F
from twinbus.pipeline.core.lines import REASONS
from twinbus.pipeline.functions import NeedsSpark
from twinbus.pipeline.reports.documents import ReportRequest, ReportScope
from twinbus.pipeline.reports.ledger_records import FewRecords, ManyRecords
from twinbus.pipeline.reports.scope import Lines
from twinbus.pipeline.spark.few_rows import FewRows, PlainRow, brought
from twinbus.pipeline.spark.kept_rows import (
    persisted,
    release,
    without_history,
)
from twinbus.pipeline.spark.session import (
    master_of,
    require_shared,
    session_for_few,
    session_for_many,
)
from twinbus.pipeline.store.current import CurrentTables
from twinbus.pipeline.store.few_lines import require_small
from twinbus.pipeline.store.inspection import LedgerFolder
from twinbus.pipeline.store.place_files import PlaceFiles
from twinbus.pipeline.store.store import TableStore
from twinbus.pipeline.store.stream import tables_place
from twinbus.pipeline.tables import bronze
from twinbus.pipeline.tables.conservation import in_backlog, unsent_in_backlog
from twinbus.pipeline.tables.gold import BUCKET_S, NOTABLE, gold_tables, with_fates
from twinbus.pipeline.tables.records import destination_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NAMES_SHOWN: Final = 5
NAMES_MAX: Final = 1_000
"""Entities that are compared with a misspelt name."""

SMALL_BYTES: Final = 20_000_000
"""A ledger of up to this size is read in this process; compiling queries for it takes longer than
it saves."""

LINE_BYTES: Final = 250
"""Approximate size of one record."""


class UnknownEntityError(TwinbusError):
    """The ledger has no record of the requested entity; the text names some that it has."""


class BatchTables:
    """The tables computed from all records, for a ledger that must not be written to."""

    records_from: date | None = None

    def __init__(
        self, spark: SparkSession | None, ledger: Path | str, *, bucket_s: int = BUCKET_S
    ) -> None:
        """Without Spark this process makes them; NeedsSpark if the ledger is not small."""
        self.ledger = str(ledger)
        self.bucket_s = bucket_s
        bronze.location_of(ledger)
        if spark is None:
            # Before they are read for their facts: Spark's turn would read them again.
            require_small(PlaceFiles(self.ledger).ledger_files(), SMALL_BYTES)
        is_only_copy = TableStore(None, tables_place(ledger)).is_only_copy
        self.inspected = LedgerFolder(ledger).inspect({}, removed_unnoted=is_only_copy)
        size_bytes = sum(file.facts.size_bytes for file in self.inspected.files.values())
        self.is_small = size_bytes <= SMALL_BYTES
        self._read: FewRecords | ManyRecords
        if self.is_small:
            few = None if spark is None else session_for_few(spark)
            self._read = FewRecords(few, PlaceFiles(self.ledger), self.inspected, bucket_s)
        elif spark is None:
            raise NeedsSpark
        else:
            many = session_for_many(spark, size_bytes // LINE_BYTES)
            self._read = ManyRecords(many, self.ledger, self.inspected, bucket_s)
        self._sources = self._read.sources
        self._tables = {table.name: table for table in (*gold_tables(bucket_s), NOTABLE)}
        self._kept_tables: dict[str, DataFrame] = {}
        self._few: dict[str, FewRows | None] = {}
        """The tables that were asked for (`bring`); None: one of many rows."""

    @property
    def rejected(self) -> Mapping[str, int]:
        """Count of rejected lines by reason."""
        counts = Counter(self._read.rejected)
        counts["torn"] += self.inspected.torn
        return {why: counts[why] for why in REASONS if counts[why]}

    def bring(self, *names: str, beside: Mapping[str, DataFrame] | None = None) -> None:
        """Bring those of these gold tables that are small to this process, by one job.

        `beside` are frames of few rows by name, which the same job brings.
        """
        new = [name for name in names if name not in self._few]
        wanted = {
            # One of many rows would be computed twice if it were not kept.
            name: self._tables[name].rows(self._sources) if self.is_small else self.table(name)
            for name in new
        }
        wanted |= beside or {}
        self._few |= {**dict.fromkeys(wanted), **brought(wanted)}

    def rows(self, name: str) -> Sequence[PlainRow] | None:
        """Return the rows of a table that was brought here; None: it was not."""
        few = self._few.get(name)
        return None if few is None else few.rows

    def table(self, name: str) -> DataFrame:
        """One of the gold tables, kept: a query may read it several times."""
        if (few := self._few.get(name)) is not None:
            return few.frame
        if name not in self._kept_tables:
            made = self._tables[name].rows(self._sources)
            # Spark plans each query down to the files, also if the rows are in its cache. With a
            # small ledger planning takes most of the time, so a checkpoint cuts the plan.
            kept = without_history if self.is_small else persisted
            self._kept_tables[name] = kept(made)
        return self._kept_tables[name]

    def notable(self) -> DataFrame:
        """Messages that a report may have to name, as `schemas.FATES`."""
        return with_fates(self.table(NOTABLE.name), self.table("states"))

    def in_backlog(self) -> DataFrame:
        """Return the broker's records of messages in backlog queues, as `schemas.NOTABLE`."""
        return self.table(NOTABLE.name).where(in_backlog(F.col("destination")))

    def unsent_in_backlog(self) -> DataFrame:
        """Return what only the broker recorded in a backlog queue, and no sender."""
        return unsent_in_backlog(self.in_backlog(), self.messages())

    def journeys(self) -> DataFrame:
        """Return the facts about all messages, as `schemas.JOURNEYS`."""
        return self._read.journeys()

    def messages(self) -> DataFrame:
        """Every message with its fate, as `schemas.FATES`."""
        return self._sources.messages

    def every_record(self) -> DataFrame:
        """Every record."""
        return self._sources.records

    def close(self) -> None:
        """Let Spark drop the kept rows."""
        release(self._kept_tables.values())
        self._read.close()


LedgerTables = CurrentTables | BatchTables
"""The gold tables of one ledger, stored or computed. DataFrames end when it is closed."""


@contextmanager
def batch_tables(
    spark: SparkSession | None, ledger: Path | str, *, shared: bool = False
) -> Iterator[BatchTables]:
    """The tables computed from all records, for a `with` block.

    `shared`: a local path is a directory that all machines of the cluster mount.
    """
    if spark is not None:
        require_shared(master_of(spark), (ledger,), shared=shared)
    tables = BatchTables(spark, ledger)
    try:
        yield tables
    finally:
        tables.close()


def in_days(day: Column, request: ReportRequest, *, margin_days: int = 0) -> Column:
    """Whether a day is one that the window overlaps, or at most the margin before or after it."""
    condition, margin = F.lit(True), timedelta(days=margin_days)
    if request.first_day is not None:
        condition &= day >= F.lit(request.first_day - margin)
    if request.last_day is not None:
        condition &= day <= F.lit(request.last_day + margin)
    return condition


def by_day(table: DataFrame, request: ReportRequest) -> DataFrame:
    """The rows of the days that the window overlaps; the column is `day`."""
    return table.where(in_days(F.col("day"), request))


def by_time(
    table: DataFrame, request: ReportRequest, bucket_s: int, column: str = "at_s"
) -> DataFrame:
    """The rows of the buckets that the window overlaps."""
    if request.since_ms is not None:
        table = table.where((F.col(column) + bucket_s) * 1000 > request.since_ms)
    if request.until_ms is not None:
        table = table.where(F.col(column) * 1000 < request.until_ms)
    return table


def overlaps(request: ReportRequest, begin_ms: int, end_ms: int) -> bool:
    """Return whether the window overlaps a bucket (`by_time`)."""
    is_after = request.since_ms is None or end_ms > request.since_ms
    return is_after and (request.until_ms is None or begin_ms < request.until_ms)


def of_entity(table: DataFrame, request: ReportRequest, column: str = "destination") -> DataFrame:
    """The rows of the requested entity: a queue, or a topic with its subscriptions."""
    if request.entity is None:
        return table
    return table.where(destination_of(F.col(column)) == destination_of(F.lit(request.entity)))


def require_entity(tables: LedgerTables, request: ReportRequest) -> None:
    """Raise UnknownEntityError if the ledger has no record of the entity."""
    if request.entity is None:
        return
    tables.bring("charges", "states")
    called = tables.table("charges").select(destination_of(F.col("entity")).alias("entity"))
    changed = tables.table("states").select("entity")
    names = called.union(changed).where(F.col("entity") != "").distinct()
    known = sorted(row["entity"] for row in names.limit(NAMES_MAX).collect())
    wanted = request.entity.lower()
    if wanted in known or (
        len(known) == NAMES_MAX
        and names.where(F.col("entity") == destination_of(F.lit(request.entity))).limit(1).collect()
    ):
        return
    near = get_close_matches(wanted, known, NAMES_SHOWN) or known
    known_names = ", ".join(near[:NAMES_SHOWN]) or "none"
    raise UnknownEntityError(
        f"the ledger has no record of the entity {request.entity!r:.100}; it has {known_names}"
        + (" and others" if len(known) > len(near[:NAMES_SHOWN]) else "")
    )


def lines_of(tables: LedgerTables, request: ReportRequest) -> Lines:
    """The counts of the requested days."""
    tables.bring("lines")
    every = tables.rows("lines")
    if every is None:
        # A row for each day and view: not many, however large the ledger is.
        every = [row.asDict() for row in tables.table("lines").collect()]
    first, last = request.first_day or date.min, request.last_day or date.max
    found = [row for row in every if first <= row["day"] <= last]
    return Lines(
        records=sum(row["records"] for row in found),
        nameless=sum(row["nameless"] for row in found),
        unrecorded=sum(row["unrecorded"] for row in found),
        broker_records=sum(row["records"] for row in every if row["view"] == "broker"),
        all_records=sum(row["records"] for row in every),
    )


def scope_of(tables: LedgerTables, request: ReportRequest, lines: Lines) -> ReportScope:
    """The scope of a report: what was requested, and which records are in it."""
    tables.bring("traffic", "states")
    first_ms, last_ms = _first_and_last_ms(tables, request)
    return ReportScope(
        ledger=tables.ledger,
        **vars(request),
        first_ms=first_ms,
        last_ms=last_ms,
        records=lines.records,
        rejected=dict(tables.rejected),
        missing=tables.inspected.missing,
        gaps=tables.inspected.gaps,
        remarks=tables.inspected.remarks,
        records_from=tables.records_from,
        unrecorded=lines.unrecorded,
    )


def _first_and_last_ms(
    tables: LedgerTables, request: ReportRequest
) -> tuple[int | None, int | None]:
    """Return the times of the first and the last record in scope, by the tables over time."""
    step_s, traffic, states = tables.bucket_s, tables.rows("traffic"), tables.rows("states")
    if traffic is not None and states is not None:
        # A change of state has a time, not only a bucket.
        spans = [(row["at_s"] * 1000, (row["at_s"] + step_s) * 1000) for row in traffic]
        found = [span for span in spans if overlaps(request, *span)]
        times = [row["at_ms"] for row in states]
        # Whole seconds, as they are for Spark below.
        found += [
            (at_ms, at_ms)
            for at_ms in times
            if overlaps(request, at_ms // 1000 * 1000, at_ms // 1000 * 1000 + 1000)
        ]
        return min((one for one, _ in found), default=None), max(
            (one for _, one in found), default=None
        )
    at_s = F.col("at_s")
    buckets = by_time(tables.table("traffic"), request, step_s).select(
        (at_s * 1000).alias("first_ms"), ((at_s + step_s) * 1000).alias("last_ms")
    )
    timed = tables.table("states").withColumn("at_s", F.floor(F.col("at_ms") / 1000))
    changes = by_time(timed, request, 1).select(F.col("at_ms"), F.col("at_ms"))
    row = buckets.union(changes).agg(F.min("first_ms"), F.max("last_ms")).collect()[0]
    return row[0], row[1]
