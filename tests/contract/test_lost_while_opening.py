"""A peer that goes away while a link opens: no socket of the SDK stays open."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress

import pytest

from tests.contract.conftest import Tour
from tests.contract.pairs import nothing_left
from tests.official_sdk import async_client
from twinbus.pairing.sdk.pooled_sender import SenderCloser
from twinbus.pairing.sdk.sender_pool import SenderPool, open_only

pytestmark = pytest.mark.contract

ATTACH = b"\x00\x53\x12"
"""The descriptor of an ATTACH frame."""

OPENINGS = 3


class HangsUp:
    """A port in front of a broker that hangs up in place of passing on the n-th ATTACH frame."""

    def __init__(self, target_port: int, attach: int) -> None:
        self._target_port = target_port
        self._attach = attach
        self.ended: set[asyncio.Task[None]] = set()

    def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.ended.add(asyncio.create_task(self._relay(reader, writer)))

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("localhost", self._target_port)
        back = asyncio.create_task(_copy(to_reader, writer))
        seen = b""
        while data := await reader.read(65_536):
            seen += data
            if seen.count(ATTACH) >= self._attach:
                break
            to_writer.write(data)
        back.cancel()
        to_writer.close()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)


async def no_lookup() -> None:
    """The host is this machine."""


@pytest.mark.parametrize("attach", [1, 2, 3], ids=["of the tokens", "of the answers", "own"])
async def test_an_opening_that_the_peer_ends_leaves_no_socket(tour: Tour, attach: int) -> None:
    """A connection whose CLOSE cannot be written is forgotten by the SDK with its socket open."""
    queue, port = tour.queue(), tour.broker.port()
    hangs_up = HangsUp(port, attach)
    server = await asyncio.start_server(hangs_up, "localhost", 0)
    front_port = server.sockets[0].getsockname()[1]
    text = tour.broker.connection_string().replace(f":{port}", f":{front_port}")
    gc.disable()  # A collection would close what was forgotten, now and then.
    try:
        async with nothing_left():
            async with async_client(text, retry_total=0) as sdk:
                closer = SenderCloser(opening_limit_s=30.0)
                pool = SenderPool(lambda: sdk.get_queue_sender(queue), no_lookup, closer)
                for _ in range(OPENINGS):
                    pooled = pool.take()
                    assert pooled is not None
                    with pytest.raises(Exception, match="closed connection"):
                        await pool.attempt(pooled, open_only, 30.0)
                await pool.close(1.0)
                await closer.wait()
            await asyncio.gather(*hangs_up.ended)
    finally:
        gc.enable()
        server.close()
