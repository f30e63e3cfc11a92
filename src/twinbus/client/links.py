"""Sending links to the entities of one namespace, on one shared connection: many in flight.

    links = connection.pool("orders")
    links.send(wire, done)           # on an open link; `done` gets None or the error
    await links.send_messages(wire)  # returns when the namespace has accepted it

All owners of one process share the connection, and all senders of one entity its link. A send ends
with None, DeliveryRejected, LinkEnded or TimeoutError; opening also with ConnectionLost (nothing
was sent) or RequestRefused.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import repeat
from typing import Any, Final

from twinbus.amqp.events import (
    Attached,
    CreditChanged,
    DeliveryArrived,
    Detached,
    Disposed,
    Event,
)
from twinbus.amqp.link import SERIAL_MASK, LinkSession, LinkState, SenderLink
from twinbus.amqp.performatives import Source, Target
from twinbus.amqp.session import Session
from twinbus.client.connection import NamespaceConnection, Record
from twinbus.client.consumer_records import ConsumerRecords, records_of
from twinbus.client.coordinator import DischargeLink, TransactedSession
from twinbus.client.in_flight import (
    Done,
    InFlight,
    RunOwner,
    Sent,
    SentRun,
    WaitingRun,
    WaitingSend,
    Wire,
    answer,
)
from twinbus.client.incoming import IncomingLinks, IncomingOwner
from twinbus.client.request_node import (
    ConnectionLost,
    DeliveryRejected,
    LinkEnded,
    RequestRefused,
)
from twinbus.ledger.requests import BilledRequests
from twinbus.namespace.access import endpoint_of
from twinbus.namespace.namespace import Namespace
from twinbus.servicebus import conditions
from twinbus.servicebus.failures import ANSWER_MIN_S, CutShort, of_detach
from twinbus.servicebus.names import (
    BATCH_LIMIT,
    PREMIUM_BATCH_BYTES,
    STANDARD_MESSAGE_BYTES,
)

log = logging.getLogger("twinbus.client")

REOPEN_PAUSE_S: Final = 0.2
"""Calls that come this soon after a failed connection get the same failure: a thousand callers
that try again together do not open a thousand sockets."""

UNUSED_S: Final = 30.0
"""How long the link to an entity stays open after its last user: many programs open and close a
sender for each message."""

OPEN: Final = LinkState.OPEN
"""A name of its own: every send reads it, and member lookup in an enum is slow."""

_numbers = itertools.count(1)


class UpstreamConnection:
    """The connection to one namespace; it is opened when needed and again when it was lost."""

    def __init__(
        self,
        namespace: Namespace,
        answer_s: float,
        connect: Callable[..., NamespaceConnection] = NamespaceConnection,
        requests: BilledRequests | None = None,
        *,
        transacts: bool = False,
    ) -> None:
        """`requests` records what is billed; None: as a command's.

        `transacts`: its links can take part in transactions (client/transactions.py).
        """
        self.label = namespace.label
        self.answer_s = answer_s
        self.loop = asyncio.get_running_loop()
        self.heard_at = 0.0
        """When the namespace last sent a frame."""
        self._connect = connect
        self._endpoint = endpoint_of(namespace)
        self._connection: NamespaceConnection | None = None
        self._opening: asyncio.Task[NamespaceConnection] | None = None
        self._failure: tuple[float, str] | None = None
        self.pools: dict[str, LinkPool] = {}
        self._in_flight: dict[LinkSession, InFlight] = {}
        self._requests = requests
        self._incoming = IncomingLinks()
        self._coordinator = TransactedSession(answer_s) if transacts else None
        self._before_flush: list[Callable[[], None]] = []
        self._is_flush_due = False
        self._closed = False

    @property
    def state(self) -> str:
        """`connected`; `unused`, for it was not needed yet; or `lost`."""
        if self._connection is not None and not self._connection.lost.done():
            return "connected"
        return "lost" if self._failure is not None or self.heard_at else "unused"

    @property
    def is_busy(self) -> bool:
        """Whether the namespace has transfers without an answer."""
        return any(self._in_flight.values())

    @property
    def is_lost(self) -> bool:
        """Whether the connection is lost, though its links may not know it yet."""
        return self._connection is not None and self._connection.lost.done()

    def pool(
        self,
        path: str,
        on_open: Callable[[int, int], None] | None = None,
        *,
        splits: bool = False,
    ) -> LinkPool:
        """Return the links to one entity; `on_open` gets the limits that a link reports.

        `splits`: a batch beyond the link's limit is an error here, so that it is divided.
        """
        pool = self.pools.get(path.lower())
        if pool is None or pool.closed:
            pool = self.pools[path.lower()] = LinkPool(self, path, on_open, splits=splits)
        return pool

    async def session(self, connection: NamespaceConnection) -> Session:
        """Return the session for another link; the open connection has a token for its entity.

        Attach before the next `await`.
        """
        if self._coordinator is None:
            return await connection.session_with_room()
        return await self._coordinator.session(connection)

    async def coordinator(self) -> DischargeLink:
        """Return the link that declares and discharges; a link of this connection is open."""
        assert self._coordinator is not None, "the connection was not opened for transactions"
        return await self._coordinator.link(await self.opened())

    async def opened(self) -> NamespaceConnection:
        """Return the open connection, or raise ConnectionLost."""
        if self._connection is not None and not self._connection.lost.done():
            return self._connection
        if self._closed:
            raise ConnectionLost(f"the connection to {self.label} was closed")
        if self._failure is not None and self.loop.time() - self._failure[0] < REOPEN_PAUSE_S:
            raise ConnectionLost(self._failure[1])
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(_retrieved)
        return await asyncio.shield(self._opening)

    async def _open(self) -> NamespaceConnection:
        connection = self._connect(
            self._endpoint,
            self._on_event,
            on_deliveries=self._on_deliveries,
            answer_s=self.answer_s,
            requests=self._requests,
        )
        try:
            await connection.open()
        except ConnectionLost as error:
            self._failure = self.loop.time(), str(error)
            raise
        except BaseException:
            # Closed meanwhile: a socket that is open by now must not stay.
            await connection.close()
            raise
        self._failure = None
        self._connection = connection
        self.heard_at = self.loop.time()
        connection.lost.add_done_callback(partial(self._on_lost, connection))
        log.info("%s: connected", self.label)
        return connection

    def flush(self, before: Callable[[], None] | None = None) -> None:
        """Write what links have added, at the end of this loop iteration; first call `before`."""
        if before is not None:
            self._before_flush.append(before)
        if not self._is_flush_due:
            self._is_flush_due = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        before, self._before_flush = self._before_flush, []
        for write in before:
            write()
        self.flush_now()

    def flush_now(self) -> None:
        """Write what links have added."""
        if self._connection is not None:
            self._connection.flush()

    def forget_unused(self, pool: LinkPool) -> None:
        """Close the link to an entity that no sender uses any more."""
        if not pool.users and self.pools.get(pool.path.lower()) is pool:
            del self.pools[pool.path.lower()]
            pool.invalidate()
            self._forget_unused_token(pool.path)

    def records(self, path: str, client: str | None = None) -> ConsumerRecords | None:
        """The ledger lines of what is received from an entity; None: there is no ledger.

        `client` is the client of a gateway that receives.
        """
        requests = None if self._requests is None else self._requests.of_client(client)
        return records_of(requests, path, self.loop)

    def record(self, path: str, operation: str, client: str | None) -> Record | None:
        """What records a request of a gateway's client; None: the connection itself does."""
        if self._requests is None:
            return None
        return partial(self._requests.of_client(client).made, path, operation)

    def add(self, link: IncomingOwner) -> None:
        """Remember a receiving link that is being opened; it needs a token."""
        self._incoming.add(link)

    def settling(self, session: LinkSession) -> dict[int, IncomingOwner]:
        """The receiving links that wait for answers on one session, by delivery id."""
        return self._incoming.settling(session)

    def remove(self, link: IncomingOwner) -> None:
        """Forget a receiving link that has ended."""
        self._incoming.remove(link)
        self._forget_unused_token(link.path)

    def forget_token(self, path: str) -> None:
        """Put another token with the next link: the namespace refused this one."""
        if self._connection is not None:
            self._connection.forget_token(path)

    def _forget_unused_token(self, path: str) -> None:
        """Stop renewing a token that no link needs."""
        if path.lower() not in self.pools and not self._incoming.uses(path):
            self.forget_token(path)

    def in_flight(self, session: LinkSession) -> InFlight:
        """The transfers of one session that are not answered, by delivery id."""
        return self._in_flight.setdefault(session, {})

    def drop(self, reason: str) -> None:
        """Abort a connection that does not answer."""
        if self._connection is not None and not self._connection.lost.done():
            log.warning("%s: %s", self.label, reason)
            self._connection.drop(reason)

    async def close(self) -> None:
        """Close the connection; what is in flight ends with an error."""
        self._closed = True
        for pool in self.pools.values():
            pool.closed = True
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait({self._opening})
        if self._connection is not None:
            await self._connection.close()

    def _on_event(self, event: Event) -> None:
        self.heard_at = self.loop.time()
        if type(event) is Disposed:
            if not event.by_receiver:
                self._incoming.confirm(event)
                return
            if self._coordinator is not None:
                self._coordinator.answered(event)
            sent = self._in_flight.get(event.session)
            if sent and event.state is not None:
                answer(sent, event, self.heard_at)
            return
        link = getattr(event, "link", None)
        owner = getattr(link, "owner", None)
        if isinstance(owner, UpstreamLink | IncomingOwner | DischargeLink):
            owner.handle(event)

    def _on_deliveries(self, run: list[DeliveryArrived]) -> None:
        self.heard_at = self.loop.time()
        self._incoming.take(run, self.heard_at)

    def _on_lost(self, connection: NamespaceConnection, reason: asyncio.Future[str]) -> None:
        if connection is not self._connection:
            return
        text = f"{self.label}: {reason.result()}"
        if not self._closed:
            log.warning("%s", text)
        self._connection = None
        if self._coordinator is not None:
            self._coordinator.lost(text)
        in_flight, self._in_flight = self._in_flight, {}
        for pool in self.pools.values():
            pool.forget_links(text)
        self._incoming.lost(text)
        for sent in in_flight.values():
            ended = list(sent.items())
            # A retired link has a timer of its own, which must not end them a second time.
            sent.clear()
            for number, one in ended:
                one.end(number, LinkEnded(text, was_sent=True))


