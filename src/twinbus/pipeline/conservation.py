"""The table of conservation: what became of every message that a caller was told is safe (SPEC 8).

A message is its destination (the queue or topic it belongs to) and its id. It was *accepted* when a
send or a divert of it was acknowledged; then it has one fate:

    delivered        its destination acknowledged it, or a consumer received it there
    dead_lettered    the syphon set it aside, or a peek saw it there
    waiting          a peek saw it in a backlog queue
    lost             it is in none of these places, and not in the backlog: a peek looked, or the
                     syphon completed it there
    undecided        it was diverted and nobody looked since: waiting, or lost

A receipt counts as a delivery because the line that says "forwarded" can die with its process
(`ledger.writer`), and the message cannot have come from elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from twinbus.pipeline.charges import day_of
from twinbus.pipeline.schemas import (
    AGES,
    DEPTH,
    DUPLICATES,
    FATE_SUMS,
    FATES,
    LINES,
    SENDS,
    SKEWS,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "DELIVERED_FATE",
    "FATES_OF_ACCEPTED",
    "ages",
    "backlog_depth",
    "bucket_of",
    "destination_of",
    "duplicates",
    "fate_sums",
    "fates",
    "lines",
    "sends_by_route",
    "skews",
]

DELIVERED_FATE = "delivered"
FATES_OF_ACCEPTED = (DELIVERED_FATE, "dead_lettered", "expired", "waiting", "lost", "undecided")

_SUBSCRIPTION = r"(?i)/subscriptions/[^/]+(/\$deadletterqueue)?$"


def destination_of(entity: Column) -> Column:
    """The queue or topic of an entity's path: what it was sent to, for what was received there.

    Names are the same in any case, as in Service Bus.
    """
    return F.lower(F.regexp_replace(entity, _SUBSCRIPTION, ""))


def fates(records: DataFrame, sightings: DataFrame | None) -> DataFrame:
    """One row for each message: what is known of it, and its fate if it was accepted.

    `sightings` are what peeks saw after the last record, in all backlog queues and their
    dead-letter queues; None: nobody looked.
    """
    facts = _facts(records)
    if sightings is None:
        unseen = F.lit(None).cast("string")
        return _judged(facts.withColumn("place", unseen), looked=False)
    seen = sightings.select(
        destination_of(F.col("destination")).alias("destination"), "message_id", "place"
    ).groupBy("destination", "message_id")
    # Seen in both places (a copy of each) it still waits.
    return _judged(
        facts.join(seen.agg(F.max("place").alias("place")), ["destination", "message_id"], "left"),
        looked=True,
    )


def _facts(records: DataFrame) -> DataFrame:
    """What the lines of each message say together."""
    operation = F.col("operation")
    ok = F.coalesce(F.col("outcome"), F.lit("ok")) == "ok"
    sent, diverted = (operation == "send") & ok, (operation == "divert") & ok
    forwarded, received = (operation == "forward") & ok, (operation == "receive") & ok
    at_ms, mine = F.col("at_ms"), F.coalesce(F.col("cause"), F.lit("")) != "consumer"
    out_of_backlog = operation.isin("complete", "dead_letter") & ok & mine
    return (
        records.where(F.col("message_id").isNotNull() & F.col("entity").isNotNull())
        .groupBy(destination_of(F.col("entity")).alias("destination"), "message_id")
        .agg(
            _any(operation.isin("send", "divert")).alias("tried"),
            _any(sent).alias("sent"),
            _any(diverted).alias("diverted"),
            _any(operation.isin("send", "divert") & (F.col("outcome") == "unknown")).alias(
                "ambiguous"
            ),
            _any(received).alias("received"),
            _any((operation == "dead_letter") & ok & mine).alias("set_aside"),
            _any((operation == "complete") & ok & mine).alias("completed"),
            _any(operation == "backlog_receive").alias("came_out"),
            F.count_if(forwarded).alias("forwards"),
            F.max(F.coalesce("size_bytes", F.lit(0))).alias("size_bytes"),
            F.min(F.when(sent | forwarded | received, at_ms)).alias("delivered_ms"),
            F.min(F.when(diverted, at_ms)).alias("diverted_ms"),
            F.min(F.when(operation == "divert", at_ms)).alias("tried_ms"),
            F.max(F.when(out_of_backlog, at_ms)).alias("settled_ms"),
            F.max(F.when(forwarded, at_ms)).alias("forwarded_ms"),
            F.min(at_ms).alias("first_ms"),
        )
    )


def _judged(facts: DataFrame, *, looked: bool) -> DataFrame:
    acknowledged = F.col("sent") | (F.col("forwards") > 0)
    accepted = F.col("sent") | F.col("diverted")
    gone = F.lit(True) if looked else F.col("completed")
    fate = (
        F.when(~accepted, F.lit(None))
        .when(acknowledged | F.col("received"), F.lit(DELIVERED_FATE))
        .when(F.col("place").isNotNull(), F.col("place"))
        .when(F.col("set_aside"), F.lit("dead_lettered"))
        .when(gone, F.lit("lost"))
        .otherwise(F.lit("undecided"))
    )
    return (
        facts.withColumn("accepted", accepted)
        .withColumn("acknowledged", acknowledged)
        .withColumn("fate", fate)
        # A divert without an answer did store its message if that came out of the backlog.
        .withColumn(
            "entered_ms", F.coalesce("diverted_ms", F.when(F.col("came_out"), F.col("tried_ms")))
        )
        # The line of the completion can be missing where that of the forward is not.
        .withColumn("left_ms", F.coalesce("settled_ms", "forwarded_ms"))
        .select(*FATES.fieldNames())
    )


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


def bucket_of(at_ms: Column, bucket_s: int) -> Column:
    """The beginning of the `bucket_s` seconds that a time falls into, in unix seconds."""
    return F.floor(at_ms / (1000 * bucket_s)) * bucket_s


def _any(condition: Column) -> Column:
    return F.coalesce(F.max(condition), F.lit(False))
