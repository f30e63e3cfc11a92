"""`twinbus`: the command line. Each command parses, calls one function, prints, and exits.

Exit status: 0 done, 1 failed (one line on stderr says why), 2 usage error; nothing was done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from twinbus import __version__
from twinbus.console import COULD_NOT, USAGE_ERROR
from twinbus.console.backlog.commands import app as backlog_app
from twinbus.console.config import app as config_app
from twinbus.console.cost import PlanOptions, PlanOutput
from twinbus.console.cost import app as cost_app
from twinbus.console.declaration import command, command_group, flag, option, setting
from twinbus.console.faults import app as faults_app
from twinbus.console.ledger import app as ledger_app
from twinbus.console.options import (
    AccessOptions,
    GatewayOptions,
    LabelOption,
    PortOptions,
    PricesOption,
    QueuesOption,
    ServeOptions,
    SidesOptions,
)
from twinbus.console.output import Output, OutputOption, WrongUse
from twinbus.console.prices import prices_app
from twinbus.console.report.commands import app as report_app
from twinbus.console.syphon.cli import app as syphon_app
from twinbus.console.times import seconds_of
from twinbus.console.twins.commands import app as twins_app
from twinbus.console.watch.cli import app as watch_app
from twinbus.cost.arithmetic import QuantityError
from twinbus.errors import BrokerStartError, SettingsError, TwinbusError
from twinbus.options import FAILOVER_INTERVAL_MAX_S, PING_INTERVAL_MAX_S
from twinbus.settings.keys import EMBEDDED

app = typer.Typer(
    name="twinbus",
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


commands_app = command_group("")

OUTAGE_MAX_S: Final = 3_600.0
"""Limit of a drill's outage: a person waits for it."""


def _side(key: str, text: str) -> Any:
    return setting(key, of=typer.Argument, metavar=key.upper(), help=text)


