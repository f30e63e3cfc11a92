"""`twinbus`: the command line. Each command parses, calls one function, prints, and exits.

A command's module is imported when the command is called or asked for help: the list of commands
needs none. Exit status: 0 done, 1 failed (one line on stderr says why), 2 usage error; nothing was
done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_group

from twinbus import __version__
from twinbus.console import COULD_NOT, USAGE_ERROR
from twinbus.errors import BrokerStartError, SettingsError, TwinbusError


class CommandHome(NamedTuple):
    """Where a command or a group of commands is, and its line in the list of commands."""

    module: str
    """Below `twinbus.console`."""
    summary: str
    """The first paragraph of its help, which a test compares."""
    is_group: bool = False

    @property
    def app(self) -> typer.Typer:
        """The group, or the commands among which the command is."""
        found: typer.Typer = import_module(f"twinbus.console.{self.module}").app
        return found


def _group(module: str, summary: str) -> CommandHome:
    return CommandHome(module, summary, is_group=True)


COMMANDS: Final[Mapping[str, CommandHome]] = {
    "serve": CommandHome("serve.cli", "Run local namespaces for Service Bus clients."),
    "gateway": CommandHome(
        "serve.cli", "Serve a pair of namespaces to clients of other languages."
    ),
    "drill": CommandHome("drill.cli", "Kill a primary under load and account for every message."),
    "plan": CommandHome("plan.cli", "Simulate outages to choose a pair's options."),
    "doctor": CommandHome("doctor.cli", "Check whether two namespaces are fit to be paired."),
    "verify": CommandHome(
        "doctor.cli", "Compare one or two real namespaces with the embedded broker."
    ),
    "status": CommandHome("watch.cli", "Show running pairs, their entities and backlog queues."),
    "freeze": CommandHome("watch.cli", "Keep the routing of an entity as it is, until unfreeze."),
    "unfreeze": CommandHome("watch.cli", "Let the routing of an entity change again."),
    "force-failover": CommandHome("watch.cli", "Divert an entity's sends until mark-healthy."),
    "mark-healthy": CommandHome("watch.cli", "Send to the primary again, whatever the pings say."),
    "check": CommandHome(
        "watch.cli", "Report to a monitoring system: one line, Nagios exit status."
    ),
    "top": CommandHome("watch.cli", "Show pairs, entities, backlog and syphons, live."),
    "fleet": CommandHome("watch.cli", "Show which hosts say that which entity failed over."),
    "page": CommandHome("watch.cli", "Show and steer the pairs of this host in a browser."),
    "backlog": _group("backlog.commands", "Inspect, create and prune backlog queues."),
    "twins": _group(
        "twins.commands", "Create, check and adopt twins of entities in the secondary."
    ),
    "syphon": _group("syphon.cli", "Move the backlog to the primary; pause, resume, status."),
    "report": _group(
        "report.commands", "Report a ledger's charges, availability and conservation."
    ),
    "prices": _group("prices", "Show the price book, or import one from Azure's prices."),
    "cost": _group("cost", "Estimate what a pair costs, by the documented arithmetic."),
    "ledger": _group("ledger", "Maintain the tables of a ledger: update, retain, erase."),
    "faults": _group("faults", "Have a served broker misbehave, for tests and drills."),
    "config": _group("config", "Check the settings file, and say where it is."),
}
"""In the order of `twinbus --help`."""


class _CommandsOnDemand(Mapping[str, Any]):
    """The commands by name; a module is imported for the first of its commands that is taken."""

    def __init__(self) -> None:
        self._taken: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._taken:
            home = COMMANDS[name]
            group = get_group(home.app)
            group.name = name
            self._taken[name] = group if home.is_group else group.commands[name]
        return self._taken[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Commands(TyperGroup):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        on_demand: Any = _CommandsOnDemand()
        self.commands = on_demand

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, home.summary) for name, home in COMMANDS.items()])


app = typer.Typer(
    name="twinbus",
    cls=_Commands,
    help="Keep sending while a Service Bus namespace is down.",
    epilog=(
        "Exit status: 0 done; 1 failed, or a message is lost; 2 usage error, nothing was done;"
        " 3 done, but a person must look at the result; 130 stopped by Ctrl-C or SIGTERM. `check`"
        " has those of Nagios. A command that fails prints one line on stderr."
        "\n\nConnection strings come from TWINBUS_PRIMARY and TWINBUS_SECONDARY, because other"
        " users can see a command line, or from --pair NAME of the settings file. Only `serve`,"
        " `gateway` and `faults proxy` print any."
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


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line of the process, or `words`; an error of ours is one line."""
    try:
        app(words, prog_name="twinbus")
    except TwinbusError as error:
        # Imported late: the list of commands needs neither.
        from twinbus.console.output import WrongUse
        from twinbus.cost.arithmetic import QuantityError

        typer.echo(f"twinbus: {error}", err=True)
        is_usage = isinstance(error, BrokerStartError | QuantityError | SettingsError | WrongUse)
        raise SystemExit(USAGE_ERROR if is_usage else COULD_NOT) from None
