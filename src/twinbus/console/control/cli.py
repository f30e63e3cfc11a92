"""The words of `twinbus status` and of the commands that steer a running pair."""

from __future__ import annotations

from typing import Annotated

import typer

from twinbus.console.terminal.output import Output, OutputOption

__all__ = ["PairOption", "add_to"]

PairOption = Annotated[
    str | None,
    typer.Option(
        "--pair",
        metavar="NAME",
        help="The pair: the label of its primary, for all its processes, or LABEL.PID for one.",
    ),
]
PathArgument = Annotated[
    str, typer.Argument(metavar="PATH", help="The queue or topic, as the application names it.")
]

PLACE = (
    "It speaks to pairs of the same user on this machine, through sockets in $TWINBUS_RUN_DIR"
    " (unset: $XDG_RUNTIME_DIR/twinbus or twinbus-UID in the temporary directory)."
)


def add_to(app: typer.Typer) -> None:
    """Give the command line these commands."""
    app.command(
        epilog="Exit status: 0 all healthy, 1 no pair answers, 3 something needs attention, or one"
        " of several does not answer."
        " Example: twinbus status --watch"
    )(status)
    app.command(epilog="Example: twinbus freeze orders")(freeze)
    app.command(epilog="Example: twinbus unfreeze orders --pair contoso")(unfreeze)
    app.command("force-failover", epilog="Example: twinbus force-failover orders")(force_failover)
    app.command("mark-healthy", epilog="Example: twinbus mark-healthy orders")(mark_healthy)


def status(
    pair: PairOption = None,
    output: OutputOption = Output.TEXT,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it anew every second, until Ctrl-C.")
    ] = False,
    show_all: Annotated[
        bool, typer.Option("--all", help="List every healthy entity, however many.")
    ] = False,
) -> None:
    """Show the running pairs: what needs attention, each entity, each backlog queue."""
    from twinbus.console.control.commands import show_status

    as_json = output is Output.JSON
    raise typer.Exit(show_status(pair, as_json=as_json, watch=watch, show_all=show_all))


def freeze(path: PathArgument, pair: PairOption = None) -> None:
    """Keep the routing of an entity as it is: no timer, no ping, until unfreeze."""
    _steer("freeze", path, pair)


def unfreeze(path: PathArgument, pair: PairOption = None) -> None:
    """Let the routing of an entity change again."""
    _steer("unfreeze", path, pair)


def force_failover(path: PathArgument, pair: PairOption = None) -> None:
    """Divert the sends of an entity to the backlog until mark-healthy."""
    _steer("force-failover", path, pair)


def mark_healthy(path: PathArgument, pair: PairOption = None) -> None:
    """Send to the primary again, whatever the pings say."""
    _steer("mark-healthy", path, pair)


def _steer(verb: str, path: str, pair: str | None) -> None:
    from twinbus.console.control.commands import steer

    raise typer.Exit(steer(verb, path, pair))
