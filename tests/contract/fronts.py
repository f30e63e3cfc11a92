"""A port in front of a broker that hangs, fails or refuses until it is told to let through."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Literal, Self

Mood = Literal["hang", "fail", "refuse", "through"]

FAILED = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\noops"


class Front:
    """One port of localhost; `mood` is what it does with connections, and may be changed."""

    def __init__(self, target_port: int, mood: Mood) -> None:
        self.mood = mood
        self.port = 0
        self.met = 0
        """Connections so far."""
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._socket = socket.socket()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        # Bound and not listening it refuses, and no other program can take the port meanwhile.
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        if self.mood != "refuse":
            await self._listen()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._server is not None:
            self._server.close()
        self._socket.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def let_through(self) -> None:
        """Be the broker from now on."""
        self.mood = "through"
        if self._server is None:
            await self._listen()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, sock=self._socket)

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.met += 1
        task = asyncio.create_task(self._treat(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _treat(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.mood == "hang":
                await reader.read()
            elif self.mood == "fail":
                while await reader.read(65_536):
                    writer.write(FAILED)
            else:
                to_reader, to_writer = await asyncio.open_connection("localhost", self._target_port)
                await asyncio.gather(_copy(reader, to_writer), _copy(to_reader, writer))
        except ConnectionError:
            pass
        finally:
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    finally:
        with contextlib.suppress(OSError):
            writer.close()
