"""What a record tells, as columns: its destination and its pair; and tallies, the sums of records.

The label of its primary keeps entities of one name apart. A pair writes its name into its records,
a syphon the backlog queue, whose path begins with the label, a consumer the namespace, unless that
is the secondary. A broker may use another name for its namespace: its records count for the pair
that clients name, if they name only one.

A tally is one row for all records of one kind in one bucket of time: the columns by which tables
distinguish records, and sums. Tables of records are made from tallies, so that the records are read
and summed once. With thin traffic each record is a tally, and nothing is gained or lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

from twinbus.cost.arithmetic import UNIT_BYTES
from twinbus.pipeline import functions as F
from twinbus.pipeline.core import rules
from twinbus.pipeline.core.rules import BY_THE_BROKER, RecordTraits
from twinbus.pipeline.tables.calculus import COLUMNS
from twinbus.pipeline.tables.schemas import bucket_of, field

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LABEL: Final = "primary_label"

Receivers = Mapping[str, str]
"""Subscriptions that received messages, each with its topic."""

_SURE, _IS_UNSURE = "sure_labels", "is_unsure"


def destination_of(entity: Column) -> Column:
    """Return the queue or topic of an entity's path (`rules.destination_of`)."""
    return cast("Column", rules.destination_of(COLUMNS, entity))


def is_twin() -> Column:
    """Return whether a record of a sender or of the syphon is about a message in a twin.

    The queue of a twin has the path of its entity (`ledger.record`).
    """
    return F.coalesce(F.lower("backlog_queue") == F.lower("entity"), F.lit(False))


def traits() -> RecordTraits:
    """Return the columns of a record, or of a tally, that its facts are of."""
    fields = {name: field(name) for name in ("outcome", "view", "cause", "state", "error")}
    return RecordTraits(
        operation=F.col("operation"), is_twin=is_twin(), label=F.col(LABEL), **fields
    )


def is_receipt() -> Column:
    """Return whether a record is the receipt of a message by a consumer."""
    return cast("Column", rules.is_receipt(traits()))


def label_of() -> Column:
    """Return the label of the primary of a record or a tally; "" if no field has it."""
    texts = {name: F.col(name) for name in ("pair", "backlog_queue", "entity", "namespace")}
    label = rules.label_of(COLUMNS, side=field("side"), **texts)
    return cast("Column", label).alias(LABEL)


def label_of_pair(pair: Column) -> Column:
    return F.lower(F.substring_index(pair, "+", 1)).alias(LABEL)


def joined(
    rows: DataFrame, keys: Sequence[str], is_sure: Column, *, otherwise: Column | None = None
) -> DataFrame:
    """Give rows with an unsure label the label of the sure rows of their key.

    If sure rows of a key have several labels, an unsure row keeps its own, or gets `otherwise`.
    """
    label, sure = F.col(LABEL), F.col(_SURE)
    one = F.when(F.array_contains(sure, label), label).when(
        F.size(sure) == 1, F.get(sure, F.lit(0))
    )
    found = one.otherwise(label if otherwise is None else otherwise)
    return _with_sure(rows, keys, is_sure).withColumn(LABEL, found).drop(_SURE)


def compared(rows: DataFrame, keys: Sequence[str], is_sure: Column) -> DataFrame:
    """Like `joined`, for sums of both views. Both views must get the same label.

    If a row is unsure and sure rows have several labels, all rows of the key lose their label.
    """
    label, sure = F.col(LABEL), F.col(_SURE)
    is_unsure = F.max(~F.array_contains(sure, label)).over(F.Window.partitionBy(*keys))
    found = F.when(~F.col(_IS_UNSURE), label).when(F.size(sure) == 1, F.get(sure, F.lit(0)))
    judged = _with_sure(rows, keys, is_sure).withColumn(_IS_UNSURE, is_unsure)
    return judged.withColumn(LABEL, found.otherwise(F.lit(""))).drop(_SURE, _IS_UNSURE)


def _with_sure(rows: DataFrame, keys: Sequence[str], is_sure: Column) -> DataFrame:
    label, of_key = F.col(LABEL), F.Window.partitionBy(*keys)
    sure = F.collect_set(F.when(is_sure, label)).over(of_key)
    # If no client names a label, any other does.
    named = F.collect_set(F.when(label != "", label)).over(of_key)
    return rows.withColumn(_SURE, F.when(F.size(sure) > 0, sure).otherwise(named))


def tallied(records: DataFrame, *, bucket_s: int) -> DataFrame:
    """Sum up records. `bucket_s` must divide a day: tables by day are made from tallies too."""
    operation = F.col("operation")
    of_process = operation.isin("divert", "ping")
    size_bytes = F.coalesce("size_bytes", F.lit(0))
    return records.groupBy(
        (bucket_of(F.col("at_ms"), bucket_s) * 1000).alias("at_ms"),
        *rules.KIND,
        # Only whether the record has one.
        F.when(F.col("message_id").isNotNull(), F.lit("")).alias("message_id"),
        F.when(of_process, F.col("process")).alias("process"),
        F.when(
            operation == "dead_letter", F.regexp_extract(field("error"), BY_THE_BROKER, 1)
        ).alias("error"),
        F.when(operation == "receive", F.col("state")).alias("state"),
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
    labelled = (field("view") == "client") & (label_of() != "")
    rows = about.select(label_of(), labelled.alias("labelled")).distinct().collect()
    return len({row[LABEL] for row in rows}) > 1 and not all(row["labelled"] for row in rows)


def count_of(condition: Column) -> Column:
    """Return the number of records in the tallies that meet a condition."""
    return F.sum(F.when(condition, F.col("records")).otherwise(F.lit(0)))


def units_of(size_bytes: Column) -> Column:
    """Return the billed units of a message: one for each started 64 KB."""
    return F.greatest(F.ceil(size_bytes / UNIT_BYTES), F.lit(1))
