"""What a peer sends before our answer, the work it can cause, and runs of deliveries."""

from __future__ import annotations

from itertools import product
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.amqp.frame_rules import FrameRules
from tests.unit.amqp.test_connection import Pair, read
from tests.unit.work import bounded_work
from twinbus.amqp import encoding
from twinbus.amqp.connection import AMQP_HEADER, Connection
from twinbus.amqp.decoding import ALIKE_KEYS_MAX, decode
from twinbus.amqp.events import Attached, CreditChanged, DeliveryArrived, Disposed, Event
from twinbus.amqp.frames import encode_frame, encode_transfer_frame
from twinbus.amqp.link import (
    HALF_SERIAL,
    SERIAL_MASK,
    SWEEP_FLOOR,
    LinkState,
    ReceiverLink,
    SenderLink,
    Unsettled,
)
from twinbus.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Source,
    Target,
)
from twinbus.amqp.session import Session
from twinbus.amqp.types import DecodeError, Described, UInt, UShort


def flow(handle: int | None) -> bytes:
    about_link = {} if handle is None else {"delivery_count": UInt(0), "link_credit": UInt(9)}
    frame = Flow(
        next_incoming_id=UInt(0),
        incoming_window=UInt(100),
        next_outgoing_id=UInt(0),
        outgoing_window=UInt(100),
        handle=None if handle is None else UInt(handle),
        **about_link,  # type: ignore[arg-type]
    )
    return encode_frame(0, frame)


BEGIN = encode_frame(
    0,
    Begin(
        remote_channel=UShort(0),
        next_outgoing_id=UInt(0),
        incoming_window=UInt(100),
        outgoing_window=UInt(100),
    ),
)
EARLY = {
    "flow": flow(None),
    "flow of a link": flow(0),
    "transfer": encode_transfer_frame(0, 0, 0, b"t", 0, False, b"m", False),
    "settled transfer": encode_transfer_frame(0, 0, 1, b"t", 0, True, b"m", False),
    "part of a transfer": encode_transfer_frame(0, 0, 2, b"t", 0, False, b"m", True),
    "disposition": encode_frame(
        0, Disposition(role=True, first=UInt(0), settled=True, state=Accepted())
    ),
    "detach": encode_frame(0, Detach(handle=UInt(0), closed=True)),
}


class Client:
    """Our end, with a session and two links that are not answered yet."""

    def __init__(self) -> None:
        self.connection = Connection("c")
        self.rules = FrameRules()
        read(self.connection, AMQP_HEADER + encode_frame(0, Open(container_id="s")))
        self.session = session = self.connection.begin()
        source, target = Source(address="a"), Target(address="b")
        self.receiver: ReceiverLink = session.attach_receiver("in", source=source, target=target)
        self.sender: SenderLink = session.attach_sender("out", source=source, target=target)
        self.write()

    def write(self) -> None:
        self.rules.take(self.connection.take_output(1))

    def answer(self, *, with_begin: bool) -> None:
        """Answer the attaches; then both links work."""
        links = (("in", False), ("out", True))
        frames = [BEGIN] if with_begin else []
        for handle, (name, role) in enumerate(links):
            attach = Attach(
                name=name,
                handle=UInt(handle),
                role=role,
                source=Source(address="a"),
                target=Target(address="b"),
                initial_delivery_count=None if role else UInt(0),
            )
            frames.append(encode_frame(0, attach))
        delivery = encode_transfer_frame(0, 0, 7, b"t", 0, False, b"m", False)
        events = read(self.connection, b"".join(frames) + delivery + flow(1))
        assert len([event for event in events if isinstance(event, Attached)]) == 2
        assert [type(event) for event in events[-2:]] == [DeliveryArrived, CreditChanged]
        assert (self.receiver.state, self.sender.state) == (LinkState.OPEN, LinkState.OPEN)
        self.sender.send(b"m", b"t")
        self.write()
        assert self.rules.names[-1] == "Transfer"


@pytest.mark.parametrize("names", list(product(EARLY, repeat=2)), ids="-".join)
@pytest.mark.parametrize("is_begun", [False, True])
def test_what_comes_before_the_answer_leaves_the_links_as_they_are(
    names: tuple[str, str], is_begun: bool
) -> None:
    client = Client()
    early = (BEGIN if is_begun else b"") + b"".join(EARLY[name] for name in names)
    events = read(client.connection, early)
    assert not [event for event in events if isinstance(event, DeliveryArrived | CreditChanged)]
    client.write()
    client.answer(with_begin=not is_begun)


