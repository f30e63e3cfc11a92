"""The messages that a report may have to name: kept by id, in an additive table as all others are.

Notable is an accepted message that is not delivered, as far as the ledger tells, and one that is
there more than once; and, where a broker keeps a ledger, what it says of messages in backlog
queues. Their number follows what was diverted and what went wrong, not the traffic. What the broker
says (`conservation.witnessed`) and what peeks saw (`journeys.looked_at`) is put to them when a
report is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from twinbus.pipeline.tables.conservation import in_backlog, is_duplicate, witnessed
from twinbus.pipeline.tables.gold import GoldTable
from twinbus.pipeline.tables.journeys import DELIVERED_FATE
from twinbus.pipeline.tables.schemas import FATES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def notable(fates: DataFrame) -> DataFrame:
    """The notable among messages, each once."""
    missing = F.col("accepted") & (F.col("fate") != DELIVERED_FATE)
    named = fates.where(missing | is_duplicate() | in_backlog(F.col("destination")))
    return named.withColumn("messages", F.lit(1).cast("long"))


def with_fates(named: DataFrame, states: DataFrame) -> DataFrame:
    """The notable messages, as `schemas.FATES`, after the broker's view of the backlog was read.

    So their fates are better known than in the sums. `states` is the gold table.
    """
    rows, there = named.select(*FATES.fieldNames()), in_backlog(F.col("destination"))
    return witnessed(rows.where(~there), rows.where(there), states)


_SCHEMA: Final = StructType([*FATES.fields, StructField("messages", LongType(), nullable=False)])
NOTABLE: Final = GoldTable("notable", _SCHEMA, "messages", of_journeys=notable)
