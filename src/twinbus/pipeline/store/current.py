"""The current tables: the committed ones, with the records of files that are still written.

The cost of a report is in proportion to what is new: it takes the files that ended since the last
update (`stream.update`), and processes the tail (`.open` files) like a batch without committing it:
those files still grow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import unquote

from twinbus.ledger.record import OPEN_SUFFIX, LedgerError
from twinbus.pipeline import functions as F
from twinbus.pipeline.core.lines import REASONS
from twinbus.pipeline.functions import NeedsSpark
from twinbus.pipeline.spark.few_rows import FewRows, PlainRow, are_few, brought, few_rows
from twinbus.pipeline.spark.kept_rows import persisted, pinned_lines, release
from twinbus.pipeline.store import expectations
from twinbus.pipeline.store.few_lines import FewLines, may_share, require_small
from twinbus.pipeline.store.increment import (
    ONE_TASK_MAX,
    Increment,
    shared_message_rows,
    totals,
    with_key_hash,
)
from twinbus.pipeline.store.inspection import InspectedLedger, LedgerFolder
from twinbus.pipeline.store.lake import Snapshot
from twinbus.pipeline.store.place_files import PlaceFiles
from twinbus.pipeline.store.store import TableStore
from twinbus.pipeline.store.stream import FEW_BYTES, open_store, taken_files, update
from twinbus.pipeline.tables import bronze
from twinbus.pipeline.tables.conservation import in_backlog, unsent_in_backlog
from twinbus.pipeline.tables.gold import (
    BRONZE,
    BUCKET_S,
    JOURNEYS,
    NOTABLE,
    STATES,
    GoldTable,
    kept_tables,
    summed,
    with_fates,
)
from twinbus.pipeline.tables.journeys import partial_journeys
from twinbus.pipeline.tables.schemas import JOURNEYS as JOURNEY_COLUMNS
from twinbus.pipeline.tables.schemas import LEDGER, day_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRIES: Final = 3
"""Listings of a ledger's open files: one that ends meanwhile could be missed twice."""

_FILE: Final = "file"

_TABLES: Final = {table.name: table for table in kept_tables()}


@contextmanager
def current_tables(
    spark: SparkSession | None,
    ledger: Path | str,
    tables: Path | str | None = None,
    *,
    shared: bool = False,
) -> Iterator[CurrentTables]:
    """Yield the tables of a ledger, up to its last whole line.

    Without Spark this process makes them; NeedsSpark if they, or what is new, are not small.
    `shared`: local paths are directories that all machines of the cluster mount.
    """
    store = open_store(spark, ledger, tables, shared=shared)
    folder = LedgerFolder(ledger)
    for tries_left in reversed(range(TRIES)):
        before = _open_files(ledger)
        if spark is None:
            require_small(before, FEW_BYTES)
        snapshot = update(spark, ledger, tables, shared=shared)
        inspected = folder.inspect(taken_files(store))
        found = {
            name: size
            for name, size in _open_files(ledger).items()
            if name not in inspected.refused
        }
        if tries_left and before.keys() - found.keys() - inspected.refused.keys():
            # Ended before or after the update listed files: the next update has it.
            continue
        tail = _Tail(store, snapshot, ledger, found, inspected) if found else None
        try:
            still_open = _open_files(ledger).keys()
            if tail is None or not tries_left or found.keys() <= still_open:
                _require_read(ledger, tail, still_open)
                if not tries_left:
                    read = found.keys() - (tail.unread if tail else set())
                    known = (before.keys() | found.keys()) - inspected.refused.keys()
                    _require_whole(store, ledger, snapshot, known, read)
                few = snapshot.records <= ONE_TASK_MAX
                by = store.for_few() if few else store
                broken = expectations.broken(store, snapshot)
                inspected = replace(inspected, missing=(*inspected.missing, *broken))
                yield CurrentTables(by, str(ledger), snapshot, tail, inspected)
                return
        finally:
            if tail is not None:
                tail.close()


