"""Receiving links: settlement in groups, each way in which it ends, credit, drain and close."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tests.unit.gateway.joined_namespaces import PRIMARY, join, new_namespace
from twinbus.amqp.events import (
    Attached,
    DeliveryArrived,
    DetachAnswered,
    Detached,
    Disposed,
    Drained,
    FlowArrived,
)
from twinbus.amqp.frames import FrameOutput
from twinbus.amqp.link import LinkState, ReceiverLink
from twinbus.amqp.message import encode_message
from twinbus.amqp.performatives import Accepted, Error, Modified, Rejected, Released, Source
from twinbus.amqp.session import Session
from twinbus.amqp.types import Described, Symbol
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.refusals import ServerBusy
from twinbus.client.in_flight import Wire
from twinbus.client.links import UpstreamConnection
from twinbus.client.outcomes import COMPLETE, RELEASE, abandon, dead_letter, defer
from twinbus.client.receiving import (
    NEXT_SESSION,
    SESSION_FILTER,
    SESSION_LOCKED_UNTIL,
    Delivery,
    ReceivingLink,
)
from twinbus.client.request_node import (
    ConnectionLost,
    LinkEnded,
    LockLost,
    RequestRefused,
    SettlementRefused,
)
from twinbus.client.settling import NOT_SENT
from twinbus.namespace.namespace import Namespace
from twinbus.servicebus import conditions
from twinbus.servicebus.failures import MISSING_STATUS
from twinbus.servicebus.names import EPOCH_TICKS

NAMESPACE = Namespace.from_connection_string(PRIMARY)
TAG = UUID(int=7).bytes_le
ANSWER_S = 60.0


class WatchedSession(Session):
    """A session that notes what its links settle and grant."""

    def __init__(self) -> None:
        super().__init__(FrameOutput(), 0)
        self.disposed: list[tuple[int, int, bytes]] = []
        self.granted: list[tuple[int | None, bool]] = []

    def dispose(self, first: int, last: int, state: bytes) -> None:
        self.disposed.append((first, last, state))

    def write_flow(self, **flow: Any) -> None:
        self.granted.append((flow.get("link_credit"), flow.get("drain", False)))


class World:
    """A link whose attach was answered, on a connection without a socket."""

    def __init__(
        self,
        beside: World | None = None,
        answer_s: float = ANSWER_S,
        upstream: UpstreamConnection | None = None,
        **options: Any,
    ) -> None:
        """`beside`: on the connection and the AMQP session of another link."""
        self.upstream: UpstreamConnection
        self.session: WatchedSession
        if beside is None:
            self.upstream = upstream or UpstreamConnection(NAMESPACE, answer_s)
            self.session = WatchedSession()
        else:
            self.upstream, self.session = beside.upstream, beside.session
        self.arrived: list[Delivery] = []
        self.ended: list[Exception] = []
        self.link = ReceivingLink(
            self.upstream,
            "orders",
            on_deliveries=self.arrived.extend,
            on_ended=lambda _, error: self.ended.append(error),
            **options,
        )
        self.upstream.add(self.link)
        self.link._attach(self.session, 10.0)
        assert self.link._link is not None
        self.amqp: ReceiverLink = self.link._link
        self.answers: list[Exception | None] = []

    def answer(self, filters: Any = None, properties: Any = None) -> None:
        """Answer the attach."""
        self.amqp.state = LinkState.OPEN
        self.amqp.source = Source(address="orders", filter=filters)
        self.amqp.properties = properties or {}
        self.upstream._on_event(Attached(self.amqp))

    def deliver(self, *numbers: int, settled: bool = False) -> list[Delivery]:
        """Bring these in one read."""
        before = len(self.arrived)
        self.amqp.count_incoming(len(numbers))
        self.upstream._on_deliveries(
            [DeliveryArrived(self.amqp, number, TAG, 0, settled, b"m") for number in numbers]
        )
        return self.arrived[before:]

    def settle(self, *deliveries: Delivery, outcome: Any = COMPLETE) -> None:
        for delivery in deliveries:
            self.link.settle(delivery, outcome, self.answers.append)

    def confirm(self, first: int, last: int, state: Any = None) -> None:
        event = Disposed(self.session, False, first, last, True, state or Accepted())
        self.upstream._on_event(event)

    def detach(self, condition: str = conditions.DETACH_FORCED) -> None:
        self.amqp.state = LinkState.CLOSED
        error = Error(condition=condition, description="closed")
        self.upstream._on_event(Detached(self.amqp, error, True))


def opened(**options: Any) -> World:
    world = World(**options)
    world.answer()
    world.link.grant(100)
    return world


def error_of(condition: str) -> Rejected:
    return Rejected(error=Error(condition=condition, description="no"))


async def test_a_delivery_has_what_came_and_its_lock_token() -> None:
    world = opened()
    (delivery,) = world.deliver(3)
    assert (delivery.link, delivery.number, delivery.data) == (world.link, 3, b"m")
    assert (delivery.tag, delivery.lock_token) == (TAG, UUID(int=7))
    (deleted,) = world.deliver(4, settled=True)
    assert (deleted.settled, deleted.lock_token) == (True, None)
    short = Delivery(world.link, 5, b"short", b"m", settled=False)
    assert short.lock_token is None


async def test_the_deliveries_of_one_read_are_handed_on_together() -> None:
    world = opened()
    runs: list[list[int]] = []
    world.link._on_deliveries = lambda run: runs.append([one.number for one in run])
    world.deliver(1, 2, 3)
    world.deliver(4)
    assert runs == [[1, 2, 3], [4]]


async def test_a_settlement_that_is_alone_leaves_at_once_and_those_of_one_turn_as_ranges() -> None:
    world = opened()
    one, two, three, four, six, seven, nine = world.deliver(1, 2, 3, 4, 6, 7, 9)
    completed, released = COMPLETE.state, RELEASE.state
    world.settle(nine)
    assert world.session.disposed == [(9, 9, completed)]
    world.settle(two, one, four, seven)
    world.settle(three, six, outcome=RELEASE)
    assert len(world.session.disposed) == 1, "they wait for the end of the turn"
    await asyncio.sleep(0)
    assert world.session.disposed[1:] == [
        (1, 2, completed),
        (4, 4, completed),
        (7, 7, completed),
        (3, 3, released),
        (6, 6, released),
    ]
    world.confirm(1, 9)
    assert world.answers == [None] * 7
    (eleven,) = world.deliver(11)
    world.settle(eleven)
    assert world.session.disposed[-1] == (11, 11, completed), "it is alone again"


async def test_a_settlement_on_a_connection_that_was_just_lost_is_not_sent() -> None:
    world = opened()
    lost = asyncio.get_running_loop().create_future()
    gone: Any = SimpleNamespace(lost=lost, flush=lambda: None, forget_token=lambda _: None)
    world.upstream._connection = gone
    lost.set_result("gone")
    (delivery,) = world.deliver(1)
    world.settle(delivery)
    world.upstream._incoming.lost("gone")
    assert [type(answer) for answer in world.answers] == [LinkEnded]
    assert (world.session.disposed, delivery.ends_at) == ([], NOT_SENT)


async def test_a_settlement_ends_once_with_what_the_service_says() -> None:
    world = opened()
    world.settle(*world.deliver(1, 2, 3, 4, 5, 6))
    await asyncio.sleep(0)
    world.confirm(1, 1)
    world.confirm(1, 1)
    world.confirm(2, 2, error_of(conditions.MESSAGE_LOCK_LOST))
    world.confirm(3, 3, error_of(conditions.NOT_FOUND))
    world.confirm(4, 4, error_of(conditions.SERVER_BUSY))
    world.confirm(5, 5, Released())
    world.confirm(9, 12)
    kinds = [type(answer) for answer in world.answers]
    assert kinds == [type(None), LockLost, LockLost, SettlementRefused, SettlementRefused]
    told = [getattr(answer, "condition", None) for answer in world.answers]
    lost = conditions.MESSAGE_LOCK_LOST
    assert told == [None, lost, lost, conditions.SERVER_BUSY, ""]
    world.upstream._on_event(Disposed(world.session, False, 6, 6, False, None))
    assert len(world.answers) == 5, "no state, and not settled: no answer"
    world.upstream._on_event(Disposed(world.session, False, 6, 6, True, None))
    assert world.answers[5] is None


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (abandon(), Modified(delivery_failed=True)),
        (abandon({"n": 1}), Modified(delivery_failed=True)),
        (defer(), Modified(undeliverable_here=True)),
        (dead_letter("why", "how"), Rejected()),
        (dead_letter(), error_of(conditions.DEAD_LETTER)),
        (RELEASE, Released()),
    ],
)
async def test_the_echo_of_an_outcome_confirms_it(outcome: Any, state: Any) -> None:
    world = opened()
    world.settle(*world.deliver(1), outcome=outcome)
    await asyncio.sleep(0)
    world.confirm(1, 1, state)
    assert world.answers == [None]


async def test_the_lock_of_a_session_is_lost_as_that_of_a_session() -> None:
    world = World(session="s")
    world.answer({SESSION_FILTER: "s"})
    world.link.grant(1)
    world.settle(*world.deliver(1))
    await asyncio.sleep(0)
    world.confirm(1, 1, error_of(conditions.NOT_FOUND))
    (answer,) = world.answers
    assert isinstance(answer, LockLost)
    assert answer.condition == conditions.SESSION_LOCK_LOST


async def test_links_that_share_a_session_get_their_own_answers() -> None:
    one = opened()
    other = World(beside=one)
    other.answer()
    other.link.grant(10)
    one.settle(*one.deliver(1, 3))
    other.settle(*other.deliver(2, 4))
    await asyncio.sleep(0)
    one.confirm(1, 2)
    assert (one.answers, other.answers) == ([None], [None])
    other.detach()
    assert isinstance(other.answers[1], LinkEnded)
    one.confirm(1, 9)
    assert (one.answers, len(other.answers)) == ([None, None], 2)


@pytest.mark.virtual_time
async def test_a_settlement_without_an_answer_ends_in_time_and_a_late_answer_is_ignored() -> None:
    world = opened(answer_s=5.0)
    dropped: list[str] = []
    world.upstream.drop = dropped.append  # type: ignore[method-assign, assignment]
    one, two = world.deliver(1, 2)
    world.settle(one)
    await asyncio.sleep(3)
    world.settle(two)
    world.upstream.heard_at = asyncio.get_running_loop().time()
    await asyncio.sleep(2.5)
    assert [type(answer) for answer in world.answers] == [TimeoutError]
    assert dropped == [], "the namespace sent other frames meanwhile"
    await asyncio.sleep(3)
    assert [type(answer) for answer in world.answers] == [TimeoutError] * 2
    assert dropped == ["it sent nothing for 5 s"]
    world.confirm(1, 2)
    assert len(world.answers) == 2
    assert world.ended == []


@pytest.mark.parametrize("end", ["detach", "lost"])
async def test_the_end_of_a_link_ends_each_settlement_once_and_then_tells_its_owner(
    end: str,
) -> None:
    world = opened()
    one, two, three = world.deliver(1, 2, 3)
    order: list[str] = []
    world.link.settle(one, COMPLETE, lambda _: order.append("done"))
    await asyncio.sleep(0)
    world.link.settle(two, COMPLETE, lambda _: order.append("done"))
    world.link._on_ended = lambda _, error: order.append(type(error).__name__)
    if end == "detach":
        world.detach()
    else:
        world.upstream._incoming.lost("gone")
    name = {"detach": "LinkEnded", "lost": "ConnectionLost"}[end]
    assert order == ["done", "done", name]
    assert not world.link.is_open
    world.upstream._incoming.lost("gone")
    world.confirm(1, 3)
    world.settle(three)
    assert [type(answer) for answer in world.answers] == [LinkEnded]
    await asyncio.sleep(0)
    assert order == ["done", "done", name]
    assert world.session.disposed == [(1, 1, COMPLETE.state)], "nothing is written afterwards"
    world.link.grant(5)
    assert await world.link.drain(1.0) is False


async def test_a_detach_says_its_condition() -> None:
    world = opened()
    world.settle(*world.deliver(1))
    await asyncio.sleep(0)
    world.detach(conditions.ENTITY_DISABLED)
    (answer,) = world.answers
    assert isinstance(answer, LinkEnded)
    assert (answer.condition, answer.may_be_stored) == (conditions.ENTITY_DISABLED, True)
    (error,) = world.ended
    assert isinstance(error, LinkEnded)
    assert (str(error), error.condition) == ("closed", conditions.ENTITY_DISABLED)


async def test_a_peer_that_ignores_the_credit_loses_its_link() -> None:
    """Memory must not depend on the peer."""
    world = World()
    world.answer()
    world.link.grant(2)
    world.deliver(1, 2, 3, 4)
    assert len(world.arrived) == 4, "some may have been on their way when credit was taken back"
    world.deliver(5)
    (error,) = world.ended
    assert isinstance(error, LinkEnded)
    assert error.condition == conditions.TRANSFER_LIMIT
    assert len(world.arrived) == 4


async def test_credit_is_what_may_still_come() -> None:
    world = World()
    assert world.link.credit == 0
    world.answer()
    world.link.grant(10)
    world.deliver(1, 2, 3)
    assert world.link.credit == 7
    world.link.grant(10)
    assert (world.link.credit, world.session.granted) == (10, [(10, False), (10, False)])


@pytest.mark.virtual_time
async def test_a_drain_ends_with_the_answer_or_without_one() -> None:
    world = opened()
    drain = asyncio.create_task(world.link.drain(5.0))
    await asyncio.sleep(1)
    assert world.session.granted[-1] == (0, True)
    world.upstream._on_event(Drained(world.amqp))
    assert await drain is True
    assert await world.link.drain(5.0) is False
    waits = asyncio.create_task(world.link.drain(5.0))
    await asyncio.sleep(1)
    world.link.grant(5)
    assert await waits is False
    check = asyncio.create_task(world.link.drain(5.0, credit=5))
    await asyncio.sleep(1)
    assert world.session.granted[-1] == (5, True)
    assert [one.number for one in world.deliver(9)] == [9], "what the entity had comes first"
    world.upstream._on_event(Drained(world.amqp))
    assert await check is True


@pytest.mark.virtual_time
async def test_a_drain_with_credit_ends_with_its_last_delivery_or_with_the_answer() -> None:
    """A service need not answer a drain whose credit is all used."""
    world = opened()
    drain = asyncio.create_task(world.link.drain(5.0, 2))
    await asyncio.sleep(1)
    assert world.session.granted[-1] == (2, True)
    world.deliver(1)
    await asyncio.sleep(1)
    assert not drain.done()
    world.deliver(2)
    assert await drain is True
    assert len(world.arrived) == 2
    drain = asyncio.create_task(world.link.drain(5.0, 2))
    await asyncio.sleep(1)
    world.deliver(3)
    world.upstream._on_event(Drained(world.amqp))
    assert await drain is True


@pytest.mark.virtual_time
async def test_a_link_knows_when_it_was_last_heard() -> None:
    world, loop = opened(), asyncio.get_running_loop()
    heard = [world.link.heard_at]
    await asyncio.sleep(1)
    world.deliver(1)
    heard.append(world.link.heard_at)
    await asyncio.sleep(1)
    world.upstream._on_event(FlowArrived(world.amqp))
    heard.append(world.link.heard_at)
    assert heard == [loop.time() - 2, loop.time() - 1, loop.time()]


# Sessions


@pytest.mark.parametrize("answered", ["s-1", Described(Symbol("x"), "s-1")])
async def test_a_link_says_which_session_it_got_and_until_when(answered: object) -> None:
    world = World(session=NEXT_SESSION)
    until = datetime(2026, 11, 18, 12, tzinfo=UTC)
    ticks = int(until.timestamp()) * 10_000_000 + EPOCH_TICKS
    world.answer({SESSION_FILTER: answered}, {SESSION_LOCKED_UNTIL: ticks})
    assert (world.link.session_id, world.link.session_locked_until) == ("s-1", until)
    assert world.link.is_open


@pytest.mark.parametrize("answered", [None, {SESSION_FILTER: None}, {SESSION_FILTER: 7}])
async def test_a_service_that_names_no_session_is_not_believed(answered: Any) -> None:
    world = World(session=NEXT_SESSION)
    world.answer(answered)
    with pytest.raises(LinkEnded, match="which session"):
        await world.link._opened
    assert not world.link.is_open


@pytest.mark.parametrize("ticks", [None, "x", -1, 2**62])
async def test_a_time_that_no_calendar_has_is_unknown(ticks: object) -> None:
    world = World(session="s")
    world.answer({SESSION_FILTER: "s"}, {SESSION_LOCKED_UNTIL: ticks})
    assert world.link.is_open
    assert world.link.session_locked_until is None


# Closing


@pytest.mark.virtual_time
async def test_a_close_drains_releases_waits_and_detaches() -> None:
    world = opened()
    one, two, three = world.deliver(1, 2, 3)
    world.settle(one)
    world.link.release_all([one, two, three])
    close = asyncio.create_task(world.link.close(10.0))
    await asyncio.sleep(0.1)
    assert world.session.granted[-1] == (0, True)
    assert world.deliver(4) == [], "what comes now is released"
    await asyncio.sleep(0.1)
    completed, released = COMPLETE.state, RELEASE.state
    assert world.session.disposed == [(1, 1, completed), (2, 3, released), (4, 4, released)]
    world.upstream._on_event(Drained(world.amqp))
    await asyncio.sleep(0.1)
    assert world.link.is_open, "settlements are not confirmed yet"
    world.confirm(1, 1)
    world.confirm(2, 4, Released())
    await asyncio.sleep(0.1)
    assert (world.amqp.state, close.done()) == (LinkState.CLOSED, False)
    world.upstream._on_event(DetachAnswered(world.amqp))
    await close
    assert (world.answers, world.ended) == ([None], [])
    await world.link.close(10.0)


@pytest.mark.virtual_time
async def test_a_close_without_answers_ends_in_time_and_ends_every_settlement() -> None:
    world, loop = opened(), asyncio.get_running_loop()
    world.settle(*world.deliver(1))
    began = loop.time()
    await world.link.close(5.0)
    assert loop.time() - began == pytest.approx(5.0)
    assert [type(answer) for answer in world.answers] == [LinkEnded]
    assert (world.amqp.state, world.ended) == (LinkState.CLOSED, [])


@pytest.mark.virtual_time
async def test_a_close_ends_with_its_connection() -> None:
    world, loop = opened(), asyncio.get_running_loop()
    began = loop.time()
    close = asyncio.create_task(world.link.close(60.0))
    await asyncio.sleep(0.1)
    world.upstream._incoming.lost("gone")
    await close
    assert loop.time() - began < 1
    assert world.ended == []


@pytest.mark.virtual_time
async def test_a_message_that_is_deleted_at_the_service_is_handed_out_while_closing() -> None:
    """Nothing else has it any more."""
    world = opened(receive_and_delete=True)
    close = asyncio.create_task(world.link.close(1.0))
    await asyncio.sleep(0.1)
    (delivery,) = world.deliver(1, settled=True)
    assert delivery.data == b"m"
    await close


# With a broker in memory


class Joined:
    """A broker in memory with a queue, and a connection to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.server = new_namespace()
        self.queue = self.server.namespace.create_queue(
            "orders", QueueDescription(**settings), self.server.now_ms()
        )
        self.ends = join(self.server, monkeypatch)
        self.upstream = UpstreamConnection(NAMESPACE, 10.0)
        self.arrived: list[Delivery] = []
        self.ended: list[Exception] = []

    def link(self, **options: Any) -> ReceivingLink:
        return ReceivingLink(
            self.upstream,
            "orders",
            on_deliveries=self.arrived.extend,
            on_ended=lambda _, error: self.ended.append(error),
            **options,
        )

    async def send(self, count: int) -> None:
        pool = self.upstream.pool("orders")
        await pool.open()
        for _ in range(count):
            await pool.send_messages(Wire(encode_message(data=b"x"), 0))

    async def close(self) -> None:
        await self.upstream.close()
        await self.server.close()


