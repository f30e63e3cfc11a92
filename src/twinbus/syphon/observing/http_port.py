"""A small HTTP port for `/metrics` and `/health`, on the event loop of the syphon.

It answers GET and HEAD, one request for each connection. The number of clients, the size of a
request and its time are bounded, so that no client can harm the syphon.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import urlsplit

from twinbus.errors import SyphonError
from twinbus.namespace.address import is_loopback

CLIENTS_MAX: Final = 32
"""Clients served at once: a few scrapers and a supervisor. More are closed at once."""

HEAD_BYTES_MAX: Final = 8 * 1024
REQUEST_S: Final = 5.0
"""Time for a client to send its request, and again to take the answer."""

REASONS: Final = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
    405: "Method Not Allowed", 503: "Service Unavailable",
}  # fmt: skip


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


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    body: str
    content_type: str = "text/plain; charset=utf-8"


Page = Callable[[bool], HttpAnswer]
"""Makes the answer for one path; the argument says whether the client may read names."""


class HttpPort:
    """Serves a few pages from `start` to `close`."""

    def __init__(self, address: HttpAddress, token: str | None, pages: Mapping[str, Page]) -> None:
        """Names are for clients with the token; without one, for clients on this machine."""
        self.address = address
        """The address; after the start with the port that was chosen for port 0."""
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen; SyphonError of one line if the address cannot be used."""
        try:
            self._server = await asyncio.start_server(
                self._accept, self.address.host, self.address.port, limit=HEAD_BYTES_MAX
            )
        except OSError as error:
            raise SyphonError(
                f"cannot listen on {self.address} for metrics: {error.strerror or error};"
                " give a free address with --metrics HOST:PORT"
            ) from error
        port: int = self._server.sockets[0].getsockname()[1]
        self.address = HttpAddress(self.address.host, port)

    async def close(self) -> None:
        """Close the port and every connection. Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for client in self._clients:
            client.cancel()
        if self._clients:
            await asyncio.wait(set(self._clients))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._clients) >= CLIENTS_MAX:
                return
            self._clients.add(task)
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
            writer.write(self._respond(head.decode("latin-1")))
            async with asyncio.timeout(REQUEST_S):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # The client is gone, slow, or sends no request.
        except asyncio.CancelledError:
            pass  # Only `close` cancels, and it waits for this to end.
        finally:
            writer.transport.abort()
            self._clients.discard(task)

    def _respond(self, head: str) -> bytes:
        request, *lines = head.split("\r\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, colon, value in (line.partition(":") for line in lines)
            if colon
        }
        method, _, rest = request.partition(" ")
        answer = self._answer(method, rest.partition(" ")[0], headers)
        body = answer.body.encode()
        more = "WWW-Authenticate: Bearer\r\n" if answer.status == 401 else ""
        start = (
            f"HTTP/1.1 {answer.status} {REASONS[answer.status]}\r\n"
            f"Content-Type: {answer.content_type}\r\nContent-Length: {len(body)}\r\n"
            f"Cache-Control: no-store\r\nConnection: close\r\n{more}\r\n"
        )
        return start.encode("latin-1") + (b"" if method == "HEAD" else body)

    def _answer(self, method: str, target: str, headers: Mapping[str, str]) -> HttpAnswer:
        page = self._pages.get(target.partition("?")[0])
        if method not in ("GET", "HEAD"):
            return HttpAnswer(405, "only GET and HEAD\n")
        # A page of another site could reach this port by a name that leads to 127.0.0.1.
        if self.address.is_local and not _is_local_name(headers.get("host", "localhost")):
            return HttpAnswer(403, "the host is not a name of this machine\n")
        if page is None:
            return HttpAnswer(404, f"there is {' and '.join(self._pages)}\n")
        return page(self._may_read_names(headers))

    def _may_read_names(self, headers: Mapping[str, str]) -> bool:
        if self._expected is None:
            return self.address.is_local
        given = headers.get("authorization", "").encode("latin-1")
        return hmac.compare_digest(self._expected, given)


def _is_local_name(host: str) -> bool:
    with contextlib.suppress(ValueError):
        name = urlsplit(f"//{host}").hostname or ""
        return is_loopback(name) or name.endswith(".localhost")
    return False
