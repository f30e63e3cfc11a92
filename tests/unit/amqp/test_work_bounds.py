"""The processor time that a peer can make this end spend is bounded by the bytes it sends."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.unit.amqp.test_connection import read
from tests.unit.work import bounded_work
from twinbus.amqp import encoding
from twinbus.amqp.connection import AMQP_HEADER, Connection
from twinbus.amqp.decoding import ALIKE_KEYS_MAX, decode
from twinbus.amqp.events import Attached, CreditChanged, Disposed
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.link import SenderLink
from twinbus.amqp.performatives import Attach, Begin, Flow, Open, Source, Target
from twinbus.amqp.types import DecodeError, Described, UInt

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
