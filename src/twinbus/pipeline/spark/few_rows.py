"""Small results of several queries by one job, and small tables as rows of this process.

A query over a few rows is mostly planning, of all that its rows are made of, down to the files. So
a report brings the small tables that it reads to this process once. Queries over them have nothing
below to plan, and one job answers several of them. What has more rows stays in Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import functions as F

from twinbus.pipeline.functions import is_here
from twinbus.pipeline.here.rows import frame_of
from twinbus.pipeline.spark import classic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

ROWS_MAX: Final = 20_000
"""Rows of a table that is brought here: some MB, and less than a second of this process."""

_NAME: Final = "_name"

PlainRow = Mapping[str, Any]


@dataclass(frozen=True)
class FewRows:
    """A table of few rows: as they are, and as a frame of Spark that has no history."""

    rows: Sequence[PlainRow]
    frame: DataFrame


def collected(frames: Mapping[str, DataFrame]) -> dict[str, list[Row]]:
    """Return the rows of several frames, by one job. Frames that are ordered have a limit."""
    if is_here():
        return {name: frame.collect() for name, frame in frames.items()}
    named = [
        frame.select(F.lit(name).alias(_NAME), F.struct(*frame.columns).alias(name))
        for name, frame in frames.items()
    ]
    together = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), named)
    found: dict[str, list[Row]] = {name: [] for name in frames}
    for row in together.collect():
        found[row[_NAME]].append(row[row[_NAME]])
    return found


def brought(frames: Mapping[str, DataFrame]) -> dict[str, FewRows]:
    """Return those frames that have at most `ROWS_MAX` rows, by one job."""
    if is_here():
        return {name: FewRows([*map(_plain, one.collect())], one) for name, one in frames.items()}
    if not frames:
        return {}
    limited = {name: frame.limit(ROWS_MAX + 1) for name, frame in frames.items()}
    return {
        name: few_rows(frames[name].sparkSession, frames[name].schema, [*map(_plain, rows)])
        for name, rows in collected(limited).items()
        if are_few(len(rows))
    }


def are_few(rows: int) -> bool:
    return rows <= ROWS_MAX


def few_rows(spark: SparkSession | None, schema: StructType, rows: Sequence[PlainRow]) -> FewRows:
    """Return rows of this process as a table of a session; None: as one of this process."""
    if spark is None:
        return FewRows(rows, frame_of(schema.fieldNames(), rows))
    columns = {name: [row[name] for row in rows] for name in schema.fieldNames()}
    # Rows as a plan, which Spark simplifies while it plans; a list of rows would be an RDD.
    with classic.active_session_kept(spark):
        frame = spark.createDataFrame(pa.table(columns), schema)
    return FewRows(rows, frame.coalesce(1))


def _plain(row: Row) -> PlainRow:
    return row.asDict()
