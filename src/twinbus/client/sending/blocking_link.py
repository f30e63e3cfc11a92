"""One sending link on a socket of its own, driven by the thread that uses it: no event loop.

    link = BlockingLink(endpoint, "orders", token, limit_s=5.0)
    link.send(data, timeout_s=5.0)      # returns when the namespace has accepted it
    link.close()

It serves one thread at a time, with one message in flight. It raises what links of an
`UpstreamConnection` raise; after an error it is of no use. Its token is not renewed: `is_usable`
is false in good time before the token expires.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import ssl
import time
from typing import TYPE_CHECKING, Final

from twinbus.amqp.connection import Connection
from twinbus.amqp.events import (
    Begun,
    Closed,
    CreditChanged,
    DeliveryArrived,
    Detached,
    Disposed,
    Ended,
    Event,
    Opened,
    one_by_one,
)
from twinbus.amqp.link import LinkState, SenderLink
from twinbus.amqp.message import Properties, decode_map, encode_message, split
from twinbus.amqp.performatives import ACCEPTED_BYTES, Accepted, Source, Target
from twinbus.amqp.transport import limit_silence
from twinbus.amqp.types import DecodeError
from twinbus.client.connection import TOKEN_RENEW_AFTER
from twinbus.client.coordinator import refusal_of
from twinbus.client.request_node import (
    ConnectionLost,
    LinkEnded,
    refusal_in,
)
from twinbus.servicebus.failures import of_detach

if TYPE_CHECKING:
    from twinbus.amqp.session import Session
    from twinbus.namespace.access import Endpoint
    from twinbus.namespace.tokens import NamespaceToken

READ_BYTES: Final = 65_536

WRITE_S: Final = 1.0
"""Time limit for a few bytes on a link that is idle."""

_numbers = itertools.count(1)


class BlockingLink:
    """One open link to an entity, with its connection."""

    def __init__(
        self, endpoint: Endpoint, path: str, token: NamespaceToken, *, limit_s: float
    ) -> None:
        """Connect, authorize and attach, within about `limit_s`.

        ConnectionLost, RequestRefused or LinkEnded says why that failed.
        """
        self._path = path
        self._label = endpoint.label
        self._connection = Connection(
            f"twinbus-thread-{next(_numbers)}", sasl=True, hostname=endpoint.host
        )
        self._events: list[Event] = []
        self._ended: Exception | None = None
        self._link: SenderLink | None = None
        self._timeout_s: float | None = None
        self._until = time.monotonic() + limit_s
        now_s = time.time()
        self._renew_at = now_s + (token.expires_at_s - now_s) * TOKEN_RENEW_AFTER
        try:
            self.socket = _connected(endpoint, limit_s)
        except OSError as error:
            raise ConnectionLost(f"{self._label} cannot be reached: {error}") from error
        self._poll = select.poll()
        self._poll.register(self.socket, select.POLLIN)
        try:
            self._link = self._attached(endpoint, token)
        except BaseException:
            self.socket.close()
            raise

    def _attached(self, endpoint: Endpoint, token: NamespaceToken) -> SenderLink:
        try:
            self._flush()
            self._wait_for(Opened)
            session = self._connection.begin()
            self._flush()
            self._wait_for(Begun)
            self._authorize(session, endpoint.audience(self._path), token)
            name = f"{self._path}-thread-{next(_numbers)}"
            link = session.attach_sender(
                name, source=Source(address=name), target=Target(address=self._path)
            )
            self._flush()
            while link.credit <= 0:
                self._wait_for(CreditChanged)
        except TimeoutError as error:
            raise ConnectionLost(f"{self._label} cannot be reached: no answer") from error
        except OSError as error:
            raise ConnectionLost(f"{self._label} cannot be reached: {error}") from error
        return link

    def _authorize(self, session: Session, audience: str, token: NamespaceToken) -> None:
        """Put the token of the entity."""
        address, reply_to = "$cbs", f"cbs-answers-{next(_numbers)}"
        questions = session.attach_sender(
            f"{reply_to}-questions", source=Source(address=reply_to), target=Target(address=address)
        )
        answers = session.attach_receiver(
            reply_to, source=Source(address=address), target=Target(address=reply_to)
        )
        self._flush()
        while questions.credit <= 0:
            self._wait_for(CreditChanged)
        headers = {"operation": "put-token", "type": token.kind, "name": audience}
        message = encode_message(
            properties=Properties(message_id=reply_to, reply_to=reply_to),
            application_properties=headers,
            value=token.text,
        )
        answers.grant(1)
        questions.send(message, b"q", settled=True)
        self._flush()
        answer = self._wait_for(DeliveryArrived)
        assert isinstance(answer, DeliveryArrived)
        if not answer.settled:
            number = answer.delivery_id
            session.settle(number, number, ACCEPTED_BYTES, as_receiver=True)
        try:
            said = decode_map(split(answer.payload).application_properties)
        except DecodeError as error:
            raise ConnectionLost(f"{self._label}: its answer cannot be read: {error}") from error
        refusal = refusal_in(said, address)
        if refusal is not None:
            raise refusal

    def send(self, data: bytes, timeout_s: float) -> None:
        """Send one message; return when the namespace has accepted it.

        DeliveryRejected, LinkEnded, or TimeoutError after `timeout_s`.
        """
        self._until = time.monotonic() + timeout_s
        if timeout_s != self._timeout_s:
            # In most sends one read ends the wait, so that this bound is the only one.
            self.socket.settimeout(timeout_s)
            self._timeout_s = timeout_s
        link, connection = self._link, self._connection
        assert link is not None
        while link.credit <= 0:
            self._wait_for(CreditChanged)
        try:
            number = link.send(data, link.session.next_delivery_id.to_bytes(4))
            self._flush()
            while True:
                answer = self._wait_for(Disposed)
                assert isinstance(answer, Disposed)
                is_mine = answer.by_receiver and answer.first <= number <= answer.last
                if is_mine and answer.state is not None:
                    link.session.take_unsettled(answer.first, answer.last)
                    break
        except TimeoutError:
            raise
        except OSError as error:
            text = f"{self._label}: the connection was lost: {error}"
            raise LinkEnded(text, was_sent=True) from error
        if type(answer.state) is not Accepted and (refusal := refusal_of(answer.state)) is not None:
            raise refusal
        if connection.output.size_bytes:
            self._flush()

    def is_usable(self) -> bool:
        """Whether the link is up, as far as is known; it reads what has come meanwhile."""
        link = self._link
        if time.time() >= self._renew_at or self._ended is not None or link is None:
            return False
        try:
            if self._poll.poll(0):
                self._read_what_is_there()
        except OSError:
            return False
        return link.state is LinkState.OPEN and link.credit > 0 and not self._has_ended()

    def _has_ended(self) -> bool:
        return self._ended is not None

    def _read_what_is_there(self) -> None:
        # A TLS record without data makes the socket readable, and a read would wait for the next.
        self._timeout_s = None
        self.socket.settimeout(0.0)
        try:
            while self._ended is None:
                self._take_bytes(self.socket.recv(READ_BYTES))
                self._events.clear()
        except (BlockingIOError, ssl.SSLWantReadError):
            self.socket.settimeout(WRITE_S)
            self._flush()

    def cut_off(self) -> None:
        """End the connection, from any thread: a send that waits on it raises."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self, *, politely: bool = False) -> None:
        """Close the connection; politely: the peer is told."""
        if politely:
            with contextlib.suppress(OSError):
                self._connection.close()
                self._flush()
        self.cut_off()
        self.socket.close()

    def _flush(self) -> None:
        data = self._connection.take_output(_now_ms())
        if data:
            self.socket.sendall(data)

    def _wait_for(self, kind: type[Event]) -> Event:
        """Return the next event of this kind; raise if the link or the connection ends first."""
        while True:
            events, self._events = self._events, []
            for place, event in enumerate(events):
                if type(event) is kind:
                    self._events = events[place + 1 :]
                    return event
            if self._ended is not None:
                raise self._ended
            self._read()

    def _read(self) -> None:
        """Take what comes next, within the time."""
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._take_bytes(self.socket.recv(READ_BYTES))
        if not self._events and self._ended is None:
            self._flush()  # Else the next frame that is sent takes the answers with it.

    def _take_bytes(self, data: bytes) -> None:
        if not data:
            self._ended = LinkEnded(f"{self._label}: the peer hung up", was_sent=True)
            return
        now_ms = _now_ms()
        answer = self._connection.receive_answer(data, now_ms)
        if answer is not None:
            self._take(answer)
            return
        for events in self._connection.receive(data, now_ms):
            for event in one_by_one(events):
                self._take(event)

    def _take(self, event: Event) -> None:
        if isinstance(event, Detached):
            if self._link is not None and event.link is not self._link:
                return  # One of the token's.
            condition = str(event.error.condition) if event.error else ""
            text = (event.error.description if event.error else "") or "the link was closed"
            self._ended = LinkEnded(text, condition, was_sent=True, meaning=of_detach(condition, 1))
        elif isinstance(event, Closed | Ended):
            text = (event.error.description if event.error else "") or "the connection was closed"
            self._ended = LinkEnded(f"{self._label}: {text}", was_sent=True)
        else:
            self._events.append(event)


def _connected(endpoint: Endpoint, limit_s: float) -> socket.socket:
    made = socket.create_connection(endpoint.amqp, timeout=limit_s)
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        limit_silence(made)
        if endpoint.tls:
            context = endpoint.certificates or ssl.create_default_context()
            wrapped: socket.socket = context.wrap_socket(made, server_hostname=endpoint.amqp[0])
            return wrapped
    except BaseException:
        made.close()
        raise
    return made


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
