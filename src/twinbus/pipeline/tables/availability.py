"""The tables of availability: failovers, their duration, and the depth of the backlog.

The sums that are kept are here; `windows` makes failover windows of them, and the functions below
the backlog over time.

A point in time is a bucket: the `bucket_s` seconds from `at_s` (unix time) on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from twinbus.pipeline.tables import schemas
from twinbus.pipeline.tables.conservation import DELETED
from twinbus.pipeline.tables.journeys import destination_of
from twinbus.pipeline.tables.pairs import LABEL, label_of
from twinbus.pipeline.tables.schemas import bucket_of, field
from twinbus.pipeline.tables.tallies import count_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def traffic(tallies: DataFrame, *, bucket_s: int) -> DataFrame:
    """Count the clients' operations on messages of each entity by time; and polls, without one."""
    operation, outcome = F.col("operation"), field("outcome")
    ok = outcome == "ok"
    mine = field("cause") != "consumer"
    came_out = operation == "backlog_receive"
    polled = came_out & F.coalesce(F.col("cause") == "poll", F.lit(False))
    counts = {
        "sent": (operation == "send") & ok,
        "diverted": (operation == "divert") & ok,
        "failed": (operation == "send") & (outcome == "failed"),
        "unanswered": (operation == "send") & (outcome == "unknown"),
        "came_out": came_out & ok & ~polled,
        "forwarded": (operation == "forward") & ok,
        "settled": operation.isin("complete", "dead_letter") & ok & mine,
        "received": (operation == "receive") & ok,
        "polls": polled,
    }
    about_messages = ("send", "divert", "backlog_receive", "forward", "complete", "dead_letter")
    return (
        tallies.where(field("view") == "client")
        .where(operation.isin(*about_messages, "receive"))
        .groupBy(
            bucket_of(F.col("at_ms"), bucket_s).alias("at_s"),
            label_of(),
            F.coalesce(destination_of(F.col("entity")), F.lit("")).alias("entity"),
        )
        .agg(*(count_of(condition).alias(name) for name, condition in counts.items()))
        .select(*schemas.TRAFFIC.fieldNames())
    )


def diversions(tallies: DataFrame, *, bucket_s: int) -> DataFrame:
    """Count diverts and pings of each process: saved sends, and signs that it is alive."""
    ok = field("outcome") == "ok"
    diverts = F.col("operation") == "divert"
    return (
        tallies.where(field("view") == "client")
        .where(F.col("operation").isin("divert", "ping") & F.col("entity").isNotNull())
        .groupBy(
            bucket_of(F.col("at_ms"), bucket_s).alias("at_s"),
            field("pair"),
            F.lower("entity").alias("entity"),
            "process",
        )
        .agg(
            count_of(diverts & ok).alias("diverted"),
            count_of(diverts & ~ok).alias("not_diverted"),
            count_of(~diverts).alias("pings"),
        )
        .select(*schemas.DIVERSIONS.fieldNames())
    )


def states(records: DataFrame) -> DataFrame:
    """Return every recorded change of state, and entities that the broker deleted."""
    operation = F.col("operation")
    client = field("view") == "client"
    deleted = ~client & (operation == "manage") & (F.col("state") == DELETED)
    return (
        records.where(((client & (operation == "state")) | deleted) & F.col("entity").isNotNull())
        .groupBy(
            "at_ms",
            field("pair"),
            F.lower("entity").alias("entity"),
            "process",
            field("state"),
            field("error").alias("reason"),
        )
        .agg(F.count("*").alias("changes"))
        .select(*schemas.STATES.fieldNames())
    )


def stays(journeys: DataFrame, *, bucket_s: int) -> DataFrame:
    """Count messages by when they entered the backlog and when they left it.

    Both depth and age over time come from these. Two clocks can disagree: nothing leaves before
    it came.
    """
    entered_ms = F.col("entered_ms")
    left_ms = F.greatest(F.col("left_ms"), entered_ms)
    gone = F.col("left_ms").isNotNull()
    return (
        journeys.where(entered_ms.isNotNull())
        .groupBy(
            *(LABEL, "destination"),
            bucket_of(entered_ms, bucket_s).alias("entered_s"),
            F.when(gone, bucket_of(left_ms, bucket_s)).alias("left_s"),
        )
        .agg(
            F.count("*").alias("messages"),
            F.sum(F.when(gone, left_ms - entered_ms).otherwise(F.lit(0))).alias("waited_ms"),
        )
        .select(*schemas.STAYS.fieldNames())
    )


def raised(journeys: DataFrame, *, bucket_s: int) -> DataFrame:
    """Count messages whose send raised, by their first try."""
    return (
        journeys.where(F.col("tried") & ~F.col("accepted"))
        .groupBy(bucket_of(F.col("first_ms"), bucket_s).alias("at_s"), LABEL, "destination")
        .agg(F.count("*").alias("messages"))
        .select(*schemas.RAISED.fieldNames())
    )


def backlog_over_time(stays: DataFrame, *, bucket_s: int) -> DataFrame:
    """Return depth and oldest age of the backlog at the end of each bucket in which it changed.

    And at the end of the one before, so that the age can be drawn as it is: it grows between two
    changes. The caller picks buckets (a multiple of those of `stays`) so that there are some
    hundreds: each is compared with each.
    """
    wide = stays.select(
        (F.floor(F.col("entered_s") / bucket_s) * bucket_s).alias("entered_s"),
        (F.floor(F.col("left_s") / bucket_s) * bucket_s).alias("left_s"),
        "messages",
    )
    steps = wide.select(F.col("entered_s").alias("at_s"), F.col("messages").alias("step"))
    left = wide.where(F.col("left_s").isNotNull())
    steps = steps.unionAll(left.select("left_s", -F.col("messages")))
    # The second, empty step is the bucket before: a point without a change.
    steps = steps.unionAll(steps.select(F.col("at_s") - bucket_s, F.lit(0)))
    so_far = Window.orderBy("at_s")
    depth = (
        steps.groupBy("at_s")
        .agg(F.sum("step").alias("step"))
        .withColumn("depth", F.sum("step").over(so_far.rowsBetween(Window.unboundedPreceding, 0)))
        .withColumn("is_first", F.row_number().over(so_far) == 1)
        .where(~F.col("is_first"))
    )
    # When the last message of the bucket left; null while one is still there.
    stayed = wide.groupBy("entered_s").agg(
        F.max("left_s").alias("left_s"), F.count_if(F.col("left_s").isNull()).alias("still_there")
    )
    there = (F.col("entered_s") <= F.col("at_s")) & (
        (F.col("still_there") > 0) | (F.col("left_s") > F.col("at_s"))
    )
    age_s = F.when(F.col("depth") > 0, F.col("at_s") + bucket_s - F.col("entered_s"))
    return (
        depth.join(stayed, there, "left")
        .groupBy("at_s", "depth")
        .agg(F.min("entered_s").alias("entered_s"))
        .select("at_s", "depth", age_s.alias("oldest_age_s"))
    )


def drained(stays: DataFrame, *, bucket_s: int) -> DataFrame:
    """Return one row: the messages that left the backlog, and in how many seconds.

    The time is that of the buckets in which something left: a syphon that waits is not slow.
    """
    left = stays.where(F.col("left_s").isNotNull()).groupBy("left_s").agg(F.sum("messages"))
    messages = F.coalesce(F.sum("sum(messages)"), F.lit(0))
    return left.agg(messages.alias("drained"), (F.count("*") * bucket_s).alias("drain_s"))
