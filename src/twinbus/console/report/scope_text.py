"""Text that all reports share: names of causes, what is unknown, assumed and read. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from twinbus.console.sheet.sheet import Section, clock, sections
from twinbus.console.terminal.table import counted, visible
from twinbus.pipeline.reports.documents import LedgerReport, ReportScope

CAUSES: Final = {
    "application": "sends to the primary",
    "failover": "sends to the backlog",
    "ping": "pings",
    "syphon": "syphon: receive, forward, complete",
    "poll": "syphon: polls that found nothing",
    "lease": "syphon: leases",
    "administration": "administration",
    "consumer": "receivers: receive, complete",
}
"""Names of the ledger's causes, in the order in which a message meets them."""

DUPLICATE_CAUSES: Final = {
    "ambiguous": "a send that had no answer was done again elsewhere",
    "syphon": "the syphon forwarded it twice",
    "unexplained": "the ledger does not say why",
}


class OfEntity(Protocol):
    """A row of a report about one entity."""

    @property
    def entity(self) -> str: ...

    @property
    def primary_label(self) -> str: ...


def entity_names(rows: Sequence[OfEntity]) -> Callable[[OfEntity], str]:
    """How rows name their entity: with its primary, if two primaries have one of the same name."""
    places = {(row.entity, row.primary_label) for row in rows}
    if len(places) == len({entity for entity, _ in places}):
        return lambda row: row.entity
    return lambda row: (
        f"{row.entity} ({row.primary_label})" if row.entity and row.primary_label else row.entity
    )


def cause_name(cause: str) -> str:
    """The name of a cause of the ledger."""
    return CAUSES.get(cause, cause)


def closing_sections(report: LedgerReport, *more_read: str) -> tuple[Section, ...]:
    """What is unknown, what is assumed, and what was read."""
    return sections(
        ("Unknown", report.unknown),
        ("Assumed", report.assumed),
        ("Read", (*_read(report.scope), *more_read)),
    )


def _read(scope: ReportScope) -> Iterator[str]:
    yield f"ledger {visible(scope.ledger)}"
    if scope.first_ms is None:
        yield "no record is in scope"
    else:
        records = counted(scope.records, "record")
        yield f"{records} from {clock(scope.first_ms)} to {clock(scope.last_ms)} UTC"
    requested = ", ".join(_requested(scope))
    if requested:
        yield f"asked for {requested}"
    if any(scope.rejected.values()):
        by_count = sorted(scope.rejected.items(), key=lambda reason: (-reason[1], reason[0]))
        reasons = ", ".join(f"{number:,} {visible(name)}" for name, number in by_count)
        yield f"{counted(sum(scope.rejected.values()), 'line')} rejected: {reasons}"
    # Files and writers that leave nothing unknown; the others are in the section Unknown.
    yield from map(visible, scope.remarks)
    yield from (visible(gap.sentence) for gap in scope.gaps if not gap.is_open)


def _requested(scope: ReportScope) -> Iterator[str]:
    if scope.entity is not None:
        yield f"entity {visible(scope.entity)}"
    if scope.since_ms is not None:
        yield f"from {clock(scope.since_ms)}"
    if scope.until_ms is not None:
        yield f"before {clock(scope.until_ms)}"
