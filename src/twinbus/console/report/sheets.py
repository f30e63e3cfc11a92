"""Selects the sheet of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.console.report.availability_sheet import availability_sheet
from twinbus.console.report.charges_sheet import charges_sheet
from twinbus.console.report.conservation_sheet import conservation_sheet
from twinbus.console.report.reconciliation_sheet import reconciliation_sheet
from twinbus.pipeline.reports.documents import (
    AvailabilityReport,
    ChargesReport,
    ConservationReport,
    ReconciliationReport,
)

if TYPE_CHECKING:
    from twinbus.console.sheet.sheet import Sheet
    from twinbus.pipeline.reports.documents import LedgerReport


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
