"""What a relay of the syphon, or a paired receiver, talks over: a line to the simulation.

The relay, its pump, its tasks and requests are the real ones, and so are the links they hold; the
same goes for receivers and their links.
Frames and tokens are not: what a link does goes over a simulated wire as a call.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from tests.simulation.machine import PROCESS
from tests.simulation.namespace import Consumer
from tests.simulation.network import Wire, WireRefused, reject, resolve
from tests.simulation.truth import Deed
from twinbus.amqp.decoding import decode
from twinbus.amqp.events import (
    Attached,
    CreditChanged,
    DeliveryArrived,
    DetachAnswered,
    Detached,
    Disposed,
    Drained,
    Event,
)
from twinbus.amqp.link import Link, ReceiverLink, SenderLink
from twinbus.amqp.performatives import (
    ACCEPTED_BYTES,
    RELEASED_BYTES,
    Accepted,
    Error,
    Rejected,
    Source,
    Target,
)
from twinbus.amqp.types import Symbol
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import LockedMessage, SettlementOutcome
from twinbus.broker.messages.rendering import render
from twinbus.broker.refusals import EntityNotFound, Refusal
from twinbus.client.connection import ANSWER_S
from twinbus.client.incoming import IncomingOwner
from twinbus.client.request_node import ConnectionLost, RequestRefused

if TYPE_CHECKING:
    from tests.simulation.world import World
    from twinbus.ledger.requests import BilledRequests
    from twinbus.namespace.access import Endpoint

CREDIT: Final = 1_000
SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
OUTCOMES: Final = {
    "completed": SettlementOutcome.COMPLETE,
    "suspended": SettlementOutcome.DEAD_LETTER,
    "defered": SettlementOutcome.DEFER,
    "abandoned": SettlementOutcome.ABANDON,
}


class SimLine:
    """One signed-in connection, as a `NamespaceConnection` of the syphon is to a relay."""

    def __init__(
        self,
        world: World,
        endpoint: Endpoint,
        on_event: Callable[[Event], None],
        *,
        requests: BilledRequests | None = None,
        answer_s: float = ANSWER_S,
        **_: Any,
    ) -> None:
        process = PROCESS.get()
        assert process is not None
        self.endpoint = endpoint
        self.process = process
        self.world = world
        self.namespace = world.namespaces[endpoint.label]
        self.lost: asyncio.Future[str] = process.loop.create_future()
        self.wire = Wire(world.network, process, self.namespace, self._lose)
        self.session = SimSession(self)
        self._on_event = on_event
        self._authorized: set[str] = set()
        self._requests = requests
        self._answer_s = answer_s
        self.flows = 0
        world.lines.append(self)

    async def open(self) -> None:
        try:
            async with asyncio.timeout(self._answer_s):
                await self.wire.open()
        except (WireRefused, TimeoutError) as error:
            text = f"{self.endpoint.label} cannot be reached: {str(error) or 'no answer'}"
            self._lose(text)
            raise ConnectionLost(text) from error

    async def authorize(self, path: str) -> bool:
        if path in self._authorized:
            return False
        await self._ask(lambda: self._require_entity(path))
        self._authorized.add(path)
        return True

    async def session_with_room(self) -> SimSession:
        return self.session

    async def begin_session(self) -> SimSession:
        return SimSession(self)

    def forget_token(self, path: str) -> None:
        self._authorized.discard(path)

    async def request(
        self, path: str, operation: str, body: dict[str, Any], *, link_name: str = "", **_: Any
    ) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            return self._answer(path, operation, body, link_name)

        error, is_known = None, True
        answer: dict[str, Any] = {}
        try:
            answer = await self._ask(work)
        except (RequestRefused, ConnectionLost) as caught:
            error, is_known = str(caught), isinstance(caught, RequestRefused)
            raise
        finally:
            if self._requests is not None and not answer.get("messages"):
                self._requests.made(path, operation, error, is_known=is_known)
        return answer

    def echo(self) -> None:
        """Ask for a sign of life."""

        def heard() -> None:
            self.flows += 1

        self.wire.to_namespace(lambda: self.wire.to_client(heard))

    def flush(self) -> None:
        """What a link does is on the wire at once."""

    def drop(self, reason: str) -> None:
        self._lose(reason)

    async def close(self) -> None:
        self._lose("it was closed here")

    def tell(self, event: Event) -> None:
        """Something arrived for the relay."""
        if not self.lost.done():
            self._on_event(event)

    def _lose(self, reason: str) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)
        self.wire.cut()

    async def _ask(self, operation: Callable[[], Any]) -> Any:
        answer: asyncio.Future[Any] = self.process.loop.create_future()

        def at_namespace() -> None:
            try:
                result = operation()
            except Refusal as refusal:
                error = RequestRefused(refusal.description, refusal.status, refusal.condition)
                self.wire.to_client(lambda: reject(answer, error))
            else:
                self.wire.to_client(lambda: resolve(answer, result))

        if self.lost.done():
            raise ConnectionLost(self.lost.result())
        self.wire.to_namespace(at_namespace)
        waited: set[asyncio.Future[Any]] = {answer, self.lost}
        await asyncio.wait(waited, timeout=self._answer_s, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        answer.cancel()
        if self.lost.done():
            raise ConnectionLost(self.lost.result())
        raise ConnectionLost(f"{self.endpoint.label} did not answer for {self._answer_s:g} s")

    def _require_entity(self, path: str) -> None:
        """Refuse a token for a missing entity as `$cbs` does: with a status, and no condition."""
        try:
            self.namespace.engine.resolve(path)
        except EntityNotFound as refusal:
            refusal.condition = ""
            raise

    def _answer(
        self, path: str, operation: str, body: dict[str, Any], link_name: str
    ) -> dict[str, Any]:
        """What the entity's `$management` node does."""
        self.namespace.requests[operation] += 1
        self.namespace.charge(1)
        queue, now_ms = self.namespace.engine.receive_source(path), self.namespace.now_ms()
        match operation:
            case "renew-lock":
                return {"expirations": [queue.renew(token, now_ms) for token in _tokens(body)]}
            case "renew-session-lock":
                queue.sessions.renew(body["session-id"], self.session.holder(link_name), now_ms)
                return {}
            case "get-session-state":
                return {"session-state": queue.sessions.state(body["session-id"])}
            case "set-session-state":
                holder = self.session.holder(link_name)
                name, state = body["session-id"], body["session-state"]
                queue.sessions.set_state(name, state, now_ms, holder=holder)
                return {}
            case "update-disposition":
                return self._update(queue, body, now_ms)
            case "receive-by-sequence-number":
                numbers = list(body["sequence-numbers"])
                found = queue.receive_by_sequence(numbers, self, now_ms)
                return {"messages": [self._entry(queue, delivery) for delivery in found]}
            case "peek-message":
                first, count = body["from-sequence-number"], body["message-count"]
                payload = self.namespace.store.payload
                return {
                    "messages": [
                        {"message": render(payload(queue.entity_id, m.sequence_number), m)}
                        for m in queue.peek(first, count, now_ms)
                    ]
                }
        raise AssertionError(f"a relay asks for {operation}")

    def _update(self, queue: Queue, body: dict[str, Any], now_ms: int) -> dict[str, Any]:
        refusals: list[Refusal] = []
        for token in _tokens(body):
            try:
                queue.settle(
                    token,
                    OUTCOMES[body["disposition-status"]],
                    now_ms,
                    reason=body.get("deadletter-reason"),
                    description=body.get("deadletter-description"),
                )
                self.world.note_settled(token, OUTCOMES[body["disposition-status"]])
            except Refusal as refusal:
                refusals.append(refusal)
        if refusals:
            raise refusals[0]
        return {}

    def _entry(self, queue: Queue, delivery: LockedMessage) -> dict[str, Any]:
        self.world.note_lock(queue, delivery, self.wire)
        token = UUID(bytes_le=delivery.lock_token)
        return {"message": self.namespace.rendered(queue, delivery), "lock-token": token}


