"""Numbers that a peer says: the smallest, the largest, and those that are in use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.unit.amqp.frame_rules import FrameRules
from tests.unit.amqp.test_connection import Pair, of, read
from twinbus.amqp.connection import AMQP_HEADER, CHANNEL_MAX, Connection
from twinbus.amqp.events import (
    Attached,
    Begun,
    Closed,
    CreditChanged,
    DeliveryArrived,
    Disposed,
    Event,
    one_by_one,
)
from twinbus.amqp.frames import encode_frame, encode_transfer_frame
from twinbus.amqp.link import (
    HALF_SERIAL,
    SERIAL_MASK,
    Link,
    ReceiverLink,
    SenderLink,
    serial_ahead,
)
from twinbus.amqp.performatives import (
    ACCEPTED_BYTES,
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    Performative,
    Rejected,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from twinbus.amqp.session import HANDLE_MAX, ID_BYTES_MAX, Session
from twinbus.amqp.types import Symbol, UInt, ULong, UShort

UINTS = (0, 1, HALF_SERIAL - 1, HALF_SERIAL, SERIAL_MASK - 1, SERIAL_MASK)
"""The ends of a 32-bit number and of its halves, where serial numbers change their order."""

STARTS = (0, HALF_SERIAL - 2, SERIAL_MASK - 1)
"""Serial numbers from which a few deliveries reach the end of a half."""


def sending(start: int) -> tuple[Connection, Session, SenderLink]:
    """The broker's end of a link to a receiver; its ids and counts begin at `start`."""
    server = Connection("s", server=True)
    read(server, AMQP_HEADER + encode_frame(0, Open(container_id="c")))
    read(server, encode_frame(0, Begin(incoming_window=UInt(0))))
    attach = Attach(
        name="in",
        handle=UInt(0),
        role=True,
        source=Source(address="q"),
        target=Target(address="me"),
    )
    (attached,) = read(server, encode_frame(0, attach))
    assert isinstance(attached, Attached)
    assert isinstance(attached.link, SenderLink)
    attached.link.accept()
    session = server.sessions[0]
    session.next_outgoing_id = session.next_delivery_id = session.unsettled.known_to = start
    attached.link.delivery_count = start
    return server, session, attached.link


def flow(server: Connection, window: int, credit: int, seen: int, counted: int) -> None:
    frame = Flow(
        next_incoming_id=UInt(seen & SERIAL_MASK),
        incoming_window=UInt(window),
        next_outgoing_id=UInt(0),
        outgoing_window=UInt(0),
        handle=UInt(0),
        delivery_count=UInt(counted & SERIAL_MASK),
        link_credit=UInt(credit),
    )
    read(server, encode_frame(0, frame))


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("given", UINTS)
def test_window_and_credit_are_what_the_peer_says_less_what_is_on_its_way(
    start: int, given: int
) -> None:
    """Every FLOW of the .NET SDK says an incoming-window of 2^32-1."""
    server, session, link = sending(start)
    flow(server, given, given, start, start)
    assert (session.remote_incoming_window, link.credit) == (given, given)
    sent = min(3, given)
    for number in range(sent):
        link.send(b"m", bytes([number]))
    assert (session.remote_incoming_window, link.credit) == (given - sent, given - sent)
    flow(server, given, given, start, start)  # The peer has seen none of them yet.
    assert (session.remote_incoming_window, link.credit) == (given - sent, given - sent)
    flow(server, given, given, start + sent, start + sent)
    assert (session.remote_incoming_window, link.credit) == (given, given)


def test_a_peer_that_lowers_what_is_on_its_way_already_gives_nothing() -> None:
    server, session, link = sending(SERIAL_MASK)
    flow(server, 5, 5, SERIAL_MASK, SERIAL_MASK)
    for number in range(3):
        link.send(b"m", bytes([number]))
    flow(server, 1, 1, SERIAL_MASK, SERIAL_MASK)
    assert (session.remote_incoming_window, link.credit) == (0, 0)


@pytest.mark.parametrize("number", UINTS)
def test_a_serial_number_is_ahead_of_another_by_less_than_half_of_all(number: int) -> None:
    assert serial_ahead(number, number) == 0
    assert serial_ahead((number + 3) & SERIAL_MASK, number) == 3
    assert serial_ahead(number, (number + 3) & SERIAL_MASK) == 0
    assert serial_ahead((number + HALF_SERIAL) & SERIAL_MASK, number) == 0


