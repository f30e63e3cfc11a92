"""From the gold tables and a peek into the backlog to a `ConservationReport`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from twinbus.pipeline.core import rules
from twinbus.pipeline.core.rules import UNSEEN
from twinbus.pipeline.reports.documents import AgedBacklog, DuplicateMessage, NamedMessage
from twinbus.pipeline.reports.judgement import (
    ENTITIES_MAX,
    IDS_MAX,
    WORST_FIRST,
    CountedMessages,
    judged_report,
)
from twinbus.pipeline.reports.ledger_tables import (
    by_day,
    in_days,
    lines_of,
    of_entity,
    scope_of,
)
from twinbus.pipeline.store.writers import MOVES, WAITING
from twinbus.pipeline.tables import conservation, journeys
from twinbus.pipeline.tables.calculus import COLUMNS, MESSAGE_COLUMNS
from twinbus.pipeline.tables.charges import MESSAGE_STAGES
from twinbus.pipeline.tables.records import LABEL
from twinbus.pipeline.tables.schemas import day_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column, DataFrame

    from twinbus.pipeline.reports.documents import ConservationReport, ReportRequest
    from twinbus.pipeline.reports.judgement import Counts
    from twinbus.pipeline.reports.ledger_tables import LedgerTables

DETECTION_S: Final = 600
"""Default duplicate detection window of Service Bus."""

MARGIN_MS: Final = 60_000
"""Allowed difference between clocks if the ledger was not read before the peek: a message younger
than the peek is not called lost."""


@dataclass(frozen=True)
class BacklogSnapshot:
    """What peeks into all backlog queues and their dead-letter queues saw (`schemas.SIGHTINGS`)."""

    sightings: DataFrame
    began_ms: int
    labels: frozenset[str] | None = None
    """Pairs whose backlog queues were peeked; None: all pairs."""
    awaited: DataFrame | None = None
    """Messages that were in the backlog, by the ledger as it was before the peek
    (`awaited_messages`). Only these can be missed by the peek, whatever the clocks. None: the
    ledger was not read before, and times decide."""

    def is_of(self, label: str) -> bool:
        return self.labels is None or label in self.labels


def awaited_messages(tables: LedgerTables) -> DataFrame:
    """Return messages that a later peek finds in the backlog, unless they are moved or lost."""
    found = tables.notable().where(F.col("accepted") & F.col("fate").isin(*UNSEEN))
    # It outlives the tables.
    return found.select(*journeys.MESSAGE).localCheckpoint()


def conservation_report(
    tables: LedgerTables,
    request: ReportRequest,
    peek: BacklogSnapshot | None,
    *,
    detection_s: int = DETECTION_S,
    ids_max: int = IDS_MAX,
    in_brief: bool = False,
) -> ConservationReport:
    """Report the fate of every accepted message. `peek` must be older than the tables, or None.

    `in_brief` leaves out the age of the backlog and the check of clocks.
    """
    lines = lines_of(tables, request)
    notable = _notable(tables, request, peek).cache()
    try:
        by_entity = _counted(tables, request, notable)
        named, left_out = _named(notable, ids_max)
        is_any_twice = any(row["repeated"] for row in by_entity)
        counted = CountedMessages(
            by_entity=by_entity,
            named=named,
            left_out=left_out,
            duplicates=_duplicates(notable, ids_max) if is_any_twice else (),
            duplicate_windows=_duplicate_windows(notable) if is_any_twice else {},
            unsent=_unsent(tables, request) if lines.broker_records else 0,
        )
        return judged_report(
            counted,
            scope_of(tables, request, lines),
            lines,
            peek=peek,
            of_others=lambda: _of_others(tables, request),
            aged=() if in_brief else _aged(tables, request, detection_s),
            assumed=(
                *_assumed(request, detection_s),
                *(() if in_brief else _skewed(tables, request)),
            ),
        )
    finally:
        notable.unpersist()


def _notable(
    tables: LedgerTables, request: ReportRequest, peek: BacklogSnapshot | None
) -> DataFrame:
    """Return messages that are not delivered or were received twice, with their current fates."""
    found = of_entity(tables.notable(), request)
    found = by_day(found.withColumn("day", day_of(F.col("first_ms"))), request)
    in_doubt = [gap for gap in tables.inspected.gaps if gap.is_open]
    if any(WAITING in gap.doubts for gap in in_doubt) or _is_short(tables):
        # The broker that recorded this stopped without an end: the message may have ended since.
        fate = F.col("fate")
        found = found.withColumn(
            "fate", F.when(fate == "waiting", F.lit("undecided")).otherwise(fate)
        )
    if peek is None:
        return found.drop("day")
    before = found.drop("day").withColumnRenamed("fate", "recorded")
    now = journeys.with_peek(found.drop("day"), peek.sightings)
    # Accepted after the peek began, or moved meanwhile: the peek may have missed it.
    if peek.awaited is None:
        passed_by = F.col("last_ms") >= peek.began_ms - MARGIN_MS
    else:
        awaited = peek.awaited.withColumn("awaited", F.lit(True))
        now = now.join(awaited, list(journeys.MESSAGE), "left")
        passed_by = F.col("awaited").isNull()
    if peek.labels is not None:
        # The backlog of this pair is in another secondary.
        passed_by |= ~F.col(LABEL).isin(*peek.labels)
    passed_by |= journeys.is_erased()
    for gap in in_doubt:
        if MOVES in gap.doubts:
            # A killed syphon may have forwarded it without a record.
            until_ms = F.lit(gap.to_ms).cast("long")
            passed_by |= until_ms.isNull() | (F.col("accepted_ms") <= until_ms)
    recorded = before.select(*journeys.MESSAGE, "recorded")
    fate = F.when(
        F.col("recorded").isin(*UNSEEN) & (F.col("fate") == "lost") & passed_by,
        F.col("recorded"),
    ).otherwise(F.col("fate"))
    return (
        now.join(recorded, list(journeys.MESSAGE))
        .withColumn("fate", fate)
        .drop("recorded", "awaited")
    )


def _is_short(tables: LedgerTables) -> bool:
    """Return whether a broker's successor found fewer messages than the records have."""
    found = [
        gap.recovery for gap in tables.inspected.gaps if gap.recovery and WAITING in gap.doubts
    ]
    return any(
        conservation.standing_at(tables.in_backlog(), one.at_ms).count() > one.messages
        for one in found
    )


