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
        StructField("broker_completed", BooleanType(), nullable=False),
        StructField("broker_expired", BooleanType(), nullable=False),
        StructField("broker_dead_lettered", BooleanType(), nullable=False),
        # Sums.
        StructField("failed_sends", LongType(), nullable=False),
        StructField("receipts", LongType(), nullable=False),
        StructField("forwards", LongType(), nullable=False),
        # Copies that the broker stored, and those that ended: completed, set aside or expired.
        StructField("broker_copies", LongType(), nullable=False),
        StructField("broker_ended", LongType(), nullable=False),
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
        StructField("broker_completed", BooleanType(), nullable=False),
        StructField("broker_expired", BooleanType(), nullable=False),
        StructField("broker_dead_lettered", BooleanType(), nullable=False),
        StructField("failed_sends", LongType(), nullable=False),
        StructField("forwards", LongType(), nullable=False),
        StructField("broker_copies", LongType(), nullable=False),
        StructField("broker_ended", LongType(), nullable=False),
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
        # The last forward, and when it was out of the backlog.
        StructField("forwarded_ms", LongType()),
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
