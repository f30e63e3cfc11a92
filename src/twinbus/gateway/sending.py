"""A client's sender link: each delivery goes through the failover core, and is answered then.

While the entity is healthy, deliveries pass straight to the gateway's own link to the primary, many
in flight. A delivery that fails there, and every one while the entity is not healthy, becomes a
call of the same kind as a paired sender's. The client's disposition is written when a
namespace has accepted the message, or when the call has ended with an error.

On a healthy entity a retry holds back the later deliveries of the link, so that they arrive in
their order (docs/gateway.md).

A hung namespace must not fill the memory (`PendingSends`): the gateway stops reading from a client
that holds more than its share, and the credit of each link is bounded by what it has in flight.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from twinbus.amqp.events import DeliveryArrived, DeliveryRun, DeliveryTooLarge
from twinbus.amqp.link import MAX_MESSAGE_BYTES, LinkState, ReceiverLink
from twinbus.amqp.performatives import ACCEPTED_BYTES, TransactionalState, encode_state
from twinbus.broker.links.context import LinkClient, LinkOwner, rejected
from twinbus.broker.links.prepared import is_batch
from twinbus.broker.links.turns import Steps, Turns, at_once
from twinbus.broker.refusals import MessageTooLarge, QuotaExceeded, Refusal
from twinbus.broker.sas import SEND
from twinbus.client.links import LinkPool
from twinbus.gateway.direct_runs import DirectRun, PlainDeliveries
from twinbus.gateway.messages import EncodedMessages
from twinbus.gateway.node_requests import Holding
from twinbus.gateway.relay import PrimaryRelay, refusal_of
from twinbus.gateway.shares import Share, Shares
from twinbus.gateway.transactions import TransactedSends, not_served
from twinbus.pairing.core.failover import Route
from twinbus.pairing.sdk.failures import translated
from twinbus.pairing.sending.send_calls import SendCall
from twinbus.servicebus.failures import of_error, outcome_of
from twinbus.servicebus.names import BATCH_ALLOWANCE, TRANSFER_DESTINATION, entity_address
from twinbus.status.document import EntityState

if TYPE_CHECKING:
    from twinbus.pairing.sending.calls import SendTarget

log = logging.getLogger("twinbus.gateway")

PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Messages without an answer, of all clients; `shares` divides it among them."""

EACH_BYTES: Final = 4 * 1024
"""What a message without an answer takes besides its own bytes, about: 2 KB were measured for one
that the primary has and 6 to 7 KB for one with a call, its task and timer. Without this, small
messages would take many times the bound."""

BATCHED_BYTES: Final = 1024
"""What each further message of a batch takes besides its bytes: 0.45 KB were measured as it came,
and 0.56 KB for its copy in backlog form."""

CREDIT: Final = 2_000
"""Deliveries of one link that may be without an answer."""

UNKNOWN_LIMIT_BYTES: Final = 1024 * 1024
"""Message limit of a link that is opened while the primary cannot say its own: Azure Standard takes
256 KB and Premium 1 MB for a batch. A backlog queue's own limit holds as well."""


def destination_of(link: ReceiverLink) -> str | None:
    """The entity that gets what a link sends through the one that it is attached to, if any."""
    destination = link.properties.get(TRANSFER_DESTINATION)
    return None if destination is None else entity_address(str(destination))


def may_send_until_ms(
    client: LinkClient, address: str, destination: str | None, now_ms: int
) -> int:
    """When the right to send to an entity, and through it, ends; `Unauthorized` if it has ended."""
    until_ms = client.grants.require(address, SEND, now_ms)
    if destination is None:
        return until_ms
    return min(until_ms, client.grants.require(destination, SEND, now_ms))


@dataclass(slots=True, eq=False)
class _Delivery:
    """A delivery without an answer."""

    event: DeliveryArrived
    messages: EncodedMessages
    arrived_at: float
    sent_at: float
    number: int = 0
    """Its place among those that were sent directly."""
    error: Exception | None = None
    is_guarded: bool = False


