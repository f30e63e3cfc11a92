"""`twinbus`: the command line. Each command parses, calls one function, prints, and exits.

Exit status: 0 done, 1 failed (one line on stderr says why), 2 usage error; nothing was done.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from twinbus import __version__
from twinbus.console.backlog.cli import app as backlog_app
from twinbus.console.config.commands import app as config_app
from twinbus.console.control.cli import app as control_app
from twinbus.console.cost.estimate import app as cost_app
from twinbus.console.cost.price_books import prices_app
from twinbus.console.doctor.cli import app as doctor_app
from twinbus.console.faults import app as faults_app
from twinbus.console.ledger import app as ledger_app
from twinbus.console.options import (
    GatewayOptions,
    PortOptions,
    QueuesOption,
    ServeOptions,
    SidesOptions,
)
from twinbus.console.page.cli import app as page_app
from twinbus.console.plan.cli import app as plan_app
from twinbus.console.report.cli import app as report_app
from twinbus.console.syphon.cli import app as syphon_app
from twinbus.console.terminal.command import command, flag, option
from twinbus.console.terminal.output import COULD_NOT, USAGE_ERROR, Output, OutputOption, WrongUse
from twinbus.console.terminal.times import seconds_of
from twinbus.console.verify.cli import app as verify_app
from twinbus.console.watch.cli import app as watch_app
from twinbus.errors import BrokerStartError, SettingsError, TwinbusError
from twinbus.options import FAILOVER_INTERVAL_MAX_S, PING_INTERVAL_MAX_S

OUTAGE_MAX_S: Final = 3_600.0
"""Limit of a drill's outage: a person waits for it."""

app = typer.Typer(
    name="twinbus",
    help="Keep sending while a Service Bus namespace is down.",
    epilog=(
        "Exit status: 0 done; 1 failed, or a message is lost; 2 usage error, nothing was done;"
        " 3 done, but a person must look at the result; 130 stopped by Ctrl-C or SIGTERM. `check`"
        " has those of Nagios. A command that fails prints one line on stderr."
        "\n\nConnection strings come from TWINBUS_PRIMARY and TWINBUS_SECONDARY, because other"
        " users can see a command line, or from --pair NAME of the settings file. Only `serve` and"
        " `gateway` print any."
        "\n\nA duration is 8 (seconds), 60s, 15min or 1h30min; a rate 500, 500/s or 30000/min; a"
        " time 90min or 2h ago, 2026-11-16 or 2026-11-16T05:30 (UTC)."
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(is_given: bool) -> None:
    if is_given:
        print(f"twinbus {__version__}")
        raise typer.Exit


def _print_where(is_given: bool) -> None:
    if is_given:
        print(Path(__file__).with_name("entry.py"))
        raise typer.Exit


@app.callback()
def twinbus(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    where: Annotated[
        bool,
        typer.Option(
            "--where",
            callback=_print_where,
            is_eager=True,
            help='Show the script for spark-submit and exit: spark-submit "$(twinbus --where)"'
            " ledger update LEDGER",
        ),
    ] = False,
) -> None:
    """Keep sending while a Service Bus namespace is down."""


@command(app, "twinbus serve contoso:5672 contoso-dr:5673 --data ./bus", takes_pair=False)
def serve(given: ServeOptions) -> int:
    """Run local namespaces for Service Bus clients.

    It prints a connection string for each namespace, then `ready`, and runs until Ctrl-C or
    SIGTERM. One port serves AMQP, AMQP over WebSocket, the administration API, /health and
    /metrics. /health answers `full` while the disk has no room for sends (receiving works on), and
    503 with `gone` when the data files were removed or cannot be read; the command then ends
    with 1.
    """
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


@command(
    app,
    "twinbus drill --messages 5000 --outage 8s --output json",
    exit_status="0 no message is lost, 1 one is lost or the drill could not continue, 130 stopped.",
)
def drill(
    messages: Annotated[int, option("N", "Messages to send.", min=1, max=1_000_000)] = 3_000,
    senders: Annotated[int, option("N", "Concurrent senders.", min=1, max=64)] = 4,
    outage: Annotated[
        str,
        option(
            "TIME",
            "Length of the outage, at most 1h; or an outage that happened, west-europe-2025-11,"
            " 1,000 times faster.",
        ),
    ] = "8s",
    failover_interval: Annotated[
        str, option("TIME", "Failover interval of an entity, at most 1h.")
    ] = "2s",
    ping_interval: Annotated[str, option("TIME", "Time between pings, 1s to 30min.")] = "1s",
    queues: QueuesOption = 4,
    gateway: Annotated[
        bool,
        flag("--gateway", "Send through a gateway, with the plain SDK instead of a pair."),
    ] = False,
    like: Annotated[
        str | None, option("TIER", "Limits of azure-standard or azure-premium, as of serve.")
    ] = None,
    report: Annotated[
        Path, option("DIR", "Directory for the report, its data and the ledger.")
    ] = Path("drill-report"),
    page: Annotated[bool, flag("--page", "Show the drill in a browser, live.")] = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Kill a primary under load and account for every message.

    Two namespaces run as processes, and senders send to a queue, a queue with sessions and a topic.
    The primary is killed with SIGKILL and started again; a Spark job moves the backlog; the plain
    SDK receives everything. It does not use your namespaces, and needs the extra `all`.
    """
    from twinbus.console.drill.commands import run
    from twinbus.console.drill.result import KNOWN_OUTAGE_SPEED, DrillPlan
    from twinbus.planning.outages import known_outage

    known = known_outage(outage)
    if known:
        outage = f"{known.length_s / KNOWN_OUTAGE_SPEED}s"

    plan = DrillPlan(
        messages=messages,
        senders=senders,
        outage_s=seconds_of(outage, "--outage", least=0, most=OUTAGE_MAX_S),
        failover_interval_s=seconds_of(
            failover_interval, "--failover-interval", least=0, most=FAILOVER_INTERVAL_MAX_S
        ),
        ping_interval_s=seconds_of(
            ping_interval, "--ping-interval", least=1, most=PING_INTERVAL_MAX_S
        ),
        backlog_queues=queues,
        gateway=gateway,
        like=like,
        stands_for=known.name if known else None,
    )
    return run(plan, report, output, is_page_wanted=page)


for commands in (control_app, watch_app, page_app, plan_app, doctor_app, verify_app):
    app.add_typer(commands)
app.add_typer(backlog_app, name="backlog")
app.add_typer(syphon_app, name="syphon")
app.add_typer(report_app, name="report")
app.add_typer(prices_app, name="prices")
app.add_typer(cost_app, name="cost")
app.add_typer(ledger_app, name="ledger")
app.add_typer(faults_app, name="faults")
app.add_typer(config_app, name="config")


def main() -> None:
    """Run the command line; an error of ours is one line, not a traceback."""
    try:
        app()
    except TwinbusError as error:
        typer.echo(f"twinbus: {error}", err=True)
        is_usage = isinstance(error, BrokerStartError | SettingsError | WrongUse)
        raise SystemExit(USAGE_ERROR if is_usage else COULD_NOT) from None
