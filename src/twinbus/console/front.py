"""The port of `twinbus serve` and of `twinbus gateway` from its options."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from twinbus.broker.access.admission import ConnectionLimits
from twinbus.broker.front import DEFAULT_KEY, Front
from twinbus.broker.host import parse_rule, parse_token
from twinbus.broker.tls import reload_on_change, server_context
from twinbus.console.options import FrontOptions
from twinbus.console.terminal.secret_file import secret_in, secret_lines
from twinbus.errors import BrokerStartError


def front_of(given: FrontOptions) -> Front:
    """The checked options; BrokerStartError if one is not valid."""
    return Front(
        host=given.host,
        key=_key(given.key, given.key_file),
        rules=[parse_rule(text) for text in [*(given.rule or ()), *secret_lines(given.rule_file)]],
        tokens=[parse_token(text) for text in given.token or ()],
        token_file=given.tokens,
        require_token=given.require_token,
        tls=_tls(given.tls_cert, given.tls_key),
        require_tls=given.require_tls,
        metrics_token=secret_in(given.metrics_token_file),
        limits=ConnectionLimits(
            connections=given.connections_max,
            strangers_per_address=given.strangers_max,
            open_s=given.open_limit,
            token_s=given.token_limit,
        ),
    )


@asynccontextmanager
async def certificate_reloaded(front: Front, given: FrontOptions) -> AsyncIterator[None]:
    """Load the certificate of the port again whenever its files change, in the block."""
    if front.tls is None or given.tls_cert is None or given.tls_key is None:
        yield
        return
    watching = asyncio.create_task(reload_on_change(front.tls, given.tls_cert, given.tls_key))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait({watching})


def _key(key: str | None, file: Path | None) -> str:
    if key is not None and file is not None:
        raise BrokerStartError("the key is given twice; give --key (TWINBUS_KEY) or --key-file")
    return secret_in(file) or key or DEFAULT_KEY


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise BrokerStartError(
            "TLS needs both --tls-cert FILE and --tls-key FILE; give the other one too"
        )
    return server_context(certificate, key)
