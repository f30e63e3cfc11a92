"""The gold tables as additive sums: what is kept of each batch, so that a report need not read all.

A table has keys and sums. The sums of two lots of records are those of both together, and what a
message added can be taken back: that is all that the store (`store`) has to know of a table.

    of_records     counted from the records themselves: each record once, in the batch it came in
    of_journeys    counted from what is known of each message (`journeys`): a batch adds what its
                   messages count for now, and takes back what they counted for before

Reports read the sums and nothing else, but for ids: those come from the `notable` messages, kept by
id in an additive table as all others are. Notable is an accepted message that is not delivered, as
far as the ledger tells, and one that is there more than once; and, where a broker keeps a ledger,
what it says of messages in backlog queues. Their number follows what was diverted and what went
wrong, not the traffic. What the broker says (`conservation.witnessed`) and what peeks saw
(`journeys.looked_at`) is put to them when a report is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from twinbus.pipeline.tables import (
    availability,
    charges,
    conservation,
    journeys,
    reconciliation,
    schemas,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

BUCKET_S: Final = 60
"""The width of a point in time of the kept tables: a year of one entity is half a million rows."""

Sums = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True)
class GoldTable:
    """One additive table: rows are told apart by `keys`, every other column is a sum."""

    name: str
    schema: StructType
    first_sum: str
    """The columns before this one are keys."""
    of_records: Sums | None = None
    """From valid records (of both views) to rows of the schema."""
    of_journeys: Sums | None = None
    """From messages, one row each as `journeys.judged(.., None)` gives them, to rows."""

    def __post_init__(self) -> None:
        assert (self.of_records is None) != (self.of_journeys is None), self.name
        assert self.keys, self.name

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that tell rows apart."""
        names = self.schema.fieldNames()
        return tuple(names[: names.index(self.first_sum)])

    @property
    def sums(self) -> tuple[str, ...]:
        """The columns that are added up."""
        return tuple(self.schema.fieldNames()[len(self.keys) :])

    def rows(self, records: DataFrame, journeys: DataFrame) -> DataFrame:
        """The rows of the schema, from whichever of the two the table is counted from."""
        if self.of_records is not None:
            return self.of_records(records)
        assert self.of_journeys is not None, self.name
        return self.of_journeys(journeys)


def gold_tables(bucket_s: int = BUCKET_S) -> tuple[GoldTable, ...]:
    """Every table, those over time in points of `bucket_s` seconds."""

    def over_time(sums: Callable[..., DataFrame]) -> Sums:
        return partial(sums, bucket_s=bucket_s)

    traffic, diversions = over_time(availability.traffic), over_time(availability.diversions)
    stays, raised = over_time(availability.stays), over_time(availability.raised)
    return (
        GoldTable("charges", schemas.CHARGES, "operations", of_records=charges.charges),
        GoldTable("traffic", schemas.TRAFFIC, "sent", of_records=traffic),
        GoldTable("diversions", schemas.DIVERSIONS, "diverted", of_records=diversions),
        GoldTable("states", schemas.STATES, "changes", of_records=availability.states),
        GoldTable("lines", schemas.LINES, "records", of_records=conservation.lines),
        GoldTable("views", schemas.VIEWS, "operations", of_records=reconciliation.views),
        GoldTable("fates", schemas.FATE_SUMS, "tried", of_journeys=conservation.fate_sums),
        GoldTable("deliveries", schemas.DELIVERIES, "messages", of_journeys=charges.deliveries),
        GoldTable("stays", schemas.STAYS, "messages", of_journeys=stays),
        GoldTable("raised", schemas.RAISED, "messages", of_journeys=raised),
        GoldTable("ages", schemas.AGES, "messages", of_journeys=conservation.ages),
        GoldTable("skews", schemas.SKEWS, "messages", of_journeys=conservation.skews),
    )


def merged(table: GoldTable, parts: Sequence[DataFrame]) -> DataFrame:
    """The sums of all parts; a row that came to nothing is left out."""
    together = reduce(lambda left, right: left.unionByName(right), parts)
    summed = together.groupBy(*table.keys).agg(*(F.sum(name).alias(name) for name in table.sums))
    something = reduce(lambda left, right: left | right, (F.col(name) != 0 for name in table.sums))
    return summed.where(something).select(*table.schema.fieldNames())


def notable(fates: DataFrame) -> DataFrame:
    """The notable among messages, each once."""
    missing = F.col("accepted") & (F.col("fate") != journeys.DELIVERED_FATE)
    named = fates.where(
        missing | conservation.is_duplicate() | conservation.in_backlog(F.col("destination"))
    )
    return named.withColumn("messages", F.lit(1).cast("long"))


def with_fates(named: DataFrame, states: DataFrame) -> DataFrame:
    """The notable messages, as `schemas.FATES`, after the broker's view of the backlog was read.

    So their fates are better known than in the sums. `states` is the gold table.
    """
    rows, there = (
        named.select(*schemas.FATES.fieldNames()),
        conservation.in_backlog(F.col("destination")),
    )
    return conservation.witnessed(rows.where(~there), rows.where(there), states)


NOTABLE: Final = GoldTable("notable", schemas.NOTABLE, "messages", of_journeys=notable)
