"""The coordinator of a connection: it declares and discharges transactions.

    coordinator = TransactedSession(answer_s)
    session = await coordinator.session(connection)   # for the links that take part
    link = await coordinator.link()
    answer = link.ask(Declare())                      # a future: Declared, Accepted, or an error

Service Bus lets operations on several entities be one transaction if their links are on the session
of the coordinator, and takes the entity of the first one for the transaction's own. So the links
that take part have a session of their own, on which the coordinator is the first link.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import Final

from twinbus.amqp.events import Attached, CreditChanged, Detached, Disposed, Event
from twinbus.amqp.link import LinkState, SenderLink
from twinbus.amqp.performatives import (
    Accepted,
    Declare,
    Declared,
    Discharge,
    Error,
    Rejected,
    Source,
    TransactionalState,
)
from twinbus.amqp.performatives import Coordinator as CoordinatorTarget
from twinbus.amqp.session import Session
from twinbus.amqp.transactions import (
    LOCAL_TRANSACTIONS,
    MULTIPLE_IN_SESSION,
    MULTIPLE_SESSIONS,
    encode_request,
)
from twinbus.client.connection import NamespaceConnection
from twinbus.client.request_node import (
    ConnectionLost,
    DeliveryRejected,
    LinkEnded,
    RequestRefused,
)
from twinbus.servicebus import conditions

CAPABILITIES: Final = (LOCAL_TRANSACTIONS, MULTIPLE_IN_SESSION, MULTIPLE_SESSIONS)

CLOSED: Final = "the namespace closed the coordinator's link"

_numbers = itertools.count(1)


def refusal_of(state: object) -> DeliveryRejected | None:
    """Why a delivery was not taken; None: it was, also if only its transaction has it."""
    outcome = state.outcome if isinstance(state, TransactionalState) else state
    if isinstance(outcome, Accepted | Declared):
        return None
    error = outcome.error if isinstance(outcome, Rejected) else None
    error = error or Error(description=f"{outcome!r:.60}")
    return DeliveryRejected(
        error.description or "the namespace gave no reason", str(error.condition)
    )


class DischargeLink:
    """One link to the coordinator: when it ends, so do the transactions declared on it."""

    def __init__(self, connection: NamespaceConnection, session: Session) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self._waiting: deque[tuple[bytes, asyncio.Future[object]]] = deque()
        """Requests without credit."""
        self._asked: dict[int, asyncio.Future[object]] = {}
        """By delivery id: what has no answer."""
        self._ended: LinkEnded | ConnectionLost | None = None
        name = f"coordinator-{next(_numbers)}"
        self._link: SenderLink = session.attach_sender(
            name, source=Source(address=name), target=CoordinatorTarget(list(CAPABILITIES))
        )
        self._link.owner = self
        connection.flush()

    @property
    def is_open(self) -> bool:
        return self._ended is None and self.opened.done() and self._link.state is LinkState.OPEN

    def ask(self, request: Declare | Discharge) -> asyncio.Future[object]:
        """Send a request; the future gets the answer, or DeliveryRejected, or why there is none.

        LinkEnded: it was sent; ConnectionLost: it was not. It goes on if the one who waits for it
        is cancelled.
        """
        answer: asyncio.Future[object] = self._loop.create_future()
        answer.add_done_callback(_retrieved)
        if self._ended is not None:
            answer.set_exception(ConnectionLost(str(self._ended)))
            return answer
        self._waiting.append((encode_request(request), answer))
        self._send()
        return answer

    def _send(self) -> None:
        while self._waiting and self._link.credit > 0:
            payload, answer = self._waiting.popleft()
            tag = (self._link.delivery_count & 0xFFFF_FFFF).to_bytes(4, "big")
            self._asked[self._link.send(payload, tag)] = answer
        self._connection.flush()

    def answered(self, event: Disposed) -> None:
        """Take the answers in a disposition, if there are any."""
        if not self._asked or event.session is not self._link.session or event.state is None:
            return
        for number in list(event.among(self._asked)):
            answer = self._asked.pop(number)
            event.session.take_unsettled(number, number)
            refusal = refusal_of(event.state)
            if answer.done():
                continue
            if refusal is not None:
                answer.set_exception(refusal)
            else:
                answer.set_result(event.state)

    def handle(self, event: Event) -> None:
        match event:
            case Attached() if self._link.target is None:
                pass  # A refusal, whose reason follows in a detach.
            case CreditChanged():
                if self._link.credit and not self.opened.done():
                    self.opened.set_result(None)
                self._send()
            case Detached():
                text = event.error.description if event.error else None
                condition = str(event.error.condition) if event.error else ""
                self.end(
                    LinkEnded(text or "the namespace closed the coordinator's link", condition)
                )

    def end(self, why: LinkEnded | ConnectionLost) -> None:
        """The link is gone: what was asked gets no answer any more."""
        self._ended = self._ended or why
        if not self.opened.done():
            self.opened.set_exception(why)
            self.opened.exception()
        asked, self._asked = self._asked, {}
        waiting, self._waiting = self._waiting, deque()
        for answer in asked.values():
            if not answer.done():
                answer.set_exception(LinkEnded(str(why), why.condition, was_sent=True))
        for _, answer in waiting:
            if not answer.done():
                answer.set_exception(ConnectionLost(str(why)))

    def close(self) -> None:
        """Detach: the namespace rolls back what is not discharged."""
        if self._link.state is not LinkState.CLOSED:
            self._link.detach()
            self._connection.flush()
        self.end(LinkEnded("the coordinator's link was closed here"))


class TransactedSession:
    """The present coordinator's link of a connection, and the session that it is on."""

    def __init__(self, answer_s: float) -> None:
        self._answer_s = answer_s
        self._opening = asyncio.Lock()
        self._session: tuple[NamespaceConnection, Session] | None = None
        self._link: DischargeLink | None = None

    async def session(self, connection: NamespaceConnection) -> Session:
        """Return the session of the links that take part; the connection has a valid token.

        Attach before the next `await`. Raises LinkEnded, ConnectionLost, RequestRefused.
        """
        await self.link(connection)
        assert self._session is not None
        session = self._session[1]
        if session.free_handles < 1:
            raise RequestRefused(
                f"{connection.endpoint.label}: the session of the transactions has no room for"
                f" another link; the namespace allows {session.handle_max + 1}. Close some, or use"
                " another connection for some transactions",
                0,
                conditions.RESOURCE_LIMIT,
            )
        return session

    async def link(self, connection: NamespaceConnection) -> DischargeLink:
        """Return the open link to the coordinator; open one if there is none."""
        async with self._opening:
            if self._session is None or self._session[0] is not connection:
                self._session = connection, await connection.begin_session()
                self._link = None
            if self._link is not None and self._link.is_open:
                return self._link
            self._link = link = DischargeLink(connection, self._session[1])
            try:
                async with asyncio.timeout(self._answer_s):
                    await asyncio.shield(link.opened)
            except TimeoutError as error:
                link.close()
                text = f"the coordinator of {connection.endpoint.label} did not answer"
                raise ConnectionLost(f"{text} for {self._answer_s:g} s") from error
            except BaseException:
                link.close()
                raise
            return link

    def answered(self, event: Disposed) -> None:
        if self._link is not None:
            self._link.answered(event)

    def lost(self, text: str) -> None:
        """The connection is lost."""
        link, self._link, self._session = self._link, None, None
        if link is not None:
            link.end(ConnectionLost(text))


def _retrieved(answer: asyncio.Future[object]) -> None:
    """Mark an error as seen: the caller may wait for the answer no more."""
    if not answer.cancelled():
        answer.exception()
