"""Opens the links of the gateway's clients: rights are checked here, before anything goes upstream.

Sending to an entity goes through the failover core. Everything else goes to the primary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.broker.links.sending import refuse_transactions
from twinbus.broker.refusals import NotAllowed, Unauthorized
from twinbus.broker.sas import LISTEN, SEND
from twinbus.gateway.addresses import require_plain
from twinbus.gateway.relay import PrimaryRelay
from twinbus.gateway.relayed_links import RelayedReceiver, RelayedReplies, RelayedRequests
from twinbus.gateway.sending import GatewaySendingLink
from twinbus.gateway.upstream import LinkSenders
from twinbus.namespace.endpoint import endpoint_of
from twinbus.transfer.entity_names import is_entity_name
from twinbus.wording import visible

if TYPE_CHECKING:
    from twinbus.amqp.events import Disposed
    from twinbus.amqp.link import ReceiverLink, SenderLink
    from twinbus.broker.links.context import LinkClient, PeerContext
    from twinbus.broker.links.owner import LinkOwner
    from twinbus.client.links import UpstreamConnection
    from twinbus.gateway.holding import HeldSends
    from twinbus.pairing.sending.client import PairedClient

CLIENT_NAME_MAX: Final = 100
"""Characters kept of a client's container id; those of the SDKs have 36 to 60."""


class GatewayLinks:
    """What the gateway does with a client's links; a `LinkOpener`."""

    def __init__(
        self,
        context: PeerContext,
        paired: PairedClient,
        primary: UpstreamConnection,
        held: HeldSends,
    ) -> None:
        self._context = context
        self._paired = paired
        self._primary = primary
        self._held = held
        self._endpoint = endpoint_of(paired.state.primary)
        self._relays: dict[LinkClient, PrimaryRelay] = {}

    def sending(
        self, client: LinkClient, link: ReceiverLink, address: str, now_ms: int
    ) -> LinkOwner:
        """A sender to a queue or a topic."""
        refuse_transactions(link)
        granted_until_ms = client.grants.require(address, SEND, now_ms)
        if not is_entity_name(address):
            raise NotAllowed(f"{address!r} is no queue or topic that messages can be sent to.")
        pool = self._primary.pool(address)
        name = visible(client.container_id[:CLIENT_NAME_MAX]) or None
        target = self._paired.target(address, LinkSenders(pool), name)
        sending = GatewaySendingLink(
            self._held, client, link, address, target, pool, granted_until_ms
        )
        link.owner = sending
        sending.attach()
        return sending

    def receiving(
        self, client: LinkClient, link: SenderLink, address: str, now_ms: int
    ) -> LinkOwner:
        """A receiver from the primary."""
        granted_until_ms = client.grants.require(address, LISTEN, now_ms)
        require_plain(address)
        relay = self._relay(client)
        receiver = RelayedReceiver(relay, link, address, granted_until_ms)
        relay.begin(receiver)
        return receiver

    def requests(self, client: LinkClient, link: ReceiverLink, address: str) -> LinkOwner:
        """Requests to a `$management` node of the primary; each needs a right of its own too."""
        self._require_node(client, address)
        relay = self._relay(client)
        requests = RelayedRequests(self._context, relay, link, address)
        relay.begin_node(requests)
        return requests

    def replies(self, client: LinkClient, link: SenderLink, address: str) -> LinkOwner:
        """Answers of a `$management` node of the primary."""
        self._require_node(client, address)
        relay = self._relay(client)
        replies = RelayedReplies(relay, link, address)
        relay.begin(replies)
        return replies

    def settle(self, event: Disposed, now_ms: int) -> None:
        """Settle with the primary what the client settled here."""
        if event.state is None and not event.settled:
            return
        settled: dict[RelayedReceiver, list[int]] = {}
        for number, link, _ in event.session.take_unsettled(event.first, event.last):
            if isinstance(link.owner, RelayedReceiver):
                settled.setdefault(link.owner, []).append(number)
        for receiver, numbers in settled.items():
            receiver.settle(numbers, event)

    def disconnected(self, client: LinkClient) -> None:
        """Close the client's connection to the primary."""
        relay = self._relays.pop(client, None)
        if relay is not None:
            self._held.spawn(relay.close())

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
            relay = PrimaryRelay(self._endpoint, client, self._held.spawn)
            self._relays[client] = relay
        return relay
