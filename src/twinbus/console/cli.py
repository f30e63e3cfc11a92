"""`twinbus`: the command line. Each command parses, calls one function, prints, and exits.

Exit status: 0 done, 1 failed (one line on stderr says why), 2 usage error; nothing was done.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twinbus import __version__
from twinbus.console import COULD_NOT, USAGE_ERROR
from twinbus.console.backlog.commands import app as backlog_app
from twinbus.console.commands import app as commands_app
from twinbus.console.config import app as config_app
from twinbus.console.cost import app as cost_app
from twinbus.console.faults import app as faults_app
from twinbus.console.ledger import app as ledger_app
from twinbus.console.output import WrongUse
from twinbus.console.prices import prices_app
from twinbus.console.report.commands import app as report_app
from twinbus.console.syphon.cli import app as syphon_app
from twinbus.console.watch.cli import app as watch_app
from twinbus.cost.arithmetic import QuantityError
from twinbus.errors import BrokerStartError, SettingsError, TwinbusError

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


for commands in (commands_app, watch_app):
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
        is_usage = isinstance(error, BrokerStartError | QuantityError | SettingsError | WrongUse)
        raise SystemExit(USAGE_ERROR if is_usage else COULD_NOT) from None
