"""From the gold tables and a peek into the backlog to a `ConservationReport`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from twinbus.pipeline import functions as F
from twinbus.pipeline.core import rules
from twinbus.pipeline.core.rules import UNSEEN
from twinbus.pipeline.reports.documents import AgedBacklog, DuplicateMessage, NamedMessage
from twinbus.pipeline.reports.judgement import (
    ENTITIES_MAX,
    IDS_MAX,
    WORST_FIRST,
    CountedMessages,
    judged_report,
    worst_first,
)
from twinbus.pipeline.reports.ledger_tables import (
    by_day,
    in_days,
    lines_of,
    of_entity,
    scope_of,
)
from twinbus.pipeline.spark.few_rows import collected
from twinbus.pipeline.spark.kept_rows import kept, without_history
from twinbus.pipeline.store.writers import MOVES, WAITING
from twinbus.pipeline.tables import conservation, journeys
from twinbus.pipeline.tables.calculus import COLUMNS, MESSAGE_COLUMNS
from twinbus.pipeline.tables.charges import MESSAGE_STAGES
from twinbus.pipeline.tables.records import LABEL
from twinbus.pipeline.tables.schemas import day_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column, DataFrame, Row

    from twinbus.pipeline.reports.documents import ConservationReport, ReportRequest
    from twinbus.pipeline.reports.ledger_tables import LedgerTables

DETECTION_S: Final = 600
"""Default duplicate detection window of Service Bus."""

_TABLES: Final = ("lines", "traffic", "states", "fates", "notable")
_TABLES_IN_FULL: Final = ("ages", "skews")

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
    # They outlive the tables.
    return without_history(found.select(*journeys.MESSAGE))


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
    tables.bring(*_TABLES, *(() if in_brief else _TABLES_IN_FULL))
    lines = lines_of(tables, request)
    with kept({"notable": _notable(tables, request, peek)}, likely_few=tables.is_small) as there:
        notable = there["notable"]
        frames = {
            "entities": _counted(tables, request, notable),
            "named": _named(notable, ids_max),
            "missing": notable.where(_is_missing()).agg(F.count("*").alias("messages")),
            "duplicates": _duplicates(notable, ids_max),
            "windows": _duplicate_windows(notable),
        }
        if lines.broker_records:
            frames["unsent"] = _unsent(tables, request)
        if not in_brief:
            frames |= {
                "aged": _aged(tables, request, detection_s),
                "skewed": _skewed(tables, request),
            }
        found = collected(frames)
        named = tuple(NamedMessage(*row[:-1]) for row in found["named"])
        counted = CountedMessages(
            by_entity=sorted((row.asDict() for row in found["entities"]), key=worst_first),
            named=named,
            left_out=found["missing"][0]["messages"] - len(named),
            duplicates=tuple(DuplicateMessage(*row) for row in found["duplicates"]),
            duplicate_windows={row["window"]: row["count"] for row in sorted(found["windows"])},
            unsent=found["unsent"][0]["messages"] if "unsent" in found else 0,
        )
        return judged_report(
            counted,
            scope_of(tables, request, lines),
            lines,
            peek=peek,
            of_others=lambda: _of_others(tables, request),
            aged=tuple(AgedBacklog(*row) for row in found.get("aged", ())),
            assumed=(
                *_assumed(request, detection_s),
                *(_clocks(row) for row in found.get("skewed", ()) if row["messages"]),
            ),
        )


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


def _counted(tables: LedgerTables, request: ReportRequest, notable: DataFrame) -> DataFrame:
    """Return the sums of each entity, and the fates of its undelivered messages."""
    fates = of_entity(tables.table("fates"), request)
    return conservation.balances(fates, notable, in_scope=in_days(F.col("day"), request))


def _is_missing() -> Column:
    return cast("Column", rules.is_missing(COLUMNS, MESSAGE_COLUMNS))


def _named(notable: DataFrame, ids_max: int) -> DataFrame:
    """Return undelivered messages, the worst first."""
    rank = F.array_position(F.array(*(F.lit(fate) for fate in WORST_FIRST)), F.col("fate"))
    return (
        notable.where(_is_missing())
        .select("destination", "message_id", "fate", "accepted_ms", LABEL, rank.alias("rank"))
        .orderBy("rank", "accepted_ms", "destination", "message_id", LABEL)
        .limit(ids_max)
    )


def _duplicate_windows(notable: DataFrame) -> DataFrame:
    repeated = notable.where(conservation.is_duplicate())
    window = conservation.window_of().alias("window")
    return repeated.groupBy(window).agg(F.count("*").alias("count"))


def _duplicates(notable: DataFrame, ids_max: int) -> DataFrame:
    found = conservation.named_duplicates(notable).select(*DuplicateMessage._fields)
    return found.orderBy("entity", "message_id", LABEL).limit(ids_max)


def _aged(tables: LedgerTables, request: ReportRequest, detection_s: int) -> DataFrame:
    """Return entities with messages older than the duplicate detection of their destination."""
    found = conservation.aged(of_entity(tables.table("ages"), request), detection_s)
    ordered = found.orderBy(F.col("oldest_s").desc(), "destination", LABEL).limit(ENTITIES_MAX)
    return ordered.select(
        *("destination", "messages"),
        (F.col("oldest_s") * 1000).alias("oldest_ms"),
        F.lit(detection_s * 1000).alias("detection_ms"),
        LABEL,
    )


def _unsent(tables: LedgerTables, request: ReportRequest) -> DataFrame:
    """Count the messages of all entities that only the broker recorded in the backlog."""
    found = tables.unsent_in_backlog().withColumn("day", day_of(F.col("first_ms")))
    return by_day(found, request).agg(F.count("*").alias("messages"))


def _of_others(tables: LedgerTables, request: ReportRequest) -> int:
    """Return how many operations on messages are in scope."""
    table = by_day(of_entity(tables.table("charges"), request, "entity"), request)
    row = table.where(F.col("stage").isin(*MESSAGE_STAGES)).agg(F.sum("operations")).collect()[0]
    return row[0] or 0


def _assumed(request: ReportRequest, detection_s: int) -> Iterator[str]:
    if request.since_ms is not None:
        yield "a message counts on the day of its first record: earlier ones are in no figure"
    yield f"destinations detect duplicates for {detection_s:,} s (--detection-window)"


def _skewed(tables: LedgerTables, request: ReportRequest) -> DataFrame:
    """Return one row: messages whose steps are in the wrong order, and by how much."""
    return of_entity(tables.table("skews"), request).agg(
        F.sum("messages").alias("messages"), F.max("up_to_ms").alias("up_to_ms")
    )


def _clocks(row: Row) -> str:
    return (
        f"clocks disagree: {row['messages']:,} messages have steps in the wrong order, by up to"
        f" {row['up_to_ms']:,} ms; they are counted as all others"
    )
