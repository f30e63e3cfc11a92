"""`twinbus gateway`: run the gateway in the foreground until a signal."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from twinbus.broker.front import Front
from twinbus.broker.host import BrokerHost, NamespaceAt
from twinbus.console.front import certificate_reloaded, front_of
from twinbus.console.gateway.options import GatewayOptions
from twinbus.console.options import FrontOptions, SidesOptions
from twinbus.console.terminal.output import WrongUse
from twinbus.console.terminal.times import seconds_of
from twinbus.gateway import GatewayHost
from twinbus.loops import run_alone
from twinbus.namespace.namespace import Namespace
from twinbus.options import (
    FAILOVER_INTERVAL_MAX_S,
    PING_INTERVAL_MAX_S,
    SendAvailabilityOptions,
)
from twinbus.pair import pair_namespaces
from twinbus.settings.core.keys import ATTEMPT_TIMEOUT_MAX_S, EMBEDDED, PATIENCE_MAX_S

EMBEDDED_NAME: Final = "backlog"
"""The namespace inside the gateway, and its directory under DIR."""


def run(given: GatewayOptions, sides: SidesOptions, front: FrontOptions) -> int:
    """Serve until SIGTERM or Ctrl-C; the connection string goes to stdout, the log to stderr."""
    name = NamespaceAt.parse(given.namespace)
    port = front_of(front)
    interval_s = seconds_of(
        given.failover_interval, "--failover-interval", least=0, most=FAILOVER_INTERVAL_MAX_S
    )
    options = _options(given, interval_s)
    patience_s = seconds_of(given.patience, "--patience", least=1, most=PATIENCE_MAX_S)
    # The interval begins when the first attempt on a primary that hangs has ended.
    if interval_s + options.attempt_timeout_s >= patience_s:
        raise WrongUse(
            f"--failover-interval ({given.failover_interval}) and --attempt-timeout"
            f" ({given.attempt_timeout}) together must be shorter than --patience"
            f" ({given.patience}): else clients get errors before an entity fails over"
        )
    primary = sides.side(sides.primary, "primary", sides.label)
    directory = embedded_directory(sides.secondary)
    secondary = None if directory is not None else sides.secondary_side
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.ERROR if given.quiet else logging.INFO,
        format="%(asctime)s %(message)s",
        datefmt="%H:%M:%S",
    )
    for noisy in ("azure", "uamqp"):
        logging.getLogger(noisy).setLevel(logging.ERROR)

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            side = secondary
            if side is None:
                assert directory is not None
                broker = BrokerHost(
                    [NamespaceAt(EMBEDDED_NAME)],
                    data=directory,
                    front=Front(key=secrets.token_urlsafe(32)),
                )
                await broker.start()
                stack.push_async_callback(broker.close)
                side = Namespace.from_connection_string(
                    broker.connection_string(), name=EMBEDDED_NAME
                )
            pair = pair_namespaces(primary, side, options)
            gateway = GatewayHost(name, pair, port, patience_s=patience_s)
            await stack.enter_async_context(certificate_reloaded(port, front))
            await _serve(gateway)

    run_alone(serve())
    return 0


def embedded_directory(secondary: str | None) -> Path | None:
    """The directory of a secondary inside the gateway; None: it is a namespace of its own."""
    if secondary is None or not secondary.startswith(EMBEDDED):
        return None
    text = secondary.removeprefix(EMBEDDED)
    if not text:
        raise WrongUse("--secondary embedded: needs a directory, as in embedded:/var/lib/twinbus")
    return Path(text)


def _options(given: GatewayOptions, interval_s: float) -> SendAvailabilityOptions:
    return SendAvailabilityOptions(
        backlog_queue_count=given.queues,
        failover_interval=interval_s,
        ping_primary_interval=seconds_of(
            given.ping_interval, "--ping-interval", least=1, most=PING_INTERVAL_MAX_S
        ),
        attempt_timeout=seconds_of(
            given.attempt_timeout, "--attempt-timeout", least=1, most=ATTEMPT_TIMEOUT_MAX_S
        ),
        session_order="strict" if given.strict else "relaxed",
        enable_syphon=given.syphon,
        ledger=given.ledger,
    )


async def _serve(gateway: GatewayHost) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await gateway.start()
    try:
        print(f"{gateway.name}  {gateway.printable_connection_string()}", flush=True)
        print(f"ready; {gateway.pair!r}; stop with Ctrl-C", flush=True)
        await stopping.wait()
    finally:
        await gateway.close()
    print("stopped", flush=True)
