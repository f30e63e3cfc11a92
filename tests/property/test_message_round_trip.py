"""Messages through the broker: what a sender wrote is what a receiver reads, byte for byte."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.broker.fakes import FakeJournal, World
from twinbus.amqp.encoding import encode
from twinbus.amqp.message import (
    Header,
    Properties,
    Sections,
    data_sections,
    decode_header,
    decode_map,
    decode_properties,
    encode_message,
    join,
    sections_at,
    split,
)
from twinbus.amqp.types import DecodeError, Described, Int, Symbol, Timestamp, UInt, ULong
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.journal import MessageState, StoredMessage
from twinbus.broker.messages.incoming import parse
from twinbus.broker.messages.rendering import render, render_run
from twinbus.broker.refusals import ArgumentOutOfRange, MalformedMessage
from twinbus.broker.storage import records
from twinbus.servicebus.names import DATE_MAX_MS, DATE_MIN_MS

NOW_MS = 1_700_000_000_000
BROKERS = {
    "x-opt-sequence-number",
    "x-opt-enqueued-time",
    "x-opt-enqueue-sequence-number",
    "x-opt-message-state",
    "x-opt-locked-until",
    "x-opt-deadletter-source",
}

texts = st.text(max_size=30) | st.text(min_size=250, max_size=260)
simple = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    texts,
    st.binary(max_size=300),
    st.uuids(),
    st.integers(0, 2**32 - 1).map(UInt),
    st.integers(-(2**31), 2**31 - 1).map(Int),
    st.integers(0, 2**50).map(Timestamp),
    texts.map(Symbol),
)
ids = st.one_of(texts, st.uuids(), st.binary(max_size=20), st.integers(0, 2**64 - 1).map(ULong))
times = st.integers(0, 2**50)
headers = st.builds(
    Header,
    durable=st.none() | st.booleans(),
    priority=st.none() | st.integers(0, 255),
    ttl=st.none() | st.integers(0, 2**32 - 1),
    first_acquirer=st.none() | st.booleans(),
    delivery_count=st.none() | st.integers(0, 2**32 - 1),
)
properties = st.builds(
    Properties,
    message_id=st.none() | ids,
    user_id=st.none() | st.binary(max_size=20),
    to=st.none() | texts,
    subject=st.none() | texts,
    correlation_id=st.none() | ids,
    content_type=st.none() | texts,
    absolute_expiry_time=st.none() | times,
    creation_time=st.none() | times,
    group_id=st.none() | texts,
    group_sequence=st.none() | st.integers(0, 2**32 - 1),
    reply_to_group_id=st.none() | texts,
)
# Two annotations must have their type to be accepted; hypothesis finds their names in the source.
TYPED: dict[str, st.SearchStrategy[Any]] = {
    "x-opt-partition-key": st.none() | texts,
    "x-opt-scheduled-enqueue-time": st.none() | times.map(Timestamp),
}
annotation_maps = st.builds(
    lambda plain, typed: plain | typed,
    st.dictionaries(
        st.one_of(
            texts.filter(lambda name: name not in TYPED),
            st.sampled_from(sorted(BROKERS)),
            st.integers(0, 2**64 - 1).map(ULong),
        ),
        simple,
        max_size=5,
    ),
    st.fixed_dictionaries({}, optional=TYPED),
)
application_properties = st.dictionaries(texts, simple, max_size=6)


def section(code: int, value: object) -> bytes:
    return encode(Described(ULong(code), value))


bodies = st.one_of(
    st.just(b""),
    st.lists(st.binary(max_size=300), min_size=1, max_size=3).map(
        lambda parts: b"".join(section(0x75, part) for part in parts)
    ),
    st.lists(st.lists(simple, max_size=3), min_size=1, max_size=3).map(
        lambda parts: b"".join(section(0x76, part) for part in parts)
    ),
    simple.map(lambda value: section(0x77, value)),
)
footers = st.just(b"") | annotation_maps.map(lambda entries: section(0x78, entries))


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    head = encode_message(
        header=draw(st.none() | headers),
        delivery_annotations=draw(st.none() | annotation_maps),
        message_annotations=draw(st.none() | annotation_maps),
        properties=draw(st.none() | properties),
        application_properties=draw(st.none() | application_properties),
    )
    return head + draw(bodies) + draw(footers)


def stored(payload_size: int, **fields: Any) -> StoredMessage:
    return StoredMessage(7, enqueued_at_ms=NOW_MS, size_bytes=payload_size, **fields)


@given(messages())
def test_split_and_join_are_an_identity(wire: bytes) -> None:
    sections = split(wire)
    assert join(sections) == wire
    assert split(join(sections)) == sections
    assert sections_at(wire, None) == sections, "by skipping as by the outline"


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_a_batch_gives_back_its_messages(batch: list[bytes]) -> None:
    body = b"".join(section(0x75, message) for message in batch)
    assert list(data_sections(split(body).body)) == batch


@given(
    messages(),
    st.integers(0, 2**32 - 1),
    st.sampled_from(MessageState),
    st.integers(0, 2**50),
    st.none() | st.uuids(),
    st.none() | texts,
)
def test_a_receiver_gets_what_was_sent(
    wire: bytes,
    delivery_count: int,
    state: MessageState,
    locked_until_ms: int,
    token: Any,
    source: Any,
) -> None:
    sent = split(wire)
    incoming = parse(wire, lambda: "new-id")
    message = stored(
        len(wire),
        ttl_ms=incoming.ttl_ms,
        delivery_count=delivery_count,
        state=state,
        dead_letter_source=source,
    )
    got = split(
        render(
            incoming.payload,
            message,
            locked_until_ms=locked_until_ms,
            lock_token=token.bytes_le if token else None,
        )
    )
    assert got.application_properties == sent.application_properties
    assert got.body == sent.body
    assert entries(got.footer) == entries(sent.footer)
    before, after = decode_properties(sent.properties), decode_properties(got.properties)
    if before.message_id is not None:
        assert got.properties == sent.properties
    else:
        assert after.message_id == incoming.message_id == "new-id"
        after.message_id = None
        assert after == before
    header_sent, header_got = decode_header(sent.header), decode_header(got.header)
    assert (header_got.durable, header_got.priority) == (header_sent.durable, header_sent.priority)
    assert header_got.delivery_count == delivery_count
    theirs = decode_map(sent.message_annotations)
    kept = {name: value for name, value in theirs.items() if name not in BROKERS}
    annotated = decode_map(got.message_annotations)
    assert all(type(name) is Symbol or not name.isascii() for name in texts_of(annotated))
    ours = {name: annotated.pop(name) for name in BROKERS if name in annotated}
    assert encoded(annotated) == encoded(kept)
    assert ours["x-opt-sequence-number"] == 7
    assert ours.get("x-opt-message-state", MessageState.ACTIVE) == state
    assert ours.get("x-opt-locked-until", 0) == locked_until_ms
    assert ours.get("x-opt-deadletter-source") == source
    marks = decode_map(sent.delivery_annotations)
    marks.pop("x-opt-lock-token", None)
    got_marks = decode_map(got.delivery_annotations)
    assert got_marks.pop("x-opt-lock-token", None) == token
    assert encoded(got_marks) == encoded(marks)


run_facts = st.fixed_dictionaries(
    {},
    optional={
        "ttl_ms": st.sampled_from([0, 5, 2**32]),
        "delivery_count": st.integers(0, 2),
        "state": st.sampled_from(MessageState),
        "scheduled_for_ms": st.sampled_from([0, 9]),
        "enqueued_sequence_number": st.integers(0, 1),
        "dead_letter_source": st.sampled_from([None, "q"]),
        "overrides": st.sampled_from([None, {"k": 1}]),
    },
)


@given(
    st.lists(messages() | headers.map(lambda each: encode_message(header=each, data=b"x"))),
    st.lists(run_facts, min_size=1),
    st.data(),
)
def test_a_run_is_rendered_as_each_of_its_messages(
    wires: list[bytes], kinds: list[dict[str, Any]], data: st.DataObject
) -> None:
    payloads, locked = list[bytes | memoryview](), []
    for number, wire in enumerate(wires * 3):
        facts = data.draw(st.sampled_from(kinds))
        message = stored(len(wire), **facts)
        message.sequence_number, message.enqueued_at_ms = number, NOW_MS + number
        payload = parse(wire, lambda: "new-id").payload
        payloads.append(memoryview(payload) if number % 2 else payload)
        locked.append((message, bytes([*range(15), number]), NOW_MS + number % 3, None))
    heads, rests = render_run(payloads, locked)
    assert [b"".join(parts) for parts in zip(heads, rests, strict=True)] == [
        render(payload, message, locked_until_ms=until_ms, lock_token=token)
        for payload, (message, token, until_ms, _) in zip(payloads, locked, strict=True)
    ]


def texts_of(found: dict[Any, Any]) -> list[str]:
    return [name for name in found if isinstance(name, str)]


def encoded(found: dict[Any, Any]) -> list[tuple[object, bytes]]:
    """The entries in order, values in their encoding: keys that were strings become symbols."""
    return [(str(k) if isinstance(k, str) else encode(k), encode(v)) for k, v in found.items()]


def entries(footer: bytes) -> list[tuple[object, bytes]]:
    return encoded(decode_map(footer))


@given(messages(), st.dictionaries(texts, simple, min_size=1, max_size=4))
def test_overrides_change_the_application_properties_and_nothing_else(
    wire: bytes, overrides: dict[str, object]
) -> None:
    incoming = parse(wire, lambda: "new-id")
    plain = split(render(incoming.payload, stored(len(wire))))
    got = split(render(incoming.payload, stored(len(wire), overrides=overrides)))
    merged = decode_map(plain.application_properties) | overrides
    assert decode_map(got.application_properties) == merged
    got.application_properties = plain.application_properties
    assert got == plain


@given(messages())
def test_a_message_sent_on_as_received_is_the_same_message(wire: bytes) -> None:
    incoming = parse(wire, lambda: "new-id")
    message = stored(len(wire), ttl_ms=incoming.ttl_ms)
    again = parse(render(incoming.payload, message), lambda: "other")
    assert again.payload == incoming.payload
    assert again.message_id == incoming.message_id
    assert again.session_id == incoming.session_id
    assert again.scheduled_for_ms == incoming.scheduled_for_ms


@given(st.binary(max_size=80) | messages(), st.data())
def test_any_bytes_are_a_message_or_refused(wire: bytes, data: st.DataObject) -> None:
    damaged = bytearray(wire)
    for _ in range(data.draw(st.integers(0, 4)) if damaged else 0):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    try:
        sections = split(bytes(damaged))
    except DecodeError:
        sections = Sections()
    else:
        assert split(join(sections)) == sections
        assert sections_at(bytes(damaged), None) == sections
    try:
        incoming = parse(bytes(damaged), lambda: "new-id")
    except (ArgumentOutOfRange, MalformedMessage):
        return
    # What was accepted can be delivered, with and without overrides.
    assert split(render(incoming.payload, stored(0))).body == sections.body
    assert split(render(incoming.payload, stored(0, overrides={"k": 1}))).body == sections.body


wide = st.one_of(
    st.integers(0, 2**64 - 1).map(ULong),
    st.integers(-(2**63), 2**63 - 1).map(Timestamp),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([DATE_MIN_MS, DATE_MAX_MS, DATE_MIN_MS - 1, DATE_MAX_MS + 1]).map(Timestamp),
)
moments = st.integers(-(2**63), 2**63 - 1).map(Timestamp)


@given(
    at=st.none() | wide,
    times=st.none() | st.tuples(moments, moments),
    ttl=st.integers(0, 2**32 - 1),
)
def test_whatever_times_a_sender_gives_the_store_can_keep_what_is_taken(
    at: int | None, times: tuple[Timestamp, Timestamp] | None, ttl: int
) -> None:
    expires, created = times or (None, None)
    wire = encode_message(
        header=Header(ttl=ttl),
        properties=Properties(message_id="m", absolute_expiry_time=expires, creation_time=created),
        message_annotations={} if at is None else {"x-opt-scheduled-enqueue-time": at},
        data=b"x",
    )
    try:
        sent = parse(wire, str)
    except ArgumentOutOfRange:
        assert at is not None
        assert not DATE_MIN_MS <= at <= DATE_MAX_MS
        return
    journal = KeepsRecords()
    queue = World(journal).queue("q", QueueDescription())
    kept = queue.enqueue(sent, NOW_MS)
    assert kept is not None
    again = records.unpack_message(kept.sequence_number, journal.record)
    is_later = at is not None and at > NOW_MS
    assert again.scheduled_for_ms == kept.scheduled_for_ms == (at if is_later else 0)
    assert again.expires_at_ms == kept.expires_at_ms


class KeepsRecords(FakeJournal):
    """A journal that packs each message as the store on disk does."""

    record = b""

    def put(self, entity_id: int, message: StoredMessage, payload: bytes) -> None:
        self.record = records.message_head(message) + payload
        super().put(entity_id, message, payload)
