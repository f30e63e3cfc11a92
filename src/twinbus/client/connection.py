"""An authorized AMQP connection to a namespace: it renews tokens and sends requests.

    connection = NamespaceConnection(endpoint, on_event); await connection.open()
    await connection.authorize("orders")
    session = await connection.session_with_room()
    link = session.attach_sender(...); connection.flush()
    ...; await connection.close()

Events of the owner's links go to `on_event`. When the connection is lost, the future `lost` gets
the reason, and no more events follow.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID, uuid4

from twinbus.amqp.connection import Connection
from twinbus.amqp.events import Begun, Closed, DeliveryArrived, Disposed, Ended, Event, Opened
from twinbus.amqp.frames import ProtocolViolation
from twinbus.amqp.session import Session
from twinbus.amqp.transport import ClientTransport, connect
from twinbus.client.administration import described_lock_s
from twinbus.client.request_node import ConnectionLost, RequestNode, RequestRefused
from twinbus.client.twins import is_marked as is_marked_twin
from twinbus.ledger.requests import BilledRequests
from twinbus.namespace.access import Endpoint
from twinbus.namespace.address import bracketed
from twinbus.namespace.namespace import Namespace
from twinbus.namespace.tokens import NamespaceToken
from twinbus.servicebus.conditions import RESOURCE_LIMIT, UNAUTHORIZED
from twinbus.servicebus.failures import FailureMeaning, of_error

log = logging.getLogger("twinbus.client")

T = TypeVar("T")

ANSWER_S: Final = 15.0
"""Time limit of each step: the socket, the open, a token, a request."""

CONNECT_S: Final = 5.0
"""Time limit of one attempt to open a socket, with its TLS. TCP asks after 0, 1, 3, 7 and 15 s: an
attempt that began in a black hole would be silent for 8 s after its end."""

HANDSHAKE_S: Final = 5.0
"""Time limit from the connected socket to the first session: three round trips."""

CLOSE_S: Final = 2.0
"""Time limit of a clean close; nothing depends on it."""

TOKEN_RENEW_AFTER: Final = 0.7
"""Share of a token's life after which it is renewed."""

TOKEN_AGAIN_S: Final = 30.0
"""Pause after a failed renewal; several attempts fit into the rest of a token's life."""

RECEIVE: Final = "receive-by-sequence-number"

NOT_AWAITED: Final = "the caller did not wait for the answer"

_numbers = itertools.count(1)


class Record(Protocol):
    """Records a request that was made: why it failed, and whether it was answered."""

    def __call__(self, error: str | None, *, is_known: bool) -> None: ...


