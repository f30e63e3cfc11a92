"""Sessions that suit a number of rows: Spark's settings for very few and for very many.

Both are sessions beside the given one, of the same application: what is read by them is worked on
with their settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_A_PARTITION: Final = 2_000_000
"""Of records, so that a task has what it adds up in its memory. Larger ones are sorted on disk: an
audit of a hundred million records in 4 partitions took 235 s and 4.8 GB, in 32 134 s and 2.4 GB."""

_FOR_FEW: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
}
"""For a step of some thousand rows Spark would take most of its time to compile and to plan."""

_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_PARTITIONS_AT_FIRST: Final = "spark.sql.adaptive.coalescePartitions.initialPartitionNum"
"""Before Spark joins those that turn out to be small."""


def session_for_few(spark: SparkSession) -> SparkSession:
    """A session for some thousand rows: nothing is compiled for them."""
    return _with(spark, _FOR_FEW)


def session_for_many(spark: SparkSession, rows: int) -> SparkSession:
    """A session for so many rows, which may be the given one."""
    wanted = -(-rows // ROWS_A_PARTITION)
    if wanted <= int(spark.conf.get(_PARTITIONS) or 0):
        return spark
    return _with(spark, {_PARTITIONS_AT_FIRST: str(wanted)})


def _with(spark: SparkSession, settings: dict[str, str]) -> SparkSession:
    session = spark.newSession()
    for name, value in settings.items():
        session.conf.set(name, value)
    return session
