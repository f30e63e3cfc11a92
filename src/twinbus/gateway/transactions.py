"""A client's transactions: they run on the primary, on the client's own connection to it.

    client  --declare, discharge-->  coordinator  -->  primary
    client  --transactional sends-->  a second link of the sender, on the client's connection

A transaction is never diverted. While its entity is not served by the primary, an operation is
rejected as server-busy, and the discharge rolls the transaction back: never a part of it. When the
answer to a discharge is lost, the client is told that the outcome is unknown.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from twinbus.amqp.events import Attached, CreditChanged, DeliveryArrived, Detached, Event
from twinbus.amqp.link import LinkSession, LinkState, ReceiverLink, SenderLink
from twinbus.amqp.performatives import (
    Coordinator,
    Discharge,
    Source,
    Target,
    TransactionalState,
    encode_state,
)
from twinbus.amqp.transactions import encode_request, read_request
from twinbus.amqp.types import DecodeError
from twinbus.broker.links.context import rejected
from twinbus.broker.refusals import (
    OperationTimedOut,
    QuotaExceeded,
    Refusal,
    ServerBusy,
    TransactionRolledBack,
    Unauthorized,
)
from twinbus.gateway.node_requests import REQUEST_BYTES, Holding
from twinbus.gateway.relay import PrimaryRelay, Relayed

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.session import Session

CREDIT: Final = 100
REQUEST_BYTES_MAX: Final = 4 * 1024
UNKNOWN: Final = (
    "The answer of the primary to the discharge is lost; whether the transaction was committed is "
    "unknown. Receive to find out, or send again with the same message ids."
)


def not_served(path: str) -> ServerBusy:
    """The refusal of an operation on an entity that the primary does not serve now."""
    return ServerBusy(
        f"A transaction needs the primary, and {path!r} is failed over. The transaction is rolled "
        "back; try it again later, or send without one."
    )


class _OnOneSession(Relayed):
    """A link whose place in a session of the client says what it may do in a transaction."""

    @property
    def node(self) -> tuple[LinkSession, str]:
        """Links of one session of the client share one of the primary."""
        return self.link.session, ""


class RelayedCoordinator(_OnOneSession):
    """The link on which a client declares and discharges transactions."""

    address = ""
    link: ReceiverLink
    up: SenderLink | None = None

    def __init__(self, relay: PrimaryRelay, link: ReceiverLink) -> None:
        self.relay = relay
        self.link = link
        self._waiting: deque[tuple[DeliveryArrived, bytes, Refusal | None]] = deque()
        """Requests without credit of the primary, what to send, and the answer decided here."""
        self._asked: dict[int, tuple[DeliveryArrived, Refusal | None]] = {}
        """By the primary's delivery: what it has not answered."""
        self._held = Holding(relay.client.budgets.held_bytes)
        """Requests of both kinds."""

    def attach_to(self, session: Session) -> None:
        source = self.link.source or Source()
        target = self.link.target
        capabilities = target.capabilities if isinstance(target, Coordinator) else None
        self.up = session.attach_sender(
            self.link.name, source=replace(source, raw=None), target=Coordinator(capabilities)
        )
        self.up.owner = self

    def handle(self, event: Event) -> None:
        up = self.up
        assert up is not None
        match event:
            case Attached() if up.target is not None and self.link.state is LinkState.OFFERED:
                self.link.limit_bytes = REQUEST_BYTES_MAX
                self.link.target = up.target
                self.link.accept(max_message_size=REQUEST_BYTES_MAX)
                self.link.grant(CREDIT)
                self.relay.client.touch()
            case CreditChanged():
                self._send()
            case Detached():
                self.lose_by(event.error)

    def take(self, event: DeliveryArrived, now_ms: int) -> None:
        payload, refusal = event.payload, None
        if len(self._waiting) >= CREDIT:
            text = f"{CREDIT} requests wait for the primary, which is the limit; send fewer."
            self._reject(event, QuotaExceeded(text))
            return
        try:
            self._held.take(_held_bytes(event))
        except QuotaExceeded as full:
            self._reject(event, full)
            return
        try:
            request = read_request(payload)
        except DecodeError:
            request = None  # The primary says what is wrong with it.
        if isinstance(request, Discharge) and not request.fail:
            why = self.relay.doomed.pop(request.txn_id, None)
            if why is not None:
                refusal = TransactionRolledBack(f"The transaction was rolled back: {why}")
                payload = encode_request(Discharge(request.txn_id, True))
        self._waiting.append((event, payload, refusal))
        self._send()

    def go_on(self) -> None:
        """Transactional messages that waited are sent: a discharge may follow them."""
        self._send()

    def _send(self) -> None:
        up = self.up
        while self._waiting and up is not None and up.credit > 0 and not self._must_wait:
            event, payload, refusal = self._waiting.popleft()
            tag = up.delivery_count.to_bytes(4, "big")
            self._asked[up.send(payload, tag)] = event, refusal
        self.relay.flush()

    @property
    def _must_wait(self) -> bool:
        """Whether a message of a transaction is not sent: a discharge must not overtake it."""
        return any(isinstance(one, TransactedSends) and one.waits for one in self.relay.relayed)

    def taken(self, number: int, state: bytes) -> None:
        asked = self._asked.pop(number, None)
        if asked is not None:
            event, refusal = asked
            self._answer(event, state if refusal is None else encode_state(rejected(refusal)))

    def _reject(self, event: DeliveryArrived, refusal: QuotaExceeded) -> None:
        self._settle(event, encode_state(rejected(refusal)))

    def _answer(self, event: DeliveryArrived, state: bytes) -> None:
        self._held.give_back(_held_bytes(event))
        self._settle(event, state)

    def _settle(self, event: DeliveryArrived, state: bytes) -> None:
        link, number = self.link, event.delivery_id
        if link.state is not LinkState.OPEN:
            return
        if not event.settled:
            link.session.settle(number, number, state, as_receiver=True)
        if link.credit < CREDIT // 2:
            link.grant(CREDIT)
        self.relay.client.touch()

    def close(self, now_ms: int) -> None:
        self._asked.clear()
        self._waiting.clear()
        self._held.close()
        super().close(now_ms)

    def lose(self, refusal: Refusal) -> None:
        """The primary's coordinator is gone, and with it every open transaction."""
        asked, self._asked = self._asked, {}
        for event, decided in asked.values():
            self._answer(event, encode_state(rejected(decided or OperationTimedOut(UNKNOWN))))
        while self._waiting:
            self._answer(self._waiting.popleft()[0], encode_state(rejected(ServerBusy(LOST))))
        super().lose(refusal)