def test_an_end_before_the_begin_that_it_ends_is_ignored() -> None:
    client = Client()
    assert read(client.connection, encode_frame(0, End())) == []
    client.answer(with_begin=True)


@pytest.mark.parametrize("ends", ["detach", "end", "close"])
def test_this_end_may_give_up_before_the_answer(ends: str) -> None:
    client = Client()
    match ends:
        case "detach":
            client.receiver.detach()
        case "end":
            client.connection.end_session(client.session)
        case _:
            client.connection.close()
    client.write()
    read(client.connection, BEGIN + flow(None))
    attach = Attach(name="in", handle=UInt(0), source=Source(address="a"), target=Target())
    delivery = encode_transfer_frame(0, 0, 7, b"t", 0, False, b"m", False)
    detach = encode_frame(0, Detach(handle=UInt(0), closed=True))
    events = read(client.connection, encode_frame(0, attach) + delivery + detach)
    client.write()
    if ends != "close":  # After CLOSE the owner may still hear what is on its way.
        assert not [event for event in events if isinstance(event, Attached | DeliveryArrived)]


WORK_S_PER_KIB = 0.005
FRAME_BYTES = 64 * 1024
HASH_MODULUS = (1 << 61) - 1
"""Python's hash of an integer is its remainder by this, and the hash of a uuid is its integer's."""


def alike(number: int) -> UUID:
    return UUID(int=number * HASH_MODULUS + 7)


def colliding(count: int) -> bytes:
    return encoding.write({alike(number): None for number in range(1, count + 1)})


@pytest.mark.parametrize("described", [False, True], ids=["uuids", "described uuids"])
def test_keys_that_all_hash_alike_cost_no_more_than_others(described: bool) -> None:
    # A map of 32-bit size and count; each entry is a key (0x98: uuid) and a null.
    shape = b"\x00\x53\x01\x98" if described else b"\x98"
    count = FRAME_BYTES // (len(shape) + 17)
    body = b"".join(shape + alike(number).bytes + b"\x40" for number in range(1, count + 1))
    frame = b"\xd1" + (len(body) + 4).to_bytes(4) + (2 * count).to_bytes(4) + body
    if described:
        assert hash(Described(1, alike(1))) == hash(Described(1, alike(2)))
    with (
        bounded_work(WORK_S_PER_KIB * len(frame) / 1024),
        pytest.raises(DecodeError, match="hash alike"),
    ):
        decode(frame)


def test_a_few_keys_may_hash_alike() -> None:
    value, _ = decode(colliding(ALIKE_KEYS_MAX))
    assert len(value) == ALIKE_KEYS_MAX


def test_a_large_map_of_texts_and_numbers_is_read() -> None:
    given: dict[object, object] = {f"key {number}": number for number in range(500)}
    given |= {number: str(number) for number in range(500)}
    assert decode(encoding.write(given))[0] == given


def session_flow(window: int) -> bytes:
    flow = Flow(
        next_incoming_id=UInt(0),
        incoming_window=UInt(window),
        next_outgoing_id=UInt(0),
        outgoing_window=UInt(0),
    )
    return encode_frame(0, flow)


def test_a_flow_on_a_blocked_session_costs_no_event_for_links_that_do_not_wait() -> None:
    server = Connection("s", server=True)
    read(server, AMQP_HEADER + encode_frame(0, Open(container_id="c")))
    read(server, encode_frame(0, Begin(incoming_window=UInt(0))))
    links: list[SenderLink] = []
    for number in range(100):
        source, target = Source(address="q"), Target(address="me")
        attach = Attach(
            name=str(number), handle=UInt(number), role=True, source=source, target=target
        )
        (attached,) = read(server, encode_frame(0, attach))
        assert isinstance(attached, Attached)
        assert isinstance(attached.link, SenderLink)
        attached.link.accept()
        links.append(attached.link)
    first, second = links[:2]
    first.credit = 3
    for _ in range(3):
        first.send(b"m", b"t", settled=True)
    assert second.session.blocks(second)
    assert read(server, session_flow(0) * 50) == []
    assert read(server, session_flow(1)) == []
    assert read(server, session_flow(3)) == [CreditChanged(first), CreditChanged(second)]
    assert read(server, session_flow(4)) == []


