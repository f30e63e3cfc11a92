"""A client's sender link: each delivery goes through the failover core, and is answered then.

While the entity is healthy, deliveries pass straight to the gateway's own link to the primary, many
in flight. A delivery that fails there, and every one while the entity is not healthy, becomes a
call of the same kind as a paired sender's (SPEC 3). The client's disposition is written when a
namespace has accepted the message, or when the call has ended with an error.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from twinbus.amqp.events import DeliveryArrived, DeliveryTooLarge
from twinbus.amqp.link import LinkState, ReceiverLink
from twinbus.amqp.performatives import ACCEPTED_BYTES, encode_state
from twinbus.broker.links.context import LinkClient, rejected
from twinbus.broker.links.owner import LinkOwner
from twinbus.broker.refusals import MessageTooLarge, Refusal
from twinbus.broker.sas import SEND
from twinbus.gateway.conditions import refusal_of
from twinbus.gateway.messages import BATCH_ALLOWANCE, EncodedMessages
from twinbus.gateway.upstream import LinkPool
from twinbus.pairing.core.classify import meaning_of
from twinbus.pairing.core.failover import EntityState, Route
from twinbus.pairing.sending.calls import translated
from twinbus.pairing.sending.send_calls import SendingCall

if TYPE_CHECKING:
    from twinbus.gateway.holding import HeldSends
    from twinbus.pairing.sending.calls import SendTarget

CREDIT: Final = 2_000
"""Deliveries of one link that the gateway holds without an answer, at most."""

UNKNOWN_LIMIT_BYTES: Final = 1024 * 1024
"""Message limit of a link that is opened while the primary cannot say its own: Azure Standard takes
256 KB and Premium 1 MB for a batch. A backlog queue's own limit holds as well."""


