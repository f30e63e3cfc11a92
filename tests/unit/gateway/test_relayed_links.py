"""A client's links to the primary: what the gateway keeps for a client, and what it passes on."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from twinbus.amqp.events import Attached, CreditChanged, DeliveryArrived, Disposed, Event
from twinbus.amqp.frames import FrameOutput, decode_performative
from twinbus.amqp.link import LinkState, ReceiverLink, SenderLink
from twinbus.amqp.message import Sections
from twinbus.amqp.performatives import Accepted, Attach, Flow, Source, Target
from twinbus.amqp.session import Session
from twinbus.amqp.types import UInt
from twinbus.broker.links.context import REPLIES_MAX, ReplyLinks
from twinbus.broker.refusals import QuotaExceeded
from twinbus.client.request_node import RequestRefused
from twinbus.gateway.relay import PrimaryRelay, Relayed
from twinbus.gateway.relayed_links import (
    WAITING_BYTES_MAX,
    WINDOW,
    WINDOW_BYTES,
    RelayedReceiver,
    RelayedReplies,
    RelayedRequests,
)
from twinbus.servicebus.failures import FailureMeaning

ADDRESS = "orders/$management"


class World:
    """A client's session and one of the primary, without a network between them."""

    def __init__(self) -> None:
        self.here = Session(FrameOutput(), 0)
        self.there = Session(FrameOutput(), 0)
        self.client: Any = SimpleNamespace(
            takes_more=True,
            touch=lambda: None,
            replies=ReplyLinks(),
            grants=SimpleNamespace(require=lambda *_: 0),
        )
        self.relay = PrimaryRelay(cast("Any", None), self.client, lambda work: work.close())

    def sending(self, session: Session) -> SenderLink:
        link = session.attach_sender("out", source=Source(), target=Target(address="answers"))
        link.state = LinkState.OPEN
        return link

    def receiving(self, session: Session) -> ReceiverLink:
        link = session.attach_receiver("in", source=Source(address=ADDRESS), target=Target())
        link.state = LinkState.OPEN
        return link


def flow(session: Session, window: int) -> list[Event]:
    """The client's window takes so many transfers more."""
    events: list[Event] = []
    frame = Flow(
        next_incoming_id=UInt(session._next_outgoing_id),
        incoming_window=UInt(window),
        next_outgoing_id=UInt(0),
        outgoing_window=UInt(0),
    )
    session.take(frame, b"", events)
    return events


async def test_a_client_whose_session_window_is_closed_gets_few_deliveries() -> None:
    world = World()
    link, up = world.sending(world.here), world.receiving(world.there)
    receiver = RelayedReceiver(world.relay, link, "orders", 0)
    receiver.up, link.credit = up, 10 * WINDOW
    receiver.credit_changed()
    came = 0
    while up.credit and came < 10 * WINDOW:
        came += 1
        up.count_incoming(1)
        receiver.handle(DeliveryArrived(up, came, b"tag", 0, True, b"x"))
        await asyncio.sleep(0)  # The read is over.
    assert 0 < came <= WINDOW
    [waiting] = flow(world.here, window=10 * WINDOW)
    assert waiting == CreditChanged(link)
    receiver.credit_changed()
    assert up.credit == WINDOW


@pytest.mark.parametrize("drain", [False, True])
def test_credit_that_came_before_the_primary_answered_is_given_to_it(drain: bool) -> None:
    """The .NET SDK sends its FLOW with the ATTACH."""
    world = World()
    link, up = world.sending(world.here), world.receiving(world.there)
    receiver = RelayedReceiver(world.relay, link, "orders", 0)
    receiver.up, up.state = up, LinkState.ATTACHING
    link.state, link.credit, link.drain = LinkState.OFFERED, 12, drain
    receiver.credit_changed()
    up.state = LinkState.OPEN
    receiver.handle(Attached(up))
    assert (link.state, up.credit, up.is_draining) == (LinkState.OPEN, 12, drain)


def test_only_the_filters_that_the_primary_answered_are_answered_to_the_client() -> None:
    world = World()
    link, up = world.sending(world.here), world.receiving(world.there)
    receiver = RelayedReceiver(world.relay, link, "orders", 0)
    receiver.up, link.state = up, LinkState.OFFERED
    link.source = Source(address="amqps://gateway/orders", filter={"selector": "x = 1", "s": "a"})
    up.source = Source(address="orders", filter={"s": "a"})
    world.here._output.take()
    receiver.handle(Attached(up))
    answer, _ = decode_performative(world.here._output.take()[8:])
    assert isinstance(answer, Attach)
    assert answer.source == Source(address="amqps://gateway/orders", filter={"s": "a"})


def test_an_answer_waits_until_the_client_s_link_is_open() -> None:
    world = World()
    link, up = world.sending(world.here), world.receiving(world.there)
    link.state, link.credit = LinkState.OFFERED, 5
    replies = RelayedReplies(world.relay, link, ADDRESS)
    replies.up = up
    replies.send(b"refused")
    assert link.credit == 5
    replies.handle(Attached(up))
    assert (link.state, link.credit) == (LinkState.OPEN, 4)


