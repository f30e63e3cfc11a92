"""Messages into and out of the broker: what is read, what is stored, what a receiver gets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp import _encode as pyamqp_encode
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

from twinbus.amqp.encoding import encode
from twinbus.amqp.message import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Header,
    Properties,
    decode_header,
    decode_map,
    decode_properties,
    decode_value,
    encode_header,
    encode_map_section,
    encode_message,
    encode_properties,
    split,
)
from twinbus.amqp.types import Int, Symbol, Timestamp, UInt, ULong
from twinbus.broker.journal import MessageState, StoredMessage
from twinbus.broker.messages.incoming import Incoming, parse
from twinbus.broker.messages.rendering import render
from twinbus.broker.refusals import MalformedMessage
from twinbus.servicebus.names import PING_CONTENT_TYPE

UUID_1 = UUID("00112233-4455-6677-8899-aabbccddeeff")
NOW_MS = 1_700_000_000_000


def no_new_id() -> str:
    raise AssertionError("the message has an id")


def read(**parts: Any) -> Incoming:
    parts.setdefault("properties", Properties(message_id="m"))
    return parse(encode_message(**parts), no_new_id)


def stored(incoming: Incoming, **fields: Any) -> StoredMessage:
    return StoredMessage(
        7,
        enqueued_at_ms=NOW_MS,
        size_bytes=incoming.size_bytes,
        message_id=incoming.message_id,
        ttl_ms=incoming.ttl_ms,
        **fields,
    )


def test_what_the_engine_decides_by_is_read() -> None:
    wire = encode_message(
        header=Header(durable=True, ttl=60_000),
        message_annotations={
            "x-opt-scheduled-enqueue-time": Timestamp(NOW_MS),
            "x-opt-partition-key": "p",
            "mine": 1,
        },
        properties=Properties(message_id="m", content_type="text/plain", group_id="s", to="x"),
        data=b"body",
    )
    incoming = parse(wire, no_new_id)
    assert incoming.message_id == "m"
    assert incoming.session_id == "s"
    assert incoming.ttl_ms == 60_000
    assert incoming.scheduled_for_ms == NOW_MS
    assert incoming.partition_key == "p"
    assert incoming.content_type == "text/plain"
    assert not incoming.is_ping
    assert incoming.size_bytes == len(wire)
    assert incoming.sections == split(wire)


def test_a_ping_is_known_by_its_content_type() -> None:
    assert read(properties=Properties(message_id="m", content_type=PING_CONTENT_TYPE)).is_ping


@pytest.mark.parametrize(
    ("message_id", "text"),
    [
        ("m", "m"),
        ("m" * 300, "m" * 300),
        ("", ""),
        (ULong(7), "7"),
        (UUID_1, str(UUID_1)),
        (b"\x01\xff", "01ff"),
    ],
)
def test_ids_of_any_type_become_text_and_stay_as_sent(message_id: Any, text: str) -> None:
    incoming = read(properties=Properties(message_id=message_id))
    assert incoming.message_id == text
    delivered = split(render(incoming.payload, stored(incoming)))
    assert decode_properties(delivered.properties).message_id == message_id


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        bytes((0, 0x53, PROPERTIES, 0x45)),
        bytes((0, 0x53, PROPERTIES, 0xC0, 1, 0)),
        encode_properties(Properties(subject="s", group_id="g")),
        encode_properties(Properties(subject="s" * 230, group_id="g")),
        encode_properties(Properties(subject="s" * 300, group_id="g")),
        b"\x00\x80" + bytes(7) + bytes((PROPERTIES, 0xC0, 2, 1, 0x40)),
    ],
    ids=["absent", "list0", "no fields", "null", "growing past 255 bytes", "long", "wide"],
)
def test_a_message_without_an_id_gets_one_and_keeps_its_other_properties(
    properties: bytes,
) -> None:
    incoming = parse(properties + encode_message(data=b"body"), lambda: "0123456789abcdef" * 2)
    before = decode_properties(properties)
    before.message_id = "0123456789abcdef" * 2
    assert incoming.message_id == before.message_id
    assert incoming.session_id == before.group_id
    assert decode_properties(incoming.sections.properties) == before
    delivered = split(render(incoming.payload, stored(incoming)))
    assert decode_properties(delivered.properties) == before
    assert delivered.body == encode_message(data=b"body")


def test_an_absent_properties_section_is_made_as_the_wire_checklist_says() -> None:
    incoming = parse(encode_message(data=b"b"), lambda: "f" * 32)
    assert incoming.sections.properties == bytes.fromhex("005373c02301a120") + b"f" * 32


@pytest.mark.parametrize(
    ("ttl", "creation", "expiry", "expected"),
    [
        (None, None, None, 0),
        (5_000, None, None, 5_000),
        (5_000, 1_000, 9_000, 5_000),
        (None, 1_000, 9_000, 8_000),
        (None, None, 9_000, 0),
        (None, 1_000, None, 0),
        (None, 9_000, 1_000, 1),
        (0xFFFFFFFF, 0, 10**13, 10**13),
        (0xFFFFFFFF, None, None, 0xFFFFFFFF),
    ],
)
def test_the_header_tells_the_time_to_live_and_the_properties_where_it_cannot(
    ttl: int | None, creation: int | None, expiry: int | None, expected: int
) -> None:
    properties = Properties(message_id="m", creation_time=creation, absolute_expiry_time=expiry)
    assert read(header=Header(ttl=ttl), properties=properties).ttl_ms == expected


def test_a_delivery_carries_the_brokers_header_and_annotations() -> None:
    incoming = read(header=Header(durable=True, priority=9, ttl=60_000), data=b"body")
    message = stored(
        incoming, delivery_count=3, enqueued_sequence_number=5, state=MessageState.DEFERRED
    )
    delivered = split(render(incoming.payload, message, locked_until_ms=NOW_MS + 30_000))
    assert decode_header(delivered.header) == Header(
        durable=True, priority=9, ttl=60_000, delivery_count=3
    )
    annotations = decode_map(delivered.message_annotations)
    assert annotations == {
        "x-opt-sequence-number": 7,
        "x-opt-enqueued-time": NOW_MS,
        "x-opt-enqueue-sequence-number": 5,
        "x-opt-message-state": 1,
        "x-opt-locked-until": NOW_MS + 30_000,
    }
    kinds = {name.removeprefix("x-opt-"): type(value) for name, value in annotations.items()}
    assert kinds == {
        "sequence-number": int,
        "enqueued-time": Timestamp,
        "enqueue-sequence-number": int,
        "message-state": Int,
        "locked-until": Timestamp,
    }
    assert all(type(name) is Symbol for name in annotations)
    assert delivered.delivery_annotations == b""
    assert delivered.body == encode_message(data=b"body")


def test_a_header_that_was_not_sent_stays_null_but_for_the_delivery_count() -> None:
    incoming = read()
    delivered = split(render(incoming.payload, stored(incoming)))
    assert decode_header(delivered.header) == Header(delivery_count=0)
    assert "x-opt-locked-until" not in decode_map(delivered.message_annotations)


def test_a_longer_life_than_a_header_can_tell_is_told_as_its_longest() -> None:
    incoming = read()
    incoming.ttl_ms = 10**13
    delivered = split(render(incoming.payload, stored(incoming)))
    assert decode_header(delivered.header).ttl == 0xFFFFFFFF


def test_the_senders_other_annotations_are_kept_as_sent() -> None:
    sent = {
        "x-opt-partition-key": "p",
        "x-opt-scheduled-enqueue-time": Timestamp(5),
        "mine": UInt(5),
        "größe": Int(-1),
        ULong(9): [1, None],
        "long" * 80: b"x" * 300,
    }
    incoming = read(message_annotations=sent)
    delivered = decode_map(split(render(incoming.payload, stored(incoming))).message_annotations)
    assert {name: delivered[name] for name in sent} == sent
    assert [type(delivered[name]) for name in sent] == [type(value) for value in sent.values()]
    assert len(delivered) == len(sent) + 2


def test_annotations_of_an_earlier_delivery_are_replaced() -> None:
    incoming = read(data=b"body")
    first = render(
        incoming.payload,
        stored(incoming, dead_letter_source="old", delivery_count=4),
        locked_until_ms=5,
        lock_token=UUID_1.bytes_le,
    )
    again = parse(first, no_new_id)
    delivered = split(render(again.payload, stored(again)))
    assert set(decode_map(delivered.message_annotations)) == {
        "x-opt-sequence-number",
        "x-opt-enqueued-time",
    }
    assert delivered.delivery_annotations == b""
    assert decode_header(delivered.header).delivery_count == 0
    assert render(again.payload, stored(again)) == render(incoming.payload, stored(incoming))


def test_a_dead_letter_names_its_source_and_a_lock_token_is_a_delivery_annotation() -> None:
    incoming = read()
    message = stored(incoming, dead_letter_source="queue/" + "x" * 250)
    delivered = split(render(incoming.payload, message, lock_token=UUID_1.bytes_le))
    annotations = decode_map(delivered.message_annotations)
    assert annotations["x-opt-deadletter-source"] == "queue/" + "x" * 250
    assert decode_map(delivered.delivery_annotations) == {"x-opt-lock-token": UUID_1}


@pytest.mark.parametrize("sent", [None, {"mine": Int(5), "DeadLetterReason": "old", "b": b"x"}])
@pytest.mark.parametrize("value_size", [5, 300])
def test_overrides_are_merged_into_the_application_properties(
    sent: dict[str, object] | None, value_size: int
) -> None:
    incoming = read(application_properties=sent, value={"k": [1]})
    overrides: dict[str, object] = {"DeadLetterReason": "r" * value_size, "count": UInt(2)}
    rendered = render(incoming.payload, stored(incoming, overrides=overrides))
    delivered = split(rendered)
    assert decode_map(delivered.application_properties) == (sent or {}) | overrides
    assert delivered.properties == incoming.sections.properties
    assert decode_value(delivered.body) == {"k": [1]}
    plain = split(render(incoming.payload, stored(incoming)))
    assert decode_map(plain.application_properties) == (sent or {})


def test_overrides_need_no_body() -> None:
    incoming = read()
    rendered = render(incoming.payload, stored(incoming, overrides={"k": 1}))
    assert decode_map(split(rendered).application_properties) == {"k": 1}


BAD_APPLICATION_PROPERTIES = b"\x00\x53\x74\xc1\x04\x02\xa1\x05k"

MALFORMED = {
    "not a section": (b"hello", "not valid AMQP: byte 0 is 0x68"),
    "cut": (encode_message(data=b"x" * 10)[:-1], "ends beyond"),
    "id": (b"\x00\x53\x73\xc0\x02\x01\x41", "message-id is True, not a string, ulong"),
    "int id": (b"\x00\x53\x73\xc0\x03\x01\x54\x01", "message-id is 1, not a string"),
    "content type": (b"\x00\x53\x73\xc0\x08\x07" + b"\x40" * 6 + b"\x43", "content-type is 0, not"),
    "user id": (b"\x00\x53\x73\xc0\x05\x02\x40\xa1\x01u", "user-id is 'u', not binary"),
    "reply to": (b"\x00\x53\x73\xc0\x06\x05" + b"\x40" * 4 + b"\x41", "reply-to is True, not a"),
    "correlation id": (b"\x00\x53\x73\xc0\x07\x06" + b"\x40" * 5 + b"\x41", "correlation-id is"),
    "group sequence": (b"\x00\x53\x73\xc0\x0d\x0c" + b"\x40" * 11 + b"\x41", "not a uint"),
    "group id": (b"\x00\x53\x73\xc0\x0c\x0b" + b"\x40" * 10 + b"\x41", "group-id is True, not"),
    "utf-8": (b"\x00\x53\x73\xc0\x04\x01\xa1\x01\xff", "not UTF-8"),
    "fields": (b"\x00\x53\x73\xc0\x0f\x0e" + b"\x40" * 14, "14 fields, at most 13"),
    "short list": (b"\x00\x53\x73\xc0\x02\x02\x40", "ends beyond"),
    "long list": (b"\x00\x53\x73\xc0\x03\x01\x40\x40", "end at byte 7, their list at 8"),
    "no count": (b"\x00\x53\x73\xc0\x00", "ends beyond"),
    "header": (b"\x00\x53\x70\xc0\x02\x01\x43", "header.durable: 0 is not a boolean"),
    "scheduled": (
        encode_map_section(MESSAGE_ANNOTATIONS, {"x-opt-scheduled-enqueue-time": "soon"}),
        "x-opt-scheduled-enqueue-time is 'soon', not a timestamp",
    ),
    "partition key": (
        encode_map_section(MESSAGE_ANNOTATIONS, {"x-opt-partition-key": 5}),
        "x-opt-partition-key is 5, not a string",
    ),
    "odd map": (b"\x00\x53\x72\xc1\x02\x01\x40", "key without a value"),
    "annotations": (b"\x00\x53\x72\xc1\x04\x02\x40\x40\x40", "end at byte 8, their map at 9"),
    "application properties": (BAD_APPLICATION_PROPERTIES, "ends beyond"),
    "expiry": (
        b"\x00\x53\x73\xc0\x0b\x0a" + b"\x40" * 8 + b"\x41\x41",
        "absolute-expiry-time is True, not a timestamp",
    ),
}


@pytest.mark.parametrize(("wire", "reason"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_message_is_refused_with_one_clear_line(wire: bytes, reason: str) -> None:
    with pytest.raises(MalformedMessage, match=reason) as caught:
        parse(wire, lambda: "new")
    assert caught.value.condition == "amqp:decode-error"
    assert "\n" not in caught.value.description


def sdk_bytes(message: ServiceBusMessage) -> bytes:
    amqp = PyamqpTransport.to_outgoing_amqp_message(message.raw_amqp_message)
    return bytes(pyamqp_encode.encode_payload(bytearray(), amqp))


def test_a_message_of_the_python_sdk_goes_through_untouched() -> None:
    wire = sdk_bytes(
        ServiceBusMessage(
            b"x" * 1024,
            message_id="m",
            session_id="s",
            content_type="text/plain",
            application_properties={"a": 1, "b": "two", "c": 3.5},
        )
    )
    incoming = parse(wire, no_new_id)
    assert (incoming.message_id, incoming.session_id) == ("m", "s")
    before, after = split(wire), split(render(incoming.payload, stored(incoming)))
    assert after.properties == before.properties
    assert after.application_properties == before.application_properties
    assert after.body == before.body


def test_unusual_shapes_are_read_like_the_usual_one() -> None:
    header = encode_header(Header(ttl=5))
    properties = encode_properties(Properties(message_id="m", group_id="s"))
    application = encode_map_section(APPLICATION_PROPERTIES, {"k": 1})
    data = encode_message(data=b"one")
    usual = parse(header + properties + application + data, no_new_id)
    wide_map = b"\x00\x53\x74\xd1\x00\x00\x00\x09\x00\x00\x00\x02" + encode("k") + encode(1)
    wide_list = b"\x00\x53\x73\xd0" + (len(properties) - 2).to_bytes(4, "big")
    wide_list += properties[5:6].rjust(4, b"\x00") + properties[6:]
    unusual = parse(header + wide_list + wide_map + data, no_new_id)
    for name in ("message_id", "session_id", "ttl_ms", "content_type"):
        assert getattr(unusual, name) == getattr(usual, name)
    overrides = {"k": 2}
    for incoming in (usual, unusual):
        rendered = split(render(incoming.payload, stored(incoming, overrides=overrides)))
        assert decode_map(rendered.application_properties) == {"k": 2}
    many = parse(properties + data + data + b"\x00\x53\x78\xc1\x01\x00", no_new_id)
    assert render(many.payload, stored(many)).endswith(data + data + b"\x00\x53\x78\xc1\x01\x00")


@pytest.mark.parametrize("first_acquirer", [None, True, False])
@pytest.mark.parametrize("durable", [None, True, False])
def test_durable_and_first_acquirer_come_back_as_sent(
    durable: bool | None, first_acquirer: bool | None
) -> None:
    sent = Header(durable=durable, priority=1, first_acquirer=first_acquirer)
    incoming = read(header=sent)
    delivered = decode_header(split(render(incoming.payload, stored(incoming))).header)
    assert delivered == replace(sent, delivery_count=0)


def test_a_message_that_an_older_version_stored_has_no_first_acquirer() -> None:
    incoming = read(header=Header(durable=True))
    assert incoming.payload[1] == 0x41  # The format code of true, as older versions wrote it.


def test_keys_of_annotations_and_footers_are_symbols_also_if_they_were_sent_as_strings() -> None:
    def section(code: int, key: str) -> bytes:
        return b"\x00\x53" + bytes((code,)) + encode({key: 1})

    long = "k" * 300
    wire = b"".join(
        (
            section(0x71, "mark"),
            section(0x72, long),
            encode_properties(Properties(message_id="m")),
            encode_message(data=b"x"),
            section(0x78, "foot"),
        )
    )
    incoming = parse(wire, no_new_id)
    delivered = split(render(incoming.payload, stored(incoming)))
    keys = {
        key: type(key)
        for raw in (
            delivered.delivery_annotations,
            delivered.message_annotations,
            delivered.footer,
        )
        for key in decode_map(raw)
    }
    assert {key: keys[key] for key in ("mark", long, "foot")} == dict.fromkeys(
        ("mark", long, "foot"), Symbol
    )


def test_a_footer_that_is_no_whole_map_is_refused() -> None:
    footer = bytes((0, 0x53, 0x78, 0xC1, 2, 1, 0x40))
    with pytest.raises(MalformedMessage):
        parse(encode_message(properties=Properties(message_id="m"), data=b"x") + footer, no_new_id)


DAY_MS = 86_400_000


@pytest.mark.parametrize(
    "sent",
    [
        Properties(message_id="m"),
        Properties(message_id="m", subject="s" * 240, group_id="g", group_sequence=3),
        Properties(message_id="m", creation_time=1, absolute_expiry_time=1 + 200 * DAY_MS),
    ],
    ids=["short", "long", "with times"],
)
def test_a_long_time_to_live_is_told_by_the_times_of_creation_and_expiry(sent: Properties) -> None:
    incoming = read(properties=sent, data=b"body")
    incoming.ttl_ms = 100 * DAY_MS
    delivered = split(render(incoming.payload, stored(incoming), locked_until_ms=NOW_MS))
    assert decode_properties(delivered.properties) == replace(
        sent, creation_time=NOW_MS, absolute_expiry_time=NOW_MS + 100 * DAY_MS
    )
    assert delivered.body == encode_message(data=b"body")


def test_times_of_the_sender_that_tell_the_same_time_to_live_stay_as_they_are() -> None:
    sent = Properties(message_id="m", creation_time=1, absolute_expiry_time=1 + 100 * DAY_MS)
    incoming = read(properties=sent)
    assert incoming.ttl_ms == 100 * DAY_MS
    delivered = split(render(incoming.payload, stored(incoming)))
    assert decode_properties(delivered.properties) == sent


def test_a_time_to_live_of_49_days_leaves_the_properties_as_they_are() -> None:
    incoming = read()
    incoming.ttl_ms = 49 * DAY_MS
    delivered = split(render(incoming.payload, stored(incoming)))
    assert decode_properties(delivered.properties) == Properties(message_id="m")


def test_a_message_that_was_scheduled_once_says_so() -> None:
    incoming = read()
    message = stored(incoming, scheduled_for_ms=5)
    marks = decode_map(split(render(incoming.payload, message)).message_annotations)
    assert marks["x-opt-message-state"] == MessageState.SCHEDULED


def test_the_number_in_the_first_entity_is_the_same_in_a_locked_and_a_peeked_message() -> None:
    incoming = read(data=b"body")
    message = stored(incoming, enqueued_sequence_number=5)
    token = UUID_1.bytes_le
    locked = split(render(incoming.payload, message, locked_until_ms=NOW_MS, lock_token=token))
    peeked = split(render(incoming.payload, message))
    marks = decode_map(locked.message_annotations)
    assert marks.pop("x-opt-locked-until") == NOW_MS
    assert marks == decode_map(peeked.message_annotations)
    assert marks["x-opt-enqueue-sequence-number"] == 5
    assert locked.body == peeked.body
