"""The far side of the cable: both namespaces of a pair, each on a port of its own.

Its arguments are the length of a lock of the entity, in seconds, and how far the clocks of the
primary and of the secondary are ahead of ours, in seconds. It prints `ready` and runs until its
standard input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from unittest.mock import patch

from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.embedded import EmbeddedBroker
from twinbus.broker.server import BrokerServer

PRIMARY_PORT, SECONDARY_PORT = 6672, 6673
QUEUE, KEY = "orders", "a-key-of-the-cables"
EVERYWHERE = "0.0.0.0"
"""Of a network namespace that has the cable and nothing else."""


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes one way until either end is gone."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


def carrier(
    inner: int,
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", inner)
        await asyncio.gather(relay(reader, far_writer), relay(far_reader, writer))

    return carry


async def serve(ports: dict[int, int]) -> None:
    """The broker's ports, which are on loopback, at every address of this namespace."""
    for outer, inner in ports.items():
        await asyncio.start_server(carrier(inner), EVERYWHERE, outer)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def main() -> None:
    lock_s, *ahead_s = map(float, sys.argv[1:])
    ahead_ms = dict(zip(("contoso", "contoso-dr"), (int(s * 1_000) for s in ahead_s), strict=True))
    own_now_ms = BrokerServer.now_ms

    def now_ms(self: BrokerServer) -> int:
        return own_now_ms(self) + ahead_ms[self.name]

    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with (
        patch.object(BrokerServer, "now_ms", now_ms),
        EmbeddedBroker("contoso:5672", "contoso-dr:5673", key=KEY) as broker,
    ):
        # What was on its way to a receiver when the cable failed comes again in this time.
        broker.create_queue(QUEUE, QueueDescription(lock_duration_ms=int(lock_s * 1_000)))
        ports = {PRIMARY_PORT: 5672, SECONDARY_PORT: 5673}
        threading.Thread(target=lambda: asyncio.run(serve(ports)), daemon=True).start()
        sys.stdin.read()


if __name__ == "__main__":
    main()