class NamespaceConnection:
    """A connection on whose sessions the owner attaches its links."""

    def __init__(
        self,
        endpoint: Endpoint,
        on_event: Callable[[Event], None],
        *,
        on_deliveries: Callable[[list[DeliveryArrived]], None] | None = None,
        answer_s: float = ANSWER_S,
        requests: BilledRequests | None = None,
        protocol: Callable[..., Connection] = Connection,
    ) -> None:
        """`on_deliveries`, if given, gets the deliveries of one read at once, not `on_event`.

        `requests` records what is billed; None: as a command's. `protocol` makes the connection
        that is inside the transport.
        """
        self.endpoint = endpoint
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.session: Session
        """The first session. An owner of few links needs no other."""
        self._requests = requests or BilledRequests(endpoint.label)
        self._on_event = on_event
        self._on_deliveries = on_deliveries
        self._answer_s = answer_s
        self._connection = protocol(f"twinbus-{next(_numbers)}", sasl=True, hostname=endpoint.host)
        self.transport: ClientTransport | None = None
        self._begun = asyncio.Event()
        self._sessions: list[Session] = []
        self._beginning = asyncio.Lock()
        self._nodes: dict[str, RequestNode] = {}
        self._opening = asyncio.Lock()
        self._authorized: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._renewals: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Connect and begin a session; ConnectionLost says why that failed."""
        try:
            async with asyncio.timeout(self._answer_s):
                tls = self.endpoint.certificates if self.endpoint.tls else None
                if self.endpoint.tls and tls is None:
                    tls = await asyncio.to_thread(ssl.create_default_context)
                self.transport = await self._connect(tls)
                async with asyncio.timeout(HANDSHAKE_S):
                    await self._unless_lost(self._begun.wait())
        except (OSError, TimeoutError, UnicodeError) as error:
            # UnicodeError: an invalid host name, such as contoso..example.
            text = f"{self.endpoint.label} cannot be reached: {str(error) or 'no answer'}"
            self._lose(text)
            raise ConnectionLost(text) from error

    async def _connect(self, tls: ssl.SSLContext | None) -> ClientTransport:
        """Open the socket or the WebSocket, as the route says."""
        on_event, on_deliveries = self._on_transport_event, self._on_deliveries_read
        route = self.endpoint.route
        if not route.websocket:
            async with asyncio.timeout(CONNECT_S):
                return await connect(
                    self._connection,
                    *self.endpoint.amqp,
                    on_event,
                    tls=tls,
                    on_deliveries=on_deliveries,
                )
        # Imported late: aiohttp takes a moment to load, and most connections need no WebSocket.
        from twinbus.amqp.websocket_client import connect_websocket

        host, port, _ = self.endpoint.administration
        return await connect_websocket(
            self._connection,
            bracketed(host),
            port,
            on_event,
            tls=tls,
            proxy=None if route.proxy is None else route.proxy.url,
            proxy_headers=None if route.proxy is None else route.proxy.headers,
            on_deliveries=on_deliveries,
        )

    async def session_with_room(self, links: int = 1) -> Session:
        """Return a session that takes `links` more links; begin one if none does.

        The peer limits the links of a session (handle-max; Azure: 255). Attach before the next
        `await`: another task may take the room.
        """
        async with self._beginning:
            for session in self._sessions:
                if session.free_handles >= links:
                    return session
            session = await self._begin()
            self._sessions.append(session)
            return session

    async def begin_session(self) -> Session:
        """Begin a session for links of one owner: no other link is put on it."""
        async with self._beginning:
            return await self._begin()

    async def _begin(self) -> Session:
        if self.lost.done():
            raise ConnectionLost(self.lost.result())
        self._begun.clear()
        try:
            session = self._connection.begin()
            self.flush()
            async with asyncio.timeout(self._answer_s):
                await self._unless_lost(self._begun.wait())
        except ProtocolViolation as error:
            raise RequestRefused(f"{self.endpoint.label}: {error}", 0, RESOURCE_LIMIT) from error
        except TimeoutError as error:
            text = f"{self.endpoint.label} began no session for {self._answer_s:g} s"
            raise ConnectionLost(text) from error
        return session

    async def authorize(self, path: str) -> bool:
        """Put a token for links to `path`, and renew it before it expires.

        Return whether a token was put: a path that is authorized needs no other.
        """
        if path in self._authorized:
            return False
        await self._put_token(path)
        self._authorized.add(path)
        return True

    def forget_token(self, path: str) -> None:
        """Stop renewing a token: the namespace refused it, or no link needs it."""
        self._authorized.discard(path)
        if (timer := self._timers.pop(path, None)) is not None:
            timer.cancel()

    async def request(
        self,
        path: str,
        operation: str,
        body: dict[str, Any],
        *,
        link_name: str | None = None,
        record: Record | None = None,
    ) -> dict[str, Any]:
        """Send a request to the `$management` node of an entity; return the answer's body.

        `link_name` is the link that holds the session lock in question. `record` records the
        request instead of this connection.
        """
        await self.authorize(path)
        headers = {"operation": f"com.microsoft:{operation}", "type": "entity-mgmt"}
        if link_name is not None:
            headers["associated-link-name"] = link_name
        made = record or partial(self._requests.made, path, operation)
        sent: list[str] = []
        try:
            answer = await self._request(f"{path}/$management", headers, body, sent)
        except RequestRefused as refusal:
            made(refusal.condition or f"status {refusal.status}", is_known=True)
            raise
        except ConnectionLost as error:
            made(str(error), is_known=False)
            raise
        except asyncio.CancelledError:
            if sent:  # The caller waits no more, and the request may be carried out.
                made(NOT_AWAITED, is_known=False)
            raise
        if operation != RECEIVE or not answer.get("messages"):
            # Messages that are received have records of their own.
            made(None, is_known=True)
        return answer

    @property
    def flows(self) -> int:
        """How many FLOW frames came on the first session."""
        return self.session.flows

    def echo(self) -> None:
        """Ask the peer for a FLOW, as a sign of life; it is not billed."""
        self.session.write_flow(echo=True)
        self.flush()

    def flush(self) -> None:
        if self.transport is not None:
            self.transport.flush()

    def drop(self, reason: str) -> None:
        """Abort the connection: it does not answer."""
        self._lose(reason)
        if self.transport is not None:
            self.transport.abort()

    async def close(self) -> None:
        self._lose("it was closed here")
        for renewal in list(self._renewals):
            renewal.cancel()
        if self.transport is not None:
            await self.transport.close(CLOSE_S)

    async def _put_token(self, path: str) -> None:
        token = await self._token(path)
        headers = {
            "operation": "put-token",
            "type": token.kind,
            "name": self.endpoint.audience(path),
        }
        await self._request("$cbs", headers, token.text)
        life_s = max(1.0, (token.expires_at_s - time.time()) * TOKEN_RENEW_AFTER)
        self._renew_in(path, life_s)

    async def _token(self, path: str) -> NamespaceToken:
        """Get a token from the credential; raise RequestRefused if it gives none."""
        try:
            async with asyncio.timeout(self._answer_s):
                return await self.endpoint.token(path, time.time())
        except Exception as error:
            # A credential may raise anything: the relay holds the messages and tries again.
            text = str(error).strip() or f"no answer for {self._answer_s:g} s"
            raise RequestRefused(
                f"{self.endpoint.tokens.who} gives no token: {text.splitlines()[0]}",
                401,
                UNAUTHORIZED,
                # As for a pair: a token service that cannot be reached is part of the outage.
                FailureMeaning.UNREACHABLE if of_error(error).counts else None,
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
            # The links end with the old token, and the next attach puts a new one. Another renewal
            # may succeed before that.
            log.warning(
                "%s: renewing the token for %s failed: %s", self.endpoint.label, path, error
            )
            self._authorized.discard(path)
            self._renew_in(path, TOKEN_AGAIN_S)

    async def _request(
        self, address: str, headers: dict[str, Any], body: object, sent: list[str] | None = None
    ) -> dict[str, Any]:
        """Send a request and return the answer's body; `sent` gets the address once it is sent."""
        try:
            async with asyncio.timeout(self._answer_s):
                node = await self._node(address)
                await node.wait_for_credit()
                answer = node.send(headers, body)
                self.flush()
                if sent is not None:
                    sent.append(address)
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
                session = await self.session_with_room(links=2)
                node = self._nodes[address] = RequestNode(session, address)
                self.flush()
            await asyncio.shield(node.ready)
            return node

    def _on_deliveries_read(self, run: list[DeliveryArrived]) -> None:
        """Hand deliveries to the owner together, unless one of them answers a request."""
        links = {event.link for event in run}
        if self._on_deliveries is None or any(
            isinstance(link.owner, RequestNode) for link in links
        ):
            for event in run:
                self._on_transport_event(event)
        else:
            self._on_deliveries(run)

    def _on_transport_event(self, event: Event) -> None:
        # Most events are settlements and deliveries to the owner: check for them first.
        if isinstance(event, Disposed):
            self._on_event(event)
            return
        if isinstance(event, DeliveryArrived) and not isinstance(event.link.owner, RequestNode):
            self._on_event(event)
            return
        match event:
            case Opened():
                self.session = self._connection.begin()
                self._sessions.append(self.session)
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
        self._on_event = lambda _: None
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


