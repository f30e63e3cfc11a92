"""A gateway with its port: a pair of namespaces behind one connection string (docs/gateway.md).

HTTP on the port: health, metrics, AMQP over WebSocket, and administration of the primary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute

from twinbus.broker import websocket as amqp_over_websocket
from twinbus.broker.http import EVERY_METHOD, HttpHost, MetricsAccess, OriginForm, Scrapes
from twinbus.exposition import CONTENT_TYPE, text_of
from twinbus.gateway.administration import AT_ONCE_MAX, RequestThreads, administer
from twinbus.gateway.sending import PENDING_BYTES_MAX
from twinbus.gateway.server import GatewayServer
from twinbus.namespace.access import endpoint_of
from twinbus.pair import call_program, client_of, paired_receivers_of

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
                server.turns,
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


def gateway_application(
    server: GatewayServer, primary: Endpoint, access: MetricsAccess, figures: Callable[[], bytes]
) -> Starlette:
    """The application of the gateway's port; `figures` are the pair's numbers for Prometheus."""
    scrapes = Scrapes(figures)
    threads = RequestThreads(AT_ONCE_MAX, "twinbus-administration")

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok", "namespace": server.name, "gateway": server.state()})

    async def metrics(request: Request) -> Response:
        refusal = access.refusal(request.headers)
        if refusal is not None:
            return refusal
        return Response(scrapes(), headers={"Content-Type": CONTENT_TYPE})

    async def administration(request: Request) -> Response:
        return await administer(server, primary, threads, request)

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
