"""Sending links: credit, answers that do not come, links that end, and silent peers."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.work import bounded_work
from twinbus.amqp.events import CreditChanged, Detached
from twinbus.amqp.frames import FrameOutput
from twinbus.amqp.link import LinkState, SenderLink
from twinbus.amqp.performatives import Error, Source, Target
from twinbus.amqp.session import Session
from twinbus.amqp.transport import SILENT_S, UNANSWERED_S, limit_silence
from twinbus.client import connection
from twinbus.client.connection import CONNECT_S, NamespaceConnection
from twinbus.client.links import LinkPool, UpstreamConnection, UpstreamLink, Wire
from twinbus.client.request_node import ConnectionLost, LinkEnded
from twinbus.namespace.access import endpoint_of
from twinbus.namespace.namespace import Namespace
from twinbus.syphon.core.pacing import FIRST_RECONNECT_S, ReconnectBackoff

WIRE = Wire(b"x", 0)


class World:
    """A pool with one open link that has no credit yet."""

    def __init__(self, answer_s: float = 60.0) -> None:
        session = Session(FrameOutput(), 0)
        self.link: SenderLink = session.attach_sender("l", source=Source(), target=Target())
        self.link.state = LinkState.OPEN
        self.dropped: list[str] = []
        in_flight: dict[int, object] = {}
        connection = SimpleNamespace(
            loop=asyncio.get_running_loop(),
            answer_s=answer_s,
            heard_at=0.0,
            in_flight=lambda _: in_flight,
            flush=lambda: None,
            drop=self.dropped.append,
        )
        self.pool = LinkPool(cast("UpstreamConnection", connection), "orders")
        self.up = UpstreamLink(self.pool, cast("UpstreamConnection", connection), self.link)
        self.up.opened.set_result(None)
        self.pool._link = self.up

    def give_credit(self, credit: int) -> None:
        self.link.credit = credit
        self.up.handle(CreditChanged(self.link))


async def test_sends_wait_for_credit_in_their_order() -> None:
    world = World()
    sends = [asyncio.create_task(world.pool.send_messages(WIRE)) for _ in range(3)]
    await asyncio.sleep(0)
    assert world.link.delivery_count == 0
    world.give_credit(2)
    assert (world.link.delivery_count, world.link.credit) == (2, 0)
    for send in sends:
        send.cancel()
    await asyncio.wait(sends)


async def test_a_send_whose_call_gave_up_is_not_sent_later() -> None:
    world = World()
    send = asyncio.create_task(world.pool.send_messages(WIRE))
    await asyncio.sleep(0)
    send.cancel()
    await asyncio.wait({send})
    world.give_credit(5)
    assert (world.link.delivery_count, world.link.credit) == (0, 5)


async def test_giving_up_costs_the_same_however_many_sends_wait() -> None:
    """With an entity that hangs all of them give up at once, and the gateway must go on."""

    up = World().up
    sends = [partial(print, number) for number in range(20_000)]
    for send in sends:
        up.send(WIRE, send)
    # Takes 0.1 ms; with a look at all that wait for each of them it takes 60 ms.
    with bounded_work(0.02):
        for send in sends[-200:]:
            up.withdraw(send)


async def test_a_detach_ends_what_is_in_flight_and_what_waits() -> None:
    world = World()
    sends = [asyncio.create_task(world.pool.send_messages(WIRE)) for _ in range(2)]
    await asyncio.sleep(0)
    world.give_credit(1)
    off = Error(condition="com.microsoft:entity-disabled", description="off")
    world.up.handle(Detached(world.link, off, True))
    for send in sends:
        with pytest.raises(LinkEnded) as caught:
            await send
        assert caught.value.condition == off.condition
    assert not world.pool.is_ready


async def test_a_detach_says_nothing_about_what_was_in_flight() -> None:
    """The namespace may have stored it."""
    world = World()
    answers: list[Exception | None] = []
    world.give_credit(1)
    for _ in range(2):  # The second waits for credit: it was not sent.
        world.pool.send(WIRE, answers.append)
    busy = Error(condition="com.microsoft:server-busy", description="too much")
    world.up.handle(Detached(world.link, busy, True))
    assert [isinstance(one, LinkEnded) and one.may_be_stored for one in answers] == [True, False]


async def test_a_connection_that_is_silent_is_dropped_and_its_sends_time_out() -> None:
    world = World(answer_s=0.01)
    world.give_credit(1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await world.pool.send_messages(WIRE)
    assert world.dropped == ["it sent nothing for 0.01 s"]


async def test_a_link_that_ends_in_the_moment_after_its_opening_is_a_lost_connection() -> None:
    world = World()
    world.up.handle(Detached(world.link, None, True))
    with pytest.raises(LinkEnded, match="orders: the link ended"):
        await world.pool.send_messages(WIRE)


async def test_a_lost_connection_ends_a_send_on_a_retired_link_once() -> None:
    """Twice would send it twice, and count what the gateway holds wrongly for ever."""
    namespace = Namespace.from_connection_string(
        "Endpoint=sb://contoso/;SharedAccessKeyName=name;SharedAccessKey=key"
    )
    upstream = UpstreamConnection(namespace, answer_s=0.0)
    connection = NamespaceConnection(upstream._endpoint, upstream._on_event)
    upstream._connection = connection
    session = Session(FrameOutput(), 0)
    link = session.attach_sender("l", source=Source(), target=Target())
    link.state, link.credit = LinkState.OPEN, 1
    pool = upstream.pool("orders")
    up = pool._link = UpstreamLink(pool, upstream, link)
    up.opened.set_result(None)
    answers: list[Exception | None] = []
    pool.send(WIRE, answers.append)
    pool.retire(up)
    connection.drop("gone")
    upstream._on_lost(connection, connection.lost)
    # The retired link's own timer, which is due.
    assert up._timer is not None
    up._end_overdue()
    assert [type(one) for one in answers] == [LinkEnded]


PEER = "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=r;SharedAccessKey=k;UseDevelopmentEmulator=true;"

SYN_TIMES_S = (0.0, 1.0, 3.0, 7.0, 15.0)
"""When TCP asks for a connection in one attempt."""


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="an option of Linux")
def test_the_kernel_ends_a_connection_whose_peer_acknowledges_nothing() -> None:
    with socket.socket() as opened:
        limit_silence(opened)
        tcp = [socket.TCP_USER_TIMEOUT, socket.TCP_KEEPIDLE]
        found = [opened.getsockopt(socket.IPPROTO_TCP, option) for option in tcp]
        assert found == [UNANSWERED_S * 1_000, SILENT_S]
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    # A socket that is closed, or not known (a WebSocket through a proxy), changes nothing.
    limit_silence(opened)
    limit_silence(None)


@pytest.mark.virtual_time
async def test_an_attempt_in_a_black_hole_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(*_: Any, **__: Any) -> None:
        await asyncio.sleep(3_600)

    monkeypatch.setattr(connection, "connect", hangs)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(ConnectionLost, match="cannot be reached: no answer"):
        await NamespaceConnection(endpoint_of(PEER), lambda _: None).open()
    assert loop.time() - began == pytest.approx(CONNECT_S)


def test_a_namespace_that_is_back_waits_less_than_5_s_for_the_next_attempt() -> None:
    pause_s = ReconnectBackoff(lambda: 0.0).after(CONNECT_S + 0.001)
    assert pause_s == FIRST_RECONNECT_S
    last_syn_s = max(at for at in SYN_TIMES_S if at < CONNECT_S)
    assert CONNECT_S - last_syn_s + pause_s < 5.0
