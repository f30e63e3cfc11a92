"""Channels and handles name one thing at a time: a frame that names one in use is refused."""

from __future__ import annotations

import pytest

from tests.unit.amqp.test_connection import Pair, of, read
from twinbus.amqp.connection import AMQP_HEADER, Connection
from twinbus.amqp.events import (
    Attached,
    Begun,
    Closed,
    CreditChanged,
    DeliveryArrived,
    Event,
)
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.performatives import (
    Attach,
    Begin,
    Detach,
    End,
    Open,
    Performative,
    Source,
    Target,
)
from twinbus.amqp.session import HANDLE_MAX
from twinbus.amqp.types import UInt, UShort


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


def test_a_handle_past_the_announced_most_is_refused(server: Connection) -> None:
    events = take(server, (0, begin()), (0, attach(HANDLE_MAX + 1)))
    assert condition(events) == "amqp:connection:framing-error"


def test_transfers_that_wait_for_the_window_end_with_their_link() -> None:
    """Another link gets their handle: they would reach another entity."""
    pair = Pair()
    pair.exchange()
    link, offered = pair.sender()
    ours = pair.client.sessions[link.session.channel]
    ours._remote_incoming_window = 2
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
    ours._remote_incoming_window = 0
    link.send(b"m", b"t")
    assert ours.blocks(other)
    link.detach()
    pair.server.sessions[offered.session.channel].write_flow()
    at_client, _ = pair.exchange()
    assert [event.link for event in of(CreditChanged, at_client)] == [other]
