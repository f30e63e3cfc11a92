"""Tallies: one row for all records of one kind in one bucket of time; most tables count these.

A tally has the columns of a record by which tables distinguish records, and sums. Tables of records
are made from tallies, so that the records are read and summed once. There are about as many tallies
as minutes in which something was done to an entity; with thin traffic each record is a tally, and
nothing is gained or lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from twinbus.cost.arithmetic import UNIT_BYTES
from twinbus.pipeline.tables.journeys import RAN_OUT, Receivers, destination_of, is_receipt
from twinbus.pipeline.tables.pairs import LABEL, is_labelled, label_of
from twinbus.pipeline.tables.schemas import bucket_of, field

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BY_THE_BROKER: Final = f"^({RAN_OUT}|MaxDeliveryCountExceeded)"
"""Reasons for which a broker dead-letters a message by itself."""

_PLAIN: Final = (
    *("pair", "namespace", "entity", "backlog_queue"),
    *("cause", "operation", "outcome", "view"),
)


def tallied(records: DataFrame, *, bucket_s: int) -> DataFrame:
    """Sum up records. `bucket_s` must divide a day: tables by day are made from tallies too."""
    operation = F.col("operation")
    of_process = operation.isin("divert", "ping")
    size_bytes = F.coalesce("size_bytes", F.lit(0))
    return records.groupBy(
        (bucket_of(F.col("at_ms"), bucket_s) * 1000).alias("at_ms"),
        *_PLAIN,
        # Only whether the record has one.
        F.when(F.col("message_id").isNotNull(), F.lit("")).alias("message_id"),
        F.when(of_process, F.col("process")).alias("process"),
        F.when(
            operation == "dead_letter", F.regexp_extract(field("error"), BY_THE_BROKER, 1)
        ).alias("error"),
    ).agg(
        F.count("*").alias("records"),
        F.sum(units_of(size_bytes)).alias("units"),
        F.sum(size_bytes).alias("bytes"),
        F.sum(F.coalesce("unrecorded", F.lit(0))).alias("unrecorded"),
    )


def receivers_of(tallies: DataFrame) -> Receivers:
    """Return the subscriptions that received messages, with their topics."""
    entity = F.lower("entity")
    topic = destination_of(F.col("entity"))
    found = tallies.where(is_receipt() & F.col("message_id").isNotNull() & (entity != topic))
    rows = found.select(entity.alias("receiver"), topic.alias("topic")).distinct().collect()
    return {row["receiver"]: row["topic"] for row in rows}


def may_share_messages(tallies: DataFrame) -> bool:
    """Return whether records of a message can have several labels, not all set by clients."""
    about = tallies.where(F.col("message_id").isNotNull() & F.col("entity").isNotNull())
    rows = about.select(label_of(), is_labelled().alias("labelled")).distinct().collect()
    return len({row[LABEL] for row in rows}) > 1 and not all(row["labelled"] for row in rows)


def count_of(condition: Column) -> Column:
    """Return the number of records in the tallies that meet a condition."""
    return F.sum(F.when(condition, F.col("records")).otherwise(F.lit(0)))


def units_of(size_bytes: Column) -> Column:
    """Return the billed units of a message: one for each started 64 KB."""
    return F.greatest(F.ceil(size_bytes / UNIT_BYTES), F.lit(1))
