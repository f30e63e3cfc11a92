"""A fault proxy with its port: one namespace, the faults in force, and `/$faults` to steer them.

The port speaks AMQP, plain and over TLS, on loopback only. AMQP over WebSocket and administration
are refused: they would pass by the faults.
"""

from __future__ import annotations

import random
import secrets
import ssl
import time
from dataclasses import replace
from email.utils import formatdate
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from twinbus.amqp.budgets import BudgetExceeded
from twinbus.broker.access import ConnectionLimits
from twinbus.broker.admin.api import respond_faults, verified
from twinbus.broker.faults import Fault, FaultPlan
from twinbus.broker.http import EVERY_METHOD, HttpHost, admin_request, read_body, room_for_body
from twinbus.broker.port_access import PortAccess
from twinbus.broker.sas import AccessPolicy, Grant
from twinbus.errors import BrokerStartError
from twinbus.namespace.address import (
    PLAIN_PORT,
    TLS_PORT,
    ConnectionString,
    host_and_port,
    is_loopback,
)
from twinbus.proxy.connection import RelayedConnection, Upstream

if TYPE_CHECKING:
    import asyncio

    from twinbus.broker.listener import Listener

STEERING_KEY_BYTES: Final = 24

CONNECTIONS_MAX: Final = 1_000
"""Connections in all; each has a second one to the service, and some frames held back."""

NOT_RELAYED: Final = (
    "A fault proxy relays AMQP over TCP only. Connect without WebSockets; send administration"
    " requests to the namespace itself.\n"
)


def upstream_of(text: str) -> Upstream:
    """Read sb://HOST[:PORT] or HOST[:PORT]; BrokerStartError if it names no namespace.

    A namespace on this machine is reached without TLS, every other one with it.
    """
    endpoint = text.strip()
    if ";" in endpoint or "=" in endpoint:
        # Never repeated: it may hold a key.
        raise BrokerStartError(
            "--upstream is an address, sb://HOST or sb://HOST:PORT; leave out key and options: the"
            " clients present their own tokens"
        )
    scheme, slashes, _ = endpoint.partition("://")
    if slashes and scheme.lower() != "sb":
        raise BrokerStartError(f"--upstream is sb://HOST or sb://HOST:PORT; got {text!r:.100}")
    try:
        host, _ = host_and_port(endpoint, TLS_PORT)
        is_local = is_loopback(host)
        host, port = host_and_port(endpoint, PLAIN_PORT if is_local else TLS_PORT)
    except ValueError as error:
        raise BrokerStartError(f"--upstream: {error}") from None
    return Upstream(host, port, None if is_local else ssl.create_default_context())


class FaultProxy:
    """Relays one port to one namespace, until it is closed."""

    def __init__(
        self, upstream: Upstream, *, port: int = 0, tls: ssl.SSLContext | None = None, seed: int = 0
    ) -> None:
        """`tls` is what the port shows; None: it speaks plain text only."""
        self.name = "proxy"
        self.upstream = upstream
        # Faults that strike by chance must strike the same way again, given the seed.
        self.faults = FaultPlan(random.Random(seed).random, proxy=True)  # noqa: S311
        self.connections: dict[RelayedConnection, None] = {}
        """In the order in which they came: a seed must strike the same ones."""
        self._key = secrets.token_urlsafe(STEERING_KEY_BYTES)
        """Of this run: who can read it steers the faults, and nothing else."""
        limits = ConnectionLimits(connections=CONNECTIONS_MAX)
        self._access = PortAccess(key=self._key, tls=tls, limits=limits)
        self.admission = self._access.admission
        self.policy = AccessPolicy(self._access.rules)
        self._wanted_port = port
        self._listener: Listener | None = None
        self._http: HttpHost | None = None

    @property
    def port(self) -> int:
        assert self._listener is not None
        return self._listener.port

    @property
    def steering_string(self) -> str:
        """What `twinbus faults` takes as the namespace; clients do not need it."""
        return self._access.connection_string(self.port)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def start(self) -> None:
        """Open the port; ListenError if that fails."""
        self._http = HttpHost(self._application(), self.admission, local_only=True)
        self._listener = self._access.listener(self._wanted_port, self._client, self._http)
        await self._listener.start()

    async def close(self) -> None:
        """Close the port and cut every connection."""
        if self._listener is not None:
            await self._listener.close()
        for connection in list(self.connections):
            await connection.close()
        if self._http is not None:
            await self._http.close()

    async def cut_off(self) -> None:
        """Refuse and cut every connection, as the end of the namespace would."""
        assert self._listener is not None
        await self._listener.suspend()
        for connection in list(self.connections):
            connection.abort()

    async def serve_again(self) -> None:
        assert self._listener is not None
        await self._listener.start()

    def add_fault(self, fault: Fault) -> int:
        """Add a fault, in force from now on; returns its number."""
        number = self.faults.add(fault)
        self.strike()
        return number

    def strike(self) -> None:
        """Let faults that were added strike the links that are open."""
        for connection in list(self.connections):
            connection.strike_open_links()

    def _client(self) -> asyncio.Protocol:
        return RelayedConnection(self).client

    def _application(self) -> Starlette:
        async def faults(request: Request) -> Response:
            asked = admin_request(request)
            token = verified(self.policy, asked, self.now_ms() / 1_000)
            if isinstance(token, Grant):
                try:
                    with room_for_body(self.admission, self.name, token) as room:
                        body = await read_body(request, room)
                except ClientDisconnect:
                    return Response(status_code=400)
                except BudgetExceeded as error:
                    return PlainTextResponse(f"{error}\n", 503)
                if body is None:
                    return PlainTextResponse("the request body is too long\n", 413)
                asked = replace(asked, body=body)
            document = await respond_faults(self, asked, token)
            if request.method == "POST":
                self.strike()
            date = {"Date": formatdate(usegmt=True)}
            return Response(document.body, document.status, date, document.content_type)

        async def refused(_: Request) -> Response:
            return PlainTextResponse(NOT_RELAYED, 501)

        return Starlette(
            routes=[
                Route("/$faults", faults, methods=EVERY_METHOD),
                Route("/$faults/{fault_id}", faults, methods=EVERY_METHOD),
                Route("/{path:path}", refused, methods=EVERY_METHOD),
            ]
        )


def through(connection_string: str, port: int) -> str:
    """The connection string of a namespace on this machine, led through the proxy's port."""
    parts = ConnectionString.parse(connection_string)
    label = f"/#{parts.name}" if parts.name else ""
    kept = [
        part
        for part in connection_string.strip().strip(";").split(";")
        if not part.lower().startswith("endpoint=")
    ]
    return ";".join([f"Endpoint=sb://localhost:{port}{label}", *kept]) + ";"
