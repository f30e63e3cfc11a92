"""The columns of all tables as literal schemas; the ledger's is that of `ledger.record`.

First the ledger and messages, then the gold tables (`gold`), then the tables of reports. At the end
fields of records as columns; days and shorter spans of time are in UTC, in any session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql import types as T

from twinbus.ledger.record import FIELDS

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

SIGHTINGS: Final = schema(
    # The place is "waiting" or "dead_lettered".
    "string: destination message_id place primary_label"
)

JOURNEYS: Final = schema(
    # The label is that of the primary (`pairs`). The receiver is the subscription that a row of
    # receipts is about; empty in all other rows.
    "string: primary_label destination message_id receiver",
    # Any. Tried: a send or divert is recorded, whatever its outcome. Ambiguous: one of them ended
    # without an answer.
    "boolean: tried sent diverted ambiguous received",
    # What the syphon did in the backlog: dead-lettered, completed, received, deferred it.
    "boolean: set_aside completed came_out deferred",
    # What the broker says it saw.
    "boolean: broker_enqueued broker_received broker_completed broker_expired broker_dead_lettered",
    # A client named the pair.
    "boolean: labelled",
    # Sums. Copies are those that the broker stored, and those that ended: completed, set aside or
    # expired. Accepts are acknowledged sends and diverts: more than one if the id was used again.
    "long: failed_sends receipts forwards broker_copies broker_ended accepts diverts",
    # The greatest, and the last times.
    "long: size_bytes last_ms",
    "long?: settled_ms forwarded_ms",
    # The first times. `tried_ms` is of a divert, whatever its outcome.
    "long: first_ms",
    "long?: accepted_ms diverted_ms tried_ms delivered_ms received_ms",
)

FATES: Final = schema(
    "string: primary_label destination message_id",
    # As in JOURNEYS. Acknowledged: a delivery to the destination was.
    "boolean: tried accepted diverted ambiguous acknowledged received came_out",
    "boolean: broker_enqueued broker_received broker_completed broker_expired broker_dead_lettered",
    "long: failed_sends forwards broker_copies broker_ended accepts diverts",
    # Receipts past the first, over all entities that received it; how often the entity received it
    # that did so most often; and if twice or more, which.
    "long: repeats times",
    "string?: repeated_at",
    "long: size_bytes",
    # Forwarded: the last time. Left: when it was out of the backlog. First and last are records of
    # any kind.
    "long?: accepted_ms delivered_ms received_ms entered_ms forwarded_ms left_ms first_ms last_ms",
    # See `journeys.FATES_OF_ACCEPTED`; null where the message was not accepted.
    "string?: fate",
)

NOTABLE: Final = T.StructType([*FATES.fields, *schema("long: messages").fields])

CHARGES: Final = schema(
    "date: day",
    # The stages are in `charges`. The direction is "in" to the namespace, "out" of it, or "none":
    # the call carries no message. The view is "client", or "broker" for what the broker saw.
    "string: primary_label namespace entity cause operation stage direction outcome view",
    # Computed from the deliveries and not recorded.
    "boolean: assumed",
    "long: operations units bytes",
)

DELIVERIES: Final = schema(
    # Of the delivery.
    "date: day",
    "string: primary_label destination",
    # It went through the backlog.
    "boolean: moved",
    "long: messages units bytes",
)

TRAFFIC: Final = schema(
    "long: at_s",
    "string: primary_label entity",
    # Failed and unanswered are attempts on the primary.
    "long: sent diverted failed unanswered came_out forwarded",
    # Settled: completed or set aside in a backlog queue. Polls are receives from a backlog queue
    # that found nothing: about no entity.
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
    # Nameless are accepted messages without an id or an entity: they cannot be followed.
    # Unrecorded are records that processes say they could not write.
    "long: records nameless unrecorded",
)

VIEWS: Final = schema(
    "date: day",
    # The place is the path of the entity or of the backlog queue; operations are as the broker
    # names them.
    "string: primary_label namespace place operation view outcome",
    "long: operations",
)

FATE_SUMS: Final = schema(
    # Of the first record of the message.
    "date: day",
    "string: primary_label destination",
    "long: tried accepted raised diverted ambiguous entered received received_accepted",
    # Of messages that no record says were tried: moved by the syphon, or only received.
    "long: moved_unsent received_unsent",
    # Of ids that were accepted more than once; of these, ids with more diverts than forwards: a
    # message that is not delivered can be behind one that is.
    "long: reused masked",
    # One for each of `journeys.FATES_OF_ACCEPTED`, as known without a peek.
    "long: delivered dead_lettered expired waiting lost undecided",
)

STAYS: Final = schema(
    "string: primary_label destination",
    "long: entered_s",
    # Null while it is in the backlog, for all that is known.
    "long?: left_s",
    "long: messages waited_ms",
)

RAISED: Final = schema("long: at_s", "string: primary_label destination", "long: messages")

AGES: Final = schema(
    "string: primary_label destination",
    # The age is that of messages in the backlog at their last forward: see `conservation.ages`.
    "long: age_s messages",
)

SKEWS: Final = schema(
    # The step names the two steps whose times are in the wrong order.
    "string: primary_label destination step",
    # By so much at most: a power of two.
    "long: up_to_ms messages",
)

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
