"""The short way of unpacking gives what the long way gives, for any deliveries in any order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from twinbus.amqp.message import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    MESSAGE_ANNOTATIONS,
    Header,
    Properties,
    Sections,
    decode_header,
    decode_properties,
    encode_header,
    encode_map_section,
    encode_message,
    encode_properties,
    join,
    split,
)
from twinbus.amqp.types import Described, Int, Symbol, Timestamp, ULong
from twinbus.client.peeked_message import read_peeked
from twinbus.servicebus.names import is_entity_name
from twinbus.transfer import unpacking
from twinbus.transfer.sections import from_backlog_sections, to_backlog_sections
from twinbus.transfer.unpacking import (
    EXPIRED,
    MALFORMED,
    NOT_RESTORED,
    BacklogMessage,
    Unpacker,
    unpack,
)

NOW_MS = 1_800_000_000_000
FORGED = "\t".join(("", "x-ms-path", "")) + "\u00a1\x06orders"
TEXT = st.one_of(st.text(max_size=8), st.sampled_from(["x-ms-path", FORGED, "x-ms-sessionid"]))
NAMES = st.text(min_size=1, max_size=8)
CUSTOM = st.dictionaries(NAMES, st.one_of(TEXT, st.integers(-5, 5), st.none()), max_size=4)


BODIES = (
    b"\x00\x53\x75\xa0\x01b",
    b"\x00\x53\x75\xb0\x00\x00\x01\x2c" + bytes(300),
    b"\x00\x53\x75\xa0\x00",
    b"\x00\x53\x75\xa0\x01b\x00\x53\x75\xa0\x01c",
    b"\x00\x53\x77\xa1\x01v",
    b"\x00\x80" + bytes(7) + b"\x75\xa0\x01w",
    b"",
)
FOOTER_BYTES = b"\x00\x53\x78\xc1\x07\x02\xa3\x01f\xa1\x01g"


@st.composite
def deliveries(draw: st.DrawFn) -> bytes:
    """A backlog queue's delivery: mostly a usual one, now and then with more to it, or broken."""
    if draw(st.integers(0, 3)):
        return draw(usual_deliveries())
    hop = Symbol("x-opt-hop")
    mine: dict[Any, Any] = draw(st.sampled_from([{}, {}, {"x-mine": "kept"}]))
    hops: dict[Symbol, object] = draw(st.sampled_from([{}, {hop: 1}, {hop: UUID(int=0)}]))
    return draw(
        made(
            session=draw(st.one_of(st.none(), st.just("s"))),
            mine=mine,
            ttl_ms=draw(st.sampled_from([None, None, 5_000])),
            body=draw(st.sampled_from(BODIES)) + draw(st.sampled_from([b"", FOOTER_BYTES])),
            number=draw(st.sampled_from([1, 2, 2**40])),
            delivery_count=draw(st.integers(0, 2)),
            has_token=draw(st.booleans()),
            hops=hops,
            cut=draw(st.sampled_from([0, 0, 1, 3])),
        )
    )


def usual_deliveries() -> st.SearchStrategy[bytes]:
    """As nearly all are; now and then cut short, or with another body."""
    return st.tuples(
        st.sampled_from((*BODIES[:2] * 4, *BODIES)), st.sampled_from([0, 0, 0, 0, 0, 1])
    ).flatmap(lambda found: made(body=found[0], cut=found[1]))


