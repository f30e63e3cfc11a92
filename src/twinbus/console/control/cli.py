"""`twinbus status` and the commands that steer a running pair."""

from __future__ import annotations

from typing import Annotated

from twinbus.console.options import PairOption
from twinbus.console.terminal.command import argument, command, command_group, flag
from twinbus.console.terminal.output import Output, OutputOption

app = command_group("")

PathArgument = Annotated[str, argument("PATH", "The queue or topic, as the application names it.")]


@command(
    app,
    "twinbus status --watch",
    exit_status="0 all healthy, 1 no pair answers, 3 something needs attention or one of several"
    " pairs does not answer.",
)
def status(
    pair: PairOption = None,
    output: OutputOption = Output.TEXT,
    watch: Annotated[bool, flag("--watch", "Refresh every second, until Ctrl-C.")] = False,
    show_all: Annotated[bool, flag("--all", "List every healthy entity, however many.")] = False,
) -> int:
    """Show running pairs, their entities and backlog queues.

    All pairs of this user on this machine, those that need attention first: an entity that is not
    healthy, is frozen, or is raising (a call on it raised in the last minute, whatever its state);
    a pair without a backlog queue that answers; a side that is closed or faulted; a ledger that
    lost lines. It makes no billed request, so it has the depth of the backlog only where the pair
    measures it for a collector.
    """
    from twinbus.console.control.commands import show_status

    return show_status(pair, output, watch=watch, show_all=show_all)


@command(app, "twinbus freeze orders")
def freeze(path: PathArgument, pair: PairOption = None, output: OutputOption = Output.TEXT) -> int:
    """Keep the routing of an entity as it is, until unfreeze.

    A frozen entity has no failover timer and no pings.
    """
    return _steer("freeze", path, pair, output)


@command(app, "twinbus unfreeze orders --pair contoso")
def unfreeze(
    path: PathArgument, pair: PairOption = None, output: OutputOption = Output.TEXT
) -> int:
    """Let the routing of an entity change again."""
    return _steer("unfreeze", path, pair, output)


@command(app, "twinbus force-failover orders")
def force_failover(
    path: PathArgument, pair: PairOption = None, output: OutputOption = Output.TEXT
) -> int:
    """Divert an entity's sends until mark-healthy."""
    return _steer("force-failover", path, pair, output)


@command(app, "twinbus mark-healthy orders")
def mark_healthy(
    path: PathArgument, pair: PairOption = None, output: OutputOption = Output.TEXT
) -> int:
    """Send to the primary again, whatever the pings say."""
    return _steer("mark-healthy", path, pair, output)


def _steer(verb: str, path: str, pair: str | None, output: Output) -> int:
    from twinbus.console.control.commands import steer

    return steer(verb, path, pair, output)
