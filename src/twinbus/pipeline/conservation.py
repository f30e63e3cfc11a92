"""The table of conservation: what became of every message that a caller was told is safe (SPEC 8).

What a message is, and which fates it can have, is said in `journeys`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from twinbus.pipeline.buckets import bucket_of, day_of
from twinbus.pipeline.gold_schemas import AGES, FATE_SUMS, LINES, SKEWS
from twinbus.pipeline.journeys import (
    DELIVERED_FATE,
    FATES_OF_ACCEPTED,
    destination_of,
    judged,
    partial_journeys,
)
from twinbus.pipeline.schemas import DEPTH, DUPLICATES, SENDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "DELIVERED_FATE",
    "FATES_OF_ACCEPTED",
    "ages",
    "backlog_depth",
    "destination_of",
    "duplicates",
    "fate_sums",
    "fates",
    "lines",
    "sends_by_route",
    "skews",
]


def fates(records: DataFrame, sightings: DataFrame | None) -> DataFrame:
    """One row for each message: what is known of it, and its fate if it was accepted.

    `sightings` are what peeks saw after the last record, in all backlog queues and their
    dead-letter queues; None: nobody looked.
    """
    return judged(partial_journeys(records), sightings)


def lines(records: DataFrame) -> DataFrame:
    """How many records there are of each day, and what they say that they leave out."""
    view = F.coalesce(F.col("view"), F.lit("client"))
    accepted = F.col("operation").isin("send", "divert") & (
        F.coalesce(F.col("outcome"), F.lit("ok")) == "ok"
    )
    nameless = F.col("message_id").isNull() | F.col("entity").isNull()
    return (
        records.groupBy(day_of(F.col("at_ms")).alias("day"), view.alias("view"))
        .agg(
            F.count("*").alias("records"),
            F.count_if((view == "client") & accepted & nameless).alias("nameless"),
            F.sum(F.coalesce("unrecorded", F.lit(0))).alias("unrecorded"),
        )
        .select(*LINES.fieldNames())
    )


def fate_sums(journeys: DataFrame) -> DataFrame:
    """Messages by what is known of them, and by fate."""
    accepted, received = F.col("accepted"), F.col("received")
    counts = {
        "tried": F.col("tried"),
        "accepted": accepted,
        "raised": F.col("tried") & ~accepted,
        "diverted": F.col("diverted"),
        "ambiguous": F.col("ambiguous"),
        "entered": F.col("entered_ms").isNotNull(),
        "received": received,
        "received_accepted": accepted & received,
        **{fate: F.col("fate") == fate for fate in FATES_OF_ACCEPTED},
    }
    return (
        journeys.groupBy(day_of(F.col("first_ms")).alias("day"), "destination")
        .agg(*(F.count_if(condition).alias(name) for name, condition in counts.items()))
        .select(*FATE_SUMS.fieldNames())
    )


AGE_EXACT_S = 3600


def ages(journeys: DataFrame) -> DataFrame:
    """How long messages had been in the backlog when they were forwarded, for the last forward.

    In started seconds, past an hour in started minutes: duplicate-detection windows are whole
    seconds or minutes, so that "older than the window" is exact for each of them.
    """
    age_s = F.ceil((F.col("left_ms") - F.col("entered_ms")) / 1000)
    rounded = F.when(age_s <= AGE_EXACT_S, age_s).otherwise(F.ceil(age_s / 60) * 60)
    return (
        journeys.where((F.col("forwards") > 0) & F.col("entered_ms").isNotNull())
        .groupBy("destination", F.greatest(rounded, F.lit(0)).alias("age_s"))
        .agg(F.count("*").alias("messages"))
        .select(*AGES.fieldNames())
    )


def skews(journeys: DataFrame) -> DataFrame:
    """Messages with a later step that is earlier than the step before it, by how much at most."""
    behind = F.col("entered_ms") - F.col("left_ms")
    return (
        journeys.where(behind > 0)
        .groupBy(
            "destination",
            F.lit("divert, leave").alias("step"),
            F.pow(F.lit(2), F.ceil(F.log2(behind))).cast("long").alias("up_to_ms"),
        )
        .agg(F.count("*").alias("messages"))
        .select(*SKEWS.fieldNames())
    )


def duplicates(records: DataFrame, fates: DataFrame) -> DataFrame:
    """Messages that a consumer received more than once at one entity, and the window of each.

    ambiguous    a send ended without an answer and was done again elsewhere (SPEC 3)
    syphon       forwarded more than once: a crash between forward and completion (SPEC 6)
    unexplained  neither is in the ledger: sent twice under one id, or redelivered to the consumer
    """
    received = records.where(
        (F.col("operation") == "receive")
        & (F.coalesce(F.col("outcome"), F.lit("ok")) == "ok")
        & F.col("message_id").isNotNull()
        & F.col("entity").isNotNull()
    )
    again = (
        received.groupBy(F.lower("entity").alias("entity"), "message_id")
        .agg(F.count("*").alias("times"))
        .where(F.col("times") > 1)
        .withColumn("destination", destination_of(F.col("entity")))
    )
    window = (
        F.when(F.col("forwards") > 1, F.lit("syphon"))
        .when(F.col("ambiguous"), F.lit("ambiguous"))
        .otherwise(F.lit("unexplained"))
    )
    return (
        again.join(
            fates.select("destination", "message_id", "ambiguous", "forwards"),
            ["destination", "message_id"],
        )
        .withColumn("window", window)
        .select(*DUPLICATES.fieldNames())
    )


def sends_by_route(records: DataFrame, bucket_s: int) -> DataFrame:
    """Acknowledged sends to the primary and to the backlog, by the second (or `bucket_s`)."""
    acknowledged = records.where(
        F.col("operation").isin("send", "divert")
        & (F.coalesce(F.col("outcome"), F.lit("ok")) == "ok")
    )
    return (
        acknowledged.groupBy(bucket_of(F.col("at_ms"), bucket_s).alias("at_s"))
        .agg(
            F.count_if(F.col("operation") == "send").alias("to_primary"),
            F.count_if(F.col("operation") == "divert").alias("to_backlog"),
        )
        .select(*SENDS.fieldNames())
    )


def backlog_depth(fates: DataFrame, bucket_s: int) -> DataFrame:
    """Messages in the backlog at the end of each second (or `bucket_s`) in which that changed."""
    entered = fates.where(F.col("entered_ms").isNotNull())
    left = entered.where(F.col("left_ms").isNotNull())
    steps = entered.select(
        bucket_of(F.col("entered_ms"), bucket_s).alias("at_s"), F.lit(1).alias("step")
    ).unionAll(
        # Two clocks can disagree; nothing leaves before it came.
        left.select(
            bucket_of(F.greatest("left_ms", "entered_ms"), bucket_s).alias("at_s"),
            F.lit(-1).alias("step"),
        )
    )
    # One row for each second by now, so that one task can hold the whole of it.
    so_far = Window.orderBy("at_s").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return (
        steps.groupBy("at_s")
        .agg(F.sum("step").alias("step"))
        .withColumn("depth", F.sum("step").over(so_far))
        .select(*DEPTH.fieldNames())
    )