class GatewaySendingLink(LinkOwner):
    """One sender of one client."""

    is_on_entity = True

    def __init__(
        self,
        pending: PendingSends,
        client: LinkClient,
        link: ReceiverLink,
        address: str,
        target: SendTarget,
        pool: LinkPool,
        granted_until_ms: int,
        relay: Callable[[], PrimaryRelay],
    ) -> None:
        """`relay` returns the client's own connection to the primary, for its transactions."""
        self.address = address
        self.link = link
        self._relay = relay
        self._transacted: TransactedSends | None = None
        self._pending = pending
        self._share = pending.share_of(client)
        self._batches: dict[int, int] = {}
        """What batches take besides their bytes, by delivery."""
        self._client = client
        self._target = target
        self._pool = pool
        self._granted_until_ms = granted_until_ms
        self._unanswered = 0
        """Deliveries without an answer."""
        self._calls = 0
        """How many of them are calls: while the entity is healthy, later ones wait for them."""
        self._direct = 0
        """How many the primary has without an answer."""
        self._last_number = 0
        """Number of the last delivery that was sent directly."""
        self._last_accepted = 0
        """The highest number that the primary has accepted."""
        self._refused: list[_Delivery] = []
        """Refused for now; decided on when all that were sent directly are answered."""
        self._waiting: deque[_Delivery] = deque()
        """Deliveries that came later than one that is sent again."""
        self._plain = PlainDeliveries(target)
        self._is_closed = False
        self._stop_listening = target.entity.on_change(self._entity_changed)
        pool.users += 1

    def attach(self) -> None:
        """Answer the client's attach: at once, or when the primary has answered ours."""
        if self._target.entity.failover.route is not Route.PRIMARY or self._pool.is_ready:
            self._accept()
        else:
            links = self._relay().links
            try:
                links.take(1)
            except QuotaExceeded:
                self.close(0)
                raise
            self._pending.spawn(self._attach(links))

    async def _attach(self, links: Holding) -> None:
        try:
            await self._open()
        finally:
            links.give_back(1)

    async def _open(self) -> None:
        """Open our own link first, so that a missing entity is found when the client attaches."""
        entity, state = self._target.entity, self._target.state
        try:
            await self._pool.open()
        except Exception as caught:  # noqa: BLE001  # every failure is judged
            error = translated(caught, entity.path, state.policy.attempt_timeout_s)
            counts = state.counts(error)
            if self._is_closed:
                return  # Without a sender the entity may have been forgotten meanwhile.
            # Opening the link counts like sending; the client may send all the same.
            entity.attempt_failed(error, counts=counts)
            if not counts and not of_error(error).retried:
                if self.link.state is LinkState.OFFERED:
                    self.link.owner = None
                    self._client.refuse(self.link, self.address, refusal_of(error))
                    self.close(0)
                return
        self._accept()

    def _accept(self) -> None:
        if self.link.state is not LinkState.OFFERED:
            return
        # A namespace may say any 64-bit number; what is joined here is kept in memory.
        limit_bytes = min(self._pool.limit_bytes or UNKNOWN_LIMIT_BYTES, MAX_MESSAGE_BYTES)
        self.link.limit_bytes = limit_bytes + BATCH_ALLOWANCE
        self._client.budgets.room_for(self.link.limit_bytes)
        self.link.rejects_oversize = True
        self.link.accept(max_message_size=limit_bytes)
        self.link.grant(CREDIT)
        self._client.touch()

    def granted_until_ms(self, now_ms: int) -> int:
        """When the right to send ends; raises `Unauthorized` if it has ended."""
        if now_ms >= self._granted_until_ms:
            self._granted_until_ms = may_send_until_ms(
                self._client, self.address, destination_of(self.link), now_ms
            )
        return self._granted_until_ms

    def close(self, now_ms: int) -> None:
        """The client is gone; what is in flight goes on to its end."""
        self._is_closed = True
        if self._transacted is not None:
            self._transacted.close(now_ms)
        if not self._unanswered:
            self._leave()

    def _leave(self) -> None:
        """Forget the entity and its link, unless others use them."""
        self._stop_listening()
        self._target.state.monitors.release(self._target.entity)
        self._pool.release()

    # Deliveries

    def take(
        self,
        event: DeliveryArrived,
        now_ms: int,
        messages: EncodedMessages | Refusal | None = None,
    ) -> None:
        """Take one delivery; its answer comes when a namespace has it."""
        self._unanswered += 1
        self._pending.add(self._share, len(event.payload))
        try:
            self.granted_until_ms(now_ms)
            if event.state is not None:
                self._take_transacted(event)
                return
            if isinstance(messages, Refusal):
                raise messages
            messages = messages or self._read(event)
        except Refusal as refusal:
            self._end(event, refusal)
            return
        if len(messages) > 1:
            self._count_batch(event, (len(messages) - 1) * BATCHED_BYTES)
        now = self._pending.loop.time()
        delivery = _Delivery(event, messages, now, now)
        if (self._calls or self._refused or self._waiting) and self._keeps_order:
            # It must not overtake what is sent again.
            self._waiting.append(delivery)
        else:
            self._start(delivery)

    def _count_batch(self, event: DeliveryArrived, size_bytes: int) -> None:
        # A client may use the id of a delivery again before it is answered.
        before = self._batches.get(event.delivery_id, 0)
        self._batches[event.delivery_id] = before + size_bytes
        self._pending.grow(self._share, size_bytes)

    def take_all(self, events: list[DeliveryArrived], now_ms: int) -> Steps | None:
        """Take deliveries; long batches are read in slices."""
        if not any(map(is_batch, events)):
            return super().take_all(events, now_ms)
        return self._take_in_turns(events, now_ms)

    def _take_in_turns(self, events: list[DeliveryArrived], now_ms: int) -> Steps:
        for event in events:
            messages = None
            if event.state is None and is_batch(event):
                messages = yield from self._pending.turns.prepare(self._reading(event))
            if self.link.owner is not self:
                return  # It was closed meanwhile.
            self.take(event, now_ms, messages)
            yield None

    def take_run(self, run: DeliveryRun, now_ms: int) -> Steps | None:
        """Take deliveries of one read: plain ones go to a healthy primary as they are, together."""
        taken = 0
        if (
            not run.message_format
            and not run.settled
            and not self._calls
            and not self._refused
            and not self._waiting
            and self._target.entity.failover.route is Route.PRIMARY
            and self._target.sessions is None
            and self._pool.is_ready
            and now_ms < self._granted_until_ms
        ):
            taken = self._send_run(run)
        if taken < len(run.spans):
            return self.take_all(run.deliveries(taken), now_ms)
        return None

    def _send_run(self, run: DeliveryRun) -> int:
        """Send the first deliveries of a run to the primary together; return how many."""
        count, shape = self._plain.count(run, self._pool.limit_bytes)
        if not count or shape is None:
            return 0
        data = run.data
        payloads = [data[start:stop] for _, start, stop in run.spans[:count]]
        sent = DirectRun(self, shape, payloads, run.first_id, self._pending.loop.time())
        sent.first_number = self._last_number + 1
        self._last_number += count
        self._direct += count
        self._unanswered += count
        self._pending.add(self._share, sum(map(len, payloads)), count)
        self._pool.send_run(payloads, sent)
        return count

    def run_accepted(self, run: DirectRun, first: int, last: int) -> None:
        """The primary accepted these deliveries of a run, by their places in it."""
        count, payloads, target = last - first + 1, run.take(first, last), self._target
        self._direct -= count
        self._last_accepted = max(self._last_accepted, run.first_number + last)
        if target.state.recorder.is_on:
            now = self._pending.loop.time()
            target.state.recorder.attempted(
                target.entity.path,
                None,
                run.measured(payloads),
                run.sent_at,
                now,
                client=target.client,
            )
        target.entity.succeeded(count)
        self._unanswered -= count
        self._pending.release(self._share, sum(map(len, payloads)), count)
        if self._is_closed and not self._unanswered:
            self._leave()
        self._settle(run.first_id + first, ACCEPTED_BYTES, run.first_id + last)
        if self._refused and not self._direct:
            self._sort_refused()

    def run_failed(self, run: DirectRun, place: int, error: Exception) -> None:
        """The primary refused a delivery of a run, or did not answer it in time."""
        event = run.arrival(place)
        messages = self._read(event)
        delivery = _Delivery(event, messages, run.sent_at, run.sent_at, run.first_number + place)
        self._answered(delivery, error)

    def _read(self, event: DeliveryArrived) -> EncodedMessages:
        """The messages of a delivery; `MalformedMessage` if it cannot be read."""
        return at_once(self._steps_of(event))

    def _reading(self, event: DeliveryArrived) -> Generator[None, None, EncodedMessages | Refusal]:
        try:
            return (yield from self._steps_of(event))
        except Refusal as refusal:
            return refusal

    def _steps_of(self, event: DeliveryArrived) -> Generator[None, None, EncodedMessages]:
        return EncodedMessages.reading(
            event.payload,
            event.message_format,
            self._target.entity.path,
            self._target.state.limits.watched,
            has_own_ids=self._target.state.message_ids.own_in_backlog,
        )

    def _take_transacted(self, event: DeliveryArrived) -> None:
        """Send a delivery of a transaction, by the client's own connection to the primary."""
        sends = self._transacted
        if sends is None:
            relay, address = self._relay(), self.address
            sends = self._transacted = TransactedSends(relay, self.link, address, self._answer)
        if self._target.entity.failover.route is Route.PRIMARY:
            sends.forward(event)
        else:
            sends.refuse(event, not_served(self._target.entity.path))

    @property
    def _keeps_order(self) -> bool:
        """Whether later deliveries wait: the entity is healthy. Strict sessions wait one by one."""
        target = self._target
        return target.sessions is None and target.entity.failover.state is EntityState.HEALTHY

    def _start(self, delivery: _Delivery) -> None:
        """Send a delivery: straight to the primary, or by a call."""
        messages, limit_bytes = delivery.messages, self._pool.limit_bytes
        is_direct = (
            not self._calls
            and self._target.entity.failover.route is Route.PRIMARY
            and self._target.sessions is None
            and self._pool.is_ready
            and (limit_bytes is None or len(messages.payload.data) <= limit_bytes)
        )
        if not is_direct:
            self._begin_call(delivery)
            return
        if messages.suspects:
            delivery.is_guarded = True
            try:
                SendCall(self._target, messages, None).guard()
            except Exception as error:  # noqa: BLE001  # the client gets it, whatever it is
                self._target.entity.call_raised(len(messages), error)
                self._end(delivery.event, refusal_of(error))
                return
        self._direct += 1
        self._last_number += 1
        delivery.number = self._last_number
        delivery.sent_at = self._pending.loop.time()
        self._pool.send(messages.payload, partial(self._answered, delivery))

    def _begin_call(self, delivery: _Delivery, failed: Exception | None = None) -> None:
        self._calls += 1
        self._pending.spawn(self._call(delivery, failed))

    def refuse_oversize(self, event: DeliveryTooLarge, now_ms: int) -> None:
        refusal = MessageTooLarge(
            f"The received message (delivery-id:{event.delivery_id}, size: more than "
            f"{self.link.limit_bytes} bytes) exceeds the limit "
            f"({self.link.limit_bytes - BATCH_ALLOWANCE} bytes) currently allowed on the link."
        )
        self._doom(event, refusal)
        if event.settled:
            # Nobody waits for a disposition; only a detach tells the client.
            self._client.detach(self.link, refusal)
            return
        self._client.log_refusal(f"a message to {self.address!r}", refusal)
        self._settle(event.delivery_id, encode_state(rejected(refusal)))

    def _answered(self, delivery: _Delivery, error: Exception | None) -> None:
        """The primary answered a delivery that was sent directly, or did not in time."""
        self._direct -= 1
        if error is None:
            self._last_accepted = max(self._last_accepted, delivery.number)
            self._record(delivery, None)
            self._target.entity.succeeded(len(delivery.messages))
            self._end(delivery.event, None)
        elif self._is_for_now(error):
            delivery.error = error
            self._refused.append(delivery)
        else:
            self._begin_call(delivery, error)
        if self._refused and not self._direct:
            self._sort_refused()

    def _is_for_now(self, error: Exception) -> bool:
        """Whether a healthy entity refused the message and may take it later: it is throttled."""
        state = self._target.state
        given = translated(error, self.address, state.policy.attempt_timeout_s)
        return (
            self._keeps_order
            and of_error(given).retried
            and outcome_of(given) == "failed"
            and not state.counts(given)
        )

    def _sort_refused(self) -> None:
        """Decide what becomes of refused deliveries, when nothing of the link is in flight.

        The primary may have taken a later delivery: sent again, the refused one would come behind
        it. So the client gets the refusal, as it would without a gateway. Others are sent again in
        their order: the first by a call, with its back-off, the rest when that one is stored.
        """
        refused, self._refused = sorted(self._refused, key=lambda each: each.number), []
        again: list[_Delivery] = []
        too_late_at = self._pending.loop.time() - self._pending.patience_s
        for delivery in refused:
            assert delivery.error is not None
            if delivery.number > self._last_accepted and delivery.arrived_at > too_late_at:
                again.append(delivery)
                if len(again) > 1:
                    self._record(delivery, delivery.error)
            else:
                self._record(delivery, delivery.error)
                entity = self._target.entity
                entity.attempt_failed(delivery.error, counts=False)
                entity.call_raised(len(delivery.messages), delivery.error)
                self._end(delivery.event, refusal_of(delivery.error))
        self._waiting.extendleft(reversed(again[1:]))
        if again:
            self._begin_call(again[0], again[0].error)
        self._go_on()

    def _go_on(self) -> None:
        """Send what waits for a retry, when that is over or order does not matter."""
        while self._waiting and not self._refused and not (self._calls and self._keeps_order):
            self._start(self._waiting.popleft())

    def _record(self, delivery: _Delivery, error: Exception | None) -> None:
        target = self._target
        if target.state.recorder.is_on:
            target.state.recorder.attempted(
                target.entity.path,
                None,
                delivery.messages.measured(),
                delivery.sent_at,
                self._pending.loop.time(),
                error=error,
                client=target.client,
            )

    async def _call(self, delivery: _Delivery, failed: Exception | None) -> None:
        """Send the messages wherever the decisions of the core lead, within the patience."""
        state, messages = self._target.state, delivery.messages
        ends_at = delivery.arrived_at + self._pending.patience_s
        call = SendCall(self._target, messages, ends_at)
        refusal: Refusal | None = None
        try:
            if failed is not None:
                await call.run_after(failed, delivery.sent_at, state.policy.attempt_timeout_s)
            else:
                if messages.suspects and not delivery.is_guarded:
                    call.guard()
                await call.run()
        except Exception as error:  # noqa: BLE001  # the client gets it, whatever it is
            self._target.entity.call_raised(len(messages), error)
            refusal = refusal_of(error)
        finally:
            self._calls -= 1
        self._end(delivery.event, refusal)
        self._go_on()

    def _end(self, event: DeliveryArrived, refusal: Refusal | None) -> None:
        """Answer a delivery: accepted, or rejected with this condition."""
        if refusal is not None:
            self._client.log_refusal(f"a message to {self.address!r}", refusal)
            self._doom(event, refusal)
        self._answer(event, ACCEPTED_BYTES if refusal is None else encode_state(rejected(refusal)))

    def _answer(self, event: DeliveryArrived, state: bytes) -> None:
        self._unanswered -= 1
        more_bytes = self._batches.pop(event.delivery_id, 0) if self._batches else 0
        self._pending.release(self._share, len(event.payload) + more_bytes)
        if self._is_closed and not self._unanswered:
            self._leave()
        if not event.settled:
            self._settle(event.delivery_id, state)

    def _doom(self, event: DeliveryArrived | DeliveryTooLarge, refusal: Refusal) -> None:
        """Let the transaction of a delivery fail that is refused here."""
        if isinstance(event.state, TransactionalState):
            self._relay().doom(event.state.txn_id, refusal.description)

    def _settle(self, number: int, state: bytes, last: int | None = None) -> None:
        """Settle a delivery, or all from it up to `last`."""
        link = self.link
        if link.state is not LinkState.OPEN:
            return
        link.session.settle(number, number if last is None else last, state, as_receiver=True)
        # What is pending counts as used: credit is bounded by what the namespaces take.
        # A client that sends more than it has credit for gets no more.
        room = CREDIT - self._unanswered
        if room > 0 and link.credit < room - CREDIT // 4 and not self._pending.is_closing:
            link.grant(room)
        self._client.touch()

    def _entity_changed(self) -> None:
        """Open a link to the backlog before a failover needs it."""
        if self._target.entity.failover.state is EntityState.SUSPECT:
            self._target.state.warm(self._target.first)
        self._go_on()


