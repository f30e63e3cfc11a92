"""From the gold tables and the records of both views to a `ReconciliationReport`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from twinbus.pipeline.buckets import day_of
from twinbus.pipeline.reconciliation import agreements, disagreements, named
from twinbus.pipeline.reporting import by_day, lines_of, of_entity, scope_of, whole_days
from twinbus.pipeline.reports import Agreement, Difference, ReconciliationReport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from twinbus.pipeline.reporting import LedgerTables
    from twinbus.pipeline.reports import Asked, Scope

__all__ = ["reconciliation_report"]

ROWS_MAX: Final = 10_000
IDS_MAX: Final = 100
"""Ids of each kind, place and operation that a report names."""
DIFFERENCES_MAX: Final = 1_000

EXPLANATIONS: Final = {
    "only_clients": "",
    "only_broker": "",
    "ambiguous_done": "the client had no answer, and the broker did it",
    "ambiguous_not_done": "the client had no answer, and the broker did not do it",
    "given_back": "handed to a receiver, which gave it back or recorded nothing",
}
"""Kinds of differences (`reconciliation`); those that the ledger explains say how."""
EXPLAINED: Final = tuple(kind for kind, words in EXPLANATIONS.items() if words)


def reconciliation_report(tables: LedgerTables, asked: Asked) -> ReconciliationReport:
    """Both views beside each other. It reads all records, for ids are compared one by one."""
    lines = lines_of(tables, asked)
    scope = scope_of(tables, asked, lines)
    if not lines.broker_records:
        return ReconciliationReport(
            scope=scope,
            rows=(),
            differences=(),
            broker_records=0,
            unknown=("what the broker saw: it wrote no view of its own into this ledger",),
        )
    records = _in_scope(tables.every_record(), asked)
    # Clients call a namespace by its host, a broker by its name: paths are what they share.
    differing = of_entity(disagreements(records, by_namespace=False), asked, "place").cache()
    try:
        views = by_day(of_entity(tables.table("views"), asked, "place"), asked)
        found = agreements(views, differing, by_namespace=False)
        rows = found.orderBy("place", "operation").limit(ROWS_MAX).collect()
        told = [Agreement(*(row[name] for name in _COLUMNS)) for row in rows]
        differences = _differences(differing)
        total = sum(sum(row[kind] for kind in EXPLANATIONS) for row in rows)
        return ReconciliationReport(
            scope=scope,
            rows=tuple(told),
            differences=differences,
            differences_left_out=max(0, total - len(differences)),
            explained=sum(row[kind] for row in rows for kind in EXPLAINED),
            broker_records=lines.broker_records,
            unknown=tuple(_unknown(scope)),
            assumed=whole_days(asked),
        )
    finally:
        differing.unpersist()


_COLUMNS: Final = ("place", "operation", "clients", "broker", "only_clients", "only_broker")


def _in_scope(records: DataFrame, asked: Asked) -> DataFrame:
    return by_day(records.withColumn("day", day_of(F.col("at_ms"))), asked).drop("day")


def _differences(differing: DataFrame) -> tuple[Difference, ...]:
    unexplained_first = F.col("kind").isin(*EXPLAINED)
    rows = (
        named(differing, IDS_MAX)
        .orderBy(unexplained_first, "place", "operation", "message_id")
        .limit(DIFFERENCES_MAX)
        .collect()
    )
    return tuple(
        Difference(
            entity=row["place"],
            operation=row["operation"],
            message_id=row["message_id"],
            ahead=row["ahead"],
            unanswered=row["unanswered"],
            explanation=EXPLANATIONS[row["kind"]],
        )
        for row in rows
    )


def _unknown(scope: Scope) -> Iterator[str]:
    yield "entities whose broker keeps no view: what clients did there shows as known to them only"
    if scope.unrecorded:
        yield f"{scope.unrecorded:,} records could not be written: they show as differences"
