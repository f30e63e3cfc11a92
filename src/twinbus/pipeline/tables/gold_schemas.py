"""What the gold tables hold, and what reports make of them, as literal schemas (see `gold`)."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    BooleanType,
    DateType,
    LongType,
    StringType,
    StructField,
    StructType,
)

DELIVERIES: Final = StructType(
    [
        # Of the delivery.
        StructField("day", DateType(), nullable=False),
        StructField("destination", StringType(), nullable=False),
        # It went by the backlog.
        StructField("moved", BooleanType(), nullable=False),
        StructField("messages", LongType(), nullable=False),
        StructField("units", LongType(), nullable=False),
        StructField("bytes", LongType(), nullable=False),
    ]
)

TRAFFIC: Final = StructType(
    [
        StructField("at_s", LongType(), nullable=False),
        StructField("entity", StringType(), nullable=False),
        StructField("sent", LongType(), nullable=False),
        StructField("diverted", LongType(), nullable=False),
        # Attempts on the primary that failed, and those without an answer.
        StructField("failed", LongType(), nullable=False),
        StructField("unanswered", LongType(), nullable=False),
        StructField("came_out", LongType(), nullable=False),
        StructField("forwarded", LongType(), nullable=False),
        # Completed or set aside in a backlog queue.
        StructField("settled", LongType(), nullable=False),
        StructField("received", LongType(), nullable=False),
        # Receives from a backlog queue that found nothing: about no entity.
        StructField("polls", LongType(), nullable=False),
    ]
)

DIVERSIONS: Final = StructType(
    [
        StructField("at_s", LongType(), nullable=False),
        StructField("pair", StringType(), nullable=False),
        StructField("entity", StringType(), nullable=False),
        StructField("process", StringType(), nullable=False),
        StructField("diverted", LongType(), nullable=False),
        StructField("not_diverted", LongType(), nullable=False),
        # Signs of life while it diverts nothing.
        StructField("pings", LongType(), nullable=False),
    ]
)

STATES: Final = StructType(
    [
        StructField("at_ms", LongType(), nullable=False),
        StructField("pair", StringType(), nullable=False),
        StructField("entity", StringType(), nullable=False),
        StructField("process", StringType(), nullable=False),
        StructField("state", StringType(), nullable=False),
        StructField("reason", StringType(), nullable=False),
        StructField("changes", LongType(), nullable=False),
    ]
)

LINES: Final = StructType(
    [
        StructField("day", DateType(), nullable=False),
        StructField("view", StringType(), nullable=False),
        StructField("records", LongType(), nullable=False),
        # Accepted messages without an id or an entity: nobody can follow them.
        StructField("nameless", LongType(), nullable=False),
        # Records that processes say they could not write.
        StructField("unrecorded", LongType(), nullable=False),
    ]
)

FATE_SUMS: Final = StructType(
    [
        # Of the first record of the message.
        StructField("day", DateType(), nullable=False),
        StructField("destination", StringType(), nullable=False),
        StructField("tried", LongType(), nullable=False),
        StructField("accepted", LongType(), nullable=False),
        StructField("raised", LongType(), nullable=False),
        StructField("diverted", LongType(), nullable=False),
        StructField("ambiguous", LongType(), nullable=False),
        StructField("entered", LongType(), nullable=False),
        StructField("received", LongType(), nullable=False),
        StructField("received_accepted", LongType(), nullable=False),
        # Of messages that no record says were tried: moved by the syphon, or only received.
        StructField("moved_unsent", LongType(), nullable=False),
        StructField("received_unsent", LongType(), nullable=False),
        # One for each of `conservation.FATES_OF_ACCEPTED`, as known without a peek.
        StructField("delivered", LongType(), nullable=False),
        StructField("dead_lettered", LongType(), nullable=False),
        StructField("expired", LongType(), nullable=False),
        StructField("waiting", LongType(), nullable=False),
        StructField("lost", LongType(), nullable=False),
        StructField("undecided", LongType(), nullable=False),
    ]
)

STAYS: Final = StructType(
    [
        StructField("destination", StringType(), nullable=False),
        StructField("entered_s", LongType(), nullable=False),
        # Null while it is in the backlog, for all that is known.
        StructField("left_s", LongType()),
        StructField("messages", LongType(), nullable=False),
        StructField("waited_ms", LongType(), nullable=False),
    ]
)

AGES: Final = StructType(
    [
        StructField("destination", StringType(), nullable=False),
        # How long messages had been in the backlog at their last forward: see `conservation.ages`.
        StructField("age_s", LongType(), nullable=False),
        StructField("messages", LongType(), nullable=False),
    ]
)

SKEWS: Final = StructType(
    [
        StructField("destination", StringType(), nullable=False),
        # The two steps whose times are in the wrong order.
        StructField("step", StringType(), nullable=False),
        # A power of two: by so much at most.
        StructField("up_to_ms", LongType(), nullable=False),
        StructField("messages", LongType(), nullable=False),
    ]
)

RAISED: Final = StructType(
    [
        StructField("at_s", LongType(), nullable=False),
        StructField("destination", StringType(), nullable=False),
        StructField("messages", LongType(), nullable=False),
    ]
)

BACKLOG: Final = StructType(
    [
        # "": the whole backlog.
        StructField("destination", StringType(), nullable=False),
        StructField("at_s", LongType(), nullable=False),
        StructField("depth", LongType(), nullable=False),
        # Null where it is empty.
        StructField("oldest_age_s", LongType()),
    ]
)

DRAINS: Final = StructType(
    [
        StructField("destination", StringType(), nullable=False),
        StructField("drained", LongType(), nullable=False),
        StructField("drain_s", LongType(), nullable=False),
        StructField("most_in_a_bucket", LongType(), nullable=False),
        StructField("waited_ms", LongType(), nullable=False),
        StructField("began_s", LongType(), nullable=False),
        StructField("ended_s", LongType(), nullable=False),
    ]
)

WINDOWS: Final = StructType(
    [
        StructField("pair", StringType(), nullable=False),
        StructField("entity", StringType(), nullable=False),
        StructField("process", StringType(), nullable=False),
        # When the first attempt failed; null where none did: a person's command.
        StructField("suspect_ms", LongType()),
        StructField("failed_over_ms", LongType(), nullable=False),
        # Null: this process did not see it return.
        StructField("recovered_ms", LongType()),
        # Of a window that ended with its process; null in both: it is open.
        StructField("process_ended_ms", LongType()),
        StructField("reason", StringType(), nullable=False),
        # Messages that this process diverted meanwhile; null where nobody counted.
        StructField("saved", LongType()),
    ]
)

DOWNTIMES: Final = StructType(
    [
        StructField("entity", StringType(), nullable=False),
        StructField("failovers", LongType(), nullable=False),
        StructField("windows", LongType(), nullable=False),
        StructField("failed_over_ms", LongType(), nullable=False),
        StructField("open", BooleanType(), nullable=False),
    ]
)

PERCENTILES: Final = StructType(
    [
        # "": all entities.
        StructField("entity", StringType(), nullable=False),
        # "detect" or "recover".
        StructField("measure", StringType(), nullable=False),
        StructField("count", LongType(), nullable=False),
        StructField("p50_ms", LongType(), nullable=False),
        StructField("p95_ms", LongType(), nullable=False),
        StructField("p99_ms", LongType(), nullable=False),
        StructField("max_ms", LongType(), nullable=False),
    ]
)

STAGES: Final = StructType(
    [
        # "": all of them.
        StructField("entity", StringType(), nullable=False),
        StructField("stage", StringType(), nullable=False),
        StructField("operations", LongType(), nullable=False),
        StructField("units", LongType(), nullable=False),
        # Those of the units that nobody recorded.
        StructField("assumed_units", LongType(), nullable=False),
        StructField("model_operations", LongType(), nullable=False),
        StructField("model_units", LongType(), nullable=False),
    ]
)

AGED: Final = StructType(
    [
        StructField("destination", StringType(), nullable=False),
        StructField("messages", LongType(), nullable=False),
        StructField("oldest_s", LongType(), nullable=False),
        StructField("detection_s", LongType(), nullable=False),
    ]
)

VIEWS: Final = StructType(
    [
        StructField("day", DateType(), nullable=False),
        StructField("namespace", StringType(), nullable=False),
        # The path of the entity or of the backlog queue.
        StructField("place", StringType(), nullable=False),
        # As the broker calls it.
        StructField("operation", StringType(), nullable=False),
        StructField("view", StringType(), nullable=False),
        StructField("outcome", StringType(), nullable=False),
        StructField("operations", LongType(), nullable=False),
    ]
)

DISAGREEMENTS: Final = StructType(
    [
        StructField("namespace", StringType(), nullable=False),
        StructField("place", StringType(), nullable=False),
        StructField("operation", StringType(), nullable=False),
        StructField("message_id", StringType(), nullable=False),
        StructField("ahead", LongType(), nullable=False),
        StructField("unanswered", LongType(), nullable=False),
        # See `reconciliation.KINDS`.
        StructField("kind", StringType(), nullable=False),
    ]
)

AGREEMENTS: Final = StructType(
    [
        StructField("namespace", StringType(), nullable=False),
        StructField("place", StringType(), nullable=False),
        StructField("operation", StringType(), nullable=False),
        # Operations that each end says were done.
        StructField("clients", LongType(), nullable=False),
        StructField("broker", LongType(), nullable=False),
        StructField("difference", LongType(), nullable=False),
        # Messages, by how they differ.
        StructField("only_clients", LongType(), nullable=False),
        StructField("only_broker", LongType(), nullable=False),
        StructField("ambiguous_done", LongType(), nullable=False),
        StructField("ambiguous_not_done", LongType(), nullable=False),
        StructField("given_back", LongType(), nullable=False),
        StructField("too_young", LongType(), nullable=False),
    ]
)
