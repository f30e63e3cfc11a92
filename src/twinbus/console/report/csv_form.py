"""The main table of a report as CSV. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from twinbus.pipeline.reports.documents import (
    Agreement,
    AvailabilityReport,
    Balance,
    ChargeLine,
    ChargesReport,
    ConservationReport,
    FailoverWindow,
    ReconciliationReport,
)
from twinbus.pipeline.reports.plain_json import iso

if TYPE_CHECKING:
    from twinbus.pipeline.reports.documents import LedgerReport


def csv_of(report: LedgerReport) -> str:
    """All rows of the report's main table; the header does not depend on the rows.

    Numbers are plain, times are ISO 8601 in UTC, and an empty cell means unknown.
    """
    header, rows = _rows(report)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _rows(report: LedgerReport) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
    match report:
        case ChargesReport():
            return ChargeLine._fields, report.lines
        case AvailabilityReport():
            return _WINDOW_HEADER, (_window(window) for window in report.windows)
        case ConservationReport():
            return Balance._fields, report.entities
        case ReconciliationReport():
            return Agreement._fields, report.rows
        case _:
            raise AssertionError(f"no table for {report.kind}")


_WINDOW_HEADER: Final = (
    "entity",
    "pair",
    "process",
    "suspect_at",
    "failed_over_at",
    "recovered_at",
    "detect_ms",
    "lasted_ms",
    "sends_saved",
    "reason",
)


def _window(window: FailoverWindow) -> tuple[object, ...]:
    return (
        window.entity,
        window.pair,
        window.process,
        iso(window.suspect_ms),
        iso(window.failed_over_ms),
        iso(window.recovered_ms),
        window.detect_ms,
        window.lasted_ms,
        window.sends_saved,
        window.reason,
    )


def _cell(value: object) -> object:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case date():
            return value.isoformat()
        case str() if value[:1] in {"=", "+", "-", "@", "\t", "\r"}:
            # A spreadsheet would take an id like "=1+1" for a formula.
            return "'" + value
        case _:
            return value
