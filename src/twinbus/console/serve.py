"""`twinbus serve`: run the broker in the foreground until a signal."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path

from twinbus.broker.host import DEFAULT_KEY, BrokerHost, NamespaceAt, parse_rule, parse_token
from twinbus.broker.tls import server_context
from twinbus.errors import BrokerStartError
from twinbus.loops import run_alone


def run(
    namespaces: Sequence[str],
    *,
    data: Path | None,
    host: str,
    key: str | None,
    rules: Sequence[str],
    tokens: Sequence[str],
    tls_cert: Path | None,
    tls_key: Path | None,
    seed: int,
    quiet: bool,
    ledger: str | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; connection strings go to stdout, the log to stderr."""
    broker = BrokerHost(
        [NamespaceAt.parse(text) for text in namespaces],
        data=data,
        host=host,
        key=key or DEFAULT_KEY,
        rules=[parse_rule(text) for text in rules],
        tokens=[parse_token(text) for text in tokens],
        tls=_tls(tls_cert, tls_key),
        fault_seed=seed,
        ledger=ledger,
    )
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.ERROR if quiet else logging.INFO,
        format="%(asctime)s %(message)s",
        datefmt="%H:%M:%S",
    )
    run_alone(_serve(broker, data))


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise BrokerStartError(
            "TLS needs both --tls-cert FILE and --tls-key FILE; give the other one too"
        )
    return server_context(certificate, key)


async def _serve(broker: BrokerHost, data: Path | None) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await broker.start()
    for name in broker.names:
        print(f"{name}  {broker.connection_string(name)}", flush=True)
    storage = f"kept in {data}" if data else "kept in memory only"
    print(f"ready; messages are {storage}; stop with Ctrl-C", flush=True)
    await stopping.wait()
    await broker.close()
    print("stopped", flush=True)