@pytest.mark.parametrize("credit", UINTS)
def test_the_largest_credit_can_be_granted_and_drained(credit: int) -> None:
    pair = Pair()
    pair.exchange()
    link, offered = pair.sender()
    offered.grant(credit, drain=True)
    pair.exchange()
    assert (link.credit, link.drain) == (credit, True)
    link.drained()
    pair.exchange()
    assert (offered.credit, offered.is_draining) == (0, False)
    assert offered.delivery_count == link.delivery_count == credit


# Every number of OPEN, BEGIN and ATTACH: the connection carries messages, or says what is wrong.

FRAME_SIZES = (0, 511, 512, 513, SERIAL_MASK)
CHANNELS = (0, 1, CHANNEL_MAX, 0xFFFF)
HANDLES = (0, 1, HANDLE_MAX, HANDLE_MAX + 1, SERIAL_MASK)
SIZES = (0, 1, (1 << 64) - 1)
LARGE = bytes(range(256)) * 8


@dataclass
class Peer:
    """A client that says what it is told to, to a server that takes and sends messages."""

    channel: int = 0
    handle: int = 0
    server: Connection = field(default_factory=lambda: Connection("s", server=True))
    rules: FrameRules = field(default_factory=FrameRules)
    events: list[Event] = field(default_factory=list)

    def say(self, *frames: Performative | bytes, channel: int | None = None) -> None:
        """Write these frames in one read; the server accepts what is attached."""
        at = self.channel if channel is None else channel
        data = b"".join(one if isinstance(one, bytes) else encode_frame(at, one) for one in frames)
        for events in self.server.receive(data, 1):
            self.events += one_by_one(events)
            for event in events:
                if isinstance(event, Attached):
                    event.link.accept()
        self.rules.take(self.server.take_output(1))

    def open(self, **numbers: Any) -> None:
        self.say(AMQP_HEADER, encode_frame(0, Open(container_id="c", **numbers)))

    def begin(self, **numbers: int) -> None:
        given = {"next_outgoing_id": 0, "incoming_window": 100, "outgoing_window": 100} | numbers
        fields: dict[str, Any] = {name: UInt(number) for name, number in given.items()}
        self.say(Begin(**fields))

    def attach(self, *, receives: bool = True, **numbers: Any) -> None:
        terminus: dict[str, Any] = {"source": Source(address="q"), "target": Target(address="me")}
        self.say(Attach(name="l", handle=UInt(self.handle), role=receives, **terminus, **numbers))

    def flow(self, credit: int = 1) -> None:
        self.say(
            Flow(
                next_incoming_id=UInt(0),
                incoming_window=UInt(100),
                next_outgoing_id=UInt(0),
                outgoing_window=UInt(0),
                handle=UInt(self.handle),
                delivery_count=UInt(0),
                link_credit=UInt(credit),
            )
        )

    def link(self) -> Link:
        (attached,) = [event for event in self.events if isinstance(event, Attached)]
        return attached.link

    def carries(self) -> bool:
        """Whether a message of several frames of 512 bytes comes to the client."""
        self.flow()
        link = self.link()
        assert isinstance(link, SenderLink)
        link.send(LARGE, b"t")
        before = self.rules.names.count("Transfer")
        self.rules.take(self.server.take_output(1))
        return self.rules.names.count("Transfer") > before

    def closed(self) -> str:
        (closed,) = [event for event in self.events if isinstance(event, Closed)]
        assert closed.error is not None
        assert self.rules.names[-1] == "Close"
        return str(closed.error.condition)


@pytest.mark.parametrize("size_bytes", FRAME_SIZES)
@pytest.mark.parametrize("most", [0, 1, 0xFFFF])
def test_any_frame_size_and_channel_max_of_an_open(size_bytes: int, most: int) -> None:
    peer = Peer(rules=FrameRules(max(size_bytes, 512)))
    peer.open(max_frame_size=UInt(size_bytes), channel_max=UShort(most))
    peer.begin()
    peer.attach()
    assert peer.carries()


