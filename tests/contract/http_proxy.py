"""An HTTP proxy for tests: it opens tunnels to the brokers that it knows, and does nothing else."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import threading
from collections.abc import Mapping
from typing import Self

LINE_LIMIT_S = 30.0


class TunnelProxy:
    """Runs on a thread of its own. Hosts under `.invalid` exist nowhere but behind it."""

    def __init__(self, hosts: Mapping[str, str] | None = None, *, login: str = "") -> None:
        """`hosts` maps the host of a CONNECT to where it really is; others are refused with 403.

        `login` is USER:PASSWORD that a client must send.
        """
        self._hosts = hosts or {}
        self._login = base64.b64encode(login.encode()).decode() if login else ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.port = 0
        self.requests: list[str] = []
        """The first line of each request."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}"

    async def _listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "localhost", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _close(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError, TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(LINE_LIMIT_S):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *headers = head.split("\r\n")
            self.requests.append(first)
            answer = self._refusal(first, headers)
            if answer is not None:
                writer.write(f"HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n".encode())
                await writer.drain()
            else:
                host, _, port = first.split()[1].rpartition(":")
                await self._tunnel(self._hosts[host], int(port), reader, writer)
        writer.close()

    def _refusal(self, first: str, headers: list[str]) -> str | None:
        method, target, _ = first.split()
        if method != "CONNECT":
            return "405 Method Not Allowed"
        if self._login and f"Proxy-Authorization: Basic {self._login}" not in headers:
            return "407 Proxy Authentication Required"
        return None if target.rpartition(":")[0] in self._hosts else "403 Forbidden"

    async def _tunnel(
        self, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        other_reader, other_writer = await asyncio.open_connection(host, port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        ways = [_copy(reader, other_writer), _copy(other_reader, writer)]
        await asyncio.wait(
            [asyncio.ensure_future(way) for way in ways], return_when=asyncio.FIRST_COMPLETED
        )
        other_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(64 * 1024):
            writer.write(data)
            await writer.drain()
