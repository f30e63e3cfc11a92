"""Each fault of a proxy, frame by frame: what the client gets, and what the service never sees."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.proxy.core.wire import CLIENT_CHANNEL, NOW_MS, PAYLOAD, Wire
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.performatives import (
    Accepted,
    Attach,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Rejected,
    Released,
    SaslInit,
    Transfer,
)
from twinbus.amqp.types import Described
from twinbus.broker.faults import Fault, FaultPlan
from twinbus.proxy.core.links import TO_CLIENT, TO_SERVICE
from twinbus.proxy.core.relay import ConnectionRelay

BUSY = "com.microsoft:server-busy"


def open_wire(*faults: Fault) -> Wire:
    """Links are open before the faults are in force."""
    wire = Wire()
    wire.open_links()
    for fault in faults:
        wire.plan.add(fault)
    return wire


def ids(frames: list[Any]) -> list[int]:
    return [frame.delivery_id for frame in frames]


def test_without_a_fault_every_byte_passes_as_it_came_in_any_pieces() -> None:
    relay = ConnectionRelay(FaultPlan(lambda: 0.0, proxy=True))
    header = b"AMQP\x03\x01\x00\x00"
    secret = encode_frame(0, SaslInit("PLAIN", b"\0name\0key"), frame_type=1)
    heartbeat = b"\x00\x00\x00\x08\x02\x00\x00\x00"
    transfer = encode_frame(9, Transfer(0, 1, b"t", 0), PAYLOAD)
    stream = header + secret + header + heartbeat + transfer + encode_frame(0, Close())
    passed = b""
    for start in range(0, len(stream), 5):
        relay.receive(TO_SERVICE, stream[start : start + 5], NOW_MS)
        passed += relay.take(TO_SERVICE, NOW_MS)
    assert passed == stream
    assert relay.cut is None


def test_what_is_no_amqp_cuts_the_connection() -> None:
    relay = ConnectionRelay(FaultPlan(lambda: 0.0, proxy=True))
    relay.receive(TO_CLIENT, b"HTTP/1.1 200 OK\r\n", NOW_MS)
    assert relay.cut is not None
    assert relay.cut.startswith("what came to the client is not AMQP: a frame of ")


def test_a_throttle_answers_the_client_and_the_session_goes_on_with_other_numbers() -> None:
    wire = open_wire(Fault(kind="throttle", count=1))
    assert wire.send(0) == []
    rejected, granted = wire.arrived(TO_CLIENT)
    assert isinstance(rejected, Disposition)
    assert (rejected.role, rejected.first, rejected.settled) == (True, 0, True)
    assert isinstance(rejected.state, Rejected)
    assert rejected.state.error is not None
    assert rejected.state.error.condition == BUSY
    # The client has used one of 100 credits, which the service never saw: it gets it back.
    assert isinstance(granted, Flow)
    assert (granted.handle, granted.delivery_count, granted.link_credit) == (10, 1, 100)
    assert (granted.next_incoming_id, granted.next_outgoing_id) == (1, 50)
    # The second delivery of the client is the first of the service.
    assert ids(wire.send(1)) == [0]
    assert [(one.first, one.last) for one in wire.accept(0)] == [(1, 1)]
    [flow] = wire.service(Flow(1, 200, 50, 200, 10, 1, 100))
    assert (flow.next_incoming_id, flow.delivery_count) == (2, 2)
    [flow] = wire.client(Flow(50, 100, 2, 100, 0, 2, 0))
    assert (flow.next_outgoing_id, flow.delivery_count) == (1, 1)


def test_a_message_in_parts_is_refused_once_when_it_is_complete() -> None:
    wire = open_wire(Fault(kind="refuse_send", count=1))
    assert wire.send(0, more=True) == []
    assert wire.arrived(TO_CLIENT) == []
    assert wire.client(Transfer(0, None, None, None), PAYLOAD) == []
    assert isinstance(wire.arrived(TO_CLIENT)[0], Disposition)
    # Two frames were withheld, and one delivery.
    assert ids(wire.send(1)) == [0]
    [flow] = wire.service(Flow(1, 200, 50, 200))
    assert flow.next_incoming_id == 3


def test_a_send_that_hangs_has_no_answer_and_later_ones_pass() -> None:
    wire = open_wire(Fault(kind="hang", entity="ORDERS", count=1))
    assert wire.send(0) == []
    assert [type(one) for one in wire.arrived(TO_CLIENT)] == [Flow]
    assert ids(wire.send(1)) == [0]


def test_a_delivery_that_hangs_never_reaches_the_client() -> None:
    wire = open_wire(Fault(kind="hang", direction="to_client", count=1))
    assert wire.deliver(0) == []
    assert ids(wire.deliver(1)) == [0]
    [settled] = wire.client(Disposition(True, 0, None, True, Accepted()))
    assert (settled.first, settled.last) == (1, 1)


def test_a_drop_before_the_commit_cuts_and_passes_nothing() -> None:
    wire = open_wire(Fault(kind="drop_before_commit"))
    assert wire.send(0) == []
    assert wire.relay.cut == "drop_before_commit"


def test_a_drop_after_the_commit_cuts_in_place_of_the_answer() -> None:
    wire = open_wire(Fault(kind="drop_after_commit"))
    assert ids(wire.send(0)) == [0]
    assert wire.relay.cut is None
    assert wire.accept(0) == []
    assert wire.relay.cut == "drop_after_commit"


def test_a_message_that_the_service_refuses_was_not_committed() -> None:
    wire = open_wire(Fault(kind="drop_after_commit", count=1))
    wire.send(0)
    [answer] = wire.service(Disposition(True, 0, None, True, Released()))
    assert answer.state == Released()
    assert wire.relay.cut is None


def test_the_answer_to_a_transaction_can_be_lost() -> None:
    wire = open_wire(Fault(kind="drop_after_commit", entity="$coordinator"))
    wire.attach_coordinator()
    wire.send(0, handle=2)
    declared = Described(0x33, [b"id"])
    wire.service(Disposition(True, 0, None, True, declared))
    assert wire.relay.cut == "drop_after_commit"


def test_a_refused_link_gets_a_null_terminus_and_a_closing_detach() -> None:
    wire = Wire(Fault(kind="refuse_attach", condition="amqp:not-found"))
    assert wire.attach("out", 0, role=False) == []
    attach, detach = wire.arrived(TO_CLIENT)
    assert isinstance(attach, Attach)
    assert (attach.name, attach.role, attach.target) == ("out", True, None)
    assert isinstance(detach, Detach)
    assert (detach.handle, detach.closed) == (attach.handle, True)
    assert detach.error is not None
    assert detach.error.condition == "amqp:not-found"
    # Nothing of the link reaches the service, its end included; then the name is free.
    assert wire.client(Flow(50, 100, 0, 100, 0, 0, 0)) == []
    assert wire.client(Detach(0, True)) == []
    wire.plan.clear()
    assert [type(one) for one in wire.attach("out", 0, role=False)] == [Attach]


def test_a_link_that_hangs_is_unknown_to_the_service() -> None:
    wire = Wire(Fault(kind="hang", entity="orders", count=1))
    assert wire.attach("out", 0, role=False) == []
    assert wire.arrived(TO_CLIENT) == []
    assert wire.client(Detach(0, True)) == []
    assert [type(one) for one in wire.attach("again", 0, role=False)] == [Attach]


def test_a_detach_strikes_open_links_at_once_and_both_ends_go_on() -> None:
    wire = open_wire(Fault(kind="detach", condition="amqp:link:detach-forced", link="out"))
    wire.relay.strike_open_links(NOW_MS)
    [told] = wire.arrived(TO_CLIENT)
    assert isinstance(told, Detach)
    assert (told.handle, told.closed) == (10, True)
    assert told.error is not None
    assert told.error.condition == "amqp:link:detach-forced"
    [asked] = wire.arrived(TO_SERVICE)
    assert isinstance(asked, Detach)
    assert (asked.handle, asked.error) == (0, None)
    # What was under way goes no further, nor do the answers to the proxy's own frames.
    assert wire.send(0) == []
    assert wire.client(Detach(0, True)) == []
    assert wire.service(Detach(10, True)) == []
    wire.plan.clear()
    wire.attach("out", 0, role=False)
    assert [type(one) for one in wire.service(Attach("out", 10, True))] == [Attach]
    assert ids(wire.send(1)) == [0]


def test_a_detach_strikes_a_later_link_with_its_first_message() -> None:
    wire = open_wire(Fault(kind="detach", entity="orders", direction="to_service", count=1))
    assert [type(one) for one in wire.send(0)] == [Detach]
    assert [type(one) for one in wire.arrived(TO_CLIENT)] == [Detach]
    assert ids(wire.deliver(0)) == [0]


def test_half_open_lets_nothing_pass_and_cuts_nothing() -> None:
    wire = open_wire(Fault(kind="half_open"))
    wire.relay.strike_open_links(NOW_MS)
    assert wire.relay.is_silent
    assert wire.relay.cut is None
    assert wire.send(0) == []
    assert wire.deliver(0) == []


def test_half_open_in_one_direction_lets_the_other_one_pass() -> None:
    wire = open_wire(Fault(kind="half_open", direction="to_client"))
    wire.relay.strike_open_links(NOW_MS)
    assert not wire.relay.is_silent
    assert ids(wire.send(0)) == [0]
    assert wire.accept(0) == []


def test_a_delay_holds_back_its_session_in_its_direction_only_and_close_comes_last() -> None:
    wire = open_wire(Fault(kind="delay", delay_ms=100, entity="orders", direction="to_service"))
    assert wire.send(0) == []
    wire.plan.clear()
    wire.now_ms += 40
    assert wire.send(1) == []
    assert ids(wire.deliver(0)) == [0]
    wire.relay.receive(TO_SERVICE, encode_frame(5, End()), wire.now_ms)
    assert [type(one) for one in wire.arrived(TO_SERVICE)] == [End]
    wire.relay.receive(TO_SERVICE, encode_frame(0, Close()), wire.now_ms)
    assert wire.arrived(TO_SERVICE) == []
    assert wire.relay.next_ms() == NOW_MS + 100
    wire.now_ms = NOW_MS + 100
    assert [type(one) for one in wire.arrived(TO_SERVICE)] == [Transfer, Transfer, Close]
    assert wire.relay.next_ms() is None


def test_a_fault_can_strike_one_kind_of_frame_on_one_link() -> None:
    lost_answers = Fault(kind="hang", frame="disposition", direction="to_client", link="ou*")
    wire = open_wire(lost_answers)
    assert ids(wire.send(0)) == [0]
    assert wire.accept(0) == []
    assert wire.relay.cut is None
    wire.deliver(0)
    assert len(wire.client(Disposition(True, 0, None, True, Accepted()))) == 1
    assert wire.notes == ["orders: hang, disposition to client"]


def test_the_note_of_a_fault_has_no_payload() -> None:
    wire = open_wire(Fault(kind="throttle"))
    wire.send(0)
    assert wire.notes == ["orders: throttle, transfer to service"]


def test_too_much_that_is_held_back_stops_the_reading() -> None:
    wire = open_wire(Fault(kind="delay", delay_ms=1_000, entity="orders"))
    assert wire.relay.takes_more(TO_SERVICE)
    large = encode_frame(CLIENT_CHANNEL, Transfer(0, 0, b"t", 0), bytes(1_000_000))
    for _ in range(5):
        wire.relay.receive(TO_SERVICE, large, NOW_MS)
    assert not wire.relay.takes_more(TO_SERVICE)
    assert wire.relay.takes_more(TO_CLIENT)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_seed_strikes_the_same_messages(seed: int) -> None:
    def struck() -> list[int]:
        wire = open_wire()
        wire.plan._draw = random.Random(seed).random
        wire.plan.add(Fault(kind="throttle", probability=0.5))
        return [number for number in range(20) if not wire.send(number)]

    assert struck() == struck()
    assert 0 < len(struck()) < 20


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_whatever_is_withheld_each_answer_reaches_its_own_message(withheld: list[bool]) -> None:
    wire = open_wire()
    passed: list[int] = []
    for number, is_withheld in enumerate(withheld):
        if is_withheld:
            wire.plan.add(Fault(kind="throttle", count=1))
        frames = wire.send(number)
        wire.arrived(TO_CLIENT)
        assert bool(frames) != is_withheld
        if frames:
            # The service counts without a gap.
            assert ids(frames) == [len(passed)]
            passed.append(number)
    if passed:
        answers: list[Any] = wire.accept(0, len(passed) - 1)
        told = [n for one in answers for n in range(one.first, one.last + 1)]
        assert told == passed
