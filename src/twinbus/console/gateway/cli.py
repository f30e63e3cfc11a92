"""The command `twinbus gateway`."""

from __future__ import annotations

from twinbus.console.gateway.options import GatewayOptions
from twinbus.console.options import FrontOptions, SidesOptions
from twinbus.console.terminal.command import command, command_group

app = command_group("A pair of namespaces behind one connection string.")


@command(
    app,
    "twinbus gateway contoso:5672 --primary ... --secondary ...",
    exit_status="0 stopped by Ctrl-C or SIGTERM after sends in flight; 1 it could not run.",
    note="--secondary embedded:DIR keeps the backlog on the local disk.",
)
def gateway(given: GatewayOptions, sides: SidesOptions, front: FrontOptions) -> int:
    """Serve a pair of namespaces to clients of other languages.

    The command runs until Ctrl-C or SIGTERM.
    """
    from twinbus.console.gateway.run import run

    return run(given, sides, front)
