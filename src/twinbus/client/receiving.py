"""Receiving links to the entities of one namespace, on the connection that its links share.

    link = ReceivingLink(connection, "orders", on_deliveries=take, on_ended=reopen)
    await link.open(30.0)
    link.grant(100)                       # `take` gets up to 100 deliveries, in lists
    link.settle(delivery, COMPLETE, done) # `done` gets None when the service has confirmed it
    await link.close(5.0)

A link is opened once. When it ends, whatever the reason, each settlement that is not confirmed ends
with an error, then `on_ended` is called; its owner opens another link. Requests by lock token or
sequence number are in `client/lock_requests.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime
from enum import Enum
from typing import Any, Final
from uuid import UUID

from twinbus.amqp.events import (
    Attached,
    DeliveryArrived,
    DetachAnswered,
    Detached,
    Drained,
    Event,
    FlowArrived,
)
from twinbus.amqp.link import ReceiverLink
from twinbus.amqp.performatives import Source, Target
from twinbus.amqp.session import Session
from twinbus.amqp.types import Described, Symbol, UInt
from twinbus.client.connection import MACHINE, Environment, NamespaceConnection
from twinbus.client.consumer_records import (
    NO_NAMES,
    NOT_SETTLED,
    SECOND_COPY,
    operation_of,
)
from twinbus.client.in_flight import Done
from twinbus.client.incoming import IncomingOwner
from twinbus.client.links import UpstreamConnection
from twinbus.client.outcomes import RELEASE, SettlingOutcome, transacted
from twinbus.client.request_node import ConnectionLost, LinkEnded, RequestRefused, uuid_of_token
from twinbus.client.settling import NOT_SENT, LinkSettlements, Settleable
from twinbus.servicebus import conditions, names
from twinbus.servicebus.failures import FailureMeaning, NamespaceFailure, of_condition
from twinbus.transfer.identity import Head, read_head

SESSION_FILTER: Final = Symbol(names.SESSION_FILTER)
SESSION_LOCKED_UNTIL: Final = Symbol(names.SESSION_LOCKED_UNTIL)
SESSION_WAIT: Final = Symbol("com.microsoft:timeout")
"""Link property: how many milliseconds the service may wait for a free session."""

RECEIVER_NAME: Final = Symbol("com.microsoft:receiver-name")
"""Link property: the name of a receiver in the service's logs and errors."""

ANSWER_SHARE: Final = 0.1
ANSWER_MAX_S: Final = 0.5
"""Part of the time for a session, and its limit, that is kept for the service's answer."""

DRAIN_S: Final = 2.0
"""Time for an entity to answer a drain when its link is closed."""

LOCK_TOKEN_BYTES: Final = 16


class SessionChoice(Enum):
    """Which session a link receives, other than a named one."""

    NONE = "no session"
    NEXT = "the next session that is free"


NO_SESSION: Final = SessionChoice.NONE
NEXT_SESSION: Final = SessionChoice.NEXT


class Delivery(Settleable):
    """One message as it arrived; `number` is its delivery id."""

    __slots__ = ("data", "head", "link", "tag")

    def __init__(
        self, link: ReceivingLink, number: int, tag: bytes, data: bytes, settled: bool
    ) -> None:
        self.number = number
        self.settled = settled
        self.outcome = None
        self.done = None
        self.ends_at = NOT_SENT
        self.operation = self.ledger_state = None
        self.names = NO_NAMES
        self.link = link
        self.tag = tag
        self.data = data
        """All sections of the message, as they were on the wire."""
        self.head: Head | None = None
        """What the ledger has read of it."""

    def mark_second_copy(self) -> None:
        """It is not handed out, because the copy of another namespace was."""
        self.ledger_state = SECOND_COPY

    @property
    def lock_token(self) -> UUID | None:
        """The lock token as requests name it; None: the message is not locked."""
        if self.settled or len(self.tag) != LOCK_TOKEN_BYTES:
            return None
        return uuid_of_token(self.tag)


