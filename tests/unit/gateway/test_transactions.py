"""A client's transactions through a gateway: on the primary, or refused; never a part of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.broker.links.joined import new_server
from tests.unit.broker.links.transacting import BODY, Transacting, refused
from tests.unit.gateway.joined_namespaces import PRIMARY, join, new_namespace
from twinbus.amqp.events import DeliveryArrived, Disposed
from twinbus.amqp.message import encode_message
from twinbus.amqp.performatives import Accepted, Discharge, TransactionalState
from twinbus.broker.links.peer import Peer
from twinbus.client.connection import MACHINE
from twinbus.gateway.primary_connections import PrimaryConnections
from twinbus.gateway.sending import PendingSends
from twinbus.gateway.server import GatewayLinks
from twinbus.pairing.core.failover import Route
from twinbus.servicebus.names import STANDARD_MESSAGE_BYTES

pytestmark = pytest.mark.virtual_time

BUSY = "com.microsoft:server-busy"
FAILED_OVER = (
    "A transaction needs the primary, and 'q' is failed over. The transaction is rolled back; "
    "try it again later, or send without one."
)


class Upstream:
    """A connection to the primary with one link, which is not used."""

    def __init__(self, pool: SimpleNamespace) -> None:
        self.loop = asyncio.get_running_loop()
        self.pool = lambda _: pool


class TransactingGateway(Transacting):
    """The same client behind a gateway that only relays, and decides nothing about failovers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        primary = new_namespace()
        self.ends = join(primary, monkeypatch)
        self.front = new_server()
        self.failover = SimpleNamespace(route=Route.PRIMARY)
        entity = SimpleNamespace(path="q", on_change=lambda _: int, failover=self.failover)
        state = SimpleNamespace(
            primary=PRIMARY,
            environment=MACHINE,
            recorder=SimpleNamespace(is_on=False),
            policy=SimpleNamespace(attempt_timeout_s=5.0),
            monitors=SimpleNamespace(find=lambda _: entity, release=lambda _: None),
        )
        target = SimpleNamespace(entity=entity, state=state)
        pool = SimpleNamespace(is_ready=True, users=0, limit_bytes=2**18, release=lambda: None)
        paired: Any = SimpleNamespace(state=state, target=lambda *_: target)
        upstream: Any = Upstream(pool)
        self.pending = PendingSends("gateway", 5.0)
        context: Any = self.front
        self._links = GatewayLinks(
            context, paired, PrimaryConnections(lambda: upstream), self.pending
        )
        super().__init__(primary, self)

    def peer(self) -> Peer:
        return Peer(self.front, self._links)

    async def close(self) -> None:
        self.client.peer.connection_lost(None)
        await self.exchange()
        await self.pending.close()
        await self.server.close()
        await self.front.close()


@asynccontextmanager
async def opened(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TransactingGateway]:
    world = TransactingGateway(monkeypatch)
    await world.open()
    yield world
    await world.close()


async def filled(world: TransactingGateway) -> int:
    """Put a message into the queue of the primary by a transaction; its delivery here."""
    txn_id = await world.declare()
    await world.send(txn_id)
    world.seen.clear()
    assert await world.commit(txn_id) == Accepted()
    (number,) = [one.delivery_id for one in world.seen if isinstance(one, DeliveryArrived)]
    return number


async def test_a_transaction_runs_on_the_primary(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(monkeypatch) as world:
        txn_id = await world.declare()
        assert await world.send(txn_id) == TransactionalState(txn_id, Accepted())
        assert world.held() == (0, 0)
        assert await world.commit(txn_id) == Accepted()
        assert world.held() == (1, 1)


@pytest.mark.parametrize("settled", [False, True])
async def test_a_settlement_takes_effect_at_the_discharge(
    monkeypatch: pytest.MonkeyPatch, settled: bool
) -> None:
    async with opened(monkeypatch) as world:
        number = await filled(world)
        txn_id = await world.declare()
        answers = await world.dispose(txn_id, number, settled=settled)
        assert [(one.state, one.settled) for one in answers] == (
            [] if settled else [(TransactionalState(txn_id, Accepted()), False)]
        )
        assert world.held() == (1, 1)
        assert await world.commit(txn_id) == Accepted()
        assert world.held() == (0, 0)


async def test_after_a_rollback_the_receiver_settles_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(monkeypatch) as world:
        number = await filled(world)
        for _ in range(2):
            txn_id = await world.declare()
            await world.dispose(txn_id, number)
            assert await world.roll_back(txn_id) == Accepted()
            assert world.held() == (1, 1)
        (answer,) = await world.accept(number)
        assert (answer.state, answer.settled) == (Accepted(), True)
        assert world.held() == (0, 0)


async def test_a_failed_over_entity_refuses_and_the_discharge_rolls_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(monkeypatch) as world:
        number = await filled(world)
        for is_send in (True, False):
            txn_id = await world.declare()
            await world.send(txn_id)
            world.failover.route = Route.BACKLOG
            if is_send:
                answer = await world.send(txn_id)
            else:
                answer = (await world.dispose(txn_id, number))[0].state
            condition, text = refused(answer)
            assert (condition, text.partition(" TrackingId")[0]) == (BUSY, FAILED_OVER)
            world.failover.route = Route.PRIMARY
            condition, text = refused(await world.commit(txn_id))
            assert condition == "amqp:transaction:rollback"
            assert text.startswith(f"The transaction was rolled back: {FAILED_OVER}")
            assert world.held() == (1, 1)
        await world.accept(number)
        assert world.held() == (0, 0)


async def test_a_message_that_the_gateway_refuses_fails_the_discharge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(monkeypatch) as world:
        txn_id = await world.declare()
        await world.send(txn_id)
        too_large = encode_message(data=bytes(2 * STANDARD_MESSAGE_BYTES))
        refused(await world.send(txn_id, body=too_large))
        assert refused(await world.commit(txn_id))[0] == "amqp:transaction:rollback"
        assert world.held() == (0, 0)


async def test_a_lost_answer_to_a_discharge_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(monkeypatch) as world:
        txn_id = await world.declare()
        await world.send(txn_id)
        world.ends.hang()
        assert await world.commit(txn_id) is None
        world.ends.kill()
        seen = await world.exchange()
        answers = [one.state for one in seen if isinstance(one, Disposed) and one.by_receiver]
        condition, text = refused(answers[0])
        assert condition == "com.microsoft:timeout"
        assert text.startswith("The answer of the primary to the discharge is lost; whether")
        assert world.detached()


async def test_a_primary_that_is_down_refuses_the_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = TransactingGateway(monkeypatch)
    world.ends.is_down = True
    await world.exchange()
    await world.coordinate(await world.begin())
    (error,) = world.detached()
    assert error is not None
    assert error.condition == BUSY
    await world.close()


async def test_a_discharge_does_not_overtake_what_was_sent_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(monkeypatch) as world:
        txn_id = await world.declare()
        state = TransactionalState(txn_id)
        # The first transactional message: the gateway still has to attach its link.
        for _ in range(3):
            world.sender.send(BODY, b"m", settled=True, state=state)
        assert await world.ask(Discharge(txn_id, False)) == Accepted()
        assert world.held()[0] == 3
