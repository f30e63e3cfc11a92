"""The receive gap of an outage: the longest time in which consumers received nothing that was due.

A message is *due* from the beginning of its first attempt until its first receipt: a sender that
waits for the failover has nothing acknowledged yet, and its consumers wait all the same. A gap
lasts from the later of the last receipt and the time since when a message is due, until the next
receipt. It counts for an outage that it overlaps, as a whole: without a twin it ends after the
recovery, when the syphon has brought the first message home. Times without traffic are not gaps.

Only messages near the outage are read. One that was never received counts if its first attempt is
in the outage, and is due for as long as records show; an earlier one may be scheduled, expired or
dead-lettered. Each subscription of a topic has gaps of its own. A message that a subscription never
received may have been filtered out: it is not due there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.pipeline import functions as F
from twinbus.pipeline.tables.journeys import MESSAGE_KEY
from twinbus.pipeline.tables.records import LABEL, joined
from twinbus.pipeline.tables.schemas import schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LEAD_MS: Final = 3_600_000
TRAIL_MS: Final = 3_600_000
"""Records are read from this long before an outage to this long after it."""

OUTAGES: Final = schema("long: number", "string: outage_label entity", "long: began_ms ended_ms")
"""Outages: one row for each time that an entity was failed over, by any process."""

_NUMBER: Final = "number"


def receive_gaps(journeys: DataFrame, outages: DataFrame, *, last_ms: int) -> DataFrame:
    """Return the receive gap of each outage by its number; without receipts it has no row.

    `journeys` are rows of any lots, `outages` is as `OUTAGES`, `last_ms` the time of the last
    record.
    """
    near = F.col("first_ms").between(F.col("began_ms") - LEAD_MS, F.col("ended_ms") + TRAIL_MS)
    same = F.col("destination") == F.col("entity")
    accepted = F.col("sent") | F.col("diverted") | F.col("twinned")
    read = journeys.select(
        *(LABEL, *MESSAGE_KEY, "receiver", "labelled", "first_ms", "received_ms"),
        F.when(accepted, F.lit(True)).alias("accepted"),
        "begun_ms",
    ).join(F.broadcast(outages), same & near)
    # An outage is of one pair, whose label a consumer need not name.
    rows = joined(read, [_NUMBER, *MESSAGE_KEY], F.col("labelled")).where(
        F.col(LABEL) == F.col("outage_label")
    )
    message, flow = [_NUMBER, *MESSAGE_KEY], [_NUMBER, "receiver"]
    of_message = F.Window.partitionBy(*message)
    received = (
        rows.groupBy(*message, "receiver", "began_ms", "ended_ms")
        .agg(
            F.min("begun_ms").alias("begun_ms"),
            F.max("accepted").alias("accepted"),
            F.min("received_ms").alias("received_ms"),
        )
        .withColumns(
            {
                "begun_ms": F.min("begun_ms").over(of_message),
                "accepted": F.max("accepted").over(of_message),
                "is_heard": F.count("received_ms").over(of_message) > 0,
            }
        )
    )
    never = F.col("accepted") & ~F.col("is_heard") & (F.col("receiver") == "")
    never &= F.col("begun_ms").between(F.col("began_ms"), F.col("ended_ms"))
    horizon_ms = F.least(F.col("ended_ms") + TRAIL_MS, F.lit(last_ms))
    end_ms = F.coalesce(F.col("received_ms"), F.when(never, horizon_ms))
    # All messages with a later end were due until now.
    still_due = F.Window.partitionBy(*flow).orderBy(F.col("end_ms").desc())
    in_order = F.Window.partitionBy(*flow).orderBy("end_ms")
    gaps = (
        received.withColumn("end_ms", end_ms)
        .where(F.col("end_ms").isNotNull())
        .withColumns(
            {
                # A record of the attempt may be missing.
                "due_ms": F.min(F.coalesce("begun_ms", "end_ms")).over(still_due),
                "before_ms": F.lag("end_ms").over(in_order),
                "is_heard": F.count("received_ms").over(F.Window.partitionBy(*flow)) > 0,
            }
        )
        .where(F.col("is_heard"))
        .withColumn("from_ms", F.greatest("due_ms", "before_ms"))
    )
    overlaps = (F.col("end_ms") > F.col("began_ms")) & (F.col("from_ms") < F.col("ended_ms"))
    length_ms = F.greatest(F.col("end_ms") - F.col("from_ms"), F.lit(0))
    return gaps.groupBy(_NUMBER).agg(
        F.max(F.when(overlaps, length_ms).otherwise(F.lit(0))).alias("gap_ms")
    )
