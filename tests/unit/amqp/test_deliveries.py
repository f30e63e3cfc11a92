"""Runs of transfers give what single ones give, and unsettled ranges what a plain dict gives."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.amqp.test_connection import Pair
from twinbus.amqp.connection import Connection
from twinbus.amqp.events import Attached, DeliveryArrived, Event
from twinbus.amqp.link import (
    HALF_SERIAL,
    SERIAL_MASK,
    SWEEP_FLOOR,
    ReceiverLink,
    SenderLink,
    Unsettled,
)
from twinbus.amqp.performatives import Source, Target
from twinbus.amqp.session import Session

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
            self.pair.server._shapes_left = 0
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
            (session._next_incoming_id, session._incoming_window),
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
    left = receiver.pair.server._shapes_left
    receiver.session.take_delivery = None  # type: ignore[assignment, method-assign]
    found = receiver.take([(0, b"m", b"0123456789abcdef", False, 0)] * 5)
    assert [each[5] for each in found] == [b"m"] * 5
    assert receiver.pair.server._shapes_left == left


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
    unsettled._known_to = start
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
