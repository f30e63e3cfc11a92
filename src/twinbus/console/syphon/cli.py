"""The commands of `twinbus syphon`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.console.options import (
    LabelOption,
    MasterOption,
    PairOption,
    PrimaryOption,
    SecondaryOption,
    SharedOption,
)
from twinbus.console.terminal.help_text import epilog
from twinbus.console.terminal.output import Output, OutputOption, WrongUse
from twinbus.console.terminal.seconds import seconds_of

if TYPE_CHECKING:
    from twinbus.console.syphon.request import SyphonRequest

app = typer.Typer(
    help="Move the backlog to the primary; pause, resume, status.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Engine(StrEnum):
    """What moves the messages of a drain."""

    RELAY = "relay"
    SPARK = "spark"


class TimeToLive(StrEnum):
    """Which time to live a restored message gets."""

    FULL = "full"
    REMAINING = "remaining"


RateOption = Annotated[
    str | None,
    typer.Option(
        "--rate",
        metavar="RATE",
        help="Rate limit over all queues, like 500/s (or just 500) or 30000/min. `standard` is"
        " 250/s, which leaves the application half of a Standard namespace's 1,000 credits.",
    ),
]
OnlyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="PATH",
        help="Serve this queue or topic only. Repeatable. Messages of other destinations that are"
        " in front are deferred; the next syphon that serves them finds them.",
    ),
]
LeaseOption = Annotated[
    bool,
    typer.Option("--lease", help="Serve a queue only while holding its lease."),
]
StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict", help="Keep the order within sessions (session_order='strict'); uses leases."
    ),
]
GraceOption = Annotated[
    str,
    typer.Option(
        "--grace",
        metavar="TIME",
        help="Dead-letter the messages of a destination that is missing for this long, at most"
        " 30d.",
    ),
]
TtlOption = Annotated[
    TimeToLive,
    typer.Option("--ttl-policy", help="Restore the whole time to live, or what remains of it."),
]
LedgerOption = Annotated[
    str | None,
    typer.Option("--ledger", envvar="TWINBUS_LEDGER", metavar="DIR", help="Ledger to record into."),
]


@app.command(
    epilog=epilog(
        "twinbus syphon run --rate standard --lease",
        exit_status="0 stopped by Ctrl-C or SIGTERM after messages in flight; 1 it could not run.",
    )
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
            help="The application's backlog_queue_count. The queues are then not listed, and only"
            " --lease and --strict need the Manage right.",
        ),
    ] = None,
    ledger: LedgerOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Run the syphon until Ctrl-C or SIGTERM.

    `pause`, `resume` and `status` reach it.
    """
    from twinbus.console.syphon import run as syphon_run

    request = _request(
        primary, secondary, label,
        rate=rate, only=only, lease=lease, strict=strict, grace=grace, ttl_policy=ttl_policy,
        poll=poll, ledger=ledger,
    )  # fmt: skip
    raise typer.Exit(syphon_run.run(request, count=queues, as_json=output is Output.JSON))


@app.command(
    epilog=epilog(
        "twinbus syphon drain --only orders --rate 500/s",
        exit_status="0 drained, 1 not drained (one line says why), 3 drained but some messages are"
        " dead-lettered, 130 stopped.",
    )
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
        str | None, typer.Option("--timeout", metavar="TIME", help="Give up after this long.")
    ] = None,
    engine: Annotated[
        Engine, typer.Option("--engine", help="Drain in this process, or as a Spark job.")
    ] = Engine.RELAY,
    master: MasterOption = None,
    shared: SharedOption = False,
    ledger: LedgerOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Move the whole backlog and exit when none is left.

    A queue is drained when it holds no active, locked, scheduled or deferred message. The command
    keeps running while a message cannot be delivered yet; the live line says why.
    """
    from twinbus.console.syphon import drain as syphon_drain

    request = _request(
        primary, secondary, label,
        rate=rate, only=only, lease=lease, strict=strict, grace=grace, ttl_policy=ttl_policy,
        poll="15min", ledger=ledger,
    )  # fmt: skip
    as_json = output is Output.JSON
    if engine is Engine.SPARK:
        if timeout is not None:
            raise WrongUse("--timeout is for --engine relay; leave it out")
        raise typer.Exit(
            syphon_drain.drain_on_spark(request, master, shared=shared, as_json=as_json)
        )
    if master is not None or shared:
        raise WrongUse("--master and --shared are for --engine spark")
    timeout_s = None if timeout is None else seconds_of(timeout, "--timeout", least=0.1)
    raise typer.Exit(syphon_drain.drain_here(request, timeout_s, as_json=as_json))


@app.command(epilog=epilog("twinbus syphon pause --pair contoso"))
def pause(pair: PairOption = None, output: OutputOption = Output.TEXT) -> None:
    """Stop a running syphon from receiving more messages.

    Messages in flight are finished. Other received messages go back to their queue.
    """
    _steer("pause", pair, output)


@app.command(epilog=epilog("twinbus syphon resume"))
def resume(pair: PairOption = None, output: OutputOption = Output.TEXT) -> None:
    """Let a paused syphon continue."""
    _steer("resume", pair, output)


@app.command(
    epilog=epilog(
        "twinbus syphon status --output json",
        exit_status="0 all is well, also where a syphon waits for its lease; 1 no syphon answers;"
        " 3 a syphon is paused, cannot reach a side, holds messages, or has dead-lettered some"
        " since it started.",
    )
)
def status(pair: PairOption = None, output: OutputOption = Output.TEXT) -> None:
    """Show running syphons: moved, rate, obstacles, forecast."""
    from twinbus.console.syphon.running import show_status

    raise typer.Exit(show_status(pair, as_json=output is Output.JSON))


def _steer(verb: str, pair: str | None, output: Output) -> None:
    from twinbus.console.syphon.running import steer

    raise typer.Exit(steer(verb, pair, as_json=output is Output.JSON))


def _request(
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
) -> SyphonRequest:
    from twinbus.console.namespaces import parse_side
    from twinbus.console.syphon.request import SyphonRequest, rate_of
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
    return SyphonRequest(
        primary=parse_side(primary, "primary", label),
        secondary=parse_side(secondary, "secondary"),
        options=options,
        rate_per_s=rate_of(rate),
        only=tuple(only or ()),
        lease=True if lease else None,
        ledger=ledger or None,
    )
