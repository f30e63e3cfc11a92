"""The gold tables: additive sums of each batch, so that a report need not read all records.

A table has keys and sums. Sums of two lots of records can be added, and the share of a message can
be subtracted: the store (`store`) needs to know no more of a table.

    records, tallies     counted from the records, or from their tallies (`records`): each record
                         once, in its batch
    messages, followed   counted from the facts of each message (`journeys`), or of those that were
                         more than sent and received: a batch adds the current share of its
                         messages, and subtracts their earlier share

Reports read only these sums, and ids from the `notable` messages, which are kept by id in an
additive table too. Notable is an accepted message that is not delivered by the ledger's records, or
that exists more than once; and, with a broker's ledger, its records of messages in backlog queues.
Their number depends on diverted and failed messages, not on the traffic. A report adds the broker's
view (`conservation.with_broker_view`) and the sightings of peeks (`journeys.with_peek`).

At the end: which tables are stored, their columns, and the comments that a catalog shows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Any, Final, Literal

from pyspark.sql.types import LongType, StructField, StructType

from twinbus.pipeline import functions as F
from twinbus.pipeline.core import rules
from twinbus.pipeline.core.rules import ANSWER_MAX_MS
from twinbus.pipeline.tables import (
    availability,
    charges,
    conservation,
    reconciliation,
    schemas,
)
from twinbus.pipeline.tables.bronze import STORED_RECORDS
from twinbus.pipeline.tables.calculus import COLUMNS, MESSAGE_COLUMNS
from twinbus.pipeline.tables.quarantine import QUARANTINE, QUARANTINED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BUCKET_S: Final = 60
"""Seconds of a bucket in the stored tables: a year of one entity is half a million rows."""

Sums = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True)
class Sources:
    """One lot of records, in the forms that tables are counted from."""

    records: DataFrame
    """Valid records, of both views."""
    tallies: DataFrame
    messages: DataFrame
    """One row each, as `journeys.judged` gives them."""
    followed: DataFrame
    """Those of the messages that `is_followed`; all of them give the same tables."""


@dataclass(frozen=True)
class GoldTable:
    """One additive table: `keys` identify rows, every other column is a sum."""

    name: str
    schema: StructType
    first_sum: str
    """The columns before this one are keys."""
    source: Literal["records", "tallies", "messages", "followed"]
    sums_of: Sums
    """From the rows of the source to rows of the schema."""

    def __post_init__(self) -> None:
        assert self.keys, self.name

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify rows."""
        names = self.schema.fieldNames()
        return tuple(names[: names.index(self.first_sum)])

    @property
    def sums(self) -> tuple[str, ...]:
        return tuple(self.schema.fieldNames()[len(self.keys) :])

    def rows(self, sources: Sources) -> DataFrame:
        return self.sums_of(getattr(sources, self.source))


def gold_tables(bucket_s: int = BUCKET_S) -> tuple[GoldTable, ...]:
    """Every table, those over time in points of `bucket_s` seconds."""

    def over_time(sums: Callable[..., DataFrame]) -> Sums:
        return partial(sums, bucket_s=bucket_s)

    traffic, diversions = over_time(availability.traffic), over_time(availability.diversions)
    stays, raised = over_time(availability.stays), over_time(availability.raised)
    return (
        GoldTable("charges", schemas.CHARGES, "operations", "tallies", charges.charges),
        GoldTable("traffic", schemas.TRAFFIC, "sent", "tallies", traffic),
        GoldTable("diversions", schemas.DIVERSIONS, "diverted", "tallies", diversions),
        GoldTable(STATES, schemas.STATES, "changes", "records", availability.states),
        GoldTable("lines", schemas.LINES, "records", "tallies", conservation.lines),
        GoldTable("views", schemas.VIEWS, "operations", "tallies", reconciliation.views),
        GoldTable("fates", schemas.FATE_SUMS, "tried", "messages", conservation.fate_sums),
        GoldTable("deliveries", schemas.DELIVERIES, "messages", "messages", charges.deliveries),
        GoldTable("stays", schemas.STAYS, "messages", "followed", stays),
        GoldTable("raised", schemas.RAISED, "messages", "followed", raised),
        GoldTable("ages", schemas.AGES, "messages", "followed", conservation.ages),
        GoldTable("skews", schemas.SKEWS, "messages", "followed", conservation.skews),
    )