class ClientShare(Share):
    """What one client has without an answer."""

    __slots__ = ("client",)

    def __init__(self, client: LinkClient) -> None:
        super().__init__()
        self.client = client


class PendingSends:
    """The sends of all clients that have no answer yet."""

    def __init__(self, name: str, patience_s: float, bytes_max: int = PENDING_BYTES_MAX) -> None:
        """`patience_s`: how long a client's send may wait for a namespace to accept it."""
        self.loop = asyncio.get_running_loop()
        self.patience_s = patience_s
        self.count = 0
        self.is_closing = False
        """Clients get no more credit."""
        self._name = name
        self.turns = Turns(self.loop)
        self._shares = Shares(bytes_max)
        self._clients: dict[LinkClient, ClientShare] = {}
        self.calls: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()

    @property
    def size_bytes(self) -> int:
        """About the memory that they take."""
        return self._shares.size_bytes

    def share_of(self, client: LinkClient) -> ClientShare:
        """What a client has here: all its links share it."""
        share = self._clients.get(client)
        if share is None:
            share = self._clients[client] = ClientShare(client)
        return share

    def forget(self, client: LinkClient) -> None:
        """The client is gone; its links still give back what is in flight."""
        self._clients.pop(client, None)

    def add(self, share: ClientShare, size_bytes: int, count: int = 1) -> None:
        """Count deliveries that have no answer yet."""
        self.count += count
        self.grow(share, size_bytes + count * EACH_BYTES)

    def grow(self, share: ClientShare, size_bytes: int) -> None:
        """Count what a delivery takes besides."""
        if self._shares.take(share, size_bytes):
            share.client.pause_reading()

    def release(self, share: ClientShare, size_bytes: int, count: int = 1) -> None:
        """Count deliveries that were answered."""
        self.count -= count
        given_back = size_bytes + count * EACH_BYTES
        if self._shares.give_back(share, given_back) and not self.is_closing:
            share.client.resume_reading()
        if self.is_closing and not self.count:
            self._empty.set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the work of a client's link to its end, whatever becomes of the client."""
        task = self.loop.create_task(work)
        self.calls.add(task)
        task.add_done_callback(self._ended)

    async def drain(self, limit_s: float) -> None:
        """Return when everything was answered, or the time is over."""
        self.is_closing = True
        if self.count:
            log.info("%s: %d sends are in flight", self._name, self.count)
            await asyncio.wait({self.loop.create_task(self._empty.wait())}, timeout=limit_s)

    async def close(self) -> None:
        self.is_closing = True
        self._empty.set()
        for call in list(self.calls):
            call.cancel()
        if self.calls:
            await asyncio.wait(self.calls)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.calls.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: a send failed in the gateway", self._name, exc_info=error)