class UpstreamLink:
    """One link to an entity; a pool has one that it uses, and may have others that end."""

    def __init__(self, pool: LinkPool, connection: UpstreamConnection, link: SenderLink) -> None:
        self.link = link
        self.answered_at = 0.0
        self.opened: asyncio.Future[None] = connection.loop.create_future()
        self._pool = pool
        self._connection = connection
        self._waiting: OrderedDict[Done | WaitingRun, WaitingSend | WaitingRun] = OrderedDict()
        """What has no credit, by what is called for it; the first came first."""
        self._sent = connection.in_flight(link.session)
        self._timer: asyncio.TimerHandle | None = None
        link.owner = self

    @property
    def is_open(self) -> bool:
        return self.opened.done() and self.link.state is OPEN

    def send(self, wire: Wire, done: Done) -> None:
        """Send one delivery, or let it wait for credit."""
        connection = self._connection
        ends_at = connection.loop.time() + connection.answer_s
        if self.link.credit > 0 and not self._waiting:
            self._write(wire, done, ends_at)
        else:
            self._waiting[done] = WaitingSend(wire, done, ends_at)
        if self._timer is None:
            self._timer = connection.loop.call_at(ends_at, self._end_overdue)

    def send_run(self, payloads: list[bytes], owner: RunOwner) -> None:
        """Send deliveries of format 0 together, or let those wait that have no credit."""
        ends_at = self._connection.loop.time() + self._connection.answer_s
        run = WaitingRun(owner, payloads, ends_at)
        if self._waiting or not self._write_run(run):
            self._waiting[run] = run
        if self._timer is None:
            self._timer = self._connection.loop.call_at(ends_at, self._end_overdue)

    def withdraw(self, done: Done) -> None:
        """Do not send what still waits for credit: its call has given up."""
        self._waiting.pop(done, None)

    def _write(self, wire: Wire, done: Done, ends_at: float) -> None:
        tag = self.link.session.next_delivery_id.to_bytes(4)
        number = self.link.send(
            wire.data, tag, message_format=wire.message_format, state=wire.state
        )
        is_alone = not self._sent
        self._sent[number] = Sent(self, done, ends_at)
        if is_alone:
            # Nothing else is likely to follow in this loop iteration.
            self._connection.flush_now()
        else:
            self._connection.flush()

    def _write_run(self, run: WaitingRun) -> bool:
        """Write what a run has credit for; return whether that is all of it."""
        link, payloads = self.link, run.payloads
        most = len(payloads)
        while run.place < len(payloads) and link.credit > 0:
            rests = payloads[run.place : run.place + min(most, link.credit)]
            first_id = link.session.next_delivery_id
            numbers = range(first_id, first_id + len(rests))
            tags = [(number & SERIAL_MASK).to_bytes(4) for number in numbers]
            count = link.send_run(tags, repeat(b""), rests)
            # Next time about as many as now, so that each transfer is tried two or three times.
            most = 2 * count
            if not count:
                # It needs several frames, or the window of the session is used up.
                link.send(rests[0], tags[0])
                count = most = 1
            numbers = range(first_id, first_id + count)
            self._sent.update(dict.fromkeys(numbers, SentRun(self, run, first_id)))
            run.place += count
            self._connection.flush()
        return run.place == len(payloads)

    def _write_waiting(self) -> None:
        while self._waiting and self.link.credit > 0:
            one = next(iter(self._waiting.values()))
            if isinstance(one, WaitingSend):
                self._write(one.wire, one.done, one.ends_at)
            elif not self._write_run(one):
                return
            self._waiting.popitem(last=False)

    def handle(self, event: Event) -> None:
        match event:
            case CreditChanged():
                if self.link.credit and not self.opened.done():
                    self.opened.set_result(None)
                self._write_waiting()
            case Detached():
                text = event.error.description if event.error else None
                condition = str(event.error.condition) if event.error else ""
                self.end(text or "the namespace closed the link", condition)
            case Attached():
                self._pool.learn(self.link.max_message_size, batch_limit_of(self.link))

    def end(self, text: str, condition: str = "") -> None:
        """The link is gone: end what it carried and what waited, each with an error of its own."""
        if self._timer is not None:
            self._timer.cancel()
        if not self.opened.done():
            self.opened.set_exception(LinkEnded(text, condition))
            self.opened.exception()
        self._pool.forget(self)
        waiting, self._waiting = self._waiting, OrderedDict()
        mine = [number for number, one in self._sent.items() if one.link is self]
        meaning = of_detach(condition, len(mine))
        for number, one in [(number, self._sent.pop(number)) for number in mine]:
            # A detach is no answer, whatever its reason: the namespace may have stored this one.
            one.end(number, LinkEnded(text, condition, was_sent=True, meaning=meaning))
        for each in waiting.values():
            each.end(lambda: LinkEnded(text, condition))

    def _end_overdue(self) -> None:
        """End transfers that were not answered in time; a silent link is not used again."""
        loop = self._connection.loop
        now, began = loop.time(), loop.time() - self._connection.answer_s
        self._timer = None
        overdue = [n for n, one in self._sent.items() if one.link is self and one.ends_at <= now]
        late = [(number, self._sent.pop(number)) for number in overdue]
        ended: list[WaitingSend | WaitingRun] = []
        while self._waiting and self._first_ends_at() <= now:
            ended.append(self._waiting.popitem(last=False)[1])
        is_late = bool(late or ended)
        if is_late and self._connection.heard_at < began:
            self._connection.drop(f"it sent nothing for {self._connection.answer_s:g} s")
        elif is_late and self.answered_at < began:
            self._pool.retire(self)
        for number, one in late:
            one.end(number, TimeoutError())
        for each in ended:
            each.end(TimeoutError)
        left = [one.ends_at for one in self._sent.values() if one.link is self]
        if self._waiting:
            left.append(self._first_ends_at())
        if left and self.link.state is OPEN:
            self._timer = loop.call_at(min(left), self._end_overdue)

    def _first_ends_at(self) -> float:
        """When the first of what waits has waited long enough; each later one ends later."""
        return next(iter(self._waiting.values())).ends_at


