"""A client that has a coordinator, a sender and a receiver, and speaks of transactions."""

from __future__ import annotations

from itertools import count

from tests.unit.broker.fakes import facts
from tests.unit.broker.links.joined import TICKS, Front, JoinedClient, new_server
from twinbus.amqp.events import DeliveryArrived, Detached, Disposed, Event
from twinbus.amqp.link import ReceiverLink, SenderLink
from twinbus.amqp.message import encode_message
from twinbus.amqp.performatives import (
    ACCEPTED_BYTES,
    Accepted,
    Coordinator,
    Declare,
    Declared,
    Discharge,
    Error,
    Rejected,
    Source,
    Target,
    TransactionalState,
    encode_state,
)
from twinbus.amqp.session import Session
from twinbus.amqp.transactions import encode_request
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.server import BrokerServer

BODY = encode_message(data=b"sent")
LOCK_MS = 300_000


class Transacting:
    """One connection to a broker with the queues `q` and `other`."""

    def __init__(self, server: BrokerServer | None = None, front: Front | None = None) -> None:
        """`front` is what the client connects to, if that is not the broker itself."""
        self.server = server or new_server()
        self.now_ms = self.server.now_ms()
        self.server.now_ms = lambda: self.now_ms  # type: ignore[method-assign]
        namespace = self.server.namespace
        if namespace.find("q") is None:
            for path in ("q", "other"):
                settings = QueueDescription(lock_duration_ms=LOCK_MS)
                namespace.create_queue(path, settings, self.now_ms)
        self.queue = namespace.get_queue("q")
        self.other = namespace.get_queue("other")
        self.client = JoinedClient(front or self.server)
        self._ticks = TICKS if front is None else 5 * TICKS
        self.session: Session
        self.coordinator: SenderLink
        self.sender: SenderLink
        self.receiver: ReceiverLink
        self.seen: list[Event] = []
        self._names = count()

    async def exchange(self) -> list[Event]:
        """What the client sees of the exchange."""
        new = await self.client.exchange(self._ticks)
        self.seen += new
        return new

    async def begin(self) -> Session:
        session = self.client.connection.begin()
        await self.exchange()
        return session

    async def open(self) -> None:
        await self.exchange()
        self.session = await self.begin()
        self.coordinator = await self.coordinate(self.session)
        self.sender = await self.sending("q", await self.begin())
        self.receiver = await self.receiving("q", self.sender.session)  # type: ignore[arg-type]

    async def coordinate(self, session: Session) -> SenderLink:
        link = session.attach_sender(
            f"tx-{next(self._names)}",
            source=Source(),
            target=Coordinator(capabilities=["amqp:local-transactions"]),
        )
        await self.exchange()
        return link

    async def sending(
        self, path: str, session: Session, properties: dict[object, object] | None = None
    ) -> SenderLink:
        name = f"out-{next(self._names)}"
        link = session.attach_sender(
            name, source=Source(), target=Target(address=path), properties=properties
        )
        await self.exchange()
        return link

    async def receiving(self, path: str, session: Session) -> ReceiverLink:
        name = f"in-{next(self._names)}"
        link = session.attach_receiver(
            name, source=Source(address=path), target=Target(), confirmed=True
        )
        await self.exchange()
        link.grant(1_000)
        await self.exchange()
        return link

    # Requests to the coordinator

    async def ask(self, request: Declare | Discharge, *, settled: bool = False) -> object:
        """The coordinator's answer."""
        return await self.answer(
            self.coordinator, self.coordinator.send(encode_request(request), b"r", settled=settled)
        )

    async def declare(self) -> bytes:
        answer = await self.ask(Declare())
        assert isinstance(answer, Declared), answer
        return answer.txn_id

    async def commit(self, txn_id: bytes) -> object:
        return await self.ask(Discharge(txn_id, False))

    async def roll_back(self, txn_id: bytes) -> object:
        return await self.ask(Discharge(txn_id, True))

    # Work

    async def send(
        self,
        txn_id: bytes,
        link: SenderLink | None = None,
        *,
        body: bytes = BODY,
        settled: bool = False,
    ) -> object:
        """Send a message in a transaction; the broker's answer."""
        link = link or self.sender
        number = link.send(body, b"m", settled=settled, state=TransactionalState(txn_id))
        return await self.answer(link, number)

    async def dispose(
        self,
        txn_id: bytes,
        number: int,
        outcome: object = Accepted(),
        *,
        settled: bool = False,
        session: Session | None = None,
    ) -> list[Disposed]:
        """Settle a delivery in a transaction; the broker's answers."""
        state = encode_state(TransactionalState(txn_id, outcome))  # type: ignore[arg-type]
        session = session or self.receiver.session  # type: ignore[assignment]
        assert session is not None
        if settled:
            session.settle(number, number, state, as_receiver=True)
            session.flush()
        else:
            session.dispose(number, number, state)
        return self.dispositions(await self.exchange())

    async def accept(self, number: int) -> list[Disposed]:
        """Complete a delivery, in no transaction."""
        self.receiver.session.dispose(number, number, ACCEPTED_BYTES)
        return self.dispositions(await self.exchange())

    async def answer(self, link: SenderLink, number: int) -> object:
        """The state that the broker settled a delivery of ours with; None: there was none."""
        for event in await self.exchange():
            if not isinstance(event, Disposed) or event.session is not link.session:
                continue
            if event.by_receiver and event.first <= number <= event.last:
                assert event.settled
                return event.state
        return None

    @staticmethod
    def dispositions(seen: list[Event]) -> list[Disposed]:
        return [one for one in seen if isinstance(one, Disposed) and not one.by_receiver]

    # What there is

    async def received(self, count: int) -> list[int]:
        """Send `count` messages and receive them; their delivery ids."""
        for _ in range(count):
            self.sender.send(BODY, b"m")
        return [
            one.delivery_id for one in await self.exchange() if isinstance(one, DeliveryArrived)
        ]

    def held(self) -> tuple[int, int]:
        """How many messages the queue `q` has, and how many of them are locked."""
        return len(facts(self.queue, self.now_ms)), self.queue.locked_count

    def detached(self) -> list[Error | None]:
        return [one.error for one in self.seen if isinstance(one, Detached)]


def refused(answer: object) -> tuple[str, str]:
    """Condition and text of a rejection."""
    assert isinstance(answer, Rejected), answer
    assert answer.error is not None
    return answer.error.condition, answer.error.description or ""
