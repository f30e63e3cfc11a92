"""The reports of one short ledger for a drill, in as few queries as it needs."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twinbus.cost.arithmetic import CountingRule
from twinbus.pipeline import functions as F
from twinbus.pipeline.reports import documents
from twinbus.pipeline.reports.availability import failovers_over_time
from twinbus.pipeline.reports.charges import charges_summary
from twinbus.pipeline.reports.conservation import BacklogSnapshot, conservation_report
from twinbus.pipeline.reports.ledger_tables import BatchTables
from twinbus.pipeline.spark.few_rows import few_rows
from twinbus.pipeline.tables.journeys import MESSAGE
from twinbus.pipeline.tables.records import is_twin
from twinbus.pipeline.tables.schemas import SIGHTINGS, field

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from twinbus.cost.prices import PriceBook

WHOLE_LEDGER: Final = documents.ReportRequest()
BUCKET_S: Final = 1
"""An outage of seconds is drawn by the second."""

_TABLES: Final = (
    *("lines", "traffic", "states", "fates", "notable"),
    *("charges", "deliveries", "diversions", "stays", "raised"),
)
"""The tables that the three reports read."""

_DRAIN: Final = "drain"


@dataclass(frozen=True, kw_only=True)
class OutageReport:
    """The figures of a drill: three reports, and what only records show."""

    conservation: documents.ConservationReport
    charges: documents.ChargesReport
    availability: documents.AvailabilityReport
    drain_began_ms: int | None
    """The first message that came out of the backlog."""
    drain_ended_ms: int | None
    """The last one that was settled there."""
    forwarded: int
    """Messages that left the backlog for the primary; those of twins are not among them."""
    not_received_ids: tuple[str, ...]
    """Accepted messages without a record of their receipt, in order."""


def outage_report(
    spark: SparkSession | None,
    ledger: Path | str,
    prices: PriceBook,
    sightings: Iterable[documents.Sighting],
    *,
    peeked_ms: int,
    ids_max: int,
) -> OutageReport:
    """Make the reports. `sightings` are all messages that peeks found in the backlog queues.

    `ids_max` limits the ids of each kind that the reports name. `spark` as in `BatchTables`.
    """
    with closing(BatchTables(spark, ledger, bucket_s=BUCKET_S)) as tables:
        # One job for all of them.
        tables.bring(*_TABLES, beside={_DRAIN: _drain_times(tables)})
        seen = few_rows(spark, SIGHTINGS, [one._asdict() for one in sightings]).frame
        # Senders and syphon of a drill have ended before the peek.
        messages = tables.messages().select(*MESSAGE)
        snapshot = BacklogSnapshot(seen, peeked_ms, awaited=messages)
        conservation = conservation_report(
            tables, WHOLE_LEDGER, snapshot, ids_max=ids_max, in_brief=True
        )
        scope = conservation.scope
        [drain] = tables.rows(_DRAIN) or ()
        all_came = all((row.received or 0) == row.accepted for row in conservation.entities)
        return OutageReport(
            conservation=conservation,
            charges=charges_summary(tables, WHOLE_LEDGER, prices, CountingRule(), scope),
            availability=failovers_over_time(tables, WHOLE_LEDGER, scope),
            **drain,
            not_received_ids=() if all_came else _not_received(tables, ids_max),
        )


def _drain_times(tables: BatchTables) -> DataFrame:
    """One row: the first message that left the backlog, the last one settled, the forwards."""
    operation, at_ms = F.col("operation"), F.col("at_ms")
    ok = field("outcome") == "ok"
    ok &= (field("view") == "client") & ~is_twin()
    came_out = ok & (operation == "backlog_receive") & F.col("message_id").isNotNull()
    settled = ok & operation.isin("complete", "dead_letter")
    settled &= field("cause") != "consumer"
    return tables.every_record().agg(
        F.min(F.when(came_out, at_ms)).alias("drain_began_ms"),
        F.max(F.when(settled, at_ms)).alias("drain_ended_ms"),
        F.count_if(ok & (operation == "forward")).alias("forwarded"),
    )


def _not_received(tables: BatchTables, ids_max: int) -> tuple[str, ...]:
    missing = tables.messages().where(F.col("accepted") & ~F.col("received")).select("message_id")
    rows = missing.orderBy("message_id").limit(ids_max).collect()
    return tuple(row["message_id"] for row in rows)
