"""What a report counted, and what its scope leaves out, in sentences. No Spark in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from twinbus.pipeline.reports.documents import DAY_MS, ReportRequest, ReportScope


class Lines(NamedTuple):
    """Counts of records in scope."""

    records: int
    nameless: int
    """Accepted messages without an id or an entity."""
    unrecorded: int
    broker_records: int
    """Of the whole ledger: 0 if the broker kept no view."""
    all_records: int
    """Of the whole ledger."""


def unread(scope: ReportScope, effect: str = "counts are too low") -> Iterator[str]:
    """Sentences on records that are known to exist, or to have existed, and were not read.

    `effect` is that of records that could not be written.
    """
    if scope.unrecorded:
        yield f"{scope.unrecorded:,} records could not be written: {effect}"
    if any(scope.rejected.values()):
        yield f"{sum(scope.rejected.values()):,} lines were rejected: their content is not known"
    yield from scope.missing
    yield from (gap.sentence for gap in scope.gaps if gap.is_open)


def from_sums(scope: ReportScope) -> tuple[str, ...]:
    """A sentence where days are in scope whose records were removed."""
    first = scope.records_from
    if first is None or (scope.first_day is not None and scope.first_day >= first):
        return ()
    return (f"records of before {first} were removed (retain): sums that were kept tell of them",)


def whole_days(request: ReportRequest) -> tuple[str, ...]:
    """A sentence if the window does not begin and end at midnight."""
    if not any((end or 0) % DAY_MS for end in (request.since_ms, request.until_ms)):
        return ()
    first, last = request.first_day, request.last_day
    since = "" if first is None else f" from {first}"
    until = "" if last is None else f" to {last}"
    return (f"kept by day: whole days (UTC) are counted,{since}{until}",)
