"""Long rows of small things on a port, most of them from strangers: bytes that say next to nothing.

Chunks of one byte, header lines, requests for what is not there, tags, pings, empty frames, flows
without effect. Each row is work of at most 5 ms for a KiB, a neighbour's sends are answered between
its pieces, and nothing of it is held when the connection is gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import Phase
from hypothesis import strategies as st

from tests.fuzz.part import Part, run_async
from tests.fuzz.resources import HEALTHY, Neighbour
from tests.fuzz.work import TRIES, WORK_S_PER_KIB
from tests.fuzz.world import MANAGE_TOKEN, FuzzWorld
from tests.unit.broker.links.joined import SLICES_MAX
from twinbus.amqp.connection import AMQP_HEADER, EMPTY_FRAME
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.performatives import Attach, Begin, Flow, Open, Source, Target
from twinbus.amqp.types import UInt
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.http import HttpHost, MetricsAccess, application

OUTPUT_BYTES_MAX: Final = 256 * 1024
"""Kept for a client that reads nothing; what one slice writes may come on top."""
PACKET_BYTES: Final = 64
"""A packet counts as this at least: so long are its headers."""
OPENING_S: Final = 0.1
"""Processor time of a connection, its first request and the neighbour's sends beside it."""
UPGRADE: Final = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
)
GET: Final = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n"
TRUSTED: Final = b"Authorization: " + MANAGE_TOKEN.encode() + b"\r\n"
CHUNKED: Final = b"PUT /new HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
OPENED: Final = (
    AMQP_HEADER
    + encode_frame(0, Open(container_id="c"))
    + encode_frame(
        0, Begin(next_outgoing_id=UInt(0), incoming_window=UInt(1), outgoing_window=UInt(1))
    )
    + encode_frame(
        0,
        Attach(
            name="cbs",
            handle=UInt(0),
            role=False,
            source=Source(address="me"),
            target=Target(address="$cbs"),
        ),
    )
)


def _frame(opcode: int, data: bytes = b"") -> bytes:
    """A whole frame of a WebSocket's client, masked with zeros."""
    return bytes((0x80 | opcode, 0x80 | len(data))) + bytes(4) + data


def _document(count: int) -> bytes:
    body = b"<entry>" + b"<a/>" * count + b"</entry>"
    length = b"Content-Length: %d\r\n" % len(body)
    return GET.replace(b"GET", b"PUT") % b"new" + TRUSTED + length + b"\r\n" + body


def _flow(handle: int | None, *, echo: bool = False) -> bytes:
    """A flow that changes nothing."""
    link = UInt(0) if handle is not None else None
    flow = Flow(
        next_incoming_id=UInt(0),
        incoming_window=UInt(1),
        next_outgoing_id=UInt(0),
        outgoing_window=UInt(1),
        handle=link,
        delivery_count=link,
        link_credit=link,
        echo=echo,
    )
    return encode_frame(0, flow)


@dataclass(frozen=True)
class Row:
    """What is sent first, and after its answer; then `count` times the same."""

    opening: bytes
    repeated: Callable[[int], bytes]
    is_http: bool = True
    then: bytes = b""


