"""From the gold tables and the records of both views to a `ReconciliationReport`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.pipeline import functions as F
from twinbus.pipeline.reports.documents import Agreement, Difference, ReconciliationReport
from twinbus.pipeline.reports.ledger_tables import (
    by_day,
    in_days,
    lines_of,
    of_entity,
    scope_of,
)
from twinbus.pipeline.reports.scope import unread, whole_days
from twinbus.pipeline.spark.few_rows import collected
from twinbus.pipeline.spark.kept_rows import kept
from twinbus.pipeline.tables.reconciliation import agreements, disagreements, labels_at, named
from twinbus.pipeline.tables.records import LABEL
from twinbus.pipeline.tables.schemas import day_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, Row

    from twinbus.pipeline.reports.documents import ReportRequest, ReportScope
    from twinbus.pipeline.reports.ledger_tables import LedgerTables

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
    "too_young": "just done: the client may not have written it yet",
}
"""Kinds of differences (`reconciliation`); those that the ledger explains have a text."""
EXPLAINED: Final = tuple(kind for kind, words in EXPLANATIONS.items() if words)


def reconciliation_report(tables: LedgerTables, request: ReportRequest) -> ReconciliationReport:
    """Both views beside each other. It reads all records, for ids are compared one by one."""
    tables.bring("lines", "traffic", "states", "views")
    lines = lines_of(tables, request)
    scope = scope_of(tables, request, lines)
    if not lines.broker_records:
        return ReconciliationReport(
            scope=scope,
            rows=(),
            differences=(),
            broker_records=0,
            unknown=(
                "what the broker saw: it wrote no view of its own into this ledger",
                *unread(scope),
            ),
        )
    # Also of a day before and after: the other end may have recorded it then.
    in_scope = in_days(day_of(F.col("at_ms")), request, margin_days=1)
    records = tables.every_record().where(in_scope)
    views = tables.table("views")
    labels = labels_at(views)
    found_differing = disagreements(
        records,
        labels=labels,
        began=in_days(day_of(F.col("first_ms")), request),
        newest_ms=records.agg(F.max("at_ms")).collect()[0][0],
    )
    with kept(
        {"differing": of_entity(found_differing, request, "place")}, likely_few=tables.is_small
    ) as there:
        differing = there["differing"]
        compared = agreements(
            by_day(of_entity(views, request, "place"), request), differing, labels=labels
        )
        # Those that differ first: no difference may be among the rows that are left out.
        differ = sum((F.col(kind) for kind in EXPLANATIONS), F.lit(0)) > 0
        ordered = compared.orderBy(differ.desc(), "place", "operation", LABEL)
        found = collected({"rows": ordered.limit(ROWS_MAX), "differences": _differences(differing)})
    rows = found["rows"]
    differences = tuple(
        Difference._make((*row[:5], EXPLANATIONS[row["kind"]], row[LABEL]))
        for row in found["differences"]
    )
    # An operation at midnight can be in one day by one view and in the next by the other.
    by_some_days = request.first_day is not None or request.last_day is not None
    total = sum(sum(row[kind] for kind in EXPLANATIONS) for row in rows)
    return ReconciliationReport(
        scope=scope,
        rows=tuple(sorted(Agreement(*(row[name] for name in _COLUMNS)) for row in rows)),
        differences=differences,
        differences_left_out=max(0, total - len(differences)),
        explained=sum(row[kind] for row in rows for kind in EXPLAINED),
        unaccounted=0 if by_some_days else sum(map(_unaccounted, rows)),
        broker_records=lines.broker_records,
        is_compared=not _was_removed(scope, request),
        unknown=tuple(_unknown(scope, request)),
        assumed=whole_days(request),
    )


_COLUMNS: Final = (
    *("place", "operation", "clients", "broker", "only_clients", "only_broker", "explained"),
    LABEL,
)


def _unaccounted(row: Row) -> int:
    """Operations in one view only that no message explains, such as records without an id."""
    gap: int = row["broker"] - row["clients"] - row["found"]
    return abs(gap)


def _differences(differing: DataFrame) -> DataFrame:
    unexplained_first = F.col("kind").isin(*EXPLAINED)
    return (
        named(differing, IDS_MAX)
        .orderBy(unexplained_first, "place", "operation", "message_id", LABEL)
        .select("place", "operation", "message_id", "ahead", "unanswered", "kind", LABEL)
        .limit(DIFFERENCES_MAX)
    )


def _was_removed(scope: ReportScope, request: ReportRequest) -> bool:
    """Whether records were removed of the days that are read."""
    first = scope.records_from
    return first is not None and (request.first_day is None or request.first_day <= first)


def _unknown(scope: ReportScope, request: ReportRequest) -> Iterator[str]:
    if _was_removed(scope, request):
        yield (
            f"messages of before {scope.records_from}: their records were removed (retain), and ids"
            " cannot be compared"
        )
    yield "entities whose broker keeps no view: what clients did there shows as known to them only"
    yield from unread(scope, "they show as differences")
