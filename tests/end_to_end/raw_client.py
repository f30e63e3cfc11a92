"""A fast AMQP client for tests: many deliveries under way, and exact word of what was confirmed.

Built on the client end of `twinbus.amqp`. The official SDK does one thing at a time; a broker that
is killed under it has little in flight to lose.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import Any, Self

from tests.official_sdk import sas_token
from twinbus.amqp.connection import Connection
from twinbus.amqp.events import (
    Attached,
    Begun,
    Closed,
    CreditChanged,
    DeliveryArrived,
    Detached,
    Disposed,
    Event,
    Opened,
)
from twinbus.amqp.link import Link, ReceiverLink, SenderLink
from twinbus.amqp.message import (
    BATCH_FORMAT,
    Properties,
    decode_map,
    decode_properties,
    encode_message,
    split,
)
from twinbus.amqp.performatives import ACCEPTED_BYTES, Accepted, Error, Source, Target
from twinbus.amqp.session import Session
from twinbus.amqp.transport import ClientTransport, connect
from twinbus.amqp.types import Symbol

SESSION_FILTER = Symbol("com.microsoft:session-filter")
PATIENCE_S = 60.0


class ConnectionLost(Exception):
    """The connection ended: what was not confirmed before may or may not have happened."""


class Refused(Exception):
    """The broker said no; `condition` is the AMQP error condition."""

    def __init__(self, error: Error | None) -> None:
        super().__init__(str(error and error.description))
        self.condition = str(error.condition) if error else ""


@dataclass(slots=True)
class Delivery:
    """A message as it arrived."""

    delivery_id: int
    key: str
    """Its message id."""
    payload: bytes


def message(key: str, body: bytes = b"", *, session: str | None = None) -> bytes:
    """An encoded message whose id is `key`."""
    return encode_message(properties=Properties(message_id=key, group_id=session), data=body)


def batch(parts: list[bytes]) -> bytes:
    """Several encoded messages as the body of one batch."""
    # A data section: descriptor 0x75, then vbin32 of one whole message.
    return b"".join(b"\x00\x53\x75\xb0" + len(part).to_bytes(4) + part for part in parts)


class RawClient:
    """One connection with one session."""

    def __init__(self) -> None:
        self.session: Session
        self.connection = Connection("raw-client", sasl=True, hostname="localhost")
        self.transport: ClientTransport
        self._names = itertools.count()
        self._waiting: set[asyncio.Future[Any]] = set()
        self._attaching: dict[Link, asyncio.Future[None]] = {}
        self._sends: dict[int, asyncio.Future[None]] = {}
        self._settlements: dict[int, asyncio.Future[None]] = {}
        self.opened = self._future()
        self.begun = self._future()
        self.lost: Exception | None = None
        self._cbs: tuple[RawSender, RawReceiver] | None = None
        self.detached: asyncio.Queue[Error | None] = asyncio.Queue()
        """Why the broker detached open links, one entry each."""

    @classmethod
    async def open(
        cls, connection_string: str, path: str = "", *, token: str | None = None
    ) -> Self:
        """A connection with a token: the given one, or one for `path` by the string's rule."""
        client = cls()
        endpoint = connection_string.removeprefix("Endpoint=sb://").replace(";", "/")
        host, _, port = endpoint.partition("/")[0].rpartition(":")
        try:
            client.transport = await connect(client.connection, host, int(port), client.on_event)
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        try:
            await client.opened
            client.session = client.connection.begin()
            client.flush()
            await client.begun
            await client.put_token(token or sas_token(connection_string, path))
        except Refused:
            await client.close()
            raise
        return client

    async def close(self) -> None:
        if self.lost is None:
            await self.transport.close()

    async def sender(self, address: str) -> RawSender:
        link = self.session.attach_sender(
            self._name(), source=Source(address="raw"), target=Target(address=address)
        )
        sender = RawSender(self, link)
        link.owner = sender
        await self._attached(link)
        return sender

    async def ready_sender(self, address: str) -> RawSender:
        """A sender that may send its first message."""
        sender = await self.sender(address)
        await sender.room()
        return sender

    async def receiver(
        self, address: str, *, credit: int, settled: bool = False, session: object = None
    ) -> RawReceiver:
        """A receiver, with `settled` one that deletes what it receives.

        `session` is the session's id, bare or in a described value.
        """
        filters: dict[object, object] | None = {SESSION_FILTER: session} if session else None
        link = self.session.attach_receiver(
            self._name(),
            source=Source(address=address, filter=filters),
            target=Target(address="raw"),
            settled=settled,
        )
        receiver = RawReceiver(self, link, credit)
        link.owner = receiver
        await self._attached(link)
        link.grant(credit)
        self.flush()
        return receiver

    def flush(self) -> None:
        self.transport.flush()

    def sent(self, delivery_id: int) -> asyncio.Future[None]:
        """Done when the broker accepts that delivery."""
        self._sends[delivery_id] = future = self._future()
        return future

    def settling(self, delivery_id: int) -> asyncio.Future[None]:
        """Done when the broker confirms our outcome for that delivery."""
        self._settlements[delivery_id] = future = self._future()
        return future

    def _future(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # What nobody waits for any more must not be reported as an exception never retrieved.
        future.add_done_callback(_look_at)
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future

    def _name(self) -> str:
        return f"link-{next(self._names)}"

    async def _attached(self, link: Link) -> None:
        if self.lost is not None:
            raise self.lost
        self._attaching[link] = future = self._future()
        self.flush()
        async with asyncio.timeout(PATIENCE_S):
            await future

    async def put_token(self, token: str) -> None:
        """Put a token for everything; it replaces the one before."""
        if self._cbs is None:
            self._cbs = (await self.sender("$cbs"), await self.receiver("$cbs", credit=100))
        requests, replies = self._cbs
        properties = Properties(message_id="token", reply_to="raw")
        application_properties: dict[str, object] = {
            "operation": "put-token",
            "type": "servicebus.windows.net:sastoken",
            "name": "sb://localhost/",
        }
        await requests.room()
        requests.send(
            encode_message(
                properties=properties, application_properties=application_properties, value=token
            )
        )
        reply = await replies.receive()
        assert reply is not None
        answer = decode_map(split(reply.payload).application_properties)
        if answer["status-code"] != 202:
            raise Refused(Error(description=str(answer["status-description"])))

    def on_event(self, event: Event) -> None:
        match event:
            case DeliveryArrived():
                owner = event.link.owner
                assert isinstance(owner, RawReceiver)
                owner.arrived(event)
            case Disposed():
                self._on_disposed(event)
            case CreditChanged():
                assert isinstance(event.link.owner, RawSender)
                event.link.owner.has_room.set()
            case Attached():
                terminus = event.link.target if event.link.sends else event.link.source
                if terminus is not None:  # a refusal has none, and its DETACH says why
                    _succeed(self._attaching.pop(event.link, None))
            case Detached():
                self._on_detached(event)
            case Opened():
                _succeed(self.opened)
            case Begun():
                _succeed(self.begun)
            case Closed():
                self._on_closed(event)

    def _on_disposed(self, event: Disposed) -> None:
        if event.by_receiver:
            self.session.take_unsettled(event.first, event.last)
        table = self._sends if event.by_receiver else self._settlements
        for delivery_id in range(event.first, event.last + 1):
            future = table.pop(delivery_id, None)
            if isinstance(event.state, Accepted):
                _succeed(future)
            elif future is not None and not future.done():
                future.set_exception(Refused(getattr(event.state, "error", None)))

    def _on_detached(self, event: Detached) -> None:
        future = self._attaching.pop(event.link, None)
        if future is not None and not future.done():
            future.set_exception(Refused(event.error))
            return
        self.detached.put_nowait(event.error)
        if isinstance(event.link.owner, RawReceiver):
            event.link.owner.ended()

    def _on_closed(self, event: Closed) -> None:
        self.lost = ConnectionLost(str(event.error and event.error.description))
        for future in list(self._waiting):
            if not future.done():
                future.set_exception(self.lost)
        sessions = self.connection.sessions.values()
        for link in [link for session in sessions for link in session.links.values()]:
            if isinstance(link.owner, RawReceiver):
                link.owner.ended()
            elif isinstance(link.owner, RawSender):
                link.owner.has_room.set()


class RawSender:
    """A link to send on, as far as the broker's credit goes."""

    def __init__(self, client: RawClient, link: SenderLink) -> None:
        self.has_room = asyncio.Event()
        self._client = client
        self.link = link
        self._tags = itertools.count()

    async def room(self) -> None:
        """Wait until one more delivery may be sent."""
        while self.link.credit == 0 and self._client.lost is None:
            self.has_room.clear()
            await self.has_room.wait()
        if self._client.lost is not None:
            raise self._client.lost

    def send_unasked(self, payload: bytes) -> None:
        """Send one delivery, settled: the broker will not say what became of it."""
        self.link.send(payload, next(self._tags).to_bytes(8), settled=True)
        self._client.flush()

    def send(self, payload: bytes, *, is_batch: bool = False) -> asyncio.Future[None]:
        """Send one delivery; the future ends with the broker's word on it."""
        delivery_id = self.link.send(
            payload,
            next(self._tags).to_bytes(8),
            message_format=BATCH_FORMAT if is_batch else 0,
        )
        future = self._client.sent(delivery_id)
        self._client.flush()
        return future


class RawReceiver:
    """A link to receive from; its credit is kept up."""

    def __init__(self, client: RawClient, link: ReceiverLink, credit: int) -> None:
        self._client = client
        self.link = link
        self._credit = credit
        self._arrived: asyncio.Queue[Delivery | None] = asyncio.Queue()

    def arrived(self, event: DeliveryArrived) -> None:
        properties = split(event.payload).properties
        key = str(decode_properties(properties).message_id) if properties else ""
        self._arrived.put_nowait(Delivery(event.delivery_id, key, event.payload))
        if self.link.credit <= self._credit // 2:
            self.link.grant(self._credit)

    def ended(self) -> None:
        self._arrived.put_nowait(None)

    async def receive(self, wait_s: float = PATIENCE_S) -> Delivery | None:
        """The next message; None when none comes in time."""
        try:
            async with asyncio.timeout(wait_s):
                delivery = await self._arrived.get()
        except TimeoutError:
            return None
        if delivery is None:
            raise self._client.lost or ConnectionLost("the link was detached")
        return delivery

    def complete(self, delivery: Delivery) -> asyncio.Future[None]:
        """Complete a message; the future ends with the broker's word on it."""
        future = self._client.settling(delivery.delivery_id)
        self._client.session.dispose(delivery.delivery_id, delivery.delivery_id, ACCEPTED_BYTES)
        self._client.flush()
        return future

    async def close(self) -> None:
        """Detach; a session is free for others after it."""
        self.link.detach()
        self._client.flush()


def _succeed(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


def _look_at(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
