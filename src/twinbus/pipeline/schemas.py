"""What the tables read and give, as literal schemas. The ledger's is that of `ledger.record`."""

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

__all__ = [
    "AGES",
    "BACKLOG",
    "CHARGES",
    "CORRUPT",
    "DELIVERIES",
    "DEPTH",
    "DIVERSIONS",
    "DOWNTIMES",
    "DRAINS",
    "DUPLICATES",
    "FATES",
    "FATE_SUMS",
    "JOURNEYS",
    "LEDGER",
    "LINES",
    "PERCENTILES",
    "RAISED",
    "SENDS",
    "SIGHTINGS",
    "SKEWS",
    "STATES",
    "STAYS",
    "TRAFFIC",
    "WINDOWS",
]

CORRUPT: Final = "_corrupt"
"""Where Spark puts a line that it cannot read as a record."""

LEDGER: Final = StructType(
    [
        # Spark's reader takes a schema as a wish: every field of a file can turn out null.
        StructField("v", LongType()),
        StructField("at_ms", LongType()),
        StructField("operation", StringType()),
        StructField("process", StringType()),
        StructField("cause", StringType()),
        StructField("pair", StringType()),
        StructField("namespace", StringType()),
        StructField("side", StringType()),
        StructField("entity", StringType()),
        StructField("backlog_queue", StringType()),
        StructField("message_id", StringType()),
        StructField("sequence_number", LongType()),
        StructField("size_bytes", LongType()),
        StructField("outcome", StringType()),
        StructField("error", StringType()),
        StructField("latency_us", LongType()),
        StructField("state", StringType()),
        StructField("trace_id", StringType()),
        StructField("view", StringType()),
        StructField("unrecorded", LongType()),
    ]
)

SIGHTINGS: Final = StructType(
    [
        StructField("destination", StringType(), nullable=False),
        StructField("message_id", StringType(), nullable=False),
        # "waiting" or "dead_lettered".
        StructField("place", StringType(), nullable=False),
    ]
)