class Sent:
    """A session of ours with deliveries that the peer has not settled."""

    def __init__(self, count: int) -> None:
        self.connection = Connection("c")
        self.session = self.connection.begin()
        self.session.take_begin(Begin(incoming_window=UInt(count)), 0)
        self.link = self.attach()
        for _ in range(count):
            self.link.send(b"m", b"t")

    def attach(self) -> SenderLink:
        link = self.session.attach_sender("l", source=Source(), target=Target())
        link.credit = 1_000_000
        return link


UNSETTLED = 20_000
FRAMES = 1_000
DISPOSITION_BYTES = 30


@pytest.mark.parametrize("settled", [10_000, 0], ids=["a gap", "beyond all"])
def test_a_wide_range_that_holds_nothing_costs_no_more_than_its_frame(settled: int) -> None:
    sent = Sent(UNSETTLED)
    first = 100 if settled else UNSETTLED
    assert len(sent.session.take_unsettled(100, 100 + settled)) == (settled + 1 if settled else 1)
    with bounded_work(WORK_S_PER_KIB * FRAMES * DISPOSITION_BYTES / 1024):
        for _ in range(FRAMES):
            assert sent.session.take_unsettled(first, first + (settled or 2**30)) == []


def test_a_link_that_closes_costs_no_look_at_the_deliveries_of_others() -> None:
    sent = Sent(UNSETTLED)
    others = [sent.attach() for _ in range(FRAMES)]
    for other in others:
        other.send(b"m", b"o")
    with bounded_work(WORK_S_PER_KIB * FRAMES * 150 / 1024):
        for other in others:
            other.detach()
    taken = sent.session.take_unsettled(0, 2**30)
    assert [number for number, _, _ in taken] == list(range(UNSETTLED))


def disposed(first: int, last: int) -> Disposed:
    return Disposed(Connection("c").begin(), True, first, last, True, None)


def test_a_range_of_two_billion_ids_costs_a_look_at_those_that_wait() -> None:
    waiting = dict.fromkeys((3, 5, 2**31 + 7))
    assert disposed(4, 2**31 + 3).among(waiting) == [5]
    assert disposed(3, 4).among(waiting) == [3]
    assert disposed(0, 2**31 - 1).among({}) == []


def test_a_range_may_pass_the_end_of_the_serial_numbers() -> None:
    waiting = dict.fromkeys((2**32 - 2, 2**32 - 1, 0, 1, 2))
    assert disposed(2**32 - 1, 1).among(waiting) == [2**32 - 1, 0, 1]
    assert disposed(2**32 - 1, 100).among(waiting) == [2**32 - 1, 0, 1, 2]


LIMIT_BYTES = 1_000
LINKS = 3

SENDS = st.lists(
    st.tuples(
        st.integers(0, LINKS - 1),
        st.one_of(st.just(b"usual"), st.binary(max_size=40), st.just(bytes(LIMIT_BYTES + 1))),
        st.sampled_from([b"0123456789abcdef", b"t", b"", bytes(32)]),
        st.booleans(),
        st.sampled_from([0, 0, 0, 0x80013700]),
    ),
    max_size=40,
)


class Receiver:
    """A server with links that a client sends on; it learns how transfers look, or does not."""

    def __init__(self, chunk: int, *, learns: bool) -> None:
        self.pair = Pair(chunk=chunk)
        self.pair.exchange()
        if not learns:
            self.pair.server.shapes_left = 0
        ours, self.session = self.pair.session()
        self.outgoing = [self._attach(ours, f"link-{n}") for n in range(LINKS)]

    def _attach(self, session: Session, name: str) -> SenderLink:
        link = session.attach_sender(name, source=Source(address="me"), target=Target(address="q"))
        _, at_server = self.pair.exchange()
        (offered,) = [event.link for event in at_server if isinstance(event, Attached)]
        assert isinstance(offered, ReceiverLink)
        offered.accept(max_message_size=LIMIT_BYTES)
        offered.limit_bytes = LIMIT_BYTES
        offered.grant(100)
        self.pair.exchange()
        return link

    def take(self, sends: list[tuple[int, bytes, bytes, bool, int]]) -> list[tuple[Any, ...]]:
        for number, payload, tag, settled, message_format in sends:
            link = self.outgoing[number]
            link.send(payload, tag, settled=settled, message_format=message_format)
        return [_seen(event) for event in self.pair.exchange()[1]]

    def accounts(self) -> list[tuple[Any, ...]]:
        session = self.session
        links = session.links.values()
        return [
            (session.next_incoming_id, session.incoming_window),
            *((link.name, link.state, link.credit, link.delivery_count) for link in links),
        ]


