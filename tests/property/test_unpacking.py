"""The short way of unpacking gives what the long way gives, for any deliveries in any order."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp.message import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    Header,
    Properties,
    Sections,
    decode_header,
    encode_header,
    encode_map_section,
    encode_properties,
    join,
    split,
)
from twinbus.amqp.types import Int, Symbol, Timestamp
from twinbus.syphon.parcel import Parcel
from twinbus.syphon.unpacking import EXPIRED, Unpacker, unpack
from twinbus.transfer import to_backlog_sections

NOW_MS = 1_800_000_000_000
FORGED = "\t".join(("", "x-ms-path", "")) + "\u00a1\x06orders"
TEXT = st.one_of(st.text(max_size=8), st.sampled_from(["x-ms-path", FORGED, "x-ms-sessionid"]))
NAMES = st.text(min_size=1, max_size=8)
CUSTOM = st.dictionaries(NAMES, st.one_of(TEXT, st.integers(-5, 5), st.none()), max_size=4)


@st.composite
def deliveries(draw: st.DrawFn) -> bytes:
    """A backlog queue's delivery, now and then with more than the usual marks, or broken."""
    session = draw(st.one_of(st.none(), st.just("s")))
    mine: dict[Any, Any] = draw(st.sampled_from([{}, {}, {"x-mine": "kept"}]))
    sent = Sections(
        header=encode_header(
            Header(durable=True, ttl=draw(st.sampled_from([None, None, 5_000]))),
        ),
        message_annotations=encode_map_section(MESSAGE_ANNOTATIONS, mine) if mine else b"",
        properties=encode_properties(Properties(message_id=draw(TEXT), group_id=session)),
        application_properties=encode_map_section(APPLICATION_PROPERTIES, draw(CUSTOM)),
        body=b"\x00\x53\x75\xa0\x01b",
    )
    stored = to_backlog_sections(sent, draw(st.sampled_from(["orders", "Orders/", "events"])))
    marks = {
        Symbol("x-opt-sequence-number"): draw(st.sampled_from([1, 2, 2**40])),
        Symbol("x-opt-enqueued-time"): Timestamp(NOW_MS - draw(st.integers(0, 20_000))),
        Symbol("x-opt-locked-until"): Timestamp(NOW_MS + draw(st.integers(-5_000, 60_000))),
        Symbol("x-opt-message-state"): Int(0),
    }
    stored.message_annotations = encode_map_section(MESSAGE_ANNOTATIONS, {**marks, **mine})
    stored.header = encode_header(Header(durable=True, delivery_count=draw(st.integers(0, 2))))
    wire = join(stored)
    return wire[:-1] if draw(st.integers(0, 9)) == 0 else wire


def seen(parcel: Parcel) -> dict[str, Any]:
    return {name: getattr(parcel, name) for name in Parcel.__slots__}


@given(st.lists(deliveries(), max_size=12), st.booleans())
def test_the_short_way_is_the_long_way(wires: list[bytes], remaining_ttl: bool) -> None:
    unpacker = Unpacker(remaining_ttl=remaining_ttl)
    for wire in wires:
        quick = unpacker.unpack(wire, b"token", NOW_MS)
        assert seen(quick) == seen(unpack(wire, b"token", NOW_MS, remaining_ttl=remaining_ttl))


def delivery(ttl_ms: int | None, age_ms: int) -> bytes:
    stored = to_backlog_sections(Sections(header=encode_header(Header(ttl=ttl_ms))), "orders")
    marks = {Symbol("x-opt-enqueued-time"): Timestamp(NOW_MS - age_ms)}
    stored.message_annotations = encode_map_section(MESSAGE_ANNOTATIONS, marks)
    return join(stored)


def test_the_remaining_time_to_live_is_what_the_backlog_left_of_it() -> None:
    parcel = unpack(delivery(10_000, 4_000), b"t", NOW_MS, remaining_ttl=True)
    assert decode_header(split(parcel.wire).header).ttl == 6_000
    whole = unpack(delivery(10_000, 4_000), b"t", NOW_MS)
    assert decode_header(split(whole.wire).header).ttl == 10_000
    gone = unpack(delivery(10_000, 11_000), b"t", NOW_MS, remaining_ttl=True)
    assert gone.fault is not None
    assert gone.fault[0] == EXPIRED
    assert "10 s" in gone.fault[1]