class GatewaySendingLink(LinkOwner):
    """One sender of one client."""

    is_on_entity = True

    def __init__(
        self,
        held: HeldSends,
        client: LinkClient,
        link: ReceiverLink,
        address: str,
        target: SendTarget,
        pool: LinkPool,
        granted_until_ms: int,
    ) -> None:
        self.address = address
        self.link = link
        self._in_flight = held
        self._client = client
        self._target = target
        self._pool = pool
        self._granted_until_ms = granted_until_ms
        self._held = 0
        """Deliveries without an answer."""
        self._calls = 0
        """How many of them are calls: later ones do not overtake them."""
        self._is_closed = False
        self._stop_listening = target.entity.on_change(self._entity_changed)
        pool.users += 1

    def attach(self) -> None:
        """Answer the client's attach: at once, or when the primary has answered ours."""
        if self._target.entity.failover.route is not Route.PRIMARY or self._pool.is_ready:
            self._accept()
        else:
            self._in_flight.spawn(self._attach())

    async def _attach(self) -> None:
        """Open our own link first, so that a missing entity is found when the client attaches."""
        entity, state = self._target.entity, self._target.state
        try:
            await self._pool.open()
        except Exception as caught:  # noqa: BLE001  # every failure is judged
            error = translated(caught, entity.path, state.policy.attempt_timeout_s)
            counts = state.counts(error)
            if self._is_closed:
                return  # Without a sender the entity may have been forgotten meanwhile.
            # Opening the link counts like sending (SPEC 3); the client may send all the same.
            entity.attempt_failed(error, counts=counts)
            if not counts and not meaning_of(error).retried:
                self._refuse(refusal_of(error))
                return
        self._accept()

    def _refuse(self, refusal: Refusal) -> None:
        if self.link.state is LinkState.OFFERED:
            self.link.owner = None
            self._client.refuse(self.link, self.address, refusal)
            self.close(0)

    def _accept(self) -> None:
        if self.link.state is not LinkState.OFFERED:
            return
        limit_bytes = self._pool.limit_bytes or UNKNOWN_LIMIT_BYTES
        self.link.limit_bytes = limit_bytes + BATCH_ALLOWANCE
        self.link.rejects_oversize = True
        self.link.accept(max_message_size=limit_bytes)
        self.link.grant(CREDIT)
        self._client.touch()

    def granted_until_ms(self, now_ms: int) -> int:
        """When the right to send ends; raises `Unauthorized` if it has ended."""
        if now_ms >= self._granted_until_ms:
            self._granted_until_ms = self._client.grants.require(self.address, SEND, now_ms)
        return self._granted_until_ms

    def close(self, now_ms: int) -> None:
        """The client is gone; what is in flight goes on to its end."""
        self._is_closed = True
        if not self._held:
            self._leave()

    def _leave(self) -> None:
        """Forget the entity and its link, unless others use them."""
        self._stop_listening()
        self._target.state.watched.release(self._target.entity)
        self._pool.release()

    # Deliveries

    def take(self, event: DeliveryArrived, now_ms: int) -> None:
        """Take one delivery; its answer comes when a namespace has it."""
        self._held += 1
        self._in_flight.hold(self._client, len(event.payload))
        try:
            self.granted_until_ms(now_ms)
            messages = EncodedMessages.of(
                event.payload,
                event.message_format,
                self._target.entity.path,
                self._target.state.limits.watched,
                has_own_ids=self._target.state.message_ids.own_in_backlog,
            )
        except Refusal as refusal:
            self._end(event, refusal)
            return
        entity = self._target.entity
        is_direct = (
            not self._calls
            and entity.failover.route is Route.PRIMARY
            and not messages.suspects
            and self._target.sessions is None
            and self._pool.is_ready
            and not self._is_too_large(messages)
        )
        if not is_direct:
            self._calls += 1
            self._in_flight.spawn(self._call(event, messages))
            return
        began = self._in_flight.loop.time()
        self._pool.send(messages.payload, partial(self._answered, event, messages, began))

    def refuse_oversize(self, event: DeliveryTooLarge, now_ms: int) -> None:
        refusal = MessageTooLarge(
            f"The received message (delivery-id:{event.delivery_id}, size: more than "
            f"{self.link.limit_bytes} bytes) exceeds the limit "
            f"({self.link.limit_bytes - BATCH_ALLOWANCE} bytes) currently allowed on the link."
        )
        if event.settled:
            # Nobody waits for a disposition; only a detach tells the client.
            self._client.detach(self.link, refusal)
            return
        self._client.log_refusal(f"a message to {self.address!r}", refusal)
        self._settle(event.delivery_id, encode_state(rejected(refusal)))

    def _is_too_large(self, messages: EncodedMessages) -> bool:
        limit_bytes = self._pool.limit_bytes
        return limit_bytes is not None and len(messages.payload.data) > limit_bytes

    def _answered(
        self,
        event: DeliveryArrived,
        messages: EncodedMessages,
        began: float,
        error: Exception | None,
    ) -> None:
        """The primary answered a delivery that was sent directly, or did not in time."""
        if error is not None:
            self._calls += 1
            self._in_flight.spawn(self._call(event, messages, error, began))
            return
        target = self._target
        if target.state.recorder.is_on:
            now = self._in_flight.loop.time()
            target.state.recorder.attempted(
                target.entity.path, None, messages.measured(), began, now, client=target.client
            )
        target.entity.succeeded(len(messages))
        self._end(event, None)

    async def _call(
        self,
        event: DeliveryArrived,
        messages: EncodedMessages,
        failed: Exception | None = None,
        began: float | None = None,
    ) -> None:
        """Send the messages wherever the decisions of the core lead, within the patience."""
        state, loop = self._target.state, self._in_flight.loop
        start = loop.time() if began is None else began
        call = SendingCall(self._target, messages, start + self._in_flight.patience_s)
        refusal: Refusal | None = None
        try:
            if failed is not None:
                await call.run_after(failed, start, state.policy.attempt_timeout_s)
            else:
                if messages.suspects:
                    call.guard()
                await call.run()
        except Exception as error:  # noqa: BLE001  # the client gets it, whatever it is
            self._target.entity.call_raised(len(messages), error)
            refusal = refusal_of(error)
        finally:
            self._calls -= 1
        self._end(event, refusal)

    def _end(self, event: DeliveryArrived, refusal: Refusal | None) -> None:
        """Answer a delivery: accepted, or rejected with this condition."""
        self._held -= 1
        self._in_flight.release(len(event.payload))
        if self._is_closed and not self._held:
            self._leave()
        if refusal is not None:
            self._client.log_refusal(f"a message to {self.address!r}", refusal)
        if not event.settled:
            state = ACCEPTED_BYTES if refusal is None else encode_state(rejected(refusal))
            self._settle(event.delivery_id, state)

    def _settle(self, number: int, state: bytes) -> None:
        link = self.link
        if link.state is not LinkState.OPEN:
            return
        link.session.settle(number, number, state, as_receiver=True)
        # What is held counts as used: credit is bounded by what the namespaces take.
        # There is none for a client that sends more than it has credit for.
        room = CREDIT - self._held
        if room > 0 and link.credit < room - CREDIT // 4 and not self._in_flight.is_closing:
            link.grant(room)
        self._client.touch()

    def _entity_changed(self) -> None:
        """Open a link to the backlog before a failover needs it."""
        if self._target.entity.failover.state is EntityState.SUSPECT:
            self._target.state.warm(self._target.backlog)
