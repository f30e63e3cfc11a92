"""A peer that asks for frames while the connection is idle gets them from the start."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import cast

import pytest

from tests.unit.broker.links.joined import JoinedTransport
from twinbus.amqp import transport
from twinbus.amqp.connection import (
    AMQP_HEADER,
    EMPTY_FRAME,
    IDLE_TIMEOUT_LEAST_MS,
    Connection,
    ConnectionPhase,
)
from twinbus.amqp.events import Closed, Event
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.performatives import Open
from twinbus.amqp.transport import ClientTransport
from twinbus.amqp.types import UInt
from twinbus.broker.server import BrokerServer
from twinbus.broker.storage.store import MemoryStore
from twinbus.testing import VirtualLoop

IDLE_TIMES_MS = (IDLE_TIMEOUT_LEAST_MS, 500, 2_000, 8_000, 60_000)

pytestmark = pytest.mark.virtual_time


def now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1000)


class VirtualServer(BrokerServer):
    def now_ms(self) -> int:
        return now_ms()


class TimedTransport(JoinedTransport):
    """Keeps when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.times_ms: list[int] = []

    def write(self, data: bytes) -> None:
        super().write(data)
        self.times_ms.append(now_ms())

    def longest_silence_ms(self) -> int:
        times_ms = [*self.times_ms, now_ms()]
        return max(later - sooner for sooner, later in pairwise(times_ms))


def opening(idle_ms: int | None) -> bytes:
    idle = None if idle_ms is None else UInt(idle_ms)
    return encode_frame(0, Open(container_id="peer", idle_time_out=idle))


@pytest.mark.parametrize("idle_ms", IDLE_TIMES_MS)
async def test_a_client_of_the_broker_is_never_left_without_a_frame_for_its_idle_time(
    idle_ms: int,
) -> None:
    """The SDKs open through SASL, in several reads."""
    server, wire = VirtualServer("b", MemoryStore(), []), TimedTransport()
    peer = server.peer()
    peer.connection_made(cast("asyncio.Transport", wire))
    client = Connection("c", sasl=True)
    client._open = lambda: Open(container_id="c", idle_time_out=UInt(idle_ms))  # type: ignore[method-assign]
    while data := client.take_output(now_ms()):
        peer.data_received(data)
        await asyncio.sleep(0.01)
        reply, wire.written = wire.written, b""
        list(client.receive(reply, now_ms()))
    assert client.phase is ConnectionPhase.OPEN
    peer.trust()
    await asyncio.sleep(3 * idle_ms / 1000)
    assert wire.longest_silence_ms() <= idle_ms // 2 + 1
    assert wire.written == EMPTY_FRAME * (len(wire.written) // 8)
    await server.close()


@pytest.mark.parametrize("idle_ms", IDLE_TIMES_MS)
async def test_our_own_client_keeps_a_connection_alive_from_the_start(
    idle_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_now_ms", now_ms)
    client, wire = ClientTransport(Connection("c"), lambda _: None), TimedTransport()
    client.connection_made(cast("asyncio.Transport", wire))
    await asyncio.sleep(0.01)
    client.data_received(AMQP_HEADER + opening(idle_ms))
    await asyncio.sleep(3 * idle_ms / 1000)
    assert wire.longest_silence_ms() <= idle_ms // 2 + 1
    client.connection_lost(None)


@pytest.mark.parametrize("idle_ms", [1, 2, IDLE_TIMEOUT_LEAST_MS - 1])
@pytest.mark.parametrize("side", ["broker", "client"])
async def test_an_idle_time_that_would_cost_a_processor_is_refused(
    side: str, idle_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_now_ms", now_ms)
    loop, wire = asyncio.get_running_loop(), TimedTransport()
    assert isinstance(loop, VirtualLoop)
    events: list[Event] = []
    server = VirtualServer("b", MemoryStore(), [])
    connection = Connection("c")
    end = server.peer() if side == "broker" else ClientTransport(connection, events.append)
    end.connection_made(cast("asyncio.Transport", wire))
    end.data_received(AMQP_HEADER + opening(idle_ms))
    jumps = loop.jumps
    await asyncio.sleep(10)
    # A broker closes the socket after a while; nothing else happens.
    assert loop.jumps - jumps <= 4
    said = Connection("other", server=side == "client")
    told = [event for events in said.receive(wire.written, 1) for event in events]
    (closed,) = [event for event in told if isinstance(event, Closed)]
    assert closed.error is not None
    assert closed.error.condition == "amqp:invalid-field"
    assert f"the idle-time-out is {idle_ms} ms" in (closed.error.description or "")
    assert [type(event) for event in events] == ([] if side == "broker" else [Closed])
    end.connection_lost(None)
    await server.close()


@pytest.mark.parametrize("idle_ms", [None, 0, (1 << 32) - 1])
async def test_a_client_that_asks_for_no_frames_or_few_gets_none(idle_ms: int | None) -> None:
    server, wire = VirtualServer("b", MemoryStore(), []), TimedTransport()
    peer = server.peer()
    peer.connection_made(cast("asyncio.Transport", wire))
    peer.data_received(AMQP_HEADER + opening(idle_ms))
    peer.trust()
    await asyncio.sleep(0.1)
    wire.written = b""
    await asyncio.sleep(100)
    assert wire.written == b""
    await server.close()


async def test_a_connection_that_is_closed_has_no_timer() -> None:
    """It would be due at once, again and again, until the client hangs up."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    server, wire = VirtualServer("b", MemoryStore(), []), TimedTransport()
    peer = server.peer()
    peer.connection_made(cast("asyncio.Transport", wire))
    peer.data_received(AMQP_HEADER + opening(500))
    await asyncio.sleep(0.1)
    peer.data_received(b"\xff" * 8)
    jumps = loop.jumps
    await asyncio.sleep(1.9)
    assert loop.jumps - jumps <= 2
    await server.close()