def _held_bytes(event: DeliveryArrived) -> int:
    return len(event.payload) + REQUEST_BYTES


LOST: Final = "The connection to the primary is lost, and the transaction is rolled back."


class TransactedSends(_OnOneSession):
    """The link on which the transactional messages of one client's sender go to the primary."""

    link: ReceiverLink
    up: SenderLink | None = None

    def __init__(
        self,
        relay: PrimaryRelay,
        link: ReceiverLink,
        address: str,
        end: Callable[[DeliveryArrived, bytes], None],
    ) -> None:
        """`end` answers a delivery of the client."""
        self.relay = relay
        self.link = link
        self.address = address
        self._end = end
        self._waiting: deque[DeliveryArrived] = deque()
        """Without credit of the primary; the sender's credit bounds them."""
        self._sent: dict[int, DeliveryArrived] = {}

    def attach_to(self, session: Session) -> None:
        self.up = session.attach_sender(
            f"{self.link.name}-transacted",
            source=Source(),
            target=Target(address=self.address),
            properties=self.link.properties or None,
        )
        self.up.owner = self

    def handle(self, event: Event) -> None:
        match event:
            case CreditChanged():
                self._send()
            case Detached():
                self.lose_by(event.error)

    @property
    def waits(self) -> bool:
        """Whether a delivery is not sent to the primary yet."""
        return bool(self._waiting)

    def close(self, now_ms: int) -> None:
        """The client closed its link; what was sent before stays in its transaction."""
        for event in self._waiting:
            assert isinstance(event.state, TransactionalState), event
            self.relay.doom(event.state.txn_id, "a link was closed before its messages were sent")
        self._end_all(ServerBusy(LOST))
        super().close(now_ms)
        self._let_discharge()

    def _end_all(self, refusal: Refusal) -> None:
        """Answer everything that has no answer and gets none."""
        left = [*self._sent.values(), *self._waiting]
        self._sent.clear()
        self._waiting.clear()
        for event in left:
            self._end(event, encode_state(rejected(refusal)))

    def forward(self, event: DeliveryArrived) -> None:
        """Send a delivery with its transaction, as it is."""
        assert isinstance(event.state, TransactionalState), event
        if self.up is None and not self._waiting:
            self.relay.begin(self)
        self._waiting.append(event)
        self._send()

    def refuse(self, event: DeliveryArrived, refusal: Refusal) -> None:
        """Reject a delivery: its transaction cannot be committed."""
        assert isinstance(event.state, TransactionalState), event
        self.relay.doom(event.state.txn_id, refusal.description)
        self.relay.client.log_refusal(f"a transactional message to {self.address!r}", refusal)
        self._end(event, encode_state(rejected(refusal)))

    def _send(self) -> None:
        up = self.up
        while self._waiting and up is not None and up.credit > 0:
            event = self._waiting.popleft()
            assert isinstance(event.state, TransactionalState), event
            number = up.send(
                event.payload,
                up.delivery_count.to_bytes(4, "big"),
                settled=event.settled,
                message_format=event.message_format,
                state=event.state,
            )
            if event.settled:
                self._end(event, b"")
            else:
                self._sent[number] = event
        self._let_discharge()
        self.relay.flush()

    def _let_discharge(self) -> None:
        if not self._waiting:
            for relayed in list(self.relay.relayed):
                if isinstance(relayed, RelayedCoordinator):
                    relayed.go_on()

    def taken(self, number: int, state: bytes) -> None:
        event = self._sent.pop(number, None)
        if event is not None:
            self._end(event, state)

    def lose(self, refusal: Refusal) -> None:
        """The primary refused or closed the link: what has no answer is in no transaction."""
        self.relay.forget(self)
        self.up = None
        for event in (*self._sent.values(), *self._waiting):
            assert isinstance(event.state, TransactionalState), event
            self.relay.doom(event.state.txn_id, refusal.description)
        if self._sent or self._waiting:
            what = f"transactional messages to {self.address!r}"
            self.relay.client.log_refusal(what, refusal)
        self._end_all(refusal)
        self._let_discharge()


def require_token(relay: PrimaryRelay, now_ms: int) -> None:
    """Raise unless the client has a valid token: a coordinator belongs to no entity."""
    if all(grant.is_expired(now_ms / 1000) for grant in relay.client.grants):
        raise Unauthorized("A transaction needs a token; put one on $cbs first.")