def _counted(tables: LedgerTables, request: ReportRequest, notable: DataFrame) -> list[Counts]:
    """Return the sums of each entity, and the fates of its undelivered messages."""
    fates = of_entity(tables.table("fates"), request)
    rows = conservation.balances(fates, notable, in_scope=in_days(F.col("day"), request)).collect()
    return [row.asDict() for row in rows]


def _named(notable: DataFrame, ids_max: int) -> tuple[tuple[NamedMessage, ...], int]:
    """Return undelivered messages, the worst first, and how many were left out."""
    rank = F.array_position(F.array(*(F.lit(fate) for fate in WORST_FIRST)), F.col("fate"))
    missing: Column = rules.is_missing(COLUMNS, MESSAGE_COLUMNS)
    undelivered = notable.where(missing)
    rows = (
        undelivered.orderBy(rank, "accepted_ms", "destination", "message_id", LABEL)
        .select("destination", "message_id", "fate", "accepted_ms", LABEL)
        .limit(ids_max + 1)
        .collect()
    )
    left_out = undelivered.count() - ids_max if len(rows) > ids_max else 0
    return tuple(NamedMessage(*row) for row in rows[:ids_max]), left_out


def _duplicate_windows(notable: DataFrame) -> dict[str, int]:
    repeated = notable.where(conservation.is_duplicate()).groupBy(
        conservation.window_of().alias("window")
    )
    return {row["window"]: row["count"] for row in sorted(repeated.count().collect())}


def _duplicates(notable: DataFrame, ids_max: int) -> tuple[DuplicateMessage, ...]:
    found = conservation.named_duplicates(notable).select(*DuplicateMessage._fields)
    rows = found.orderBy("entity", "message_id", LABEL).limit(ids_max).collect()
    return tuple(DuplicateMessage(*row) for row in rows)


def _aged(
    tables: LedgerTables, request: ReportRequest, detection_s: int
) -> tuple[AgedBacklog, ...]:
    """Return entities with messages older than the duplicate detection of their destination."""
    found = conservation.aged(of_entity(tables.table("ages"), request), detection_s)
    ordered = found.orderBy(F.col("oldest_s").desc(), "destination", LABEL).limit(ENTITIES_MAX)
    oldest_ms, detection_ms = F.col("oldest_s") * 1000, F.lit(detection_s * 1000)
    rows = ordered.select("destination", "messages", oldest_ms, detection_ms, LABEL).collect()
    return tuple(AgedBacklog(*row) for row in rows)


def _unsent(tables: LedgerTables, request: ReportRequest) -> int:
    """Return how many messages of all entities only the broker recorded in the backlog."""
    found = tables.unsent_in_backlog().withColumn("day", day_of(F.col("first_ms")))
    return by_day(found, request).count()


def _of_others(tables: LedgerTables, request: ReportRequest) -> int:
    """Return how many operations on messages are in scope."""
    table = by_day(of_entity(tables.table("charges"), request, "entity"), request)
    row = table.where(F.col("stage").isin(*MESSAGE_STAGES)).agg(F.sum("operations")).collect()[0]
    return row[0] or 0


def _assumed(request: ReportRequest, detection_s: int) -> Iterator[str]:
    if request.since_ms is not None:
        yield "a message counts on the day of its first record: earlier ones are in no figure"
    yield f"destinations detect duplicates for {detection_s:,} s (--detection-window)"


def _skewed(tables: LedgerTables, request: ReportRequest) -> Iterator[str]:
    row = (
        of_entity(tables.table("skews"), request)
        .agg(F.sum("messages").alias("messages"), F.max("up_to_ms").alias("up_to_ms"))
        .collect()[0]
    )
    if row["messages"]:
        yield (
            f"clocks disagree: {row['messages']:,} messages have steps in the wrong order, by up to"
            f" {row['up_to_ms']:,} ms; they are counted as all others"
        )