@st.composite
def made(
    draw: st.DrawFn,
    *,
    session: str | None = None,
    mine: dict[Any, Any] | None = None,
    ttl_ms: int | None = None,
    body: bytes = BODIES[0],
    number: int = 2**40,
    delivery_count: int = 0,
    has_token: bool = True,
    hops: dict[Symbol, object] | None = None,
    cut: int = 0,
) -> bytes:
    """A delivery of this shape, `cut` bytes short; texts and numbers are drawn."""
    mine = mine or {}
    sent = Sections(
        header=encode_header(Header(durable=True, ttl=ttl_ms)),
        message_annotations=encode_map_section(MESSAGE_ANNOTATIONS, mine) if mine else b"",
        properties=encode_properties(Properties(message_id=draw(TEXT), group_id=session)),
        application_properties=encode_map_section(APPLICATION_PROPERTIES, draw(CUSTOM)),
        body=body,
    )
    path = draw(st.sampled_from(["orders", "Orders/7", "events"]))
    own_id = draw(st.sampled_from([None, None, f"{draw(st.integers(0, 9)):032}"]))
    stored = to_backlog_sections(sent, path, own_id=own_id, now_ms=0)
    marks = {
        Symbol("x-opt-sequence-number"): number + draw(st.integers(0, 9)),
        Symbol("x-opt-enqueued-time"): Timestamp(NOW_MS - draw(st.integers(0, 20_000))),
        Symbol("x-opt-locked-until"): Timestamp(NOW_MS + draw(st.integers(-5_000, 60_000))),
        Symbol("x-opt-message-state"): Int(0),
    }
    stored.message_annotations = encode_map_section(MESSAGE_ANNOTATIONS, {**marks, **mine})
    stored.header = encode_header(Header(durable=True, delivery_count=delivery_count))
    token: dict[Symbol, object] = {Symbol("x-opt-lock-token"): draw(st.uuids())}
    both = {**(token if has_token else {}), **(hops or {})}
    if both:
        stored.delivery_annotations = encode_map_section(DELIVERY_ANNOTATIONS, both)
    wire = join(stored)
    return wire[:-cut] if cut else wire


def seen(message: BacklogMessage) -> dict[str, Any]:
    return {name: getattr(message, name) for name in BacklogMessage.__slots__}


@given(st.lists(deliveries(), max_size=12), st.booleans())
def test_the_short_way_is_the_long_way(wires: list[bytes], remaining_ttl: bool) -> None:
    unpacker = Unpacker(remaining_ttl=remaining_ttl)
    for path in (b"orders", b"Orders/7", b"events"):
        unpacker.unpack(usual(path), b"token", NOW_MS)
    for wire in wires:
        quick = unpacker.unpack(wire, b"token", NOW_MS)
        assert seen(quick) == seen(unpack(wire, b"token", NOW_MS, remaining_ttl=remaining_ttl))


ODD_VALUES = st.one_of(
    st.integers(0, 2**64 - 1).map(ULong),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Timestamp),
    st.floats(),
    st.text(max_size=3),
    st.text(min_size=129, max_size=140),
    st.binary(max_size=3),
    st.none() | st.booleans(),
    st.lists(st.integers(0, 5), max_size=2),
)
DESCRIPTORS = st.sampled_from(
    [Symbol("com.microsoft:timespan"), Symbol("com.microsoft:datetime-offset"), ULong(5), 2.5]
)
ODD = st.recursive(ODD_VALUES, lambda inner: st.builds(Described, DESCRIPTORS, inner), max_leaves=3)
ALIASES = (
    *("x-ms-sessionid", "x-ms-timetolive", "x-ms-scheduledenqueuetimeutc", "x-ms-path"),
    "x-twinbus-messageid",
)
KEYS: st.SearchStrategy[Any] = st.sampled_from([*ALIASES, "mine", 5, b"k", Timestamp(1)])
MARKS = ("x-opt-sequence-number", "x-opt-enqueued-time", "x-opt-locked-until", "x-mine")


@st.composite
def hostile_deliveries(draw: st.DrawFn) -> bytes:
    """A message with odd aliases and odd marks; now and then some bytes are others, or missing."""
    custom = draw(st.dictionaries(KEYS, ODD, max_size=4))
    if draw(st.booleans()):
        custom["x-ms-path"] = "orders"
    marks = draw(st.dictionaries(st.sampled_from(MARKS), ODD, max_size=4))
    sent = encode_message(
        header=Header(durable=True),
        message_annotations=dict(marks),
        properties=Properties(message_id=draw(st.sampled_from(["m", b"m", None]))),
        application_properties=custom,
        value=draw(ODD),
    )
    for at, byte in draw(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=2)):
        sent = sent[:at] + bytes((byte,)) + sent[at + 1 :]
    return sent[: draw(st.sampled_from([len(sent), len(sent), draw(st.integers(0, len(sent)))]))]


def with_alias(name: str, value: object) -> bytes:
    return encode_message(application_properties={name: value, "x-ms-path": "orders"}, data=b"b")


