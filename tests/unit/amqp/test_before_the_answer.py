"""What a peer sends before it answers our BEGIN or ATTACH is ignored and does no harm."""

from __future__ import annotations

from itertools import product

import pytest

from tests.unit.amqp.frame_rules import FrameRules
from tests.unit.amqp.test_connection import read
from twinbus.amqp.connection import AMQP_HEADER, Connection
from twinbus.amqp.events import Attached, CreditChanged, DeliveryArrived
from twinbus.amqp.frames import encode_frame, encode_transfer_frame
from twinbus.amqp.link import LinkState, ReceiverLink, SenderLink
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
from twinbus.amqp.types import UInt, UShort


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
