"""The receive gap of each failover: from the windows of processes to outages, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, time
from typing import TYPE_CHECKING, NamedTuple

from twinbus.pipeline.reports.documents import FailoverWindow
from twinbus.pipeline.spark.few_rows import few_rows
from twinbus.pipeline.tables.receive_gaps import LEAD_MS, OUTAGES, receive_gaps

if TYPE_CHECKING:
    from twinbus.pipeline.reports.ledger_tables import LedgerTables


class EntityOutage(NamedTuple):
    """A time in which at least one process had an entity failed over."""

    primary_label: str
    entity: str
    began_ms: int
    """The first failed send; without one, the failover."""
    ended_ms: int

    def has(self, window: FailoverWindow) -> bool:
        is_of = (window.primary_label, window.entity) == (self.primary_label, self.entity)
        return is_of and self.began_ms <= window.failed_over_ms <= self.ended_ms


def outages_of(windows: Sequence[FailoverWindow], last_ms: int) -> list[EntityOutage]:
    """Return the outages of failovers: those of several processes that overlap are one.

    One that is open lasts up to `last_ms`, the last record.
    """
    outages: list[EntityOutage] = []
    for one in sorted(_outage_of(window, last_ms) for window in windows):
        before = outages[-1] if outages else None
        if before and before[:2] == one[:2] and one.began_ms <= before.ended_ms:
            outages[-1] = before._replace(ended_ms=max(before.ended_ms, one.ended_ms))
        else:
            outages.append(one)
    return outages


def _outage_of(window: FailoverWindow, last_ms: int) -> EntityOutage:
    began_ms = window.failed_over_ms if window.suspect_ms is None else window.suspect_ms
    ended_ms = last_ms if window.ended_ms is None else window.ended_ms
    place = window.primary_label, window.entity
    return EntityOutage(*place, began_ms, max(ended_ms, window.failed_over_ms))


def with_receive_gaps(
    tables: LedgerTables, windows: Sequence[FailoverWindow], last_ms: int
) -> tuple[FailoverWindow, ...]:
    """Return the failovers with their receive gaps, which one query finds for all of them."""
    first = tables.records_from
    kept_from_ms = 0
    if first is not None:
        # Journeys of earlier messages were removed.
        kept_from_ms = int(datetime.combine(first, time(), UTC).timestamp() * 1000) + LEAD_MS
    outages = [one for one in outages_of(windows, last_ms) if one.began_ms >= kept_from_ms]
    if not outages:
        return tuple(windows)
    journeys = tables.journeys()
    rows = [(number, *outage) for number, outage in enumerate(outages)]
    names = OUTAGES.fieldNames()
    named = [dict(zip(names, row, strict=True)) for row in rows]
    table = few_rows(journeys.sparkSession, OUTAGES, named).frame
    found = dict(map(tuple, receive_gaps(journeys, table, last_ms=last_ms).collect()))
    gaps = [(outage, found.get(number)) for number, outage in enumerate(outages)]
    return tuple(
        window._replace(receive_gap_ms=next((gap for one, gap in gaps if one.has(window)), None))
        for window in windows
    )


def without_receive_gap(windows: Sequence[FailoverWindow]) -> Iterator[str]:
    """Yield a sentence on entities whose receive gap is not known."""
    names = sorted({one.entity for one in windows if one.receive_gap_ms is None})
    if names:
        more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
        named = ", ".join(names[:3]) + more
        yield f"the receive gap of {named}: no consumer of it kept a ledger during the outage"
