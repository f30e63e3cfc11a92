"""The commands of `twinbus backlog`."""

from __future__ import annotations

from typing import Annotated

import typer

from twinbus.console.options import (
    EntityOption,
    LabelOption,
    PrimaryOption,
    QueueOption,
    QueuesOption,
    SecondaryOption,
    label_of,
    secondary_of,
)
from twinbus.console.terminal.help_text import epilog
from twinbus.console.terminal.output import Output, OutputOption, WrongUse

app = typer.Typer(
    help="Inspect, create and prune backlog queues.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

SECRETS = "Put connection strings into the environment: other users can see a command line."


@app.command("list", epilog=epilog("twinbus backlog list --output json", note=SECRETS))
def list_queues(
    primary: PrimaryOption = None,
    secondary: SecondaryOption = None,
    label: LabelOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show each backlog queue: message counts, oldest age, drift.

    Without a primary or a label it shows the backlog queues of every pair in the secondary.
    """
    from twinbus.console.backlog import commands as backlog

    side, name = secondary_of(secondary), label_of(primary, label)
    raise typer.Exit(backlog.list_queues(side, name, as_json=output is Output.JSON))


@app.command(epilog=epilog("twinbus backlog peek --queue 3 --entity orders --max 5"))
def peek(
    primary: PrimaryOption = None,
    secondary: SecondaryOption = None,
    label: LabelOption = None,
    queue: QueueOption = None,
    entity: EntityOption = None,
    count: Annotated[
        int, typer.Option("--max", min=1, max=10_000, metavar="N", help="Messages to show.")
    ] = 20,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show backlog messages; nothing is locked or settled."""
    from twinbus.console.backlog import commands as backlog

    raise typer.Exit(
        backlog.peek_messages(
            secondary_of(secondary),
            label_of(primary, label),
            queue=queue,
            entity=entity,
            count=count,
            as_json=output is Output.JSON,
        )
    )


@app.command(
    epilog=epilog(
        "twinbus backlog create --queues 10",
        exit_status="0 all queues exist, 1 some could not be created, 3 some exist but are unsafe"
        " to use.",
    )
)
def create(
    primary: PrimaryOption = None,
    secondary: SecondaryOption = None,
    label: LabelOption = None,
    queues: QueuesOption = 10,
    strict: Annotated[
        bool, typer.Option("--strict", help="Also create the lease queue of strict order.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Create missing backlog queues.

    Applications with create_backlog_queues=False need this once.
    """
    from twinbus.console.backlog import commands as backlog
    from twinbus.console.namespaces import parse_side

    sides = parse_side(primary, "primary", label), secondary_of(secondary)
    raise typer.Exit(backlog.create(*sides, queues, strict=strict, as_json=output is Output.JSON))


@app.command(epilog=epilog("twinbus backlog prune --queues 4 --dry-run"))
def prune(
    primary: PrimaryOption = None,
    secondary: SecondaryOption = None,
    label: LabelOption = None,
    queues: QueuesOption = 10,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be deleted.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete empty backlog queues past the count, after asking.

    A queue that holds any message or dead letter is kept. Sends to a queue are disabled before its
    last check, so no message can arrive between the check and the deletion.
    """
    from twinbus.console.backlog import commands as backlog

    name = label_of(primary, label)
    if name is None:
        raise WrongUse("whose backlog queues? Give --primary, TWINBUS_PRIMARY or --label")
    if dry_run and yes:
        raise WrongUse("--dry-run and --yes exclude each other: give one of them")
    side = secondary_of(secondary)
    as_json = output is Output.JSON
    raise typer.Exit(backlog.prune(side, name, queues, dry_run=dry_run, yes=yes, as_json=as_json))
