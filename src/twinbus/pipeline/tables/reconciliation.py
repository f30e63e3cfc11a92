"""Compares the clients' records with the broker's: the same operations, recorded at both ends.

An operation is compared at its *place*, as the broker names it: the path of the entity or of the
backlog queue. Places of one name in several primaries are compared one by one, if the broker calls
its namespaces as the clients do (`pairs.compared`).

    clients record                               broker records
    send, forward                                send at the entity
    divert                                       send at the backlog queue, or the twin
    receive, and what a consumer settles         receive, complete, ... at the entity, or its twin
    receive that deletes                         receive and complete
    backlog_receive, and what a syphon settles   receive, complete, ... at the backlog queue, or the
                                                 twin

A twin has the path of its entity, so both are one place.

Calls without a message (pings, polls, renewals, management) are not compared, nor are abandons and
releases, which decide no fate, nor what the broker does by itself: auto-forwarding, and
dead-lettering after too much time or deliveries. Nor is the notice board: what hosts do with it
they record as requests.

For each message both ends are counted. `ahead` is how many more operations the clients recorded as
done than the broker did; `unanswered` is how often a client had no answer. So

    only_clients          ahead > 0: acknowledged to a client, and not recorded by the broker
    only_broker           ahead < 0, by more than unanswered calls explain
    ambiguous_done        ahead < 0, as unanswered calls explain: the broker did carry them out
    ambiguous_not_done    ahead = 0 with unanswered calls: the broker did not carry them out
    given_back            a receive with ahead < 0: handed to a receiver that never showed it to its
                          application. It was closed with messages in hand, or let a lock end, or
                          keeps no ledger; the settlement shows the fate of the message
    too_young             only_broker, in the last moments before `newest_ms`: a broker writes
                          before it answers, its client a little after that
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.pipeline import functions as F
from twinbus.pipeline.core.rules import BY_THE_BROKER, DELETED, SECOND_COPY
from twinbus.pipeline.tables.records import LABEL, compared, label_of
from twinbus.pipeline.tables.schemas import VIEWS, day_of, field
from twinbus.servicebus.names import BOARD_MARK

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEYS: Final = (LABEL, "place", "operation")
"""The key by which both ends are compared."""

KINDS: Final = (
    *("only_clients", "only_broker"),
    *("ambiguous_done", "ambiguous_not_done", "given_back", "too_young"),
)

YOUNG_MS: Final = 5_000
"""Within this time a living client has recorded an answer."""

_RECORDED: Final = "recorded_label"

_DELETED: Final = (DELETED, SECOND_COPY)
"""The states of a receive that deletes the message, handed out or not."""

_SETTLEMENTS: Final = ("complete", "defer", "dead_letter")
_AS_THE_BROKER_SAYS: Final = {
    "send": "send",
    "forward": "send",
    "divert": "send",
    "receive": "receive",
    "backlog_receive": "receive",
    **{name: name for name in _SETTLEMENTS},
}


def views(tallies: DataFrame) -> DataFrame:
    """Count the operations that each end recorded at a place: the stored sums."""
    return (
        _placed(tallies, "records")
        .groupBy("day", LABEL, "namespace", "place", "operation", "view", "outcome")
        .agg(F.sum("records").alias("operations"))
        .select(*VIEWS.fieldNames())
    )


def labels_at(views: DataFrame) -> DataFrame:
    """Map each label recorded for a place to the label used for comparison."""
    labels = views.select("place", "view", LABEL).distinct().withColumn(_RECORDED, F.col(LABEL))
    is_sure = (F.col("view") == "client") & (F.col(LABEL) != "")
    return compared(labels, ["place"], is_sure).select("place", _RECORDED, LABEL).distinct()


def disagreements(
    records: DataFrame,
    *,
    labels: DataFrame | None = None,
    began: Column | None = None,
    newest_ms: int | None = None,
) -> DataFrame:
    """Return messages on which the ends disagree, or for which a client had no answer.

    `labels`, here and below, is the result of `labels_at`; None: it is computed from these rows.
    `began` is a condition on `first_ms`, the time of the first record of either end: the other may
    have recorded it a day later. `newest_ms` is the time of the newest record; None: no more
    records will come.
    """
    ok, client = F.col("outcome") == "ok", F.col("view") == "client"
    one, less = F.lit(1).cast("long"), F.lit(-1).cast("long")
    placed = _placed(records, "message_id", "at_ms").where(F.col("message_id").isNotNull())
    placed = _relabelled(placed, labels)
    counted = placed.groupBy(*KEYS, "message_id").agg(
        F.sum(F.when(ok & client, one).when(ok, less).otherwise(0)).alias("ahead"),
        F.count_if(client & (F.col("outcome") == "unknown")).alias("unanswered"),
        F.min("at_ms").alias("first_ms"),
        F.max("at_ms").alias("last_ms"),
    )
    kind = _kind(newest_ms)
    return (
        counted.where(F.lit(True) if began is None else began)
        .where((F.col("ahead") != 0) | (F.col("unanswered") > 0))
        .select(*KEYS, "message_id", "ahead", "unanswered", kind.alias("kind"))
    )


def agreements(
    views: DataFrame, disagreements: DataFrame, *, labels: DataFrame | None = None
) -> DataFrame:
    """Return the counts of both ends for each place and operation, and messages by difference.

    `explained` and `found` are operations that only the broker counts: of differences that have a
    reason, and of all differences.
    """
    keys, more = list(KEYS), -F.col("ahead")
    client = F.col("view") == "client"
    counted = (
        _relabelled(views.where(F.col("outcome") == "ok"), labels)
        .groupBy(*keys)
        .agg(
            F.sum(F.when(client, F.col("operations")).otherwise(0)).alias("clients"),
            F.sum(F.when(client, F.lit(0)).otherwise(F.col("operations"))).alias("broker"),
        )
    )
    differing = disagreements.groupBy(*keys).agg(
        *(F.count_if(F.col("kind") == kind).alias(kind) for kind in KINDS),
        F.sum(F.when(F.col("kind").isin("only_clients", "only_broker"), 0).otherwise(more))
        .cast("long")
        .alias("explained"),
        F.sum(more).cast("long").alias("found"),
    )
    sums = ("clients", "broker", *KINDS, "explained", "found")
    return counted.join(differing, keys, "full").fillna(dict.fromkeys(sums, 0))


def named(disagreements: DataFrame, ids_max: int) -> DataFrame:
    """Return the first `ids_max` ids of each kind, place and operation, to limit a report.

    `agreements` has their number.
    """
    by_id = F.Window.partitionBy(*KEYS, "kind").orderBy("message_id")
    numbered = disagreements.withColumn("number", F.row_number().over(by_id))
    return numbered.where(F.col("number") <= ids_max).drop("number")


def _placed(records: DataFrame, *more: str) -> DataFrame:
    """Return the operations of records or tallies at their places, with `more` columns."""
    operation = F.col("operation")
    view = field("view")
    by_syphon = operation.isin(*_SETTLEMENTS) & (field("cause") != "consumer")
    in_backlog = operation.isin("divert", "backlog_receive") | by_syphon
    place = F.when((view == "client") & ~in_backlog, F.col("entity")).otherwise(
        F.coalesce("backlog_queue", "entity")
    )
    names = F.create_map(*(F.lit(part) for pair in _AS_THE_BROKER_SAYS.items() for part in pair))
    deletes = (view == "client") & (operation == "receive") & field("state").isin(*_DELETED)
    both = F.array(F.lit("receive"), F.lit("complete"))
    is_poll = (operation == "backlog_receive") & F.col("message_id").isNull()
    error = field("error")
    by_itself = (operation == "forward") | (
        (operation == "dead_letter") & error.rlike(BY_THE_BROKER)
    )
    compared = operation.isin(*_AS_THE_BROKER_SAYS) & ~is_poll
    on_board = F.lower(field("entity")).endswith(f"/{BOARD_MARK}")
    return records.where(compared & ~((view == "broker") & (by_itself | on_board))).select(
        day_of(F.col("at_ms")).alias("day"),
        label_of(),
        field("namespace"),
        F.lower(F.coalesce(place, F.lit(""))).alias("place"),
        F.explode(F.when(deletes, both).otherwise(F.array(names[operation]))).alias("operation"),
        view.alias("view"),
        field("outcome"),
        *more,
    )


def _relabelled(rows: DataFrame, labels: DataFrame | None) -> DataFrame:
    """Return rows with the label by which they are compared."""
    found = labels_at(rows) if labels is None else labels
    return rows.withColumnRenamed(LABEL, _RECORDED).join(F.broadcast(found), ["place", _RECORDED])


def _kind(newest_ms: int | None) -> Column:
    ahead, unanswered = F.col("ahead"), F.col("unanswered")
    young = F.lit(False) if newest_ms is None else F.col("last_ms") > newest_ms - YOUNG_MS
    return (
        F.when(ahead > 0, F.lit("only_clients"))
        .when(ahead == 0, F.lit("ambiguous_not_done"))
        .when(-ahead <= unanswered, F.lit("ambiguous_done"))
        .when(F.col("operation") == "receive", F.lit("given_back"))
        .when(young, F.lit("too_young"))
        .otherwise(F.lit("only_broker"))
    )
