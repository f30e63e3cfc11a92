"""`twinbus report`: make a report with Spark and print it as text, JSON, CSV or a page."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twinbus import __version__
from twinbus.console import ATTENTION, COULD_NOT
from twinbus.console.options import require_ledger
from twinbus.console.report.backlog_scan import BacklogScan
from twinbus.console.report.options import NO_TABLES, ReportOptions
from twinbus.console.report.sheets import csv_of, sheet_of
from twinbus.console.sheet.page import page_of
from twinbus.console.sheet.sheet import text_of
from twinbus.console.spark_thread import SparkThread, require_spark, settings_for
from twinbus.console.terminal.command import runs_to_its_end
from twinbus.console.terminal.output import LiveLine, WrongUse
from twinbus.cost.arithmetic import CountingRule
from twinbus.cost.prices import PriceBook
from twinbus.cost.quantities import QuantityError, parse_duration
from twinbus.errors import TwinbusError
from twinbus.pipeline.reports.documents import (
    LedgerReport,
    ReconciliationReport,
    ReportRequest,
    ReportVerdict,
)
from twinbus.pipeline.spark.java import find_java
from twinbus.servicebus.limits import DETECTION_MAX_S

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession

    from twinbus.namespace.namespace import Namespace
    from twinbus.pipeline.reports.ledger_tables import LedgerTables

SETTLE_S: Final = 1.0
"""Writers flush five times a second: after this pause what preceded the peek is on disk."""

_STATUS: Final = {
    ReportVerdict.GOOD: 0,
    ReportVerdict.BAD: COULD_NOT,
    ReportVerdict.UNKNOWN: ATTENTION,
}

Making = Callable[["SparkSession", "LedgerTables", ReportRequest], LedgerReport]


def charges(given: ReportOptions, book: PriceBook, rule: CountingRule) -> int:
    """Show the charges report; return the exit status."""
    return _run(given, [_charges(book, rule)])


def availability(given: ReportOptions) -> int:
    """Show the availability report; return the exit status."""
    return _run(given, [_availability])


def conservation(given: ReportOptions, secondary: Namespace | None, detection_window_s: int) -> int:
    """Show the conservation report, after a peek into the backlog of a given secondary."""
    scan = None if secondary is None else BacklogScan(secondary)
    return _run(given, [_conservation(scan, detection_window_s)], scan)


def reconciliation(given: ReportOptions) -> int:
    """Show the reconciliation report; return the exit status."""
    return _run(given, [_reconciliation])


def all_reports(
    given: ReportOptions,
    secondary: Namespace | None,
    detection_window_s: int,
    book: PriceBook,
    rule: CountingRule,
) -> int:
    """Show the four reports, made with one Spark session; return the worst exit status."""
    scan = None if secondary is None else BacklogScan(secondary)
    making = _conservation(scan, detection_window_s), _availability, _charges(book, rule)
    return _run(given, [*making, _reconciliation], scan)


def _charges(book: PriceBook, rule: CountingRule) -> Making:
    def make(_: SparkSession, tables: LedgerTables, request: ReportRequest) -> LedgerReport:
        from twinbus.pipeline.reports.charges import charges_report

        report = charges_report(tables, request, book, rule)
        old = book.warnings(datetime.now(UTC).date())
        return replace(report, assumed=(*report.assumed, *old))

    return make


def _availability(_: SparkSession, tables: LedgerTables, request: ReportRequest) -> LedgerReport:
    from twinbus.pipeline.reports.availability import availability_report

    return availability_report(tables, request)


def _conservation(scan: BacklogScan | None, detection_window_s: int) -> Making:
    def make(spark: SparkSession, tables: LedgerTables, request: ReportRequest) -> LedgerReport:
        from twinbus.pipeline.reports.conservation import conservation_report

        snapshot = None if scan is None else scan.snapshot(spark)
        return conservation_report(tables, request, snapshot, detection_s=detection_window_s)

    return make


def _reconciliation(_: SparkSession, tables: LedgerTables, request: ReportRequest) -> LedgerReport:
    from twinbus.pipeline.reports.reconciliation import reconciliation_report

    return reconciliation_report(tables, request)


def detection_s(text: str) -> int:
    """The duplicate detection window in seconds; WrongUse if Service Bus has no such window."""
    try:
        return int(parse_duration(text, "--detection-window", most=DETECTION_MAX_S))
    except QuantityError as error:
        raise WrongUse(str(error)) from None


def _run(given: ReportOptions, making: Sequence[Making], scan: BacklogScan | None = None) -> int:
    """Check what needs no Spark, make and show the reports; return the exit status."""
    request = given.request()
    _require_writable(given, is_one=len(making) == 1)
    require_spark()
    _require_ledger(given)
    find_java()
    try:
        return _make_and_show(given, request, making, scan)
    finally:
        if scan is not None:
            scan.close()


@runs_to_its_end
async def _make_and_show(
    given: ReportOptions,
    request: ReportRequest,
    making: Sequence[Making],
    scan: BacklogScan | None,
) -> int:
    with LiveLine() as line:
        line.say("starting Spark")
        with SparkThread(master=given.master, settings=settings_for(given.ledger)) as spark:
            await asyncio.wrap_future(spark.submit(lambda session: None))
            if scan is not None:
                line.say("reading the ledger")
                awaited = spark.submit(lambda session: _awaited(session, given))
                scan.awaited = await asyncio.wrap_future(awaited)
                line.say("peeking into the backlog queues")
                await scan.peek()
                await asyncio.sleep(SETTLE_S)
            line.say("reading the ledger")
            made = spark.submit(lambda session: _make(session, given, request, making, line))
            reports = await asyncio.wrap_future(made)
    _show(given, reports)
    return _status(reports)


def _status(reports: Sequence[LedgerReport]) -> int:
    """The exit status of the worst report; a view that no broker kept is no fault of several."""
    verdicts = {
        report.verdict
        for report in reports
        if len(reports) == 1
        or not isinstance(report, ReconciliationReport)
        or report.broker_records
    }
    worst_first = (ReportVerdict.BAD, ReportVerdict.UNKNOWN, ReportVerdict.GOOD)
    return next(_STATUS[one] for one in worst_first if one in verdicts)


def _awaited(spark: SparkSession, given: ReportOptions) -> DataFrame:
    from twinbus.pipeline.reports.conservation import awaited_messages

    with _tables(spark, given) as tables:
        return awaited_messages(tables)


def _tables(spark: SparkSession, given: ReportOptions) -> AbstractContextManager[LedgerTables]:
    """The tables of the ledger: kept ones, or computed from all records."""
    from twinbus.pipeline.reports.ledger_tables import batch_tables
    from twinbus.pipeline.store.current import current_tables

    if given.tables == NO_TABLES:
        return batch_tables(spark, given.ledger, shared=given.shared)
    return current_tables(spark, given.ledger, given.tables, shared=given.shared)


def _make(
    spark: SparkSession,
    given: ReportOptions,
    request: ReportRequest,
    making: Sequence[Making],
    line: LiveLine,
) -> list[LedgerReport]:
    from twinbus.pipeline.reports import ledger_tables as reporting

    try:
        with _tables(spark, given) as tables:
            reporting.require_entity(tables, request)
            reports = []
            for number, make in enumerate(making, 1):
                which = "the report" if len(making) == 1 else f"report {number} of {len(making)}"
                line.say(f"making {which}")
                reports.append(make(spark, tables, request))
            return reports
    except reporting.UnknownEntityError as error:
        raise WrongUse(str(error)) from None


class ReportFailed(TwinbusError):
    """The report was made and its file cannot be written."""


def _require_writable(given: ReportOptions, *, is_one: bool) -> None:
    """Raise WrongUse if the report could not be written: before the work, not after it."""
    if not is_one and given.output in {"csv", "html"}:
        if given.to is None or not given.to.is_dir() or not os.access(given.to, os.W_OK):
            raise WrongUse(
                f"--output {given.output} makes one file for each report: name an existing"
                " directory with --to DIR"
            )
        return
    if given.to is None:
        if given.output == "html" and sys.stdout.isatty():
            raise WrongUse("--output html makes a file: name it with --to report.html")
        return
    directory = given.to.absolute().parent
    if given.to.is_dir() or not directory.is_dir() or not os.access(directory, os.W_OK):
        raise WrongUse(f"--to {given.to} cannot be written: name a file in a directory of yours")


def _require_ledger(given: ReportOptions) -> None:
    """Raise WrongUse if there is no ledger, or no place for its tables."""
    ledger = given.ledger
    require_ledger(ledger)
    if "://" not in ledger and given.tables is None and not os.access(ledger, os.W_OK):
        raise WrongUse(
            f"{ledger} is not writable, so its tables cannot be stored there. Use --tables DIR, or"
            " --tables none to recompute everything."
        )


def _show(given: ReportOptions, reports: Sequence[LedgerReport]) -> None:
    if len(reports) > 1 and given.output in {"csv", "html"}:
        assert given.to is not None
        for report in reports:
            place = given.to / f"{report.kind}.{given.output}"
            _write(place, _rendered(given.output, report))
            print(f"{sheet_of(report).headline}\nwritten to {place}", flush=True)
        return
    text = _rendered(given.output, reports[0]) if len(reports) == 1 else _joined(given, reports)
    if given.to is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    _write(given.to, text)
    headlines = "\n".join(sheet_of(report).headline for report in reports)
    print(f"{headlines}\nwritten to {given.to}", flush=True)


def _write(place: Path, text: str) -> None:
    try:
        place.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ReportFailed(f"{place} could not be written: {error.strerror}") from error


def _joined(given: ReportOptions, reports: Sequence[LedgerReport]) -> str:
    """Several reports as one text, or as one JSON document by kind."""
    if given.output == "json":
        document = {report.kind: report.as_json() for report in reports}
        return json.dumps(document, indent=2 if sys.stdout.isatty() else None) + "\n"
    return "\n".join(
        f"{report.kind.upper()}\n{_rendered(given.output, report)}" for report in reports
    )


def _rendered(output: str, report: LedgerReport) -> str:
    match output:
        case "json":
            return json.dumps(report.as_json(), indent=2 if sys.stdout.isatty() else None) + "\n"
        case "csv":
            return csv_of(report)
        case "html":
            now = datetime.now(UTC)
            made = f"made by Twinbus {__version__} at {now:%Y-%m-%d %H:%M:%S} UTC"
            return page_of(sheet_of(report), made)
        case _:
            return text_of(sheet_of(report))
