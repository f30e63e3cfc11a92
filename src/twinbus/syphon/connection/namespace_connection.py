"""One signed-in AMQP connection to a namespace: tokens put and renewed, requests answered.

    line = Line(endpoint, on_event); await line.open()
    await line.authorize("orders"); link = line.session.attach_sender(...); line.flush()
    ...; await line.close()

What happens to links of the owner goes to `on_event`. When the connection is lost, for whatever
reason, `lost` gets the reason and nothing else comes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from twinbus.amqp.connection import Connection
from twinbus.amqp.events import Begun, Closed, DeliveryArrived, Disposed, Ended, Event, Opened
from twinbus.amqp.sasl import ClientSasl
from twinbus.amqp.session import Session
from twinbus.amqp.transport import ClientTransport, connect
from twinbus.namespace.endpoint import Endpoint
from twinbus.namespace.tokens import NamespaceToken
from twinbus.syphon.connection.request_node import ConnectionLost, RequestNode, RequestRefused

__all__ = ["ANSWER_S", "ConnectionLost", "NamespaceConnection", "RequestRefused"]

log = logging.getLogger("twinbus.syphon")

T = TypeVar("T")

ANSWER_S: Final = 15.0
"""Bound of each step: the socket, the open, a token, a request."""

CLOSE_S: Final = 2.0
"""How long a goodbye may take; nothing depends on its being heard."""

TOKEN_RENEW_AFTER: Final = 0.7
"""Of a token's life."""

TOKEN_AGAIN_S: Final = 30.0
"""After a token could not be renewed: some tries fit into the rest of an hour's token."""

UNAUTHORIZED: Final = "amqp:unauthorized-access"

_numbers = itertools.count(1)


