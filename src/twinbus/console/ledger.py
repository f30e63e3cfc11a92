"""`twinbus ledger`: the status of a ledger's tables, or one task on them, run on Spark."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from twinbus.console.declaration import (
    argument,
    command,
    command_group,
    flag,
    option,
    runs_to_its_end,
)
from twinbus.console.options import (
    LedgerArgument,
    MasterOption,
    SharedOption,
    require_ledger,
    require_shared_places,
)
from twinbus.console.output import LiveLine, Output, OutputOption, WrongUse, show, table_lines
from twinbus.console.sheet import clock
from twinbus.wording import counted, size, visible

if TYPE_CHECKING:
    import threading

    from pyspark.sql import SparkSession

    from twinbus.pipeline.store.upkeep import TablesTask

Document = Mapping[str, Any]

app = command_group("Maintain the tables of a ledger: update, retain, erase.")


@dataclass(frozen=True, kw_only=True)
class TablesOptions:
    """Where a ledger and its tables are, and the Spark to use."""

    ledger: LedgerArgument
    tables: Annotated[
        str | None, option("PLACE", "Place of its tables. Unset: LEDGER/_tables.")
    ] = None
    master: MasterOption = None
    shared: SharedOption = False
    output: OutputOption = Output.TEXT

    def require(self) -> None:
        """Raise an error of one line if Spark or the ledger is missing, or a place is not shared.

        It starts no Spark.
        """
        from twinbus.console.spark_thread import require_spark

        require_shared_places(self.master, self.ledger, self.tables, shared=self.shared)
        require_spark()
        require_ledger(self.ledger)


@command(app, "twinbus ledger status ./ledger --output json")
def status(given: TablesOptions) -> int:
    """Show records, writers and what is missing.

    It names every writer that stopped without an end (a gap), and files that are missing, changed
    or doubled. This starts no Spark.
    """
    given.require()
    from twinbus.pipeline.store import upkeep

    result = upkeep.status(given.ledger, given.tables)
    return show(given.output, result, _status_lines(result))


@command(app, "twinbus ledger update ./ledger")
def update(given: TablesOptions) -> int:
    """Add the ledger's newly closed files to the tables.

    Every report does this too. Before it commits, the command reads back what it wrote; if the
    workers report more rows, it commits nothing and fails.
    """
    return _run("update", given)


@command(app, "twinbus ledger follow ./ledger")
def follow(given: TablesOptions) -> int:
    """Keep updating the tables until Ctrl-C or SIGTERM."""
    return _run("follow", given)


@command(app, "twinbus ledger rebuild ./ledger")
def rebuild(given: TablesOptions) -> int:
    """Remove the tables and build them again from the ledger.

    The command refuses once files of the ledger were removed (compact --remove-raw). If it is
    killed while it removes the old tables, every command refuses them until the next rebuild.
    """
    return _run("rebuild", given)


@command(app, "twinbus ledger compact ./ledger --remove-raw")
def compact(
    given: TablesOptions,
    remove_raw: Annotated[
        bool,
        flag(
            "--remove-raw",
            "Remove the ledger files whose records the tables hold, except those of the last"
            " batch. The tables are then the only copy and cannot be rebuilt.",
        ),
    ] = False,
) -> int:
    """Merge the small files of the tables into large ones.

    Reports stay the same, and `update` does this too when there are many small files. Replaced
    files stay for a day, for reports that still read them. Before --remove-raw deletes, it lists
    the files in a note, removed-....json, so that reports can say what is missing.
    """
    return _run("compact", given, remove_raw=remove_raw)


@command(app, "twinbus ledger retain ./ledger --days 90")
def retain(
    days: Annotated[int, option("N", "Days to keep, including today (UTC).", min=1, max=36_500)],
    given: TablesOptions,
) -> int:
    """Remove old records and old settled journeys.

    The sums stay, so the figures of all reports but reconciliation stay the same. Journeys of
    messages that were accepted and not delivered yet stay too. A late record of a removed message
    counts as a new message: keep more days than your slowest backlog needs.
    """
    return _run("retain", given, days=days)


@command(app, "twinbus ledger erase ./ledger --message-id 0b1c")
def erase(
    message_id: Annotated[str, option("ID", "Id of the message to forget.")],
    given: TablesOptions,
) -> int:
    """Remove everything that names one message.

    A random name takes the place of its id, in the tables and in the ledger's files, so that
    figures stay the same: a lost message stays lost. Trace, sequence number, client and error text
    of its records go too, and other texts end where they name it as a word of its own. Names of
    entities and processes stay, and reasons given to `ledger close`. Old files are deleted at once,
    so a report that is running may fail. If a file that is still being written names the message,
    the command changes nothing and fails: end that process and run it again.
    """
    if not message_id:
        # An empty text is in every line.
        raise WrongUse("--message-id is empty: name the message to forget")
    return _run("erase", given, message_id=message_id)


@command(app, "twinbus ledger show ./ledger --message-id 0b1c", name="show")
def show_lines(
    message_id: Annotated[str, option("ID", "Id of the message.")], given: TablesOptions
) -> int:
    """Show the records of one message, by file and line.

    It reads what the tables hold, and their files for the numbers of the lines. This starts no
    Spark.
    """
    given.require()
    from twinbus.pipeline.store import upkeep

    result = upkeep.show(given.ledger, given.tables, message_id)
    return show(given.output, result, _message_lines(result))


@command(app, "twinbus ledger close web-1-7-1794968653265 ./ledger --reason idle")
def close(
    process: Annotated[str, argument("PROCESS", "The writer, as `ledger status` names it.")],
    reason: Annotated[str, option("TEXT", "Why nothing is missing.")],
    given: TablesOptions,
) -> int:
    """Close the gap of a process that was killed.

    You say that nothing is missing where it stopped without an end. Reports then no longer call
    its last interval unknown. Your name and the reason go into the ledger. This starts no Spark.
    """
    if not reason.strip():
        raise WrongUse("--reason is empty: say why nothing is missing")
    given.require()
    import getpass

    from twinbus.pipeline.store import upkeep

    user, text = getpass.getuser(), visible(reason)
    result = upkeep.close(given.ledger, given.tables, process, text, user=user)
    return show(
        given.output, result, [f"{process} is closed: {result['reason']} ({result['user']})"]
    )


def _run(verb: str, given: TablesOptions, **more: Any) -> int:
    given.require()
    from twinbus.pipeline.store.upkeep import TablesTask

    task = TablesTask(
        verb=verb, ledger=given.ledger, tables=given.tables, shared=given.shared, **more
    )
    return run_task(task, given.master, given.output)


@runs_to_its_end
async def run_task(task: TablesTask, master: str | None, output: Output) -> int:
    import asyncio
    import signal
    import threading

    from twinbus.console.spark_thread import SparkThread, settings_for
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
    return show(output, result, _LINES[task.verb](result))


def _perform(
    session: SparkSession, task: TablesTask, line: LiveLine, stop: threading.Event
) -> Document:
    from twinbus.pipeline.store import upkeep

    line.say("reading the tables")
    if task.verb == "follow":
        return upkeep.follow(
            session, task, stop, lambda text: line.print(f"twinbus: {text}", sys.stderr)
        )
    return upkeep.perform(session, task, line.say)


def _table_lines(result: Document) -> list[str]:
    rejected = sum(result["rejected"].values())
    return [
        f"{result['records']:,} records, {rejected:,} lines rejected"
        + "".join(f", {count:,} {why}" for why, count in result["rejected"].items()),
        f"commit {result['commit']}, batch {result['batch']}",
    ]


def _status_lines(result: Document) -> list[str]:
    writers = _writer_lines(result["ledger"])
    if result["commit"] < 0:
        place = result["place"]
        return [f"{place}: no tables yet; make a report, or twinbus ledger update LEDGER", *writers]
    rows = [(kind, one["files"], size(one["bytes"])) for kind, one in result["kinds"].items()]
    records, commit = _table_lines(result)
    table = table_lines(("", ">files", ">size"), rows)
    rejected = [
        f"{visible(one['file'])}:{one['line'] or '?'}: {one['reason']}: {visible(one['text'])[:60]}"
        for one in result["quarantine"]
    ]
    return [f"{result['place']}: {records}", commit, *table, *rejected, *writers]


def _message_lines(result: Document) -> list[str]:
    if not result["lines"]:
        return [f"no record of message {visible(result['message_id'])} is in the tables"]
    rows = [
        (
            clock(one["at_ms"]),
            one["operation"],
            one["outcome"] or "",
            visible(one["entity"] or ""),
            f"{visible(one['file'] or '?')}:{one['line'] or '?'}",
        )
        for one in result["lines"]
    ]
    fates = [f"{visible(one['entity'])}: {one['fate']}" for one in result["fates"]]
    return [*table_lines(("at (UTC)", "operation", "outcome", "entity", "line"), rows), *fates]


def _writer_lines(ledger: Document) -> list[str]:
    states = "".join(f", {count:,} {state}" for state, count in ledger["writers"].items())
    writers = counted(sum(ledger["writers"].values()), "writer")
    return [
        f"{counted(ledger['files'], 'file')} of {writers}{states}",
        *(gap["sentence"] for gap in ledger["gaps"]),
        *ledger["missing"],
        *ledger["remarks"],
    ]


def _compact_lines(result: Document) -> list[str]:
    after = result["files_after"]
    lines = [
        f"{kind}: {before:,} files -> {after[kind]:,}"
        for kind, before in result["files_before"].items()
    ]
    removed = result["raw_files_removed"]
    return lines if removed is None else [*lines, f"files of the ledger removed: {removed:,}"]


def _retain_lines(result: Document) -> list[str]:
    removed = (
        f"{result['records_removed']:,} records and {result['journeys_removed']:,} settled journeys"
    )
    return [
        f"kept from {result['first_day_kept']} on; removed: {removed}",
        f"{result['journeys_open']:,} older journeys are still open, and stay",
    ]


def _erase_lines(result: Document) -> list[str]:
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
