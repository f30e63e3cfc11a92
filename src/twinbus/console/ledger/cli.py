"""The words of `twinbus ledger`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinbus.console.terminal.live_line import live_line
from twinbus.console.terminal.output import Output, OutputOption, print_json
from twinbus.console.terminal.table import aligned, size

if TYPE_CHECKING:
    from twinbus.pipeline.tables_job import TablesTask

__all__ = ["app"]

Document = dict[str, Any]

app = typer.Typer(
    help="Look at the tables of a ledger, bring them up to date or make them anew, compact them,"
    " and remove what is old.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

LedgerArgument = Annotated[
    str,
    typer.Argument(
        metavar="LEDGER", envvar="TWINBUS_LEDGER", help="The ledger: a directory or a Hadoop URL."
    ),
]
TablesOption = Annotated[
    str | None,
    typer.Option("--tables", metavar="PLACE", help="Where its tables are; unset: LEDGER/_tables."),
]
MasterOption = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="Spark's master; unset: this machine.")
]


@app.command("status", epilog="Example: twinbus ledger status ./ledger --output json")
def status(
    ledger: LedgerArgument,
    tables: TablesOption = None,
    master: MasterOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show what the tables hold: records, lines set aside, parts, files and bytes."""
    _run("status", ledger, tables, master, output, _status_lines)


@app.command("update", epilog="Example: twinbus ledger update ./ledger")
def update(
    ledger: LedgerArgument,
    tables: TablesOption = None,
    master: MasterOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Take the ledger's files that were ended since the last time. A report does so too."""
    _run("update", ledger, tables, master, output, _table_lines)


@app.command("rebuild", epilog="Example: twinbus ledger rebuild ./ledger")
def rebuild(
    ledger: LedgerArgument,
    tables: TablesOption = None,
    master: MasterOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Remove the tables and make them anew from the ledger's files.

    It is refused once files of the ledger were removed (compact --remove-raw).
    """
    _run("rebuild", ledger, tables, master, output, _table_lines)


@app.command("compact", epilog="Example: twinbus ledger compact ./ledger --remove-raw")
def compact(
    ledger: LedgerArgument,
    tables: TablesOption = None,
    remove_raw: Annotated[
        bool,
        typer.Option(
            "--remove-raw",
            help="Remove the ledger's files whose records the tables hold, but for the last"
            " batch's. The tables are then the only copy, and cannot be rebuilt.",
        ),
    ] = False,
    master: MasterOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Write the many small parts of the tables as few large ones. Reports stay the same."""
    _run("compact", ledger, tables, master, output, _compact_lines, remove_raw=remove_raw)


@app.command("retain", epilog="Example: twinbus ledger retain ./ledger --days 90")
def retain(
    ledger: LedgerArgument,
    days: Annotated[
        int,
        typer.Option(
            "--days", min=1, max=36_500, metavar="N", help="Days to keep, today among them (UTC)."
        ),
    ],
    tables: TablesOption = None,
    master: MasterOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Remove records, and journeys that are settled, older than so many days.

    Sums stay, so reports say the same; so do journeys of messages that are still awaited.
    """
    _run("retain", ledger, tables, master, output, _retain_lines, days=days)


def _run(
    verb: str,
    ledger: str,
    tables: str | None,
    master: str | None,
    output: Output,
    lines: Callable[[Document], list[str]],
    **more: Any,
) -> None:
    from twinbus.console.namespaces import run_to_its_end
    from twinbus.pipeline.tables_job import TablesTask

    task = TablesTask(verb=verb, ledger=ledger, tables=tables, **more)

    async def work() -> int:
        told = await _done(task, master)
        if output is Output.JSON:
            print_json(told)
        else:
            print("\n".join(lines(told)), flush=True)
        return 0

    raise typer.Exit(run_to_its_end(work))


async def _done(task: TablesTask, master: str | None) -> Document:
    """Do it on a thread, with a line that says how it goes."""
    from twinbus.pipeline import tables_job
    from twinbus.pipeline.spark.failure_text import spark_in_words
    from twinbus.pipeline.spark.session import LOCAL_MASTER, spark_session

    async with live_line() as line:
        line.say("starting Spark")

        def work() -> Document:
            with spark_in_words(), spark_session(master=master or LOCAL_MASTER) as spark:
                line.say("reading the tables")
                return tables_job.perform(spark, task, line.say)

        return await asyncio.wrap_future(_begun(work))


def _begun(work: Callable[[], Document]) -> Future[Document]:
    """What comes of work on a thread that nobody waits for when the process ends.

    So Ctrl-C ends the command at once: what is half done counts for nothing.
    """
    future: Future[Document] = Future()

    def do() -> None:
        future.set_running_or_notify_cancel()
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it goes to who waits for the future
            future.set_exception(error)

    threading.Thread(target=do, name="twinbus-spark", daemon=True).start()
    return future


def _table_lines(told: Document) -> list[str]:
    aside = sum(told["set_aside"].values())
    return [
        f"{told['records']:,} records, {aside:,} lines set aside"
        + "".join(f", {count:,} {why}" for why, count in told["set_aside"].items()),
        f"commit {told['commit']}, batch {told['batch']}",
    ]


def _status_lines(told: Document) -> list[str]:
    if told["commit"] < 0:
        return [f"{told['place']}: no tables yet; make a report, or twinbus ledger update LEDGER"]
    rows = [("", "parts", "files", "size")]
    rows += [
        (kind, f"{one['parts']:,}", f"{one['files']:,}", size(one["bytes"]))
        for kind, one in told["kinds"].items()
    ]
    records, commit = _table_lines(told)
    return [f"{told['place']}: {records}", commit, *aligned(rows, right={1, 2, 3})]


def _compact_lines(told: Document) -> list[str]:
    after = told["parts_after"]
    lines = [
        f"{kind}: {before:,} parts -> {after[kind]:,}"
        for kind, before in told["parts_before"].items()
    ]
    removed = told["raw_files_removed"]
    return lines if removed is None else [*lines, f"files of the ledger removed: {removed:,}"]


def _retain_lines(told: Document) -> list[str]:
    removed = (
        f"{told['records_removed']:,} records and {told['journeys_removed']:,} settled journeys"
    )
    return [
        f"kept from {told['first_day_kept']} on; removed: {removed}",
        f"{told['journeys_open']:,} older journeys are still open, and stay",
    ]
