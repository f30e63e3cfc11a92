"""A client's transactions: the coordinator's link, on which they begin and end, and their work.

    declare -> transfers and dispositions with the transaction's id -> discharge

The work waits in `twinbus.broker.engine.transaction` until a discharge applies all of it in one
call, hence in one commit, or none. A transaction is rolled back when its client says so, when the
coordinator's link, session or connection ends, and when it is too old. Its id means nothing on
another connection.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from twinbus.amqp.budgets import Budget
from twinbus.amqp.events import DeliveryArrived, Disposed
from twinbus.amqp.link import LinkSession, ReceiverLink
from twinbus.amqp.performatives import (
    ACCEPTED_BYTES,
    Accepted,
    Coordinator,
    Declare,
    Declared,
    Rejected,
    TransactionalState,
    encode_state,
)
from twinbus.amqp.transactions import (
    LOCAL_TRANSACTIONS,
    MULTIPLE_IN_SESSION,
    MULTIPLE_SESSIONS,
    read_request,
)
from twinbus.amqp.types import DecodeError
from twinbus.broker.engine.directory import Entity
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import RequestedSettlement
from twinbus.broker.engine.transaction import OPERATIONS_MAX, BrokerTransaction
from twinbus.broker.links.client_limits import ExpiryTimer
from twinbus.broker.links.context import (
    BrokerContext,
    LinkClient,
    LinkOwner,
    Tokens,
    rejected,
)
from twinbus.broker.links.receiving import DeliveringLink, outcome_of
from twinbus.broker.messages.incoming import Incoming
from twinbus.broker.refusals import (
    ArgumentInvalid,
    MalformedMessage,
    NotSupported,
    QuotaExceeded,
    Refusal,
    TransactionRolledBack,
    TransactionTimedOut,
    Unauthorized,
    UnknownTransaction,
)

log = logging.getLogger("twinbus.broker")

LIFETIME_MS = 120_000
"""A transaction that is older is rolled back, as in Azure."""

OPEN_MAX = 1_000
"""Open transactions of one connection: those of a thousand messages that are processed at once."""

TIMED_OUT_MAX = 1_000
"""Ids of transactions that were too old, kept to answer why they are gone."""

REQUEST_BYTES_MAX = 4 * 1024
CREDIT = 100

CAPABILITIES = [LOCAL_TRANSACTIONS, MULTIPLE_IN_SESSION, MULTIPLE_SESSIONS]

RequireRight = Callable[[int], object]
"""Takes the time; raises a `Refusal` unless the client may still do what it did."""


class _GivenOutcome(NamedTuple):
    """A delivery that the client has given an outcome and not settled."""

    session: LinkSession
    delivery_id: int
    state: bytes


class SendsIn(Protocol):
    """A link on which a client sends."""

    link: ReceiverLink
    entity: Entity
    via: str | None
    """The entity through which it sends, where that is another."""

    def require(self, now_ms: int) -> None: ...


class _Open:
    """An open transaction, and what its client waits for."""

    __slots__ = ("coordinator", "deadline_ms", "deliveries", "rights", "work")

    def __init__(
        self, work: BrokerTransaction, coordinator: CoordinatorLink, deadline_ms: int
    ) -> None:
        self.work = work
        self.coordinator = coordinator
        self.deadline_ms = deadline_ms
        self.deliveries: dict[tuple[LinkSession, int], _GivenOutcome] = {}
        self.rights: dict[object, RequireRight] = {}
        """By link: what the discharge must check once more."""


class ClientTransactions:
    """The open transactions of one client."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._open: OrderedDict[bytes, _Open] = OrderedDict()
        """By id, the oldest first."""
        self._timed_out: OrderedDict[bytes, None] = OrderedDict()
        self._held_bytes = Budget("this connection", "bytes in open transactions")
        self._new_id = Tokens()
        self._timer = ExpiryTimer(context, self._end_expired)

    def __len__(self) -> int:
        return len(self._open)

    def coordinate(self, client: LinkClient, link: ReceiverLink, now_ms: int) -> CoordinatorLink:
        """Open the link on which a client with a valid token declares transactions."""
        if all(grant.is_expired(now_ms / 1000) for grant in client.grants):
            raise Unauthorized("A transaction needs a token; put one on $cbs first.")
        self._held_bytes = client.budgets.transaction_bytes
        coordinator = CoordinatorLink(self, client, link)
        coordinator.attach()
        return coordinator

    # The coordinator's requests

    def declare(self, coordinator: CoordinatorLink, now_ms: int) -> bytes:
        """Begin a transaction; returns its id."""
        self._expire(now_ms)
        if len(self._open) >= OPEN_MAX:
            raise QuotaExceeded(
                f"the connection has {OPEN_MAX} open transactions, which is the limit; "
                "discharge some."
            )
        txn_id = self._new_id()
        deadline_ms = now_ms + LIFETIME_MS
        self._open[txn_id] = _Open(
            BrokerTransaction(self._context.namespace), coordinator, deadline_ms
        )
        self._timer.watch(deadline_ms)
        return txn_id

    def discharge(self, txn_id: bytes, now_ms: int, *, fail: bool) -> None:
        """Apply the work or, if `fail`, undo the transaction.

        Raises `TransactionRolledBack` where nothing could be applied.
        """
        transaction = self._find(txn_id, now_ms)
        if fail:
            self._end(txn_id, now_ms)
            return
        try:
            self._require_rights(transaction, now_ms)
            with self._context.store.undoing():
                transaction.work.commit(now_ms)
        except TransactionRolledBack:
            self._end(txn_id, now_ms)
            raise
        except Exception as error:
            # A part of the work may be in the engine. No answer leaves: every client is cut off.
            self._context.distrust(error)
            raise TransactionRolledBack("The broker failed; it drops the transaction.") from error
        self._forget(txn_id)
        for delivery in transaction.deliveries.values():
            session, number = delivery.session, delivery.delivery_id
            if session.take_unsettled(number, number):
                session.settle(number, number, delivery.state, as_receiver=False)

    def _require_rights(self, transaction: _Open, now_ms: int) -> None:
        try:
            for require in transaction.rights.values():
                require(now_ms)
        except Refusal as refusal:
            raise TransactionRolledBack(
                f"The transaction was rolled back: {refusal.description}"
            ) from refusal

    def roll_back_all(self, coordinator: CoordinatorLink, now_ms: int) -> None:
        """End the transactions that were declared on a link that is closed."""
        ids = [txn_id for txn_id, one in self._open.items() if one.coordinator is coordinator]
        for txn_id in ids:
            self._end(txn_id, now_ms)

    def close(self) -> None:
        """Forget everything: the connection is gone, or the engine is being replaced."""
        self._held_bytes.give_back(sum(one.work.size_bytes for one in self._open.values()))
        self._open.clear()
        self._timer.cancel()

    # Their work

    def send(
        self,
        txn_id: bytes,
        link: SendsIn,
        batch: Sequence[Incoming],
        now_ms: int,
    ) -> bytes:
        """Add a batch that came on `link`; returns the state to answer with."""
        transaction = self._find(txn_id, now_ms)
        work = transaction.work
        size_bytes = sum(incoming.size_bytes for incoming in batch)
        self._require_room(size_bytes)
        through = link.via
        # The SDKs put all links of a client with cross-entity transactions on one session.
        if through is None and link.link.session is transaction.coordinator.link.session:
            through = work.entity
        before = work.size_bytes
        work.send(link.entity, batch, now_ms, through=through)
        self._held_bytes.take(work.size_bytes - before)
        transaction.rights[link] = link.require
        return encode_state(TransactionalState(txn_id, Accepted()))

    def settle(
        self,
        txn_id: bytes,
        queue: Queue,
        wanted: RequestedSettlement,
        now_ms: int,
        *,
        right: tuple[object, RequireRight],
        is_final: bool = False,
    ) -> _Open:
        """Add a settlement; `is_final`: the client does not settle the delivery again.

        `right` is the place that the right is checked at, and the check.
        """
        transaction = self._find(txn_id, now_ms)
        work = transaction.work
        self._require_room(0)
        before = work.size_bytes
        work.settle(queue, wanted, now_ms, is_final=is_final)
        self._held_bytes.take(work.size_bytes - before)
        transaction.rights[right[0]] = right[1]
        return transaction

    def dispose(self, event: Disposed, now_ms: int) -> None:
        """Add the deliveries of a disposition, and answer it.

        An outcome that the client has not settled is settled by the discharge, and can be given
        again after a rollback.
        """
        state, session = event.state, event.session
        assert isinstance(state, TransactionalState), event
        if event.settled:
            taken = session.take_unsettled(event.first, event.last)
        else:
            taken = session.find_unsettled(event.first, event.last)
        # As outside of a transaction, the answer to a rejection is one without its error.
        echo = Rejected() if isinstance(state.outcome, Rejected) else state.outcome
        answer = encode_state(TransactionalState(state.txn_id, echo))
        refusal = _unusable(state, len(taken))
        outcome, given = outcome_of(state.outcome)
        for number, link, token in taken:
            owner = link.owner
            if not isinstance(owner, DeliveringLink):
                continue
            wanted = RequestedSettlement(token, outcome, session_id=owner.session_id, **given)
            try:
                if refusal is not None:
                    raise refusal
                transaction = self.settle(
                    state.txn_id,
                    owner.queue,
                    wanted,
                    now_ms,
                    right=(owner, owner.granted_until_ms),
                    is_final=event.settled,
                )
            except Refusal as failure:
                self._refuse(event, number, failure)
                owner.give_back(token, failure, now_ms)
                continue
            if not event.settled:
                transaction.deliveries[session, number] = _GivenOutcome(session, number, answer)
                session.confirm(number, number, answer)
            else:
                transaction.deliveries.pop((session, number), None)
        session.flush()

    def _refuse(self, event: Disposed, number: int, refusal: Refusal) -> None:
        """Answer a settlement that is refused, and let its transaction fail."""
        assert isinstance(event.state, TransactionalState), event
        self.doom(event.state.txn_id, refusal)
        if not event.settled:
            event.session.take_unsettled(number, number)
            answer = encode_state(rejected(refusal))
            event.session.settle(number, number, answer, as_receiver=False)

    def doom(self, txn_id: bytes, refusal: Refusal) -> None:
        """Let a transaction fail at its discharge, because an operation of it was refused.

        Not every client looks at the answer to an operation before it commits.
        """
        transaction = self._open.get(txn_id)
        if transaction is not None:
            transaction.work.doom(refusal)

    def _require_room(self, size_bytes: int) -> None:
        full = self._held_bytes.lacking(size_bytes)
        if full is not None:
            raise QuotaExceeded(
                f"{full.owner} has {full.used} {full.unit}, and {size_bytes} would be added; the "
                f"limit is {full.limit}. Discharge some transactions."
            )

    # Their end

    def _find(self, txn_id: bytes, now_ms: int) -> _Open:
        self._expire(now_ms)
        transaction = self._open.get(txn_id)
        if transaction is not None:
            return transaction
        if txn_id in self._timed_out:
            raise TransactionTimedOut(
                f"The transaction {txn_id.hex()} was rolled back: it was open for more than "
                f"{LIFETIME_MS // 1000} s. Declare a new one."
            )
        raise UnknownTransaction(
            f"The transaction {txn_id.hex()[:64]} is not open on this connection. It was never "
            "declared here, or has ended; declare a new one."
        )

    def _end_expired(self) -> None:
        self._expire(self._context.now_ms())
        if self._open:
            self._timer.watch(next(iter(self._open.values())).deadline_ms)

    def _expire(self, now_ms: int) -> None:
        while self._open:
            txn_id, oldest = next(iter(self._open.items()))
            if oldest.deadline_ms > now_ms:
                return
            log.warning("%s: rolled back %r: it was open too long", self._context.name, oldest.work)
            self._end(txn_id, now_ms)
            self._timed_out[txn_id] = None
            if len(self._timed_out) > TIMED_OUT_MAX:
                self._timed_out.popitem(last=False)

    def _end(self, txn_id: bytes, now_ms: int) -> None:
        """Roll a transaction back."""
        self._forget(txn_id).work.roll_back(now_ms)

    def _forget(self, txn_id: bytes) -> _Open:
        transaction = self._open.pop(txn_id)
        self._held_bytes.give_back(transaction.work.size_bytes)
        return transaction


