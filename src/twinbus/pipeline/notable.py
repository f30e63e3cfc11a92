"""The messages that a report may have to name: kept by id, in an additive table as all others are.

Notable is an accepted message that is not delivered, as far as the ledger tells, and one that an
entity received more than once. Their number follows the backlog and what went wrong, not the
traffic. What peeks saw is put to them when a report is made (`journeys.looked_at`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from twinbus.pipeline.gold import GoldTable
from twinbus.pipeline.journeys import DELIVERED_FATE
from twinbus.pipeline.schemas import FATES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["NOTABLE", "notable"]


def notable(fates: DataFrame) -> DataFrame:
    """The notable among messages, each once."""
    missing = F.col("accepted") & (F.col("fate") != DELIVERED_FATE)
    return fates.where(missing | (F.col("repeats") > 0)).withColumn(
        "messages", F.lit(1).cast("long")
    )


NOTABLE: Final = GoldTable(
    name="notable",
    schema=StructType([*FATES.fields, StructField("messages", LongType(), nullable=False)]),
    keys=tuple(FATES.fieldNames()),
    of_journeys=notable,
)
