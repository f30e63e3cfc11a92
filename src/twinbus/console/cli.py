"""`twinbus`: the command line. Each command parses, calls one function, prints, and exits.

Exit status: 0 done, 1 failed (one line on stderr says why), 2 usage error; nothing was done.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from twinbus import __version__
from twinbus.console.backlog.cli import app as backlog_app
from twinbus.console.backlog.dead_letter_cli import app as dead_letters_app
from twinbus.console.control import cli as control_cli
from twinbus.console.cost.cli import app as cost_app
from twinbus.console.cost.prices_cli import app as prices_app
from twinbus.console.doctor import cli as doctor_cli
from twinbus.console.ledger.cli import app as ledger_app
from twinbus.console.plan import cli as plan_cli
from twinbus.console.report.cli import app as report_app
from twinbus.console.syphon.cli import app as syphon_app
from twinbus.console.terminal.help_text import epilog
from twinbus.console.terminal.output import COULD_NOT, USAGE_ERROR, Output, OutputOption, WrongUse
from twinbus.console.terminal.seconds import seconds_of
from twinbus.errors import BrokerStartError, TwinbusError
from twinbus.options import FAILOVER_INTERVAL_MAX_S, PING_INTERVAL_MAX_S

OUTAGE_MAX_S: Final = 3_600.0
"""Limit of a drill's outage: a person waits for it."""

app = typer.Typer(
    name="twinbus",
    help="Keep sending while a Service Bus namespace is down.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(is_given: bool) -> None:
    if is_given:
        print(f"twinbus {__version__}")
        raise typer.Exit


@app.callback()
def twinbus(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Keep sending while a Service Bus namespace is down."""


@app.command(epilog=epilog("twinbus serve contoso:5672 contoso-dr:5673 --data ./bus"))
def serve(
    namespaces: Annotated[
        list[str],
        typer.Argument(metavar="NAME:PORT...", help="Namespaces; port 0 picks a free one."),
    ],
    data: Annotated[
        Path | None, typer.Option(help="Directory to keep messages in.", metavar="DIR")
    ] = None,
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Keep messages in memory only.")
    ] = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "localhost",
    key: Annotated[
        str | None,
        typer.Option(
            help="Key of the rule RootManageSharedAccessKey.", envvar="TWINBUS_KEY", metavar="KEY"
        ),
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(help="A further rule, NAME:KEY:Send,Listen. Repeatable.", metavar="RULE"),
    ] = None,
    token: Annotated[
        list[str] | None,
        typer.Option(
            help="A bearer token to accept, NAME:TOKEN:Send,Listen, for tests of token"
            " credentials. Repeatable.",
            metavar="TOKEN",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            help="Certificate chain (PEM). The same port then also speaks TLS.", metavar="FILE"
        ),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="The certificate's private key (PEM).", metavar="FILE")
    ] = None,
    fault_seed: Annotated[int, typer.Option(help="Seed of random faults.", metavar="N")] = 0,
    ledger: Annotated[
        str | None,
        typer.Option(help="Directory for the broker's own ledger.", metavar="DIR"),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Log errors only, not each connection and refusal.")
    ] = False,
) -> None:
    """Run local namespaces that any Service Bus client can use.

    The command runs until Ctrl-C or SIGTERM.
    """
    from twinbus.console.serve import run

    if (data is None) == (not ephemeral):
        raise BrokerStartError(
            "where to keep messages? Give --data DIR, or --ephemeral to keep them in memory only"
        )
    run(
        namespaces,
        data=data,
        host=host,
        key=key,
        rules=rule or [],
        tokens=token or [],
        tls_cert=tls_cert,
        tls_key=tls_key,
        seed=fault_seed,
        quiet=quiet,
        ledger=ledger,
    )


@app.command(epilog=epilog("twinbus drill --messages 5000 --outage 8s --output json"))
def drill(
    messages: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Messages to send.", metavar="N")
    ] = 3_000,
    senders: Annotated[
        int, typer.Option(min=1, max=64, help="Concurrent senders.", metavar="N")
    ] = 4,
    outage: Annotated[
        str, typer.Option(help="Length of the outage, at most 1h.", metavar="TIME")
    ] = "8s",
    failover_interval: Annotated[
        str, typer.Option(help="Failover interval of an entity, at most 1h.", metavar="TIME")
    ] = "2s",
    ping_interval: Annotated[
        str, typer.Option(help="Time between pings, 1s to 30min.", metavar="TIME")
    ] = "1s",
    queues: Annotated[
        int, typer.Option(min=1, max=100, help="Backlog queues in the secondary.", metavar="N")
    ] = 4,
    report: Annotated[
        Path, typer.Option(help="Directory for report.html and drill.json.", metavar="DIR")
    ] = Path("drill-report"),
    output: OutputOption = Output.TEXT,
) -> None:
    """Kill a primary under load and account for every message."""
    from twinbus.console.drill.commands import run
    from twinbus.console.drill.result import DrillPlan

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
    )
    raise typer.Exit(run(plan, report, as_json=output is Output.JSON))


backlog_app.add_typer(dead_letters_app, name="dead-letters")
control_cli.add_to(app)
app.add_typer(backlog_app, name="backlog")
app.add_typer(syphon_app, name="syphon")
app.add_typer(report_app, name="report")
app.add_typer(prices_app, name="prices")
app.add_typer(cost_app, name="cost")
plan_cli.add_to(app)
app.add_typer(ledger_app, name="ledger")
doctor_cli.add_to(app)


def main() -> None:
    """Run the command line; an error of ours is one line, not a traceback."""
    try:
        app()
    except (BrokerStartError, WrongUse) as error:
        typer.echo(f"twinbus: {error}", err=True)
        raise SystemExit(USAGE_ERROR) from None
    except TwinbusError as error:
        typer.echo(f"twinbus: {error}", err=True)
        raise SystemExit(COULD_NOT) from None
