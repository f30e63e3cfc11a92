"""The running gateway: its client connections, its connections to both namespaces.

Each loop iteration: peers act on what arrived, then the output of all of them is written. Nothing
is stored here: an answer is written because a namespace gave one.

`GatewayLinks` checks the rights of a client before anything goes upstream. Sending to an entity
goes through the failover core. Receivers of an entity with a twin have both sides. Everything else
goes to the primary.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from twinbus.amqp.budgets import Budget
from twinbus.amqp.performatives import Coordinator, TransactionalState, encode_state
from twinbus.amqp.types import Symbol
from twinbus.broker.budgets import PROCESS_LINKS
from twinbus.broker.faults import FaultPlan
from twinbus.broker.links.context import RefusalTracker, rejected
from twinbus.broker.links.peer import Peer
from twinbus.broker.links.token_watch import TokenWatch
from twinbus.broker.profile import LAPTOP
from twinbus.broker.refusals import NotAllowed, NotSupported, Refusal, ServerBusy, Unauthorized
from twinbus.broker.sas import LISTEN, SEND, AccessPolicy
from twinbus.client.links import LinkPool, UpstreamConnection
from twinbus.gateway.primary_connections import PrimaryConnections
from twinbus.gateway.relay import PrimaryRelay, require_plain
from twinbus.gateway.relay_records import RelayRecords
from twinbus.gateway.relayed_links import RelayedReceiver, RelayedReplies, RelayedRequests
from twinbus.gateway.sending import (
    PENDING_BYTES_MAX,
    GatewaySendingLink,
    PendingSends,
    destination_of,
    may_send_until_ms,
)
from twinbus.gateway.transactions import LOST, RelayedCoordinator, not_served, require_token
from twinbus.gateway.twin_receiver import TwinReceiver
from twinbus.gateway.twins import GatewayTwins
from twinbus.namespace.access import endpoint_of
from twinbus.pairing.core.failover import Route
from twinbus.servicebus import conditions
from twinbus.servicebus.names import TRANSFER_DESTINATION, entity_of, is_entity_name
from twinbus.wording import visible

if TYPE_CHECKING:
    from twinbus.amqp.events import Disposed
    from twinbus.amqp.link import ReceiverLink, SenderLink
    from twinbus.broker.access import Admission
    from twinbus.broker.links.context import LinkClient, LinkOwner, PeerContext
    from twinbus.broker.port_access import PortAccess
    from twinbus.pairing.receiving.receivers import PairedReceivers
    from twinbus.pairing.sending.client import PairedClient

CLIENT_NAME_MAX: Final = 100
"""Characters kept of a client's container id; those of the SDKs have 36 to 60."""


