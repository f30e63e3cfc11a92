"""The tables of conservation: the fate of every message that was accepted (docs/reports.md).

`journeys` defines messages and their fates; the rules are those of `core.rules`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from twinbus.pipeline import functions as F
from twinbus.pipeline.core import rules
from twinbus.pipeline.core.rules import (
    ANSWER_MAX_MS,
    BESIDE_FATES,
    DEAD_LETTER_QUEUE,
    DELETED,
    DELIVERED_FATE,
    FATES_OF_ACCEPTED,
)
from twinbus.pipeline.tables.calculus import COLUMNS, MESSAGE_COLUMNS
from twinbus.pipeline.tables.records import LABEL, count_of
from twinbus.pipeline.tables.schemas import AGES, FATE_SUMS, LINES, SKEWS, day_of, field

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

AGE_EXACT_S: Final = 3600

_SUMMED: Final = ("accepted", "delivered", *BESIDE_FATES)
_MISSING: Final = tuple(fate for fate in FATES_OF_ACCEPTED if fate != DELIVERED_FATE)
_BALANCED: Final = (*_SUMMED, *_MISSING, "repeated")
"""The counts of a balance."""


def lines(tallies: DataFrame) -> DataFrame:
    """Count records by day, and what they leave out by their own account."""
    view = field("view")
    accepted = F.col("operation").isin("send", "divert") & (field("outcome") == "ok")
    nameless = F.col("message_id").isNull() | F.col("entity").isNull()
    return (
        tallies.groupBy(day_of(F.col("at_ms")).alias("day"), view.alias("view"))
        .agg(
            F.sum("records").alias("records"),
            count_of((view == "client") & accepted & nameless).alias("nameless"),
            F.sum("unrecorded").alias("unrecorded"),
        )
        .select(*LINES.fieldNames())
    )


def fate_sums(journeys: DataFrame) -> DataFrame:
    counts: dict[str, Column] = rules.counts_of(COLUMNS, MESSAGE_COLUMNS)
    return (
        journeys.groupBy(day_of(F.col("first_ms")).alias("day"), LABEL, "destination")
        .agg(
            *(F.count_if(condition).alias(name) for name, condition in counts.items()),
            *(F.sum(name).alias(name) for name in ("second_copies", "redeliveries")),
        )
        .select(*FATE_SUMS.fieldNames())
    )


def balances(fates: DataFrame, notable: DataFrame, *, in_scope: Column | None = None) -> DataFrame:
    """Return one row for each destination of a primary: the fates of its accepted messages.

    `fates` is the gold table, `notable` has the messages that are not delivered or duplicated with
    the fate that they have now. `in_scope` selects days of `fates`.
    """
    outside, keys = fates.where(~in_backlog(F.col("destination"))), [LABEL, "destination"]
    sums = (
        (outside if in_scope is None else outside.where(in_scope))
        .groupBy(*keys)
        .agg(*(F.sum(name).alias(name) for name in _SUMMED))
    )
    # Whether a consumer recorded receipts there, on any day.
    heard = outside.groupBy(*keys).agg((F.sum("received") > 0).alias("heard"))
    others = notable.groupBy(*keys).agg(
        *(F.count_if(F.col("accepted") & (F.col("fate") == fate)).alias(fate) for fate in _MISSING),
        F.count_if(is_duplicate()).alias("repeated"),
    )
    return (
        sums.join(heard, keys, "left")
        .join(others, keys, "full")
        .fillna({"heard": False, **dict.fromkeys(_BALANCED, 0)})
        .orderBy(
            *(F.col(name).desc() for name in ("lost", "undecided", "accepted")),
            "destination",
            LABEL,
        )
    )


def with_broker_view(fates: DataFrame, backlog: DataFrame, states: DataFrame) -> DataFrame:
    """Return the messages with the fates that the broker recorded in its backlog queues.

    `backlog` are rows of journeys (or fates) about messages in backlog queues (`in_backlog`): the
    broker records the queue that a message is in, not its destination. Messages that the broker
    does not know keep their fate. `states` has the deleted queues (`availability.states`): messages
    in one have ended, and no record says how.

    The broker's rows have ids and pairs, but no destinations (`rules.after_broker`).
    """
    fate = F.col("fate")
    open_ones = F.count_if(rules.is_open(COLUMNS, fate))
    now: Column = rules.after_broker(
        COLUMNS,
        fate,
        F.col("broker_fate"),
        sharers=F.col("sharers"),
        held_copies=F.col("held_copies"),
        standing=F.col("standing"),
    )
    return (
        fates.join(_in_queues(backlog, states), [LABEL, "message_id"], "left")
        .withColumn("sharers", open_ones.over(F.Window.partitionBy(LABEL, "message_id")))
        # A copy can be moved by a program that keeps no ledger.
        .withColumns({"fate": now, "last_ms": F.greatest("last_ms", "seen_ms")})
        .select(*fates.columns)
    )


def _in_queues(backlog: DataFrame, states: DataFrame) -> DataFrame:
    """Return copies, open copies, last time and `broker_fate` of each id of a pair."""
    path = F.col("destination")
    deleted = (
        states.where(F.col("state") == DELETED)
        .groupBy(F.col("entity").alias("destination"))
        .agg(F.max("at_ms").alias("deleted_ms"))
    )
    open_copies = F.greatest(F.col("broker_copies") - F.col("broker_ended"), F.lit(0))
    # A message stored after the queue was created again has a later record.
    is_swept = F.coalesce(F.col("last_ms") <= F.col("deleted_ms"), F.lit(False))
    is_letter, is_done = path.endswith(DEAD_LETTER_QUEUE), F.col("broker_completed")
    told: Column = rules.broker_fate(COLUMNS, MESSAGE_COLUMNS)
    return (
        backlog.where(in_backlog(path))
        .join(F.broadcast(deleted), "destination", "left")
        .withColumns(
            {
                "standing": F.when(~is_swept, open_copies).otherwise(F.lit(0)),
                "swept": F.when(is_swept, open_copies).otherwise(F.lit(0)),
            }
        )
        .groupBy(LABEL, "message_id")
        .agg(
            F.sum("standing").alias("standing"),
            F.sum("swept").alias("swept"),
            F.sum("broker_copies").alias("held_copies"),
            F.max("last_ms").alias("seen_ms"),
            F.max("broker_expired").alias("expired"),
            F.max("broker_dead_lettered").alias("dead_lettered"),
            F.max(is_done & ~is_letter).alias("completed"),
            F.max(is_done & is_letter).alias("taken_out"),
        )
        .select(
            *(LABEL, "message_id", "standing", "held_copies", "seen_ms"),
            told.alias("broker_fate"),
        )
    )


def standing_at(backlog: DataFrame, at_ms: int) -> DataFrame:
    """Return the messages that were in backlog queues at a time, by the broker's records.

    `backlog` is as in `with_broker_view`.
    """
    stands: Column = rules.stands_at(COLUMNS, MESSAGE_COLUMNS, at_ms)
    return backlog.where(stands)


def unsent_in_backlog(backlog: DataFrame, messages: DataFrame) -> DataFrame:
    """Return messages that the broker stored in a backlog queue and no client recorded.

    With the label of their pair, and the time of their first record.
    `backlog` is as in `with_broker_view`, `messages` are rows of journeys or of fates.
    """
    path = F.col("destination")
    is_stored = in_backlog(path) & ~path.endswith(DEAD_LETTER_QUEUE) & (F.col("broker_copies") > 0)
    stored = (
        backlog.where(is_stored)
        .groupBy(LABEL, "message_id")
        .agg(F.min("first_ms").alias("first_ms"))
    )
    left_ms = "left_ms" if "left_ms" in messages.columns else "settled_ms"
    told = messages.withColumn("left_ms", F.col(left_ms))
    is_known: Column = rules.is_known_by_clients(COLUMNS, MESSAGE_COLUMNS)
    known = told.where(is_known).select(
        F.col(LABEL).alias("label"), F.col("message_id").alias("known_id")
    )
    # A client need not name its pair.
    is_same = (F.col("message_id") == F.col("known_id")) & F.col("label").isin(F.col(LABEL), "")
    return stored.join(known, is_same, "left_anti")


def in_backlog(path: Column) -> Column:
    return cast("Column", rules.is_in_backlog(COLUMNS, path))


def ages(journeys: DataFrame) -> DataFrame:
    """Count messages by their age in the backlog at their last forward.

    In started seconds, from an hour on in started minutes: duplicate-detection windows are whole
    seconds or minutes, so that "older than the window" is exact for each of them.
    """
    age_s = F.ceil((F.col("forwarded_ms") - F.col("entered_ms")) / 1000)
    rounded = F.when(age_s <= AGE_EXACT_S, age_s).otherwise(F.ceil(age_s / 60) * 60)
    return (
        journeys.where((F.col("forwards") > 0) & F.col("entered_ms").isNotNull())
        # Two clocks can disagree: an age is at least 0.
        .groupBy(LABEL, "destination", F.greatest(rounded, F.lit(0)).alias("age_s"))
        .agg(F.count("*").alias("messages"))
        .select(*AGES.fieldNames())
    )


def aged(ages: DataFrame, detection_s: int) -> DataFrame:
    """Return destinations with messages forwarded after their duplicate detection had ended.

    0 seconds: there is no detection that age could defeat.
    """
    return (
        ages.where((F.lit(detection_s) > 0) & (F.col("age_s") > detection_s))
        .groupBy(LABEL, "destination")
        .agg(F.sum("messages").alias("messages"), F.max("age_s").alias("oldest_s"))
    )


def skews(journeys: DataFrame) -> DataFrame:
    """Count messages whose steps are in the wrong order, by the difference.

    They count like all others: no fate depends on the order of times. A consumer can receive a
    message before its sender has the answer, but by no more than one attempt.
    """
    entered, accepted = F.col("entered_ms"), F.col("accepted_ms")
    behind = {
        "divert, forward": entered - F.col("forwarded_ms"),
        # Of two forwards the completion can belong to the first.
        "forward, complete": F.when(
            F.col("forwards") == 1, F.col("forwarded_ms") - F.col("left_ms")
        ),
        "accept, receive": accepted - F.col("received_ms") - ANSWER_MAX_MS,
    }
    steps = F.array(
        *(
            F.struct(F.lit(step).alias("step"), value.alias("behind_ms"))
            for step, value in behind.items()
        )
    )
    # Rounded up to a power of two, so that the table stays small.
    up_to = F.pow(F.lit(2), F.ceil(F.log2(F.col("skew.behind_ms")))).cast("long")
    return (
        journeys.select(LABEL, "destination", F.explode(steps).alias("skew"))
        .where(F.col("skew.behind_ms") > 0)
        .groupBy(LABEL, "destination", F.col("skew.step").alias("step"), up_to.alias("up_to_ms"))
        .agg(F.count("*").alias("messages"))
        .select(*SKEWS.fieldNames())
    )


def is_duplicate() -> Column:
    return cast("Column", rules.is_duplicate(MESSAGE_COLUMNS))


def window_of() -> Column:
    return cast("Column", rules.window_of(COLUMNS, MESSAGE_COLUMNS))


def named_duplicates(journeys: DataFrame) -> DataFrame:
    """Return duplicated messages, each at the entity that received it most often.

    Without the broker's records of backlog queues, where copies are not duplicates.
    """
    copies = F.greatest(F.col("repeats"), F.col("copies") - 1)
    return journeys.where(~in_backlog(F.col("destination")) & is_duplicate()).select(
        F.coalesce("repeated_at", "destination").alias("entity"),
        "destination",
        "message_id",
        (copies + 1).alias("times"),
        window_of().alias("window"),
        LABEL,
    )
