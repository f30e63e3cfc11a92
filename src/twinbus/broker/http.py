"""HTTP on the broker's port: health, metrics, administration, faults, and AMQP over WebSocket.

A Starlette application hosted connection by connection on uvicorn's HTTP protocol, because the
listener has accepted the connection already and uvicorn's own server would want the port.

The broker counts the connections and sets a deadline for each request: uvicorn limits the pause
between two requests, but not the time that one request takes to arrive.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from email.utils import formatdate
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketClose
from uvicorn.server import ServerState

from twinbus.amqp.budgets import Budget, BudgetExceeded
from twinbus.broker import websocket as amqp_over_websocket
from twinbus.broker.access import Admission, foreign_origin
from twinbus.broker.admin.api import (
    AdminRequest,
    Verified,
    respond,
    respond_clock,
    respond_faults,
    verified,
)
from twinbus.broker.admin.atom import ERROR_CONTENT_TYPE, render_error
from twinbus.broker.admin.entities import Document
from twinbus.broker.budgets import ClientBudgets
from twinbus.broker.http_connection import HttpConnection
from twinbus.broker.links.turns import Turns
from twinbus.broker.sas import Grant
from twinbus.broker.server import BrokerServer
from twinbus.broker.websocket import HELD_BYTES, TURNS, AmqpWebSocket

_log = logging.getLogger(__name__)

BODY_BYTES_MAX = 1024 * 1024
"""A description with all its rules takes a few kilobytes."""

KEEP_ALIVE_S = 75
"""Longer than clients keep an idle connection: they close it, never the broker mid-request."""

WEBSOCKET_PIECE_BYTES_MAX = 1024 * 1024
"""Bytes of a message that came in one read; AMQP goes on piece by piece, without a limit."""

CLOSE_TIMEOUT_S = 2.0
"""How long requests under way may take to finish when the broker stops."""

_POLICY_VIOLATION = 1008
EVERY_METHOD = ["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"]


class HttpHost:
    """Makes a protocol for each HTTP connection of one port, and ends them all on close."""

    def __init__(
        self,
        app: ASGIApp,
        admission: Admission,
        turns: Turns | None = None,
        *,
        local_only: bool = False,
    ) -> None:
        """`local_only`: serve no page of another site, because everybody knows the key.

        `turns` are those of the AMQP clients of the port; None: there are none.
        """
        # Access log and log configuration are process-wide switches of uvicorn. A program that
        # embeds the broker may run uvicorn for itself, so they stay as they are; the protocols'
        # own switch is used instead.
        self._config = uvicorn.Config(
            _LocalPages(app) if local_only else app,
            http="h11",
            ws=AmqpWebSocket,
            ws_max_size=WEBSOCKET_PIECE_BYTES_MAX,
            ws_ping_interval=None,  # AMQP has its own idle timeout
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._config.load()
        self._state = ServerState()
        self._admission = admission
        # One without anybody in it is false.
        self._turns = Turns(asyncio.get_running_loop()) if turns is None else turns

    @property
    def connections(self) -> set[Any]:
        """The connections that are open, HTTP and WebSocket."""
        return self._state.connections

    def __call__(self) -> asyncio.Protocol:
        state = {TURNS: self._turns, HELD_BYTES: self._admission.budgets.held_bytes}
        return HttpConnection(self._admission, self._turns, self._config, self._state, state)

    async def close(self) -> None:
        """Let requests under way finish, then close every connection.

        AMQP over WebSocket ends when its AMQP peer does, so close the peers first.
        """
        for connection in list(self.connections):
            if isinstance(connection, HttpConnection):
                connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=CLOSE_TIMEOUT_S)
        for connection in list(self.connections):
            connection.shutdown()


METRICS_CLOSED = "metrics are closed beyond loopback; start the broker with --metrics-token-file"
METRICS_ADVICE = "ask for a token of those who read the metrics (--metrics-token-file)"


class MetricsAccess:
    """Who may read `/metrics`, which shows the names of entities."""

    def __init__(self, token: str | None, *, is_open: bool) -> None:
        """Clients that send `token` may read; without a token all if `is_open`, else none."""
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._is_open = is_open

    def refusal(self, headers: Mapping[str, str]) -> Response | None:
        """The answer to a request that may not read; None: it may."""
        if self._expected is None:
            # A page of any site can lead a name of its own to this machine (DNS rebinding).
            why = foreign_origin(headers, METRICS_ADVICE) if self._is_open else METRICS_CLOSED
            if why is None:
                return None
            return Response(f"{why}\n", 403, media_type="text/plain")
        if hmac.compare_digest(self._expected, headers.get("authorization", "").encode()):
            return None
        why = "metrics need the bearer token of --metrics-token-file"
        asks = {"WWW-Authenticate": "Bearer"}
        return Response(f"{why}\n", 401, asks, media_type="text/plain")


SCRAPE_SHARE = 50
SHORT_SCRAPE_S = 0.005
SCRAPE_KEPT_MAX_S = 15.0
"""Figures are no older than this, which is how often Prometheus asks."""


class Scrapes:
    """The figures of `/metrics`, made anew in at most a fiftieth of the time if they take long.

    Without a token anybody on this machine may ask for them, as often as he likes.
    """

    def __init__(
        self,
        make: Callable[[], bytes],
        clock: Callable[[], float] = time.perf_counter,
        used: Callable[[], float] = time.thread_time,
    ) -> None:
        """`used` is processor time: on a busy machine a small broker's figures are not kept."""
        self._make = make
        self._clock = clock
        self._used = used
        self._made = b""
        self._good_until = 0.0

    def __call__(self) -> bytes:
        began = self._clock()
        if began >= self._good_until:
            before = self._used()
            self._made = self._make()
            took_s = self._used() - before
            if took_s > SHORT_SCRAPE_S:
                self._good_until = began + min(SCRAPE_SHARE * took_s, SCRAPE_KEPT_MAX_S)
        return self._made


