"""Both ends of a connection, joined in memory: what one writes the other reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from twinbus.amqp.connection import (
    AMQP_HEADER,
    EMPTY_FRAME,
    IDLE_TIMEOUT_MS,
    Connection,
    ConnectionPhase,
)
from twinbus.amqp.events import (
    Attached,
    Begun,
    Closed,
    CreditChanged,
    DeliveryArrived,
    DeliveryTooLarge,
    Detached,
    Disposed,
    Drained,
    Ended,
    Event,
    Opened,
    one_by_one,
)
from twinbus.amqp.frames import (
    ProtocolViolation,
    decode_performative,
    encode_frame,
    encode_transfer_frame,
)
from twinbus.amqp.link import LinkState, ReceiverLink, SenderLink
from twinbus.amqp.performatives import (
    ACCEPTED_BYTES,
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Error,
    Open,
    Source,
    Target,
)
from twinbus.amqp.session import INCOMING_WINDOW, Session
from twinbus.amqp.types import UInt, UShort

T = TypeVar("T")


def read(connection: Connection, data: bytes, now_ms: int = 1) -> list[Event]:
    """All events of what came in one read, for a test that handles none of them."""
    return [each for events in connection.receive(data, now_ms) for each in one_by_one(events)]


@dataclass
class Pair:
    """A client and a server, and every event each has seen."""

    client: Connection = field(default_factory=lambda: Connection("c", sasl=True))
    server: Connection = field(default_factory=lambda: Connection("s", server=True, sasl=True))
    now_ms: int = 1_000
    chunk: int = 1 << 20

    def exchange(self) -> tuple[list[Event], list[Event]]:
        """Carry bytes both ways until neither end has more to say."""
        at_client: list[Event] = []
        at_server: list[Event] = []
        while True:
            up = self.client.take_output(self.now_ms)
            down = self.server.take_output(self.now_ms)
            if not up and not down:
                return at_client, at_server
            for start in range(0, len(up), self.chunk):
                at_server += read(self.server, up[start : start + self.chunk], self.now_ms)
            for start in range(0, len(down), self.chunk):
                at_client += read(self.client, down[start : start + self.chunk], self.now_ms)

    def session(self) -> tuple[Session, Session]:
        """A session, begun by the client, at both ends."""
        ours = self.client.begin()
        _, at_server = self.exchange()
        (begun,) = [event for event in at_server if isinstance(event, Begun)]
        return ours, self.server.sessions[begun.session.channel]

    def sender(self) -> tuple[SenderLink, ReceiverLink]:
        """A link from client to server, open and with credit."""
        ours, _ = self.session()
        link = ours.attach_sender("out", source=Source(address="me"), target=Target(address="q"))
        _, at_server = self.exchange()
        (offered,) = [event.link for event in at_server if isinstance(event, Attached)]
        assert isinstance(offered, ReceiverLink)
        offered.accept(max_message_size=1000)
        offered.grant(10)
        self.exchange()
        return link, offered


@pytest.fixture
def pair() -> Pair:
    pair = Pair()
    at_client, at_server = pair.exchange()
    assert [type(event) for event in at_client + at_server] == [Opened, Opened]
    return pair


def of(kind: type[T], events: list[Event]) -> list[T]:
    return [event for event in events if isinstance(event, kind)]


def said(closed: Closed | Detached) -> Error:
    assert closed.error is not None
    return closed.error


def test_both_ends_open_through_sasl(pair: Pair) -> None:
    assert pair.client.phase is pair.server.phase is ConnectionPhase.OPEN
    assert pair.client.remote_container_id == "s"
    assert pair.server.output.max_frame_size == 65_536


def test_bytes_may_come_one_at_a_time() -> None:
    pair = Pair(chunk=1)
    at_client, at_server = pair.exchange()
    assert [type(event) for event in at_client + at_server] == [Opened, Opened]


def test_a_client_may_skip_sasl() -> None:
    pair = Pair(client=Connection("c"))
    pair.exchange()
    assert pair.client.phase is ConnectionPhase.OPEN


def test_the_peer_limits_sessions_and_their_links() -> None:
    pair = Pair()
    pair.server.__dict__["_open"] = lambda: Open(container_id="s", channel_max=UShort(1))
    pair.exchange()
    sessions = [pair.client.begin(), pair.client.begin()]
    with pytest.raises(ProtocolViolation, match="more than 2 sessions"):
        pair.client.begin()
    narrow = sessions[0]
    narrow.take_begin(Begin(handle_max=UInt(1)), 0)
    for number in range(2):
        assert narrow.free_handles == 2 - number
        narrow.attach_sender(f"l{number}", source=Source(), target=Target())
    with pytest.raises(ProtocolViolation, match="more than 2 links"):
        narrow.attach_sender("one too many", source=Source(), target=Target())
    narrow.links[0].detach()
    assert narrow.free_handles == 1


def test_deliveries_arrive_in_order_and_acceptances_come_back_as_one_range(pair: Pair) -> None:
    link, offered = pair.sender()
    ids = [link.send(f"m{n}".encode(), bytes([n])) for n in range(5)]
    _, at_server = pair.exchange()
    arrived = of(DeliveryArrived, at_server)
    assert [event.payload for event in arrived] == [b"m0", b"m1", b"m2", b"m3", b"m4"]
    assert [event.delivery_id for event in arrived] == ids
    for event in arrived:
        offered.session.settle(
            event.delivery_id, event.delivery_id, ACCEPTED_BYTES, as_receiver=True
        )
    at_client, _ = pair.exchange()
    (disposed,) = of(Disposed, at_client)
    assert (disposed.first, disposed.last, disposed.settled) == (0, 4, True)
    assert isinstance(disposed.state, Accepted)
    assert [taken[0] for taken in link.session.take_unsettled(0, 4)] == ids


def test_credit_runs_out_and_is_topped_up(pair: Pair) -> None:
    link, offered = pair.sender()
    for _ in range(10):
        link.send(b"m", b"t", settled=True)
    assert link.credit == 0
    pair.exchange()
    assert offered.credit == 0
    offered.grant(3)
    at_client, _ = pair.exchange()
    assert of(CreditChanged, at_client)
    assert link.credit == 3


def test_a_delivery_larger_than_a_frame_is_split_and_joined(pair: Pair) -> None:
    link, _ = pair.sender()
    body = bytes(range(256)) * 1000
    link.send(body, b"t")
    _, at_server = pair.exchange()
    (arrived,) = of(DeliveryArrived, at_server)
    assert arrived.payload == body


def test_a_delivery_past_the_links_limit_detaches_it(pair: Pair) -> None:
    link, offered = pair.sender()
    offered.limit_bytes = 100_000
    link.send(b"x" * 300_000, b"t")
    at_client, at_server = pair.exchange()
    assert not of(DeliveryArrived, at_server)
    (detached,) = of(Detached, at_client)
    assert said(detached).condition == "amqp:link:message-size-exceeded"
    assert offered.state is LinkState.CLOSED


def test_an_owner_that_rejects_gets_an_event_and_the_link_goes_on(pair: Pair) -> None:
    link, offered = pair.sender()
    offered.limit_bytes, offered.rejects_oversize = 100_000, True
    link.send(b"before", b"t")
    too_large = link.send(b"x" * 300_000, b"t")
    link.send(b"after", b"t")
    at_client, at_server = pair.exchange()
    (refused,) = of(DeliveryTooLarge, at_server)
    assert refused.delivery_id == too_large
    assert [each.payload for each in of(DeliveryArrived, at_server)] == [b"before", b"after"]
    assert not of(Detached, at_client)
    assert offered.credit == 7


def test_a_new_delivery_ends_the_skipping_of_one_that_its_sender_gave_up(pair: Pair) -> None:
    link, offered = pair.sender()
    offered.limit_bytes, offered.rejects_oversize = 1_000, True
    for number, body, more in ((0, b"x" * 2_000, True), (1, b"next", False)):
        frame = encode_transfer_frame(
            link.session.channel, link.handle, number, b"t", 0, False, body, more
        )
        pair.client.output.put(frame)
    _, at_server = pair.exchange()
    assert [event.delivery_id for event in of(DeliveryTooLarge, at_server)] == [0]
    assert [each.payload for each in of(DeliveryArrived, at_server)] == [b"next"]


def test_a_refused_attach_has_a_null_terminus_and_an_error(pair: Pair) -> None:
    ours, _ = pair.session()
    link = ours.attach_receiver("in", source=Source(address="q"), target=Target(address="me"))
    _, at_server = pair.exchange()
    (attached,) = of(Attached, at_server)
    attached.link.refuse("amqp:not-found", "there is no q")
    at_client, _ = pair.exchange()
    assert link.source is None
    (detached,) = of(Detached, at_client)
    assert said(detached).description == "there is no q"


@pytest.mark.parametrize("confirmed", [False, True])
def test_a_receiver_says_whether_its_outcomes_wait_for_the_peers_settlement(
    pair: Pair, confirmed: bool
) -> None:
    ours, _ = pair.session()
    ours.attach_receiver(
        "in", source=Source(address="q"), target=Target(address="me"), confirmed=confirmed
    )
    _, at_server = pair.exchange()
    assert of(Attached, at_server)[0].link.rcv_settle_mode == int(confirmed)


def test_a_drained_link_gives_its_credit_back(pair: Pair) -> None:
    ours, _ = pair.session()
    link = ours.attach_receiver("in", source=Source(address="q"), target=Target(address="me"))
    _, at_server = pair.exchange()
    sender = of(Attached, at_server)[0].link
    assert isinstance(sender, SenderLink)
    sender.accept()
    link.grant(5, drain=True)
    pair.exchange()
    assert (sender.credit, sender.drain) == (5, True)
    sender.send(b"m", b"t")
    sender.drained()
    pair.exchange()
    assert (link.credit, link.delivery_count) == (0, 5)


@pytest.mark.parametrize("is_counted", [True, False])
def test_a_drain_is_answered_by_a_flow_without_credit_and_without_the_flag(
    pair: Pair, is_counted: bool
) -> None:
    ours, theirs = pair.session()
    link = ours.attach_receiver("in", source=Source(address="q"), target=Target(address="me"))
    _, at_server = pair.exchange()
    sender = of(Attached, at_server)[0].link
    sender.accept()
    link.grant(5, drain=True)
    pair.exchange()
    theirs.write_flow(handle=sender.handle, delivery_count=0, link_credit=5)
    at_client, _ = pair.exchange()
    assert not of(Drained, at_client), "written before the peer read of the drain"
    count = 5 if is_counted else 0
    theirs.write_flow(handle=sender.handle, delivery_count=count, link_credit=0)
    at_client, _ = pair.exchange()
    assert [event.link for event in of(Drained, at_client)] == [link]
    assert (link.credit, link.is_draining) == (0, False)


def test_transfers_wait_for_the_peers_window(pair: Pair) -> None:
    link, offered = pair.sender()
    offered.grant(INCOMING_WINDOW * 2)
    pair.exchange()
    for _ in range(INCOMING_WINDOW + 10):
        link.send(b"m", b"t", settled=True)
    _, at_server = pair.exchange()
    assert len(of(DeliveryArrived, at_server)) == INCOMING_WINDOW + 10


def test_a_sender_blocked_by_the_window_hears_of_a_flow_for_the_session_alone(
    pair: Pair,
) -> None:
    link, offered = pair.sender()
    pair.client.sessions[link.session.channel].remote_incoming_window = 2
    for _ in range(5):
        link.send(b"m", b"t")
    assert link.session.blocks(link)
    pair.server.sessions[offered.session.channel].write_flow()
    at_client, at_server = pair.exchange()
    assert len(of(DeliveryArrived, at_server)) == 5
    assert [event.link for event in of(CreditChanged, at_client)] == [link]
    assert not link.session.blocks(link)


def test_an_attach_that_is_answered_after_it_was_given_up_does_not_touch_the_next_link(
    pair: Pair,
) -> None:
    ours, _ = pair.session()
    source, target = Source(address="me"), Target(address="q")
    slow = ours.attach_sender("slow", source=source, target=target)
    _, at_server = pair.exchange()
    (offered,) = of(Attached, at_server)
    slow.detach()
    following = ours.attach_sender("next", source=source, target=target)
    assert following.handle == slow.handle
    offered.link.accept()
    at_client, at_server = pair.exchange()
    assert of(Attached, at_client) == []
    (attached,) = of(Attached, at_server)
    attached.link.accept()
    at_client, at_server = pair.exchange()
    assert [event.link for event in of(Attached, at_client)] == [following]
    assert (slow.state, following.state) == (LinkState.CLOSED, LinkState.OPEN)
    assert attached.link.state is LinkState.OPEN


def test_detach_end_and_close_are_answered(pair: Pair) -> None:
    link, _ = pair.sender()
    link.detach()
    _, at_server = pair.exchange()
    assert of(Detached, at_server)
    pair.client.end_session(link.session)
    _, at_server = pair.exchange()
    assert of(Ended, at_server)
    pair.client.close("amqp:connection:forced", "bye")
    at_client, at_server = pair.exchange()
    assert said(of(Closed, at_server)[0]).description == "bye"
    assert of(Closed, at_client)
    assert pair.server.phase is ConnectionPhase.CLOSED


@pytest.mark.parametrize("ends", ["detach", "end", "close"])
def test_an_acceptance_right_before_the_end_of_its_link_is_heard(pair: Pair, ends: str) -> None:
    """A sender that missed it would send the same message again."""
    link, offered = pair.sender()
    number = link.send(b"m", b"t")
    pair.exchange()
    offered.session.settle(number, number, ACCEPTED_BYTES, as_receiver=True)
    match ends:
        case "detach":
            offered.detach("amqp:link:detach-forced", "the broker is going down")
        case "end":
            pair.server.end_session(offered.session)
        case _:
            pair.server.close("amqp:connection:forced", "the broker is going down")
    accepted = []
    for events in pair.client.receive(pair.server.take_output(1), 1):
        for event in of(Disposed, events):
            accepted += event.session.take_unsettled(event.first, event.last)
    assert [taken[0] for taken in accepted] == [number]


def test_what_is_answered_before_a_broken_frame_leaves_before_the_close(pair: Pair) -> None:
    link, offered = pair.sender()
    number = link.send(b"m", b"t")
    data = pair.client.take_output(1) + b"\xff" * 8
    for events in pair.server.receive(data, 1):
        for _ in of(DeliveryArrived, events):
            offered.session.settle(number, number, ACCEPTED_BYTES, as_receiver=True)
    at_client, _ = pair.exchange()
    assert [type(event) for event in at_client] == [Disposed, Closed]


@pytest.mark.parametrize("sends", [False, True])
def test_a_detach_before_the_answer_is_answered_by_an_attach_and_a_detach(
    pair: Pair, sends: bool
) -> None:
    """A DETACH alone would name a handle that the peer has never heard of."""
    ours, _ = pair.session()
    attach = ours.attach_sender if sends else ours.attach_receiver
    link = attach("l", source=Source(address="a"), target=Target(address="b"))
    link.detach()
    for _ in pair.server.receive(pair.client.take_output(1), 1):
        pass  # The owner has not answered yet.
    answer = pair.server.take_output(1)
    kinds = []
    while answer:
        size = int.from_bytes(answer[:4])
        kinds.append(type(decode_performative(answer[8:size])[0]))
        answer = answer[size:]
    assert kinds == [Attach, Detach]


def test_a_transfer_before_the_answer_to_its_attach_is_refused_not_lost(pair: Pair) -> None:
    ours, _ = pair.session()
    link = ours.attach_sender("l", source=Source(address="a"), target=Target(address="b"))
    link.credit = 1
    link.send(b"m", b"t", settled=True)
    at_client, at_server = pair.exchange()
    assert not of(DeliveryArrived, at_server)
    (detached,) = of(Detached, at_client)
    assert said(detached).condition == "amqp:link:transfer-limit-exceeded"


def test_frames_for_a_channel_that_ended_are_ignored(pair: Pair) -> None:
    """pyamqp sends END and then DETACHes."""
    link, _ = pair.sender()
    stray = encode_frame(link.session.channel, Detach(handle=UInt(link.handle), closed=True))
    pair.client.end_session(link.session)
    pair.exchange()
    assert read(pair.server, stray, pair.now_ms) == []
    assert pair.server.phase is ConnectionPhase.OPEN


@pytest.mark.parametrize(
    ("data", "condition"),
    [
        (b"\xff\xff\xff\xff\x02\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x07\x02\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x10\xff", "amqp:decode-error"),
    ],
)
def test_a_broken_frame_closes_the_connection_with_a_reason(
    pair: Pair, data: bytes, condition: str
) -> None:
    (closed,) = of(Closed, read(pair.server, data, pair.now_ms))
    assert said(closed).condition == condition
    at_client, _ = pair.exchange()
    assert said(of(Closed, at_client)[0]).condition == condition


def test_an_unknown_header_is_answered_with_ours() -> None:
    server = Connection("s", server=True, sasl=True)
    (closed,) = read(server, b"AMQP\x00\x00\x09\x01", 0)
    assert isinstance(closed, Closed)
    assert server.take_output(0) == AMQP_HEADER
    assert server.phase is ConnectionPhase.CLOSED


def test_a_silent_peer_is_given_up(pair: Pair) -> None:
    assert pair.server.next_deadline_ms() == 1_000 + IDLE_TIMEOUT_MS // 2
    (closed,) = of(Closed, pair.server.run_timers(1_000 + IDLE_TIMEOUT_MS))
    assert "the peer sent nothing for 240 s" in (said(closed).description or "")


def test_a_peer_that_has_said_nothing_yet_is_not_called_silent() -> None:
    client = Connection("c", sasl=True)
    assert client.run_timers(1_763_000_000_000) == []
    assert client.phase is not ConnectionPhase.CLOSED


def test_a_keep_alive_is_sent_when_the_peer_asks_for_one(pair: Pair) -> None:
    assert pair.server.run_timers(1_000 + IDLE_TIMEOUT_MS // 2) == []
    assert pair.server.take_output(200_000) == EMPTY_FRAME


def test_a_clock_that_is_set_back_stops_neither_heartbeats_nor_the_idle_time(pair: Pair) -> None:
    """Timers come by a clock that is not set; the times here are those of the machine's date."""
    pair.now_ms = 3_600_000
    pair.client.begin()
    pair.exchange()
    assert pair.server.run_timers(1_000) == []
    assert pair.server.take_output(1_000) == EMPTY_FRAME
    assert pair.server.next_deadline_ms() == 1_000 + IDLE_TIMEOUT_MS // 2
    assert of(Closed, pair.server.run_timers(1_000 + IDLE_TIMEOUT_MS))


def test_nothing_follows_a_close(pair: Pair) -> None:
    link, _ = pair.sender()
    link.send(b"m", b"t")
    read(pair.client, encode_frame(0, Close()), pair.now_ms)
    before = pair.client.take_output(pair.now_ms)
    link.send(b"m", b"t")
    assert before
    assert pair.client.take_output(pair.now_ms) == b""
