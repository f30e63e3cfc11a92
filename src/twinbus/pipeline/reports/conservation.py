"""From the gold tables and a peek into the backlog to a `ConservationReport`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from twinbus.pipeline.reports.documents import (
    AgedBacklog,
    Balance,
    ConservationReport,
    DuplicateMessage,
    NamedMessage,
)
from twinbus.pipeline.reports.ledger_tables import (
    by_day,
    from_sums,
    in_days,
    lines_of,
    of_entity,
    scope_of,
    unread,
    whole_days,
)
from twinbus.pipeline.store.writers import MOVES, WAITING
from twinbus.pipeline.tables import conservation, journeys
from twinbus.pipeline.tables.charges import MESSAGE_STAGES
from twinbus.pipeline.tables.records import LABEL
from twinbus.pipeline.tables.schemas import day_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame

    from twinbus.pipeline.reports.documents import ReportRequest, ReportScope
    from twinbus.pipeline.reports.ledger_tables import LedgerTables

Counts = dict[str, Any]
"""A row of counts by name, of one destination."""

DETECTION_S: Final = 600
"""Default duplicate detection window of Service Bus."""

IDS_MAX: Final = 1_000
"""Limit of ids of a kind that a report names."""

ENTITIES_MAX: Final = 10_000

MARGIN_MS: Final = 60_000
"""Allowed difference between clocks if the ledger was not read before the peek: a message younger
than the peek is not called lost."""

_WORST_FIRST: Final = ("lost", "expired", "dead_lettered", "undecided", "waiting")


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
    found = tables.notable().where(F.col("accepted") & F.col("fate").isin(*journeys.UNSEEN))
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
    scope = scope_of(tables, request, lines)
    has_broker = lines.broker_records > 0
    notable = _notable(tables, request, peek).cache()
    try:
        counted = _counted(tables, request, notable)
        sums = _Sums(peek=peek, has_broker=has_broker, counted=_added(counted))
        named, left_out = _named(notable, ids_max)
        twice = sums.counted["repeated"]
        unsent = _unsent(tables, request) if has_broker else 0
        incomplete = (
            *_unbalanced(counted),
            *_incomplete(tables, request, scope, {**sums.counted, "stored_unsent": unsent}),
        )
        return ConservationReport(
            scope=scope,
            total=sums.total(counted),
            entities=tuple(sums.balance(row) for row in counted[:ENTITIES_MAX]),
            lost_at_least=sums.counted["lost"],
            messages=named,
            messages_left_out=left_out,
            duplicate_windows=_duplicate_windows(notable) if twice else {},
            duplicates=_duplicates(notable, ids_max) if twice else (),
            aged=() if in_brief else _aged(tables, request, detection_s),
            peeked_ms=None if peek is None else peek.began_ms,
            nameless=lines.nameless,
            reused=sums.counted["reused"],
            incomplete=incomplete,
            unknown=(
                *incomplete,
                *_unknown(scope, sums, counted, lines.nameless),
                *_unseen(counted, peek),
                *_erased(named, peek),
            ),
            assumed=(
                *whole_days(request),
                *_assumed(request, detection_s),
                *(() if in_brief else _skewed(tables, request)),
                *from_sums(scope),
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
        F.col("recorded").isin(*journeys.UNSEEN) & (F.col("fate") == "lost") & passed_by,
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


def _added(rows: Sequence[Counts]) -> Counts:
    names = (*journeys.FATES_OF_ACCEPTED, "accepted", *conservation.BESIDE_FATES, "repeated")
    return {
        "destination": "",
        LABEL: "",
        **{name: sum(row[name] for row in rows) for name in names},
    }


@dataclass(frozen=True)
class _Sums:
    """Makes balances of counts; what cannot be known is None."""

    peek: BacklogSnapshot | None
    has_broker: bool
    counted: Counts

    def balance(self, row: Counts) -> Balance:
        return self._balance(row, is_peeked=self._is_peeked(row))

    def _is_peeked(self, row: Counts) -> bool:
        return self.peek is not None and self.peek.is_of(row[LABEL])

    def _balance(self, row: Counts, *, is_peeked: bool) -> Balance:
        lost, undecided, expired = row["lost"], row["undecided"], row["expired"]
        is_settled = self.has_broker or not (lost or undecided)
        heard = row.get("heard", False)
        return Balance(
            entity=row["destination"],
            accepted=row["accepted"],
            delivered=row["delivered"],
            # Without a peek the broker's view may know some.
            waiting=row["waiting"] or (0 if is_peeked or not undecided else None),
            dead_lettered=row["dead_lettered"] or (0 if is_peeked or not undecided else None),
            expired=expired or (0 if is_settled else None),
            lost=None if undecided else lost,
            undecided=undecided,
            # Without records of consumers the broker's view may know some.
            received=row["received_accepted"] if heard else row["broker_completed"] or None,
            duplicates=row["repeated"] if heard or row["repeated"] else None,
            raised=row["raised"],
            primary_label=row[LABEL],
            at_twin=row["at_twin"],
            second_copies=row["second_copies"],
            redeliveries=row["redeliveries"],
        )

    def total(self, rows: Sequence[Counts]) -> Balance:
        """Return the balance of all entities; a figure unknown for one is unknown for all."""
        all_heard = bool(rows) and all(row["heard"] for row in rows if row["accepted"])
        is_peeked = all(self._is_peeked(row) for row in rows if row["undecided"])
        whole = self._balance({**self.counted, "heard": all_heard}, is_peeked=is_peeked)
        any_heard = any(row["heard"] for row in rows)
        received = [self.balance(row).received for row in rows if row["accepted"]]
        known = [number for number in received if number is not None]
        if not all_heard:
            is_known = known and len(known) == len(received)
            whole = whole._replace(received=sum(known) if is_known else None)
        return whole._replace(duplicates=self.counted["repeated"] if any_heard else None)


def _named(notable: DataFrame, ids_max: int) -> tuple[tuple[NamedMessage, ...], int]:
    """Return undelivered messages, the worst first, and how many were left out."""
    rank = F.array_position(F.array(*(F.lit(fate) for fate in _WORST_FIRST)), F.col("fate"))
    missing = notable.where(F.col("accepted") & (F.col("fate") != journeys.DELIVERED_FATE))
    rows = (
        missing.orderBy(rank, "accepted_ms", "destination", "message_id", LABEL)
        .select("destination", "message_id", "fate", "accepted_ms", LABEL)
        .limit(ids_max + 1)
        .collect()
    )
    left_out = missing.count() - ids_max if len(rows) > ids_max else 0
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


def _unknown(
    scope: ReportScope, sums: _Sums, rows: Sequence[Counts], nameless: int
) -> Iterator[str]:
    if sums.peek is None and sums.counted["undecided"]:
        yield "waiting and dead-lettered: the backlog queues were not peeked"
    silent = [row for row in rows if row["accepted"] and not row["heard"]]
    for names, figures in (
        (
            [row["destination"] for row in silent if not row["broker_completed"]],
            "received and duplicates",
        ),
        ([row["destination"] for row in silent if row["broker_completed"]], "duplicates"),
    ):
        if names:
            named = _names(list(dict.fromkeys(names)))
            yield f"{figures}: no consumer of {named} kept a ledger"
    if sums.counted["lost"] and not sums.has_broker:
        yield "expired: one of the lost can have expired, which only the broker's view tells"
    if nameless:
        yield f"{nameless:,} accepted messages have no id or no entity: not followed"
    yield from unread(scope)


def _incomplete(
    tables: LedgerTables, request: ReportRequest, scope: ReportScope, counted: Counts
) -> Iterator[str]:
    """Yield why accepted messages may exist that have no record in scope."""
    if not scope.records:
        yield "everything: no record is in scope"
    moved, received = counted["moved_unsent"], counted["received_unsent"]
    if moved:
        yield (
            f"{moved:,} messages were moved out of the backlog or a twin, and no record says that"
            " they were accepted: records of their senders are missing"
        )
    if received:
        yield (
            f"{received:,} messages were received, and no record says that they were accepted:"
            " their senders keep no ledger, or records of them are missing"
        )
    stored = counted["stored_unsent"]
    if stored:
        yield (
            f"{stored:,} messages were stored in a backlog queue, as the broker's records say, and"
            " no record says that they were accepted: their senders keep no ledger, or records of"
            " them are missing"
        )
    if not (counted["accepted"] or counted["raised"] or moved or received or stored):
        yield from _of_others(tables, request)
    if counted["masked"]:
        yield (
            f"{counted['masked']:,} ids were accepted more than once and diverted more often than"
            " forwarded, or taken out of a twin more often than forwarded: a message that is not"
            " delivered can have the id of one that is"
        )


def _unbalanced(rows: Sequence[Counts]) -> Iterator[str]:
    """Yield a sentence if fates do not add up to the accepted messages."""
    off = [row for row in rows if row["accepted"] != _fates_of(row)]
    if off:
        accepted, fates = sum(row["accepted"] for row in off), sum(map(_fates_of, off))
        yield (
            f"the tables contradict themselves: {accepted:,} messages of"
            f" {_names([row['destination'] for row in off])} were accepted and {fates:,} have a"
            " fate; rebuild the tables (twinbus ledger rebuild LEDGER)"
        )


def _fates_of(row: Counts) -> int:
    return sum(row[fate] for fate in journeys.FATES_OF_ACCEPTED)


def _unsent(tables: LedgerTables, request: ReportRequest) -> int:
    """Return how many messages of all entities only the broker recorded in the backlog."""
    found = tables.unsent_in_backlog().withColumn("day", day_of(F.col("first_ms")))
    return by_day(found, request).count()


def _of_others(tables: LedgerTables, request: ReportRequest) -> Iterator[str]:
    """Yield a sentence if messages were moved in scope and none was accepted in it."""
    table = by_day(of_entity(tables.table("charges"), request, "entity"), request)
    row = table.where(F.col("stage").isin(*MESSAGE_STAGES)).agg(F.sum("operations")).collect()[0]
    if row[0]:
        yield (
            f"{row[0]:,} operations on messages are in scope, and no record in it says that one was"
            " accepted: ask for more days (--since), or their senders keep no ledger"
        )


def _unseen(rows: Sequence[Counts], peek: BacklogSnapshot | None) -> Iterator[str]:
    """Yield a sentence on pairs whose backlog queues the peek did not find."""
    if peek is None:
        return
    elsewhere = {row[LABEL] for row in rows if row["undecided"] and not peek.is_of(row[LABEL])}
    if elsewhere:
        yield (
            f"waiting and lost of {_names(sorted(elsewhere))}: the peek found no backlog queue of"
            " it; peek into its own secondary (--peek)"
        )


def _erased(named: Sequence[NamedMessage], peek: BacklogSnapshot | None) -> Iterator[str]:
    """Yield a sentence on messages that a peek cannot find because their ids were erased."""
    unseen = [one for one in named if one.fate in journeys.UNSEEN]
    count = sum(journeys.is_erased_id(one.message_id) for one in unseen)
    if count and peek is not None:
        yield f"waiting and lost of {count:,} erased messages: a peek cannot find them without ids"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


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