def _seen(event: Event) -> tuple[Any, ...]:
    if not isinstance(event, DeliveryArrived):
        return (type(event).__name__,)
    link, number = event.link.name, event.delivery_id
    return link, number, event.tag, event.message_format, event.settled, event.payload


@settings(max_examples=60, deadline=None)
@given(SENDS, st.sampled_from([1, 7, 90, 4_000, 1 << 20]))
def test_a_run_is_read_as_its_frames_are_read_one_by_one(
    sends: list[tuple[int, bytes, bytes, bool, int]], chunk: int
) -> None:
    learning, plain = Receiver(chunk, learns=True), Receiver(chunk, learns=False)
    assert learning.take(sends) == plain.take(sends)
    assert learning.accounts() == plain.accounts()


def test_what_was_learned_is_used() -> None:
    """Or the comparison above would compare the general decoder with itself."""
    receiver = Receiver(1 << 20, learns=True)
    receiver.take([(0, b"first", b"0123456789abcdef", False, 0)])
    left = receiver.pair.server.shapes_left
    receiver.session.take_delivery = None  # type: ignore[assignment, method-assign]
    found = receiver.take([(0, b"m", b"0123456789abcdef", False, 0)] * 5)
    assert [each[5] for each in found] == [b"m"] * 5
    assert receiver.pair.server.shapes_left == left


STARTS = st.sampled_from((0, SERIAL_MASK - 150, HALF_SERIAL - 50, HALF_SERIAL))
STEPS = st.lists(
    st.tuples(
        st.integers(0, 200),
        st.integers(-50, 500),
        st.one_of(st.integers(0, 300), st.just(HALF_SERIAL - 1)),
    ),
    max_size=8,
)


@given(STARTS, STEPS)
def test_a_range_takes_each_delivery_in_it_once(
    start: int, steps: list[tuple[int, int, int]]
) -> None:
    link = SenderLink(Connection("c").begin(), "l", 0)
    unsettled, model, next_id = Unsettled(), set[int](), start
    unsettled.known_to = start
    for count, offset, span in steps:
        for _ in range(count):
            unsettled.by_id[next_id] = (link, b"")
            model.add(next_id)
            next_id = (next_id + 1) & SERIAL_MASK
        first = (start + offset) & SERIAL_MASK
        last = (first + span) & SERIAL_MASK
        taken = [number for number, _, _ in unsettled.take(first, last, next_id)]
        wanted = {number for number in model if (number - first) & SERIAL_MASK <= span}
        assert sorted(taken) == sorted(wanted)
        model -= wanted
        assert unsettled.by_id.keys() == model


def test_the_deliveries_of_closed_links_are_dropped_when_they_are_many() -> None:
    session = Connection("c").begin()
    unsettled, kept = Unsettled(), SenderLink(session, "kept", 0)
    for number in range(5_000):
        link = SenderLink(session, str(number), 1)
        unsettled.by_id[number] = (link if number % 10 else kept, b"")
        link.detach()
        unsettled.forget()
    assert len(unsettled.by_id) <= 2 * 500 + SWEEP_FLOOR
    assert len(unsettled.take(0, 5_000, 5_000)) == 500


def test_a_wide_range_after_ever_so_many_narrow_ones_looks_at_what_is_left() -> None:
    link = SenderLink(Connection("c").begin(), "l", 0)
    unsettled = Unsettled()
    sent = 1_000_000_000  # To look at each of them would take minutes.
    unsettled.by_id.update({sent - back: (link, b"") for back in (3, 2, 1)})
    taken = unsettled.take(0, sent, sent)
    assert [number for number, _, _ in taken] == [sent - 3, sent - 2, sent - 1]