@dataclass(frozen=True)
class CurrentTables:
    """The tables of a ledger at one time. Their DataFrames end with the `with` block."""

    bucket_s: ClassVar[int] = BUCKET_S
    """The width of a bucket in the tables over time."""

    _store: TableStore
    ledger: str
    _snapshot: Snapshot
    _tail: _Tail | None
    inspected: InspectedLedger
    """The findings about the ledger's files."""
    _few: dict[str, FewRows | None] = field(default_factory=dict)
    """The tables that were asked for (`bring`); None: one of many rows."""

    @property
    def is_small(self) -> bool:
        """Whether one task does what is to be done with all records."""
        return self.records <= ONE_TASK_MAX

    @property
    def records(self) -> int:
        return self._snapshot.records + (self._tail.records if self._tail else 0)

    @property
    def records_from(self) -> date | None:
        """First day whose records are kept; None: all are kept."""
        day = self._snapshot.records_from
        return date.fromisoformat(day) if day else None

    @property
    def rejected(self) -> Mapping[str, int]:
        """Count of rejected lines by reason (`REASONS`); others are left out."""
        counts = Counter(self._snapshot.rejected)
        counts.update(self._tail.rejected if self._tail else {}, torn=self.inspected.torn)
        return +counts

    def bring(self, *names: str) -> None:
        """Bring those of these gold tables that are small to this process.

        It reads the stored rows itself; what open files add to them takes one job.
        """
        stored: dict[str, list[PlainRow]] = {}
        for name in [name for name in names if name not in self._few]:
            files = self._store.lake.files(name, self._snapshot)
            self._few[name] = None
            if are_few(sum(file.rows for file in files)):
                stored[name] = [row for file in files for row in self._store.lake.rows(name, file)]
        if self._tail is not None:
            change_of = self._tail.step.change_of
            added = brought({name: change_of(_TABLES[name]) for name in stored})
            stored = {name: [*stored[name], *few.rows] for name, few in added.items()}
        for name, rows in stored.items():
            table = _TABLES[name]
            self._few[name] = few_rows(
                self._store.session_if_any, table.schema, summed(table, rows)
            )

    def rows(self, name: str) -> Sequence[PlainRow] | None:
        """Return the rows of a gold table that was brought here; None: it was not."""
        few = self._few.get(name)
        return None if few is None else few.rows

    def table(self, name: str) -> DataFrame:
        """Return a gold table by its name in `gold.gold_tables`."""
        few = self._few.get(name)
        return self._total(_TABLES[name]) if few is None else few.frame

    def notable(self) -> DataFrame:
        """Return messages that a report may have to name, as `schemas.FATES`."""
        return with_fates(self.table(NOTABLE.name), self.table(STATES))

    def in_backlog(self) -> DataFrame:
        """Return the broker's records of messages in backlog queues, as `schemas.NOTABLE`."""
        return self.table(NOTABLE.name).where(in_backlog(F.col("destination")))

    def unsent_in_backlog(self) -> DataFrame:
        """Return what only the broker recorded in a backlog queue, and no sender."""
        backlog = self.in_backlog()
        if self.records_from is not None:
            # Retention has removed the clients' journeys of earlier days.
            backlog = backlog.where(day_of(F.col("first_ms")) > F.lit(self.records_from))
        return unsent_in_backlog(backlog, self.journeys())

    def journeys(self) -> DataFrame:
        """Return the facts about all messages, of each batch: several rows can be of a message."""
        kept = self._store.read(JOURNEYS, self._snapshot)
        return kept if self._tail is None else kept.unionByName(self._tail.fresh)

    def every_record(self) -> DataFrame:
        """Return every record, as `schemas.LEDGER`; this reads all of them."""
        records = self._snapshot.records
        store = self._store if records <= ONE_TASK_MAX else self._store.for_many(records)
        stored = store.read(BRONZE, self._snapshot).select(*LEDGER.fieldNames())
        return stored if self._tail is None else stored.unionByName(self._tail.taken)

    def _total(self, table: GoldTable) -> DataFrame:
        change = self._tail.step.change_of(table) if self._tail else None
        return totals(self._store, self._snapshot, table, change)


