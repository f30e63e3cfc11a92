"""What the gateway holds for all clients: when it stops reading from one, and reads on."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from twinbus.gateway.pending import EACH_BYTES, PendingSends

if TYPE_CHECKING:
    from twinbus.broker.links.context import LinkClient


class Client:
    """A connection that keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def pause_reading(self) -> None:
        self.told.append("stop")

    def resume_reading(self) -> None:
        self.told.append("read")


async def test_small_messages_count_with_what_their_calls_take() -> None:
    """A million messages of ten bytes are ten megabytes, and gigabytes of calls."""
    client = Client()
    pending = PendingSends("gate", 60.0, bytes_max=100 * EACH_BYTES)
    for _ in range(1_000):
        pending.add(cast("LinkClient", client), 10)
        if client.told:
            break
    assert (client.told, pending.count) == (["stop"], 100)
    while pending.count:
        pending.release(10)
    assert (client.told, pending.size_bytes) == (["stop", "read"], 0)