@given(st.lists(hostile_deliveries(), min_size=1, max_size=5), st.booleans())
@example([with_alias("x-ms-scheduledenqueuetimeutc", ULong(2**64 - 1))], False)
@example([b"\x00\x53\x73\xc0\x02\x01\xa1"], False)
def test_whatever_a_delivery_holds_its_neighbours_are_unpacked(
    hostile: list[bytes], remaining_ttl: bool
) -> None:
    unpacker = Unpacker(remaining_ttl=remaining_ttl)
    for wire in hostile:
        message = unpacker.unpack(wire, b"token", NOW_MS)
        assert seen(message) == seen(unpack(wire, b"token", NOW_MS, remaining_ttl=remaining_ttl))
        if message.fault is None:
            assert message.path == "orders" or is_entity_name(message.path)
            split(message.wire)
        else:
            assert message.fault[0] in REASONS, message.fault
            assert message.wire == b""
        assert unpacker.unpack(usual(b"orders"), b"token", NOW_MS).path == "orders"
        assert read_peeked("queue", wire).summary()["queue"] == "queue"


REASONS = {
    EXPIRED,
    MALFORMED,
    "AliasTypeUnknown",
    "AliasValueInvalid",
    "InvalidDestination",
    "MissingDestination",
}
"""All reasons but RestoreFailed, which stands for a case that nobody foresaw."""


@pytest.fixture
def restored_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    """Have something else restore messages."""
    return partial(monkeypatch.setattr, unpacking, "from_backlog_sections")


@pytest.mark.parametrize("is_learned", [False, True])
def test_an_error_that_nobody_foresaw_concerns_one_message(
    is_learned: bool, restored_by: Callable[[Callable[..., Any]], None]
) -> None:
    unpacker = Unpacker()
    if is_learned:
        unpacker.unpack(usual(b"orders"), b"t", NOW_MS)
    hostile = with_alias("x-ms-sessionid", "s")

    def restore(sections: Sections, **settings: Any) -> Any:
        if b"x-ms-sessionid" in sections.application_properties:
            raise ZeroDivisionError("nobody foresaw this")
        return from_backlog_sections(sections, **settings)

    restored_by(restore)
    message = unpacker.unpack(hostile, b"t", NOW_MS)
    assert message.fault is not None
    assert message.fault[0] == NOT_RESTORED
    assert "nobody foresaw this" in message.fault[1]
    assert unpacker.unpack(usual(b"orders"), b"t", NOW_MS).fault is None


def test_a_lack_of_memory_is_no_fault_of_the_message(
    restored_by: Callable[[Callable[..., Any]], None],
) -> None:
    def restore(*_: Any, **__: Any) -> Any:
        raise MemoryError

    restored_by(restore)
    with pytest.raises(MemoryError):
        Unpacker().unpack(usual(b"orders"), b"t", NOW_MS)


@pytest.mark.parametrize("enqueued_ms", [0, -(2**63), 2**63 - 1, NOW_MS + 10**9])
def test_an_absurd_enqueued_time_leaves_the_time_to_live_or_ends_it(enqueued_ms: int) -> None:
    message = unpack(delivery(10_000, NOW_MS - enqueued_ms), b"t", NOW_MS, remaining_ttl=True)
    if enqueued_ms < 0:
        assert message.fault is not None
        assert message.fault[0] == EXPIRED
    else:
        assert decode_header(split(message.wire).header).ttl == 10_000


def usual(path: bytes, note: str = "n", body: bytes = BODIES[0]) -> bytes:
    """A usual delivery, from which the short way is learned."""
    sent = Sections(
        header=encode_header(Header(durable=True)),
        properties=encode_properties(Properties(message_id="m")),
        application_properties=encode_map_section(APPLICATION_PROPERTIES, {"note": note}),
        body=body,
    )
    stored = to_backlog_sections(sent, path.decode(), now_ms=0)
    marks = {
        Symbol("x-opt-sequence-number"): 2**40,
        Symbol("x-opt-enqueued-time"): Timestamp(NOW_MS),
        Symbol("x-opt-locked-until"): Timestamp(NOW_MS),
        Symbol("x-opt-message-state"): Int(0),
    }
    stored.header = encode_header(Header(durable=True, delivery_count=0))
    stored.delivery_annotations = encode_map_section(
        DELIVERY_ANNOTATIONS, {Symbol("x-opt-lock-token"): UUID(int=1)}
    )
    stored.message_annotations = encode_map_section(MESSAGE_ANNOTATIONS, marks)
    return join(stored)


