"""The gold tables as additive sums: what is kept of each batch, so that a report need not read all.

A table has keys and sums. The sums of two lots of records are those of both together, and what a
message added can be taken back: that is all that the store (`store`) has to know of a table.

    records, tallies     counted from the records, or from records that were added up before
                         (`tallies`): each record once, in the batch it came in
    messages, followed   counted from what is known of each message (`journeys`), or of those that
                         have more to tell than that they were sent and received: a batch adds
                         what its messages count for now, and takes back what they counted before

Reports read the sums and nothing else, but for ids: those come from the `notable` messages, kept by
id in an additive table as all others are. Notable is an accepted message that is not delivered, as
far as the ledger tells, and one that is there more than once; and, where a broker keeps a ledger,
what it says of messages in backlog queues. Their number follows what was diverted and what went
wrong, not the traffic. What the broker says (`conservation.witnessed`) and what peeks saw
(`journeys.looked_at`) is put to them when a report is made.
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
"""The width of a point in time of the kept tables: a year of one entity is half a million rows."""

Sums = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True)
class Sources:
    """What one lot of records says, in the forms that tables are counted from."""

    records: DataFrame
    """Valid records, of both views."""
    tallies: DataFrame
    messages: DataFrame
    """One row each, as `journeys.judged` gives them."""
    followed: DataFrame
    """Those of the messages that `is_followed`; all of them give the same tables."""


@dataclass(frozen=True)
class GoldTable:
    """One additive table: rows are told apart by `keys`, every other column is a sum."""

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
        """Whether later records of a message change what it counts for."""
        return self.source in {"messages", "followed"}

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that tell rows apart."""
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
    """The sums of all parts; a row that came to nothing is left out."""
    together = reduce(lambda left, right: left.unionByName(right), parts)
    summed = together.groupBy(*table.keys).agg(*(F.sum(name).alias(name) for name in table.sums))
    something = reduce(lambda left, right: left | right, (F.col(name) != 0 for name in table.sums))
    return summed.where(something).select(*table.schema.fieldNames())


def is_followed() -> Column:
    """Whether a message is in a table of the source `followed`.

    It went by the backlog, its send was raised, its times are in a wrong order, or it is notable.
    """
    raised = F.col("tried") & ~F.col("accepted")
    moved = F.col("entered_ms").isNotNull() | (F.col("forwards") > 0)
    skewed = F.coalesce(F.col("received_ms") < F.col("accepted_ms"), F.lit(False))
    return raised | moved | skewed | _is_notable()


def notable(fates: DataFrame) -> DataFrame:
    """The notable among messages, each once."""
    return fates.where(_is_notable()).withColumn("messages", F.lit(1).cast("long"))


def _is_notable() -> Column:
    missing = F.col("accepted") & (F.col("fate") != journeys.DELIVERED_FATE)
    return missing | conservation.is_duplicate() | conservation.in_backlog(F.col("destination"))


def with_fates(named: DataFrame, states: DataFrame) -> DataFrame:
    """The notable messages, as `schemas.FATES`, after the broker's view of the backlog was read.

    So their fates are better known than in the sums. `states` is the gold table.
    """
    rows, there = (
        named.select(*schemas.FATES.fieldNames()),
        conservation.in_backlog(F.col("destination")),
    )
    return conservation.witnessed(rows.where(~there), rows.where(there), states)


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
