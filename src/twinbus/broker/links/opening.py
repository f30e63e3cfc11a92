"""Opens the links of the broker's clients to its entities and their `$management` nodes."""

from __future__ import annotations

from functools import partial

from twinbus.amqp.events import Disposed
from twinbus.amqp.link import ReceiverLink, SenderLink
from twinbus.amqp.message import Sections
from twinbus.broker.links import management
from twinbus.broker.links.context import BrokerContext, LinkClient, new_message_id
from twinbus.broker.links.management_request import ManagementContext
from twinbus.broker.links.receiving import ReceivingLink
from twinbus.broker.links.replies import ReplyLink
from twinbus.broker.links.requests import RequestLink
from twinbus.broker.links.sending import SendingLink, refuse_transactions
from twinbus.broker.links.settling import settle
from twinbus.broker.refusals import QuotaExceeded
from twinbus.broker.sas import LISTEN, SEND
from twinbus.servicebus.names import MANAGEMENT_SUFFIX


class EntityLinks:
    """What the broker does with a client's links; a `LinkOpener`."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    def receiving(
        self, client: LinkClient, link: SenderLink, address: str, now_ms: int
    ) -> ReceivingLink:
        """A receiver of a queue, a subscription or a dead-letter queue."""
        granted_until_ms = client.grants.require(address, LISTEN, now_ms)
        queue = self._context.namespace.receive_source(address)
        limit = self._context.profile.receivers_max
        if limit is not None and self._context.dispatcher.receiver_count(queue) >= limit:
            raise QuotaExceeded(
                f"{queue.path!r} has {limit} concurrent receives, which is the limit; close some."
            )
        receiving = ReceivingLink(self._context, client, link, queue, address, granted_until_ms)
        link.owner = receiving
        receiving.attach(now_ms)
        return receiving

    def sending(
        self, client: LinkClient, link: ReceiverLink, address: str, now_ms: int
    ) -> SendingLink:
        """A sender to a queue or a topic."""
        refuse_transactions(link)
        granted_until_ms = client.grants.require(address, SEND, now_ms)
        entity = self._context.namespace.send_target(address)
        sending = SendingLink(self._context, client, link, entity, address, granted_until_ms)
        sending.attach()
        return sending

    def requests(self, client: LinkClient, link: ReceiverLink, address: str) -> RequestLink:
        """The link on which a client sends requests to a `$management` node."""
        respond = partial(self._respond, client, address.lower())
        node = RequestLink(self._context, client, link, address, respond)
        node.attach()
        return node

    def replies(self, client: LinkClient, link: SenderLink, address: str) -> ReplyLink:
        """The link on which a client reads the answers of a `$management` node."""
        link.accept()
        return ReplyLink(client.replies, link, address)

    def settle(self, event: Disposed, now_ms: int) -> None:
        settle(event, now_ms)

    def disconnected(self, client: LinkClient) -> None:
        """Nothing is kept for a client beside its links."""

    def _respond(self, client: LinkClient, address: str, request: Sections, now_ms: int) -> bytes:
        broker = self._context

        def require(right: str) -> None:
            # On the node itself: some SDKs put their token for it, others for the whole entity.
            client.grants.require(address, right, now_ms)
            if right == SEND:
                broker.require_space()

        context = ManagementContext(
            namespace=broker.namespace,
            address=address.removesuffix(MANAGEMENT_SUFFIX),
            require=require,
            holder=client.holder,
            payload=broker.store.payload,
            new_message_id=new_message_id,
            track=broker.track,
            credits=broker.credits,
        )
        return management.handle(request, context, now_ms)
