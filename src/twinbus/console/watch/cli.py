"""`twinbus status`, `check`, `top`, `page`, and the commands that steer a running pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, NoReturn

import typer
from typer.core import TyperCommand

from twinbus.console.declaration import argument, command, command_group, flag, option
from twinbus.console.options import SECRETS, PageOptions, PairOption, SidesOptions
from twinbus.console.output import Output, OutputOption, WrongUse
from twinbus.console.times import seconds_of
from twinbus.errors import SettingsError

app = command_group("")

PathArgument = Annotated[str, argument("PATH", "The queue or topic, as the application names it.")]

TIMEOUT_MAX_S: Final = 600.0

_UsageError: Final[Any] = typer.BadParameter.__mro__[1]
"""Typer has its own copy of Click, and exports only this one's children."""


class _PluginCommand(TyperCommand):
    """A command whose usage errors are one line on stdout and UNKNOWN: 2 would be CRITICAL."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            _report_unknown(f"usage error: {error.format_message()}")
        except SettingsError as error:
            _report_unknown(str(error))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SettingsError as error:
            # The label of a configured pair cannot be found out.
            _report_unknown(str(error))


def _report_unknown(text: str) -> NoReturn:
    from twinbus.console.watch.check import CheckFinding, CheckLevel, print_verdict

    raise typer.Exit(print_verdict([CheckFinding(CheckLevel.UNKNOWN, text)], [])) from None


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
    a pair without a backlog queue that answers; a side that is closed or faulted; receivers without
    a link; a processor that ended by itself; messages that wait in a twin; a ledger that lost
    lines. It makes no billed request, so it has the depth of the backlog only where the pair
    measures it for a collector.
    """
    from twinbus.console.watch.status import show_status

    return show_status(pair, output, watch=watch, show_all=show_all)


FROZEN: Final = """Keep the routing of an entity as it is, until unfreeze.

A frozen entity has no failover timer and no pings."""


def _steering(verb: str, text: str) -> Callable[..., int]:
    def steer(
        path: PathArgument, pair: PairOption = None, output: OutputOption = Output.TEXT
    ) -> int:
        from twinbus.console.watch.status import steer

        return steer(verb, path, pair, output)

    steer.__name__, steer.__doc__ = verb.replace("-", "_"), text
    return steer


for _verb, _arguments, _text in (
    ("freeze", "orders", FROZEN),
    ("unfreeze", "orders --pair contoso", "Let the routing of an entity change again."),
    ("force-failover", "orders", "Divert an entity's sends until mark-healthy."),
    ("mark-healthy", "orders", "Send to the primary again, whatever the pings say."),
):
    command(app, f"twinbus {_verb} {_arguments}")(_steering(_verb, _text))


