"""Every number that a peer may say, at its smallest and its largest."""

from __future__ import annotations

import pytest

from tests.unit.amqp.test_connection import Pair, read
from twinbus.amqp.connection import AMQP_HEADER, Connection
from twinbus.amqp.events import Attached
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.link import HALF_SERIAL, SERIAL_MASK, SenderLink, serial_ahead
from twinbus.amqp.performatives import Attach, Begin, Flow, Open, Source, Target
from twinbus.amqp.session import Session
from twinbus.amqp.types import UInt

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
    session._next_outgoing_id = session._next_delivery_id = start
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
    assert (session._remote_incoming_window, link.credit) == (given, given)
    sent = min(3, given)
    for number in range(sent):
        link.send(b"m", bytes([number]))
    assert (session._remote_incoming_window, link.credit) == (given - sent, given - sent)
    flow(server, given, given, start, start)  # The peer has seen none of them yet.
    assert (session._remote_incoming_window, link.credit) == (given - sent, given - sent)
    flow(server, given, given, start + sent, start + sent)
    assert (session._remote_incoming_window, link.credit) == (given, given)


def test_a_peer_that_lowers_what_is_on_its_way_already_gives_nothing() -> None:
    server, session, link = sending(SERIAL_MASK)
    flow(server, 5, 5, SERIAL_MASK, SERIAL_MASK)
    for number in range(3):
        link.send(b"m", bytes([number]))
    flow(server, 1, 1, SERIAL_MASK, SERIAL_MASK)
    assert (session._remote_incoming_window, link.credit) == (0, 0)


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
