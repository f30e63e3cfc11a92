"""`twinbus drill`: reads the options; `phases` runs the drill."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from twinbus.console.declaration import command, command_group, flag, option
from twinbus.console.options import QueuesOption
from twinbus.console.output import Output, OutputOption
from twinbus.console.times import seconds_of
from twinbus.options import FAILOVER_INTERVAL_MAX_S, PING_INTERVAL_MAX_S

app = command_group("")

OUTAGE_MAX_S: Final = 3_600.0
"""Limit of a drill's outage: a person waits for it."""


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
