"""The load generator: one AMQP 1.0 sender that keeps a window of unsettled messages in flight.

It speaks to our broker and to the peer with the same code and the same bytes, over a blocking
socket, and does as little per message as the protocol allows, so that the broker is what is
measured.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Self, TypeVar

from twinbus.amqp import message as sections
from twinbus.amqp.frames import decode_performative, encode_frame, encode_transfer_frame
from twinbus.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
)
from twinbus.amqp.types import Symbol

if TYPE_CHECKING:
    from types import TracebackType

P = TypeVar("P")

SASL_HEADER = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
CHANNEL = 0
FRAME_SIZE_MAX = 65536
FRAME_HEADER_SIZE = 8
INCOMING_WINDOW = 1 << 16
SILENCE_LIMIT_S = 30.0
"""A broker that says nothing for so long while it owes acknowledgements is broken."""
READ_SIZE = 1 << 18
CHUNK = 128
"""Frames written with one system call; well below the window, so that both ends stay busy."""


class BrokerRefused(Exception):
    """The broker ended something it should not have, or did not accept a message."""


class PipelinedSender:
    """A connection with one sender link to `address`; use it as a context manager."""

    def __init__(
        self,
        host: str,
        port: int,
        address: str,
        *,
        login: tuple[str, str] | None = None,
        token: tuple[str, str] | None = None,
    ) -> None:
        """`login` is (user, password); `token` is (audience, SAS token), to be shown to $cbs."""
        self._socket = socket.create_connection((host, port), timeout=SILENCE_LIMIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = b""
        self._arrived: deque[tuple[object, bytes]] = deque()
        self._host = host
        self._next_outgoing_id = 0
        self._window_end = 0
        self._credit_ends: dict[int, int] = {}
        self._sent_on: dict[int, int] = {}
        self._handles: dict[int, int] = {}  # the broker's number of a link: ours
        self._log_in(login)
        self._open()
        if token is not None:
            self._put_token(*token)
        self._handle = 2
        self._attach_load(address)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._socket:
            if error is None:
                self._write(encode_frame(CHANNEL, Close()))
                self._wait_for(Close)

    def _attach_load(self, address: str) -> None:
        self._attach(self._handle, "load", sender_to=address)

    def send(self, payload: bytes, count: int, window: int) -> float:
        """Send `count` copies, at most `window` unsettled; return acknowledged ones a second."""
        handle = self._handle
        first = self._next_outgoing_id
        # Unsettled is counted, not listed: ids are consecutive and every state must be `accepted`.
        sent = acknowledged = 0
        began = time.perf_counter()
        while acknowledged < count:
            room = min(window - (sent - acknowledged), count - sent, self._allowance(handle))
            if room > 0:
                sent += self._send_chunk(payload, min(room, CHUNK))
                if room > CHUNK:
                    continue
            for performative, _ in self._read():
                if isinstance(performative, Disposition):
                    acknowledged += self._accepted(performative, first)
                else:
                    self._take(performative)
        return count / (time.perf_counter() - began)

    def _send_chunk(self, payload: bytes, count: int) -> int:
        start, handle = self._next_outgoing_id, self._handle
        self._write(
            b"".join(
                [
                    encode_transfer_frame(
                        CHANNEL, handle, number, number.to_bytes(4), 0, False, payload
                    )
                    for number in range(start, start + count)
                ]
            )
        )
        self._next_outgoing_id += count
        self._sent_on[handle] += count
        return count

    @staticmethod
    def _accepted(disposition: Disposition, first: int) -> int:
        if not isinstance(disposition.state, Accepted) or not disposition.settled:
            raise BrokerRefused(f"a message was not accepted: {disposition.state}")
        assert disposition.first is not None
        assert disposition.first >= first
        last = disposition.first if disposition.last is None else disposition.last
        return last - disposition.first + 1

    def _allowance(self, handle: int) -> int:
        """How many transfers the peer's link credit and session window take right now."""
        credit = self._credit_ends[handle] - self._sent_on[handle]
        return min(credit, self._window_end - self._next_outgoing_id)

    def _log_in(self, login: tuple[str, str] | None) -> None:
        self._write(SASL_HEADER)
        self._expect_header(SASL_HEADER)
        offered = self._wait_for(SaslMechanisms).sasl_server_mechanisms
        if login is None:
            init = SaslInit(mechanism=Symbol("ANONYMOUS"), hostname=self._host)
        else:
            response = "\0{}\0{}".format(*login).encode()
            init = SaslInit(
                mechanism=Symbol("PLAIN"), initial_response=response, hostname=self._host
            )
        self._write(encode_frame(0, init, frame_type=1))
        outcome = self._wait_for(SaslOutcome)
        if outcome.code != 0:
            raise BrokerRefused(f"login refused with code {outcome.code}; offered {offered}")
        self._write(AMQP_HEADER)
        self._expect_header(AMQP_HEADER)

    def _open(self) -> None:
        self._write(
            encode_frame(
                CHANNEL,
                Open(
                    container_id="twinbus-bench",
                    hostname=self._host,
                    max_frame_size=FRAME_SIZE_MAX,
                    channel_max=0,
                ),
            )
        )
        self._write(
            encode_frame(
                CHANNEL,
                Begin(
                    next_outgoing_id=self._next_outgoing_id,
                    incoming_window=INCOMING_WINDOW,
                    outgoing_window=INCOMING_WINDOW,
                    handle_max=7,
                ),
            )
        )
        self._wait_for(Open)
        begun = self._wait_for(Begin)
        assert begun.incoming_window is not None
        self._window_end = self._next_outgoing_id + begun.incoming_window

    def _attach(
        self, handle: int, name: str, *, sender_to: str | None = None, receiver_of: str = ""
    ) -> None:
        receiving = sender_to is None
        self._sent_on[handle] = self._credit_ends[handle] = 0
        self._write(
            encode_frame(
                CHANNEL,
                Attach(
                    name=name,
                    handle=handle,
                    role=receiving,
                    snd_settle_mode=0,
                    rcv_settle_mode=0,
                    source=Source(address=receiver_of or name),
                    target=Target(address=sender_to or name),
                    initial_delivery_count=None if receiving else 0,
                ),
            )
        )
        attached = self._wait_for(Attach)
        self._handles[attached.handle or 0] = handle
        if (attached.source if receiving else attached.target) is None:
            self._wait_for(Detach)  # raises with the broker's reason
        while not receiving and self._allowance(handle) <= 0:
            self._take(self._next()[0])

    def _put_token(self, audience: str, token: str) -> None:
        """Show a SAS token to the namespace's $cbs node, as the official SDK does."""
        requests, replies = 0, 1
        self._attach(requests, "cbs-requests", sender_to="$cbs")
        self._attach(replies, "cbs-replies", receiver_of="$cbs")
        self._write(
            encode_frame(
                CHANNEL,
                Flow(
                    next_incoming_id=0,
                    incoming_window=INCOMING_WINDOW,
                    next_outgoing_id=self._next_outgoing_id,
                    outgoing_window=INCOMING_WINDOW,
                    handle=replies,
                    delivery_count=0,
                    link_credit=1,
                ),
            )
        )
        request = sections.encode_message(
            properties=sections.Properties(message_id="token", reply_to="cbs-replies"),
            application_properties={
                "operation": "put-token",
                "type": "servicebus.windows.net:sastoken",
                "name": audience,
            },
            value=token,
        )
        self._write(
            encode_transfer_frame(
                CHANNEL, requests, self._next_outgoing_id, b"token", 0, True, request
            )
        )
        self._next_outgoing_id += 1
        self._sent_on[requests] += 1
        while not isinstance((arrival := self._next())[0], Transfer):
            self._take(arrival[0])
        reply = sections.decode_map(sections.split(arrival[1]).application_properties)
        if reply.get("status-code") not in (200, 202):
            raise BrokerRefused(f"put-token: {reply.get('status-description')}")

    def _take(self, performative: object) -> None:
        """Whatever the broker says besides acknowledgements."""
        if isinstance(performative, Flow):
            assert performative.incoming_window is not None
            begun_at = performative.next_incoming_id or 0
            self._window_end = begun_at + performative.incoming_window
            if performative.handle is not None and performative.link_credit is not None:
                credit_end = (performative.delivery_count or 0) + performative.link_credit
                self._credit_ends[self._handles[performative.handle]] = credit_end
        elif isinstance(performative, (Detach, End, Close)):
            raise BrokerRefused(f"{type(performative).__name__.lower()}: {performative.error}")

    def _wait_for(self, kind: type[P]) -> P:
        while not isinstance((performative := self._next()[0]), kind):
            self._take(performative)
        if isinstance(performative, Detach):
            self._take(performative)
        return performative

    def _next(self) -> tuple[object, bytes]:
        while not self._arrived:
            self._arrived.extend(self._read())
        return self._arrived.popleft()

    def _read(self) -> list[tuple[object, bytes]]:
        """What has arrived whole, after at most one read; a frame cut short stays for the next."""
        if self._arrived:
            arrived = list(self._arrived)
            self._arrived.clear()
            return arrived
        frames = self._whole_frames()
        if not frames:
            self._unread += self._receive()
            frames = self._whole_frames()
        return frames

    def _whole_frames(self) -> list[tuple[object, bytes]]:
        data, at = self._unread, 0
        frames: list[tuple[object, bytes]] = []
        while len(data) - at >= FRAME_HEADER_SIZE:
            size = int.from_bytes(data[at : at + 4])
            if len(data) - at < size:
                break
            body = data[at + data[at + 4] * 4 : at + size]
            if body:  # an empty frame only keeps the connection alive
                performative, payload_at = decode_performative(body)
                frames.append((performative, body[payload_at:]))
            at += size
        self._unread = data[at:]
        return frames

    def _expect_header(self, header: bytes) -> None:
        while len(self._unread) < len(header):
            self._unread += self._receive()
        got, self._unread = self._unread[: len(header)], self._unread[len(header) :]
        if got != header:
            raise BrokerRefused(f"asked for {header!r}, the broker answered {got!r}")

    def _receive(self) -> bytes:
        data = self._socket.recv(READ_SIZE)
        if not data:
            raise BrokerRefused("the broker closed the connection")
        return data

    def _write(self, data: bytes) -> None:
        self._socket.sendall(data)


