"""The connections to the primary on which clients' messages go there.

A namespace answers the sends of one connection in their order, and reads no more of it meanwhile.
So each client has a connection of its own: one that sends long batches, or to a topic with many
rules, delays no other. At `CONNECTIONS_MAX`, a new client shares the one with the fewest clients.

    client comes --> a free connection, with a link to the entity if one has it; else a new one
    client goes --> its connection is free; it is closed if no client takes it within `UNUSED_S`
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from twinbus.client.links import UNUSED_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twinbus.broker.links.context import LinkClient
    from twinbus.client.links import UpstreamConnection

CONNECTIONS_MAX: Final = 64
"""An Azure namespace takes 5,000 in all; each receiving client of the gateway has one besides."""


class PrimaryConnections:
    """Gives each client the connection that its messages take, from the first link to the last."""

    def __init__(self, make: Callable[[], UpstreamConnection], most: int = CONNECTIONS_MAX) -> None:
        """`make` returns a connection to the primary that opens when it is needed."""
        self._make = make
        self._most = most
        self._of: dict[LinkClient, UpstreamConnection] = {}
        self._clients: dict[UpstreamConnection, int] = {}
        """How many clients each connection has."""
        self._timers: dict[UpstreamConnection, asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[UpstreamConnection]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def state(self) -> str:
        """`connected` if one is; else `lost` if one was; else `unused`."""
        states = {each.state for each in self._clients}
        return next((each for each in ("connected", "lost") if each in states), "unused")

    def of(self, client: LinkClient, path: str) -> UpstreamConnection:
        """Return the connection of a client, which sends to this entity first."""
        connection = self._of.get(client)
        if connection is None:
            connection = self._of[client] = self._choose(path)
            self._clients[connection] = self._clients.get(connection, 0) + 1
        return connection

    def _choose(self, path: str) -> UpstreamConnection:
        # What a client left without an answer would hold up the next one.
        free = [one for one, clients in self._clients.items() if not clients and not one.is_busy]
        if free:
            return next((one for one in free if path.lower() in one.pools), free[0])
        if len(self._clients) < self._most:
            return self._make()
        return min(self._clients, key=self._clients.__getitem__)

    def forget(self, client: LinkClient) -> None:
        """The client is gone; what is in flight goes on to its end."""
        connection = self._of.pop(client, None)
        if connection is not None:
            self._clients[connection] -= 1
            self._look_later(connection)

    def _look_later(self, connection: UpstreamConnection) -> None:
        if connection not in self._timers:
            loop = connection.loop
            self._timers[connection] = loop.call_later(UNUSED_S, self._close_unused, connection)

    def _close_unused(self, connection: UpstreamConnection) -> None:
        del self._timers[connection]
        # One stays open, so that /health says whether the primary can be reached.
        if self._clients[connection] or len(self._clients) == 1:
            return
        if connection.pools:
            self._look_later(connection)
            return
        del self._clients[connection]
        task = connection.loop.create_task(connection.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all; what is in flight ends with an error."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        await asyncio.gather(*(each.close() for each in self._clients), *self._closing)