@pytest.mark.parametrize("number", UINTS)
@pytest.mark.parametrize(
    "name", ["next_outgoing_id", "incoming_window", "outgoing_window", "handle_max"]
)
def test_any_number_of_a_begin(name: str, number: int) -> None:
    peer = Peer()
    peer.open()
    peer.begin(**{name: number})
    peer.attach()
    assert peer.carries()
    window = peer.server.sessions[0].next_incoming_id
    assert window == (number if name == "next_outgoing_id" else 0)


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("handle", HANDLES)
def test_any_channel_and_handle(channel: int, handle: int) -> None:
    peer = Peer(channel=channel, handle=handle)
    peer.open()
    peer.begin()
    peer.attach()
    if handle > HANDLE_MAX:
        assert peer.closed() == "amqp:connection:framing-error"
    else:
        assert peer.carries()


@pytest.mark.parametrize("start", UINTS)
@pytest.mark.parametrize("size", SIZES)
def test_any_counts_ids_and_sizes_of_a_sender(start: int, size: int) -> None:
    """Three deliveries from `start` on; what settles them may wrap too."""
    peer = Peer()
    peer.open()
    peer.begin()
    peer.attach(receives=False, initial_delivery_count=UInt(start), max_message_size=ULong(size))
    link = peer.link()
    assert isinstance(link, ReceiverLink)
    link.grant(5)
    ids = [(start + number) & SERIAL_MASK for number in range(3)]
    peer.say(*(encode_transfer_frame(0, 0, one, b"t", 0, False, b"m", False) for one in ids))
    came = [event for event in peer.events if isinstance(event, DeliveryArrived)]
    assert [event.delivery_id for event in came] == ids
    assert (link.delivery_count, link.credit) == ((start + 3) & SERIAL_MASK, 2)
    for one in ids:
        link.session.settle(one, one, ACCEPTED_BYTES, as_receiver=True)
    peer.rules.take(peer.server.take_output(1))
    assert peer.rules.names.count("Disposition") == (2 if ids != sorted(ids) else 1)
    assert link.max_message_size == size


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("count", [1, 3, 200])
def test_a_disposition_settles_a_range_that_wraps(start: int, count: int) -> None:
    server, session, link = sending(start)
    flow(server, 1_000, 1_000, start, start)
    for number in range(count):
        link.send(b"m", number.to_bytes(2))
    last = (start + count - 1) & SERIAL_MASK
    disposed = Disposition(role=True, first=UInt(start), last=UInt(last), settled=True)
    (event,) = read(server, encode_frame(0, disposed))
    assert isinstance(event, Disposed)
    taken = session.take_unsettled(event.first, event.last)
    assert [tag for _, _, tag in taken] == [number.to_bytes(2) for number in range(count)]
    assert set(event.among({start, last, (last + 1) & SERIAL_MASK})) == {start, last}


@pytest.mark.parametrize("first", UINTS)
@pytest.mark.parametrize("last", UINTS)
def test_a_disposition_for_nothing_that_was_sent_changes_nothing(first: int, last: int) -> None:
    server, session, _ = sending(5)
    disposed = Disposition(role=True, first=UInt(first), last=UInt(last), settled=True)
    (event,) = read(server, encode_frame(0, disposed))
    if (last - first) & SERIAL_MASK >= HALF_SERIAL:
        assert isinstance(event, Closed)
    else:
        assert isinstance(event, Disposed)
        assert session.take_unsettled(event.first, event.last) == []


@pytest.fixture
def server() -> Connection:
    server = Connection("s", server=True)
    read(server, AMQP_HEADER + encode_frame(0, Open(container_id="c")))
    return server


def take(server: Connection, *frames: tuple[int, Performative]) -> list[Event]:
    return read(server, b"".join(encode_frame(*frame) for frame in frames))


def begin(remote_channel: int | None = None) -> Begin:
    return Begin(
        remote_channel=None if remote_channel is None else UShort(remote_channel),
        next_outgoing_id=UInt(0),
        incoming_window=UInt(100),
        outgoing_window=UInt(100),
    )


def attach(handle: int, name: str = "in") -> Attach:
    source, target = Source(address="q"), Target(address="me")
    return Attach(name=name, handle=UInt(handle), role=True, source=source, target=target)


def condition(events: list[Event]) -> str:
    closed = events[-1]
    assert isinstance(closed, Closed)
    assert closed.error is not None
    return str(closed.error.condition)


