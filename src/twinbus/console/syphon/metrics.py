"""Metrics and health of `twinbus syphon run`, at the address of `--metrics`.

The port answers GET and HEAD, one request for each connection. The number of clients and the time
of a connection are bounded here, the size of a head by aiohttp, so that no client can harm the
syphon.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, cast
from urllib.parse import urlsplit

from aiohttp import web

from twinbus.broker.access import is_local
from twinbus.client.peeking import EVERY_MIN_S, BacklogMeter
from twinbus.console.options import secret_in
from twinbus.console.output import WrongUse
from twinbus.console.syphon.request import QueueSearch
from twinbus.console.times import seconds_of
from twinbus.errors import SyphonError
from twinbus.exposition import CONTENT_TYPE, GAUGE, Families, Sample, metrics_of, text_of
from twinbus.ledger import LedgerWriter, NullLedger
from twinbus.namespace.access import Endpoint
from twinbus.namespace.address import is_loopback
from twinbus.pairing.observing.metrics import (
    BACKLOG_FAMILIES,
    depth_samples,
    syphon_samples,
    twin_samples,
)
from twinbus.syphon.core.health import StallDetector, SyphonHealth
from twinbus.syphon.host import SyphonGroup

CLIENTS_MAX: Final = 32
"""Clients served at once: a few scrapers and a supervisor. More are closed at once."""

CONNECTION_S: Final = 10.0
"""Time for a client to send its request and to take the answer."""


@dataclass(frozen=True, slots=True)
class HttpAddress:
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

    def __init__(
        self,
        address: HttpAddress,
        token: str | None,
        pages: Mapping[str, Page],
        connection_s: float = CONNECTION_S,
    ) -> None:
        """Names are for clients with the token; without one, for clients on this machine."""
        self.address = address
        """The address; after the start with the port that was chosen for port 0."""
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._pages = pages
        self._listener: asyncio.Server | None = None
        self._clients: set[asyncio.Transport] = set()
        self._connection_s = connection_s

    async def start(self) -> None:
        """Listen; SyphonError of one line if the address cannot be used."""
        loop, host = asyncio.get_running_loop(), self.address.host
        server = web.Server(self._respond)
        connection = partial(_Connection, self._clients, server, self._connection_s)
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

    def __init__(self, clients: set[asyncio.Transport], server: web.Server, limit_s: float) -> None:
        options: dict[str, Any] = {"access_log": None, "lingering_time": 0}
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._clients = clients
        self._limit_s = limit_s
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
        self._timer = asyncio.get_running_loop().call_later(self._limit_s, client.abort)

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


FAMILIES: Final[Families] = {
    **BACKLOG_FAMILIES,
    "twinbus_syphon_paused": (GAUGE, "1 while an operator has paused the syphon"),
    "twinbus_syphon_blocked": (
        GAUGE, "1 while a queue is not served, by primary, secondary, lease or pump", "queue", "by",
    ),
    "twinbus_syphon_held_destinations": (
        GAUGE, "Entities of the primary that do not accept messages of a queue now", "queue",
    ),
    "twinbus_syphon_healthy": (GAUGE, "0 while /health asks for a restart"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MetricsRequest:
    address: HttpAddress
    token: str | None
    backlog_every_s: float | None
    """Time between two measurements of the backlog; None: it is not measured."""

    @classmethod
    def of(cls, address: str | None, token_file: Path | None, every: str | None) -> Self | None:
        """Return the request, None without an address; WrongUse if an option is not valid."""
        if address is None:
            if token_file is not None or every is not None:
                raise WrongUse("--metrics-token-file and --backlog-every need --metrics")
            return None
        try:
            place = HttpAddress.parse(address)
        except ValueError as error:
            raise WrongUse(f"--metrics: {error}; got {address!r:.60}") from None
        every_s = None
        if every is not None:
            every_s = seconds_of(every, "--backlog-every", least=EVERY_MIN_S)
        return cls(place, secret_in(token_file), every_s)


class SyphonMetrics:
    """The port of one syphon program, from `start` to `close`."""

    def __init__(
        self,
        request: MetricsRequest,
        pair: str,
        group: SyphonGroup,
        search: QueueSearch,
        secondary: Endpoint,
        ledger: LedgerWriter | NullLedger,
    ) -> None:
        self._pair = pair
        self._group = group
        self._search = search
        self._ledger = ledger
        self._watch = StallDetector(group.rate.governor.most_per_s)
        self._refusal = (
            (403, "metrics are closed beyond loopback; give --metrics-token-file\n")
            if request.token is None
            else (401, "metrics need the bearer token of --metrics-token-file\n")
        )
        pages = {"/metrics": self._metrics, "/health": self._health}
        self._port = HttpPort(request.address, request.token, pages)
        self._meter: BacklogMeter | None = None
        if request.backlog_every_s is not None:
            self._meter = BacklogMeter(secondary, search.counts, request.backlog_every_s)

    async def start(self) -> str:
        """Listen, and return the URL; SyphonError of one line if the address cannot be used."""
        await self._port.start()
        if self._meter is not None:
            self._meter.start(asyncio.get_running_loop())
        return f"http://{self._port.address}"

    async def close(self) -> None:
        if self._meter is not None:
            await self._meter.close()
        await self._port.close()

    def observe(self) -> None:
        """Follow the pumps; called every second or so."""
        self._watch.observe(self._group.status(), time.monotonic())

    def _metrics(self, may_read_names: bool) -> web.Response:
        if not may_read_names:
            status, text = self._refusal
            return web.Response(status=status, text=text)
        metrics = metrics_of(FAMILIES, "pair", [(self._pair, self._samples())])
        return web.Response(body=text_of(metrics), headers={"Content-Type": CONTENT_TYPE})

    def _samples(self) -> Iterator[Sample]:
        queues = self._group.status()
        yield "twinbus_syphon_paused", self._group.is_paused
        yield "twinbus_syphon_healthy", not self._judge().failures
        yield "twinbus_ledger_unrecorded", self._ledger.unrecorded
        yield from syphon_samples(queues)
        yield from depth_samples(self._meter)
        yield from twin_samples(self._search.twins)
        for queue, state in queues.items():
            yield "twinbus_syphon_held_destinations", len(state.held), queue
            for by in state.problems:
                yield "twinbus_syphon_blocked", 1, queue, by

    def _health(self, may_read_names: bool) -> web.Response:
        """Everybody may ask for the state; the reasons have names of queues and hosts."""
        health = self._judge()
        document: dict[str, Any] = {"status": health.word}
        if may_read_names:
            document["pair"] = self._pair
            document["failures"] = health.failures
            document["waits_for"] = health.waits_for
        return web.json_response(document, status=503 if health.failures else 200)

    def _judge(self) -> SyphonHealth:
        self.observe()
        return self._watch.health(self._group.status(), time.monotonic(), self._search.without_pump)