async def test_credit_is_taken_back_when_large_deliveries_follow_small_ones() -> None:
    world = World()
    world.here._remote_incoming_window = 1_000_000
    link, up = world.sending(world.here), world.receiving(world.there)
    receiver = RelayedReceiver(world.relay, link, "orders", 0)
    receiver.up, link.credit = up, WINDOW
    for size in (1, WINDOW_BYTES // 4):
        up.count_incoming(1)
        receiver.handle(DeliveryArrived(up, 0, b"tag", 0, True, bytes(size)))
        await asyncio.sleep(0)
        assert up.credit == (WINDOW - 1 if size == 1 else 4)


def test_answers_that_a_client_does_not_read_are_let_go_with_their_link() -> None:
    """The client may open another link and do the same again."""
    world = World()
    link, up = world.sending(world.here), world.receiving(world.there)
    replies = RelayedReplies(world.relay, link, ADDRESS)
    replies.up = up
    world.relay.begin(replies)
    for number in range(REPLIES_MAX + 1):
        replies.handle(DeliveryArrived(up, number, b"tag", 0, True, b"answer"))
    assert link.state is LinkState.CLOSED
    assert (world.relay._relayed, up.state) == (set(), LinkState.CLOSED)


def test_requests_that_are_under_way_together_have_tags_of_their_own() -> None:
    world = World()
    requests = RelayedRequests(cast("Any", None), world.relay, world.receiving(world.here), ADDRESS)
    requests.up = up = world.sending(world.there)
    for here in range(3):
        requests._taking = here
        requests._forward(Sections(), 0)
    up.credit = 3
    requests.handle(CreditChanged(up))
    tags = [tag for _, _, tag in world.there.take_unsettled(0, 2)]
    assert len(set(tags)) == 3


async def test_nothing_is_written_for_a_settlement_whose_link_is_gone() -> None:
    """The client may have ended the session, and its channel may have another one by now."""
    world = World()
    link, up = world.sending(world.here), world.receiving(world.there)
    receiver = RelayedReceiver(world.relay, link, "orders", 0)
    receiver.up, link.credit = up, 1
    receiver.handle(DeliveryArrived(up, 7, b"tag", 0, False, b"x"))
    receiver.settle([0], Disposed(world.here, True, 0, 0, False, Accepted()))
    receiver.close(0)
    link.state = LinkState.CLOSED
    before_bytes = world.here._output.size_bytes
    world.relay._on_event(Disposed(world.there, False, 7, 7, True, Accepted()))
    assert world.here._output.size_bytes == before_bytes


def test_a_node_is_forgotten_with_its_last_link_though_the_client_has_others() -> None:
    """A client may open a node with a session of its own for every message that it sends."""
    world = World()
    for number in range(3):
        session = Session(FrameOutput(), number)
        replies = RelayedReplies(world.relay, world.sending(session), ADDRESS)
        world.relay.begin(replies)
        world.relay._nodes[session, "orders"] = world.there
        if number:
            replies.close(0)
    assert len(world.relay._nodes) == 1


def test_the_bytes_of_requests_that_wait_for_the_primary_are_bounded() -> None:
    world = World()
    link = world.receiving(world.here)
    requests = RelayedRequests(cast("Any", None), world.relay, link, ADDRESS)
    requests.up = up = world.sending(world.there)
    large = Sections(body=bytes(WAITING_BYTES_MAX // 2))
    for _ in range(2):
        assert requests._forward(large, 0) is None
    with pytest.raises(QuotaExceeded, match="2 requests wait for the primary"):
        requests._forward(large, 0)
    up.credit = 10
    requests.handle(CreditChanged(up))
    assert requests._forward(large, 0) is None


class NoToken(PrimaryRelay):
    """A relay whose credential gives no token."""

    meaning: FailureMeaning | None

    async def _session(self, relayed: Relayed) -> Session:
        raise RequestRefused("no token", 401, "amqp:unauthorized-access", self.meaning)


@pytest.mark.parametrize(
    ("meaning", "is_open"), [(FailureMeaning.UNREACHABLE, True), (None, False)]
)
async def test_a_node_can_be_opened_while_the_token_service_cannot_be_reached(
    meaning: FailureMeaning | None, is_open: bool
) -> None:
    """The Go SDK sends nothing without it, and its messages could be diverted."""
    world = World()
    relay = NoToken(cast("Any", None), world.client, lambda work: work.close())
    relay.meaning = meaning
    link = world.sending(world.here)
    link.state = LinkState.OFFERED
    world.client.detach = lambda link, refusal: link.refuse(refusal.condition, "")
    replies = RelayedReplies(relay, link, ADDRESS)
    relay.begin(replies)
    await relay._begin(replies)
    assert (link.state is LinkState.OPEN) == is_open
