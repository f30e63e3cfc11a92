"""`twinbus ledger`: the status of a ledger's tables, or one task on them, run on Spark."""

from __future__ import annotations

import asyncio
import getpass
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from twinbus.console.options import require_ledger
from twinbus.console.spark_thread import SparkThread, require_spark, settings_for
from twinbus.console.terminal.command import runs_to_its_end
from twinbus.console.terminal.live_line import LiveLine
from twinbus.console.terminal.output import Output, show
from twinbus.console.terminal.table import size, table_lines
from twinbus.pipeline.store import upkeep
from twinbus.wording import counted, visible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Document = Mapping[str, Any]


def status(ledger: str, tables: str | None, output: Output) -> int:
    """Print what the tables hold; return the exit status."""
    require_spark()
    require_ledger(ledger)
    result = upkeep.status(ledger, tables)
    show(output, result, _status_lines(result))
    return 0


def close(ledger: str, tables: str | None, process: str, reason: str, output: Output) -> int:
    """Record a person's word on a process; return the exit status."""
    require_spark()
    require_ledger(ledger)
    result = upkeep.close(ledger, tables, process, visible(reason), user=getpass.getuser())
    show(output, result, [f"{process} is closed: {result['reason']} ({result['user']})"])
    return 0


def run(task: upkeep.TablesTask, master: str | None, output: Output) -> int:
    """Perform the task and print its result; return the exit status."""
    require_spark()
    require_ledger(task.ledger)
    return _run_on_spark(task, master, output)


@runs_to_its_end
async def _run_on_spark(task: upkeep.TablesTask, master: str | None, output: Output) -> int:
    from twinbus.pipeline.store.stream import tables_place

    # An update reads what is new; the others read all that is there.
    is_update = task.verb in ("update", "follow")
    whole = None if is_update else tables_place(task.ledger, task.tables)
    stop = threading.Event()
    if task.verb == "follow":
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with LiveLine() as line:
        line.say("starting Spark")
        # A task that was not committed has no effect, so Ctrl-C may end it at any time.
        with SparkThread(master=master, settings=settings_for(task.ledger, whole)) as spark:
            work = spark.submit(lambda session: _perform(session, task, line, stop))
            result = await asyncio.wrap_future(work)
    show(output, result, _LINES[task.verb](result))
    return 0


def _perform(
    session: SparkSession, task: upkeep.TablesTask, line: LiveLine, stop: threading.Event
) -> Document:
    line.say("reading the tables")
    if task.verb == "follow":
        return upkeep.follow(
            session, task, stop, lambda text: line.print(f"twinbus: {text}", sys.stderr)
        )
    return upkeep.perform(session, task, line.say)


def _table_lines(result: Document) -> list[str]:
    """Return how many records the tables hold, and their last commit."""
    rejected = sum(result["rejected"].values())
    return [
        f"{result['records']:,} records, {rejected:,} lines rejected"
        + "".join(f", {count:,} {why}" for why, count in result["rejected"].items()),
        f"commit {result['commit']}, batch {result['batch']}",
    ]


def _status_lines(result: Document) -> list[str]:
    """Return a row for each kind of table, then what the ledger's files show."""
    writers = _writer_lines(result["ledger"])
    if result["commit"] < 0:
        place = result["place"]
        return [f"{place}: no tables yet; make a report, or twinbus ledger update LEDGER", *writers]
    rows = [(kind, one["files"], size(one["bytes"])) for kind, one in result["kinds"].items()]
    records, commit = _table_lines(result)
    table = table_lines(("", ">files", ">size"), rows)
    return [f"{result['place']}: {records}", commit, *table, *writers]


def _writer_lines(told: Document) -> list[str]:
    """Return how many writers there are of each state, and a line for each finding."""
    states = "".join(f", {count:,} {state}" for state, count in told["writers"].items())
    writers = counted(sum(told["writers"].values()), "writer")
    return [
        f"{counted(told['files'], 'file')} of {writers}{states}",
        *(gap["sentence"] for gap in told["gaps"]),
        *told["missing"],
        *told["remarks"],
    ]


def _compact_lines(result: Document) -> list[str]:
    """Return the number of files before and after, for each kind of table."""
    after = result["files_after"]
    lines = [
        f"{kind}: {before:,} files -> {after[kind]:,}"
        for kind, before in result["files_before"].items()
    ]
    removed = result["raw_files_removed"]
    return lines if removed is None else [*lines, f"files of the ledger removed: {removed:,}"]


def _retain_lines(result: Document) -> list[str]:
    """Return what was removed, and which older journeys stay."""
    removed = (
        f"{result['records_removed']:,} records and {result['journeys_removed']:,} settled journeys"
    )
    return [
        f"kept from {result['first_day_kept']} on; removed: {removed}",
        f"{result['journeys_open']:,} older journeys are still open, and stay",
    ]


def _erase_lines(result: Document) -> list[str]:
    """Return how many records and files the message was in."""
    files = result["raw_files_changed"]
    return [f"{result['records_erased']:,} records erased; files of the ledger changed: {files:,}"]


_LINES: Final[Mapping[str, Callable[[Document], list[str]]]] = {
    "update": _table_lines,
    "follow": _table_lines,
    "rebuild": _table_lines,
    "compact": _compact_lines,
    "retain": _retain_lines,
    "erase": _erase_lines,
}