class _Tail:
    """The change that files still being written make to a snapshot."""

    def __init__(
        self,
        store: TableStore,
        snapshot: Snapshot,
        ledger: Path | str,
        files: Mapping[str, int],
        inspected: InspectedLedger,
    ) -> None:
        if store.session_if_any is None:
            shared, rows = self._read_here(ledger, files)
        else:
            shared, rows = self._read_by_spark(store, ledger, files, inspected)
        self.step = Increment(
            store, snapshot, self.taken, self.fresh, messages=rows, fan_out=shared > 0
        )

    def _read_here(self, ledger: Path | str, files: Mapping[str, int]) -> tuple[int, int]:
        """Read the files; return how many rows of journeys may share messages, and how many are."""
        require_small(files, FEW_BYTES)
        try:
            lines = FewLines(PlaceFiles(str(ledger)), files)
        except LedgerError:
            # One was removed meanwhile: Spark leaves it out.
            raise NeedsSpark from None
        self._lines = self.taken = lines.frame(None)
        self.unread = set[str]()
        self.records = len(lines.records)
        self.rejected = dict(lines.rejected)
        rows = [*lines.journeys.rows()]
        self.fresh = with_key_hash(few_rows(None, JOURNEY_COLUMNS, rows).frame)
        return sum(map(may_share, rows)), len(rows)

    def _read_by_spark(
        self,
        store: TableStore,
        ledger: Path | str,
        files: Mapping[str, int],
        inspected: InspectedLedger,
    ) -> tuple[int, int]:
        few = sum(files.values()) <= FEW_BYTES
        session = store.for_few().session if few else store.session
        # A file that ends now gets another name: the caller lists them again.
        reader = session.read.schema(bronze.LINES).options(
            **bronze.READING, ignoreMissingFiles="true"
        )
        lines = reader.json(bronze.location_of(ledger), pathGlobFilter=bronze.OPEN_FILES)
        lines = bronze.without_files(lines, inspected.refused)
        lines = lines.withColumn(_FILE, F.col("_metadata.file_name"))
        self._lines = pinned_lines(lines.coalesce(1) if few else lines)
        counts = (
            self._lines.withColumn("reason", bronze.reason())
            .agg(*bronze.line_counts(F.col("reason")), F.collect_set(_FILE).alias(_FILE))
            .collect()[0]
        )
        self.unread = {name for name, size in files.items() if size} - set(
            map(unquote, counts[_FILE])
        )
        """Files with lines that Spark did not read."""
        self.records = counts["records"]
        # An incomplete line is still being written: that is normal.
        self.rejected = {why: counts[why] for why in REASONS if counts[why] and why != "torn"}
        self.taken = records = bronze.records_of(self._lines).drop(_FILE)
        few = few and self.records <= ONE_TASK_MAX
        self.fresh = persisted(with_key_hash(partial_journeys(records, one_task=few)))
        seen = self.fresh.agg(
            F.count("*").alias("rows"), shared_message_rows().alias("shared")
        ).collect()[0]
        return seen["shared"], seen["rows"]

    def close(self) -> None:
        self.step.close()
        release((self.fresh, self._lines))


def _require_read(ledger: Path | str, tail: _Tail | None, still_open: Collection[str]) -> None:
    """Raise LedgerError if tasks did not find files that this process sees: Spark skips them."""
    unread = sorted(tail.unread & set(still_open)) if tail else []
    if unread:
        raise LedgerError(
            f"{len(unread):,} of the open files at {ledger} could not be read by Spark's workers"
            f" ({unread[0]}): keep the ledger in a directory that all machines share, or at a URL"
            " that all machines reach"
        )


def _require_whole(
    store: TableStore, ledger: Path | str, snapshot: Snapshot, known: Set[str], read: Set[str]
) -> None:
    """Raise LedgerError if a file that was open is neither in the tables nor in the tail."""
    ended = {name.removesuffix(OPEN_SUFFIX) for name in known - read}
    # An ended file without lines is removed.
    ended &= PlaceFiles(str(ledger)).ledger_files().keys() if ended else set()
    taken = store.lake.taken() if ended else {}
    missed = sorted(name for name in ended if taken.get(name, snapshot.batch + 1) > snapshot.batch)
    if missed:
        raise LedgerError(
            f"{len(missed):,} files of the ledger at {ledger} ended while they were read"
            f" ({missed[0]}), at each of {TRIES} tries: try again"
        )


def _open_files(ledger: Path | str) -> dict[str, int]:
    """Return the sizes of a ledger's open files by name."""
    suffix = bronze.OPEN_FILES.removeprefix("*")
    files = PlaceFiles(str(ledger)).ledger_files()
    return {name: size for name, size in files.items() if name.endswith(suffix)}
