"""`twinbus status` and the commands that steer a running pair."""

from __future__ import annotations

from typing import Annotated

import typer

from twinbus.console.options import PairOption
from twinbus.console.terminal.help_text import epilog
from twinbus.console.terminal.output import Output, OutputOption

PathArgument = Annotated[
    str, typer.Argument(metavar="PATH", help="The queue or topic, as the application names it.")
]


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command(
        epilog=epilog(
            "twinbus status --watch",
            exit_status="0 all healthy, 1 no pair answers, 3 something needs attention or one of"
            " several pairs does not answer.",
        )
    )(status)
    app.command(epilog=epilog("twinbus freeze orders"))(freeze)
    app.command(epilog=epilog("twinbus unfreeze orders --pair contoso"))(unfreeze)
    app.command("force-failover", epilog=epilog("twinbus force-failover orders"))(force_failover)
    app.command("mark-healthy", epilog=epilog("twinbus mark-healthy orders"))(mark_healthy)


def status(
    pair: PairOption = None,
    output: OutputOption = Output.TEXT,
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh every second, until Ctrl-C.")
    ] = False,
    show_all: Annotated[
        bool, typer.Option("--all", help="List every healthy entity, however many.")
    ] = False,
) -> None:
    """Show running pairs, their entities and backlog queues."""
    from twinbus.console.control.commands import show_status

    as_json = output is Output.JSON
    raise typer.Exit(show_status(pair, as_json=as_json, watch=watch, show_all=show_all))


def freeze(path: PathArgument, pair: PairOption = None) -> None:
    """Keep the routing of an entity as it is, until unfreeze.

    A frozen entity has no failover timer and no pings.
    """
    _steer("freeze", path, pair)


def unfreeze(path: PathArgument, pair: PairOption = None) -> None:
    """Let the routing of an entity change again."""
    _steer("unfreeze", path, pair)


def force_failover(path: PathArgument, pair: PairOption = None) -> None:
    """Divert an entity's sends until mark-healthy."""
    _steer("force-failover", path, pair)


def mark_healthy(path: PathArgument, pair: PairOption = None) -> None:
    """Send to the primary again, whatever the pings say."""
    _steer("mark-healthy", path, pair)


def _steer(verb: str, path: str, pair: str | None) -> None:
    from twinbus.console.control.commands import steer

    raise typer.Exit(steer(verb, path, pair))
