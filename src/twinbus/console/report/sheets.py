"""The forms of a report of any kind: its sheet, and its main table as CSV. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Any, Final

from twinbus.console.report.audit_sheets import conservation_sheet, reconciliation_sheet
from twinbus.console.report.availability_sheet import availability_sheet
from twinbus.console.report.charges_sheet import charges_sheet
from twinbus.console.sheet.sheet import Sheet
from twinbus.pipeline.reports.documents import (
    Agreement,
    AvailabilityReport,
    Balance,
    ChargeLine,
    ChargesReport,
    ConservationReport,
    FailoverWindow,
    LedgerReport,
    ReconciliationReport,
)
from twinbus.pipeline.reports.values import iso


def sheet_of(report: LedgerReport) -> Sheet:
    """The sheet of a report of any kind."""
    match report:
        case ChargesReport():
            return charges_sheet(report)
        case AvailabilityReport():
            return availability_sheet(report)
        case ConservationReport():
            return conservation_sheet(report)
        case ReconciliationReport():
            return reconciliation_sheet(report)
        case _:
            raise AssertionError(f"no sheet for {report.kind}")


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
            return _WINDOW_HEADER, map(_window, report.windows)
        case ConservationReport():
            return Balance._fields, report.entities
        case ReconciliationReport():
            return Agreement._fields, report.rows
        case _:
            raise AssertionError(f"no table for {report.kind}")


_WINDOW_HEADER: Final = (
    "entity pair process suspect_at failed_over_at recovered_at detect_ms lasted_ms sends_saved"
    " reason"
).split()


def _window(window: FailoverWindow) -> list[object]:
    return [
        iso(getattr(window, f"{name.removesuffix('_at')}_ms"))
        if name.endswith("_at")
        else getattr(window, name)
        for name in _WINDOW_HEADER
    ]


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