class PipelinedReceiver(PipelinedSender):
    """The same connection with a receiver link, which accepts what arrives."""

    def _attach_load(self, address: str) -> None:
        self._attach(self._handle, "load", receiver_of=address)

    def receive(self, count: int, window: int) -> float:
        """Receive and accept `count` messages, with credit for `window`; return them a second.

        What one read brought is accepted by one disposition. A broker answers none of them, so
        the caller must see that the queue is empty.
        """
        received = credit_end = 0
        began = time.perf_counter()
        first: int | None = None
        while received < count:
            if credit_end - received <= window // 2 and credit_end < count:
                credit_end = min(received + window, count)
                self._grant(first or 0, received, credit_end)
            ids = [number for one, _ in self._read() for number in self._delivered(one)]
            if not ids:
                continue
            first = ids[0] if first is None else first
            assert ids[-1] == first + received + len(ids) - 1, "deliveries are numbered in order"
            accepted = Disposition(
                role=True, first=ids[0], last=ids[-1], settled=True, state=Accepted()
            )
            self._write(encode_frame(CHANNEL, accepted))
            received += len(ids)
        return count / (time.perf_counter() - began)

    def _delivered(self, performative: object) -> list[int]:
        """The number of a delivery; nothing for what else the broker says."""
        if isinstance(performative, Transfer):
            assert not performative.more, "a message of one frame"
            assert performative.delivery_id is not None
            return [performative.delivery_id]
        self._take(performative)
        return []

    def _grant(self, first: int, received: int, credit_end: int) -> None:
        granted = Flow(
            next_incoming_id=first + received,
            incoming_window=INCOMING_WINDOW,
            next_outgoing_id=self._next_outgoing_id,
            outgoing_window=INCOMING_WINDOW,
            handle=self._handle,
            delivery_count=received,
            link_credit=credit_end - received,
        )
        self._write(encode_frame(CHANNEL, granted))
