"""A gateway with its port: a pair of namespaces behind one connection string (docs/gateway.md).

HTTP on the port: health, metrics, AMQP over WebSocket, and administration of the primary. An
administration request needs the right to manage by the gateway's own rules. It then goes to the
primary with the gateway's credential; the client's tokens never leave the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote, urlencode

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute

from twinbus.broker import websocket as amqp_over_websocket
from twinbus.broker.admin.api import (
    SUPPLEMENTARY_HEADERS,
    AdminRequest,
    require_manage,
    require_send,
    verified,
)
from twinbus.broker.admin.atom import ERROR_CONTENT_TYPE, local_name, parse_entry, render_error
from twinbus.broker.http import (
    BODY_BYTES_MAX,
    EVERY_METHOD,
    HttpHost,
    MetricsAccess,
    OriginForm,
    admin_request,
    read_body,
)
from twinbus.broker.refusals import ArgumentInvalid, Refusal
from twinbus.client.administration import NotAnswered, host_header, http_connection, token_for
from twinbus.exposition import CONTENT_TYPE, text_of
from twinbus.gateway.addresses import with_host
from twinbus.gateway.relay import require_plain
from twinbus.gateway.sending import PENDING_BYTES_MAX
from twinbus.gateway.server import GatewayServer
from twinbus.namespace.access import endpoint_of
from twinbus.namespace.address import bracketed
from twinbus.pair import call_program, client_of, paired_receivers_of
from twinbus.servicebus.names import entity_address

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.websockets import WebSocket

    from twinbus.broker.embedded import NamespaceAt
    from twinbus.broker.listener import Listener
    from twinbus.broker.port_access import PortAccess
    from twinbus.namespace.access import Endpoint
    from twinbus.pair import Pair
    from twinbus.pairing.observing.metrics import PairCollector

PATIENCE_S: Final = 55.0
"""How long a send may wait in the gateway: a little less than the 60 s for which the SDKs of all
languages wait for a disposition."""


class GatewayHost:
    """Serves one port for one pair, until it is closed."""

    def __init__(
        self,
        name: NamespaceAt,
        pair: Pair,
        access: PortAccess,
        *,
        patience_s: float = PATIENCE_S,
        pending_bytes_max: int = PENDING_BYTES_MAX,
    ) -> None:
        """The pair is started and closed with the gateway.

        `pending_bytes_max` bounds the messages of all clients that have no answer yet.
        """
        self.name = name.name
        self._port = name.port
        self.pair = pair
        self._access = access
        self._patience_s = patience_s
        self._pending_bytes_max = pending_bytes_max
        self.server: GatewayServer | None = None
        self._listener: Listener | None = None
        self._http: HttpHost | None = None
        self._collector: PairCollector | None = None

    @property
    def port(self) -> int:
        assert self._listener is not None
        return self._listener.port

    async def start(self) -> None:
        """Pair the namespaces and open the port; on any failure nothing stays open."""
        try:
            call_program(self.pair, f"gateway {self.name}")
            await self.pair.start()
            self.server = server = GatewayServer(
                self.name,
                client_of(self.pair),
                self._access,
                patience_s=self._patience_s,
                pending_bytes_max=self._pending_bytes_max,
                receivers=None if not self.pair.options.twins else paired_receivers_of(self.pair),
            )
            await server.start()
            self._http = HttpHost(
                gateway_application(
                    server,
                    endpoint_of(server.client.state.primary),
                    self._access.metrics,
                    self._figures,
                ),
                self._access.admission,
                local_only=self._access.is_key_known,
            )
            self._listener = self._access.listener(self._port, server.peer, self._http)
            await self._listener.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Let what is in flight end, then close the port, the clients and the pair."""
        try:
            if self._listener is not None:
                await self._listener.close()
            if self.server is not None:
                await self.server.drain(self._patience_s)
                await self.server.close()
            if self._http is not None:
                await self._http.close()
        finally:
            await self.pair.close()

    def _figures(self) -> bytes:
        if self._collector is None:
            self._collector = self.pair.collector()
        return text_of(self._collector.collect())

    def connection_string(self, *, tls: bool = False) -> str:
        """What to give to a Service Bus client, with all rights."""
        return self._access.connection_string(self.port, tls=tls)

    def printable_connection_string(self) -> str:
        """The connection string for a terminal: a key of one's own is a secret."""
        return self._access.printable_connection_string(self.port)


ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
ANSWER_S: Final = 60.0
"""Time of one request to the primary."""

AT_ONCE_MAX: Final = 8
"""Requests that the primary has at once; others wait. They have threads of their own: while the
primary hangs, the shared ones must be free for the tokens and certificates of the secondary."""

PASSED_HEADERS: Final = ("content-type", "if-match", "accept")
"""Headers of the client's request that the primary gets, besides path, query and body."""

FORWARDING: Final = frozenset({"ForwardTo", "ForwardDeadLetteredMessagesTo"})
"""Elements that name an entity to which the primary will send."""

BAD_GATEWAY: Final = 502