class LinkPool:
    """The links to one entity: one that is used, and others that end.

    The `Carrier` of a gateway's calls. `take` gives the pool itself: its link is shared.
    """

    def __init__(
        self,
        connection: UpstreamConnection,
        path: str,
        on_open: Callable[[int, int], None] | None = None,
        *,
        splits: bool = False,
    ) -> None:
        self.path = path
        self.closed = False
        self.users = 0
        """Senders that use these links."""
        self.limit_bytes: int | None = None
        """The largest message that the entity takes, as the last link reported."""
        self.batch_limit_bytes: int | None = None
        """The largest batch, which on Premium may be smaller than a message."""
        self._connection = connection
        self._on_open = on_open
        self._splits = splits
        self.link: UpstreamLink | None = None
        self._opening: asyncio.Task[None] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether `send` may be called: a link is open."""
        link = self.link
        return link is not None and link.link.state is OPEN and link.opened.done()

    def send(self, wire: Wire, done: Done) -> None:
        """Send one delivery on the open link."""
        assert self.link is not None
        self.link.send(wire, done)

    def send_run(self, payloads: list[bytes], owner: RunOwner) -> None:
        """Send deliveries of format 0 on the open link together."""
        assert self.link is not None
        self.link.send_run(payloads, owner)

    def release(self) -> None:
        """A sender that used these links is gone; after the last one the link is closed in time."""
        self.users -= 1
        if not self.users:
            self._connection.loop.call_later(UNUSED_S, self._connection.forget_unused, self)

    def take(self) -> LinkPool:
        return self

    async def lease(self, until: float, is_wanted: Callable[[], bool]) -> LinkPool | None:
        return self if is_wanted() else None

    async def attempt(
        self,
        pooled: LinkPool,
        operation: Callable[[Any], Awaitable[Any]],
        timeout_s: float,
        *,
        is_late: bool = False,
    ) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                await self.open()
                return await operation(pooled)
        except TimeoutError as error:
            if is_late and timeout_s < ANSWER_MIN_S:
                raise CutShort(f"{timeout_s:.2g} s") from error
            raise

    async def send_messages(self, wire: Wire) -> None:
        """Send one delivery and return when the namespace has accepted it."""
        limit_bytes = self.limit_bytes
        if self._splits and limit_bytes is not None and len(wire.data) > limit_bytes:
            text = f"{self.path} takes {limit_bytes} bytes and got {len(wire.data)}"
            raise DeliveryRejected(text, conditions.MESSAGE_SIZE)
        link = self.link
        if link is None:  # It ended in the moment after it was opened.
            raise LinkEnded(f"{self.path}: the link ended")
        answer: asyncio.Future[None] = self._connection.loop.create_future()
        done = partial(_end, answer)
        link.send(wire, done)
        try:
            await answer
        except asyncio.CancelledError:
            link.withdraw(done)
            raise

    async def open(self) -> None:
        """Open a link unless one is open; raises why that failed."""
        if not self.is_ready:
            await asyncio.shield(self._begin())

    def open_ahead(self) -> None:
        """Begin to open the link before it is needed; a failure shows when it is."""
        if not self.closed and not self.is_ready:
            self._begin()

    def _begin(self) -> asyncio.Task[None]:
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(_retrieved)
        return self._opening

    async def _open(self) -> None:
        connection = await self._connection.opened()
        try:
            await connection.authorize(self.path)
            session = await self._connection.session(connection)
        except RequestRefused:
            connection.forget_token(self.path)
            raise
        name = f"{self.path}-sender-{next(_numbers)}"
        link = session.attach_sender(
            name, source=Source(address=name), target=Target(address=self.path)
        )
        self.link = made = UpstreamLink(self, self._connection, link)
        connection.flush()
        try:
            async with asyncio.timeout(self._connection.answer_s):
                await asyncio.shield(made.opened)
        except TimeoutError:
            if self.link is made:
                self.link = None
            link.detach()
            self._connection.flush()
            raise

    def learn(self, limit_bytes: int, batch_limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes or self.limit_bytes
        self.batch_limit_bytes = batch_limit_bytes
        if self._on_open is not None and self.limit_bytes is not None:
            self._on_open(self.limit_bytes, batch_limit_bytes)

    def forget(self, link: UpstreamLink) -> None:
        if self.link is link:
            self.link = None

    def retire(self, link: UpstreamLink) -> None:
        """Send on another link from now on; what this one carries may still be answered."""
        log.warning("%s: a link did not answer for %g s", self.path, self._connection.answer_s)
        if self.link is link:
            self.invalidate()

    def forget_links(self, reason: str) -> None:
        if self.link is not None:
            self.link.end(reason)

    def invalidate(self) -> None:
        """Use the present link no more; what it carries may still be answered."""
        if self.link is not None:
            self._connection.loop.call_later(self._connection.answer_s, self.link.link.detach)
            self.link = None

    def wake_all(self) -> None:
        """Nothing waits here."""

    async def close(self, limit_s: float) -> None:
        """Take no more; the connection closes the links."""
        self.closed = True


def batch_limit_of(link: SenderLink) -> int:
    """The largest batch that a link takes, as the official SDKs determine it."""
    said = link.properties.get(BATCH_LIMIT)
    if isinstance(said, int) and said > 0:
        return said
    limit_bytes = link.max_message_size or PREMIUM_BATCH_BYTES
    return PREMIUM_BATCH_BYTES if limit_bytes >= PREMIUM_BATCH_BYTES else STANDARD_MESSAGE_BYTES


def _end(answer: asyncio.Future[None], error: Exception | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(None)
    else:
        answer.set_exception(error)


def _retrieved(task: asyncio.Task[Any]) -> None:
    """Mark the failure of an opening as seen, though every call that waited may have given up."""
    if not task.cancelled():
        task.exception()