def _tokens(body: dict[str, Any]) -> list[bytes]:
    return [token.bytes_le for token in body["lock-tokens"]]


class SimSession:
    """The session of one line: real links whose frames are calls."""

    def __init__(self, line: SimLine) -> None:
        self._line = line
        self._wire = line.wire
        self._handles = itertools.count()
        self.next_delivery_id = 0
        self._received = itertools.count()
        self._unsettled: dict[int, tuple[SenderLink, bytes]] = {}
        self._locked: dict[int, tuple[Queue, bytes]] = {}
        """At the namespace's end: what was delivered here and is not settled."""
        self._consumers: dict[Link, Consumer] = {}
        self._forwards: dict[int, Deed] = {}
        self._detached: set[Link] = set()
        """Links that the namespace has ended: it discards what still arrives on them."""

    # The relay's end

    def attach_sender(self, name: str, *, source: Source, target: Target) -> SenderLink:
        link = SenderLink(self, name, next(self._handles))  # type: ignore[arg-type]
        link.source, link.target = source, target
        self._wire.to_namespace(lambda: self._attached_sender(link, str(target.address)))
        return link

    def attach_receiver(
        self, name: str, *, source: Source, target: Target, confirmed: bool = False, **_: Any
    ) -> ReceiverLink:
        link = ReceiverLink(self, name, next(self._handles))  # type: ignore[arg-type]
        link.source, link.target = source, target
        self._wire.to_namespace(lambda: self._attached_receiver(link, source))
        return link

    def holder(self, link_name: str) -> object:
        """Who holds the session that a link was given."""
        return next((c for link, c in self._consumers.items() if link.name == link_name), None)

    def send_transfer(
        self, link: SenderLink, payload: bytes, tag: bytes, settled: bool, *_: object
    ) -> int:
        number = self.next_delivery_id
        self.next_delivery_id += 1
        self._unsettled[number] = (link, tag)
        line = self._line
        deed = line.world.forward_deed(line.process, str(link.owner), tag, self._wire)
        self._forwards[number] = deed
        self._wire.to_namespace(lambda: self._stored(link, number, payload, deed))
        return number

    def send_run(
        self, link: SenderLink, tags: list[bytes], heads: Iterable[bytes], rests: list[bytes]
    ) -> int:
        for tag, head, rest in zip(tags, heads, rests, strict=False):
            self.send_transfer(link, head + rest, tag, False)
        return len(tags)

    def take_unsettled(self, first: int, last: int) -> list[tuple[int, SenderLink, bytes]]:
        return [
            (number, *self._unsettled.pop(number))
            for number in range(first, last + 1)
            if number in self._unsettled
        ]

    def take_one(self, delivery_id: int) -> bool:
        return bool(self.take_unsettled(delivery_id, delivery_id))

    def dispose(self, first: int, last: int, state: bytes) -> None:
        self._wire.to_namespace(lambda: self._settled(first, last, state))

    def write_flow(self, *, handle: int, link_credit: int, drain: bool = False, **_: Any) -> None:
        self._wire.to_namespace(lambda: self._granted(handle, link_credit, drain))

    def write(self, performative: object) -> None:
        """A detach: `forget` has the link itself."""

    def forget(self, link: Link) -> None:
        """Nothing that a link which was detached still says is heard, but for the answer."""
        owner, link.owner = link.owner, None

        def detached() -> None:
            self._forgotten(link)
            if isinstance(owner, IncomingOwner):
                self._wire.to_client(partial(owner.handle, DetachAnswered(link)))

        self._wire.to_namespace(detached)

    # The namespace's end

    def _attached_sender(self, link: SenderLink, path: str) -> None:
        namespace = self._line.namespace
        try:
            limit = namespace.attach_sender(path)
        except Refusal as refusal:
            self._detach(link, refusal)
            return
        namespace.on_deleted(path, lambda: self._detach(link, _gone(path)))

        def attached() -> None:
            if link.owner is not None:
                link.max_message_size = limit
                self._line.tell(Attached(link))
                self._credit(link)

        self._wire.to_client(attached)

    def _credit(self, link: SenderLink) -> None:
        link.credit = CREDIT
        self._line.tell(CreditChanged(link))

    def _detach(self, link: Link, refusal: Refusal) -> None:
        error = Error(condition=Symbol(refusal.condition), description=refusal.description)
        self._wire.hit("a link was detached")
        self._detached.add(link)

        def detached() -> None:
            if link.owner is not None:
                self._line.tell(Detached(link, error, True))

        self._wire.to_client(detached)

    def _stored(self, link: SenderLink, number: int, payload: bytes, deed: Deed) -> None:
        if link in self._detached:
            return
        state: object = Accepted()
        try:
            self._line.namespace.send(deed.path, [payload], deed)
        except Refusal as refusal:
            condition = Symbol(refusal.condition)
            state = Rejected(error=Error(condition=condition, description=refusal.description))

        def answered() -> None:
            if link.owner is None or self._line.lost.done():
                return
            deed.answered = isinstance(state, Accepted)
            deed.answered_at = self._line.process.loop.time()
            disposed = Disposed(self, True, number, number, True, state)  # type: ignore[arg-type]
            self._line.tell(disposed)
            if link.credit < CREDIT // 2:
                self._credit(link)

        self._wire.to_client(answered)

    def _attached_receiver(self, link: ReceiverLink, source: Source) -> None:
        namespace = self._line.namespace
        try:
            queue = namespace.engine.receive_source(str(source.address))
            queue.require_receiving(namespace.now_ms())
            deliver = partial(self._deliver, link, queue)
            consumer = Consumer(queue, deliver, partial(self._detach, link))
            session_id = (source.filter or {}).get(SESSION_FILTER)
            if session_id is not None:
                namespace.requests["accept-session"] += 1
                queue.sessions.accept(str(session_id), consumer, namespace.now_ms())
        except Refusal as refusal:
            self._detach(link, refusal)
            return
        self._consumers[link] = consumer
        if session_id is not None:
            # A lease: its session is free as soon as the link is gone, and nothing comes over it.
            self._wire.on_gone.append(lambda: self._release(consumer))
            self._wire.to_client(lambda: self._line.tell(Attached(link)))
            return
        namespace.add_consumer(consumer)
        namespace.on_deleted(queue.path, partial(self._source_deleted, link, queue.path))
        self._wire.on_gone.append(lambda: namespace.remove_consumer(consumer))
        self._wire.to_client(lambda: self._line.tell(Attached(link)))

    def _release(self, consumer: Consumer) -> None:
        namespace = self._line.namespace
        if namespace.is_up and not consumer.queue.is_deleted:
            consumer.queue.sessions.release_holder(consumer, namespace.now_ms())

    def _source_deleted(self, link: ReceiverLink, path: str) -> None:
        consumer = self._consumers.pop(link, None)
        if consumer is not None:
            self._line.namespace.remove_consumer(consumer)
            self._detach(link, _gone(path))

    def _deliver(
        self, link: ReceiverLink, queue: Queue, delivery: LockedMessage, wire: bytes
    ) -> None:
        number = next(self._received)
        token = delivery.lock_token
        self._locked[number] = (queue, token)
        self._line.world.note_lock(queue, delivery, self._wire)

        def arrived() -> None:
            if isinstance(link.owner, IncomingOwner):
                link.count_incoming(1)
            self._line.tell(DeliveryArrived(link, number, token, 0, False, wire))

        self._wire.to_client(arrived)

    def _forgotten(self, link: Link) -> None:
        consumer = self._consumers.pop(link, None)
        if consumer is not None:
            self._line.namespace.remove_consumer(consumer)
            self._release(consumer)

    def _granted(self, handle: int, credit: int, drain: bool) -> None:
        for link, consumer in self._consumers.items():
            if link.handle == handle:
                self._line.namespace.granted(consumer, credit)
                if drain and isinstance(link, ReceiverLink):
                    self._drain(link, consumer)

    def _drain(self, link: ReceiverLink, consumer: Consumer) -> None:
        """Deliver what is there, and give back the rest of the credit."""
        self._line.namespace.settle()
        consumer.credit = 0

        def drained() -> None:
            link.credit = 0
            self._line.tell(Drained(link))

        self._wire.to_client(drained)

    def _settled(self, first: int, last: int, state: bytes) -> None:
        now_ms = self._line.namespace.now_ms()
        for number in range(first, last + 1):
            if number not in self._locked:
                continue
            queue, token = self._locked.pop(number)
            answer: object = Accepted()
            try:
                self._line.world.note_settled(token, _settle(queue, token, state, now_ms))
            except Refusal as refusal:
                error = Error(condition=Symbol(refusal.condition), description=refusal.description)
                answer = Rejected(error=error)
            event = Disposed(self, False, number, number, True, answer)  # type: ignore[arg-type]
            self._wire.to_client(partial(self._line.tell, event))

    def close_source(self) -> None:
        """The service detaches an idle receiver, as it may at any time."""
        self._wire.hit("a link was detached")
        for link, consumer in list(self._consumers.items()):
            del self._consumers[link]
            self._line.namespace.remove_consumer(consumer)
            self._release(consumer)
            self._wire.to_client(partial(self._line.tell, Detached(link, None, True)))


def _settle(queue: Queue, token: bytes, state: bytes, now_ms: int) -> SettlementOutcome:
    """Perform a disposition; return what it was."""
    reason = description = None
    if state == ACCEPTED_BYTES:
        outcome = SettlementOutcome.COMPLETE
    elif state == RELEASED_BYTES:
        outcome = SettlementOutcome.RELEASE
    else:
        described = decode(state)[0]
        fields = described.value
        if described.descriptor == 0x25:
            error = fields[0].value
            info = (error[2] if len(error) > 2 else None) or {}
            outcome = SettlementOutcome.DEAD_LETTER
            reason = info.get(Symbol("DeadLetterReason"))
            description = info.get(Symbol("DeadLetterErrorDescription"))
        else:
            # Modified: delivery-failed, undeliverable-here.
            is_deferred = len(fields) > 1 and fields[1]
            outcome = SettlementOutcome.DEFER if is_deferred else SettlementOutcome.ABANDON
    queue.settle(token, outcome, now_ms, reason=reason, description=description)
    return outcome


def _gone(path: str) -> Refusal:
    return EntityNotFound(f"the entity {path!r} was deleted")