@command(
    app,
    "twinbus check --pair contoso --backlog-age 30min,2h\ntwinbus check --proof ./ledger",
    exit_status="0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN, also for a usage error.",
    note="A limit is WARNING[,CRITICAL]; a figure above it is reported. `off` turns one off.",
    cls=_PluginCommand,
)
def check(
    given: SidesOptions,
    pair: PairOption = None,
    backlog_age: Annotated[
        str, option("LIMIT", "Age of the oldest message in the backlog; needs the secondary.")
    ] = "1h,6h",
    backlog_depth: Annotated[str, option("LIMIT", "Messages in the backlog.")] = "off",
    dead_letters: Annotated[str, option("LIMIT", "Dead letters of the backlog.")] = "0",
    unprotected: Annotated[
        Literal["ok", "warning", "critical"],
        typer.Option(help="Level of a pair whose sends depend on the primary alone."),
    ] = "critical",
    timeout: Annotated[str, option("TIME", "Time for the secondary to answer.")] = "10s",
    proof: Annotated[
        str | None,
        option(
            "LEDGER",
            "Only this: say of each message in this directory's ledger whether it is lost.",
        ),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Report to a monitoring system: one line, Nagios exit status.

    Asks the pairs and syphons of this machine. With a secondary it also counts the backlog and the
    twins there, which needs the rights Manage and Listen, and costs four operations, one for each
    topic that is a twin, and a peek for each queue that holds messages. Without one it uses what a
    pair or a syphon knows.

    CRITICAL: sends raise, sends depend on the primary alone (see --unprotected), a process does not
    answer, or no pair of --pair runs. WARNING: an entity is raising, suspect or failed over; the
    ledger lost lines; receivers have no link to a side for a minute; a processor has ended by
    itself; messages wait long in a twin; a syphon is paused, cannot reach a side or holds messages
    (one that waits for its lease is OK). UNKNOWN: the secondary does not answer or refuses; without
    a secondary, nothing runs here.

    --proof asks no server: it reads the files of a ledger on this machine, without Spark, and names
    messages by id below the first line. OK: every accepted message is delivered, dead-lettered or
    expired, or waits. CRITICAL: one is lost. UNKNOWN: a diverted message has no later record, or a
    line or a file is missing or could not be read. It needs room for temporary files of about half
    the size of the ledger, in TMPDIR.
    """
    if proof is not None:
        if pair is not None:
            _report_unknown("--proof reads a ledger and asks no pair: leave out --pair")
        from twinbus.console.watch.proof import run_proof

        return run_proof(proof, output)
    from twinbus.console.watch.check import (
        CheckLevel,
        CheckRequest,
        Thresholds,
        limits_of,
        run_check,
    )

    def request() -> CheckRequest:
        return CheckRequest(
            pair=pair,
            secondary=given.secondary_side if given.secondary else None,
            label=given.given_label if given.label else None,
            thresholds=Thresholds(
                age_s=limits_of(backlog_age, "--backlog-age", is_time=True),
                depth=limits_of(backlog_depth, "--backlog-depth"),
                dead_letters=limits_of(dead_letters, "--dead-letters"),
                unprotected=CheckLevel(unprotected.upper()),
            ),
            timeout_s=seconds_of(timeout, "--timeout", least=0.1, most=TIMEOUT_MAX_S),
            primary_label=given.given_label,
        )

    return run_check(request, output)


@command(app, "twinbus top --pair contoso")
def top(
    pair: PairOption = None,
    once: Annotated[bool, flag("--once", "Print once and end, as without a terminal.")] = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Show pairs, entities, backlog and syphons, live.

    What `twinbus page` shows, in a terminal: every second, worst first, until q or Ctrl-C. Rates
    are means of 30 s. It makes no billed request, except that a syphon program counts its backlog
    every 30 s while `top` runs.
    """
    from twinbus.console.watch.top import run_top

    return run_top(pair, output, once=once)


@command(
    app,
    "twinbus fleet --output json",
    exit_status="0 no entity failed over by any notice, 1 the board cannot be read, 3 one did.",
    note=SECRETS,
)
async def fleet(sides: SidesOptions, output: OutputOption = Output.TEXT) -> int:
    """Show which hosts say that which entity failed over.

    It reads the notice board in the secondary and asks no host, so it works from anywhere. A host
    with no notice is healthy, or silent because some others say the same. SINCE is by the clock of
    the host. Notices expire within minutes. It needs the Listen right on the board, and costs one
    operation for 100 notices.
    """
    from twinbus.console.watch.fleet import run_fleet

    label = sides.given_label
    if label is None:
        raise WrongUse("whose notice board? Give --primary, TWINBUS_PRIMARY or --label")
    return await run_fleet(sides.secondary_side, label, output)


@command(app, "twinbus page --ledger ./ledger", note=SECRETS)
def page(given: PageOptions) -> int:
    """Show and steer the pairs of this host in a browser.

    The command prints an address with a token and runs until Ctrl-C or SIGTERM. Beyond loopback it
    needs TLS and tokens from files.
    """
    from twinbus.console.page.commands import run

    return run(given)
