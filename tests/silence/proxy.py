"""A proxy whose open connections can be made half-open: they stay, and swallow what is sent."""

from __future__ import annotations

import asyncio
import contextlib


class SilentProxy:
    """Passes bytes to a port, until it swallows those of its open connections."""

    def __init__(self, port: int) -> None:
        self.connections = 0
        self._port = port
        self._dead: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> SilentProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1_000)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def fall_silent(self) -> None:
        """Swallow what the connections that are open now carry; those that come later work."""
        self._dead.update(range(self.connections))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self.connections = self.connections, self.connections + 1
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        for source, target in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._pass_on(number, source, target))
            self._tasks.add(task)

    async def _pass_on(
        self, number: int, source: asyncio.StreamReader, target: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65_536):
                if number not in self._dead:
                    target.write(data)
        if number not in self._dead:
            target.close()
