"""The client: sending links with credit, lost answers and silent peers; counts over HTTP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from contextlib import suppress
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
from twinbus.client import administration, connection
from twinbus.client.administration import NotAnswered, QueueCounts, counts_of
from twinbus.client.connection import CONNECT_S, NamespaceConnection
from twinbus.client.in_flight import Wire
from twinbus.client.links import LinkPool, UpstreamConnection, UpstreamLink
from twinbus.client.peeking import BacklogMeter, QueueDepth
from twinbus.client.request_node import ConnectionLost, LinkEnded
from twinbus.errors import SyphonError
from twinbus.namespace.access import Endpoint, endpoint_of
from twinbus.namespace.namespace import Namespace
from twinbus.servicebus.failures import FailureMeaning, of_error
from twinbus.syphon.core.pacing import FIRST_RECONNECT_S, ReconnectBackoff
from twinbus.testing import run_virtual

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
            flush_now=lambda: None,
            drop=self.dropped.append,
        )
        self.pool = LinkPool(cast("UpstreamConnection", connection), "orders")
        self.up = UpstreamLink(self.pool, cast("UpstreamConnection", connection), self.link)
        self.up.opened.set_result(None)
        self.pool.link = self.up

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


@pytest.mark.parametrize("case", ["no window", "a window of 1000", "large", "each second large"])
async def test_a_run_that_cannot_be_written_together_is_not_tried_again_and_again(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A primary that hangs closes its window, and each read of a client may bring a run."""
    world, count = World(), 2_000
    link = world.link
    link.credit, tried = 100_000, 0
    session = cast("Session", link.session)
    session.remote_incoming_window = {"no window": 0, "a window of 1000": 1_000}.get(case, 10_000)
    session._output.max_frame_size = 512
    large, small = bytes(600), bytes(100)
    payloads = {"large": [large], "each second large": [large, small]}.get(case, [small])
    send_run = link.send_run

    def counted(tags: list[bytes], *rest: Any) -> int:
        nonlocal tried
        tried += len(tags)
        return send_run(tags, *rest)

    monkeypatch.setattr(link, "send_run", counted)
    world.up.send_run((payloads * count)[:count], cast("Any", object()))
    assert link.delivery_count == len(world.up._sent) == count
    assert tried <= 4 * count


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


@pytest.mark.parametrize(
    ("condition", "alone", "among_others"),
    [
        ("com.example:unheard-of", FailureMeaning.OTHER, FailureMeaning.OTHER),
        ("amqp:decode-error", FailureMeaning.MESSAGE, FailureMeaning.OTHER),
        ("amqp:link:detach-forced", FailureMeaning.UNREACHABLE, FailureMeaning.UNREACHABLE),
        ("amqp:internal-error", FailureMeaning.UNREACHABLE, FailureMeaning.UNREACHABLE),
        ("com.microsoft:entity-disabled", FailureMeaning.DISABLED, FailureMeaning.DISABLED),
    ],
)
async def test_a_detach_that_a_message_may_have_caused_is_no_evidence_of_an_outage(
    condition: str, alone: FailureMeaning, among_others: FailureMeaning
) -> None:
    """Clients of a gateway share the link: one of them must not fail the entity over for all."""
    for count, meaning in ((1, alone), (3, among_others)):
        world, answers = World(), list[Exception | None]()
        world.give_credit(count)
        for _ in range(count):
            world.up.send(WIRE, answers.append)
        world.up.handle(Detached(world.link, Error(condition=condition), True))
        assert [of_error(one) for one in answers if one is not None] == [meaning] * count
        assert all(isinstance(one, LinkEnded) and one.may_be_stored for one in answers)


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


class Unconnected(NamespaceConnection):
    async def open(self) -> None:
        """Open no socket."""


async def test_a_lost_connection_ends_a_send_on_a_retired_link_once() -> None:
    """Twice would send it twice, and count what the gateway holds wrongly for ever."""
    namespace = Namespace.from_connection_string(
        "Endpoint=sb://contoso/;SharedAccessKeyName=name;SharedAccessKey=key"
    )
    upstream = UpstreamConnection(namespace, answer_s=0.0, connect=Unconnected)
    connection = await upstream.opened()
    session = Session(FrameOutput(), 0)
    link = session.attach_sender("l", source=Source(), target=Target())
    link.state, link.credit = LinkState.OPEN, 1
    pool = upstream.pool("orders")
    up = pool.link = UpstreamLink(pool, upstream, link)
    up.opened.set_result(None)
    answers: list[Exception | None] = []
    pool.send(WIRE, answers.append)
    pool.retire(up)
    connection.drop("gone")
    # Upstream hears of the loss, then the retired link's own timer runs, which is due.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [type(one) for one in answers] == [LinkEnded]


PEER = "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=r;SharedAccessKey=k;UseDevelopmentEmulator=true;"

