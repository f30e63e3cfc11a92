"""A gateway with its port: a pair of namespaces behind one connection string (docs/gateway.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.broker.http import HttpHost
from twinbus.exposition import text_of
from twinbus.gateway.administration import gateway_application
from twinbus.gateway.pending import PENDING_BYTES_MAX
from twinbus.gateway.server import GatewayServer
from twinbus.namespace.access import endpoint_of
from twinbus.pair import call_program, client_of

if TYPE_CHECKING:
    from twinbus.broker.host import NamespaceAt
    from twinbus.broker.listener import Listener
    from twinbus.broker.port_access import PortAccess
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
        self._pair = pair
        self._access = access
        self._patience_s = patience_s
        self._pending_bytes_max = pending_bytes_max
        self._server: GatewayServer | None = None
        self._listener: Listener | None = None
        self._http: HttpHost | None = None
        self._collector: PairCollector | None = None

    @property
    def pair(self) -> Pair:
        """The pair that this gateway sends for."""
        return self._pair

    @property
    def port(self) -> int:
        """The port in use."""
        assert self._listener is not None
        return self._listener.port

    async def start(self) -> None:
        """Pair the namespaces and open the port; on any failure nothing stays open."""
        try:
            call_program(self._pair, f"gateway {self.name}")
            await self._pair.start()
            self._server = server = GatewayServer(
                self.name,
                client_of(self._pair),
                self._access,
                patience_s=self._patience_s,
                pending_bytes_max=self._pending_bytes_max,
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
            if self._server is not None:
                await self._server.drain(self._patience_s)
                await self._server.close()
            if self._http is not None:
                await self._http.close()
        finally:
            await self._pair.close()

    def _figures(self) -> bytes:
        """The pair's numbers."""
        if self._collector is None:
            self._collector = self._pair.collector()
        return text_of(self._collector.collect())

    def connection_string(self, *, tls: bool = False) -> str:
        """What to give to a Service Bus client, with all rights."""
        return self._access.connection_string(self.port, tls=tls)

    def printable_connection_string(self) -> str:
        """The connection string for a terminal: a key of one's own is a secret."""
        return self._access.printable_connection_string(self.port)