@pytest.mark.virtual_time
@pytest.mark.parametrize("end", ["detach", "end", "close", "cut"])
async def test_every_end_of_a_link_is_told_once(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Joined(monkeypatch)
    await world.send(3)
    link = world.link()
    await link.open(5.0)
    link.grant(10)
    await asyncio.sleep(0.1)
    ((peer, wire),) = world.ends
    (far,) = [one for one in peer.links_on("orders") if one.name == link.name]
    wire.is_held = True
    answers: list[Exception | None] = []
    for delivery in world.arrived[:2]:
        link.settle(delivery, COMPLETE, answers.append)
    match end:
        case "detach":
            peer.detach(far, ServerBusy("detached for idleness"))
        case "end":
            peer.connection.end_session(far.session)
            peer.touch()
        case "close":
            peer.expel("amqp:connection:forced", "the broker is shutting down")
        case _:
            wire.written = b""
            wire.close()
    await asyncio.sleep(0.1)
    wire.release()
    await asyncio.sleep(0.1)
    link.settle(world.arrived[2], COMPLETE, answers.append)
    kinds = [type(answer).__name__ for answer in answers]
    assert kinds == ["LinkEnded"] * 3
    assert [type(error) for error in world.ended] == [
        LinkEnded if end == "detach" else ConnectionLost
    ]
    await world.close()
    assert len(world.ended) == 1


@pytest.mark.virtual_time
async def test_a_refused_attach_raises_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Joined(monkeypatch)
    link = world.link(session="none has this queue")
    with pytest.raises(LinkEnded, match="has no sessions") as caught:
        await link.open(5.0)
    assert caught.value.condition == conditions.NOT_ALLOWED
    assert (link.is_open, world.ended) == (False, [])
    assert not world.upstream._incoming.uses("orders")
    world.server.namespace.delete("orders", world.server.now_ms())
    with pytest.raises(RequestRefused) as refused:
        await world.link().open(5.0)
    assert refused.value.status == MISSING_STATUS
    await world.close()


@pytest.mark.virtual_time
async def test_an_opening_that_is_given_up_holds_no_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Joined(monkeypatch, requires_session=True)
    link = world.link(session=NEXT_SESSION)
    opening = asyncio.create_task(link.open(60.0))
    await asyncio.sleep(1)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await asyncio.sleep(0.1)
    ((peer, _),) = world.ends
    assert [one for one in peer.links_on("orders") if one.name == link.name] == []
    assert world.ended == []
    await world.close()


@pytest.mark.virtual_time
async def test_the_service_gets_less_time_for_a_session_than_the_caller_gave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Joined(monkeypatch, requires_session=True)
    loop = asyncio.get_running_loop()
    link = world.link(session=NEXT_SESSION, client_id="worker-1")
    began = loop.time()
    with pytest.raises(LinkEnded) as caught:
        await link.open(4.0)
    assert caught.value.condition == conditions.TIMEOUT
    assert 3.5 < loop.time() - began < 4.0
    await world.close()


@pytest.mark.virtual_time
async def test_a_token_is_renewed_while_any_link_to_the_entity_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Joined(monkeypatch)
    one, other = world.link(), world.link()
    await one.open(5.0)
    await other.open(5.0)
    connection = await world.upstream.opened()
    await one.close(5.0)
    assert "orders" in connection._authorized
    await other.close(5.0)
    assert "orders" not in connection._authorized
    await world.close()


@pytest.mark.virtual_time
async def test_a_lost_connection_is_no_loss_for_a_link_that_waits_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Joined(monkeypatch)
    await world.send(1)
    link = world.link()
    world.upstream.add(link)
    ((_, wire),) = world.ends
    wire.close()
    await asyncio.sleep(1)
    await link.open(5.0)
    link.grant(1)
    await asyncio.sleep(0.1)
    assert (len(world.arrived), world.ended) == (1, [])
    await world.close()
