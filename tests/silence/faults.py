"""What makes a receiver fall silent: eight faults of a namespace, struck in an embedded broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tests.contract.pairs import until
from tests.silence.proxy import SilentProxy
from twinbus import EmbeddedBroker
from twinbus.amqp.link import SenderLink
from twinbus.broker.links.client_limits import LinkIdle
from twinbus.broker.links.peer import Peer
from twinbus.broker.links.receiving import DeliveringLink
from twinbus.broker.refusals import Refusal
from twinbus.broker.server import BrokerServer
from twinbus.servicebus import conditions

IDLE_S = 600.0
"""After this time the service detaches a link without transfers."""


LINKS_S = 60.0
"""How long receivers may take until all have a link with credit at once."""


@dataclass(frozen=True)
class Stricken:
    """The namespace that a fault strikes, and how its receivers reach it."""

    broker: EmbeddedBroker
    namespace: str
    proxy: SilentProxy
    down_s: float
    """How long a restart takes."""

    async def wait_for_links(self, count: int) -> None:
        """Wait until so many receivers have a link with credit.

        A guard checks its link and replaces it now and then: a fault does not strike a receiver
        that has no link at that moment.
        """
        server = self.broker._host.server(self.namespace)

        def with_credit() -> int:
            links = [link for _, link in _delivering(server)]
            return sum(link.credit > 0 and not link.drain for link in links)

        await until(lambda: self.broker._call(with_credit) >= count, LINKS_S)

    def on_links(self, act: Callable[[BrokerServer, Peer, SenderLink], None]) -> None:
        """Do this, in the broker's thread, to each link that delivers to a client."""
        server = self.broker._host.server(self.namespace)

        def act_on_all() -> None:
            for peer, link in list(_delivering(server)):
                act(server, peer, link)
            server.wake()

        self.broker._call(act_on_all)


def _delivering(server: BrokerServer) -> Iterator[tuple[Peer, SenderLink]]:
    for peer in server.peers:
        for link in peer.entity_links():
            if isinstance(link, SenderLink) and isinstance(link.owner, DeliveringLink):
                yield peer, link


class LinkStolen(Refusal):
    condition = "amqp:link:stolen"


class LinkForced(Refusal):
    condition = conditions.DETACH_FORCED


async def detach_idle_links(stricken: Stricken) -> None:
    stricken.on_links(lambda _, peer, link: peer.detach(link, LinkIdle(link, IDLE_S)))


async def force_links(stricken: Stricken) -> None:
    text = "The broker closes the link: the entity moves to another node."
    stricken.on_links(lambda _, peer, link: peer.detach(link, LinkForced(text)))


async def force_connections(stricken: Stricken) -> None:
    seen: set[Peer] = set()

    def expel(_: BrokerServer, peer: Peer, link: SenderLink) -> None:
        if peer not in seen:
            seen.add(peer)
            peer.expel(conditions.CONNECTION_FORCED, "The connection was closed by the container.")

    stricken.on_links(expel)


async def make_half_open(stricken: Stricken) -> None:
    stricken.proxy.fall_silent()


async def restart(stricken: Stricken) -> None:
    stricken.broker.cut_off(stricken.namespace)
    await asyncio.sleep(stricken.down_s)
    stricken.broker.serve_again(stricken.namespace)


async def expire_tokens(stricken: Stricken) -> None:
    """Let the tokens of all clients be over: the broker detaches their links as at the real end."""
    seen: set[Peer] = set()

    def expire(server: BrokerServer, peer: Peer, link: SenderLink) -> None:
        owner: Any = link.owner
        owner._granted_until_ms = 0
        if peer not in seen:
            seen.add(peer)
            grants = peer.grants._by_audience
            for audience, grant in grants.items():
                grants[audience] = replace(grant, expires_at_s=server.now_ms() / 1000 - 1)
            server.loop.call_soon(peer._end_expired)

    stricken.on_links(expire)


async def steal_links(stricken: Stricken) -> None:
    text = "The link was stolen: another link with its name was opened."
    stricken.on_links(lambda _, peer, link: peer.detach(link, LinkStolen(text)))


async def forget_links(stricken: Stricken) -> None:
    """Let the entities forget their receivers, whose links stay open."""

    def forget(server: BrokerServer, _: Peer, link: SenderLink) -> None:
        owner: Any = link.owner
        server.dispatcher.remove(owner)

    stricken.on_links(forget)


FAULTS: dict[str, Callable[[Stricken], Awaitable[None]]] = {
    "idle detach": detach_idle_links,
    "forced close of the link": force_links,
    "forced close of the connection": force_connections,
    "half-open connection": make_half_open,
    "primary restarted": restart,
    "token expired": expire_tokens,
    "link stolen": steal_links,
    "link forgotten by the entity": forget_links,
}
