"""The HTTP port of a syphon for `/metrics` and `/health`: aiohttp's server, with bounds.

It answers GET and HEAD, one request for each connection. The number of clients and the time of a
connection are bounded here, the size of a head by aiohttp, so that no client can harm the syphon.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self, cast
from urllib.parse import urlsplit

from aiohttp import web

from twinbus.broker.access import is_local
from twinbus.errors import SyphonError
from twinbus.namespace.address import is_loopback

CLIENTS_MAX: Final = 32
"""Clients served at once: a few scrapers and a supervisor. More are closed at once."""

CONNECTION_S: Final = 10.0
"""Time for a client to send its request and to take the answer."""


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where to listen."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the address of HOST:PORT, or of PORT on loopback; ValueError for anything else."""
        given = f"localhost:{text}" if text.isascii() and text.isdigit() else text
        place = urlsplit(f"//{given}")
        if not place.hostname or place.port is None or place.netloc != given or "@" in given:
            raise ValueError("an address is HOST:PORT, or PORT on this machine")
        return cls("127.0.0.1" if place.hostname == "localhost" else place.hostname, place.port)

    @property
    def is_local(self) -> bool:
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Page = Callable[[bool], web.Response]
"""Makes the answer for one path; the argument says whether the client may read names."""


class HttpPort:
    """Serves a few pages from `start` to `close`."""

    def __init__(self, address: HttpAddress, token: str | None, pages: Mapping[str, Page]) -> None:
        """Names are for clients with the token; without one, for clients on this machine."""
        self.address = address
        """The address; after the start with the port that was chosen for port 0."""
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._pages = pages
        self._listener: asyncio.Server | None = None
        self._clients: set[asyncio.Transport] = set()

    async def start(self) -> None:
        """Listen; SyphonError of one line if the address cannot be used."""
        loop, host = asyncio.get_running_loop(), self.address.host
        connection = partial(_Connection, self._clients, web.Server(self._respond))
        try:
            self._listener = await loop.create_server(connection, host, self.address.port)
        except OSError as error:
            raise SyphonError(
                f"cannot listen on {self.address} for metrics: {error.strerror or error};"
                " give a free address with --metrics HOST:PORT"
            ) from error
        self.address = HttpAddress(host, self._listener.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Close the port and every connection. Idempotent."""
        if self._listener is not None:
            self._listener.close()
        for client in list(self._clients):
            client.abort()

    async def _respond(self, request: web.BaseRequest) -> web.Response:
        answer = self._answer(request)
        answer.headers["Cache-Control"] = "no-store"
        if answer.status == web.HTTPUnauthorized.status_code:
            answer.headers["WWW-Authenticate"] = "Bearer"
        answer.force_close()
        return answer

    def _answer(self, request: web.BaseRequest) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="only GET and HEAD\n")
        # A page of another site could reach this port by a name that leads to 127.0.0.1.
        host = request.headers.get("Host", "localhost")
        if self.address.is_local and not is_local(f"//{host}"):
            return web.Response(status=403, text="the host is not a name of this machine\n")
        page = self._pages.get(request.path)
        if page is None:
            return web.Response(status=404, text=f"there is {' and '.join(self._pages)}\n")
        return page(self._may_read_names(request.headers.get("Authorization", "")))

    def _may_read_names(self, given: str) -> bool:
        if self._expected is None:
            return self.address.is_local
        return hmac.compare_digest(self._expected, given.encode(errors="surrogateescape"))


class _Connection(web.RequestHandler):
    """The connection of one client; cut off if there are too many, or after its time."""

    def __init__(self, clients: set[asyncio.Transport], server: web.Server) -> None:
        options: dict[str, Any] = {"access_log": None, "lingering_time": 0}
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._clients = clients
        self._client: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # That of uvloop is no subclass.
        client = cast("asyncio.Transport", transport)
        if len(self._clients) >= CLIENTS_MAX:
            client.abort()
            return
        self._client = client
        self._clients.add(client)
        super().connection_made(client)
        self._timer = asyncio.get_running_loop().call_later(CONNECTION_S, client.abort)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if status == web.HTTPBadRequest.status_code:
            # Not logged: clients that do not speak HTTP must not fill the log of a syphon.
            return web.Response(status=status, text=message)
        return super().handle_error(request, status, exc, message)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._client is not None:
            self._clients.discard(self._client)
        if self._timer is not None:
            # It would hold the transport: a client that connects often would fill the memory.
            self._timer.cancel()
        super().connection_lost(exc)
