"""The words of `twinbus syphon`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.console.backlog.cli import LabelOption, PrimaryOption, SecondaryOption
from twinbus.console.control.cli import PairOption
from twinbus.console.terminal.output import Output, OutputOption, WrongUse
from twinbus.console.terminal.seconds import seconds_of

if TYPE_CHECKING:
    from twinbus.console.syphon.request import SyphonPlan

__all__ = ["app"]

app = typer.Typer(
    help="Move the backlog home: run it as a program, drain it once, pause, resume, look at it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Engine(StrEnum):
    """Who moves the messages of a drain."""

    RELAY = "relay"
    SPARK = "spark"


class TimeToLive(StrEnum):
    """What a message gets back."""

    FULL = "full"
    REMAINING = "remaining"


RateOption = Annotated[
    str | None,
    typer.Option(
        "--rate",
        metavar="RATE",
        help="At most so many messages over all queues, like 500/s (or just 500) or 30000/min; or"
        " `standard`: 250/s, which leaves the application half of a Standard namespace's 1,000"
        " credits.",
    ),
]
OnlyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="PATH",
        help="Serve this queue or topic only. Repeatable. Messages of others that are in front of"
        " its own are deferred, and found by the next syphon that serves them.",
    ),
]
LeaseOption = Annotated[
    bool,
    typer.Option("--lease", help="Pump a queue only while no other syphon holds its lease."),
]
StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict", help="Keep the order within sessions (session_order='strict'); takes leases."
    ),
]
GraceOption = Annotated[
    str,
    typer.Option(
        "--grace",
        metavar="TIME",
        help="A destination that is missing for so long (at most 30d) is given up: its messages"
        " are dead-lettered.",
    ),
]
TtlOption = Annotated[
    TimeToLive,
    typer.Option("--ttl-policy", help="What is restored: the whole time to live, or the rest."),
]
LedgerOption = Annotated[
    str | None,
    typer.Option("--ledger", envvar="TWINBUS_LEDGER", metavar="DIR", help="Where to record it."),
]


@app.command(
    epilog="Exit status: 0 ended by Ctrl-C or SIGTERM, after what was in flight; 1 it could not."
    " Example: twinbus syphon run --rate standard --lease"
)
def run(
    primary: PrimaryOption = None,
    secondary: SecondaryOption = None,
    label: LabelOption = None,
    rate: RateOption = None,
    only: OnlyOption = None,
    lease: LeaseOption = False,
    strict: StrictOption = False,
    grace: GraceOption = "6h",
    ttl_policy: TtlOption = TimeToLive.FULL,
    poll: Annotated[
        str, typer.Option("--poll", metavar="TIME", help="Length of one idle poll, 1s to 15min.")
    ] = "15min",
    queues: Annotated[
        int | None,
        typer.Option(
            "--queues",
            min=1,
            max=100,
            metavar="N",
            help="The application's backlog_queue_count: then the queues need not be listed, and"
            " the Manage right is needed for --lease and --strict only.",
        ),
    ] = None,
    ledger: LedgerOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Run the syphon until Ctrl-C or SIGTERM; `pause`, `resume` and `status` reach it."""
    from twinbus.console.syphon import run as syphon_run

    plan = _plan(
        primary, secondary, label,
        rate=rate, only=only, lease=lease, strict=strict, grace=grace, ttl_policy=ttl_policy,
        poll=poll, ledger=ledger,
    )  # fmt: skip
    raise typer.Exit(syphon_run.run(plan, count=queues, as_json=output is Output.JSON))