class ReceivingLink(IncomingOwner):
    """One link that receives from a queue, a subscription or a dead-letter queue."""

    def __init__(
        self,
        connection: UpstreamConnection,
        path: str,
        *,
        on_deliveries: Callable[[list[Delivery]], None],
        on_ended: Callable[[ReceivingLink, Exception], None],
        receive_and_delete: bool = False,
        session: str | SessionChoice = NO_SESSION,
        client_id: str | None = None,
        gateway_client: str | None = None,
        environment: Environment = MACHINE,
    ) -> None:
        """`on_deliveries` gets what one read of the connection brought for this link.

        `on_ended` gets why an open link ended: LinkEnded or ConnectionLost. It is not called if
        `open` raised, nor after `close` was called. `client_id` names this receiver in the
        service's logs, and `gateway_client` the client of a gateway in the ledger. Without locks
        (`receive_and_delete`) the owner must take deliveries until `close` returns: the entity has
        deleted them.
        """
        self.path = path
        self.name = f"{path}-receiver-{environment.new_id()}"
        self.session_id: str | None = None
        self.session_locked_until: datetime | None = None
        self.is_open = False
        self.heard_at = 0.0
        """When this link last brought a delivery or a flow, by the clock of the loop."""
        self._connection = connection
        self._loop = connection.loop
        self._on_deliveries = on_deliveries
        self._on_ended = on_ended
        self._receive_and_delete = receive_and_delete
        self._session = session
        self._client_id = client_id
        self._link: ReceiverLink | None = None
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended: NamespaceFailure | None = None
        self._is_closing = False
        self._largest_grant = 0
        self._settlements: LinkSettlements | None = None
        self._records = connection.records(path, gateway_client)
        self._drained: asyncio.Future[bool] | None = None
        self._drain_left = 0
        """Deliveries that may come before a drain ends: with the last one it has ended."""
        self._detached: asyncio.Future[None] = self._loop.create_future()

    def __repr__(self) -> str:
        state = "open" if self.is_open else "ended" if self._ended is not None else "opening"
        return f"<{state} receiving link {self.name!r}, credit {self.credit}>"

    @property
    def credit(self) -> int:
        """How many more deliveries may come."""
        return max(0, self._link.credit) if self._link is not None else 0

    # Opening

    async def open(self, timeout_s: float) -> None:
        """Attach to the entity, and to its session if one was asked for.

        Raise ConnectionLost, RequestRefused, LinkEnded (its condition says why the entity refused)
        or TimeoutError. The service waits for a free session for nearly as long as `timeout_s`.
        """
        assert self._link is None, self
        ends_at = self._loop.time() + timeout_s
        self._connection.add(self)
        try:
            async with asyncio.timeout_at(ends_at):
                connection = await self._connection.opened()
                session = await self._authorized_session(connection)
                self._attach(session, ends_at - self._loop.time())
                connection.flush()
                await asyncio.shield(self._opened)
        except BaseException:
            # Also when the caller gives up: a link that opens later would hold a session.
            self._withdraw()
            raise

    async def _authorized_session(self, connection: NamespaceConnection) -> Session:
        try:
            await connection.authorize(self.path)
            session = await self._connection.session(connection)
        except RequestRefused:
            connection.forget_token(self.path)
            raise
        if connection.lost.done():
            raise ConnectionLost(connection.lost.result())
        return session

    def _attach(self, session: Session, left_s: float) -> None:
        properties: dict[object, object] = {}
        if self._client_id is not None:
            properties[RECEIVER_NAME] = self._client_id
        filters: dict[Any, Any] | None = None
        if self._session is not NO_SESSION:
            wait_s = left_s - min(ANSWER_MAX_S, left_s * ANSWER_SHARE)
            properties[SESSION_WAIT] = UInt(max(1, int(wait_s * 1_000)))
            filters = {SESSION_FILTER: None if self._session is NEXT_SESSION else self._session}
        self._link = session.attach_receiver(
            self.name,
            source=Source(address=self.path, filter=filters),
            target=Target(address=self.name),
            settled=self._receive_and_delete,
            confirmed=not self._receive_and_delete,
            properties=properties or None,
        )
        self._link.owner = self
        owners = self._connection.settling(session)
        self._settlements = LinkSettlements(self._connection, self, session, owners, self._records)

    def _withdraw(self) -> None:
        """Give up a link whose opening failed."""
        if self._link is not None:
            self._link.detach()
            self._connection.flush()
        self._finish(self._ended or LinkEnded(f"{self.path}: the link was not opened"))

    # Credit

    def grant(self, credit: int) -> None:
        """Let `credit` more deliveries come, those included that were granted before.

        Each call is a frame. Nothing happens if the link has ended.
        """
        if not self.is_open or self._is_closing:
            return
        assert self._link is not None
        self._end_drain(False)
        self._largest_grant = max(self._largest_grant, credit)
        self._link.grant(credit)
        self._connection.flush()

    async def drain(self, timeout_s: float, credit: int = 0) -> bool:
        """Take all credit back; return whether the entity has answered: nothing more comes then.

        With `credit` the entity first sends what it has, up to this many deliveries.
        """
        if not self.is_open:
            return False
        assert self._link is not None
        self._end_drain(False)
        self._drained = drained = self._loop.create_future()
        self._drain_left = credit
        self._largest_grant = max(self._largest_grant, credit)
        self._link.grant(credit, drain=True)
        self._connection.flush()
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(drained)
        except TimeoutError:
            return False

    def _end_drain(self, is_answered: bool) -> None:
        self._drain_left = 0
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(is_answered)

    # Settlement

    def settle(self, delivery: Delivery, outcome: SettlingOutcome, done: Done) -> None:
        """Settle a delivery of this link; `done` is called once with the result.

        It gets None (the service has confirmed it), LockLost, SettlementRefused, TimeoutError, or
        LinkEnded: then the message may be settled (`may_be_stored`) or not. If the link has ended
        already, `done` is called before this returns. While one waits for its answer, those of one
        turn of the event loop leave together.
        """
        if self._records is not None:
            delivery.operation = operation_of(outcome)
        self._settle(delivery, outcome, done)

    def settle_within(
        self, txn_id: bytes, delivery: Delivery, outcome: SettlingOutcome, done: Done
    ) -> None:
        """Settle a delivery of this link when a transaction is committed, as `settle` does.

        `done` gets None when the transaction has it. Call `discharged` at the transaction's end.
        """
        delivery.operation = None
        self._settle(delivery, transacted(outcome, txn_id), done)

    def discharged(
        self, delivery: Delivery, error: Exception | None, *, can_be_settled: bool
    ) -> None:
        """Record the end of the transaction that settled a delivery; None: it was committed.

        `can_be_settled`: it was not, and the delivery can be settled again.
        """
        outcome = delivery.outcome
        if self._settlements is not None and outcome is not None:
            self._settlements.record(delivery, operation_of(outcome), error)
        if can_be_settled:
            delivery.outcome, delivery.ends_at = None, NOT_SENT

    def _settle(self, delivery: Delivery, outcome: SettlingOutcome, done: Done) -> None:
        assert delivery.link is self, delivery
        assert not delivery.settled, "a message that was received and deleted cannot be settled"
        assert delivery.outcome is None, "a delivery is settled once"
        delivery.outcome = outcome
        settlements = self._settlements
        if settlements is None or not self.is_open:
            why = self._ended or LinkEnded(f"{self.path}: the link is not open")
            ended = LinkEnded(str(why), why.condition)
            if settlements is not None and delivery.operation is not None:
                settlements.record(delivery, delivery.operation, ended)
            done(ended)
            return
        settlements.add(delivery, done)

    def release_all(self, deliveries: Iterable[Delivery]) -> None:
        """Give back what was not processed; `close` waits until that is confirmed.

        Call `close` right after this: while the link has credit, it gets them again.
        """
        for delivery in deliveries:
            if not delivery.settled and delivery.outcome is None:
                self.settle(delivery, RELEASE, _ignore)

    def left(self, delivery: Delivery, why: str = NOT_SETTLED) -> None:
        """Record that who had this message has not settled it, unless a settlement was sent."""
        was_sent = delivery.ends_at != NOT_SENT or delivery.outcome is RELEASE
        if self._records is not None and not delivery.settled and not was_sent:
            self._records.left(delivery.names, why)

    def confirm(self, numbers: list[int], state: object) -> None:
        if self._settlements is not None:
            self._settlements.confirm(numbers, state)

    # Events

    def take(self, run: list[DeliveryArrived]) -> None:
        """Hand deliveries to the owner; while the link is being closed, give them back."""
        link = self._link
        if link is None or link.credit < -self._largest_grant:
            self._refuse_excess()
            return
        deliveries = [
            Delivery(self, event.delivery_id, event.tag, event.payload, event.settled)
            for event in run
        ]
        if self._records is not None:
            for delivery in deliveries:
                data = delivery.data
                head = delivery.head = read_head(data)
                noted = self._records.received(data, head=head, is_deleted=delivery.settled)
                delivery.names = noted
        if self._is_closing:
            self.release_all(deliveries)
            deliveries = [delivery for delivery in deliveries if delivery.settled]
        if deliveries:
            self._on_deliveries(deliveries)
        if self._drain_left:
            self._drain_left -= min(self._drain_left, len(run))
            if not self._drain_left:
                self._end_drain(True)

    def _refuse_excess(self) -> None:
        """End a link whose peer sends more than it may: memory must not depend on the peer."""
        text = f"{self.path} sent more deliveries than the {self._largest_grant} it was asked for"
        if self._link is not None:
            self._link.detach(conditions.TRANSFER_LIMIT, text)
            self._connection.flush()
        self._finish(LinkEnded(text, conditions.TRANSFER_LIMIT))

    def handle(self, event: Event) -> None:
        match event:
            case DeliveryArrived():
                self.heard_at = self._loop.time()
                self.take([event])
            case Drained():
                self.heard_at = self._loop.time()
                self._end_drain(True)
            case FlowArrived():
                self.heard_at = self._loop.time()
            case Attached():
                self._on_attached()
            case Detached():
                text = event.error.description if event.error else None
                condition = str(event.error.condition) if event.error else ""
                if of_condition(condition) is FailureMeaning.UNAUTHORIZED:
                    self._connection.forget_token(self.path)
                self._finish(LinkEnded(text or "the namespace closed the link", condition))
            case DetachAnswered():
                if not self._detached.done():
                    self._detached.set_result(None)

    def _on_attached(self) -> None:
        link = self._link
        if link is None or link.source is None or self._opened.done():
            return  # A refusal, whose reason follows in a detach; or it came too late.
        self.heard_at = self._loop.time()
        if self._session is not NO_SESSION:
            answered = (link.source.filter or {}).get(SESSION_FILTER)
            found = answered.value if isinstance(answered, Described) else answered
            if not isinstance(found, str):
                text = f"{self.path} did not say which session it gave"
                self._opened.set_exception(LinkEnded(text, conditions.INVALID_FIELD))
                self._opened.exception()
                return
            self.session_id = found
            if self._settlements is not None:
                self._settlements.has_session = True
            self.session_locked_until = names.utc_of_ticks(
                link.properties.get(SESSION_LOCKED_UNTIL)
            )
        self.is_open = True
        self._opened.set_result(None)
        if self._session is not NO_SESSION and self._records is not None:
            self._records.accepted_session()

    # Ending

    async def close(self, timeout_s: float) -> None:
        """Drain, release what comes meanwhile, wait for settlements, detach; raises nothing.

        What the owner holds it gives back with `release_all` before this, or settles: this waits.
        """
        if self._is_closing:
            return
        self._is_closing = True
        ends_at = self._loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(ends_at):
                await self.drain(DRAIN_S)
                if self._settlements is not None:
                    await self._settlements.wait()
                if self.is_open:
                    self._detach()
                    await asyncio.shield(self._detached)
        except (TimeoutError, NamespaceFailure):
            pass  # The link has ended, or its entity does not answer.
        finally:
            self._detach()
            self._finish(LinkEnded(f"{self.path}: the link was closed"))

    def _detach(self) -> None:
        if self.is_open and self._link is not None and self._settlements is not None:
            self.is_open = False
            self._settlements.write()
            self._link.detach()
            self._connection.flush()

    def lost(self, text: str) -> None:
        if self._link is not None:  # Else it waits for another connection.
            self._finish(ConnectionLost(text))

    def _finish(self, why: NamespaceFailure) -> None:
        """The link is gone: end each settlement with an error of its own, and tell the owner."""
        if self._ended is not None:
            return
        self._ended, self.is_open = why, False
        was_open = self._opened.done() and self._opened.exception() is None
        for waiting in (self._opened, self._detached):
            if not waiting.done():
                waiting.set_exception(why)
                waiting.exception()
        self._connection.remove(self)
        self._end_drain(False)
        if self._settlements is not None:
            self._settlements.end(why)
        if self._records is not None:
            if self._session is not NO_SESSION and self._link is not None and not was_open:
                condition = why.condition if isinstance(why, LinkEnded) else ""
                self._records.refused_session(condition, str(why))
            self._records.write()
        if was_open and not self._is_closing:
            self._on_ended(self, why)


def _ignore(_: Exception | None) -> None:
    """What is given back may be delivered to others now, or when its lock ends."""
