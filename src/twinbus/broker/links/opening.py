"""Opens the links of the broker's clients to its entities and their `$management` nodes.

Also settles the deliveries that a client received over them.
"""

from __future__ import annotations

from functools import partial

from twinbus.amqp.events import Disposed
from twinbus.amqp.link import LinkSession, ReceiverLink, SenderLink
from twinbus.amqp.message import Sections
from twinbus.amqp.performatives import Accepted, DeliveryState, Rejected, encode_state
from twinbus.broker.links import management
from twinbus.broker.links.context import BrokerContext, LinkClient, new_message_id
from twinbus.broker.links.management_request import ManagementContext
from twinbus.broker.links.owner import ReplyLink
from twinbus.broker.links.receiving import ReceivingLink
from twinbus.broker.links.requests import RequestLink
from twinbus.broker.links.sending import SendingLink, refuse_transactions
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


def settle(event: Disposed, now_ms: int) -> None:
    """Settle the deliveries of a disposition, and answer it."""
    if event.state is None and not event.settled:
        return
    session = event.session
    answer = encode_state(_echo(event.state))
    taken = session.take_unsettled(event.first, event.last)
    if type(event.state) is Accepted and not event.settled:
        taken = _complete_all(session, taken, answer, now_ms)
    for delivery_id, link, lock_token in taken:
        owner = link.owner
        if not isinstance(owner, ReceivingLink):
            continue
        failure = owner.settle(lock_token, event.state, now_ms)
        if not event.settled:
            session.settle(delivery_id, delivery_id, failure or answer, as_receiver=False)
    # One answer for each disposition, as wide as that: the SDK waits for a frame of its own
    # for each of many completes at once, 0.2 s where one frame answers them all.
    session.flush()


def _complete_all(
    session: LinkSession,
    taken: list[tuple[int, SenderLink, bytes]],
    answer: bytes,
    now_ms: int,
) -> list[tuple[int, SenderLink, bytes]]:
    """Complete the deliveries of one link at once; return those to be settled one by one.

    That is all of them if they came by several links or one of them cannot be completed.
    """
    if len(taken) < 2 or len({link for _, link, _ in taken}) > 1:
        return taken
    first, last = taken[0][0], taken[-1][0]
    owner = taken[0][1].owner
    if not isinstance(owner, ReceivingLink) or last - first != len(taken) - 1:
        return taken
    if not owner.complete_all([token for _, _, token in taken], now_ms):
        return taken
    session.settle(first, last, answer, as_receiver=False)
    return []


def _echo(state: object) -> DeliveryState:
    """The state that confirms a client's own: a rejection is echoed without its error.

    The SDKs read a rejection that carries an error as a failure of the settlement.
    """
    if isinstance(state, Rejected):
        return Rejected()
    return state if isinstance(state, DeliveryState) else Accepted()