@app.command(
    epilog="Exit status: 0 drained, 1 it could not be (one line says why), 3 drained, but some are"
    " dead-lettered, 130 stopped. Example: twinbus syphon drain --only orders --rate 500/s"
)
def drain(
    primary: PrimaryOption = None,
    secondary: SecondaryOption = None,
    label: LabelOption = None,
    rate: RateOption = None,
    only: OnlyOption = None,
    lease: LeaseOption = False,
    strict: StrictOption = False,
    grace: GraceOption = "6h",
    ttl_policy: TtlOption = TimeToLive.FULL,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Give up after so long.")
    ] = None,
    engine: Annotated[
        Engine, typer.Option("--engine", help="This process, or a Spark job.")
    ] = Engine.RELAY,
    master: Annotated[
        str | None,
        typer.Option("--master", metavar="URL", help="Spark's master; unset: this machine."),
    ] = None,
    ledger: LedgerOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Move all that is in the backlog, and exit when nothing is left in it.

    Left means active, locked, scheduled or deferred. What cannot be delivered yet keeps it running:
    the live line says what is in the way.
    """
    from twinbus.console.syphon import drain as syphon_drain

    plan = _plan(
        primary, secondary, label,
        rate=rate, only=only, lease=lease, strict=strict, grace=grace, ttl_policy=ttl_policy,
        poll="15min", ledger=ledger,
    )  # fmt: skip
    as_json = output is Output.JSON
    if engine is Engine.SPARK:
        if timeout is not None:
            raise WrongUse("--timeout is for --engine relay; leave it out")
        raise typer.Exit(syphon_drain.drain_on_spark(plan, master, as_json=as_json))
    if master is not None:
        raise WrongUse("--master is for --engine spark")
    timeout_s = None if timeout is None else seconds_of(timeout, "--timeout", least=0.1)
    raise typer.Exit(syphon_drain.drain_here(plan, timeout_s, as_json=as_json))


@app.command(epilog="Example: twinbus syphon pause --pair contoso")
def pause(pair: PairOption = None, output: OutputOption = Output.TEXT) -> None:
    """Have a running syphon receive nothing more; what is in flight ends, the rest goes back."""
    _steer("pause", pair, output)


@app.command(epilog="Example: twinbus syphon resume")
def resume(pair: PairOption = None, output: OutputOption = Output.TEXT) -> None:
    """Have a paused syphon go on."""
    _steer("resume", pair, output)


@app.command(
    epilog="Exit status: 0 all is well, also where one stands by for its lease; 1 no syphon"
    " answers; 3 one is paused, cannot reach a side, holds messages, or has dead-lettered some"
    " since it began. Example: twinbus syphon status --output json"
)
def status(pair: PairOption = None, output: OutputOption = Output.TEXT) -> None:
    """Show the running syphons: what they moved, how fast, what is in the way, when it is over."""
    from twinbus.console.syphon.running import show_status

    raise typer.Exit(show_status(pair, as_json=output is Output.JSON))


def _steer(verb: str, pair: str | None, output: Output) -> None:
    from twinbus.console.syphon.running import steer

    raise typer.Exit(steer(verb, pair, as_json=output is Output.JSON))


def _plan(
    primary: str | None,
    secondary: str | None,
    label: str | None,
    *,
    rate: str | None,
    only: list[str] | None,
    lease: bool,
    strict: bool,
    grace: str,
    ttl_policy: TimeToLive,
    poll: str,
    ledger: str | None,
) -> SyphonPlan:
    from twinbus.console.namespaces import side
    from twinbus.console.syphon.request import SyphonPlan, rate_of
    from twinbus.options import (
        SYPHON_POLL_MAX_S,
        UNDELIVERABLE_GRACE_MAX_S,
        SendAvailabilityOptions,
    )

    options = SendAvailabilityOptions(
        undeliverable_grace=seconds_of(grace, "--grace", least=0, most=UNDELIVERABLE_GRACE_MAX_S),
        ttl_policy="remaining" if ttl_policy is TimeToLive.REMAINING else "full",
        session_order="strict" if strict else "relaxed",
        syphon_poll=seconds_of(poll, "--poll", least=1, most=SYPHON_POLL_MAX_S),
    )
    return SyphonPlan(
        primary=side(primary, "primary", label),
        secondary=side(secondary, "secondary"),
        options=options,
        rate_per_s=rate_of(rate),
        only=tuple(only or ()),
        lease=True if lease else None,
        ledger=ledger or None,
    )
