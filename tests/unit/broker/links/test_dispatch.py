"""Turns of receivers: one message costs few steps, however many receivers are open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.unit.broker.links.joined import JoinedClient, new_server, ticks_of
from twinbus.amqp.events import DeliveryArrived, Drained
from twinbus.amqp.link import ReceiverLink
from twinbus.amqp.message import Properties, encode_message
from twinbus.amqp.performatives import Source, Target
from twinbus.amqp.types import Symbol
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.engine.queue import Queue
from twinbus.broker.links.dispatch import TURN
from twinbus.broker.links.receiving import DeliveringLink
from twinbus.broker.messages.incoming import parse
from twinbus.broker.server import BrokerServer

MANY = 500
STEPS_MAX = 10
"""Receivers that are served for one message: the one that gets it, and few others."""

SESSION = Symbol("com.microsoft:session-filter")


class Steps:
    """Counts how often any receiver is served."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        deliver = DeliveringLink.deliver

        def counted(link: DeliveringLink, limit: int, now_ms: int) -> int:
            self.count += 1
            return deliver(link, limit, now_ms)

        monkeypatch.setattr(DeliveringLink, "deliver", counted)


class World:
    def __init__(self) -> None:
        self.server: BrokerServer = new_server()
        namespace, now_ms = self.server.namespace, self.server.now_ms()
        namespace.create_queue("orders", QueueDescription(), now_ms)
        namespace.create_queue("talks", QueueDescription(requires_session=True), now_ms)

    def send(self, path: str, *, session_id: str | None = None, count: int = 1) -> None:
        namespace = self.server.namespace
        wire = _wire(session_id)
        for _ in range(count):
            incoming = parse(wire, lambda: "m")
            namespace.send(namespace.send_target(path), [incoming], self.server.now_ms())

    async def receivers(
        self,
        count: int,
        *,
        credit: int,
        path: str = "orders",
        name: str = "in",
        settled: bool = False,
    ) -> tuple[JoinedClient, list[ReceiverLink]]:
        """Receivers of one client; on the queue with sessions each has one of its own."""
        client = JoinedClient(self.server)
        await client.exchange()
        session = client.connection.begin()
        await client.exchange()
        links = []
        for number in range(count):
            filters = {SESSION: f"{name}-{number}"} if path == "talks" else None
            source = Source(address=path, filter=filters)
            link = session.attach_receiver(
                f"{name}-{number}", source=source, target=Target(), settled=settled
            )
            links.append(link)
        await client.exchange()
        for link in links if credit else ():
            link.grant(credit)
        await client.exchange()
        return client, links


def _wire(session_id: str | None) -> bytes:
    return encode_message(properties=Properties(message_id="m", group_id=session_id), data=b"x")


async def _got(client: JoinedClient) -> list[str]:
    events = await client.exchange()
    return [event.link.name for event in events if type(event) is DeliveryArrived]


def _run(story: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        await story(World())

    asyncio.run(run())


async def test_a_message_that_nobody_receives_costs_no_tick() -> None:
    world = World()
    await asyncio.sleep(0)
    ticks = ticks_of(world.server)
    world.send("orders", count=3)
    for _ in range(3):
        await asyncio.sleep(0)
    assert ticks == []
    await world.server.close()


def test_receivers_without_credit_cost_a_message_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        await world.receivers(MANY, credit=0, name="idle")
        client, _ = await world.receivers(1, credit=10, name="busy")
        steps = Steps(monkeypatch)
        world.send("orders")
        assert await _got(client) == ["busy-0"]
        assert steps.count <= STEPS_MAX

    _run(story)


def test_receivers_with_credit_cost_a_message_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        client, _ = await world.receivers(MANY, credit=10)
        steps = Steps(monkeypatch)
        for _ in range(3):
            world.send("orders")
            assert len(await _got(client)) == 1
        assert steps.count <= 3 * STEPS_MAX

    _run(story)


def test_a_message_of_a_session_serves_its_receiver_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        client, _ = await world.receivers(MANY, credit=10, path="talks")
        steps = Steps(monkeypatch)
        world.send("talks", session_id="in-7", count=40)
        assert await _got(client) == ["in-7"] * 10
        assert steps.count <= STEPS_MAX

    _run(story)


def test_credit_of_one_receiver_serves_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        await world.receivers(MANY, credit=10, name="idle")
        client, [link] = await world.receivers(1, credit=0, name="busy")
        steps = Steps(monkeypatch)
        link.grant(5)
        await client.exchange()
        assert steps.count <= STEPS_MAX

    _run(story)


def test_messages_go_to_receivers_in_turn_until_no_credit_is_left() -> None:
    async def story(world: World) -> None:
        client, links = await world.receivers(10, credit=5)
        world.send("orders", count=100)
        got = await _got(client)
        assert sorted(got) == sorted(link.name for link in links for _ in range(5))
        links[3].grant(7)
        assert await _got(client) == ["in-3"] * 7

    _run(story)


def test_single_messages_are_spread_over_the_receivers() -> None:
    async def story(world: World) -> None:
        client, links = await world.receivers(4, credit=50)
        got = []
        for _ in range(8):
            world.send("orders")
            got += await _got(client)
        assert {name: got.count(name) for name in got} == {link.name: 2 for link in links}

    _run(story)


def test_a_drain_of_an_empty_queue_is_answered() -> None:
    async def story(world: World) -> None:
        client, [link] = await world.receivers(1, credit=5)
        link.grant(5, drain=True)
        await client.exchange()
        assert not link.is_draining

    _run(story)


@pytest.mark.parametrize("path", ["orders", "talks"])
def test_disabling_a_queue_detaches_receivers_that_wait(path: str) -> None:
    async def story(world: World) -> None:
        client, links = await world.receivers(3, credit=5, path=path)
        settings = QueueDescription(status="Disabled", requires_session=path == "talks")
        world.server.namespace.update(path, settings, world.server.now_ms())
        await client.exchange()
        assert [link.state.name for link in links] == ["CLOSED"] * 3

    _run(story)


def test_a_receiver_without_locks_gets_messages_after_its_session_lock_expired() -> None:
    async def story(world: World) -> None:
        client, _ = await world.receivers(1, credit=5, path="talks", settled=True)
        queue = world.server.namespace.send_target("talks")
        assert isinstance(queue, Queue)
        sessions = queue.states.sessions
        assert sessions is not None
        session = sessions.get("in-0")
        assert session is not None
        queue.states.free_session(session, world.server.now_ms(), counted=False)
        world.send("talks", session_id="in-0")
        assert await _got(client) == ["in-0"]

    _run(story)


@pytest.mark.parametrize("count", [TURN - 1, TURN, TURN + 1, 2 * TURN, 5 * TURN])
@pytest.mark.parametrize("path", ["orders", "talks"])
def test_a_drain_is_answered_after_the_last_message(path: str, count: int) -> None:
    async def story(world: World) -> None:
        world.send(path, count=count, session_id="in-0" if path == "talks" else None)
        client, [link] = await world.receivers(1, credit=0, path=path)
        link.grant(count + 5, drain=True)
        events = await client.exchange()
        assert [type(event) for event in events] == [DeliveryArrived] * count + [Drained]

    _run(story)
