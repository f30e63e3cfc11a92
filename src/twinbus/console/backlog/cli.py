"""The commands of `twinbus backlog`."""

from __future__ import annotations

from typing import Annotated

from twinbus.console.options import (
    SECRETS,
    EntityOption,
    QueueOption,
    QueuesOption,
    SidesOptions,
)
from twinbus.console.terminal.command import command, command_group, flag, option
from twinbus.console.terminal.output import Output, OutputOption, WrongUse

app = command_group("Inspect, create and prune backlog queues.")


@command(app, "twinbus backlog list --output json", name="list", note=SECRETS)
def list_queues(sides: SidesOptions, output: OutputOption = Output.TEXT) -> int:
    """Show each backlog queue: message counts, oldest age, drift.

    Without a primary or a label it shows the backlog queues of every pair in the secondary.
    """
    from twinbus.console.backlog import commands

    return commands.list_queues(sides.secondary_side, sides.given_label, output)


@command(app, "twinbus backlog peek --queue 3 --entity orders --max 5")
def peek(
    sides: SidesOptions,
    queue: QueueOption = None,
    entity: EntityOption = None,
    count: Annotated[int, option("N", "Messages to show.", "--max", min=1, max=10_000)] = 20,
    output: OutputOption = Output.TEXT,
) -> int:
    """Show backlog messages; nothing is locked or settled."""
    from twinbus.console.backlog import commands

    return commands.peek_messages(sides.selection(queue), entity, count, output)


@command(
    app,
    "twinbus backlog create --queues 10",
    exit_status="0 all queues exist, 1 some could not be created, 3 some exist but are unsafe to"
    " use.",
)
def create(
    sides: SidesOptions,
    queues: QueuesOption = 10,
    strict: Annotated[
        bool, flag("--strict", "Also create the lease queue of strict order.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Create missing backlog queues.

    Applications with create_backlog_queues=False need this once.
    """
    from twinbus.console.backlog import commands

    return commands.create(*sides.both, queues, output, strict=strict)


@command(app, "twinbus backlog prune --queues 4 --dry-run")
def prune(
    sides: SidesOptions,
    queues: QueuesOption = 10,
    dry_run: Annotated[bool, flag("--dry-run", "Only show what would be deleted.")] = False,
    yes: Annotated[bool, flag("--yes", "Delete without asking.")] = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Delete empty backlog queues past the count, after asking.

    A queue that holds any message or dead letter is kept. Sends to a queue are disabled before its
    last check, so no message can arrive between the check and the deletion.
    """
    from twinbus.console.backlog import commands

    label = sides.given_label
    if label is None:
        raise WrongUse("whose backlog queues? Give --primary, TWINBUS_PRIMARY or --label")
    if dry_run and yes:
        raise WrongUse("--dry-run and --yes exclude each other: give one of them")
    return commands.prune(sides.secondary_side, label, queues, output, dry_run=dry_run, yes=yes)
