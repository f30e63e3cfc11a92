"""What the broker renders for one client is bounded, however much credit the client gives."""

from __future__ import annotations

import asyncio

from tests.unit.broker.fakes import incoming
from twinbus.amqp.connection import Connection
from twinbus.amqp.events import DeliveryArrived
from twinbus.amqp.performatives import Source, Target
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.links.back_pressure import OUTPUT_BYTES_MAX
from twinbus.broker.links.dispatch import TURN
from twinbus.broker.sas import ALL_RIGHTS, Grant
from twinbus.broker.server import BrokerServer
from twinbus.broker.storage.store import MemoryStore

MESSAGES = 5_000
PAYLOAD_BYTES = 1_024
TURN_BYTES = TURN * 2 * PAYLOAD_BYTES
TICKS_MAX = 5_000


class Wire:
    """A transport that takes everything at once and remembers how much came in one go."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.largest_bytes = 0

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        self.largest_bytes = max(self.largest_bytes, len(data))

    def get_extra_info(self, _: str) -> None: ...

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...

    abort = close


async def drain_with_huge_credit() -> tuple[int, int]:
    """How many messages arrived, and the most that was written in one go."""
    server = BrokerServer("b", MemoryStore(), [])
    queue = server.namespace.create_queue("q", QueueDescription(), server.now_ms())
    for _ in range(MESSAGES):
        queue.enqueue(incoming(body=bytes(PAYLOAD_BYTES)), server.now_ms())
    peer, wire, client = server.peer(), Wire(), Connection("c")
    peer.connection_made(wire)  # type: ignore[arg-type]
    everything = Grant(path="", rights=ALL_RIGHTS, expires_at_s=1e12, rule_name="r")
    peer.grants.put("all", everything)
    arrived = 0

    async def exchange(ticks: int) -> None:
        nonlocal arrived
        for _ in range(ticks):
            if data := client.take_output(1):
                peer.data_received(data)
            await asyncio.sleep(0)
            replies, wire.writes = wire.writes, []
            for events in client.receive(b"".join(replies), 1):
                arrived += sum(isinstance(event, DeliveryArrived) for event in events)

    await exchange(20)
    session = client.begin()
    await exchange(20)
    link = session.attach_receiver("in", source=Source(address="q"), target=Target(address="me"))
    await exchange(20)
    link.grant(1_000_000)
    for _ in range(TICKS_MAX):
        if arrived == MESSAGES:
            break
        await exchange(1)
    await server.close()
    return arrived, wire.largest_bytes


def test_a_huge_credit_is_served_in_pieces_and_served_whole() -> None:
    arrived, largest_bytes = asyncio.run(drain_with_huge_credit())
    assert arrived == MESSAGES
    assert largest_bytes <= OUTPUT_BYTES_MAX + TURN_BYTES
