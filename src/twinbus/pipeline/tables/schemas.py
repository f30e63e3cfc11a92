"""The columns of all tables as literal schemas; the ledger's is that of `ledger.record`.

First the ledger and messages, then the gold tables, then the tables of reports. `gold` says what
each column of a stored table means. At the end fields of records as columns; days and shorter spans
of time are in UTC, in any session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import types as T

from twinbus.ledger.record import FIELDS
from twinbus.pipeline import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column

_TYPES: Final = {
    "binary": T.BinaryType(),
    "boolean": T.BooleanType(),
    "date": T.DateType(),
    "integer": T.IntegerType(),
    "long": T.LongType(),
    "string": T.StringType(),
    "strings": T.MapType(T.StringType(), T.StringType()),
    "timestamp": T.TimestampType(),
}


def schema(*runs: str) -> T.StructType:
    """Return the schema of runs of columns, each `type: names`; `type?` is nullable."""
    columns = []
    for kind, _, names in (run.partition(": ") for run in runs):
        of_type = _TYPES[kind.removesuffix("?")]
        columns += [T.StructField(name, of_type, kind.endswith("?")) for name in names.split()]
    return T.StructType(columns)


CORRUPT: Final = "_corrupt"
"""Where Spark puts a line that it cannot read as a record."""

_OF_WRITERS: Final = frozenset("number hash previous before host started_ms interval_ms".split())
"""Fields of lines that are no records (`ledger.facts`)."""

LEDGER: Final = T.StructType(
    # Spark's reader takes a schema as a wish: every field of a file can turn out null.
    [
        T.StructField(name, _TYPES["long" if kind is int else "string"])
        for name, kind in FIELDS.items()
        if name not in _OF_WRITERS
    ]
)

MESSAGES: Final = schema("string: primary_label destination message_id")

SIGHTINGS: Final = schema(
    # The place is "waiting" or "dead_lettered".
    "string: destination message_id place primary_label"
)

TALLIES: Final = schema(
    "long: at_ms",
    "string?: pair namespace side entity backlog_queue cause operation outcome view",
    "string?: message_id process error state",
    "long: records units bytes unrecorded",
)
"""What `records.tallied` gives, which is not stored."""

JOURNEYS: Final = schema(
    "string: primary_label destination message_id receiver",
    # Any of the records.
    "boolean: tried sent diverted ambiguous received set_aside completed came_out deferred",
    "boolean: broker_enqueued broker_received broker_completed broker_expired broker_dead_lettered",
    "boolean: labelled twinned",
    # Sums.
    "long: failed_sends receipts forwards broker_copies broker_ended accepts diverts",
    "long: twin_forwards twin_ended second_copies returned lost_locks",
    # The greatest, and the last times.
    "long: size_bytes last_ms",
    "long?: settled_ms forwarded_ms",
    # The first times.
    "long: first_ms",
    "long?: accepted_ms diverted_ms tried_ms delivered_ms received_ms begun_ms",
)

FATES: Final = schema(
    "string: primary_label destination message_id",
    "boolean: tried accepted diverted ambiguous acknowledged received came_out",
    "boolean: broker_enqueued broker_received broker_completed broker_expired broker_dead_lettered",
    "boolean: twinned at_twin",
    "long: failed_sends forwards broker_copies broker_ended accepts diverts",
    "long: twin_forwards twin_ended second_copies redeliveries lost_locks copies",
    "long: repeats times",
    "string?: repeated_at",
    "long: size_bytes",
    "long?: accepted_ms delivered_ms received_ms entered_ms forwarded_ms left_ms first_ms last_ms",
    # See `core.rules.FATES_OF_ACCEPTED`; null where the message was not accepted.
    "string?: fate",
)

NOTABLE: Final = T.StructType([*FATES.fields, *schema("long: messages").fields])

CHARGES: Final = schema(
    "date: day",
    "string: primary_label namespace entity cause operation stage direction outcome view",
    "boolean: assumed",
    "long: operations units bytes",
)

DELIVERIES: Final = schema(
    # Of the delivery.
    "date: day",
    "string: primary_label destination",
    "boolean: moved twinned received",
    "long: messages units bytes",
)

TRAFFIC: Final = schema(
    "long: at_s",
    "string: primary_label entity",
    # Failed and unanswered are attempts on the primary.
    "long: sent diverted to_twin failed unanswered came_out forwarded",
    "long: settled received polls",
)

DIVERSIONS: Final = schema(
    "long: at_s",
    "string: pair entity process",
    # Pings are signs of life while it diverts nothing.
    "long: diverted not_diverted pings",
)

STATES: Final = schema("long: at_ms", "string: pair entity process state reason", "long: changes")

LINES: Final = schema(
    "date: day",
    "string: view",
    "long: records nameless unrecorded",
)

VIEWS: Final = schema(
    "date: day",
    # Operations are as the broker names them.
    "string: primary_label namespace place operation view outcome",
    "long: operations",
)

FATE_SUMS: Final = schema(
    # Of the first record of the message.
    "date: day",
    "string: primary_label destination",
    "long: tried accepted raised diverted ambiguous entered received received_accepted",
    "long: moved_unsent received_unsent",
    # Masked: a message that is not delivered can be behind one that is.
    "long: reused masked",
    # Of the accepted ones; then receipts that are no further hand-outs, or that were wanted.
    "long: twinned at_twin broker_completed second_copies redeliveries",
    # One for each of `core.rules.FATES_OF_ACCEPTED`, as known without a peek.
    "long: delivered dead_lettered expired waiting lost undecided",
)

STAYS: Final = schema(
    "string: primary_label destination",
    "long: entered_s",
    "long?: left_s",
    "long: messages waited_ms",
)

RAISED: Final = schema("long: at_s", "string: primary_label destination", "long: messages")

AGES: Final = schema(
    "string: primary_label destination",
    # The age is that of messages in the backlog at their last forward: see `conservation.ages`.
    "long: age_s messages",
)

SKEWS: Final = schema("string: primary_label destination step", "long: up_to_ms messages")

WINDOWS: Final = schema(
    "string: pair entity process",
    # When the first attempt failed; null where none did: a person's command.
    "long?: suspect_ms",
    "long: failed_over_ms",
    # Recovered is null if this process did not see it return; the process's end is that of a window
    # that ended with its process. Null in both: it is open.
    "long?: recovered_ms process_ended_ms",
    "string: reason",
    # Messages that this process diverted meanwhile; null where they were not counted.
    "long?: saved",
)

DOWNTIMES: Final = schema(
    "string: primary_label entity", "long: failovers failed_over_ms", "boolean: open"
)


DAY_MS: Final = 86_400_000

_LEFT_OUT: Final = {"outcome": "ok", "view": "client"}


def field(name: str) -> Column:
    """A text field of a record, with what it means where it is left out."""
    return F.coalesce(F.col(name), F.lit(_LEFT_OUT.get(name, ""))).alias(name)


def day_of(at_ms: Column) -> Column:
    """The day in UTC."""
    return F.date_add(F.lit("1970-01-01").cast("date"), F.floor(at_ms / DAY_MS).cast("int"))


def bucket_of(at_ms: Column, bucket_s: int) -> Column:
    """The beginning of the `bucket_s` seconds that a time falls into, in unix seconds."""
    return F.floor(at_ms / (1000 * bucket_s)) * bucket_s