def gateway_application(
    server: GatewayServer, primary: Endpoint, access: MetricsAccess, figures: Callable[[], bytes]
) -> Starlette:
    """The application of the gateway's port; `figures` are the pair's numbers for Prometheus."""
    threads = RequestThreads(AT_ONCE_MAX, "twinbus-administration")

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok", "namespace": server.name, "gateway": server.state()})

    async def metrics(request: Request) -> Response:
        refusal = access.refusal(request.headers.get("authorization", ""))
        if refusal is not None:
            return refusal
        return Response(figures(), headers={"Content-Type": CONTENT_TYPE})

    async def administration(request: Request) -> Response:
        return await _administer(server, primary, threads, request)

    async def amqp(websocket: WebSocket) -> None:
        await amqp_over_websocket.serve(websocket, server.peer)

    return Starlette(
        routes=[
            Route("/health", health, methods=["GET"]),
            Route("/metrics", metrics, methods=["GET"]),
            WebSocketRoute("/{before:path}$servicebus/websocket", amqp),
            WebSocketRoute("/{before:path}$servicebus/websocket/", amqp),
            Route("/{path:path}", administration, methods=EVERY_METHOD),
        ],
        middleware=[Middleware(OriginForm)],
    )


async def _administer(
    server: GatewayServer, primary: Endpoint, threads: RequestThreads, request: Request
) -> Response:
    now_s = server.now_ms() / 1000
    try:
        asked = admin_request(request)
        # First, so that a stranger's body is not read.
        path = unquote(asked.raw_path).strip("/")
        token = verified(server.policy, asked, now_s)
        grant = require_manage(token, f"{server.name}/{path}", asked)
        require_plain(path)
        body = await read_body(request)
        for destination in _destinations(body or b""):
            require_send(server.policy, server.name, asked, grant, destination, now_s)
        headers = await _headers(primary, asked)
    except ClientDisconnect:
        return Response(status_code=400)
    except Refusal as refusal:
        server.track(refusal)
        return _error(refusal.status, refusal.description)
    except NotAnswered as error:
        return _error(BAD_GATEWAY, str(error))
    if body is None:
        return _error(413, f"the request body is longer than {BODY_BYTES_MAX} bytes")
    try:
        return await threads.run(_forward, primary, asked, headers, body)
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        return _error(BAD_GATEWAY, f"{primary.label} did not answer: {error}")


def _destinations(body: bytes) -> list[str]:
    """The entities that the description in a request forwards to."""
    if not body:
        return []
    found = [one for one in parse_entry(body).iter() if local_name(one) in FORWARDING]
    if any(len(one) for one in found):
        # The primary may read another name out of it than the one whose right is checked.
        raise ArgumentInvalid("an entity to forward to is named by text without elements in it")
    return [path for one in found if (path := entity_address((one.text or "").strip()))]


async def _headers(primary: Endpoint, request: AdminRequest) -> dict[str, str]:
    """The headers for the primary: its own tokens in place of the client's."""
    token = (await token_for(primary, "")).header
    headers = {"Authorization": token, **host_header(primary)}
    headers |= {name: value for name, value in request.headers.items() if name in PASSED_HEADERS}
    for name in SUPPLEMENTARY_HEADERS:
        if name in request.headers:
            headers[name] = token
    return headers


def _forward(
    primary: Endpoint, request: AdminRequest, headers: dict[str, str], body: bytes
) -> Response:
    """Send the request to the primary and return its answer; blocks."""
    connection = http_connection(primary, timeout_s=ANSWER_S)
    try:
        query = f"?{urlencode(request.query)}" if request.query else ""
        here, there = request.headers.get("host", ""), headers.get("Host") or _authority(connection)
        body = with_host(body, here, there)
        connection.request(request.method, request.raw_path + query, body or None, headers)
        answer = connection.getresponse()
        content = answer.read(ANSWER_BYTES_MAX + 1)
        if len(content) > ANSWER_BYTES_MAX:
            return _error(
                BAD_GATEWAY,
                f"{primary.label} answered with more than {ANSWER_BYTES_MAX} bytes; ask for fewer"
                " entities at once ($top)",
            )
        passed = {"Content-Type": answer.headers.get("Content-Type", "application/xml")}
        return Response(with_host(content, there, here), answer.status, passed)
    finally:
        connection.close()


def _authority(connection: http.client.HTTPConnection) -> str:
    """The Host header of a request that has none of its own."""
    is_default = connection.port == connection.default_port
    return bracketed(connection.host) + ("" if is_default else f":{connection.port}")


def _error(status: int, text: str) -> Response:
    return Response(render_error(status, text), status, media_type=ERROR_CONTENT_TYPE)


T = TypeVar("T")


class RequestThreads:
    """Runs blocking work on daemon threads of its own.

    Python waits at its end for the threads of an ordinary pool: a primary that hangs would delay
    the exit of the gateway by the time limit of a request.
    """

    def __init__(self, at_once: int, name: str) -> None:
        self._name = name
        self._free = asyncio.Semaphore(at_once)

    async def run(self, work: Callable[..., T], *given: Any) -> T:
        """What the work returns or raises; it waits while too many others are under way."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[T] = loop.create_future()

        def tell(result: T | None, error: BaseException | None) -> None:
            # Not before the thread is free, even if the client has gone long ago.
            self._free.release()
            if ended.cancelled():
                return
            if error is not None:
                ended.set_exception(error)
            else:
                ended.set_result(result)  # type: ignore[arg-type]

        def perform() -> None:
            result, failure = None, None
            try:
                result = work(*given)
            except BaseException as error:  # noqa: BLE001  # it belongs to the one who waits
                failure = error
            with contextlib.suppress(RuntimeError):  # The loop has ended meanwhile.
                loop.call_soon_threadsafe(tell, result, failure)

        threading.Thread(target=perform, name=self._name, daemon=True).start()
        return await ended