ROWS: Final[dict[str, Row]] = {
    "chunks": Row(b"", lambda count: CHUNKED + b"\r\n" + b"1\r\na\r\n" * count + b"0\r\n\r\n"),
    "chunks with a token": Row(
        b"", lambda count: CHUNKED + TRUSTED + b"\r\n" + b"1\r\na\r\n" * count + b"0\r\n\r\n"
    ),
    "header lines": Row(b"", lambda count: GET % b"orders" + b"a:b\r\n" * count + b"\r\n"),
    "trailers": Row(
        b"", lambda count: CHUNKED + b"\r\n1\r\na\r\n0\r\n" + b"a:b\r\n" * count + b"\r\n"
    ),
    "requests": Row(b"", lambda count: (GET % b"nowhere" + b"\r\n") * (count // 10)),
    "requests with a token": Row(
        b"", lambda count: (GET % b"no" + TRUSTED + b"\r\n") * (count // 10)
    ),
    "empty lines": Row(b"", lambda count: b"\r\n" * count + GET % b"health" + b"\r\n"),
    "tags": Row(b"", _document),
    "pings": Row(UPGRADE, lambda count: _frame(9) * count),
    "long pings": Row(UPGRADE, lambda count: _frame(9, bytes(125)) * count),
    "pongs": Row(UPGRADE, lambda count: _frame(10) * count),
    "empty messages": Row(UPGRADE, lambda count: _frame(2) * count),
    "letters": Row(
        UPGRADE, lambda count: _frame(2, EMPTY_FRAME[:4]) + _frame(2, EMPTY_FRAME[4:]) * count
    ),
    "empty frames in frames": Row(
        UPGRADE, lambda count: _frame(2, EMPTY_FRAME) * count, then=_frame(2, OPENED[:120])
    ),
    "empty frames": Row(OPENED, lambda count: EMPTY_FRAME * count, is_http=False),
    "flows of the session": Row(OPENED, lambda count: _flow(None) * count, is_http=False),
    "flows of a link": Row(OPENED, lambda count: _flow(0) * count, is_http=False),
    "flows that ask": Row(OPENED, lambda count: _flow(0, echo=True) * count, is_http=False),
}


@dataclass(frozen=True)
class Visit:
    row: str
    count: int
    piece_bytes: int
    reads: bool
    leaves: bool
    """Before all of it is handled."""


visits = st.builds(
    Visit,
    st.sampled_from(tuple(ROWS)),
    st.sampled_from((1, 50, 99, 101, 1_000, 4_999, 5_001)),
    st.sampled_from((7, 1_000, 65_536, 262_144)),
    st.booleans(),
    st.booleans(),
)


class Port(asyncio.Transport):
    """One connection: whether it is read from, and how much was written to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.9", 50_000), "sockname": ("192.0.2.1", 5_672)})
        self.protocol: Any = None
        self.is_read = True
        self.written_bytes = 0
        self.first = b""
        self._closing = False

    def write(self, data: Any) -> None:
        self.written_bytes += len(data)
        self.first += bytes(data[: 1_000 - len(self.first)])

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True

    abort = close

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol


def check(visit: Visit) -> None:
    least_s = allowed_s = 0.0
    for _ in range(TRIES):
        took: list[float] = []
        run_async(_visit(visit, took))
        spent_s, allowed_s = took
        least_s = min(least_s or spent_s, spent_s)
        if least_s <= allowed_s:
            return
    raise AssertionError(
        f"{visit} took {least_s * 1000:.0f} ms of processor time, allowed are"
        f" {allowed_s * 1000:.0f}"
    )


async def _visit(visit: Visit, took: list[float]) -> None:
    async with FuzzWorld.running() as world:
        server, row = world.server, ROWS[visit.row]
        server.namespace.create_queue(HEALTHY, QueueDescription(), server.now_ms())
        neighbour = Neighbour(world)
        await neighbour.come()
        app = application(server, MetricsAccess(None, is_open=False))
        host = HttpHost(app, server.admission, server.turns)
        port = Port()
        port.protocol = host() if row.is_http else server.peer()
        port.protocol.connection_made(port)
        budgets = server.admission.budgets
        before_bytes = budgets.held_bytes.used
        for opening in filter(None, (row.opening, row.then)):
            port.protocol.data_received(opening)
            await _until(lambda: bool(port.first))
        if not visit.reads:
            port.protocol.pause_writing()
        stream = row.repeated(visit.count)
        written_bytes, sends = port.written_bytes, 0
        began_s, at = time.process_time(), 0
        while at < len(stream) and not port.is_closing():
            if port.is_read:
                port.protocol.data_received(stream[at : at + visit.piece_bytes])
                at += visit.piece_bytes
            if sends * 65_536 <= at:
                sends += 1
                turns = await neighbour.send()
                assert turns <= world.turns_max, f"a neighbour's send took {turns} turns"
            elif not port.is_read:
                await asyncio.sleep(0)
                if not visit.reads and not server.turns:
                    break  # It waits for a client that does not read.
            written = port.written_bytes - written_bytes
            assert visit.reads or written <= OUTPUT_BYTES_MAX, f"{written:,} bytes are not read"
        if not visit.leaves:
            await _until(lambda: not server.turns and bool(port.first))
        spent_s = time.process_time() - began_s
        packets = at // visit.piece_bytes
        carried = max(min(at, len(stream)), packets * PACKET_BYTES)
        carried += port.written_bytes - written_bytes
        took[:] = [spent_s, OPENING_S + carried / 1024 * WORK_S_PER_KIB]
        port.protocol.connection_lost(None)
        await _until(lambda: not server.turns and budgets.held_bytes.used <= before_bytes)
        assert budgets.held_bytes.used <= before_bytes, "what a client held is not given back"
        neighbour.leave()
        await host.close()
        world.check_errors()


async def _until(is_so: Callable[[], bool]) -> None:
    for _ in range(SLICES_MAX):
        if is_so():
            return
        await asyncio.sleep(0)


PORTS = Part(
    "ports",
    visits,
    check,
    short=6,
    round=30,
    phases=(Phase.explicit, Phase.generate),
)
