"""The table of charges: billed operations by day, namespace, entity and cause (SPEC 8).

Counted is every call that was carried out or may have been (outcome ok or unknown); one that failed
is not, which is an assumption: what Azure charges for a refused call is not published. Settlements
are rows of their own, for the reader to count or not (`cost.CountingRule`). Money is put on the
sums afterwards, for the tiers of a price are those of a whole month.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from twinbus.cost.arithmetic import UNCHARGED, UNIT_BYTES
from twinbus.pipeline.schemas import CHARGES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["assumed_receives", "charges"]

DAY_MS = 86_400_000

_INWARD = ("send", "divert", "forward", "ping")
_OUTWARD = ("receive", "backlog_receive")


def charges(records: DataFrame) -> DataFrame:
    """Operations and units by day, namespace, entity, cause and operation, as recorded."""
    carried_out = (~F.col("operation").isin(*UNCHARGED)) & (
        F.coalesce(F.col("outcome"), F.lit("ok")) != "failed"
    )
    counted = records.where(carried_out).select(
        _day(F.col("at_ms")).alias("day"),
        _or_unnamed("namespace"),
        _or_unnamed("entity"),
        _or_unnamed("cause"),
        "operation",
        F.coalesce("size_bytes", F.lit(0)).alias("size_bytes"),
    )
    return _summed(counted, assumed=False)


def assumed_receives(fates: DataFrame) -> DataFrame:
    """One receive for each delivered message, for a ledger in which no consumer recorded any."""
    delivered = fates.where(F.col("acknowledged") & F.col("delivered_ms").isNotNull())
    counted = delivered.select(
        _day(F.col("delivered_ms")).alias("day"),
        F.lit("").alias("namespace"),
        F.col("destination").alias("entity"),
        F.lit("consumer").alias("cause"),
        F.lit("receive").alias("operation"),
        "size_bytes",
    )
    return _summed(counted, assumed=True)


def _summed(counted: DataFrame, *, assumed: bool) -> DataFrame:
    size = F.col("size_bytes")
    units = F.greatest(F.ceil(size / UNIT_BYTES), F.lit(1))
    return (
        counted.groupBy("day", "namespace", "entity", "cause", "operation")
        .agg(
            F.count("*").alias("operations"),
            F.sum(units).alias("units"),
            _sum_where(F.col("operation").isin(*_INWARD), size).alias("bytes_in"),
            _sum_where(F.col("operation").isin(*_OUTWARD), size).alias("bytes_out"),
        )
        .withColumn("assumed", F.lit(assumed))
        .select(*CHARGES.fieldNames())
    )


def _sum_where(condition: Column, value: Column) -> Column:
    return F.sum(F.when(condition, value).otherwise(F.lit(0)))


def _day(at_ms: Column) -> Column:
    """The day in UTC, whatever time zone the session is in."""
    return F.date_add(F.lit("1970-01-01").cast("date"), F.floor(at_ms / DAY_MS).cast("int"))


def _or_unnamed(name: str) -> Column:
    return F.coalesce(F.col(name), F.lit("")).alias(name)