def merged(table: GoldTable, parts: Sequence[DataFrame]) -> DataFrame:
    """Return the sums of all parts, without rows whose sums are all 0."""
    together = reduce(lambda left, right: left.unionByName(right), parts)
    summed = together.groupBy(*table.keys).agg(*(F.sum(name).alias(name) for name in table.sums))
    is_not_zero = reduce(
        lambda left, right: left | right, (F.col(name) != 0 for name in table.sums)
    )
    return summed.where(is_not_zero).select(*table.schema.fieldNames())


def summed(table: GoldTable, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what `merged` does, of rows that are in this process."""
    sums: dict[tuple[Any, ...], list[int]] = {}
    for row in rows:
        key = tuple(row[name] for name in table.keys)
        values = [row[name] for name in table.sums]
        known = sums.get(key)
        sums[key] = values if known is None else [*map(add, known, values)]
    names = table.schema.fieldNames()
    return [
        dict(zip(names, (*key, *values), strict=True))
        for key, values in sums.items()
        if any(values)
    ]


def is_followed() -> Column:
    """Return whether a message is in a table of the source `followed`.

    It went through the backlog, its send raised, it was received long before it was accepted, or it
    is notable.
    """
    raised = F.col("tried") & ~F.col("accepted")
    moved = F.col("entered_ms").isNotNull() | (F.col("forwards") > 0)
    # As in `conservation.skews`: many a consumer is faster than the answer to the sender.
    early_ms = F.col("accepted_ms") - F.col("received_ms")
    skewed = F.coalesce(early_ms > ANSWER_MAX_MS, F.lit(False))
    return raised | moved | skewed | _is_notable()


def notable(fates: DataFrame) -> DataFrame:
    """Return the notable messages, each once."""
    return fates.where(_is_notable()).withColumn("messages", F.lit(1).cast("long"))


def _is_notable() -> Column:
    missing: Column = rules.is_missing(COLUMNS, MESSAGE_COLUMNS)
    return missing | conservation.is_duplicate() | conservation.in_backlog(F.col("destination"))


def with_fates(named: DataFrame, states: DataFrame) -> DataFrame:
    """Return the notable messages, as `schemas.FATES`, with the broker's view of the backlog.

    So their fates are more precise than in the sums. `states` is the gold table.
    """
    rows, there = (
        named.select(*schemas.FATES.fieldNames()),
        conservation.in_backlog(F.col("destination")),
    )
    return conservation.with_broker_view(rows.where(~there), rows.where(there), states)


NOTABLE: Final = GoldTable("notable", schemas.NOTABLE, "messages", "followed", notable)


BRONZE: Final = "bronze"
STATES: Final = "states"
JOURNEYS: Final = "journeys"
EXPECTATIONS: Final = "expectations"
SUMS: Final = "sums"
"""The word for all gold tables together in texts."""

CHECKED: Final = schemas.schema(
    "string: expectation", "long: batch checked_ms expected found", "boolean: holds"
)
"""Expectations as they are stored (`store.expectations`)."""

STORED_JOURNEYS: Final = StructType(
    [*schemas.JOURNEYS.fields, StructField("key_hash", LongType(), nullable=False)]
)


def kept_tables() -> tuple[GoldTable, ...]:
    """Every table of sums that is kept, with the messages that can be named."""
    return (*gold_tables(), NOTABLE)


def stored_schemas() -> dict[str, StructType]:
    """The columns of every stored table, by name, each with its comment."""
    gold = {table.name: table.schema for table in kept_tables()}
    stored = {BRONZE: STORED_RECORDS, QUARANTINE: QUARANTINED, JOURNEYS: STORED_JOURNEYS, **gold}
    stored[EXPECTATIONS] = CHECKED
    return {name: commented(name, schema) for name, schema in stored.items()}


def signature_of(tables: Sequence[GoldTable]) -> str:
    """A digest of names and columns: tables of other columns cannot be added to."""
    columns = "\n".join(f"{table.name} {table.keys} {table.schema.json()}" for table in tables)
    return hashlib.sha256(columns.encode()).hexdigest()[:16]


TABLE_COMMENTS: Final[Mapping[str, str]] = {
    "bronze": "Every record of the ledger.",
    "quarantine": "The first rejected lines of each file of the ledger.",
    "journeys": "What each batch of records says of its messages, one row a message and receiver.",
    "charges": "Operations on the namespaces by day, entity, cause and stage.",
    "traffic": "What clients did with the messages of an entity, by minute.",
    "diversions": "Diverts and pings of each process, by minute.",
    "states": "Every change of an entity's state, and the queues that were deleted.",
    "lines": "Records of each day, and what they leave out.",
    "views": "Operations as clients and as the broker recorded them, by day and place.",
    "fates": "Messages by the day of their first record and by fate.",
    "deliveries": "Messages that their destination, or its twin, acknowledged, by day.",
    "stays": "Messages that went by the backlog, by the minutes in which they came and left.",
    "raised": "Messages whose send raised an error, by minute.",
    "ages": "Messages by their time in the backlog at their last forward.",
    "skews": "Messages whose steps are in the wrong order, because clocks disagree.",
    "notable": "Messages that a report may name: not delivered, duplicated, or in a backlog queue.",
    "expectations": "What must hold of the tables, as the last batch found it, and what did not.",
}

_COLUMNS: Final[Mapping[str, str]] = {
    "accepts": "Acknowledged sends and diverts; more than one: the id was used again.",
    "accepted": "A send or a divert was acknowledged.",
    "accepted_ms": "First acknowledged send or divert, in unix milliseconds.",
    "acknowledged": "A delivery to the destination, or to its twin, was acknowledged.",
    "age_s": "Seconds in the backlog, rounded up; past an hour to minutes.",
    "ambiguous": "A send or divert ended without an answer.",
    "at_twin": "Its twin acknowledged it, and no record says that it left the twin.",
    "assumed": "Computed from the deliveries, not recorded.",
    "at_ms": "Time in unix milliseconds.",
    "at_s": "First second of the bucket, in unix time.",
    "backlog_queue": "Backlog queue that the call was about; of a twin, the path of its entity.",
    "batch": "Batch of the ledger's files that brought it; null: an earlier version took it.",
    "begun_ms": "When its first attempt began, in unix milliseconds.",
    "broker_completed": "The broker says that a receiver completed it.",
    "broker_copies": "Copies that the broker stored, in both namespaces.",
    "broker_dead_lettered": "The broker says that it was dead-lettered.",
    "broker_ended": "Copies that the broker says were completed, dead-lettered or expired.",
    "broker_enqueued": "The broker says that it stored the message.",
    "broker_expired": "The broker says that it expired.",
    "broker_received": "The broker says that it delivered the message to a receiver.",
    "bytes": "Sum of the message sizes in bytes.",
    "came_out": "The syphon received it from a backlog queue.",
    "cause": "Who wanted the operation: application, failover, ping, syphon, poll, lease,"
    " administration, consumer or board.",
    "changes": "Number of such records.",
    "checked_ms": "When it was checked, in unix milliseconds.",
    "client": "Client of a gateway that sent the message: its connection's container id.",
    "completed": "The syphon completed it in the backlog or in a twin.",
    "copies": "Copies that the broker stored for consumers: without those that the syphon took out"
    " of a twin and those that a receiver completed without handing them out.",
    "day": "Day in UTC.",
    "deferred": "The syphon deferred it in the backlog.",
    "delivered_ms": "First send, divert to a twin, forward or receipt that succeeded, in unix"
    " milliseconds.",
    "destination": "Queue or topic that the message belongs to, in lower case.",
    "direction": "in: the message goes into the namespace; out: it leaves it; none: the call"
    " carries no message.",
    "diverted": "A divert to a backlog queue was acknowledged.",
    "diverted_ms": "First acknowledged divert to a backlog queue, in unix milliseconds.",
    "diverts": "Acknowledged diverts to a backlog queue.",
    "entered_ms": "When it came into the backlog, in unix milliseconds.",
    "entered_s": "First second of the bucket in which the messages came into the backlog.",
    "entity": "Path of the entity in the primary.",
    "error": "Error of the call, or reason of the change.",
    "expectation": "records: a set counts what bronze has; sums: those of all days do; versions:"
    " each table is of the set.",
    "expected": "What bronze, or the set, has.",
    "failed_sends": "Sends and diverts that failed.",
    "fate": "delivered, dead_lettered, expired, waiting, lost or undecided; null: not accepted.",
    "file": "File of the ledger that has it; null: an earlier version took it.",
    "first_ms": "First record, in unix milliseconds.",
    "found": "What was found.",
    "forwarded_ms": "Last forward from the backlog, in unix milliseconds.",
    "forwards": "Acknowledged forwards by the syphon, from the backlog and from twins.",
    "holds": "Whether they agree.",
    "key_hash": "Hash of destination and message id, for look-ups.",
    "labelled": "A client named the pair.",
    "last_ms": "Last record, in unix milliseconds.",
    "latency_us": "Duration of the call in microseconds.",
    "left_ms": "When it was out of the backlog, in unix milliseconds.",
    "left_s": "First second of the bucket in which the messages left the backlog; null: not yet.",
    "lines": "Messages that a broker found in a backlog queue when it began.",
    "lost_locks": "Settlements by consumers that failed, had no answer or were left out.",
    "message_id": "Id of the message.",
    "messages": "Number of messages.",
    "moved": "The syphon brought the messages home, from the backlog or from a twin.",
    "nameless": "Accepted messages without an id or an entity, which cannot be followed.",
    "namespace": "Label of the namespace that was called.",
    "not_diverted": "Diverts that failed or had no answer.",
    "operation": "What was done: send, divert, ping, backlog_receive, complete, defer, dead_letter,"
    " abandon, release, forward, receive, renew, manage, state, expire or action.",
    "operations": "Number of operations.",
    "outcome": "ok, failed, or unknown: the call ended without an answer.",
    "pair": "Label of the pair.",
    "pings": "Pings of the primary.",
    "place": "Path of the entity or of the backlog queue.",
    "primary_label": "Label of the primary that the entity belongs to; empty: no record tells.",
    "process": "Process that wrote the record.",
    "reason": "Why the state changed.",
    "receipts": "Receipts by consumers.",
    "received": "A consumer received it.",
    "received_ms": "First receipt by a consumer, in unix milliseconds.",
    "receiver": "Subscription whose receipts the row is about; empty in all other rows.",
    "records": "Number of records.",
    "repeated_at": "Entity that received it most often; null: none did twice.",
    "redeliveries": "Receipts of what a consumer had abandoned, deferred or released.",
    "repeats": "Receipts after the first, over all entities that received it, without second copies"
    " and redeliveries.",
    "returned": "Abandons, deferrals and releases by consumers.",
    "second_copies": "Copies that receivers completed without handing them out.",
    "sent": "A send to the primary was acknowledged.",
    "sequence_number": "Sequence number of the message in its entity.",
    "set_aside": "The syphon dead-lettered it in the backlog or in a twin.",
    "settled_ms": "Last completion or dead-lettering in the backlog, in unix milliseconds.",
    "side": "primary or secondary.",
    "size_bytes": "Size of the message in bytes.",
    "stage": "What the call is charged for: send_backlog, receive_backlog, send_twin, receive_twin,"
    " send_primary, receive_primary, poll, ping, settlement, renew or management.",
    "state": "State that the entity or the pair changed to; second_copy: a receiver completed the"
    " message without handing it out; left: a receiver had the message and left it unsettled.",
    "step": "The two steps whose times are in the wrong order.",
    "taken_ms": "When its batch was taken, in unix milliseconds.",
    "text": "Beginning of the line; empty: it named an erased message.",
    "times": "Receipts at the entity that received it most often.",
    "trace_id": "Trace that the operation belongs to.",
    "tried": "A send or divert is recorded, whatever its outcome.",
    "tried_ms": "First divert to a backlog queue, whatever its outcome, in unix milliseconds.",
    "twin_ended": "Copies that the syphon completed or dead-lettered in a twin.",
    "twin_forwards": "Acknowledged forwards by the syphon from a twin.",
    "twinned": "A divert to the twin was acknowledged.",
    "units": "Billed units: one for each started 64 KB.",
    "unrecorded": "Records that processes say they could not write.",
    "up_to_ms": "Upper bound of the difference in milliseconds: a power of two.",
    "v": "Version of the record's format.",
    "view": "Who recorded it: client or broker.",
    "waited_ms": "Sum of the times in the backlog, in milliseconds.",
}
"""By column, wherever it means the same."""

_COUNTED: Final[Mapping[str, Mapping[str, str]]] = {
    "charges": {"entity": "Entity, or backlog queue of a call about none."},
    "deliveries": {
        "received": "A consumer received them, by its own records or those of the broker.",
        "twinned": "Their twin acknowledged them.",
    },
    "diversions": {"diverted": "Acknowledged diverts, to backlog queues and to twins."},
    "fates": {
        "accepted": "Messages that were accepted: a send or a divert was acknowledged.",
        "at_twin": "Messages that their twin acknowledged and that no record says left it.",
        "ambiguous": "Messages with a send or divert that ended without an answer.",
        "broker_completed": "Accepted messages that a consumer completed, by the broker's records.",
        "dead_lettered": "Accepted messages that were dead-lettered on their way.",
        "delivered": "Accepted messages that are at their destination, or at its twin.",
        "diverted": "Messages that were diverted to the backlog.",
        "entered": "Messages that came into the backlog.",
        "expired": "Accepted messages that expired on their way.",
        "lost": "Accepted messages that are nowhere.",
        "masked": "Ids that were accepted more than once, with more diverts than forwards, or taken"
        " out of a twin more often than forwarded.",
        "moved_unsent": "Messages that the syphon moved and no record says were sent.",
        "raised": "Messages whose send raised an error.",
        "received": "Messages that a consumer received.",
        "received_accepted": "Accepted messages that a consumer received.",
        "received_unsent": "Messages that a consumer received and no record says were sent.",
        "reused": "Ids that were accepted more than once: each counts as one message.",
        "tried": "Messages with a send or divert, whatever its outcome.",
        "twinned": "Messages that their twin acknowledged.",
        "undecided": "Accepted messages that wait in the backlog or are lost: not known.",
        "waiting": "Accepted messages that wait in the backlog.",
    },
    "quarantine": {
        "line": "Number of the line in the file, from 1.",
        "reason": "torn: cut off; newer: of a later version; foreign: anything else.",
    },
    "lines": {"view": "client or broker."},
    "states": {"entity": "Path of the entity in lower case."},
    "traffic": {
        "came_out": "Messages that the syphon received from the backlog or a twin.",
        "diverted": "Acknowledged diverts to backlog queues.",
        "entity": "Queue or topic in lower case; empty: the calls are about none.",
        "failed": "Sends to the primary that failed.",
        "forwarded": "Acknowledged forwards.",
        "polls": "Receives from a backlog queue that found nothing.",
        "received": "Receipts by consumers.",
        "sent": "Acknowledged sends to the primary.",
        "settled": "Messages that the syphon completed or dead-lettered in a backlog queue or a"
        " twin.",
        "to_twin": "Acknowledged diverts to twins.",
        "unanswered": "Sends to the primary that ended without an answer.",
    },
}
"""By table, where the column means something else or is a count of messages."""


def commented(table: str, schema: StructType) -> StructType:
    """A table's schema with the comment of each column, as Spark and Delta keep it."""
    comments = {**_COLUMNS, **_COUNTED.get(table, {})}
    return StructType(
        [
            StructField(one.name, one.dataType, one.nullable, {"comment": comments[one.name]})
            for one in schema
        ]
    )
