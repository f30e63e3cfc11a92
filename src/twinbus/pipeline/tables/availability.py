"""The tables of availability: failovers, their duration, and the depth of the backlog.

First the stored sums, then the backlog over time, then failover windows: each time that an entity's
sends left the primary, until they returned. A point in time is a bucket: the `bucket_s` seconds
from `at_s` (unix time) on.

Every process has its own view of an entity, so a window is one process's; an entity was failed over
for the union of its windows. A window begins with the record of "failed over", which the record of
"suspect" (the first attempt that failed) comes before, and ends with that of "healthy". Records may
come in any order: their times decide, which within one process come from one clock.

A process can end while it is failed over. One that closes its pair records "closed". One that was
killed records nothing more, neither diverts nor pings: its window ends with its last sign if the
entity took messages after a silence that no process keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.pipeline import functions as F
from twinbus.pipeline.core.rules import AT_ONCE, DELETED
from twinbus.pipeline.tables import schemas
from twinbus.pipeline.tables.records import (
    LABEL,
    count_of,
    destination_of,
    is_twin,
    label_of,
    label_of_pair,
)
from twinbus.pipeline.tables.schemas import bucket_of, field

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
SUSPECT: Final = "suspect"
DOWN: Final = ("failed over", "unusable")
"""States in which sends do not go to the primary."""

HEALTHY: Final = "healthy"
STATES: Final = (SUSPECT, *DOWN, HEALTHY)
"""The states of `pairing.events`, in the order in which they follow within a millisecond."""

CLOSED: Final = "closed"
"""The state that a closed pair records for an entity that was not healthy."""

SILENCE_S: Final = 1_860
"""The longest ping interval and the longest attempt: a failed-over process that is not frozen
records something within it."""

_OF_ONE: Final = ("pair", "entity", "process")


def traffic(tallies: DataFrame, *, bucket_s: int) -> DataFrame:
    """Count the clients' operations on messages of each entity by time; and polls, without one."""
    operation, outcome = F.col("operation"), field("outcome")
    ok = outcome == "ok"
    mine = field("cause") != "consumer"
    came_out = operation == "backlog_receive"
    polled = came_out & F.coalesce(F.col("cause") == "poll", F.lit(False))
    counts = {
        "sent": (operation == "send") & ok,
        "diverted": (operation == "divert") & ok & ~is_twin(),
        "to_twin": (operation == "divert") & ok & is_twin(),
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
    so_far = F.Window.partitionBy().orderBy("at_s")
    depth = (
        steps.groupBy("at_s")
        .agg(F.sum("step").alias("step"))
        .withColumn("depth", F.sum("step").over(so_far.rowsBetween(F.Window.unboundedPreceding, 0)))
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
        # A join by the condition alone would be a broadcast, which is a job of its own.
        depth.crossJoin(stayed)
        .groupBy("at_s", "depth")
        .agg(F.min(F.when(there, F.col("entered_s"))).alias("entered_s"))
        .select("at_s", "depth", age_s.alias("oldest_age_s"))
    )


def drained(stays: DataFrame, *, bucket_s: int) -> DataFrame:
    """Return one row: the messages that left the backlog, and in how many seconds.

    The time is that of the buckets in which something left: a syphon that waits is not slow.
    """
    left = stays.where(F.col("left_s").isNotNull()).groupBy("left_s")
    messages = F.coalesce(F.sum("messages"), F.lit(0))
    of_bucket = left.agg(F.sum("messages").alias("messages"))
    return of_bucket.agg(messages.alias("drained"), (F.count("*") * bucket_s).alias("drain_s"))


def failover_windows(
    states: DataFrame, diversions: DataFrame, traffic: DataFrame, *, bucket_s: int
) -> DataFrame:
    """Return one row for each window of each process, with the messages diverted in it.

    `diversions` and `traffic` are in buckets of `bucket_s`; of two windows of a process in one
    bucket the later one gets all of what was diverted.
    """
    windows = _ended_with_process(_windows(states), states, diversions, traffic, bucket_s)
    began = windows.select(
        *_OF_ONE,
        bucket_of(F.col("failed_over_ms"), bucket_s).alias("at_s"),
        "failed_over_ms",
        F.lit(0).alias("diverted"),
    )
    diverted = diversions.select(*_OF_ONE, "at_s", F.lit(None).cast("long"), F.col("diverted"))
    so_far = (
        F.Window.partitionBy(*_OF_ONE)
        .orderBy("at_s", F.col("failed_over_ms").asc_nulls_last())
        .rowsBetween(F.Window.unboundedPreceding, 0)
    )
    saved = (
        began.unionAll(diverted)
        .withColumn("failed_over_ms", F.last("failed_over_ms", ignorenulls=True).over(so_far))
        .where(F.col("failed_over_ms").isNotNull())
        .groupBy(*_OF_ONE, "failed_over_ms")
        .agg(F.sum("diverted").alias("saved"))
    )
    return windows.join(saved, [*_OF_ONE, "failed_over_ms"]).select(*schemas.WINDOWS.fieldNames())


def _ended_with_process(
    windows: DataFrame, states: DataFrame, diversions: DataFrame, traffic: DataFrame, bucket_s: int
) -> DataFrame:
    """End windows whose process recorded nothing until the entity was healthy again."""
    bucket_ms = F.col("at_s") * 1000
    signs = (
        states.select(*_OF_ONE, "at_ms")
        .unionAll(diversions.select(*_OF_ONE, bucket_ms))
        .groupBy(*_OF_ONE)
        .agg(F.max("at_ms").alias("sign_ms"))
    )
    took = traffic.where((F.col("sent") > 0) | (F.col("forwarded") > 0))
    well = (
        states.where(F.col("state") == HEALTHY)
        .select(label_of_pair(F.col("pair")), "entity", "at_ms")
        .unionAll(took.select(LABEL, "entity", bucket_ms))
        .groupBy(LABEL, "entity")
        .agg(F.max("at_ms").alias("well_ms"))
    )
    # A sign is somewhere in its bucket.
    silent_ms = F.col("sign_ms") + (SILENCE_S + bucket_s) * 1000
    # The last sign can be in the bucket that the window began in.
    sign_ms = F.greatest("sign_ms", "failed_over_ms")
    is_over = F.col("recovered_ms").isNull() & (F.col("well_ms") > silent_ms)
    ended_ms = F.coalesce("process_ended_ms", F.when(is_over, sign_ms))
    return (
        windows.join(signs, list(_OF_ONE), "left")
        .withColumn(LABEL, label_of_pair(F.col("pair")))
        .join(well, [LABEL, "entity"], "left")
        .withColumn("process_ended_ms", ended_ms)
        .drop("sign_ms", "well_ms", LABEL)
    )


def _windows(states: DataFrame) -> DataFrame:
    words = F.array(*(F.lit(state) for state in (*STATES, CLOSED)))
    rank = F.array_position(words, F.col("state"))
    in_order = F.Window.partitionBy(*_OF_ONE).orderBy("at_ms", rank)
    down = F.col("state").isin(*DOWN)
    turns = (
        states.where(F.col("state").isin(*STATES, CLOSED))
        .withColumn("down", down)
        .withColumn("before", F.lag("state").over(in_order))
        .withColumn("before_ms", F.lag("at_ms").over(in_order))
        .withColumn("was_down", F.coalesce(F.lag("down").over(in_order), F.lit(False)))
        # One row when sends leave the primary, one when they return.
        .where(F.col("down") != F.col("was_down"))
        .withColumn("ended_ms", F.lead("at_ms").over(in_order))
        .withColumn("is_closed", F.lead("state").over(in_order) == CLOSED)
    )
    suspected = F.when(F.col("before") == SUSPECT, F.col("before_ms")).when(
        F.col("reason") == AT_ONCE, F.col("at_ms")
    )
    return turns.where(F.col("down")).select(
        *_OF_ONE,
        suspected.alias("suspect_ms"),
        F.col("at_ms").alias("failed_over_ms"),
        F.when(~F.col("is_closed"), F.col("ended_ms")).alias("recovered_ms"),
        F.when(F.col("is_closed"), F.col("ended_ms")).alias("process_ended_ms"),
        "reason",
    )


def downtimes(
    windows: DataFrame, *, last_ms: int, since_ms: int | None = None, until_ms: int | None = None
) -> DataFrame:
    """Return for each entity how long any process had it failed over, and how often.

    Windows of many processes that overlap are one failover. One that is open lasts up to `last_ms`,
    the last record. What lies before `since_ms` or after `until_ms` is not counted.
    """
    ended_ms = F.coalesce("recovered_ms", "process_ended_ms")
    # Comparisons ignore null.
    begin_ms = F.greatest(F.col("failed_over_ms"), F.lit(since_ms).cast("long"))
    cut_ms = F.least(F.coalesce(ended_ms, F.lit(last_ms)), F.lit(until_ms).cast("long"))
    by_start = F.Window.partitionBy(LABEL, "entity").orderBy("begin_ms", "end_ms")
    earlier = by_start.rowsBetween(F.Window.unboundedPreceding, -1)
    islands = (
        windows.withColumn(LABEL, label_of_pair(F.col("pair")))
        .withColumn("begin_ms", begin_ms)
        .withColumn("end_ms", F.greatest("begin_ms", cut_ms))
        .withColumn("reached_ms", F.max("end_ms").over(earlier))
        .withColumn("begins", F.coalesce(F.col("reached_ms") < F.col("begin_ms"), F.lit(True)))
        .withColumn("island", F.sum(F.col("begins").cast("long")).over(by_start))
        .groupBy(LABEL, "entity", "island")
        .agg(
            F.min("begin_ms").alias("began_ms"),
            F.max("end_ms").alias("end_ms"),
            F.max(ended_ms.isNull()).alias("open"),
        )
    )
    return (
        islands.groupBy(LABEL, "entity")
        .agg(
            F.count("*").alias("failovers"),
            F.sum(F.col("end_ms") - F.col("began_ms")).alias("failed_over_ms"),
            F.max("open").alias("open"),
        )
        .select(*schemas.DOWNTIMES.fieldNames())
    )


def percentiles(windows: DataFrame) -> DataFrame:
    """Return how long detecting an outage and recovering from it took, in observed times.

    Exact, because windows are few. One that a person began says nothing about detection, and one
    that is open or ended with its process nothing about recovery.
    """
    took = F.create_map(
        *(F.lit("detect"), F.col("failed_over_ms") - F.col("suspect_ms")),
        *(F.lit("recover"), F.col("recovered_ms") - F.col("failed_over_ms")),
    )
    known = windows.select(F.explode(took).alias("measure", "ms")).where(F.col("ms").isNotNull())
    return known.groupBy("measure").agg(
        F.count("*").alias("count"),
        *(_percentile(share).alias(f"p{share}_ms") for share in (50, 95, 99)),
        F.max("ms").alias("max_ms"),
    )


def _percentile(share: int) -> Column:
    # One of the values: the smallest that this percentage of all do not exceed.
    place = F.ceil(F.count("*") * share / 100) - 1
    return F.get(F.array_sort(F.collect_list("ms")), place.cast("int"))
