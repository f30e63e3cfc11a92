"""`twinbus`: the command line. Each command parses, calls one function, prints, and exits.

Exit status: 0 done, 1 it could not be done (one line on stderr says why), 2 asked for wrongly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from twinbus import __version__
from twinbus.console.backlog import cli as backlog_commands
from twinbus.console.backlog import dead_letter_cli as dead_letter_commands
from twinbus.console.control import cli as running_commands
from twinbus.console.cost import cli as cost_commands
from twinbus.console.cost import prices_cli as prices_commands
from twinbus.console.doctor import cli as doctor_commands
from twinbus.console.ledger import cli as ledger_commands
from twinbus.console.plan import cli as plan_commands
from twinbus.console.report import cli as report_commands
from twinbus.console.syphon import cli as syphon_commands
from twinbus.console.terminal.output import COULD_NOT, WRONGLY_ASKED, Output, OutputOption, WrongUse
from twinbus.console.terminal.seconds import seconds_of
from twinbus.errors import BrokerStartError, TwinbusError
from twinbus.options import FAILOVER_INTERVAL_MAX_S, PING_INTERVAL_MAX_S

OUTAGE_MAX_S: Final = 3_600.0
"""Of a drill: somebody waits for it."""

app = typer.Typer(
    name="twinbus",
    help="Keep sending while a Service Bus namespace is down.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _tell_version(is_asked: bool) -> None:
    if is_asked:
        print(f"twinbus {__version__}")
        raise typer.Exit


@app.callback()
def twinbus(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_tell_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Keep sending while a Service Bus namespace is down."""


@app.command(
    epilog="Example: twinbus serve contoso:5672 contoso-dr:5673 --data ./bus",
)
def serve(
    namespaces: Annotated[
        list[str],
        typer.Argument(metavar="NAME:PORT...", help="Namespaces; port 0 picks a free one."),
    ],
    data: Annotated[
        Path | None, typer.Option(help="Directory to keep everything in.", metavar="DIR")
    ] = None,
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Keep all in memory; gone when it stops.")
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
            help="A bearer token that is accepted as it stands, NAME:TOKEN:Send,Listen; "
            "for tests of token credentials. Repeatable.",
            metavar="TOKEN",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(help="Certificate chain (PEM): speak TLS too, same port.", metavar="FILE"),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="The certificate's private key (PEM).", metavar="FILE")
    ] = None,
    fault_seed: Annotated[
        int, typer.Option(help="Seed of faults that strike by chance.", metavar="N")
    ] = 0,
    ledger: Annotated[
        str | None,
        typer.Option(help="Directory to record what the broker itself does in.", metavar="DIR"),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Log errors only, not each connection and refusal.")
    ] = False,
) -> None:
    """Serve namespaces that every Service Bus client can use, until Ctrl-C or SIGTERM."""
    from twinbus.console.serve import run

    if (data is None) == (not ephemeral):
        raise BrokerStartError(
            "say where to keep messages: --data DIR, or --ephemeral to keep them in memory only"
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


@app.command(epilog="Example: twinbus drill --messages 5000 --outage 8s --output json")
def drill(
    messages: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Messages to send.", metavar="N")
    ] = 3_000,
    senders: Annotated[int, typer.Option(min=1, max=64, help="Senders at once.", metavar="N")] = 4,
    outage: Annotated[
        str, typer.Option(help="How long the primary is down, at most 1h.", metavar="TIME")
    ] = "8s",
    failover_interval: Annotated[
        str, typer.Option(help="Failing so long, at most 1h, an entity fails over.", metavar="TIME")
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
    """Kill a primary under load, and prove what became of every message."""
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


running_commands.add_to(app)
backlog_commands.app.add_typer(dead_letter_commands.app, name="dead-letters")
app.add_typer(backlog_commands.app, name="backlog")
app.add_typer(syphon_commands.app, name="syphon")
app.add_typer(report_commands.app, name="report")
app.add_typer(prices_commands.app, name="prices")
app.add_typer(cost_commands.app, name="cost")
plan_commands.add_to(app)
app.add_typer(ledger_commands.app, name="ledger")
app.command(
    epilog="Exit status: 0 fit to be paired, also with warnings; 1 something fails."
    " Example: twinbus doctor, with the connection strings in TWINBUS_PRIMARY and"
    " TWINBUS_SECONDARY: others can see a command line."
)(doctor_commands.doctor)


def main() -> None:
    """Run the command line; an error of ours is one line, not a traceback."""
    try:
        app()
    except (BrokerStartError, WrongUse) as error:
        typer.echo(f"twinbus: {error}", err=True)
        raise SystemExit(WRONGLY_ASKED) from None
    except TwinbusError as error:
        typer.echo(f"twinbus: {error}", err=True)
        raise SystemExit(COULD_NOT) from None