@command(
    commands_app,
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
    commands_app,
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
    commands_app,
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
    The primary is killed with SIGKILL and started again; consumers go on with the twins of two
    entities; a Spark job moves the backlog of the third. It does not use your namespaces, and needs
    the extra `all`.
    """
    from twinbus.console.drill.phases import run
    from twinbus.console.drill.result import KNOWN_OUTAGE_SPEED, DrillPlan
    from twinbus.planning.question import known_outage

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


@command(
    commands_app,
    "twinbus plan --rate 500/s --size 2KB --entities 40 --clients 20 \\\n"
    '  --outages "2/year lognormal 40min" --output html --to plan.html',
)
def plan(
    given: PlanOptions,
    prices: PricesOption = None,
    master: Annotated[
        str | None, option("URL", "Simulate on this Spark. Unset: on this machine.")
    ] = None,
    output: Annotated[
        PlanOutput, typer.Option(help="What to print: text, JSON, or a page.")
    ] = "text",
    to: Annotated[Path | None, option("FILE", "Write the plan into this file.")] = None,
) -> int:
    """Simulate outages to choose a pair's options.

    From 200,000 years on Spark does it, if it is installed.
    """
    from twinbus.console.plan import run

    return run(given, prices, master=master, output=output, to=to)


@command(
    commands_app,
    "twinbus doctor --entity orders",
    exit_status="0 fit to be paired, also with warnings; 1 a check failed.",
    note="Put the connection strings into TWINBUS_PRIMARY and TWINBUS_SECONDARY: other users can"
    " see a command line.",
)
def doctor(
    reach: AccessOptions,
    primary: Annotated[
        str | None, _side("primary", "Connection string of the primary, or sb://HOST.")
    ] = None,
    secondary: Annotated[str | None, _side("secondary", "The same of the secondary.")] = None,
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
    twin: Annotated[
        list[str] | None,
        setting("twins", "--twin", help="An entity that has a twin, or a pattern. Repeatable."),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Check whether two namespaces are fit to be paired.

    Each check prints one line, with what to do about a problem. Your messages are not touched.
    With the Manage right the doctor creates scratch entities called twinbus-doctor-... and deletes
    them again; the service deletes them after 5 idle minutes if it is killed.

    It checks that the two namespaces differ and can be reached, the clocks (a difference of 10 s
    warns, 4 min fails), the credential, the rights Manage, Send and Listen, existing backlog queues
    and their drift, the notice board, twins, and the size of messages. It sends a ping that no
    receiver may see, and moves a message with session, time to live and schedule through a backlog
    queue and back. Of a gateway it asks /health, puts a token and attaches a sender. It says what
    it could not check.
    """
    from twinbus.console.doctor.commands import run
    from twinbus.console.doctor.rights import ExaminedPair

    sides = SidesOptions(primary=primary, secondary=secondary, label=label, **asdict(reach))
    # Not by the route of the namespaces, which may lead through a proxy.
    examined = None if gateway is None else AccessOptions().side(gateway, "gateway")
    # A secondary inside a gateway is examined by the gateway's own word.
    is_alone = (primary is None and secondary is None) or (secondary or "").startswith(EMBEDDED)
    pair = None
    if examined is None or not is_alone:
        pair = ExaminedPair(*sides.both, queues, entity, tuple(twin or ()))
    return run(pair, examined, entity, output)


@command(
    commands_app,
    "twinbus verify --like azure-standard --facts facts.json",
    exit_status="0 no difference; 1 it could not run, or left entities behind; 3 differences.",
    note="It needs the Manage right and the extra broker. It prints what it costs at most.",
)
def verify(
    reach: AccessOptions,
    primary: Annotated[
        str | None, _side("primary", "Connection string of a namespace, or sb://HOST.")
    ] = None,
    secondary: Annotated[str | None, _side("secondary", "The same of another, if any.")] = None,
    like: Annotated[
        str, option("TIER", "Compare with this tier, as of serve: azure-standard, azure-premium.")
    ] = "azure-standard",
    budget: Annotated[
        int, option("N", "Billed operations that the run may make at most.", min=1)
    ] = 500,
    intrusive: Annotated[
        bool,
        flag(
            "--intrusive",
            "Also exceed limits of links, throttle the namespaces and leave links idle for minutes;"
            " refused if there are entities of others.",
        ),
    ] = False,
    clean: Annotated[
        bool, flag("--clean", "Only delete what a killed run left, and run no check.")
    ] = False,
    facts: Annotated[
        Path, option("FILE", "File for all facts, with the frames of surprising answers.")
    ] = Path("facts.json"),
    label: Annotated[str, option("LABEL", "Part of the names of the scratch entities.")] = "",
    output: OutputOption = Output.TEXT,
) -> int:
    """Compare one or two real namespaces with the embedded broker.

    Each check asks a namespace and a broker of the same tier in this process the same, on scratch
    entities called twinbus-verify-..., which are deleted again, and prints `same`, `different` with
    the first difference, or `not checked` with the reason: errors of a missing or disabled entity,
    a wrong key and a message that is too large, rights of keys, settings of a backlog queue,
    creations at the same time, pings, deferral, peek, sessions, duplicates, locks, schedules and
    limits of links. Ids, times and host names are not compared. A check that could exceed
    --budget is not run. --facts has every answer, without keys and tokens, and for each difference
    the last 400 frames.
    """
    from twinbus.broker.profile import PROFILES
    from twinbus.console.verify import run
    from twinbus.verify.run import VerifyPlan

    if like not in PROFILES:
        raise WrongUse(f"--like is one of {', '.join(PROFILES)}; got {like!r}")
    plan = VerifyPlan(profile=PROFILES[like], budget=budget, is_intrusive=intrusive, label=label)
    sides = SidesOptions(primary=primary, secondary=secondary, label=None, **asdict(reach))
    namespaces = {"primary": sides.side(primary, "primary")}
    if secondary is not None:
        namespaces["secondary"] = sides.secondary_side
    return run(namespaces, plan, facts, output, is_clean=clean)


for commands in (commands_app, watch_app):
    app.add_typer(commands)
app.add_typer(backlog_app, name="backlog")
app.add_typer(twins_app, name="twins")
app.add_typer(syphon_app, name="syphon")
app.add_typer(report_app, name="report")
app.add_typer(prices_app, name="prices")
app.add_typer(cost_app, name="cost")
app.add_typer(ledger_app, name="ledger")
app.add_typer(faults_app, name="faults")
app.add_typer(config_app, name="config")


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line of the process, or `words`; an error of ours is one line."""
    try:
        app(words, prog_name="twinbus")
    except TwinbusError as error:
        typer.echo(f"twinbus: {error}", err=True)
        is_usage = isinstance(error, BrokerStartError | QuantityError | SettingsError | WrongUse)
        raise SystemExit(USAGE_ERROR if is_usage else COULD_NOT) from None
