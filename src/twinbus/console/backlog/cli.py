"""The words of `twinbus backlog`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.console.terminal.output import Output, OutputOption, WrongUse

if TYPE_CHECKING:
    from twinbus.namespace.namespace import Namespace

__all__ = [
    "EntityOption",
    "LabelOption",
    "PrimaryOption",
    "QueueOption",
    "SecondaryOption",
    "app",
    "label_of",
    "secondary_of",
]

app = typer.Typer(
    help="Look at the backlog queues in a secondary namespace, create and prune them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

PrimaryOption = Annotated[
    str | None,
    typer.Option(
        "--primary",
        envvar="TWINBUS_PRIMARY",
        metavar="STRING",
        help="Connection string of the primary: backlog queues are called after it.",
        show_default=False,
    ),
]
SecondaryOption = Annotated[
    str | None,
    typer.Option(
        "--secondary",
        envvar="TWINBUS_SECONDARY",
        metavar="STRING",
        help="Connection string of the secondary, where the backlog queues are.",
        show_default=False,
    ),
]
LabelOption = Annotated[
    str | None,
    typer.Option(
        "--label",
        metavar="LABEL",
        help="The `name` the application gave its primary, if any.",
    ),
]
QueueOption = Annotated[
    str | None,
    typer.Option("--queue", metavar="QUEUE", help="One queue only: its index, or its path."),
]
EntityOption = Annotated[
    str | None,
    typer.Option("--entity", metavar="PATH", help="Only messages that belong to this entity."),
]
QueuesOption = Annotated[
    int,
    typer.Option(
        "--queues", min=1, max=100, metavar="N", help="The application's backlog_queue_count."
    ),
]

SECRETS = "Put connection strings into the environment: others can see a command line."


@app.command("list", epilog=f"Example: twinbus backlog list --output json. {SECRETS}")
def list_queues(
    primary: PrimaryOption = None,
    secondary: SecondaryOption = None,
    label: LabelOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show each backlog queue: what it holds, the oldest age, and drift.

    Without a primary or a label: the backlog queues of every pair in the secondary.
    """
    from twinbus.console.backlog import commands as backlog

    side, name = secondary_of(secondary), label_of(primary, label)
    raise typer.Exit(backlog.list_queues(side, name, as_json=output is Output.JSON))


@app.command(epilog="Example: twinbus backlog peek --queue 3 --entity orders --max 5")
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
    """Show messages in the backlog; nothing is locked, changed or settled."""
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
    epilog="Exit status: 0 all are there, 1 some could not be had, 3 some are there but unsafe"
    " to use. Example: twinbus backlog create --queues 10"
)
def create(
    primary: PrimaryOption = None,
    secondary: SecondaryOption = None,
    label: LabelOption = None,
    queues: QueuesOption = 10,
    strict: Annotated[
        bool, typer.Option("--strict", help="Also the queue of the leases of strict order.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Create missing backlog queues, for applications with create_backlog_queues=False."""
    from twinbus.console.backlog import commands as backlog
    from twinbus.console.namespaces import side

    pair = side(primary, "primary", label), secondary_of(secondary)
    raise typer.Exit(backlog.create(*pair, queues, strict=strict, as_json=output is Output.JSON))


@app.command(epilog="Example: twinbus backlog prune --queues 4 --dry-run")
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
    """Delete empty backlog queues with an index past the count, after showing them and asking.

    One that holds anything, dead letters included, is kept. Each takes no sends while it is looked
    at for the last time, so that nothing can slip in before it is deleted.
    """
    from twinbus.console.backlog import commands as backlog

    name = label_of(primary, label)
    if name is None:
        raise WrongUse("say whose backlog queues: --primary, TWINBUS_PRIMARY, or --label")
    if dry_run and yes:
        raise WrongUse("--dry-run looks and --yes deletes: say one of them")
    side = secondary_of(secondary)
    as_json = output is Output.JSON
    raise typer.Exit(backlog.prune(side, name, queues, dry_run=dry_run, yes=yes, as_json=as_json))


def secondary_of(text: str | None) -> Namespace:
    """The namespace that a person named, or the variable."""
    from twinbus.console.namespaces import side

    return side(text, "secondary")


def label_of(primary: str | None, label: str | None) -> str | None:
    """The label that a person gave, or that of the primary; None: any."""
    from twinbus.console.namespaces import side
    from twinbus.pairing.core.backlog import backlog_label

    if label is not None:
        try:
            return backlog_label("", 0, label)
        except ValueError as error:
            raise WrongUse(str(error).replace("name must", "--label must", 1)) from None
    return side(primary, "primary").label if primary else None