class _LocalPages:
    """Refuses requests of pages that do not come from this machine; `/health` is for all."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        why_not = foreign_origin(Headers(scope=scope))
        if why_not is None or scope["path"] == "/health":
            await self._app(scope, receive, send)
            return
        client = scope.get("client") or ("?",)
        _log.warning("refused %s of %s: %s", scope["path"], client[0], why_not)
        if scope["type"] == "websocket":
            await WebSocketClose(_POLICY_VIOLATION, why_not)(scope, receive, send)
        else:
            refused = Response(render_error(403, why_not), 403, media_type=ERROR_CONTENT_TYPE)
            await refused(scope, receive, send)


def application(broker: BrokerServer, access: MetricsAccess) -> Starlette:
    def figures() -> bytes:
        # Loaded by the first scrape: a broker in a test is seldom scraped.
        from twinbus.broker.exposition import exposition

        return exposition(broker)

    scrapes = Scrapes(figures)

    async def health(request: Request) -> Response:
        broker.check_store()
        full = None if broker.gone else broker.store.low_on_space()
        damaged = broker.damage.lines(broker.namespace)
        status = "gone" if broker.gone else "full" if full else "damaged" if damaged else "ok"
        answer = {"status": status, "namespace": broker.namespace.name}
        if why := broker.gone or full:
            answer["detail"] = why
        elif damaged:
            answer["detail"] = f"{damaged[0]} (records set aside: {len(damaged)})"
        if access.refusal(request.headers) is not None:
            answer.pop("detail", None)  # It names paths and entities.
        return JSONResponse(answer, 503 if broker.gone else 200)

    async def metrics(request: Request) -> Response:
        refusal = access.refusal(request.headers)
        if refusal is not None:
            return refusal
        from twinbus.exposition import CONTENT_TYPE

        return Response(scrapes(), headers={"Content-Type": CONTENT_TYPE})

    async def faults(request: Request) -> Response:
        return await _answered(broker, request, respond_faults)

    async def clock(request: Request) -> Response:
        return await _answered(broker, request, respond_clock)

    async def administration(request: Request) -> Response:
        return await _answered(broker, request, respond)

    async def amqp(websocket: WebSocket) -> None:
        await amqp_over_websocket.serve(websocket, broker.peer)

    return Starlette(
        routes=[
            Route("/health", health, methods=["GET"]),
            Route("/metrics", metrics, methods=["GET"]),
            Route("/$clock", clock, methods=EVERY_METHOD),
            Route("/$faults", faults, methods=EVERY_METHOD),
            Route("/$faults/{fault_id}", faults, methods=EVERY_METHOD),
            # Given a custom endpoint that has the path already, Azure's SDK appends it once more.
            WebSocketRoute("/{before:path}$servicebus/websocket", amqp),
            WebSocketRoute("/{before:path}$servicebus/websocket/", amqp),
            Route("/{path:path}", administration, methods=EVERY_METHOD),
        ],
        middleware=[Middleware(OriginForm)],
    )


class OriginForm:
    """Removes scheme and host from a request's target: https://localhost/orders is /orders.

    HTTP obliges a server to accept the long form; the WebSockets of the Java SDK send it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if not path.startswith("/") and "://" in path:
            raw = scope.get("raw_path") or path.encode()
            scope = {
                **scope,
                "path": "/" + path.partition("://")[2].partition("/")[2],
                "raw_path": b"/" + raw.partition(b"://")[2].partition(b"/")[2],
            }
        await self._app(scope, receive, send)