CHARGES: Final = StructType(
    [
        StructField("day", DateType(), nullable=False),
        StructField("namespace", StringType(), nullable=False),
        StructField("entity", StringType(), nullable=False),
        StructField("cause", StringType(), nullable=False),
        StructField("operation", StringType(), nullable=False),
        # See `charges.stage_of`.
        StructField("stage", StringType(), nullable=False),
        # "in" to the namespace, "out" of it, or "none": the call carries no message.
        StructField("direction", StringType(), nullable=False),
        StructField("outcome", StringType(), nullable=False),
        # "client", or "broker" for what the broker says it saw.
        StructField("view", StringType(), nullable=False),
        # Worked out from the deliveries and not recorded.
        StructField("assumed", BooleanType(), nullable=False),
        StructField("operations", LongType(), nullable=False),
        StructField("units", LongType(), nullable=False),
        StructField("bytes", LongType(), nullable=False),
    ]
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

JOURNEYS: Final = StructType(
    [
        StructField("destination", StringType(), nullable=False),
        StructField("message_id", StringType(), nullable=False),
        # The subscription that a row of receipts is about; empty in all other rows.
        StructField("receiver", StringType(), nullable=False),
        # Any. A send or divert of it is recorded, whatever came of it.
        StructField("tried", BooleanType(), nullable=False),
        StructField("sent", BooleanType(), nullable=False),
        StructField("diverted", BooleanType(), nullable=False),
        # A send or divert ended without an answer.
        StructField("ambiguous", BooleanType(), nullable=False),
        StructField("received", BooleanType(), nullable=False),
        # What the syphon did in the backlog: dead-lettered, completed, received, deferred it.
        StructField("set_aside", BooleanType(), nullable=False),
        StructField("completed", BooleanType(), nullable=False),
        StructField("came_out", BooleanType(), nullable=False),
        StructField("deferred", BooleanType(), nullable=False),
        # What the broker says it saw.
        StructField("broker_enqueued", BooleanType(), nullable=False),
        StructField("broker_received", BooleanType(), nullable=False),
        StructField("broker_expired", BooleanType(), nullable=False),
        StructField("broker_dead_lettered", BooleanType(), nullable=False),
        # Sums.
        StructField("failed_sends", LongType(), nullable=False),
        StructField("receipts", LongType(), nullable=False),
        StructField("forwards", LongType(), nullable=False),
        # The greatest, and the last times.
        StructField("size_bytes", LongType(), nullable=False),
        StructField("last_ms", LongType(), nullable=False),
        StructField("settled_ms", LongType()),
        StructField("forwarded_ms", LongType()),
        # The first times.
        StructField("first_ms", LongType(), nullable=False),
        StructField("accepted_ms", LongType()),
        StructField("diverted_ms", LongType()),
        # Of a divert, whatever came of it.
        StructField("tried_ms", LongType()),
        StructField("delivered_ms", LongType()),
        StructField("received_ms", LongType()),
    ]
)

FATES: Final = StructType(
    [
        StructField("destination", StringType(), nullable=False),
        StructField("message_id", StringType(), nullable=False),
        # A send or divert of it is recorded, whatever came of it.
        StructField("tried", BooleanType(), nullable=False),
        StructField("accepted", BooleanType(), nullable=False),
        StructField("diverted", BooleanType(), nullable=False),
        # A send or divert ended without an answer.
        StructField("ambiguous", BooleanType(), nullable=False),
        # A delivery to the destination was acknowledged.
        StructField("acknowledged", BooleanType(), nullable=False),
        StructField("received", BooleanType(), nullable=False),
        StructField("broker_enqueued", BooleanType(), nullable=False),
        StructField("broker_received", BooleanType(), nullable=False),
        StructField("broker_expired", BooleanType(), nullable=False),
        StructField("broker_dead_lettered", BooleanType(), nullable=False),
        StructField("failed_sends", LongType(), nullable=False),
        StructField("forwards", LongType(), nullable=False),
        # Receipts past the first, over all entities that received it.
        StructField("repeats", LongType(), nullable=False),
        # How often the entity received it that did so most often; and if twice or more, which.
        StructField("times", LongType(), nullable=False),
        StructField("repeated_at", StringType()),
        StructField("size_bytes", LongType(), nullable=False),
        StructField("accepted_ms", LongType()),
        StructField("delivered_ms", LongType()),
        StructField("received_ms", LongType()),
        StructField("entered_ms", LongType()),
        StructField("left_ms", LongType()),
        # The earliest record of any kind.
        StructField("first_ms", LongType()),
        StructField("last_ms", LongType()),
        # See `journeys.FATES_OF_ACCEPTED`; null where the message was not accepted.
        StructField("fate", StringType()),
    ]
)

DUPLICATES: Final = StructType(
    [
        StructField("entity", StringType(), nullable=False),
        StructField("destination", StringType(), nullable=False),
        StructField("message_id", StringType(), nullable=False),
        StructField("times", LongType(), nullable=False),
        StructField("window", StringType(), nullable=False),
    ]
)

SENDS: Final = StructType(
    [
        StructField("at_s", LongType(), nullable=False),
        StructField("to_primary", LongType(), nullable=False),
        StructField("to_backlog", LongType(), nullable=False),
    ]
)

DEPTH: Final = StructType(
    [
        StructField("at_s", LongType(), nullable=False),
        StructField("depth", LongType(), nullable=False),
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
    ]
)

DIVERSIONS: Final = StructType(
    [
        StructField("at_s", LongType(), nullable=False),
        StructField("entity", StringType(), nullable=False),
        StructField("process", StringType(), nullable=False),
        StructField("diverted", LongType(), nullable=False),
        StructField("not_diverted", LongType(), nullable=False),
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
        # Null where no attempt failed first: a failover interval of 0, or a person's command.
        StructField("suspect_ms", LongType()),
        StructField("failed_over_ms", LongType(), nullable=False),
        # Null: the window is open.
        StructField("recovered_ms", LongType()),
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
