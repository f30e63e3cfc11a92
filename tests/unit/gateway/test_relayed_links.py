"""A client's links and frames through a gateway: what it keeps, passes on, and holds back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.broker.fakes import facts
from tests.unit.broker.links.joined import TICKS, JoinedClient, new_server
from tests.unit.broker.links.one_client import (
    BODY,
    EARLY_RECEIVING,
    LAST,
    RECEIVING,
    Action,
    OneClient,
    check_before_the_answer,
    early,
    outcome_of,
    pairs,
)
from tests.unit.gateway.joined_namespaces import PRIMARY, join, new_namespace, no_connection
from twinbus.amqp.budgets import Budget
from twinbus.amqp.events import (
    Attached,
    CreditChanged,
    DeliveryArrived,
    DetachAnswered,
    Detached,
    Disposed,
    Event,
)
from twinbus.amqp.frames import FrameOutput, decode_performative
from twinbus.amqp.link import MAX_MESSAGE_BYTES, LinkState, ReceiverLink, SenderLink
from twinbus.amqp.message import Properties, Sections, encode_message, split
from twinbus.amqp.performatives import Accepted, Attach, Flow, Source, Target, TransactionalState
from twinbus.amqp.session import ID_BYTES_MAX, Session
from twinbus.amqp.types import UInt
from twinbus.broker.budgets import CONNECTION_BYTES, ClientBudgets, ProcessBudgets
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.links.context import REPLIES_MAX, ReplyLinks
from twinbus.broker.links.peer import Peer
from twinbus.broker.links.requests import REQUEST_BYTES_MAX
from twinbus.broker.refusals import EntityNotFound, QuotaExceeded
from twinbus.broker.server import BrokerServer
from twinbus.client.connection import MACHINE
from twinbus.client.in_flight import Wire
from twinbus.client.links import UpstreamConnection
from twinbus.client.receiving import SESSION_FILTER
from twinbus.client.request_node import RequestRefused
from twinbus.gateway import relay
from twinbus.gateway.node_requests import UNANSWERED_MAX
from twinbus.gateway.primary_connections import PrimaryConnections
from twinbus.gateway.relay import SETTLING_BYTES, PrimaryRelay, Relayed
from twinbus.gateway.relayed_links import (
    WINDOW,
    WINDOW_BYTES,
    RelayedReceiver,
    RelayedReplies,
    RelayedRequests,
)
from twinbus.gateway.sending import UNKNOWN_LIMIT_BYTES, GatewaySendingLink, PendingSends
from twinbus.gateway.server import GatewayLinks
from twinbus.namespace.namespace import Namespace
from twinbus.servicebus.failures import FailureMeaning
from twinbus.servicebus.names import BATCH_ALLOWANCE

pytestmark = pytest.mark.virtual_time

ADDRESS = "orders/$management"


class World:
    """A client's session and one of the primary, without a network between them."""

    def __init__(
        self,
        spawn: Callable[[Coroutine[None, None, None]], None] = lambda work: work.close(),
        links: Budget | None = None,
    ) -> None:
        self.output = FrameOutput()
        self.here = Session(self.output, 0)
        self.there = Session(FrameOutput(), 0)
        self.client: Any = SimpleNamespace(
            takes_more=True,
            touch=lambda: None,
            budgets=ClientBudgets(ProcessBudgets()),
            replies=ReplyLinks(),
            grants=SimpleNamespace(require=lambda *_: 0),
        )
        self.relay = PrimaryRelay(cast("Any", None), self.client, spawn, links=links)

    def requests(self) -> RelayedRequests:
        """A link for requests, and one of the primary without credit behind it."""
        link, nothing = self.receiving(self.here), cast("Any", None)
        requests = RelayedRequests(nothing, self.relay, link, ADDRESS)
        requests.up = self.sending(self.there)
        return requests

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
        next_incoming_id=UInt(session.next_outgoing_id),
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
    world.output.take()
    receiver.handle(Attached(up))
    answer, _ = decode_performative(world.output.take()[8:])
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
    world.here.remote_incoming_window = 1_000_000
    link, up = world.sending(world.here), world.receiving(world.there)
    receiver = RelayedReceiver(world.relay, link, "orders", 0)
    receiver.up, link.credit = up, WINDOW
    for size in (1, WINDOW_BYTES // 4):
        up.count_incoming(1)
        receiver.handle(DeliveryArrived(up, 0, b"tag", 0, True, bytes(size)))
        await asyncio.sleep(0)
        assert up.credit == (WINDOW - 1 if size == 1 else 4)


async def test_answers_that_a_client_does_not_read_are_let_go_with_their_link() -> None:
    """The client may open another link and do the same again."""
    world = World()
    link, up = world.sending(world.here), world.receiving(world.there)
    replies = RelayedReplies(world.relay, link, ADDRESS)
    replies.up = up
    world.relay.begin(replies)
    for number in range(REPLIES_MAX + 1):
        replies.handle(DeliveryArrived(up, number, b"tag", 0, True, b"answer"))
    assert link.state is LinkState.CLOSED
    assert (world.relay.relayed, up.state) == (set(), LinkState.CLOSED)


async def test_requests_that_are_under_way_together_have_tags_of_their_own() -> None:
    world = World()
    requests = RelayedRequests(cast("Any", None), world.relay, world.receiving(world.here), ADDRESS)
    requests.up = up = world.sending(world.there)
    for here in range(3):
        requests.taking = here
        requests.forward(Sections(), 0)
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
    before_bytes = world.output.size_bytes
    world.relay.on_event(Disposed(world.there, False, 7, 7, True, Accepted()))
    assert world.output.size_bytes == before_bytes


async def test_a_node_is_forgotten_with_its_last_link_though_the_client_has_others() -> None:
    """A client may open a node with a session of its own for every message that it sends."""
    world = World()
    for number in range(3):
        session = Session(FrameOutput(), number)
        replies = RelayedReplies(world.relay, world.sending(session), ADDRESS)
        world.relay.begin(replies)
        world.relay.nodes[session, "orders"] = world.there
        if number:
            replies.close(0)
    assert len(world.relay.nodes) == 1


async def test_the_bytes_of_requests_that_wait_for_the_primary_are_those_of_their_connection() -> (
    None
):
    """A client may have thousands of links."""
    world = World()
    held = world.client.budgets.held_bytes
    links = [world.requests() for _ in range(3)]
    large = Sections(body=bytes(CONNECTION_BYTES // 3))
    for requests in links[:2]:
        assert requests.forward(large, 0) is None
    with pytest.raises(QuotaExceeded, match="this connection has more than"):
        links[2].forward(large, 0)
    assert held.used > CONNECTION_BYTES * 2 // 3
    up = links[0].up
    assert up is not None
    up.credit = 10
    links[0].handle(CreditChanged(up))
    assert links[2].forward(large, 0) is None
    for requests in links:
        requests.close(0)
    assert held.used == 0


async def test_a_request_to_a_node_may_be_as_large_as_at_a_broker() -> None:
    world = World()
    requests = world.requests()
    requests.link.state = LinkState.OFFERED
    requests.attach()
    assert requests.link.limit_bytes == REQUEST_BYTES_MAX


async def test_a_request_too_many_is_refused_and_not_sent() -> None:
    world = World()
    requests = world.requests()
    up = requests.up
    assert up is not None
    for number in range(UNANSWERED_MAX + 1):
        request = split(encode_message(properties=Properties(message_id=f"{number}")))
        up.credit = 1
        if number < UNANSWERED_MAX:
            requests.forward(request, 0)
        else:
            with pytest.raises(QuotaExceeded, match="have no answer from the primary"):
                requests.forward(request, 0)
    assert up.delivery_count == UNANSWERED_MAX
    world.relay.unanswered.close()
    requests.close(0)
    assert world.client.budgets.held_bytes.used == 0


async def test_links_count_until_the_primary_has_closed_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client may attach and detach without end while the primary hangs."""
    monkeypatch.setattr(relay, "CONNECTION_LINKS", 2)
    whole = Budget("this gateway", "links")
    works: list[Coroutine[None, None, None]] = []
    world = World(spawn=works.append, links=whole)
    first, second, third = (
        RelayedReceiver(world.relay, world.sending(world.here), "orders", 0) for _ in range(3)
    )
    for receiver in (first, second):
        world.relay.begin(receiver)
        receiver.close(0)
    with pytest.raises(QuotaExceeded, match="has more than 2 links that are open, or being"):
        world.relay.begin(third)
    assert whole.used == 2
    first.up = up = world.receiving(world.there)
    up.owner = first
    works[1].close()
    await asyncio.gather(works[0], return_exceptions=True)
    assert whole.used == 2
    world.relay.on_event(DetachAnswered(up))
    assert whole.used == 1
    world.relay.begin(third)
    works[2].close()


async def test_settlements_count_until_they_are_confirmed_or_their_link_is_gone() -> None:
    world = World()
    held = world.client.budgets.held_bytes
    link, up = world.sending(world.here), world.receiving(world.there)
    receiver = RelayedReceiver(world.relay, link, "orders", 0)
    receiver.up, up.owner, link.credit = up, receiver, 10
    for number in range(4):
        receiver.handle(DeliveryArrived(up, number, b"tag", 0, False, b"x"))
    receiver.settle([0, 1], Disposed(world.here, True, 0, 1, False, Accepted()))
    transacted = TransactionalState(b"t", Accepted())
    receiver.settle_in([2], Disposed(world.here, True, 2, 2, False, transacted), transacted)
    receiver.settle([2], Disposed(world.here, True, 2, 2, False, Accepted()))
    assert held.used == 3 * SETTLING_BYTES
    world.relay.on_event(Disposed(world.there, False, 0, 0, True, Accepted()))
    assert held.used == 2 * SETTLING_BYTES
    receiver.close(0)
    world.relay.on_event(DetachAnswered(up))
    assert held.used == 0
    world.relay.on_event(Disposed(world.there, False, 1, 1, True, Accepted()))


def test_a_transaction_that_cannot_be_is_not_remembered() -> None:
    world = World()
    world.relay.doom(bytes(32), "it was refused")
    world.relay.doom(bytes(ID_BYTES_MAX + 1), "it was refused")
    assert list(world.relay.doomed) == [bytes(32)]


async def test_tokens_of_entities_without_links_are_renewed_for_the_latest_ones_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client may attach to any number of names, and each has a token with a timer."""
    monkeypatch.setattr(relay, "IDLE_PATHS_MAX", 2)
    world = World()
    forgotten: list[str] = []
    world.relay._connection = cast("Any", SimpleNamespace(forget_token=forgotten.append, flush=int))
    kept = RelayedReceiver(world.relay, world.sending(world.here), "kept", 0)
    world.relay.begin(kept)
    for number in (0, 1, 2, 0, 3):
        receiver = RelayedReceiver(world.relay, world.sending(world.here), f"q{number}", 0)
        receiver.up = up = world.receiving(world.there)
        up.owner = receiver
        world.relay.begin(receiver)
        receiver.close(0)
        world.relay.on_event(DetachAnswered(up))
    assert forgotten == ["q0", "q1", "q2"]


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
    begun: list[Coroutine[None, None, None]] = []
    relay = NoToken(cast("Any", None), world.client, begun.append)
    relay.meaning = meaning
    link = world.sending(world.here)
    link.state = LinkState.OFFERED
    world.client.detach = lambda link, refusal: link.refuse(refusal.condition, "")
    replies = RelayedReplies(relay, link, ADDRESS)
    relay.begin(replies)
    await begun[0]
    assert (link.state is LinkState.OPEN) == is_open


PAIRS = pairs([*RECEIVING, *LAST])
EARLY = early(EARLY_RECEIVING)


@pytest.mark.parametrize("pair", PAIRS, ids=[f"{a.__name__}-{b.__name__}" for a, b in PAIRS])
async def test_two_frames_in_one_read_do_what_they_do_in_two(
    pair: tuple[Action, Action], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = []
    for is_one_read in (True, False):
        primary = new_namespace()
        gateway = JoinedGateway(primary, monkeypatch)
        world = OneClient(primary, gateway, sends=False)
        outcomes.append(await outcome_of(world, pair, is_one_read=is_one_read))
        await gateway.close(world)
        await primary.close()
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("end", [OneClient.detach_receiver, *LAST])
async def test_settlements_right_before_the_end_of_their_link_count(
    end: Action, monkeypatch: pytest.MonkeyPatch
) -> None:
    primary = new_namespace()
    gateway = JoinedGateway(primary, monkeypatch)
    world = OneClient(primary, gateway, sends=False)
    actions = (OneClient.accept, OneClient.release, OneClient.abandon, end)
    await outcome_of(world, actions, is_one_read=True)
    left = facts(world.queue, primary.now_ms())
    assert [(number, count) for number, _, _, count in left] == [(2, 0), (3, 1)]
    assert len(world.queue.states.locks) == 0
    await gateway.close(world)
    await primary.close()


async def test_a_lost_session_lock_detaches_the_client_of_the_gateway_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    primary = new_namespace()
    gateway = JoinedGateway(primary, monkeypatch)
    description = QueueDescription(requires_session=True)
    primary.namespace.create_queue("talks", description, primary.now_ms())
    client = JoinedClient(gateway)
    await client.exchange(5 * TICKS)
    session = client.connection.begin()
    await client.exchange(5 * TICKS)
    source = Source(address="talks", filter={SESSION_FILTER: "s"})
    session.attach_receiver("in", source=source, target=Target(address="me"))
    assert not [e for e in await client.exchange(5 * TICKS) if isinstance(e, Detached)]
    primary.namespace.run_timers(primary.now_ms() + 60_000)
    (ended,) = [e for e in await client.exchange(5 * TICKS) if isinstance(e, Detached)]
    assert ended.error is not None
    assert ended.error.condition == "com.microsoft:session-lock-lost"
    client.peer.connection_lost(None)
    await asyncio.sleep(0.1)
    await primary.close()


@pytest.mark.parametrize("end", ["detach", "end", "close"])
async def test_our_own_client_hears_an_acceptance_right_before_the_end_of_its_link(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would send the same message again."""
    primary = new_namespace()
    queue = primary.namespace.create_queue("orders", QueueDescription(), primary.now_ms())
    ends = join(primary, monkeypatch)
    upstream = UpstreamConnection(Namespace.from_connection_string(PRIMARY), 60.0)
    pool = upstream.pool("orders")
    await pool.open()
    ((peer, wire),) = ends
    wire.is_held = True
    answers: list[Exception | None] = []
    pool.send(Wire(BODY, 0), answers.append)
    await asyncio.sleep(0.01)
    (link,) = peer.links_on("orders")
    match end:
        case "detach":
            peer.detach(link, EntityNotFound.of("orders", "it was deleted"))
        case "end":
            peer.connection.end_session(link.session)
            peer.touch()
        case _:
            peer.expel("amqp:connection:forced", "the broker is shutting down")
    await asyncio.sleep(0.01)
    assert answers == []
    wire.release()
    await asyncio.sleep(0.01)
    assert answers == [None]
    assert len(facts(queue, primary.now_ms())) == 1
    await upstream.close()
    await primary.close()


@pytest.mark.parametrize("actions", EARLY, ids=["-".join(a.__name__ for a in e) for e in EARLY])
async def test_frames_before_the_answer_are_kept(
    actions: tuple[Action, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    primary = new_namespace()
    gateway = JoinedGateway(primary, monkeypatch)
    world = OneClient(primary, gateway, sends=False)
    await check_before_the_answer(world, actions)
    await gateway.close(world)
    await primary.close()


@pytest.mark.parametrize("said_bytes", [None, 1, 262_144, MAX_MESSAGE_BYTES, (1 << 64) - 1])
async def test_a_sender_is_told_no_larger_message_than_the_gateway_keeps(
    said_bytes: int | None,
) -> None:
    link = ReceiverLink(Session(FrameOutput(), 0), "out", 0)
    entity = SimpleNamespace(on_change=lambda _: None, failover=SimpleNamespace(route=None))
    target: Any = SimpleNamespace(entity=entity)
    pool: Any = SimpleNamespace(limit_bytes=said_bytes, users=0)
    client: Any = SimpleNamespace(touch=int, budgets=ClientBudgets(ProcessBudgets()))
    nothing: Any = None
    pending: Any = SimpleNamespace(share_of=lambda _: None)
    GatewaySendingLink(pending, client, link, "orders", target, pool, 0, nothing).attach()
    most_bytes = MAX_MESSAGE_BYTES if said_bytes is not None else UNKNOWN_LIMIT_BYTES
    assert link.limit_bytes - BATCH_ALLOWANCE == min(said_bytes or most_bytes, most_bytes)


class JoinedGateway:
    """The gateway's part for receivers; it sends nothing."""

    def __init__(self, primary: BrokerServer, monkeypatch: pytest.MonkeyPatch) -> None:
        join(primary, monkeypatch)
        self.front = new_server()
        recorder = SimpleNamespace(is_on=False)
        policy = SimpleNamespace(attempt_timeout_s=5.0)
        state = SimpleNamespace(
            primary=PRIMARY, environment=MACHINE, recorder=recorder, policy=policy
        )
        paired: Any = SimpleNamespace(state=state)
        self.pending = PendingSends("gateway", 5.0)
        context: Any = self.front
        self._links = GatewayLinks(context, paired, PrimaryConnections(no_connection), self.pending)

    def peer(self) -> Peer:
        return Peer(self.front, self._links)

    async def close(self, world: OneClient) -> None:
        """End the client's connection, and the one to the primary with it."""
        world.client.peer.connection_lost(None)
        await asyncio.gather(*self.pending.calls)
        await self.front.close()