SYN_TIMES_S = (0.0, 1.0, 3.0, 7.0, 15.0)
"""When TCP asks for a connection in one attempt."""


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="an option of Linux")
async def test_a_connection_that_is_closed_while_it_opens_leaves_no_socket() -> None:
    came, ended = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read all that the client sends, and answer nothing."""
        came.set()
        with suppress(ConnectionError):
            while await reader.read(4_096):
                pass
        ended.set()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        text = (
            f"Endpoint=sb://localhost:{port};SharedAccessKeyName=k;SharedAccessKey=a2V5"
            ";UseDevelopmentEmulator=true;"
        )
        upstream = UpstreamConnection(Namespace.from_connection_string(text), 60.0)
        opening = asyncio.create_task(upstream.opened())
        async with asyncio.timeout(60):
            await came.wait()
            await upstream.close()
            await ended.wait()
        with pytest.raises(asyncio.CancelledError):
            await opening


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


COUNTS = (
    b"<CountDetails><d2p1:ActiveMessageCount>3</d2p1:ActiveMessageCount></CountDetails>"
    b"<MessageCount>5</MessageCount>"
)


KEY = "SharedAccessKeyName=r;SharedAccessKey=k"
SIGNATURE = "SharedAccessSignature=SharedAccessSignature sr=x&sig=x&se=1000&skn=r"


async def asked_of_one_that_answers(
    status: str, body: bytes, announced: int, credential: str = KEY, *, busy: int = 0
) -> QueueCounts:
    """What comes of requests of which so many are throttled, and the next answered so."""
    refused = iter(range(busy))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if next(refused, None) is not None:
            writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {announced}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        text = f"Endpoint=sb://127.0.0.1:{port};{credential};UseDevelopmentEmulator=true;"
        return await counts_of(endpoint_of(text), "orders", (0.0, 0.0))


def test_a_whole_answer_is_read() -> None:
    counts = asyncio.run(asked_of_one_that_answers("200 OK", COUNTS, len(COUNTS)))
    assert (counts.active, counts.total, counts.waiting) == (3, 5, 5)


def test_an_answer_without_counts_says_that_the_queue_is_not_there() -> None:
    with pytest.raises(SyphonError, match="there is no queue orders"):
        asyncio.run(asked_of_one_that_answers("200 OK", b"<feed/>", 7))


@pytest.mark.parametrize("came", [0, 10, len(COUNTS) - 1])
def test_an_answer_that_is_cut_off_says_nothing_of_the_queue(came: int) -> None:
    with pytest.raises(NotAnswered, match="closed in the middle"):
        asyncio.run(asked_of_one_that_answers("200 OK", COUNTS[:came], len(COUNTS)))


def test_a_namespace_that_throttles_is_asked_again_for_a_while() -> None:
    found = asyncio.run(asked_of_one_that_answers("200 OK", COUNTS, len(COUNTS), busy=2))
    assert found.total == 5
    with pytest.raises(NotAnswered, match="answers 503 for the counts of orders"):
        asyncio.run(asked_of_one_that_answers("200 OK", COUNTS, len(COUNTS), busy=3))


@pytest.mark.parametrize(
    ("sent_at", "answered_at", "error"),
    [
        (999.0, 1_001.0, (NotAnswered, "the token expired while the request was under way")),
        (1_001.0, 1_002.0, (SyphonError, "needs the Manage right")),
        (998.0, 999.0, (SyphonError, "needs the Manage right")),
    ],
)
def test_a_token_that_expires_under_way_says_nothing_of_the_rights(
    monkeypatch: pytest.MonkeyPatch,
    sent_at: float,
    answered_at: float,
    error: tuple[type[Exception], str],
) -> None:
    # When the token is fetched, when the request is sent, when it is answered.
    times = iter((sent_at, sent_at, answered_at))
    clock = SimpleNamespace(time=lambda: next(times))
    monkeypatch.setattr(administration, "time", clock)
    with pytest.raises(error[0], match=error[1]):
        asyncio.run(asked_of_one_that_answers("401 Unauthorized", b"", 0, SIGNATURE))


NO_MESSAGE = {"a": QueueDepth(0, 0, None)}


def measured(*answers: Exception | Mapping[str, QueueCounts]) -> list[Mapping[str, QueueDepth]]:
    """Return the depths after each measurement, made every 10 s, with counts as given."""
    left, seen = list(answers), list[Mapping[str, QueueDepth]]()

    async def scenario() -> None:
        ended = asyncio.Event()

        async def counts() -> Mapping[str, QueueCounts]:
            seen.append(meter.depths())
            if not left:
                ended.set()
                await asyncio.sleep(3600)
            answer = left.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        loop = asyncio.get_running_loop()
        meter = BacklogMeter(cast("Endpoint", None), counts, every_s=10.0, clock=loop.time)
        meter.start(loop)
        await ended.wait()
        await meter.close()

    run_virtual(scenario())
    return seen[1:]


def test_after_errors_measuring_goes_on_and_numbers_that_are_too_old_are_withdrawn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert measured(
        {"a": QueueCounts()},
        SyphonError("away"),
        ValueError("nonsense"),
        SyphonError("away"),
        {"a": QueueCounts(dead_lettered=2, total=2)},
    ) == [NO_MESSAGE, NO_MESSAGE, NO_MESSAGE, {}, {"a": QueueDepth(0, 2, None)}]
    # One warning for each time that it begins to fail.
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "the depth of the backlog is not known: away"
    ]


def test_a_meter_that_was_closed_before_it_began_measures_nothing() -> None:
    async def scenario() -> None:
        meter = BacklogMeter(cast("Endpoint", None), cast("type", None), every_s=1.0)
        meter.start(asyncio.get_running_loop())
        await meter.close()
        await asyncio.sleep(0)
        assert meter.depths() == {}

    asyncio.run(scenario())
