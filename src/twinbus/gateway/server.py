"""The running gateway: its client connections, its connections to both namespaces, what it holds.

Each loop iteration: peers act on what arrived, then the output of all of them is written. Nothing
is stored here: an answer is written because a namespace gave one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from twinbus.broker.faults import FaultPlan
from twinbus.broker.links.peer import Peer
from twinbus.broker.profile import LAPTOP
from twinbus.broker.sas import AccessPolicy
from twinbus.broker.tracking import RefusalTracker
from twinbus.client.links import UpstreamConnection
from twinbus.gateway.holding import HELD_BYTES_MAX, HeldSends
from twinbus.gateway.opening import GatewayLinks
from twinbus.gateway.upstream import LinkSenders

if TYPE_CHECKING:
    from twinbus.broker.access.admission import Admission
    from twinbus.broker.port_access import PortAccess
    from twinbus.pairing.sending.client import PairedClient

log = logging.getLogger("twinbus.gateway")


class GatewayServer:
    """Accepts clients and sends for them; `PeerContext` and owner of their connections."""

    def __init__(
        self,
        name: str,
        client: PairedClient,
        access: PortAccess,
        *,
        patience_s: float,
        held_bytes_max: int = HELD_BYTES_MAX,
    ) -> None:
        """`patience_s`: how long a client's send may wait for a namespace to accept it."""
        self.name = name
        self.loop = asyncio.get_running_loop()
        self.policy = AccessPolicy(
            access.rules, tokens=access.accepted_tokens, require_token=access.require_token
        )
        self.admission: Admission = access.admission
        self.faults = FaultPlan(lambda: 0.0)
        self.profile = LAPTOP
        self.track = RefusalTracker(name, self.now_ms)
        self.client = client
        state = client.state
        answer_s = state.policy.attempt_timeout_s
        self.primary = UpstreamConnection(state.primary, answer_s)
        self.secondary = UpstreamConnection(state.secondary, answer_s)
        self.peers: set[Peer] = set()
        self.held = HeldSends(name, patience_s, held_bytes_max)
        self._to_collect: dict[Peer, None] = {}
        self._is_tick_due = False
        self._links = GatewayLinks(self, client, self.primary, self.held)

    async def start(self) -> None:
        """Divert over raw links too."""
        # Spans belong to an application; the gateway's own process has none to continue.
        self.client.state.tracing = None
        await self.client.state.divert_by(self._backlog_pool)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def state(self) -> dict[str, object]:
        """The connections for sends to both namespaces, and whether there is a backlog to use.

        Anyone may ask for it: no address and no name.
        """
        rotation, verification = self.client.state.rotation, self.client.state.verification
        is_lost = rotation.secondary.is_lost or bool(verification.error)
        return {
            "primary": self.primary.state,
            "secondary": self.secondary.state,
            "protected": rotation.protected and not is_lost,
        }

    def resolve(self, path: str) -> object:
        """Every entity may exist: only the primary knows, and it may be down."""
        return None

    def peer(self) -> Peer:
        """The protocol of one client's connection."""
        return Peer(self, self, self._links)

    def collect(self, peer: Peer) -> None:
        self._to_collect[peer] = None
        self.wake()

    def wake(self) -> None:
        """Write the output of all peers at the end of this loop iteration."""
        if not self._is_tick_due:
            self._is_tick_due = True
            self.loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._is_tick_due = False
        now_ms = self.now_ms()
        peers, self._to_collect = self._to_collect, {}
        for peer in peers:
            write = peer.collect_output(now_ms)
            if write is not None:
                write()

    def _backlog_pool(self, queue: str) -> LinkSenders:
        learn = partial(self.client.state.limits.learn, queue)
        return LinkSenders(self.secondary.pool(queue, learn), splits=True)

    async def drain(self, limit_s: float) -> None:
        """Take no more from clients; return when what is in flight has been answered."""
        for peer in self.peers:
            peer.pause_reading()
        await self.held.drain(limit_s)

    async def close(self) -> None:
        """Close the client connections, then those to the namespaces."""
        self._tick()
        for peer in list(self.peers):
            peer.close("amqp:connection:forced", "the gateway is shutting down", linger=False)
        await self.held.close()
        await asyncio.gather(self.primary.close(), self.secondary.close())
