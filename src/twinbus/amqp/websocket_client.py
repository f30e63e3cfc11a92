"""A client's AMQP connection over WebSocket, directly or through an HTTP proxy.

aiohttp does it, which the SDK's asyncio client needs too: it has the handshake, the masking of
frames in C, pings, and the CONNECT of a proxy. `ClientTransport` runs on the WebSocket as it runs
on a socket.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from twinbus.amqp.connection import Connection
from twinbus.amqp.events import DeliveryArrived, Event
from twinbus.amqp.transport import ClientTransport
from twinbus.lookups import LOOKUPS

SUBPROTOCOL: Final = "AMQPWSB10"
PATH: Final = "/$servicebus/websocket"

HIGH_WATER_BYTES: Final = 1024 * 1024
"""Bytes that wait to be written before the owner is asked to pause."""

CLOSE_S: Final = 2.0
"""Time limit of a WebSocket's own closing handshake; AMQP has said CLOSE before."""


async def connect_websocket(
    connection: Connection,
    host: str,
    port: int,
    on_event: Callable[[Event], None],
    *,
    tls: ssl.SSLContext | None = None,
    proxy: str | None = None,
    proxy_headers: Mapping[str, str] | None = None,
    on_deliveries: Callable[[list[DeliveryArrived]], None] | None = None,
) -> ClientTransport:
    """Open the WebSocket and send the first bytes; ConnectionError says why that failed.

    `proxy` is the URL of a proxy without its login, which goes into `proxy_headers`.
    """
    await LOOKUPS.resolved(host if proxy is None else urlsplit(proxy).hostname or "")
    session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
    try:
        websocket = await session.ws_connect(
            f"{'ws' if tls is None else 'wss'}://{host}:{port}{PATH}",
            protocols=(SUBPROTOCOL,),
            ssl=tls if tls is not None else True,
            proxy=proxy,
            proxy_headers=proxy_headers,
            timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S),
        )
    except BaseException as error:
        await session.close()
        if isinstance(error, aiohttp.ClientError):
            raise ConnectionError(_reason(error)) from error
        raise
    protocol = ClientTransport(connection, on_event, on_deliveries)
    protocol.connection_made(_WebSocketStream(websocket, session, protocol))
    return protocol


def _reason(error: aiohttp.ClientError) -> str:
    """Return why no WebSocket was opened, in one line without a header."""
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy answers {error.status} to CONNECT"
    if isinstance(error, aiohttp.WSServerHandshakeError):
        return f"it answers {error.status} to the WebSocket handshake"
    return str(error).partition("\n")[0] or type(error).__name__


class _WebSocketStream(asyncio.Transport):
    """What `ClientTransport` sees of a WebSocket: a stream of bytes."""

    def __init__(
        self,
        websocket: aiohttp.ClientWebSocketResponse,
        session: aiohttp.ClientSession,
        protocol: ClientTransport,
    ) -> None:
        super().__init__({"socket": websocket.get_extra_info("socket")})
        self._websocket = websocket
        self._session = session
        self._protocol = protocol
        self._buffer = bytearray()
        self._has_work = asyncio.Event()
        self._is_closing = False
        self._is_paused = False
        self._running = asyncio.get_running_loop().create_task(self._run())

    def write(self, data: Any) -> None:
        if self._is_closing:
            return
        self._buffer += data
        self._has_work.set()
        if len(self._buffer) > HIGH_WATER_BYTES and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def close(self) -> None:
        """Close once everything written has gone out."""
        self._is_closing = True
        self._has_work.set()

    def abort(self) -> None:
        """Close now; what has not gone out is dropped."""
        self._is_closing = True
        self._running.cancel()

    async def _run(self) -> None:
        """Read and write until one of them ends; then tell the protocol."""
        work = {asyncio.create_task(self._read()), asyncio.create_task(self._write())}
        error: BaseException | None = None
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            error = next((one.exception() for one in done if one.exception() is not None), None)
        except asyncio.CancelledError:
            # By `abort`, or because the loop ends.
            pass
        finally:
            self._is_closing = True
            for one in work:
                one.cancel()
            with suppress(Exception, asyncio.CancelledError):
                await self._websocket.close()
            with suppress(Exception, asyncio.CancelledError):
                await self._session.close()
            self._protocol.connection_lost(error if isinstance(error, Exception) else None)

    async def _read(self) -> None:
        async for message in self._websocket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                raise ConnectionError("the peer sent a WebSocket message that is not binary")
            self._protocol.data_received(message.data)

    async def _write(self) -> None:
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            while self._buffer:
                data = bytes(self._buffer)
                self._buffer.clear()
                await self._websocket.send_bytes(data)
                if self._is_paused and len(self._buffer) <= HIGH_WATER_BYTES // 2:
                    self._is_paused = False
                    self._protocol.resume_writing()
            if self._is_closing:
                return
