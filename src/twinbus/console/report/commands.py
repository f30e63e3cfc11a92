"""`twinbus report`: make a report with Spark and print it as text, JSON, CSV or a page."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twinbus import __version__
from twinbus.console.namespaces import runs_to_its_end
from twinbus.console.report.backlog_scan import BacklogScan
from twinbus.console.report.options import NO_TABLES, ReportOptions
from twinbus.console.report.sheets import csv_of, sheet_of
from twinbus.console.sheet.page import page_of
from twinbus.console.sheet.text import text_of
from twinbus.console.spark_thread import SparkThread, require_spark
from twinbus.console.terminal.live_line import LiveLine
from twinbus.console.terminal.output import ATTENTION, COULD_NOT, WrongUse
from twinbus.cost.arithmetic import CountingRule
from twinbus.cost.prices import PriceBook
from twinbus.cost.quantities import QuantityError, parse_duration
from twinbus.errors import TwinbusError
from twinbus.ledger.record import LedgerError
from twinbus.pipeline.reports.documents import LedgerReport, ReportRequest, ReportVerdict
from twinbus.pipeline.spark.java import find_java
from twinbus.pipeline.spark.session import QUICK_START

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from twinbus.namespace.namespace import Namespace
    from twinbus.pipeline.reports.ledger_tables import LedgerTables

LONG_BYTES: Final = 500 << 20
"""For larger ledgers Spark compiles fully: a slower start, a faster run."""

DETECTION_MAX_S: Final = 7 * 86_400
"""The longest duplicate detection window of Service Bus."""

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

    def make(_: SparkSession, tables: LedgerTables, request: ReportRequest) -> LedgerReport:
        from twinbus.pipeline.reports.charges import charges_report

        report = charges_report(tables, request, book, rule)
        old = book.warnings(datetime.now(UTC).date())
        return replace(report, assumed=(*report.assumed, *old))

    return _run(given, make)


def availability(given: ReportOptions) -> int:
    """Show the availability report; return the exit status."""

    def make(_: SparkSession, tables: LedgerTables, request: ReportRequest) -> LedgerReport:
        from twinbus.pipeline.reports.availability import availability_report

        return availability_report(tables, request)

    return _run(given, make)


def conservation(given: ReportOptions, secondary: Namespace | None, detection_window_s: int) -> int:
    """Show the conservation report, after a peek into the backlog of a given secondary."""
    scan = None if secondary is None else BacklogScan(secondary)

    def make(spark: SparkSession, tables: LedgerTables, request: ReportRequest) -> LedgerReport:
        from twinbus.pipeline.reports.conservation import conservation_report

        snapshot = None if scan is None else scan.snapshot(spark)
        return conservation_report(tables, request, snapshot, detection_s=detection_window_s)

    return _run(given, make, scan)


def reconciliation(given: ReportOptions) -> int:
    """Show the reconciliation report; return the exit status."""

    def make(_: SparkSession, tables: LedgerTables, request: ReportRequest) -> LedgerReport:
        from twinbus.pipeline.reports.reconciliation import reconciliation_report

        return reconciliation_report(tables, request)

    return _run(given, make)


def detection_s(text: str) -> int:
    """The duplicate detection window in seconds; WrongUse if Service Bus has no such window."""
    try:
        return int(parse_duration(text, "--detection-window", most=DETECTION_MAX_S))
    except QuantityError as error:
        raise WrongUse(str(error)) from None


def _run(given: ReportOptions, make: Making, scan: BacklogScan | None = None) -> int:
    """Check what needs no Spark, make and show the report; return the exit status."""
    request = given.request()
    _require_writable(given)
    require_spark()
    _require_ledger(given)
    find_java()
    try:
        return _make_and_show(given, request, make, scan)
    finally:
        if scan is not None:
            scan.close()


@runs_to_its_end
async def _make_and_show(
    given: ReportOptions, request: ReportRequest, make: Making, scan: BacklogScan | None
) -> int:
    settings = {} if _is_long(given.ledger) else QUICK_START
    with LiveLine() as line:
        line.say("starting Spark")
        with SparkThread(master=given.master, settings=settings) as spark:
            await asyncio.wrap_future(spark.submit(lambda session: None))
            if scan is not None:
                line.say("peeking into the backlog queues")
                await scan.peek()
                await asyncio.sleep(SETTLE_S)
            line.say("reading the ledger")
            made = spark.submit(lambda session: _make_report(session, given, request, make, line))
            report = await asyncio.wrap_future(made)
    _show(given, report)
    return _STATUS[report.verdict]


def _make_report(
    spark: SparkSession,
    given: ReportOptions,
    request: ReportRequest,
    make: Making,
    line: LiveLine,
) -> LedgerReport:
    from twinbus.pipeline.reports import ledger_tables as reporting
    from twinbus.pipeline.store.current import current_tables

    try:
        with (
            reporting.batch_tables(spark, given.ledger, shared=given.shared)
            if given.tables == NO_TABLES
            else current_tables(spark, given.ledger, given.tables, shared=given.shared)
        ) as tables:
            line.say("making the report")
            reporting.require_entity(tables, request)
            return make(spark, tables, request)
    except reporting.UnknownEntityError as error:
        raise WrongUse(str(error)) from None


class ReportFailed(TwinbusError):
    """The report was made and its file cannot be written."""


def _require_writable(given: ReportOptions) -> None:
    """Raise WrongUse if the report could not be written: before the work, not after it."""
    if given.to is None:
        if given.output == "html" and sys.stdout.isatty():
            raise WrongUse("--output html makes a file: say --to report.html")
        return
    directory = given.to.absolute().parent
    if given.to.is_dir() or not directory.is_dir() or not os.access(directory, os.W_OK):
        raise WrongUse(f"--to {given.to} cannot be written: name a file in a directory of yours")


def _require_ledger(given: ReportOptions) -> None:
    """Raise WrongUse if there is no ledger, or no place for its tables."""
    ledger = given.ledger
    if "://" in ledger:
        return
    if not Path(ledger).is_dir():
        kind = "is a file" if Path(ledger).exists() else "is not there"
        raise WrongUse(f"LEDGER must be a directory with a ledger in it; {ledger} {kind}")
    from twinbus.pipeline.tables.bronze import location_of

    try:
        location_of(ledger)
    except LedgerError as error:
        raise WrongUse(str(error)) from None
    if given.tables is None and not os.access(ledger, os.W_OK):
        raise WrongUse(
            f"the tables of {ledger} cannot be kept in it, it must not be written to: say --tables"
            " DIR, or --tables none to work everything out anew"
        )


def _is_long(ledger: str) -> bool:
    if "://" in ledger:
        return True
    with suppress(OSError):
        return sum(path.stat().st_size for path in Path(ledger).glob("*")) > LONG_BYTES
    return False


def _show(given: ReportOptions, report: LedgerReport) -> None:
    text = _rendered(given.output, report)
    if given.to is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        given.to.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ReportFailed(f"{given.to} could not be written: {error.strerror}") from error
    print(f"{sheet_of(report).headline}\nwritten to {given.to}", flush=True)


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
