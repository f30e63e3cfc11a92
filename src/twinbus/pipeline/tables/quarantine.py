"""Quarantine: rejected lines of ended files, with their file and the reason.

`bronze` counts every rejected line; the table `quarantine` has the first few of each file, with the
beginning of their text, so that a person can find out what is wrong with a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from twinbus.pipeline.core.lines import REASONS
from twinbus.pipeline.tables import bronze
from twinbus.pipeline.tables.schemas import CORRUPT, schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUARANTINE: Final = "quarantine"

TEXT_MAX: Final = 1_000
"""Characters of a rejected line that are kept."""

LINES_MAX: Final = 20
"""Rejected lines of a file that are kept: a damaged file can consist of them."""

FILES_MAX: Final = 500
"""Files of a batch whose rejected lines are kept: a batch keeps at most 10 MB of text."""

QUARANTINED: Final = schema(
    "string: file", "long?: line", "string: reason text", "long: batch taken_ms"
)

_PARSING: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}


def rejected_lines(texts: DataFrame) -> DataFrame:
    """Return `file`, `reason` and `text` of the first rejected lines of each file, in their order.

    `texts` are the lines of files as Spark's reader of text gives them.
    """
    value = F.col("value")
    parsed = texts.select(
        F.col("_metadata.file_name").alias("file"),
        F.substring(value, 1, TEXT_MAX).alias("text"),
        F.monotonically_increasing_id().alias("place"),
        F.from_json(value, bronze.LINES, _PARSING).alias("parsed"),
        # Spark's reader of records skips these.
        (F.trim(value) == "").alias("is_empty"),
    )
    rejected = (
        parsed.where(~F.col("is_empty"))
        .select("file", "text", "place", "parsed.*")
        .select("file", "text", "place", bronze.reason().alias("reason"))
        .where(F.col("reason").isin(*REASONS))
    )
    number = F.row_number().over(Window.partitionBy("file").orderBy("place"))
    first = rejected.withColumn("number", number).where(F.col("number") <= LINES_MAX)
    return (
        first.orderBy("file", "place").limit(FILES_MAX * LINES_MAX).select("file", "reason", "text")
    )
