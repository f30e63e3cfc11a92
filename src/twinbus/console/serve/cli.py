"""`twinbus serve` and `gateway`: the programs that listen on a port."""

from __future__ import annotations

from twinbus.console.declaration import command, command_group
from twinbus.console.options import GatewayOptions, PortOptions, ServeOptions, SidesOptions
from twinbus.console.output import Output, WrongUse

app = command_group("")


@command(
    app,
    "twinbus serve contoso:5672 contoso-dr:5673 --data ./bus"
    "\ntwinbus serve --check ./bus --output json",
    exit_status="0 stopped, or nothing is damaged; 1 it could not run; 3 --check found damage.",
    takes_pair=False,
)
def serve(given: ServeOptions) -> int:
    """Run local namespaces for Service Bus clients.

    It prints a connection string for each namespace, then `ready`, and runs until Ctrl-C or
    SIGTERM. One port serves AMQP, AMQP over WebSocket, the administration API, /health and
    /metrics. /health answers `full` while the disk has no room for sends (receiving works on), and
    503 with `gone` when the data files were removed or cannot be read; the command then ends
    with 1.

    --check prints one line for each damaged record, with its entity and sequence number, and what
    was read. Stop the broker first.
    """
    if given.check is not None:
        from twinbus.console.serve.check import check

        if any((given.namespaces, given.data, given.ephemeral, given.config)):
            raise WrongUse("--check serves nothing: give its directory alone")
        return check(given.check, given.output)
    if given.output is not Output.TEXT:
        raise WrongUse("--output is for --check")
    from twinbus.console import servers

    return servers.serve(given)


@command(
    app,
    "twinbus gateway contoso:5672 --primary ... --secondary ...",
    exit_status="0 stopped by Ctrl-C or SIGTERM after sends in flight; 1 it could not run.",
    note="--secondary embedded:DIR keeps the backlog on the local disk.",
)
def gateway(given: GatewayOptions, sides: SidesOptions, access: PortOptions) -> int:
    """Serve a pair of namespaces to clients of other languages.

    The command runs until Ctrl-C or SIGTERM.
    """
    from twinbus.console import servers

    return servers.serve_gateway(given, sides, access)
