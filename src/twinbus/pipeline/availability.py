"""The tables of availability: what failed over, for how long, and what the backlog held (SPEC 8).

The sums that are kept are here first; then what a report makes of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from twinbus.pipeline.conservation import bucket_of, destination_of
from twinbus.pipeline.schemas import DIVERSIONS, STATES, STAYS, TRAFFIC

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["diversions", "states", "stays", "traffic"]


def traffic(records: DataFrame, *, bucket_s: int) -> DataFrame:
    """What the clients did with messages of each entity, by time."""
    operation, outcome = F.col("operation"), F.coalesce(F.col("outcome"), F.lit("ok"))
    ok = outcome == "ok"
    mine = F.coalesce(F.col("cause"), F.lit("")) != "consumer"
    found = (operation == "backlog_receive") & F.col("message_id").isNotNull()
    counts = {
        "sent": (operation == "send") & ok,
        "diverted": (operation == "divert") & ok,
        "failed": (operation == "send") & (outcome == "failed"),
        "unanswered": (operation == "send") & (outcome == "unknown"),
        "came_out": found & ok,
        "forwarded": (operation == "forward") & ok,
        "settled": operation.isin("complete", "dead_letter") & ok & mine,
        "received": (operation == "receive") & ok,
    }
    about_messages = ("send", "divert", "backlog_receive", "forward", "complete", "dead_letter")
    return (
        _of_clients(records)
        .where(operation.isin(*about_messages, "receive"))
        .groupBy(
            bucket_of(F.col("at_ms"), bucket_s).alias("at_s"),
            F.coalesce(destination_of(F.col("entity")), F.lit("")).alias("entity"),
        )
        .agg(*(F.count_if(condition).alias(name) for name, condition in counts.items()))
        .select(*TRAFFIC.fieldNames())
    )


def diversions(records: DataFrame, *, bucket_s: int) -> DataFrame:
    """Diverts of each process, which say what its failover windows saved."""
    ok = F.coalesce(F.col("outcome"), F.lit("ok")) == "ok"
    return (
        _of_clients(records)
        .where((F.col("operation") == "divert") & F.col("entity").isNotNull())
        .groupBy(
            bucket_of(F.col("at_ms"), bucket_s).alias("at_s"),
            F.lower("entity").alias("entity"),
            "process",
        )
        .agg(F.count_if(ok).alias("diverted"), F.count_if(~ok).alias("not_diverted"))
        .select(*DIVERSIONS.fieldNames())
    )


def states(records: DataFrame) -> DataFrame:
    """Every change of state, as it was recorded."""
    return (
        _of_clients(records)
        .where((F.col("operation") == "state") & F.col("entity").isNotNull())
        .groupBy(
            "at_ms",
            _or_unnamed("pair"),
            F.lower("entity").alias("entity"),
            "process",
            _or_unnamed("state"),
            F.coalesce(F.col("error"), F.lit("")).alias("reason"),
        )
        .agg(F.count("*").alias("changes"))
        .select(*STATES.fieldNames())
    )


def stays(journeys: DataFrame, *, bucket_s: int) -> DataFrame:
    """Messages by when they entered the backlog and when they left it.

    Both depth and age over time come from these. Two clocks can disagree: nothing leaves before
    it came.
    """
    entered_ms = F.col("entered_ms")
    left_ms = F.greatest(F.col("left_ms"), entered_ms)
    gone = F.col("left_ms").isNotNull()
    return (
        journeys.where(entered_ms.isNotNull())
        .groupBy(
            "destination",
            bucket_of(entered_ms, bucket_s).alias("entered_s"),
            F.when(gone, bucket_of(left_ms, bucket_s)).alias("left_s"),
        )
        .agg(
            F.count("*").alias("messages"),
            F.sum(F.when(gone, left_ms - entered_ms).otherwise(F.lit(0))).alias("waited_ms"),
        )
        .select(*STAYS.fieldNames())
    )


def _of_clients(records: DataFrame) -> DataFrame:
    return records.where(F.coalesce(F.col("view"), F.lit("client")) == "client")


def _or_unnamed(name: str) -> Column:
    return F.coalesce(F.col(name), F.lit("")).alias(name)
