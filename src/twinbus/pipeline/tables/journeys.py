"""Silver: the journey of every message, as facts that can be merged in any order.

A message is its destination (the queue or topic it belongs to, of one primary) and its id. A lot of
records gives a row of facts about it: whether something ever happened (any), how often (sum), when
first (min) and when last (max). Rows of two lots are merged by the same four functions, so the
order of records, files and batches does not matter.

A topic's message is received once at each subscription, which is not a duplicate: each subscription
has a row of its own, with its path in `receiver`, which is folded into the message when judged.

    partial_journeys    records -> rows of one lot
    merged              rows of many lots -> one row for each message and receiver
    judged              merged rows -> one row for each message, with its fate (`schemas.FATES`)

A message was *accepted* when a send or a divert of it was acknowledged; then it has one fate:

    delivered        its destination, or the twin of it, acknowledged it or, by the broker's
                     records, stored it; or a consumer received it there
    waiting          a peek saw it in a backlog queue
    expired          the broker recorded that it expired on its way
    dead_lettered    the syphon or the broker dead-lettered it, or a peek saw it there
    lost             it is in none of these places, and not in the backlog: a peek did not find it,
                     or the syphon completed it there, or in the twin, and never forwarded it
    undecided        it was diverted and there was no peek since: waiting, or lost

Without a peek the broker's view can show that a message waits (`conservation.with_broker_view`).
A peek that does not find it overrules that.

A message in a twin is not in the backlog: it has no time there, and no peek looks for it. The
syphon may bring it home; then the broker has stored it twice, and ended the first copy without a
receiver. A receiver may complete a *second copy* without handing it out: that receipt is not one of
the message, and that copy not a duplicate.

A receipt counts as a delivery because the line "forwarded" can be lost with its process
(`ledger.writer`), and the message cannot have come from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from twinbus.pipeline import functions as F
from twinbus.pipeline.core import rules
from twinbus.pipeline.core.rules import ANSWER_MAX_MS, ERASED_ID
from twinbus.pipeline.tables.calculus import COLUMNS, MESSAGE_COLUMNS
from twinbus.pipeline.tables.records import (
    LABEL,
    Receivers,
    destination_of,
    joined,
    label_of,
    traits,
)
from twinbus.pipeline.tables.schemas import FATES, JOURNEYS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MESSAGE_KEY: Final = ("destination", "message_id")
"""The key that all rows of a message share before the pair of each row is known."""

MESSAGE: Final = (LABEL, *MESSAGE_KEY)
"""The key of a message."""

_KEY: Final = (*MESSAGE, "receiver")
_ANY: Final = rules.FACTS
_SUM: Final = tuple(rules.SUMS)
_MAX: Final = ("size_bytes", "last_ms", *rules.LAST_TIMES)
_MIN: Final = ("first_ms", *rules.FIRST_TIMES, "begun_ms")

RECEIVERS_MAX: Final = 127
"""Limit of receivers that are numbered while rows are folded."""


def is_erased() -> Column:
    """Whether the id of a message was erased: a peek cannot find it."""
    return F.rlike(F.col("message_id"), F.lit(ERASED_ID))


def partial_journeys(records: DataFrame, *, one_task: bool = False) -> DataFrame:
    """Return a row of facts for each message in these records, as `schemas.JOURNEYS`.

    Records without id or entity cannot be assigned to a message. `one_task`: the records are few,
    and in one partition already.
    """
    named = records.where(F.col("message_id").isNotNull() & F.col("entity").isNotNull())
    # As columns: each is used twice below, and computed once.
    labelled = named.withColumns(
        {LABEL: label_of(), "destination": destination_of(F.col("entity"))}
    )
    facts: dict[str, Column] = rules.record_facts(COLUMNS, traits())
    assert tuple(facts)[: len(_ANY)] == _ANY
    # A path without a slash is its own destination.
    is_path = F.contains(F.col("entity"), F.lit("/"))
    at_subscription = facts["received"] & is_path & (F.lower("entity") != F.col("destination"))
    # Few columns to shuffle: the numbers are computed after the shuffle.
    narrow = labelled.select(
        *MESSAGE,
        F.when(at_subscription, F.lower("entity")).otherwise(F.lit("")).alias("receiver"),
        _packed(facts).alias("facts"),
        F.coalesce("size_bytes", F.lit(0)).alias("size_bytes"),
        "at_ms",
        F.when(facts["tried"], F.col("at_ms") - _took_ms()).alias("begun_ms"),
    )
    numbers = _numbers_of(list(facts))
    return _summed(narrow, numbers.__getitem__, one_task=one_task)


def _took_ms() -> Column:
    """Return the duration of an attempt; a line may say anything."""
    took_ms = F.floor(F.coalesce("latency_us", F.lit(0)) / 1000)
    return F.greatest(F.lit(0), F.least(took_ms, F.lit(ANSWER_MAX_MS)))


def _numbers_of(facts: list[str]) -> dict[str, Column]:
    """Return what one record adds to each number, from its packed facts."""
    packed, at_ms = F.col("facts"), F.col("at_ms")

    def one_if(name: str) -> Column:
        return F.shiftright(packed, facts.index(name)).bitwiseAND(F.lit(1)).cast("long")

    def time_of(rule: rules.TimeOf) -> Column:
        any_of = sum(1 << facts.index(name) for name in rule.facts)
        counts = packed.bitwiseAND(F.lit(any_of)) != 0
        if rule.but is not None:
            counts &= packed.bitwiseAND(F.lit(1 << facts.index(rule.but))) == 0
        return F.when(counts, at_ms)

    times = {**rules.LAST_TIMES, **rules.FIRST_TIMES}
    return {
        **{
            name: reduce(lambda left, right: left + right, map(one_if, of))
            for name, of in rules.SUMS.items()
        },
        **{name: time_of(rule) for name, rule in times.items()},
        "size_bytes": F.col("size_bytes"),
        "last_ms": at_ms,
        "first_ms": at_ms,
        "begun_ms": F.col("begun_ms"),
    }


def merged(journeys: DataFrame, *, one_task: bool = False) -> DataFrame:
    """Merge rows of many lots into one for each message and receiver, of the same schema."""
    return _summed(
        journeys.select(
            *_KEY, _packed({name: F.col(name) for name in _ANY}).alias("facts"), *_SUM, *_MAX, *_MIN
        ),
        F.col,
        one_task=one_task,
    )


def judged(
    journeys: DataFrame, *, receivers: Receivers | None = None, all_labelled: bool = False
) -> DataFrame:
    """Return one row for each message of merged journeys, with its fate.

    `receivers` are the possible receivers of rows; None: any. If they are known, only messages of
    their topics are folded, and the journeys are read twice. `all_labelled`: every row has the
    label of its message.
    """
    if not all_labelled:
        journeys = joined(journeys, MESSAGE_KEY, F.col("labelled"))
        messages = _folded(journeys, None)
    elif receivers is None or len(receivers) > RECEIVERS_MAX:
        messages = _folded(journeys, None)
    elif not receivers:
        messages = _alone(journeys)
    else:
        fans_out = F.col("destination").isin(*sorted(set(receivers.values())))
        folded = _folded(journeys.where(fans_out), sorted(receivers))
        messages = _alone(journeys.where(~fans_out)).select(*folded.columns).unionAll(folded)
    known: dict[str, Any] = rules.message_facts(COLUMNS, MESSAGE_COLUMNS)
    return messages.withColumns(known).select(*FATES.fieldNames())


def with_peek(fates: DataFrame, sightings: DataFrame) -> DataFrame:
    """Return the messages after a peek into every backlog queue, which decides all fates.

    `sightings` are the messages that peeks saw after the last record, in all backlog queues and
    their dead-letter queues.
    """
    seen = (
        sightings.select(
            F.lower(LABEL).alias(LABEL),
            destination_of(F.col("destination")).alias("destination"),
            *("message_id", "place"),
        )
        .groupBy(*MESSAGE)
        # A message seen in both places (a copy of each) still waits.
        .agg(F.max("place").alias("place"))
    )
    now: Column = rules.after_peek(COLUMNS, F.col("fate"), F.col("place"))
    return (
        fates.join(seen, list(MESSAGE), "left").withColumn("fate", now).select(*FATES.fieldNames())
    )


def _summed(rows: DataFrame, value: Callable[[str], Column], *, one_task: bool) -> DataFrame:
    """Merge rows with packed facts by message and receiver; `value` gives their numbers.

    All rows of a message are then in one partition, so that folding moves none of them.
    """
    placed = rows if one_task else rows.repartition(*MESSAGE_KEY)
    return (
        placed.groupBy(*_KEY)
        .agg(F.bit_or("facts").alias("facts"), *_numbers(value))
        .select(*_unpacked(JOURNEYS.fieldNames()))
    )


def _folded(journeys: DataFrame, receivers: Sequence[str] | None) -> DataFrame:
    """Return one row for each message with the facts of all its receivers, which are sorted."""
    packed = _packed({name: F.col(name) for name in _ANY})
    # The entity that received it most often. Spark sorts rows to find the greatest text, but not to
    # find the greatest number.
    if receivers is None:
        most = F.max(F.struct(F.col("receipts"), _receiving_entity().alias("entity")))
        times, entity = F.col("most.receipts"), F.col("most.entity")
    else:
        names = F.array(*map(F.lit, receivers))
        # 0 is the topic itself, which is before its subscriptions in the order of text too.
        place = F.array_position(names, F.col("receiver"))
        most = F.max(F.col("receipts") * (RECEIVERS_MAX + 1) + place)
        times = F.floor(F.col("most") / (RECEIVERS_MAX + 1))
        found = F.get(names, (F.col("most") % (RECEIVERS_MAX + 1)).cast("int") - 1)
        entity = F.coalesce(found, F.col("destination"))
    return (
        journeys.groupBy(*MESSAGE)
        .agg(
            F.bit_or(packed).alias("facts"),
            *_numbers(F.col),
            F.sum(_repeats()).alias("repeats"),
            F.count_if(F.col("receipts") > 0).alias("receivers"),
            most.alias("most"),
        )
        .select(
            *_unpacked([*MESSAGE, *_ANY, *_SUM, *_MAX, *_MIN]),
            "repeats",
            "receivers",
            times.alias("times"),
            F.when(times > 1, entity).alias("repeated_at"),
        )
    )


def _alone(journeys: DataFrame) -> DataFrame:
    """Return what `_folded` does, for messages of one row each."""
    times = F.col("receipts")
    return journeys.withColumns(
        {
            "repeats": _repeats(),
            "receivers": F.lit(1).cast("long"),
            "times": times,
            "repeated_at": F.when(times > 1, _receiving_entity()),
        }
    )


def _repeats() -> Column:
    return F.greatest(F.col("receipts") - 1, F.lit(0))


def _receiving_entity() -> Column:
    return F.when(F.col("receiver") == "", F.col("destination")).otherwise(F.col("receiver"))


def _numbers(value: Callable[[str], Column]) -> list[Column]:
    return [
        *(F.sum(value(name)).alias(name) for name in _SUM),
        *(F.max(value(name)).alias(name) for name in _MAX),
        *(F.min(value(name)).alias(name) for name in _MIN),
    ]


def _packed(facts: dict[str, Column]) -> Column:
    """Return the facts as the bits of one number: one column to shuffle instead of many."""
    bits = (
        F.when(fact, F.lit(1 << place)).otherwise(F.lit(0))
        for place, fact in enumerate(facts.values())
    )
    return reduce(lambda left, right: left.bitwiseOR(right), bits)


def _unpacked(names: list[str]) -> list[Column]:
    facts = F.col("facts")
    return [
        (facts.bitwiseAND(F.lit(1 << _ANY.index(name))) != 0).alias(name)
        if name in _ANY
        else F.col(name)
        for name in names
    ]
