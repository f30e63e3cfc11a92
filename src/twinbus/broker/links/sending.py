"""A client's sender link: each delivery, one message or a batch, is accepted or refused whole."""

from __future__ import annotations

from typing import Final

from twinbus.amqp.events import DeliveryArrived, DeliveryRun, DeliveryTooLarge
from twinbus.amqp.link import ReceiverLink
from twinbus.amqp.message import BATCH_FORMAT
from twinbus.amqp.performatives import ACCEPTED_BYTES, TransactionalState, encode_state
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.topic import RULES_AT_ONCE, Topic
from twinbus.broker.faults import Fault
from twinbus.broker.links.context import (
    BrokerContext,
    EntityLink,
    LinkClient,
    new_message_id,
    rejected,
    rejected_with,
)
from twinbus.broker.links.prepared import Prepared, is_batch
from twinbus.broker.links.transactions import ClientTransactions
from twinbus.broker.links.turns import Steps
from twinbus.broker.messages.incoming import Incoming, parse
from twinbus.broker.messages.plain import PlainShapes
from twinbus.broker.refusals import MessageTooLarge, Refusal, ServerBusy
from twinbus.broker.sas import SEND
from twinbus.servicebus.names import BATCH_ALLOWANCE

STORED_AT_ONCE: Final = 16
"""Deliveries that are no run and are stored in one step, about two slices long."""


