"""What `classic` does with a SparkContext, over Spark Connect, which has none.

Importing this module does not import pyspark.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger("twinbus.pipeline")

_MANY: Final = 1 << 16
"""Rows that Spark divides among all of its slots."""


def slots(spark: SparkSession) -> int:
    """Return how many tasks can run at once: Spark makes as many tasks of a range."""
    from pyspark.sql import functions as F

    return spark.range(_MANY).select(F.spark_partition_id()).distinct().count()


def one_task_each(
    spark: SparkSession, rows: Sequence[tuple[Any, ...]], schema: StructType
) -> DataFrame:
    """Return a DataFrame in which each row is a task of its own."""
    from pyspark.sql import functions as F

    each = spark.range(0, len(rows), 1, numPartitions=len(rows))
    columns = (
        F.element_at(F.array(*(F.lit(row[at]) for row in rows)), (F.col("id") + 1).cast("int"))
        .cast(field.dataType)
        .alias(field.name)
        for at, field in enumerate(schema)
    )
    return each.select(*columns)


def ship(spark: SparkSession, archive: str) -> None:
    """Ship an archive of Python modules to the tasks of a session, where the platform lets it."""
    try:
        spark.addArtifacts(archive, pyfile=True)
    except Exception as error:  # noqa: BLE001 - the package may be installed there
        log.info("the executors need twinbus installed, shipping it failed: %s", error)


class ConnectJobs:
    """The jobs of one thread, by a tag, and their progress as the server reports it."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        self._spark: Any = spark
        self._tag = tag
        self._thread: int | None = None
        self._tasks = 0, 0

    @contextlib.contextmanager
    def marking(self) -> Iterator[None]:
        self._thread = threading.get_ident()
        self._spark.addTag(self._tag)
        self._spark.registerProgressHandler(self._progressed)
        try:
            yield
        finally:
            self._spark.removeProgressHandler(self._progressed)
            self._spark.removeTag(self._tag)

    def cancel(self) -> None:
        self._spark.interruptTag(self._tag)

    def tasks(self) -> tuple[int, int]:
        """Return how many tasks run, and how many wait for a slot."""
        return self._tasks

    def _progressed(self, stages: Any, inflight_tasks: int, **more: Any) -> None:
        # The handlers of a session are called for each of its jobs, on the job's own thread.
        if threading.get_ident() == self._thread:
            left = sum(stage.num_tasks - stage.num_completed_tasks for stage in stages or ())
            self._tasks = inflight_tasks, max(0, left - inflight_tasks)
