"""What the reports are made of: the gold tables of one ledger, and the part of them that is asked.

Rows kept by day answer for whole days, those over time for whole buckets: a window that begins or
ends inside one takes all of it, and the report says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Protocol

from pyspark.sql import functions as F

from twinbus.errors import TwinbusError
from twinbus.pipeline import bronze
from twinbus.pipeline.gold import BUCKET_S, gold_tables
from twinbus.pipeline.journeys import destination_of, judged, partial_journeys
from twinbus.pipeline.notable import NOTABLE
from twinbus.pipeline.reports import Asked, Scope

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "BatchTables",
    "LedgerTables",
    "UnknownEntityError",
    "by_day",
    "by_time",
    "of_entity",
    "require_entity",
    "scope_of",
    "whole_days",
]

NAMES_SHOWN: Final = 5


class UnknownEntityError(TwinbusError):
    """The ledger has no record of an entity that was asked for; the text names some that it has."""


class LedgerTables(Protocol):
    """The gold tables of one ledger, however they came to be."""

    bucket_s: int
    """The width of a point in the tables over time."""

    @property
    def ledger(self) -> str:
        """Where the ledger is."""

    @property
    def set_aside(self) -> Mapping[str, int]:
        """Lines that are no record, by reason."""

    def table(self, name: str) -> DataFrame:
        """One of `gold.gold_tables`, or `notable`."""


class BatchTables:
    """The tables worked out from all records at once. Close it after use."""

    def __init__(
        self, spark: SparkSession, ledger: Path | str, *, bucket_s: int = BUCKET_S
    ) -> None:
        self.ledger = str(ledger)
        self.bucket_s = bucket_s
        # Kept before they are counted: a query of a few columns does not see a damaged line.
        self._lines = bronze.read_ledger(spark, ledger).cache()
        self._records = bronze.records_of(self._lines)
        self._fates = judged(partial_journeys(self._records)).cache()
        self._tables = {table.name: table for table in (*gold_tables(bucket_s), NOTABLE)}
        self._set_aside: dict[str, int] | None = None

    @property
    def set_aside(self) -> Mapping[str, int]:
        """Lines that are no record, by reason."""
        if self._set_aside is None:
            counts = self._lines.agg(*bronze.line_counts()).collect()[0]
            self._set_aside = bronze.set_aside(counts)
        return self._set_aside

    def table(self, name: str) -> DataFrame:
        """One of the gold tables."""
        table = self._tables[name]
        if table.of_records is not None:
            return table.of_records(self._records)
        assert table.of_journeys is not None, name
        return table.of_journeys(self._fates)

    def close(self) -> None:
        """Let go of what Spark keeps."""
        self._fates.unpersist()
        self._lines.unpersist()


def by_day(table: DataFrame, asked: Asked) -> DataFrame:
    """The rows of the days that a window touches; the column is `day`."""
    if asked.first_day is not None:
        table = table.where(F.col("day") >= F.lit(asked.first_day))
    if asked.last_day is not None:
        table = table.where(F.col("day") <= F.lit(asked.last_day))
    return table


def by_time(table: DataFrame, asked: Asked, bucket_s: int, column: str = "at_s") -> DataFrame:
    """The rows of the buckets that a window touches."""
    if asked.since_ms is not None:
        table = table.where((F.col(column) + bucket_s) * 1000 > asked.since_ms)
    if asked.until_ms is not None:
        table = table.where(F.col(column) * 1000 < asked.until_ms)
    return table


def of_entity(table: DataFrame, asked: Asked, column: str = "destination") -> DataFrame:
    """The rows of the entity that is asked for: of a queue, or a topic with its subscriptions."""
    if asked.entity is None:
        return table
    return table.where(destination_of(F.col(column)) == destination_of(F.lit(asked.entity)))


def require_entity(tables: LedgerTables, asked: Asked) -> None:
    """UnknownEntityError where the ledger never speaks of the entity."""
    if asked.entity is None:
        return
    called = tables.table("charges").select(destination_of(F.col("entity")).alias("entity"))
    changed = tables.table("states").select("entity")
    names = called.union(changed).distinct()
    wanted = destination_of(F.lit(asked.entity))
    if names.where(F.col("entity") == wanted).limit(1).collect():
        return
    known = [row["entity"] for row in names.where("entity <> ''").limit(1_000).collect()]
    near = get_close_matches(asked.entity.lower(), known, NAMES_SHOWN) or sorted(known)
    some = ", ".join(near[:NAMES_SHOWN]) or "none"
    raise UnknownEntityError(
        f"the ledger has no record of the entity {asked.entity!r:.100}; it has {some}"
        + (f" and {len(known) - NAMES_SHOWN} more" if len(known) > NAMES_SHOWN == len(near) else "")
    )


def scope_of(tables: LedgerTables, asked: Asked) -> Scope:
    """What the tables say they were made of, inside what was asked."""
    counted = by_day(tables.table("lines"), asked).agg(
        F.coalesce(F.sum("records"), F.lit(0)).alias("records"),
        F.coalesce(F.sum("unrecorded"), F.lit(0)).alias("unrecorded"),
        F.min("day").alias("first"),
        F.max("day").alias("last"),
    )
    traffic = by_time(tables.table("traffic"), asked, tables.bucket_s).select("at_s")
    changes = by_time(
        tables.table("states").select((F.floor(F.col("at_ms") / 1000)).alias("at_s")), asked, 1
    )
    span = traffic.union(changes).agg(F.min("at_s").alias("first_s"), F.max("at_s").alias("last_s"))
    row = counted.crossJoin(span).collect()[0]
    return Scope(
        ledger=tables.ledger,
        since_ms=asked.since_ms,
        until_ms=asked.until_ms,
        entity=asked.entity,
        first_ms=None if row["first_s"] is None else row["first_s"] * 1000,
        last_ms=None if row["last_s"] is None else (row["last_s"] + tables.bucket_s) * 1000,
        records=row["records"],
        set_aside=dict(tables.set_aside),
        unrecorded=row["unrecorded"],
    )


def whole_days(asked: Asked) -> tuple[str, ...]:
    """A sentence where a window does not begin or end at midnight."""
    if asked.is_of_whole_days:
        return ()
    first, last = asked.first_day, asked.last_day
    since = "" if first is None else f" from {first}"
    until = "" if last is None else f" to {last}"
    return (f"kept by day: whole days (UTC) are counted,{since}{until}",)