def test_the_short_way_is_taken() -> None:
    """Or the comparison above would compare the long way with itself."""
    unpacker = Unpacker()
    unpacker.unpack(usual(b"orders"), b"t", NOW_MS)
    for note in ("another", "x-ms-path"):
        message = BacklogMessage(b"t", 0)
        assert unpacker.unpack_known_shape(message, usual(b"orders", note), NOW_MS)
        assert message.path == "orders"
    message, stored = BacklogMessage(b"t", 0), split(usual(b"orders"))
    own = to_backlog_sections(
        split(unpack(usual(b"orders"), b"t", NOW_MS).wire), "orders", own_id="o", now_ms=0
    )
    stored.properties, stored.application_properties = own.properties, own.application_properties
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unpacker, "_unpack_known_header", None)
        assert unpacker.unpack_known_shape(message, join(stored), NOW_MS)
    assert message.message_id == "m"
    # What looks like a second alias takes the middle way, of which nothing is remembered.
    assert len(unpacker.restored) == 1


REPEATED = usual(b"orders", body=BODIES[1])


def learned() -> Unpacker:
    """Knows the shape of a repeated message, and its application properties."""
    unpacker = Unpacker()
    for _ in range(2):
        unpacker.unpack(REPEATED, b"token", NOW_MS)
    return unpacker


def test_a_repeated_message_is_not_skipped_through(monkeypatch: pytest.MonkeyPatch) -> None:
    unpacker, message = learned(), BacklogMessage(b"token", len(REPEATED))
    monkeypatch.setattr(unpacking, "outline", lambda *_: None)
    assert unpacker.unpack_known_shape(message, REPEATED, NOW_MS)
    assert seen(message) == seen(unpack(REPEATED, b"token", NOW_MS))


@given(
    st.lists(st.tuples(st.integers(0, len(REPEATED) - 250), st.integers(0, 255)), max_size=2),
    st.sampled_from([0, 0, 0, 1, 200, 310, 330]),
)
def test_a_repeated_message_with_other_bytes_is_read_as_the_long_way_reads_it(
    changes: list[tuple[int, int]], cut: int
) -> None:
    changed = bytearray(REPEATED)
    for place, value in changes:
        changed[place] = value
    wire = bytes(changed[: len(changed) - cut])
    quick = learned().unpack(wire, b"token", NOW_MS)
    assert seen(quick) == seen(unpack(wire, b"token", NOW_MS))


@pytest.mark.parametrize("learned", [False, True])
def test_the_id_before_the_diversion_is_restored_and_is_the_one_that_is_recorded(
    learned: bool,
) -> None:
    unpacker = Unpacker()
    if learned:
        unpacker.unpack(usual(b"orders"), b"t", NOW_MS)
    sent = split(usual(b"orders"))
    sent.application_properties = b""
    stored = to_backlog_sections(sent, "orders", own_id="own" * 10, now_ms=0)
    assert decode_properties(stored.properties).message_id == "own" * 10
    message = unpacker.unpack(join(stored), b"t", NOW_MS)
    assert message.message_id == "m"
    assert decode_properties(split(message.wire).properties).message_id == "m"
    assert read_peeked("queue", join(stored)).message_id == "m"
    # Also of a message that goes nowhere: its dead letter is recorded by this id.
    lost = with_alias("x-twinbus-messageid", "m").replace(b"orders", b"$rders")
    assert unpack(lost, b"t", NOW_MS).message_id == "m"


def delivery(ttl_ms: int | None, age_ms: int) -> bytes:
    stored = to_backlog_sections(
        Sections(header=encode_header(Header(ttl=ttl_ms))), "orders", now_ms=0
    )
    marks = {Symbol("x-opt-enqueued-time"): Timestamp(NOW_MS - age_ms)}
    stored.message_annotations = encode_map_section(MESSAGE_ANNOTATIONS, marks)
    return join(stored)


def test_the_remaining_time_to_live_is_what_the_backlog_left_of_it() -> None:
    message = unpack(delivery(10_000, 4_000), b"t", NOW_MS, remaining_ttl=True)
    assert decode_header(split(message.wire).header).ttl == 6_000
    whole = unpack(delivery(10_000, 4_000), b"t", NOW_MS)
    assert decode_header(split(whole.wire).header).ttl == 10_000
    gone = unpack(delivery(10_000, 11_000), b"t", NOW_MS, remaining_ttl=True)
    assert gone.fault is not None
    assert gone.fault[0] == EXPIRED
    assert "10 s" in gone.fault[1]
