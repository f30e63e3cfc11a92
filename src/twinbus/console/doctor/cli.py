"""The command `twinbus doctor`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from twinbus.console.options import AccessOptions, LabelOption, QueuesOption, SidesOptions
from twinbus.console.terminal.command import command, command_group, option, setting
from twinbus.console.terminal.output import Output, OutputOption
from twinbus.settings.core.keys import EMBEDDED

app = command_group("")


@command(
    app,
    "twinbus doctor --entity orders",
    exit_status="0 fit to be paired, also with warnings; 1 a check failed.",
    note="Put the connection strings into TWINBUS_PRIMARY and TWINBUS_SECONDARY: other users can"
    " see a command line.",
)
def doctor(
    reach: AccessOptions,
    primary: Annotated[
        str | None,
        setting(
            "primary",
            of=typer.Argument,
            metavar="PRIMARY",
            help="Connection string of the primary, or sb://HOST.",
        ),
    ] = None,
    secondary: Annotated[
        str | None,
        setting(
            "secondary",
            of=typer.Argument,
            metavar="SECONDARY",
            help="The same of the secondary.",
        ),
    ] = None,
    entity: Annotated[
        str | None,
        option(
            "PATH",
            "An entity that the application sends to. The doctor checks the Send right there.",
        ),
    ] = None,
    gateway: Annotated[
        str | None,
        option(
            "STRING",
            "Connection string of a gateway to examine: with the namespaces, or alone.",
            envvar="TWINBUS_GATEWAY",
        ),
    ] = None,
    label: LabelOption = None,
    queues: QueuesOption = 10,
    output: OutputOption = Output.TEXT,
) -> int:
    """Check whether two namespaces are fit to be paired.

    Each check prints one line, with what to do about a problem. Your messages are not touched.
    With the Manage right the doctor creates scratch entities called twinbus-doctor-... and deletes
    them again; the service deletes them after 5 idle minutes if it is killed.

    It checks that the two namespaces differ and can be reached, the clocks (a difference of 10 s
    warns, 4 min fails), the credential, the rights Manage, Send and Listen, existing backlog queues
    and their drift, and the size of messages. It sends a ping that no receiver may see, and moves a
    message with session, time to live and schedule through a backlog queue and back. Of a gateway
    it asks /health, puts a token and attaches a sender. It says what it could not check.
    """
    from twinbus.console.doctor.commands import run, run_gateway

    sides = SidesOptions(primary=primary, secondary=secondary, label=label, **asdict(reach))
    if gateway is None:
        return run(*sides.both, queues, entity, output)
    # Not by the route of the namespaces, which may lead through a proxy.
    examined = AccessOptions().side(gateway, "gateway")
    # A secondary inside a gateway is examined by the gateway's own word.
    if (primary is None and secondary is None) or (secondary or "").startswith(EMBEDDED):
        return run_gateway(examined, entity, output)
    return run(*sides.both, queues, entity, output, examined)
