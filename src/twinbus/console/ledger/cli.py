"""The commands of `twinbus ledger`."""

from __future__ import annotations

from typing import Annotated, Any

from twinbus.console.ledger.options import TablesOptions
from twinbus.console.options import require_shared_places
from twinbus.console.terminal.command import argument, command, command_group, flag, option
from twinbus.console.terminal.output import WrongUse

app = command_group("Maintain the tables of a ledger: update, retain, erase.")


@command(app, "twinbus ledger status ./ledger --output json")
def status(given: TablesOptions) -> int:
    """Show records, writers and what is missing.

    It names every writer that stopped without an end (a gap), and files that are missing, changed
    or doubled. This starts no Spark.
    """
    from twinbus.console.ledger import commands

    require_shared_places(given.master, given.ledger, given.tables, shared=given.shared)
    return commands.status(given.ledger, given.tables, given.output)


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
    go too. Old files are deleted at once, so a report that is running may fail. If a file that is
    still being written names the message, the command changes nothing and fails: end that process
    and run it again.
    """
    if not message_id:
        # An empty text is in every line.
        raise WrongUse("--message-id is empty: name the message to forget")
    return _run("erase", given, message_id=message_id)


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
    from twinbus.console.ledger import commands

    if not reason.strip():
        raise WrongUse("--reason is empty: say why nothing is missing")
    require_shared_places(given.master, given.ledger, given.tables, shared=given.shared)
    return commands.close(given.ledger, given.tables, process, reason, given.output)


def _run(verb: str, given: TablesOptions, **more: Any) -> int:
    from twinbus.console.ledger.commands import run
    from twinbus.pipeline.store.upkeep import TablesTask

    require_shared_places(given.master, given.ledger, given.tables, shared=given.shared)
    task = TablesTask(
        verb=verb, ledger=given.ledger, tables=given.tables, shared=given.shared, **more
    )
    return run(task, given.master, given.output)
