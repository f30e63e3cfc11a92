"""`twinbus serve`: run the broker in the foreground until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from twinbus.broker.host import DEFAULT_KEY, BrokerHost, NamespaceAt, parse_rule


def run(
    namespaces: Sequence[str],
    *,
    data: Path | None,
    host: str,
    key: str | None,
    rules: Sequence[str],
    seed: int,
    quiet: bool,
) -> None:
    """Serve until SIGTERM or Ctrl-C; connection strings go to stdout, the log to stderr."""
    broker = BrokerHost(
        [NamespaceAt.parse(text) for text in namespaces],
        data=data,
        host=host,
        key=key or DEFAULT_KEY,
        rules=[parse_rule(text) for text in rules],
        fault_seed=seed,
    )
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.ERROR if quiet else logging.INFO,
        format="%(asctime)s %(message)s",
        datefmt="%H:%M:%S",
    )
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(broker, data))


async def _serve(broker: BrokerHost, data: Path | None) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await broker.start()
    for name in broker.names:
        print(f"{name}  {broker.connection_string(name)}", flush=True)
    kept = f"kept in {data}" if data else "kept in memory only"
    print(f"ready; messages are {kept}; stop with Ctrl-C", flush=True)
    await stopping.wait()
    await broker.close()
    print("stopped", flush=True)


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed: it halves the cost of small round trips."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop  # type: ignore[return-value]
