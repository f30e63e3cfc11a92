"""The options of `twinbus cost estimate` and `twinbus plan`, as they are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from twinbus.console.options import SettlementOption
from twinbus.console.terminal.command import flag, option, setting


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions:
    """The options that both commands have."""

    rate: Annotated[str, option("RATE", "Message rate, like 500/s, 30000/min or 2M/day.")]
    size: Annotated[str, option("SIZE", "Size of one message, like 2KB or 64KiB.")] = "1KB"
    entities: Annotated[int, option("N", "Queues and topics that are sent to.")] = 1
    clients: Annotated[int, option("N", "Sending processes, each with its own pair.")] = 1
    poll: Annotated[str, setting("poll")] = "15min"
    settlement: SettlementOption = "free"
    messaging_units: Annotated[
        int, option("N", "Messaging units of a Premium namespace: 1, 2, 4, 8 or 16.")
    ] = 1


PlanOutput = Literal["text", "json", "html"]


@dataclass(frozen=True, kw_only=True)
class PlanOptions(WorkloadOptions):
    """The options of `twinbus plan`."""

    outages: Annotated[
        list[str],
        option(
            "PATTERN",
            "How often the primary is down and for how long: '2/year lognormal 40min', where"
            " 40min is the median; also exponential or fixed, and 'exactly 2/year'; or an outage"
            " that happened, west-europe-2025-11. Repeatable.",
            "--outages",
            "--outage",
        ),
    ]
    sigma: Annotated[float, option("X", "Spread of lognormal lengths (sigma).")] = 1.0
    failover_interval: Annotated[
        str, option("TIMES", "Failover intervals to compare, separated by commas.")
    ] = "0,10s,30s,60s"
    ping_interval: Annotated[
        str, option("TIMES", "Ping intervals to compare, separated by commas.")
    ] = "10s,30s,60s,5min"
    queues: Annotated[str, option("COUNTS", "Numbers of backlog queues to compare.")] = "1,5,10,20"
    backlog_size: Annotated[str, option("SIZE", "Quota of one backlog queue, 1GB to 80GB.")] = "5GB"
    rate_limit: Annotated[str, option("RATE", "Rate at which the syphon sends.")] = "250/s"
    shared_limit: Annotated[
        bool,
        flag(
            "--shared-limit",
            "The rate limit is that of the primary: the application sends first, the syphon"
            " gets what is left.",
        ),
    ] = False
    patience: Annotated[
        str | None,
        option(
            "TIME",
            "Timeout of a send. Unset: the send has no timeout and ends after its retries,"
            " by default four attempts and 11.2 s of back-off.",
        ),
    ] = None
    hang: Annotated[
        str,
        option(
            "TIME",
            "How long an attempt takes to fail: 0 if the connection is refused, up to"
            " attempt_timeout if the primary hangs.",
        ),
    ] = "0s"
    syphons: Annotated[int, option("N", "Programs that run a syphon.")] = 1
    full_years: Annotated[float, option("X", "Accepted share of years with a full backlog.")] = 0.01
    raised_per_million: Annotated[
        float, option("X", "Accepted number of sends that raise before failover, of a million.")
    ] = 1.0
    years: Annotated[int, option("N", "Years to simulate.")] = 4_000
    seed: Annotated[
        int, option("N", "Seed of the simulation; the same seed gives the same figures.")
    ] = 7
