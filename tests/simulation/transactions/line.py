"""A line whose links can take part in transactions, performed by the broker's real engine."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.line import CREDIT, OUTCOMES, SimLine, SimSession
from twinbus.amqp.composites import read_composite
from twinbus.amqp.events import Attached, Disposed
from twinbus.amqp.link import LinkState, SenderLink
from twinbus.amqp.performatives import (
    Accepted,
    Coordinator,
    Declare,
    Declared,
    Error,
    Rejected,
    Source,
    Target,
    TransactionalState,
)
from twinbus.amqp.transactions import read_request
from twinbus.amqp.types import Symbol
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import RequestedSettlement
from twinbus.broker.engine.transaction import BrokerTransaction
from twinbus.broker.messages.incoming import parse
from twinbus.broker.refusals import (
    Refusal,
    TransactionTimedOut,
    UnknownTransaction,
)
from twinbus.client.outcomes import outcome_of

if TYPE_CHECKING:
    from tests.simulation.transactions.world import TransactionWorld

LIFETIME_S: Final = 120.0


class TransactedLine(SimLine):
    """A connection on whose further sessions transactions run."""

    world: TransactionWorld  # type: ignore[assignment]  # what a line uses of one

    async def begin_session(self) -> CoordinatedSession:
        return CoordinatedSession(self)


class CoordinatedSession(SimSession):
    """A session with a coordinator: what is sent and settled on it waits for a discharge."""

    free_handles = 100
    handle_max = 254
    next_delivery_id = 0
    """Only for tags, which tell nothing here: a delivery has its id."""

    def __init__(self, line: TransactedLine) -> None:
        super().__init__(line)
        self._at = line
        self._paths: dict[SenderLink, str] = {}
        self._ids = itertools.count(1)
        self._open: dict[bytes, tuple[BrokerTransaction, float, dict[int, bytes]]] = {}
        """At the namespace's end: the work, its deadline, and the deliveries that it settles."""
        line.wire.on_gone.append(self._open.clear)

    # The client's end

    def attach_sender(
        self, name: str, *, source: Source, target: Target | Coordinator
    ) -> SenderLink:
        if isinstance(target, Target):
            link = super().attach_sender(name, source=source, target=target)
            self._paths[link] = str(target.address)
            return link
        link = SenderLink(self, name, next(self._handles))  # type: ignore[arg-type]
        link.source, link.target = source, target

        def attached() -> None:
            if link.owner is not None:
                self._line.tell(Attached(link))
                self._credit(link)

        self._wire.to_namespace(lambda: self._wire.to_client(attached))
        return link

    def send_transfer(
        self, link: SenderLink, payload: bytes, tag: bytes, settled: bool, *more: object
    ) -> int:
        number = self.next_delivery_id
        self.next_delivery_id += 1
        self._unsettled[number] = (link, tag)
        path, state = self._paths.get(link), more[1]
        if path is None:
            self._wire.to_namespace(lambda: self._asked(link, number, payload))
        else:
            assert isinstance(state, TransactionalState), "a send outside of a transaction"
            self._wire.to_namespace(lambda: self._worked(link, number, path, payload, state))
        return number

    def dispose(self, first: int, last: int, state: bytes) -> None:
        found, _ = read_composite(state, 0)
        if isinstance(found, TransactionalState):
            self._wire.to_namespace(lambda: self._enlisted(first, last, found))
        else:
            super().dispose(first, last, state)

    def _credit(self, link: SenderLink) -> None:
        link.state = LinkState.OPEN
        super()._credit(link)

    # The namespace's end

    def _asked(self, link: SenderLink, number: int, payload: bytes) -> None:
        request = read_request(payload)
        namespace = self._line.namespace
        if isinstance(request, Declare):
            txn_id = next(self._ids).to_bytes(4, "big")
            work = BrokerTransaction(namespace.engine)
            self._open[txn_id] = work, self._at.process.loop.time() + LIFETIME_S, {}
            self._answer_with(link, number, Declared(txn_id))
            return
        try:
            work, settled = self._found(request.txn_id)
            del self._open[request.txn_id]
            if request.fail:
                work.roll_back(namespace.now_ms())
            else:
                self._at.world.discharging(namespace)
                work.commit(namespace.now_ms())
                for each in settled:
                    self._locked.pop(each, None)
        except Refusal as refusal:
            self._answer_with(link, number, _rejected(refusal))
        else:
            self._answer_with(link, number, Accepted())

    def _worked(
        self, link: SenderLink, number: int, path: str, payload: bytes, state: TransactionalState
    ) -> None:
        namespace = self._line.namespace
        try:
            work, _ = self._found(state.txn_id)
            target = namespace.engine.send_target(path)
            batch = [parse(payload, lambda: "given by the broker")]
            # All links are on the coordinator's session.
            work.send(target, batch, namespace.now_ms(), through=work.entity)
        except Refusal as refusal:
            self._answer_with(link, number, _rejected(refusal))
        else:
            self._answer_with(link, number, TransactionalState(state.txn_id, Accepted()))

    def _enlisted(self, first: int, last: int, state: TransactionalState) -> None:
        for number in range(first, last + 1):
            found = self._locked.get(number)
            if found is None:
                continue
            answer: Any = state
            try:
                self._settle_within(number, *found, state)
            except Refusal as refusal:
                answer = _rejected(refusal)
            event = Disposed(self, False, number, number, False, answer)  # type: ignore[arg-type]
            self._wire.to_client(lambda event=event: self._line.tell(event))  # type: ignore[misc]

    def _settle_within(
        self, number: int, queue: Queue, token: bytes, state: TransactionalState
    ) -> None:
        work, settled = self._found(state.txn_id)
        outcome = OUTCOMES[outcome_of(state.outcome).status]
        work.settle(queue, RequestedSettlement(token, outcome), self._line.namespace.now_ms())
        settled[number] = token

    def _found(self, txn_id: bytes) -> tuple[BrokerTransaction, dict[int, bytes]]:
        found = self._open.get(txn_id)
        if found is None:
            raise UnknownTransaction("it is not open here")
        work, until, settled = found
        if self._at.process.loop.time() >= until:
            del self._open[txn_id]
            work.roll_back(self._line.namespace.now_ms())
            raise TransactionTimedOut("it was open for too long")
        return work, settled

    def _answer_with(self, link: SenderLink, number: int, state: object) -> None:
        def answered() -> None:
            if link.owner is None or self._line.lost.done():
                return
            self._line.tell(Disposed(self, True, number, number, True, state))  # type: ignore[arg-type]
            if link.credit < CREDIT // 2:
                self._credit(link)

        self._wire.to_client(answered)


def _rejected(refusal: Refusal) -> Rejected:
    condition = Symbol(refusal.condition)
    return Rejected(error=Error(condition=condition, description=refusal.description))