Answer = Callable[[BrokerServer, AdminRequest, Verified], Awaitable[Document]]


async def _answered(broker: BrokerServer, request: Request, answer: Answer) -> Response:
    broker.check_store()
    if broker.gone is not None:
        return Response(render_error(503, broker.gone), 503, media_type=ERROR_CONTENT_TYPE)
    asked = admin_request(request)
    token = verified(broker.policy, asked, broker.now_ms() / 1000)
    if isinstance(token, Grant):
        # A stranger's body is not read; its request is refused for want of a token.
        try:
            with room_for_body(broker.admission, broker.name, token) as room:
                body = await read_body(request, room)
        except ClientDisconnect:
            return Response(status_code=400)
        except BudgetExceeded as error:
            return Response(render_error(503, str(error)), 503, media_type=ERROR_CONTENT_TYPE)
        if body is None:
            detail = f"the request body is longer than {BODY_BYTES_MAX} bytes"
            return Response(render_error(413, detail), 413, media_type=ERROR_CONTENT_TYPE)
        asked = replace(asked, body=body)
    answered = await answer(broker, asked, token)
    # Clients compare it with their own clock: their tokens and times depend on that.
    date = {"Date": formatdate(usegmt=True)}
    return Response(answered.body, answered.status, date, answered.content_type)


@contextmanager
def room_for_body(admission: Admission, namespace: str, grant: Grant) -> Iterator[Budget]:
    """What the body of a request takes: a part of what the rule of its token may have.

    `BudgetExceeded` if the rule has too much already.
    """
    budgets = ClientBudgets(admission.budgets)
    budgets.join(namespace, grant)
    try:
        yield budgets.held_bytes
    finally:
        budgets.close()


async def read_body(request: Request, room: Budget) -> bytes | None:
    """The whole body, or None when it is too long; `BudgetExceeded` if there is no room for it."""
    body = bytearray()
    async for chunk in request.stream():
        room.take(len(chunk))
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            return None
    return bytes(body)


def admin_request(request: Request) -> AdminRequest:
    """The request without its body."""
    raw_path = request.scope.get("raw_path") or request.scope["path"].encode()
    return AdminRequest(
        method=request.method,
        raw_path=raw_path.decode("latin-1"),
        query=dict(request.query_params),
        headers={name.lower(): value for name, value in request.headers.items()},
    )
