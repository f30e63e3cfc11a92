"""Ledgers of any size made by a Spark job, with faults planted in them that are known beforehand.

A benchmark of the audit needs ledgers far larger than a drill writes, and an answer to hold the
audit to. A made ledger is a number of equal *shards*, each one day of one pair:

    400 of 1,000 messages' records   sent straight, and received
     38 ... by the backlog           diverted in an outage, received there, forwarded, completed,
                                     received at the destination
     10 of 1,000 records             state changes, pings, polls that found nothing, and the faults

The records of a shard lie as its processes would have written them (all sends, then all receipts,
...), so that what is known of one message is never side by side. Everything follows from the seed
and a record's number by built-in expressions: the same plan makes the same records on any cluster.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from twinbus.ledger.record import VERSION
from twinbus.pipeline.tables.schemas import LEDGER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["DAY", "PAIRS", "Plan", "Truth", "late_records", "made", "write_bronze"]

DAY: Final = "day"
"""The column by which bronze is partitioned beside `pair`."""

PAIRS: Final = ("contoso+contoso-dr", "fabrikam+fabrikam-dr")
FIRST_DAY: Final = date(2026, 1, 1)
SHARD_RECORDS: Final = 500_000
"""A day of a pair: about six records a second."""

STEP: Final = 1_000
"""Shards are made of so many records times a whole number."""
STRAIGHT: Final = 400
MOVED: Final = 38
"""Messages in each `STEP` records."""

LOST, DUPLICATED, DEAD_LETTERED, UNDECIDED, AMBIGUOUS = 2, 3, 2, 1, 1
"""Faults planted in each shard, among the messages that went by the backlog, in this order."""
RAISED: Final = 1
FAULTS: Final = LOST + DUPLICATED + DEAD_LETTERED + UNDECIDED + AMBIGUOUS

_DAY_MS: Final = 86_400_000
_OUTAGE_MS: Final = 10 * 3_600_000
_BACK_MS: Final = 12 * 3_600_000
_AGAIN_MS: Final = _BACK_MS + 1_800_000
_ENTITIES: Final = 20
"""The last of them is a topic with one subscription, the others are queues."""
_TOPIC: Final = _ENTITIES - 1
_HEX: Final = (8, 4, 4, 4, 12)


@dataclass(frozen=True)
class Truth:
    """What an audit without a peek snapshot must find in a made ledger."""

    accepted: int
    delivered: int
    received: int
    diverted: int
    dead_lettered: int
    lost: int
    undecided: int
    duplicates: int
    ambiguous: int
    raised: int


@dataclass(frozen=True)
class Plan:
    """A ledger to be made: how many records, from which seed, and after how many other shards."""

    records: int
    seed: int = 1
    first_shard: int = 0
    """Shards of the same seed that another plan made: this one's days follow theirs."""

    def __post_init__(self) -> None:
        assert self.records > 0
        assert self.shard_records % STEP == 0, f"{self.records} records make no whole shards"

    @property
    def shards(self) -> int:
        return max(len(PAIRS), self.records // SHARD_RECORDS)

    @property
    def shard_records(self) -> int:
        return self.records // self.shards

    @property
    def straight(self) -> int:
        """Messages of a shard that were sent straight."""
        return self.shard_records // STEP * STRAIGHT

    @property
    def moved(self) -> int:
        """Messages of a shard that went by the backlog."""
        return self.shard_records // STEP * MOVED

    @property
    def fault_step(self) -> int:
        """Between two messages of a shard that have a fault."""
        return self.moved // FAULTS

    def truth(self) -> Truth:
        messages = self.straight + self.moved
        missing = LOST + DEAD_LETTERED + UNDECIDED
        return Truth(
            accepted=self.shards * messages,
            delivered=self.shards * (messages - missing),
            received=self.shards * (messages - missing),
            diverted=self.shards * self.moved,
            dead_lettered=self.shards * DEAD_LETTERED,
            lost=self.shards * LOST,
            undecided=self.shards * UNDECIDED,
            duplicates=self.shards * DUPLICATED,
            ambiguous=self.shards * AMBIGUOUS,
            raised=self.shards * RAISED,
        )

    def lost_ids(self) -> list[str]:
        """The ids that the audit must name as lost."""
        return sorted(self._ids_of_faults(0, LOST))

    def duplicate_ids(self) -> list[str]:
        """The ids that the audit must name as received twice."""
        return sorted(self._ids_of_faults(LOST, DUPLICATED))

    def _ids_of_faults(self, first: int, count: int) -> Iterator[str]:
        for shard in range(self.first_shard, self.first_shard + self.shards):
            for fault in range(first, first + count):
                text = f"{self.seed}/{shard}/m/{fault * self.fault_step}"
                digits = iter(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest())
                yield "-".join("".join(next(digits) for _ in range(size)) for size in _HEX)


def made(spark: SparkSession, plan: Plan, *, tasks: int | None = None) -> DataFrame:
    """The planned ledger, in the ledger's schema and with the column `DAY`."""
    shards = spark.range(0, plan.records, numPartitions=tasks or plan.shards)
    return _records(
        shards.select(
            (F.floor(F.col("id") / plan.shard_records) + plan.first_shard).alias("shard"),
            (F.col("id") % plan.shard_records).alias("place"),
        ),
        plan,
    )


def late_records(spark: SparkSession, plan: Plan) -> DataFrame:
    """What a plan left undecided, forwarded, completed and received after all: three records each.

    They are about messages of any age, as records are that come late.
    """
    fault = (LOST + DUPLICATED + DEAD_LETTERED) * plan.fault_step
    starts = [2 * plan.straight + part * plan.moved for part in (2, 3, 4)]
    shards = spark.range(plan.first_shard, plan.first_shard + plan.shards, numPartitions=1)
    places = shards.select(
        F.col("id").alias("shard"),
        F.explode(F.array(*(F.lit(start + fault) for start in starts))).alias("place"),
    )
    return _records(places, plan, faulty=False)


def write_bronze(records: DataFrame, location: str) -> None:
    """Put made records where bronze has them: Parquet by day and pair, columns as in the ledger."""
    # Each task's records are of few days and pairs, and in order: a file for each of them is open
    # at a time, and nothing needs to be sorted.
    records.sparkSession.conf.set("spark.sql.maxConcurrentOutputFileWriters", "4")
    try:
        records.write.partitionBy(DAY, "pair").parquet(location, compression="zstd")
    finally:
        records.sparkSession.conf.unset("spark.sql.maxConcurrentOutputFileWriters")


@dataclass(frozen=True)
class _Segment:
    """A run of a shard's records that one process wrote, all of one operation."""

    operation: str
    cause: str
    process: str
    kind: str
    """Whose number a record's place in the run is: `s` straight, `m` moved, `x` none."""
    count: int
    span_ms: tuple[int, int] = (0, _DAY_MS)
    """From when to when of the day its records are spread."""
    size_bytes: int | None = 700
    outcome: str = "ok"
    fault: int | None = None
    """The run is about this fault's message alone."""

    @property
    def begins_ms(self) -> int:
        return self.span_ms[0]

    @property
    def length_ms(self) -> int:
        return self.span_ms[1] - self.span_ms[0]


def _segments(plan: Plan) -> list[_Segment]:
    straight, moved = plan.straight, plan.moved
    outage, drained = (_OUTAGE_MS, _BACK_MS), (_BACK_MS, _AGAIN_MS)
    again = (_AGAIN_MS, _DAY_MS)
    segments = [
        _Segment("send", "application", "app", "s", straight),
        _Segment("receive", "consumer", "worker", "s", straight),
        _Segment("divert", "failover", "app", "m", moved, outage, 850),
        _Segment("backlog_receive", "syphon", "syphon", "m", moved, drained, 850),
        _Segment("forward", "syphon", "syphon", "m", moved, drained),
        _Segment("complete", "syphon", "syphon", "m", moved, drained, None),
        _Segment("receive", "consumer", "worker", "m", moved, drained),
    ]
    for fault in range(LOST, LOST + DUPLICATED):
        segments.append(_Segment("forward", "syphon", "syphon", "m", 1, again, fault=fault))
        segments.append(_Segment("receive", "consumer", "worker", "m", 1, again, fault=fault))
    ambiguous = _Segment("send", "application", "app", "m", AMBIGUOUS, outage, outcome="unknown")
    segments += [
        replace(ambiguous, fault=FAULTS - 1),
        _Segment("send", "application", "app", "r", RAISED, outage, outcome="failed"),
        _Segment("state", "failover", "app", "x", 1, outage, None),
        _Segment("state", "ping", "app", "x", 1, drained, None),
    ]
    left = plan.shard_records - sum(segment.count for segment in segments)
    segments += [
        _Segment("ping", "ping", "app", "x", left // 2, outage, 0),
        _Segment("backlog_receive", "poll", "syphon", "x", left - left // 2, size_bytes=0),
    ]
    return segments


def _records(places: DataFrame, plan: Plan, *, faulty: bool = True) -> DataFrame:
    """The records at `place` in `shard`; not `faulty`: as if nothing had gone wrong."""
    segments = _segments(plan)
    ends = [sum(one.count for one in segments[: index + 1]) for index in range(len(segments))]
    place, segment = F.col("place"), F.col("segment")
    found = F.when(place < ends[0], F.lit(0))
    for index, end in enumerate(ends[1:], 1):
        found = found.when(place < end, F.lit(index))

    def of(values: Iterable[object]) -> Column:
        """A value for each segment: looked up, as Java does not compile long chains of cases."""
        return F.array(*map(F.lit, values))[segment]

    def each(name: str) -> Column:
        return of(getattr(one, name) for one in segments)

    offset = place - of(end - one.count for end, one in zip(ends, segments, strict=True))
    number = F.coalesce(each("fault") * plan.fault_step, offset)
    laid_out = (
        places.select("*", found.alias("segment"))
        .select(
            "shard",
            number.alias("number"),
            each("kind").alias("kind"),
            each("operation").alias("planned"),
            each("cause").alias("cause"),
            each("process").alias("role"),
            each("size_bytes").cast("long").alias("size_bytes"),
            each("outcome").alias("outcome"),
            (each("begins_ms") + F.floor(offset / each("count") * each("length_ms"))).alias(
                "of_day_ms"
            ),
        )
        .withColumns(
            {
                "fault": F.when(
                    F.lit(faulty)
                    & (F.col("kind") == "m")
                    & (F.col("number") % plan.fault_step == 0),
                    F.floor(F.col("number") / plan.fault_step),
                )
            }
        )
    )
    text = F.concat_ws("/", F.lit(plan.seed), F.col("shard"), F.col("kind"), F.col("number"))
    # Columns of their own, as what is used more than once would else be worked out each time.
    happened = laid_out.select(
        "*", _happened().alias("operation"), F.md5(text.cast("binary")).alias("digest")
    )
    return happened.select(*_columns())


def _happened() -> Column:
    """The operation that a fault made of the planned one.

    What did not happen left a poll that found nothing in its place, so that counts stay round.
    """
    fault, planned = F.col("fault"), F.col("planned")
    came = planned.isin("divert", "backlog_receive")
    aside = LOST + DUPLICATED
    undecided = aside + DEAD_LETTERED
    return (
        F.when((fault < LOST) & planned.isin("forward", "receive"), F.lit("poll"))
        .when((fault >= aside) & (fault < undecided) & (planned == "forward"), F.lit("dead_letter"))
        .when((fault >= aside) & (fault < undecided) & ~came, F.lit("poll"))
        .when((fault == undecided) & (planned != "divert"), F.lit("poll"))
        .otherwise(planned)
    )


def _columns() -> list[Column]:
    shard, number, kind = F.col("shard"), F.col("number"), F.col("kind")
    polled = F.col("operation") == "poll"
    operation = F.when(polled, F.lit("backlog_receive")).otherwise(F.col("operation"))
    named = ~polled & (kind != "x")
    digest = F.col("digest")
    pair = F.when(shard % 2 == 0, F.lit(PAIRS[0])).otherwise(F.lit(PAIRS[1]))
    at_secondary = operation.isin("divert", "backlog_receive", "complete", "dead_letter")
    transfer = F.lit("contoso/x-servicebus-transfer/")
    queue = F.when(at_secondary, F.concat(transfer, number % 10))
    day = F.date_add(F.lit(FIRST_DAY), F.floor(shard / len(PAIRS)).cast("int"))
    day_ms = (FIRST_DAY - date(1970, 1, 1)) // timedelta(milliseconds=1)
    at_ms = F.floor(shard / len(PAIRS)) * _DAY_MS + day_ms + F.col("of_day_ms")
    side = F.when(at_secondary, F.lit("secondary")).otherwise(F.lit("primary"))
    return [
        F.lit(VERSION).cast("long").alias("v"),
        # Where a message goes by the backlog, a few milliseconds lie between two records of it.
        (at_ms + F.xxhash64(digest, operation) % 5 + 5).alias("at_ms"),
        operation.alias("operation"),
        F.concat(F.col("role"), F.lit("-"), shard % 2).alias("process"),
        F.when(polled, F.lit("poll")).otherwise(F.col("cause")).alias("cause"),
        pair.alias("pair"),
        F.when(at_secondary, F.substring_index(pair, "+", -1))
        .otherwise(F.substring_index(pair, "+", 1))
        .alias("namespace"),
        side.alias("side"),
        F.when(~polled & (F.col("cause") != "poll"), _entity(number, operation)).alias("entity"),
        queue.alias("backlog_queue"),
        F.when(named, _uuid(digest)).alias("message_id"),
        F.when(operation == "backlog_receive", number + 1).alias("sequence_number"),
        F.when(polled, F.lit(0)).otherwise(F.col("size_bytes") + number % 64).alias("size_bytes"),
        F.col("outcome").alias("outcome"),
        F.when(F.col("outcome") != "ok", F.lit("timed out")).alias("error"),
        F.when(operation != "state", F.lit(900) + F.abs(F.xxhash64(number)) % 4_000).alias(
            "latency_us"
        ),
        F.when(
            operation == "state",
            F.when(F.col("cause") == "failover", F.lit("failed_over")).otherwise(F.lit("healthy")),
        ).alias("state"),
        F.lit(None).cast("string").alias("trace_id"),
        F.lit(None).cast("string").alias("client"),
        F.lit(None).cast("string").alias("view"),
        F.lit(None).cast("long").alias("unrecorded"),
        F.lit(None).cast("long").alias("lines"),
        day.alias(DAY),
    ]


def _entity(number: Column, operation: Column) -> Column:
    name = F.concat(F.lit("orders-"), number % _ENTITIES)
    topic = F.when(operation == "receive", F.lit("events/Subscriptions/audit")).otherwise(
        F.lit("events")
    )
    return F.when(number % _ENTITIES == _TOPIC, topic).otherwise(name)


def _uuid(digest: Column) -> Column:
    """A digest's 32 digits as the text of a UUID."""
    starts = [1 + sum(_HEX[:index]) for index in range(len(_HEX))]
    parts = (digest.substr(start, size) for start, size in zip(starts, _HEX, strict=True))
    return F.concat_ws("-", *parts)


assert len(LEDGER) == 22, "a field was added to the ledger: the maker must fill it"
