"""A client and a service with a relay between them, frame by frame."""

from __future__ import annotations

from typing import Any

from twinbus.amqp.frames import decode_performative, encode_frame
from twinbus.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Coordinator,
    Disposition,
    Flow,
    Performative,
    Source,
    Target,
    Transfer,
)
from twinbus.broker.faults import Fault, FaultPlan
from twinbus.proxy.core.frames import FrameReader
from twinbus.proxy.core.links import TO_CLIENT, TO_SERVICE
from twinbus.proxy.core.relay import ConnectionRelay

PAYLOAD = b"\x00\x53\x75\xa0\x05hello"
CLIENT_CHANNEL, SERVICE_CHANNEL = 3, 7
NOW_MS = 1_000_000


class Wire:
    """One session with a sender to `orders` (handle 0) and a receiver of it (handle 1)."""

    def __init__(self, *faults: Fault) -> None:
        self.plan = FaultPlan(lambda: 0.5, proxy=True)
        self.notes: list[str] = []
        self.relay = ConnectionRelay(self.plan, self.notes.append)
        self.now_ms = NOW_MS
        self._readers = {TO_CLIENT: FrameReader(), TO_SERVICE: FrameReader()}
        self.client(Begin(None, 0, 100, 100))
        self.service(Begin(CLIENT_CHANNEL, 50, 200, 200))
        for fault in faults:
            self.plan.add(fault)

    def open_links(self) -> None:
        """Attach both links at both ends, and let the service grant credit to the sender."""
        self.attach("out", 0, role=False)
        self.service(Attach("out", 10, True, target=Target("orders")))
        self.attach("in", 1, role=True)
        self.service(Attach("in", 11, False, source=Source("orders"), initial_delivery_count=0))
        self.service(Flow(0, 200, 50, 200, 10, 0, 100))

    def attach(self, name: str, handle: int, *, role: bool) -> list[Any]:
        address = "amqps://contoso.servicebus.windows.net/orders"
        if role:
            return self.client(Attach(name, handle, True, source=Source(address)))
        return self.client(Attach(name, handle, False, target=Target(address)))

    def attach_coordinator(self) -> None:
        self.client(Attach("txn", 2, False, target=Coordinator()))
        self.service(Attach("txn", 12, True, target=Coordinator()))

    def client(self, performative: Performative, payload: bytes = b"") -> list[Any]:
        """Let the client send; return what the service gets."""
        data = encode_frame(CLIENT_CHANNEL, performative, payload)
        self.relay.receive(TO_SERVICE, data, self.now_ms)
        return self.arrived(TO_SERVICE)

    def service(self, performative: Performative, payload: bytes = b"") -> list[Any]:
        """Let the service send; return what the client gets."""
        data = encode_frame(SERVICE_CHANNEL, performative, payload)
        self.relay.receive(TO_CLIENT, data, self.now_ms)
        return self.arrived(TO_CLIENT)

    def send(self, delivery_id: int, *, more: bool = False, handle: int = 0) -> list[Any]:
        tag = bytes([delivery_id])
        return self.client(Transfer(handle, delivery_id, tag, 0, more=more), PAYLOAD)

    def deliver(self, delivery_id: int) -> list[Any]:
        return self.service(Transfer(11, delivery_id, bytes([delivery_id]), 0), PAYLOAD)

    def accept(self, first: int, last: int | None = None) -> list[Any]:
        """Let the service say that it stored deliveries, by its own ids."""
        return self.service(Disposition(True, first, last, True, Accepted()))

    def arrived(self, direction: Any) -> list[Any]:
        """What left in a direction since the last call."""
        frames = self._readers[direction].read(self.relay.take(direction, self.now_ms))
        return [decode_performative(frame.body)[0] for frame in frames if frame.body]
