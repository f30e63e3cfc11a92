"""The gold tables: additive sums of each batch, so that a report need not read all records.

A table has keys and sums. Sums of two lots of records can be added, and the share of a message can
be subtracted: the store (`store`) needs to know no more of a table.

    records, tallies     counted from the records, or from their sums (`tallies`): each record
                         once, in its batch
    messages, followed   counted from the facts of each message (`journeys`), or of those that were
                         more than sent and received: a batch adds the current share of its
                         messages, and subtracts their earlier share

Reports read only these sums, and ids from the `notable` messages, which are kept by id in an
additive table too. Notable is an accepted message that is not delivered by the ledger's records, or
that exists more than once; and, with a broker's ledger, its records of messages in backlog queues.
Their number depends on diverted and failed messages, not on the traffic. A report adds the broker's
view (`conservation.with_broker_view`) and the sightings of peeks (`journeys.with_peek`).

At the end: which tables are stored, and their columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Final, Literal

from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from twinbus.pipeline.tables import (
    availability,
    charges,
    conservation,
    journeys,
    reconciliation,
    schemas,
)
from twinbus.pipeline.tables.bronze import STORED_RECORDS
from twinbus.pipeline.tables.comments import commented

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

BUCKET_S: Final = 60
"""Seconds of a bucket in the stored tables: a year of one entity is half a million rows."""

Sums = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True)
class Sources:
    """One lot of records, in the forms that tables are counted from."""

    records: DataFrame
    """Valid records, of both views."""
    tallies: DataFrame
    messages: DataFrame
    """One row each, as `journeys.judged` gives them."""
    followed: DataFrame
    """Those of the messages that `is_followed`; all of them give the same tables."""


@dataclass(frozen=True)
class GoldTable:
    """One additive table: `keys` identify rows, every other column is a sum."""

    name: str
    schema: StructType
    first_sum: str
    """The columns before this one are keys."""
    source: Literal["records", "tallies", "messages", "followed"]
    sums_of: Sums
    """From the rows of the source to rows of the schema."""

    def __post_init__(self) -> None:
        assert self.keys, self.name

    @property
    def is_of_messages(self) -> bool:
        """Whether later records of a message change its share."""
        return self.source in {"messages", "followed"}

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify rows."""
        names = self.schema.fieldNames()
        return tuple(names[: names.index(self.first_sum)])

    @property
    def sums(self) -> tuple[str, ...]:
        """The columns that are added up."""
        return tuple(self.schema.fieldNames()[len(self.keys) :])

    def rows(self, sources: Sources) -> DataFrame:
        """The rows of the schema."""
        return self.sums_of(getattr(sources, self.source))


def gold_tables(bucket_s: int = BUCKET_S) -> tuple[GoldTable, ...]:
    """Every table, those over time in points of `bucket_s` seconds."""

    def over_time(sums: Callable[..., DataFrame]) -> Sums:
        return partial(sums, bucket_s=bucket_s)

    traffic, diversions = over_time(availability.traffic), over_time(availability.diversions)
    stays, raised = over_time(availability.stays), over_time(availability.raised)
    return (
        GoldTable("charges", schemas.CHARGES, "operations", "tallies", charges.charges),
        GoldTable("traffic", schemas.TRAFFIC, "sent", "tallies", traffic),
        GoldTable("diversions", schemas.DIVERSIONS, "diverted", "tallies", diversions),
        GoldTable("states", schemas.STATES, "changes", "records", availability.states),
        GoldTable("lines", schemas.LINES, "records", "tallies", conservation.lines),
        GoldTable("views", schemas.VIEWS, "operations", "tallies", reconciliation.views),
        GoldTable("fates", schemas.FATE_SUMS, "tried", "messages", conservation.fate_sums),
        GoldTable("deliveries", schemas.DELIVERIES, "messages", "messages", charges.deliveries),
        GoldTable("stays", schemas.STAYS, "messages", "followed", stays),
        GoldTable("raised", schemas.RAISED, "messages", "followed", raised),
        GoldTable("ages", schemas.AGES, "messages", "followed", conservation.ages),
        GoldTable("skews", schemas.SKEWS, "messages", "followed", conservation.skews),
    )


def merged(table: GoldTable, parts: Sequence[DataFrame]) -> DataFrame:
    """Return the sums of all parts, without rows whose sums are all 0."""
    together = reduce(lambda left, right: left.unionByName(right), parts)
    summed = together.groupBy(*table.keys).agg(*(F.sum(name).alias(name) for name in table.sums))
    is_not_zero = reduce(
        lambda left, right: left | right, (F.col(name) != 0 for name in table.sums)
    )
    return summed.where(is_not_zero).select(*table.schema.fieldNames())


def is_followed() -> Column:
    """Return whether a message is in a table of the source `followed`.

    It went through the backlog, its send raised, its times are in a wrong order, or it is notable.
    """
    raised = F.col("tried") & ~F.col("accepted")
    moved = F.col("entered_ms").isNotNull() | (F.col("forwards") > 0)
    skewed = F.coalesce(F.col("received_ms") < F.col("accepted_ms"), F.lit(False))
    return raised | moved | skewed | _is_notable()


def notable(fates: DataFrame) -> DataFrame:
    """Return the notable messages, each once."""
    return fates.where(_is_notable()).withColumn("messages", F.lit(1).cast("long"))


def _is_notable() -> Column:
    missing = F.col("accepted") & (F.col("fate") != journeys.DELIVERED_FATE)
    return missing | conservation.is_duplicate() | conservation.in_backlog(F.col("destination"))


def with_fates(named: DataFrame, states: DataFrame) -> DataFrame:
    """Return the notable messages, as `schemas.FATES`, with the broker's view of the backlog.

    So their fates are more precise than in the sums. `states` is the gold table.
    """
    rows, there = (
        named.select(*schemas.FATES.fieldNames()),
        conservation.in_backlog(F.col("destination")),
    )
    return conservation.with_broker_view(rows.where(~there), rows.where(there), states)


NOTABLE: Final = GoldTable("notable", schemas.NOTABLE, "messages", "followed", notable)


TABLES: Final = "_tables"
"""The directory of the tables in that of their ledger, unless another place is named."""

BRONZE: Final = "bronze"
"""Every record."""

JOURNEYS: Final = "journeys"
"""What each batch says of its messages."""

SUMS: Final = "sums"
"""The word for all gold tables together in texts."""

STORED_JOURNEYS: Final = StructType(
    [*schemas.JOURNEYS.fields, StructField("key_hash", LongType(), nullable=False)]
)


def kept_tables() -> tuple[GoldTable, ...]:
    """Every table of sums that is kept, with the messages that can be named."""
    return (*gold_tables(), NOTABLE)


def stored_schemas() -> dict[str, StructType]:
    """The columns of every stored table, by name, each with its comment."""
    gold = {table.name: table.schema for table in kept_tables()}
    stored = {BRONZE: STORED_RECORDS, JOURNEYS: STORED_JOURNEYS, **gold}
    return {name: commented(name, schema) for name, schema in stored.items()}


def signature_of(tables: Sequence[GoldTable]) -> str:
    """A digest of names and columns: tables of other columns cannot be added to."""
    columns = "\n".join(f"{table.name} {table.keys} {table.schema.json()}" for table in tables)
    return hashlib.sha256(columns.encode()).hexdigest()[:16]