class SendingLink(EntityLink[ReceiverLink]):
    right = SEND

    def __init__(
        self,
        context: BrokerContext,
        client: LinkClient,
        link: ReceiverLink,
        entity: Queue | Topic,
        address: str,
        granted_until_ms: int,
        transactions: ClientTransactions,
        via: str | None = None,
    ) -> None:
        """`via` is the path of the entity through which the link sends to `entity`."""
        super().__init__(context, client, link, address, granted_until_ms)
        self.entity = entity
        self.via = via
        self._transactions = transactions
        self._credit = context.profile.sender_credit
        self._shapes = PlainShapes()

    def attach(self) -> None:
        limit = self.entity.max_message_bytes
        self.link.limit_bytes = limit + BATCH_ALLOWANCE
        self._client.budgets.room_for(self.link.limit_bytes)
        self.link.rejects_oversize = True
        self.link.accept(max_message_size=limit)
        self.link.grant(self._credit)

    def take(self, event: DeliveryArrived, now_ms: int, prepared: Prepared | None = None) -> None:
        """Store a delivery and accept or reject it; the answer waits for the commit."""
        faults = self._context.faults
        if faults:
            fault = faults.decide("send", self.entity.path, now_ms)
            if fault is not None and not self._perform_fault(fault, event, now_ms):
                return
        self._store(event, now_ms, prepared)

    def take_all(self, events: list[DeliveryArrived], now_ms: int) -> Steps | None:
        """Store deliveries that came together.

        Faster than one by one, while no fault is active, no credits are counted, and none is a
        batch or for many rules.
        """
        many_rules = self.entity.filter_count > RULES_AT_ONCE
        if many_rules or any(map(is_batch, events)):
            return self._take_in_turns(events, many_rules=many_rules)
        if self._context.faults or self._context.credits is not None:
            return super().take_all(events, now_ms)
        if len(events) > STORED_AT_ONCE:
            return self._take_in_parts(events)
        settle, send = self.link.session.settle, self._context.namespace.send
        first = last = -1  # Accepted and not yet settled, always consecutive.
        try:
            self.require(now_ms)
        except Refusal:
            for event in events:
                self._store(event, now_ms)
            return None
        for event in events:
            if event.state is not None:
                if first >= 0:
                    settle(first, last, ACCEPTED_BYTES, as_receiver=True)
                first = last = -1
                self._store(event, now_ms)
                continue
            number, refused = event.delivery_id, b""
            try:
                send(self.entity, self._parse(event), now_ms)
            except Refusal as refusal:
                refused = self._refused(event, refusal, now_ms)
            if event.settled:
                continue
            if not refused and number == last + 1 and first >= 0:
                last = number
                continue
            if first >= 0:
                settle(first, last, ACCEPTED_BYTES, as_receiver=True)
            first = last = -1 if refused else number
            if refused:
                settle(number, number, refused, as_receiver=True)
        if first >= 0:
            settle(first, last, ACCEPTED_BYTES, as_receiver=True)
        self._top_up()
        return None

    def _take_in_parts(self, events: list[DeliveryArrived]) -> Steps:
        for first in range(0, len(events), STORED_AT_ONCE):
            if self.link.owner is not self:
                return
            self.take_all(events[first : first + STORED_AT_ONCE], self._context.now_ms())
            yield None

    def _take_in_turns(self, events: list[DeliveryArrived], *, many_rules: bool) -> Steps:
        """Store deliveries one by one: what is long is prepared in slices, and stored at once."""
        context = self._context
        for event in events:
            prepared = Prepared(event)
            if many_rules or not prepared.is_short:
                as_run = not isinstance(event.state, TransactionalState)
                steps = prepared.steps(self.entity, context.now_ms, as_run=as_run)
                yield from context.turns.prepare(steps)
            else:
                yield None
            if self.link.owner is not self:
                # The link was closed meanwhile, or the engine was replaced.
                return
            self.take(event, context.now_ms(), prepared)

    def take_run(self, run: DeliveryRun, now_ms: int) -> Steps | None:
        """Store deliveries that came in one read: plain messages together, others one by one."""
        context, taken = self._context, 0
        if (
            type(self.entity) is Queue
            and not run.message_format
            and not run.settled
            and not context.faults
            and context.credits is None
            and self._may_send(now_ms)
        ):
            taken = self._take_plain(self.entity, run, now_ms)
        if taken:
            last_id = run.first_id + taken - 1
            self.link.session.settle(run.first_id, last_id, ACCEPTED_BYTES, as_receiver=True)
        if taken < len(run.spans):
            return self.take_all(run.deliveries(taken), now_ms)
        self._top_up()
        return None

    def _may_send(self, now_ms: int) -> bool:
        try:
            self.require(now_ms)
        except Refusal:
            return False
        return True

    def _take_plain(self, queue: Queue, run: DeliveryRun, now_ms: int) -> int:
        """Store messages, from the first on, while they are plain and the queue takes them."""
        shapes, data, spans, taken = self._shapes, run.data, run.spans, 0
        shapes.brought(len(spans))
        shape = shapes.shape
        while taken < len(spans):
            rest = spans[taken:] if taken else spans
            plain = None if shape is None else shape.read(data, rest)
            if not plain:
                _, start, stop = rest[0]
                shape = shapes.learn(data[start:stop])
                if shape is None:
                    break
                plain = shape.read(data, rest)
            found = len(plain)
            stored = self._context.namespace.send_run(queue, plain, now_ms)
            taken += stored
            if not stored or stored < found:
                break
        return taken

    def refuse_oversize(self, event: DeliveryTooLarge, now_ms: int) -> None:
        """Reject a delivery that the link did not take whole; the client's call ends at once.

        The link stays open: the SDKs' calls wait for a disposition, and a detach would end the
        other deliveries of the link too.
        """
        refusal = MessageTooLarge(
            f"The received message (delivery-id:{event.delivery_id}, size: more than "
            f"{self.link.limit_bytes} bytes) exceeds the limit ({self.entity.max_message_bytes} "
            "bytes) currently allowed on the link."
        )
        self._doom(event, refusal)
        if event.settled:
            # Nobody waits for a disposition; only a detach tells the client.
            self._client.detach(self.link, refusal)
            return
        state = self._refused(None, refusal, now_ms)
        self.link.session.settle(event.delivery_id, event.delivery_id, state, as_receiver=True)
        self._top_up()

    def _refused(
        self,
        event: DeliveryArrived | None,
        refusal: Refusal,
        now_ms: int,
        prepared: Prepared | None = None,
    ) -> bytes:
        self._client.log_refusal(f"a message to {self.entity.path!r}", refusal)
        self._note_refused(event, refusal.condition, refusal.description, now_ms, prepared)
        return encode_state(rejected(refusal))

    def _note_refused(
        self,
        event: DeliveryArrived | None,
        condition: str,
        text: str,
        now_ms: int,
        prepared: Prepared | None,
    ) -> None:
        engine_log = self._context.engine_log
        if engine_log is None:
            return
        try:
            batch = [] if event is None else self._parse(event, prepared)
        except Refusal:
            batch = []
        engine_log.refused(self.entity.path, batch, f"{condition}: {text}", now_ms)

    def _store(self, event: DeliveryArrived, now_ms: int, prepared: Prepared | None = None) -> None:
        state, namespace = ACCEPTED_BYTES, self._context.namespace
        run = None if prepared is None else prepared.run
        try:
            self.require(now_ms)
            if run is not None:
                self._pay(len(run), now_ms)
                if not namespace.send_whole(self.entity, run, now_ms):
                    namespace.send(self.entity, self._parse(event, prepared), now_ms)
            else:
                batch = self._parse(event, prepared)
                self._pay(len(batch), now_ms)
                if isinstance(event.state, TransactionalState):
                    txn_id = event.state.txn_id
                    state = self._transactions.send(txn_id, self, batch, now_ms)
                else:
                    namespace.send(self.entity, batch, now_ms)
        except Refusal as refusal:
            state = self._refused(event, refusal, now_ms, prepared)
            self._doom(event, refusal)
        if not event.settled:
            self.link.session.settle(event.delivery_id, event.delivery_id, state, as_receiver=True)
        self._top_up()

    def _pay(self, messages: int, now_ms: int) -> None:
        if self._context.credits is not None:
            self._context.credits.require(messages * (1 + self.entity.filter_count), now_ms)

    def _doom(self, event: DeliveryArrived | DeliveryTooLarge, refusal: Refusal) -> None:
        """Let the transaction of a delivery fail that is refused."""
        if isinstance(event.state, TransactionalState):
            self._transactions.doom(event.state.txn_id, refusal)

    def require(self, now_ms: int) -> None:
        """Raise unless the link may still send: tokens expire, and disks fill up."""
        self.granted_until_ms(now_ms)
        self._context.require_space()

    @staticmethod
    def _parse(event: DeliveryArrived, prepared: Prepared | None = None) -> list[Incoming]:
        if prepared is not None:
            return prepared.batch()
        if event.message_format != BATCH_FORMAT:
            return [parse(event.payload, new_message_id)]
        return Prepared.at_once(event).batch()

    def _top_up(self) -> None:
        if self.link.credit < self._credit // 2:
            self.link.grant(self._credit)

    def _perform_fault(self, fault: Fault, event: DeliveryArrived, now_ms: int) -> bool:
        """Perform a fault; true if the delivery is still to be stored."""
        # A delayed send is a part of its transaction if the client waits for the answer.
        if fault.kind != "drop_after_commit" and (event.settled or fault.kind != "delay"):
            self._doom(event, ServerBusy(f"a fault struck one of its sends ({fault.kind})"))
        match fault.kind:
            case "refuse_send" | "throttle":
                state = encode_state(rejected_with(fault.condition, fault.description))
                self.link.session.settle(
                    event.delivery_id, event.delivery_id, state, as_receiver=True
                )
                self._note_refused(event, fault.condition, fault.description, now_ms, None)
                self._top_up()
            case "delay":
                self._client.later(fault.delay_ms, lambda: self._store_late(event))
            case "drop_before_commit":
                self._client.drop()
            case "drop_after_commit":
                self._client.drop_after_commit()
                return True
            case _:
                assert fault.kind == "hang", fault
        return False

    def _store_late(self, event: DeliveryArrived) -> None:
        self._store(event, self._context.now_ms())
        self._client.touch()