class GatewayLinks:
    """What the gateway does with a client's links; a `LinkOpener`."""

    def __init__(
        self,
        context: PeerContext,
        paired: PairedClient,
        primary: PrimaryConnections,
        pending: PendingSends,
        twins: GatewayTwins | None = None,
    ) -> None:
        """`twins`: None if no entity has one."""
        self._context = context
        self._paired = paired
        self._primary = primary
        self._pending = pending
        self._twins = twins
        self._endpoint = endpoint_of(paired.state.primary)
        self._relays: dict[LinkClient, PrimaryRelay] = {}
        unit = "links that are open, or being opened or closed"
        self._upstream_links = Budget("this gateway", unit, PROCESS_LINKS)

    def sending(
        self, client: LinkClient, link: ReceiverLink, address: str, now_ms: int
    ) -> LinkOwner:
        if isinstance(link.target, Coordinator):
            return self._coordinator(client, link, now_ms)
        destination = destination_of(link)
        granted_until_ms = may_send_until_ms(client, address, destination, now_ms)
        path = address if destination is None else destination
        for each in (address, path):
            if not is_entity_name(each):
                raise NotAllowed(f"{each!r} is no queue or topic that messages can be sent to.")
        if destination is not None:
            # What was checked goes to the primary, with our credential, and not what was sent.
            link.properties = {**link.properties, Symbol(TRANSFER_DESTINATION): destination}
        pool = self._primary.of(client, path).pool(path)
        target = self._paired.target(path, pool, _name_of(client))
        sending = GatewaySendingLink(
            self._pending,
            client,
            link,
            address,
            target,
            pool,
            granted_until_ms,
            partial(self._relay, client),
        )
        link.owner = sending
        sending.attach()
        return sending

    def receiving(
        self, client: LinkClient, link: SenderLink, address: str, now_ms: int
    ) -> LinkOwner:
        """A receiver from the primary, and from the twin of an entity that has one."""
        granted_until_ms = client.grants.require(address, LISTEN, now_ms)
        require_plain(address)
        if self._twins is not None:
            both = self._twins.receiver(
                client,
                link,
                address,
                granted_until_ms,
                name=_name_of(client),
                links=self._relay(client).links,
            )
            if both is not None:
                return both
        relay = self._relay(client)
        receiver = RelayedReceiver(relay, link, address, granted_until_ms)
        relay.begin(receiver)
        return receiver

    def requests(self, client: LinkClient, link: ReceiverLink, address: str) -> LinkOwner:
        """Requests to a `$management` node of the primary; each needs a right of its own too."""
        self._require_node(client, address)
        relay = self._relay(client)
        names = None if relay.records is None else relay.records.received
        twins = None
        if self._twins is not None:
            twins = self._twins.requests(client, address, _name_of(client), names)
        requests = RelayedRequests(self._context, relay, link, address, twins)
        relay.begin_node(requests)
        return requests

    def replies(self, client: LinkClient, link: SenderLink, address: str) -> LinkOwner:
        self._require_node(client, address)
        relay = self._relay(client)
        replies = RelayedReplies(relay, link, address)
        relay.begin(replies)
        return replies

    def settle(self, event: Disposed, now_ms: int) -> None:
        if event.state is None and not event.settled:
            return
        if isinstance(event.state, TransactionalState):
            self._settle_in(event, event.state)
            return
        settled: dict[RelayedReceiver | TwinReceiver, list[int]] = {}
        for number, link, _ in event.session.take_unsettled(event.first, event.last):
            if isinstance(link.owner, RelayedReceiver | TwinReceiver):
                settled.setdefault(link.owner, []).append(number)
        for receiver, numbers in settled.items():
            receiver.settle(numbers, event)

    def _settle_in(self, event: Disposed, state: TransactionalState) -> None:
        """Settle in a transaction, with the primary."""
        session = event.session
        found = session.take_unsettled if event.settled else session.find_unsettled
        numbers: dict[RelayedReceiver | TwinReceiver, list[int]] = {}
        for number, link, _ in found(event.first, event.last):
            if isinstance(link.owner, RelayedReceiver | TwinReceiver):
                numbers.setdefault(link.owner, []).append(number)
        for receiver, settled in numbers.items():
            refusal: Refusal = ServerBusy(LOST)
            if isinstance(receiver, TwinReceiver):
                refusal = NotSupported(
                    f"Messages of {receiver.address!r} come from both sides (--twin), and a "
                    "transaction has one. Settle them without a transaction."
                )
            elif not self._is_served(receiver.address):
                refusal = not_served(receiver.address)
            elif receiver.settle_in(settled, event, state):
                continue
            self._refuse_in(receiver, settled, event, state, refusal)

    def _refuse_in(
        self,
        receiver: RelayedReceiver | TwinReceiver,
        numbers: list[int],
        event: Disposed,
        state: TransactionalState,
        refusal: Refusal,
    ) -> None:
        """Reject settlements, which can be given again, and let their transaction fail."""
        client = receiver.client
        client.log_refusal(f"a transactional settlement in {receiver.address!r}", refusal)
        self._relay(client).doom(state.txn_id, refusal.description)
        if not event.settled:
            answer = encode_state(rejected(refusal))
            for number in numbers:
                event.session.confirm(number, number, answer)
            client.touch()

    def _is_served(self, address: str) -> bool:
        """Whether the primary serves the entity, as far as its sends tell."""
        entity = self._paired.state.monitors.find(entity_of(address))
        return entity is None or entity.failover.route is Route.PRIMARY

    def _coordinator(self, client: LinkClient, link: ReceiverLink, now_ms: int) -> LinkOwner:
        relay = self._relay(client)
        require_token(relay, now_ms)
        coordinator = RelayedCoordinator(relay, link)
        relay.begin(coordinator)
        return coordinator

    def disconnected(self, client: LinkClient) -> None:
        self._pending.forget(client)
        self._primary.forget(client)
        if self._twins is not None:
            self._twins.disconnected(client)
        relay = self._relays.pop(client, None)
        if relay is not None:
            self._pending.spawn(relay.close())

    def _require_node(self, client: LinkClient, address: str) -> None:
        """Raise unless the client may send or listen: its link goes to the primary as ours."""
        require_plain(address)
        now_ms = self._context.now_ms()
        try:
            client.grants.require(address, SEND, now_ms)
        except Unauthorized:
            client.grants.require(address, LISTEN, now_ms)

    def _relay(self, client: LinkClient) -> PrimaryRelay:
        relay = self._relays.get(client)
        if relay is None:
            state = self._paired.state
            recorder = state.recorder
            relay = self._relays[client] = PrimaryRelay(
                self._endpoint,
                client,
                self._pending.spawn,
                state.environment.connect,
                RelayRecords(recorder, _name_of(client)) if recorder.is_on else None,
                answer_s=state.policy.attempt_timeout_s,
                links=self._upstream_links,
            )
        return relay


