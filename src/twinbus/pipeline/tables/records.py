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
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from twinbus.cost.arithmetic import UNIT_BYTES
from twinbus.pipeline.tables.schemas import bucket_of, field
from twinbus.servicebus.names import BACKLOG_MARK

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LABEL: Final = "primary_label"

_HOST_REST: Final = ".servicebus."
"""After the label in the host of a namespace, in every cloud of Azure."""

Receivers = Mapping[str, str]
"""Subscriptions that received messages, each with its topic."""

_SURE, _IS_UNSURE = "sure_labels", "is_unsure"

RAN_OUT: Final = "TTLExpiredException"
"""The reason of Service Bus for dead-lettering an expired message."""

BY_THE_BROKER: Final = f"^({RAN_OUT}|MaxDeliveryCountExceeded)"
"""Reasons for which a broker dead-letters a message by itself."""

_PLAIN: Final = (
    *("pair", "namespace", "side", "entity", "backlog_queue"),
    *("cause", "operation", "outcome", "view"),
)

_SUBSCRIPTION: Final = r"(?i)/subscriptions/[^/]+(/\$deadletterqueue)?$"


def destination_of(entity: Column) -> Column:
    """Return the queue or topic of an entity's path, which may be that of a subscription.

    In lower case: names of Service Bus ignore case.
    """
    # Most paths have no such part, and searching for one is the most expensive step of all.
    plain = F.regexp_replace(entity, _SUBSCRIPTION, "")
    return F.lower(F.when(F.contains(entity, F.lit("/")), plain).otherwise(entity))


def is_twin() -> Column:
    """Return whether a record of a sender or of the syphon is about a message in a twin.

    The queue of a twin has the path of its entity (`ledger.record`).
    """
    return F.coalesce(F.lower("backlog_queue") == F.lower("entity"), F.lit(False))


def is_receipt() -> Column:
    """Return whether a record is the receipt of a message by a consumer."""
    succeeded = (field("view") == "client") & (field("outcome") == "ok")
    return succeeded & (F.col("operation") == "receive")


def label_of() -> Column:
    """Return the label of the primary of a record or a tally; "" if no field has it."""
    labels = (
        F.substring_index("pair", "+", 1),
        _label_in("backlog_queue"),
        # In the broker's view a message of the backlog is in the backlog queue.
        _label_in("entity"),
        # A consumer may name it by its host. One that received from a twin names the secondary.
        F.when(
            field("side") != "secondary",
            F.substring_index(F.lower("namespace"), _HOST_REST, 1),
        ),
    )
    return F.lower(F.coalesce(*labels, F.lit(""))).alias(LABEL)


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
    is_unsure = F.max(~F.array_contains(sure, label)).over(Window.partitionBy(*keys))
    found = F.when(~F.col(_IS_UNSURE), label).when(F.size(sure) == 1, F.get(sure, F.lit(0)))
    judged = _with_sure(rows, keys, is_sure).withColumn(_IS_UNSURE, is_unsure)
    return judged.withColumn(LABEL, found.otherwise(F.lit(""))).drop(_SURE, _IS_UNSURE)


def _with_sure(rows: DataFrame, keys: Sequence[str], is_sure: Column) -> DataFrame:
    label, of_key = F.col(LABEL), Window.partitionBy(*keys)
    sure = F.collect_set(F.when(is_sure, label)).over(of_key)
    # If no client names a label, any other does.
    named = F.collect_set(F.when(label != "", label)).over(of_key)
    return rows.withColumn(_SURE, F.when(F.size(sure) > 0, sure).otherwise(named))


def _label_in(column: str) -> Column:
    path = F.lower(column)
    return F.when(F.contains(path, F.lit(BACKLOG_MARK)), F.substring_index(path, BACKLOG_MARK, 1))


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
