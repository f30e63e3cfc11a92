"""A client's frames through a gateway: in one read, and before the primary has answered."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from tests.unit.broker.fakes import facts
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
from tests.unit.gateway.joined_gateway import PRIMARY, JoinedGateway, join, new_primary
from twinbus.amqp.frames import FrameOutput
from twinbus.amqp.link import MAX_MESSAGE_BYTES, ReceiverLink
from twinbus.amqp.session import Session
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.refusals import EntityNotFound
from twinbus.client.links import UpstreamConnection, Wire
from twinbus.gateway.sending import UNKNOWN_LIMIT_BYTES, GatewaySendingLink
from twinbus.namespace.namespace import Namespace
from twinbus.servicebus.names import BATCH_ALLOWANCE

PAIRS = pairs([*RECEIVING, *LAST])
EARLY = early(EARLY_RECEIVING)

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("pair", PAIRS, ids=[f"{a.__name__}-{b.__name__}" for a, b in PAIRS])
async def test_two_frames_in_one_read_do_what_they_do_in_two(
    pair: tuple[Action, Action], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = []
    for is_one_read in (True, False):
        primary = new_primary()
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
    primary = new_primary()
    gateway = JoinedGateway(primary, monkeypatch)
    world = OneClient(primary, gateway, sends=False)
    actions = (OneClient.accept, OneClient.release, OneClient.abandon, end)
    await outcome_of(world, actions, is_one_read=True)
    left = facts(world.queue, primary.now_ms())
    assert [(number, count) for number, _, _, count in left] == [(2, 0), (3, 1)]
    assert len(world.queue.states.locks) == 0
    await gateway.close(world)
    await primary.close()


@pytest.mark.parametrize("end", ["detach", "end", "close"])
async def test_our_own_client_hears_an_acceptance_right_before_the_end_of_its_link(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would send the same message again."""
    primary = new_primary()
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
    primary = new_primary()
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
    sending = SimpleNamespace(
        link=link, _pool=SimpleNamespace(limit_bytes=said_bytes), _client=SimpleNamespace(touch=int)
    )
    GatewaySendingLink._accept(cast("GatewaySendingLink", sending))
    most_bytes = MAX_MESSAGE_BYTES if said_bytes is not None else UNKNOWN_LIMIT_BYTES
    assert link.limit_bytes - BATCH_ALLOWANCE == min(said_bytes or most_bytes, most_bytes)