class CoordinatorLink(LinkOwner):
    """The link on which a client declares and discharges transactions."""

    address = "the transaction coordinator"

    def __init__(
        self, transactions: ClientTransactions, client: LinkClient, link: ReceiverLink
    ) -> None:
        self._transactions = transactions
        self._client = client
        self.link = link

    def attach(self) -> None:
        self.link.limit_bytes = REQUEST_BYTES_MAX
        self.link.target = Coordinator(capabilities=list(CAPABILITIES))
        self.link.accept(max_message_size=REQUEST_BYTES_MAX)
        self.link.grant(CREDIT)

    def take(self, event: DeliveryArrived, now_ms: int) -> None:
        """Perform a request; the answer to a discharge leaves when its work is on disk."""
        try:
            answer = self._perform(event, now_ms)
        except Refusal as refusal:
            self._client.log_refusal("a transaction", refusal)
            answer = encode_state(rejected(refusal))
        if not event.settled:
            self.link.session.settle(event.delivery_id, event.delivery_id, answer, as_receiver=True)
        if self.link.credit < CREDIT // 2:
            self.link.grant(CREDIT)

    def _perform(self, event: DeliveryArrived, now_ms: int) -> bytes:
        try:
            request = read_request(event.payload)
        except DecodeError as error:
            raise MalformedMessage(f"The coordinator cannot read the request: {error}.") from error
        if not isinstance(request, Declare):
            self._transactions.discharge(request.txn_id, now_ms, fail=request.fail)
            return ACCEPTED_BYTES
        if request.global_id is not None:
            raise NotSupported("A transaction cannot be part of a distributed one (global-id).")
        if event.settled:
            raise NotSupported("A declare that is settled gets no answer, and so no transaction.")
        return encode_state(Declared(self._transactions.declare(self, now_ms)))

    def abandon(self) -> None:
        self._transactions.close()

    def close(self, now_ms: int) -> None:
        """Roll back what was declared here and not discharged."""
        self._transactions.roll_back_all(self, now_ms)


def _unusable(state: TransactionalState, count: int) -> Refusal | None:
    """Why a disposition cannot be part of any transaction."""
    if state.outcome is None:
        return ArgumentInvalid("A settlement in a transaction needs an outcome, such as accepted.")
    if count > OPERATIONS_MAX:
        return QuotaExceeded(
            f"the disposition settles {count} messages; a transaction has at most {OPERATIONS_MAX}."
        )
    return None
