"""A program that is a burden to a broker: many idle, slow, silent and senseless clients.

    python -m tests.end_to_end.load_worker CONNECTION_STRING IDLE SLOW LINKS STRANGERS

It prints `up` when all of them are there and ends when its standard input is closed. STRANGERS is
the number of half-open connections that are held, and twice the number of connections with garbage
in a second; both come from an address of their own, as the limits count strangers by address.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tests.end_to_end.raw_client import RawClient
from twinbus.amqp.connection import AMQP_HEADER

AT_ONCE = 20
"""Connections that are being opened."""
LINKS_EACH = 250
CREDIT = 64
"""Messages that a slow reader asks for: a megabyte."""
STRANGER_ADDRESS = "127.0.0.2"
RECEIVE_BUFFER_BYTES = 4096
SIP_S = 1.0
"""A slow reader reads as much as its socket holds, this often."""
GARBAGE_BYTES = 1024
HALVES = (b"A", AMQP_HEADER, b"GET /health HTTP/1.1\r\nHost: loc", b"\x16")
"""What half-open clients say before they fall silent."""


class Burden:
    def __init__(self, connection_string: str) -> None:
        self._text = connection_string
        endpoint = connection_string.partition(";")[0].partition("/#")[0]
        self._port = int(endpoint.rpartition(":")[2])
        self._kept: list[object] = []
        self._random = random.Random(1)

    async def idle(self) -> None:
        """Open a connection and put a token."""
        self._kept.append(await RawClient.open(self._text))

    async def slow(self) -> None:
        """Ask for deliveries, and read them a few kilobytes at a time."""
        client = await RawClient.open(self._text)
        wire = client.transport.socket
        assert wire is not None
        wire.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES
        )
        await client.receiver("slow", credit=CREDIT)
        self._kept.append(asyncio.create_task(self._sip(wire)))

    async def _sip(self, wire: asyncio.Transport) -> None:
        while not wire.is_closing():
            wire.pause_reading()
            await asyncio.sleep(SIP_S)
            wire.resume_reading()
            await asyncio.sleep(0)

    async def links(self, count: int) -> None:
        """Attach half as senders and half as receivers, on one connection."""
        client = await RawClient.open(self._text)
        self._kept.append(client)
        for number in range(count):
            queue = f"idle-{number % 10}"
            if number % 2:
                await client.sender(queue)
            else:
                await client.receiver(queue, credit=1)

    async def half_open(self) -> None:
        """Say a part of a first word; again when the broker has had enough."""
        while True:
            with suppress(OSError):
                await self._stranger(self._random.choice(HALVES))

    async def garbage(self, rate: float) -> None:
        """Connect `rate` times a second and send random bytes, half of them after AMQP's header."""
        while True:
            head = AMQP_HEADER if self._random.random() < 0.5 else b""
            with suppress(OSError):
                await self._stranger(head + self._random.randbytes(GARBAGE_BYTES))
            await asyncio.sleep(1 / rate)

    async def _stranger(self, said: bytes) -> None:
        local = (STRANGER_ADDRESS, 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, local_addr=local)
        try:
            writer.write(said)
            await reader.read()
        finally:
            writer.close()


async def times(count: int, act: Callable[[], Awaitable[None]]) -> None:
    """Do it `count` times, a few at once."""
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await act()

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


async def run(text: str, idle: int, slow: int, links: int, strangers: int) -> None:
    burden = Burden(text)
    strange = [asyncio.create_task(burden.half_open()) for _ in range(strangers)]
    strange.append(asyncio.create_task(burden.garbage(2 * strangers)))
    await times(idle, burden.idle)
    await times(slow, burden.slow)
    await times(links // LINKS_EACH, lambda: burden.links(LINKS_EACH))
    print("up", flush=True)  # noqa: T201
    await asyncio.to_thread(sys.stdin.read)
    # Thousands of connections need not be closed one by one.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], *map(int, sys.argv[2:])))