def _since_boot() -> float:
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def _administration_client(namespace: Namespace) -> Any:
    # Imported late: it loads the SDK's client and its HTTP stack, and a syphon needs neither.
    from twinbus.namespace.administration_client import administration_client

    return administration_client(namespace)


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """What a program takes from its machine: clocks, chance, ids, and connections to namespaces.

    The real machine, unless a field says otherwise. Parts of the product take an Environment
    instead of calling these themselves, so that a simulation runs the same code with its own.
    """

    monotonic: Callable[[], float] = time.monotonic
    since_boot: Callable[[], float] = _since_boot
    """A clock that runs on while the machine is suspended, if it has one: a lock ends by the clock
    of the service, which is not suspended."""
    wall_ns: Callable[[], int] = time.time_ns
    """Nanoseconds since 1970."""
    chance: Callable[[], float] = random.random
    """A number from 0 to 1."""
    choose: Callable[[Sequence[str]], str] = random.choice
    new_id: Callable[[], UUID] = uuid4
    connect: Callable[..., NamespaceConnection] = NamespaceConnection
    lock_duration_s: Callable[[Endpoint, str, BilledRequests], Awaitable[float | None]] = (
        described_lock_s
    )
    """Reads the lock duration of a queue; None: it cannot be read."""
    is_marked: Callable[[Endpoint, str, str, BilledRequests], Awaitable[bool | None]] = (
        is_marked_twin
    )
    """Reads whether an entity is marked as the twin for a label; None: it may not be read."""
    administer: Callable[[Namespace], Any] = _administration_client
    """Returns an administration client of the SDK, to be entered and left."""

    def wall_ms(self) -> int:
        return self.wall_ns() // 1_000_000


MACHINE: Final = Environment()
