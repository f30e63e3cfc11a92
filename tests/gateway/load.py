"""Raw clients that keep many sends in flight through a gateway and note what it accepted."""

from __future__ import annotations

import asyncio
import itertools

from tests.end_to_end.raw_client import ConnectionLost, RawClient, Refused, message
from tests.other_languages.client_programs import text_of

IN_FLIGHT_MAX = 200
PATIENCE_S = 120.0


class Load:
    """Clients that send all the time, and connect again when the gateway is back."""

    def __init__(self, connection_string: str, pause_s: float = 0.001) -> None:
        """`pause_s` after each send of a client leaves the machine to others."""
        self.accepted: set[str] = set()
        self._pause_s = pause_s
        self._connection_string = connection_string
        self._numbers = itertools.count()
        self._stopping = False

    async def run(self) -> None:
        while not self._stopping:
            try:
                client = await RawClient.open(self._connection_string)
            except (ConnectionLost, Refused):
                await asyncio.sleep(0.05)
                continue
            try:
                await self._send(client)
            except (ConnectionLost, Refused):
                continue
            finally:
                await client.close()

    def stop(self) -> None:
        self._stopping = True

    async def _send(self, client: RawClient) -> None:
        sender = await client.sender("orders")
        flying: set[asyncio.Future[None]] = set()
        while not self._stopping:
            await sender.room()
            key = f"m{next(self._numbers)}"
            send = sender.send(message(key, b"x" * 200))
            flying.add(send)
            send.add_done_callback(flying.discard)
            send.add_done_callback(lambda done, key=key: self._note(done, key))  # type: ignore[misc]
            if len(flying) >= IN_FLIGHT_MAX:
                await asyncio.wait(flying, return_when=asyncio.FIRST_COMPLETED)
            # It also lets the answers in.
            await asyncio.sleep(self._pause_s)
        if flying:
            await asyncio.wait(flying, timeout=PATIENCE_S)

    def _note(self, done: asyncio.Future[None], key: str) -> None:
        if not done.cancelled() and done.exception() is None:
            self.accepted.add(key)

    async def reach(self, count: int) -> None:
        """Wait until this many sends were accepted."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.accepted) < count:  # noqa: ASYNC110  # counted by callbacks
                await asyncio.sleep(0.01)


async def all_stored(primary: str, accepted: set[str]) -> None:
    """Wait until the primary has delivered everything that was accepted, by id or by text."""
    client = await RawClient.open(primary)
    receiver = await client.receiver("orders", credit=500, settled=True)
    missing = set(accepted)
    async with asyncio.timeout(PATIENCE_S):
        while missing:
            found = await receiver.receive()
            assert found is not None, (
                f"{len(missing)} of {len(accepted)} are lost: {missing!r:.200}"
            )
            missing -= {found.key, text_of(found.payload)}
    await client.close()
