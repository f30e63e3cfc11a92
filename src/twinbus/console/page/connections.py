"""The connections of a page: strangers can come, and cannot keep the operator out.

A connection is a stranger's until a request on it has a valid token. There is room for some
strangers; a new one beyond it ends the oldest of the address that has most of them. So the
newcomer, who may be the operator, always comes in, and a connection with a token is never ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, Protocol

import uvicorn
from uvicorn.server import ServerState

from twinbus.broker.access import Admission, ConnectionLimits
from twinbus.broker.http_connection import HttpConnection
from twinbus.broker.links.turns import Turns

STRANGERS_MAX: Final = 100
"""Connections without a token, of all addresses. A browser opens six, and has the token in the
first request of each."""

CONNECTIONS_MAX: Final = 400
"""Connections in all; those with a token beyond it get a refusal."""

REQUEST_S: Final = 10.0
"""Time for one request to arrive."""
STOP_S: Final = 2


class Stranger(Protocol):
    """A connection that can be ended."""

    def end(self) -> None: ...


class Strangers:
    """The connections without a token, by address."""

    def __init__(self, most: int = STRANGERS_MAX) -> None:
        self._most = most
        self._count = 0
        self._by_host: dict[str, dict[Stranger, None]] = {}

    def enter(self, host: str, stranger: Stranger) -> None:
        """Count a new connection; end another one if there are too many."""
        self._by_host.setdefault(host, {})[stranger] = None
        self._count += 1
        if self._count > self._most:
            busiest = max(self._by_host, key=lambda each: len(self._by_host[each]))
            oldest = next(iter(self._by_host[busiest]))
            self.leave(busiest, oldest)
            oldest.end()

    def leave(self, host: str, stranger: Stranger) -> None:
        """The connection has a token, or is closed."""
        found = self._by_host.get(host, {})
        if stranger not in found:
            return
        del found[stranger]
        self._count -= 1
        if not found:
            del self._by_host[host]


class PageServer(uvicorn.Server):
    """A server that leaves the signals to its command."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def page_config(app: object, tls: ssl.SSLContext | None) -> uvicorn.Config:
    """How a page is served; each has its own strangers."""
    admission = Admission(ConnectionLimits(open_s=REQUEST_S))
    strangers = Strangers()
    turns = cache(lambda: Turns(asyncio.get_running_loop()))

    class PageConnection(HttpConnection):
        """A connection whose requests have a deadline, so that idle strangers do not stay."""

        def __init__(self, config: uvicorn.Config, server_state: ServerState, **given: Any) -> None:
            # `Guard` calls it for a request with a valid token.
            state = {**given["app_state"], "trust": self.trust}
            super().__init__(admission, turns(), config, server_state, state)
            self._site = ""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._site = self.client[0] if self.client else ""
            strangers.enter(self._site, self)

        def connection_lost(self, exc: Exception | None) -> None:
            self.trust()
            super().connection_lost(exc)

        def trust(self) -> None:
            strangers.leave(self._site, self)

        def end(self) -> None:
            self.transport.abort()

        def _cut_off(self, limit_s: float) -> None:
            self.transport.abort()

    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=PageConnection,
        ws="none",
        lifespan="off",
        # The log would have the token in it.
        access_log=False,
        log_level="error",
        proxy_headers=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=STOP_S,
    )
    config.load()
    config.ssl = tls
    return config