class NamespaceConnection:
    """A connection with one session, on which the owner attaches its links."""

    def __init__(
        self,
        endpoint: Endpoint,
        on_event: Callable[[Event], None],
        *,
        on_deliveries: Callable[[list[DeliveryArrived]], None] | None = None,
        answer_s: float = ANSWER_S,
        token_life_share: float = TOKEN_RENEW_AFTER,
    ) -> None:
        """`on_deliveries`, if given, gets what one read brought at once, in place of `on_event`."""
        self.endpoint = endpoint
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.session: Session
        self._on_event = on_event
        self._on_deliveries = on_deliveries
        self._answer_s = answer_s
        self._token_life_share = token_life_share
        self._connection = Connection(
            f"twinbus-syphon-{next(_numbers)}", sasl=ClientSasl(), hostname=endpoint.host
        )
        self._transport: ClientTransport | None = None
        self._begun = asyncio.Event()
        self._nodes: dict[str, RequestNode] = {}
        self._opening = asyncio.Lock()
        self._authorized: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._renewals: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Connect and begin; LineLost says what stood in the way."""
        host, port = self.endpoint.host, self.endpoint.port
        try:
            async with asyncio.timeout(self._answer_s):
                tls = self.endpoint.certificates if self.endpoint.tls else None
                if self.endpoint.tls and tls is None:
                    tls = await asyncio.to_thread(ssl.create_default_context)
                self._transport = await connect(
                    self._connection,
                    host,
                    port,
                    self._on_transport_event,
                    tls=tls,
                    on_deliveries=self._on_deliveries_read,
                )
                await self._unless_lost(self._begun.wait())
        except (OSError, TimeoutError, UnicodeError) as error:
            # UnicodeError: no name of a host, such as contoso..example.
            text = f"{self.endpoint.label} cannot be reached: {str(error) or 'no answer'}"
            self._lose(text)
            raise ConnectionLost(text) from error

    async def authorize(self, path: str) -> bool:
        """Have links to `path` allowed: put a token for it, and again before it expires.

        Whether the namespace was asked: a token that it has already needs no other.
        """
        if path in self._authorized:
            return False
        await self._put_token(path)
        self._authorized.add(path)
        return True

    def forget_token(self, path: str) -> None:
        """Have the next `authorize` put a new token: what the last one was worth is not enough."""
        self._authorized.discard(path)

    async def request(
        self, path: str, operation: str, body: dict[str, Any], *, link_name: str | None = None
    ) -> dict[str, Any]:
        """Ask the `$management` node of an entity; the answer's body.

        `link_name` is the link that holds what is asked for: the lock of a session.
        """
        await self.authorize(path)
        headers = {"operation": f"com.microsoft:{operation}", "type": "entity-mgmt"}
        if link_name is not None:
            headers["associated-link-name"] = link_name
        return await self._request(f"{path}/$management", headers, body)

    def flush(self) -> None:
        """Write what the owner did to the session."""
        if self._transport is not None:
            self._transport.flush()

    def drop(self, reason: str) -> None:
        """Cut the connection: it does not answer."""
        self._lose(reason)
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Say goodbye and let the socket go."""
        self._lose("it was closed here")
        for renewal in list(self._renewals):
            renewal.cancel()
        if self._transport is not None:
            await self._transport.close(CLOSE_S)

    async def _put_token(self, path: str) -> None:
        token = await self._token(path)
        headers = {
            "operation": "put-token",
            "type": token.kind,
            "name": self.endpoint.audience(path),
        }
        await self._request("$cbs", headers, token.text)
        life_s = max(1.0, (token.expires_at_s - time.time()) * self._token_life_share)
        self._renew_in(path, life_s)

    async def _token(self, path: str) -> NamespaceToken:
        """A token from wherever they come from; RequestRefused if none is to be had."""
        try:
            async with asyncio.timeout(self._answer_s):
                return await self.endpoint.token(path, time.time())
        except Exception as error:
            # Whatever a credential raises: the relay holds the messages and asks again.
            text = str(error).strip() or f"no answer for {self._answer_s:g} s"
            raise RequestRefused(
                f"{self.endpoint.tokens.who} gives no token: {text.splitlines()[0]}",
                401,
                UNAUTHORIZED,
            ) from error

    def _renew_in(self, path: str, wait_s: float) -> None:
        before = self._timers.get(path)
        if before is not None:
            before.cancel()
        if not self.lost.done():
            loop = asyncio.get_running_loop()
            self._timers[path] = loop.call_later(wait_s, self._renew_token, path)

    def _renew_token(self, path: str) -> None:
        renewal = asyncio.create_task(self._renew(path))
        self._renewals.add(renewal)
        renewal.add_done_callback(self._renewals.discard)

    async def _renew(self, path: str) -> None:
        try:
            await self._put_token(path)
        except (ConnectionLost, RequestRefused) as error:
            # The links end with the old token, and whoever attaches again puts a new one; until
            # then there may be time to get it.
            log.warning("%s: the token for %s: %s", self.endpoint.label, path, error)
            self._authorized.discard(path)
            self._renew_in(path, TOKEN_AGAIN_S)

    async def _request(self, address: str, headers: dict[str, Any], body: object) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._answer_s):
                node = await self._node(address)
                await node.wait_for_credit()
                answer = node.send(headers, body)
                self.flush()
                return await answer
        except TimeoutError as error:
            text = f"{address} of {self.endpoint.label} did not answer for {self._answer_s:g} s"
            raise ConnectionLost(text) from error

    async def _node(self, address: str) -> RequestNode:
        async with self._opening:
            node = self._nodes.get(address)
            if node is None or not node.is_open:
                if self.lost.done():
                    raise ConnectionLost(self.lost.result())
                node = self._nodes[address] = RequestNode(self.session, address)
                self.flush()
            await node.wait_until_ready()
            return node

    def _on_deliveries_read(self, run: list[DeliveryArrived]) -> None:
        """Hand deliveries to the owner together, where none of them answers a request."""
        links = {event.link for event in run}
        if self._on_deliveries is None or any(
            isinstance(link.owner, RequestNode) for link in links
        ):
            for event in run:
                self._on_transport_event(event)
        else:
            self._on_deliveries(run)

    def _on_transport_event(self, event: Event) -> None:
        # Settlements and deliveries to the owner come by the thousand, all else now and then.
        if isinstance(event, Disposed):
            self._on_event(event)
            return
        if isinstance(event, DeliveryArrived) and not isinstance(event.link.owner, RequestNode):
            self._on_event(event)
            return
        match event:
            case Opened():
                self.session = self._connection.begin()
            case Begun():
                self._begun.set()
            case Closed():
                text = event.error.description if event.error else None
                self._lose(text or "the namespace closed the connection")
            case Ended():
                text = event.error.description if event.error else None
                self._lose(text or "the namespace ended the session")
                self._connection.close()
            case _:
                owner = getattr(getattr(event, "link", None), "owner", None)
                if isinstance(owner, RequestNode):
                    owner.handle(event)
                else:
                    self._on_event(event)

    def _lose(self, reason: str) -> None:
        if self.lost.done():
            return
        self.lost.set_result(reason)
        self._on_event = _ignored
        self._on_deliveries = None
        for timer in self._timers.values():
            timer.cancel()
        for node in self._nodes.values():
            node.fail(ConnectionLost(f"{self.endpoint.label}: {reason}"))

    async def _unless_lost(self, awaitable: Awaitable[T]) -> T:
        waiting = asyncio.ensure_future(awaitable)
        both: set[asyncio.Future[Any]] = {waiting, self.lost}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            raise ConnectionLost(self.lost.result())
        finally:
            waiting.cancel()


def _ignored(_: Event) -> None:
    """What is left to say when the line is lost."""
