"""The gold tables as additive sums: what is kept of each batch, so that a report need not read all.

A table has keys and sums. The sums of two lots of records are those of both together, and what a
message added can be taken back: that is all that the store (`store`) has to know of a table.

    of_records     counted from the records themselves: each record once, in the batch it came in
    of_journeys    counted from what is known of each message (`journeys`): a batch adds what its
                   messages count for now, and takes back what they counted for before

Reports read the sums and nothing else, but for ids: those come from the `notable` messages.
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
    gold_schemas,
    reconciliation,
    schemas,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

BUCKET_S: Final = 60
"""The width of a point in time of the kept tables: a year of one entity is half a million rows."""

Sums = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True, kw_only=True)
class GoldTable:
    """One additive table: rows are told apart by `keys`, every other column is a sum."""

    name: str
    schema: StructType
    keys: tuple[str, ...]
    of_records: Sums | None = None
    """From valid records (of both views) to rows of the schema."""
    of_journeys: Sums | None = None
    """From messages, one row each as `journeys.judged(.., None)` gives them, to rows."""

    def __post_init__(self) -> None:
        assert (self.of_records is None) != (self.of_journeys is None), self.name
        assert set(self.keys) < set(self.schema.fieldNames()), self.name

    @property
    def sums(self) -> tuple[str, ...]:
        """The columns that are added up."""
        return tuple(name for name in self.schema.fieldNames() if name not in self.keys)


def gold_tables(bucket_s: int = BUCKET_S) -> tuple[GoldTable, ...]:
    """Every table, those over time in points of `bucket_s` seconds."""
    return (
        GoldTable(
            name="charges",
            schema=schemas.CHARGES,
            keys=charges.KEYS,
            of_records=charges.charges,
        ),
        GoldTable(
            name="traffic",
            schema=gold_schemas.TRAFFIC,
            keys=("at_s", "entity"),
            of_records=partial(availability.traffic, bucket_s=bucket_s),
        ),
        GoldTable(
            name="diversions",
            schema=gold_schemas.DIVERSIONS,
            keys=("at_s", "pair", "entity", "process"),
            of_records=partial(availability.diversions, bucket_s=bucket_s),
        ),
        GoldTable(
            name="states",
            schema=gold_schemas.STATES,
            keys=("at_ms", "pair", "entity", "process", "state", "reason"),
            of_records=availability.states,
        ),
        GoldTable(
            name="lines",
            schema=gold_schemas.LINES,
            keys=("day", "view"),
            of_records=conservation.lines,
        ),
        GoldTable(
            name="views",
            schema=gold_schemas.VIEWS,
            keys=("day", "namespace", "place", "operation", "view", "outcome"),
            of_records=reconciliation.views,
        ),
        GoldTable(
            name="fates",
            schema=gold_schemas.FATE_SUMS,
            keys=("day", "destination"),
            of_journeys=conservation.fate_sums,
        ),
        GoldTable(
            name="deliveries",
            schema=gold_schemas.DELIVERIES,
            keys=("day", "destination", "moved"),
            of_journeys=charges.deliveries,
        ),
        GoldTable(
            name="stays",
            schema=gold_schemas.STAYS,
            keys=("destination", "entered_s", "left_s"),
            of_journeys=partial(availability.stays, bucket_s=bucket_s),
        ),
        GoldTable(
            name="raised",
            schema=gold_schemas.RAISED,
            keys=("at_s", "destination"),
            of_journeys=partial(availability.raised, bucket_s=bucket_s),
        ),
        GoldTable(
            name="ages",
            schema=gold_schemas.AGES,
            keys=("destination", "age_s"),
            of_journeys=conservation.ages,
        ),
        GoldTable(
            name="skews",
            schema=gold_schemas.SKEWS,
            keys=("destination", "step", "up_to_ms"),
            of_journeys=conservation.skews,
        ),
    )


def merged(table: GoldTable, parts: Sequence[DataFrame]) -> DataFrame:
    """The sums of all parts; a row that came to nothing is left out."""
    together = reduce(lambda left, right: left.unionByName(right), parts)
    summed = together.groupBy(*table.keys).agg(*(F.sum(name).alias(name) for name in table.sums))
    something = reduce(lambda left, right: left | right, (F.col(name) != 0 for name in table.sums))
    return summed.where(something).select(*table.schema.fieldNames())