def _name_of(client: LinkClient) -> str | None:
    """What the ledger calls a client."""
    return visible(client.container_id[:CLIENT_NAME_MAX]) or None


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
        pending_bytes_max: int = PENDING_BYTES_MAX,
        receivers: PairedReceivers | None = None,
    ) -> None:
        """`patience_s`: how long a client's send may wait for a namespace to accept it.

        `receivers` are those of the pair, if an entity has a twin.
        """
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
        connect = state.environment.connect
        self.primary = PrimaryConnections(
            partial(UpstreamConnection, state.primary, answer_s, connect)
        )
        self.secondary = UpstreamConnection(state.secondary, answer_s, connect)
        self.peers: set[Peer] = set()
        self._watch = TokenWatch(self, access.accepted_tokens)
        self.pending = PendingSends(name, patience_s, pending_bytes_max)
        self.turns = self.pending.turns
        self._to_collect: dict[Peer, None] = {}
        self._is_tick_due = False
        self.twins: GatewayTwins | None = None
        if receivers is not None:
            self.twins = GatewayTwins(receivers, state.primary.label, self.pending.spawn)
        self._links = GatewayLinks(self, client, self.primary, self.pending, self.twins)

    async def start(self) -> None:
        """Divert over raw links too."""
        # Spans belong to an application; the gateway's own process has none to continue.
        self.client.state.tracing = None
        await self.client.state.divert_by(self._backlog_pool)
        self._watch.start()

    def now_ms(self) -> int:
        return self.client.state.environment.wall_ms()

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
        return Peer(self, self._links)

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

    def _backlog_pool(self, queue: str) -> LinkPool:
        learn = partial(self.client.state.limits_of(queue).learn, queue)
        return self.secondary.pool(queue, learn, splits=True)

    async def drain(self, limit_s: float) -> None:
        """Take no more from clients; return when what is in flight has been answered."""
        for peer in self.peers:
            peer.pause_reading()
        await self.pending.drain(limit_s)

    async def close(self) -> None:
        """Close the client connections, then those to the namespaces."""
        self._watch.close()
        self.turns.close()
        self._tick()
        for peer in list(self.peers):
            peer.close(conditions.CONNECTION_FORCED, "the gateway is shutting down", linger=False)
        if self.twins is not None:
            await self.twins.close()
        await self.pending.close()
        await asyncio.gather(self.primary.close(), self.secondary.close())
