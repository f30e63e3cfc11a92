"""The options of `twinbus gateway` that are its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from twinbus.console.config.pair_defaults import FromFile
from twinbus.console.terminal.command import argument, flag, option


@dataclass(frozen=True, kw_only=True)
class GatewayOptions:
    """How the gateway sends."""

    namespace: Annotated[
        str,
        argument("NAME:PORT", "Name of the gateway and its port; 0 picks a free one."),
        FromFile("gateway.address"),
    ]
    queues: Annotated[
        int, option("N", "Backlog queues in the secondary.", min=1, max=100), FromFile("queues")
    ] = 10
    failover_interval: Annotated[
        str,
        option(
            "TIME",
            "Failover interval of an entity; with --attempt-timeout shorter than --patience.",
        ),
        FromFile("gateway.failover-interval"),
    ] = "20s"
    ping_interval: Annotated[
        str, option("TIME", "Time between pings, 1s to 30min."), FromFile("gateway.ping-interval")
    ] = "60s"
    attempt_timeout: Annotated[
        str,
        option("TIME", "Time of one attempt on a namespace, 1s to 1min."),
        FromFile("gateway.attempt-timeout"),
    ] = "5s"
    patience: Annotated[
        str,
        option(
            "TIME",
            "How long a client's send may wait for a namespace. Shorter than the client's own"
            " timeout.",
        ),
        FromFile("gateway.patience"),
    ] = "55s"
    strict: Annotated[
        bool,
        flag("--strict/--no-strict", "Keep the order within sessions (session_order='strict')."),
        FromFile("strict"),
    ] = False
    syphon: Annotated[
        bool,
        flag("--syphon/--no-syphon", "Move the backlog to the primary from here."),
        FromFile("gateway.syphon"),
    ] = True
    ledger: Annotated[
        str | None,
        option("DIR", "Ledger to record into.", envvar="TWINBUS_LEDGER"),
        FromFile("ledger"),
    ] = None
    quiet: Annotated[bool, flag("--quiet", "Log errors only.")] = False
