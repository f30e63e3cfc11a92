"""The commands of `twinbus syphon`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from twinbus.console.declaration import command, command_group, flag, option, setting
from twinbus.console.options import (
    MasterOption,
    PairOption,
    RecordingOption,
    SharedOption,
    SidesOptions,
    StrictOption,
)
from twinbus.console.output import Output, OutputOption, WrongUse
from twinbus.console.times import seconds_of

if TYPE_CHECKING:
    from twinbus.console.syphon.request import SyphonRequest

app = command_group("Move the backlog to the primary; pause, resume, status.")

POLL: str = "15min"


@dataclass(frozen=True, kw_only=True)
class SyphonOptions(SidesOptions):
    rate: Annotated[str | None, setting("rate")] = None
    only: Annotated[
        list[str] | None,
        option(
            "PATH",
            "Serve this queue or topic only. Repeatable. Messages of other destinations that are"
            " in front are deferred; the next syphon that serves them finds them.",
        ),
    ] = None
    lease: Annotated[bool, setting("lease", "--lease/--no-lease")] = False
    strict: StrictOption = False
    grace: Annotated[str, setting("grace")] = "6h"
    ttl_policy: Annotated[Literal["full", "remaining"], setting("ttl-policy")] = "full"
    ledger: RecordingOption = None
    output: OutputOption = Output.TEXT

    def request(self, poll: str = POLL) -> SyphonRequest:
        """Return the checked options; WrongUse if one is not valid."""
        from twinbus.console.syphon.request import SyphonRequest, rate_of
        from twinbus.options import (
            SYPHON_POLL_MAX_S,
            UNDELIVERABLE_GRACE_MAX_S,
            SendAvailabilityOptions,
        )

        options = SendAvailabilityOptions(
            undeliverable_grace=seconds_of(
                self.grace, "--grace", least=0, most=UNDELIVERABLE_GRACE_MAX_S
            ),
            ttl_policy=self.ttl_policy,
            session_order="strict" if self.strict else "relaxed",
            syphon_poll=seconds_of(poll, "--poll", least=1, most=SYPHON_POLL_MAX_S),
        )
        primary, secondary = self.both
        return SyphonRequest(
            primary=primary,
            secondary=secondary,
            options=options,
            rate_per_s=rate_of(self.rate),
            only=tuple(self.only or ()),
            lease=self.lease or self.strict,
            ledger=self.ledger or None,
        )


@command(
    app,
    "twinbus syphon run --rate standard --lease",
    exit_status="0 stopped by Ctrl-C or SIGTERM after messages in flight; 1 it could not run.",
)
def run(
    given: SyphonOptions,
    poll: Annotated[str, setting("poll")] = POLL,
    queues: Annotated[
        int | None,
        option(
            "N",
            "The application's backlog_queue_count. The queues are then not listed, and only"
            " --lease and --strict need the Manage right.",
            min=1,
            max=100,
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        option(
            "ADDRESS",
            "Serve /metrics for Prometheus and /health for a supervisor at HOST:PORT, or at PORT on"
            " loopback.",
        ),
    ] = None,
    metrics_token_file: Annotated[
        Path | None,
        option("FILE", "File with the bearer token for /metrics, which is closed beyond loopback."),
    ] = None,
    backlog_every: Annotated[
        str | None,
        option(
            "TIME",
            "Measure depth and age of the backlog this often, for /metrics. Each time costs billed"
            " operations.",
        ),
    ] = None,
) -> int:
    """Run the syphon until Ctrl-C or SIGTERM.

    Control it with `twinbus syphon pause`, `resume` and `status`. Give it the values of the
    application: --label for `name`, --grace, --ttl-policy, --strict, --poll. Without --queues it
    lists the backlog queues, to find new ones: every 15 minutes, every minute while the primary is
    down or messages move and for 15 minutes after that, every 30 seconds while there is none. The
    same listing finds marked twins of queues that hold messages, and the syphon empties them.

    --rate limits one process; two syphons send twice as much. With --lease a second syphon waits
    and takes over within 70 s when the first ends; syphons without --lease ignore leases. The
    lease is a session lock on LABEL/x-twinbus-lease, a queue that the syphon creates.
    """
    from twinbus.console.syphon import run as syphon_run
    from twinbus.console.syphon.metrics import MetricsRequest

    port = MetricsRequest.of(metrics, metrics_token_file, backlog_every)
    return syphon_run.run(given.request(poll), queues, given.output, port)


@command(
    app,
    "twinbus syphon drain --only orders --rate 500/s",
    exit_status="0 drained, 1 not drained (one line says why), 3 drained but some messages are"
    " dead-lettered, 130 stopped.",
)
def drain(
    given: SyphonOptions,
    timeout: Annotated[str | None, option("TIME", "Give up after this long.")] = None,
    engine: Annotated[
        Literal["relay", "spark"], typer.Option(help="Drain in this process, or as a Spark job.")
    ] = "relay",
    master: MasterOption = None,
    shared: SharedOption = False,
    queue: Annotated[
        list[str] | None,
        option("PATH", "Drain this backlog queue. Repeatable. Unset: all of the pair."),
    ] = None,
    tasks: Annotated[
        int | None, option("N", "Spark tasks that share the queues. Unset: all slots.", min=1)
    ] = None,
    continuous: Annotated[
        bool, flag("--continuous", "Keep draining on Spark until Ctrl-C or SIGTERM.")
    ] = False,
) -> int:
    """Move the whole backlog and exit when none is left.

    A queue is drained when its counts of active, locked, scheduled and deferred messages are 0
    and a peek finds nothing. While a destination is down, disabled, full or missing the command
    keeps running, and the live line says why; messages for a missing destination are dead-lettered
    after --grace, with --grace 0 at once.

    Marked twins of queues are emptied too, until they hold no active message. Twins with sessions,
    and subscriptions, are left to their consumers.

    --only peeks first and skips queues without such messages. In the others it defers messages of
    other destinations, up to 200 behind the last one for PATH. Every syphon without --only finds
    these again: a new drain at once, a running syphon within the hour. On Spark each task gets an
    equal share of --rate.
    """
    from twinbus.console.syphon import drain as syphon_drain

    request = given.request()
    if engine == "spark":
        if timeout is not None:
            raise WrongUse("--timeout is for --engine relay; leave it out")
        job = syphon_drain.SparkDrain(master, shared, tasks, continuous)
        return syphon_drain.drain_on_spark(request, queue, given.output, job)
    if master is not None or shared or tasks is not None or continuous:
        raise WrongUse("--master, --shared, --tasks and --continuous are for --engine spark")
    timeout_s = None if timeout is None else seconds_of(timeout, "--timeout", least=0.1)
    return syphon_drain.drain_here(request, queue, timeout_s, given.output)


@command(app, "twinbus syphon pause --pair contoso")
def pause(pair: PairOption = None, output: OutputOption = Output.TEXT) -> int:
    """Stop a running syphon from receiving more messages.

    Messages in flight are finished. Other received messages go back to their queue. A restart ends
    the pause.
    """
    from twinbus.console.watch.status import steer

    return steer("pause", None, pair, output)


@command(app, "twinbus syphon resume")
def resume(pair: PairOption = None, output: OutputOption = Output.TEXT) -> int:
    """Let a paused syphon continue."""
    from twinbus.console.watch.status import steer

    return steer("resume", None, pair, output)


@command(
    app,
    "twinbus syphon status --output json",
    exit_status="0 all is well, also where a syphon waits for its lease; 1 no syphon answers;"
    " 3 a syphon is paused, cannot reach a side, holds messages, has dead-lettered some since"
    " it started, or does not pump a backlog queue of its label.",
)
def status(pair: PairOption = None, output: OutputOption = Output.TEXT) -> int:
    """Show running syphons: moved, rate, obstacles, forecast."""
    from twinbus.console.watch.status import show_syphons

    return show_syphons(pair, output)
