"""Each client of a gateway has a connection to the primary for what it sends, while they last."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, cast

from twinbus.client.links import UNUSED_S
from twinbus.gateway.primary_connections import PrimaryConnections
from twinbus.testing import run_virtual

if TYPE_CHECKING:
    from twinbus.broker.links.context import LinkClient
    from twinbus.client.links import UpstreamConnection


class Connection:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.pools: dict[str, object] = {}
        self.is_busy = False
        self.is_closed = False
        self.state = "unused"

    async def close(self) -> None:
        await asyncio.sleep(1)
        self.is_closed = True


class World:
    def __init__(self, most: int = 64) -> None:
        self.made: list[Connection] = []
        self.connections = PrimaryConnections(self._make, most)
        self._numbers = count()

    def _make(self) -> UpstreamConnection:
        self.made.append(Connection())
        return cast("UpstreamConnection", self.made[-1])

    def client(self) -> LinkClient:
        return cast("LinkClient", next(self._numbers))

    def come(self, path: str = "orders") -> tuple[LinkClient, Connection]:
        client = self.client()
        return client, self.taken_by(client, path)

    def taken_by(self, client: LinkClient, path: str = "payments") -> Connection:
        return cast("Connection", self.connections.of(client, path))


def test_a_client_keeps_its_connection_and_no_other_has_it() -> None:
    async def live() -> None:
        world = World()
        assert world.connections.state == "unused"
        (first, one), (_, two) = world.come(), world.come()
        assert one is not two
        assert world.taken_by(first) is one
        two.state = "lost"
        assert world.connections.state == "lost"
        one.state = "connected"
        assert world.connections.state == "connected"

    run_virtual(live())


def test_clients_beyond_the_bound_share_those_that_fewest_have() -> None:
    async def live() -> None:
        world = World(most=3)
        clients = [world.come() for _ in range(7)]
        assert list(Counter(id(one) for _, one in clients).values()) == [3, 2, 2]
        leaves, free = clients[1]
        world.connections.forget(leaves)
        assert world.come()[1] is free

    run_virtual(live())


def test_a_free_connection_is_taken_again_unless_it_has_sends_without_an_answer() -> None:
    async def live() -> None:
        world = World()
        came = [world.come() for _ in range(3)]
        for client, _ in came:
            world.connections.forget(client)
        busy, plain, with_link = (one for _, one in came)
        busy.is_busy, with_link.pools = True, {"orders": None}
        assert world.come("Orders")[1] is with_link
        assert world.come("orders")[1] is plain
        assert world.come("orders")[1] not in (busy, plain, with_link)

    run_virtual(live())


def test_a_connection_that_nobody_took_is_closed_and_one_stays() -> None:
    async def live() -> None:
        world = World()
        came = [world.come() for _ in range(4)]
        used, linked, unused, last = (one for _, one in came)
        linked.pools = {"orders": None}
        for client, _ in came[1:]:
            world.connections.forget(client)
        await asyncio.sleep(UNUSED_S + 2)
        # What has links still waits for an answer, or for a sender that comes again.
        assert [one.is_closed for one in (used, linked, unused, last)] == [0, 0, 1, 1]
        linked.pools = {}
        await asyncio.sleep(UNUSED_S + 2)
        assert linked.is_closed
        world.connections.forget(came[0][0])
        await asyncio.sleep(2 * UNUSED_S)
        assert [id(one) for one in world.connections] == [id(used)]
        assert not used.is_closed
        await world.connections.close()
        assert used.is_closed

    run_virtual(live())


def test_close_waits_for_a_connection_that_is_being_closed() -> None:
    async def live() -> None:
        world = World()
        (client, one), _ = world.come(), world.come()
        world.connections.forget(client)
        await asyncio.sleep(UNUSED_S + 0.5)
        assert not one.is_closed
        await world.connections.close()
        assert one.is_closed

    run_virtual(live())