def test_a_begin_that_names_a_session_in_use_is_refused_and_no_link_is_left_behind(
    server: Connection,
) -> None:
    events = take(
        server, (0, begin()), (1, begin(remote_channel=0)), (0, End()), (1, attach(handle=0))
    )
    assert condition(events) == "amqp:not-allowed"
    assert [type(event) for event in events] == [Begun, Closed]


def test_a_begin_that_answers_a_channel_never_begun_is_refused(server: Connection) -> None:
    events = take(server, (0, begin(remote_channel=7)))
    assert condition(events) == "amqp:not-allowed"
    assert not server.sessions


def test_an_answer_to_a_session_that_was_given_up_begins_no_other() -> None:
    client = Connection("c")
    read(client, AMQP_HEADER + encode_frame(0, Open(container_id="s")))
    client.end_session(client.begin())
    assert take(client, (0, begin(remote_channel=0)), (0, End())) == []
    assert not client.sessions


def test_an_attach_with_a_handle_in_use_is_refused(server: Connection) -> None:
    events = take(server, (0, begin()), (0, attach(3)), (0, attach(3, "another")))
    assert condition(events) == "amqp:session:handle-in-use"


def test_a_handle_is_free_again_after_a_detach_of_either_end(server: Connection) -> None:
    _, attached = take(server, (0, begin()), (0, attach(3)))
    assert isinstance(attached, Attached)
    attached.link.accept()
    take(server, (0, Detach(handle=UInt(3), closed=True)))
    (attached,) = take(server, (0, attach(3, "second")))
    assert isinstance(attached, Attached)
    attached.link.refuse("amqp:not-found", "no such queue")
    (attached,) = take(server, (0, attach(3, "third")))
    assert isinstance(attached, Attached)


@pytest.mark.parametrize("is_tag", [True, False])
def test_a_tag_or_a_transaction_with_a_long_id_is_refused(server: Connection, is_tag: bool) -> None:
    """A gateway keeps both for as long as a delivery has no answer."""
    sender = Attach(
        name="out", handle=UInt(3), role=False, source=Source(), target=Target(address="q")
    )
    _, attached = take(server, (0, begin()), (0, sender))
    assert isinstance(attached, Attached)
    attached.link.accept()
    outcome = Rejected(Error(condition=Symbol("amqp:no"), description="x" * 1_000))

    def transfer(id_bytes: int) -> list[Event]:
        id_ = bytes(id_bytes)
        state = None if is_tag else TransactionalState(id_, outcome)
        tag = id_ if is_tag else b"t"
        return take(
            server,
            (0, Transfer(UInt(3), UInt(0), tag, settled=False, more=False, state=state)),
        )

    (arrived,) = transfer(ID_BYTES_MAX)
    assert isinstance(arrived, DeliveryArrived)
    assert is_tag or arrived.state == TransactionalState(bytes(ID_BYTES_MAX))
    assert condition(transfer(ID_BYTES_MAX + 1)) == "amqp:connection:framing-error"


def test_transfers_that_wait_for_the_window_end_with_their_link() -> None:
    """Another link gets their handle: they would reach another entity."""
    pair = Pair()
    pair.exchange()
    link, offered = pair.sender()
    ours = pair.client.sessions[link.session.channel]
    ours.remote_incoming_window = 2
    for _ in range(5):
        link.send(b"m", b"t")
    pair.exchange()
    link.detach()
    source, target = Source(address="me"), Target(address="other")
    other = ours.attach_sender("other", source=source, target=target)
    assert other.handle == link.handle
    _, at_server = pair.exchange()
    of(Attached, at_server)[0].link.accept()
    pair.server.sessions[offered.session.channel].write_flow()
    _, at_server = pair.exchange()
    assert of(DeliveryArrived, at_server) == []


def test_a_link_that_waited_behind_one_that_ended_hears_of_the_window() -> None:
    pair = Pair()
    pair.exchange()
    link, offered = pair.sender()
    ours = pair.client.sessions[link.session.channel]
    other = ours.attach_sender("other", source=Source(address="me"), target=Target(address="q"))
    ours.remote_incoming_window = 0
    link.send(b"m", b"t")
    assert ours.blocks(other)
    link.detach()
    pair.server.sessions[offered.session.channel].write_flow()
    at_client, _ = pair.exchange()
    assert [event.link for event in of(CreditChanged, at_client)] == [other]
