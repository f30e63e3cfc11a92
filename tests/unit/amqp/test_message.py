"""Message sections: golden bytes, messages of the Python SDK, order and bad input."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from azure.servicebus._pyamqp import _decode as pyamqp_decode
from azure.servicebus._pyamqp import _encode as pyamqp_encode
from azure.servicebus._pyamqp import message as pyamqp

from twinbus.amqp.encoding import encode
from twinbus.amqp.message import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    Header,
    Properties,
    Sections,
    data_sections,
    decode_header,
    decode_map,
    decode_properties,
    decode_value,
    encode_header,
    encode_map_section,
    encode_message,
    encode_properties,
    join,
    split,
)
from twinbus.amqp.types import DecodeError, Described, Int, Symbol, Timestamp, UInt, ULong

UUID_1 = UUID("00112233-4455-6677-8899-aabbccddeeff")


def as_bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


HEADER = "00 53 70 c0 06 03 41 50 04 52 0a"
DELIVERY_ANNOTATIONS = "00 53 71 c1 05 02 a3 01 64 40"
ANNOTATIONS = "00 53 72 c1 06 02 a3 01 61 55 01"
PROPERTIES = "00 53 73 c0 04 01 a1 01 69"
APPLICATION = "00 53 74 c1 06 02 a1 01 6b 55 02"
DATA = "00 53 75 a0 02 4142"
SEQUENCE = "00 53 76 45"
VALUE = "00 53 77 a1 01 76"
FOOTER = "00 53 78 c1 01 00"
WHOLE = [HEADER, DELIVERY_ANNOTATIONS, ANNOTATIONS, PROPERTIES, APPLICATION, DATA, DATA, FOOTER]


def test_a_message_is_split_into_raw_sections_and_joined_again() -> None:
    wire = as_bytes("".join(WHOLE))
    sections = split(wire)
    assert sections == Sections(
        header=as_bytes(HEADER),
        delivery_annotations=as_bytes(DELIVERY_ANNOTATIONS),
        message_annotations=as_bytes(ANNOTATIONS),
        properties=as_bytes(PROPERTIES),
        application_properties=as_bytes(APPLICATION),
        body=as_bytes(DATA + DATA),
        footer=as_bytes(FOOTER),
    )
    assert join(sections) == wire


def test_delivery_annotations_may_come_last_as_the_python_sdk_sends_them() -> None:
    sections = split(as_bytes(HEADER + PROPERTIES + DATA + DELIVERY_ANNOTATIONS))
    assert sections.delivery_annotations == as_bytes(DELIVERY_ANNOTATIONS)
    assert sections.body == as_bytes(DATA)
    assert join(sections) == as_bytes(HEADER + DELIVERY_ANNOTATIONS + PROPERTIES + DATA)


@pytest.mark.parametrize(
    "wire",
    ["", DATA, VALUE, SEQUENCE + SEQUENCE, PROPERTIES, HEADER + VALUE + FOOTER, "00 53 77 40"],
)
def test_sections_may_be_absent(wire: str) -> None:
    assert join(split(as_bytes(wire))) == as_bytes(wire)


def test_descriptors_may_be_wide_or_symbolic_and_sizes_wide() -> None:
    symbolic = b"\x00" + encode(Symbol("amqp:application-properties:map")) + as_bytes("c1 01 00")
    wide = as_bytes("00 80 0000000000000073 d0 00000006 00000001 53 07")
    data = as_bytes("00 53 75 b0 00000001 41")
    sections = split(wide + symbolic + data)
    assert sections.properties == wide
    assert decode_properties(sections.properties) == Properties(message_id=7)
    assert sections.application_properties == symbolic
    assert decode_map(symbolic) == {}
    assert list(data_sections(sections.body)) == [b"A"]


REFUSED = {
    HEADER + HEADER: "header section at byte 11 is out of order",
    PROPERTIES + HEADER: "header section at byte 9 is out of order",
    APPLICATION + PROPERTIES: "properties section at byte 11 is out of order",
    DATA + PROPERTIES: "properties section at byte 7 is out of order",
    DATA + VALUE: "amqp-value section at byte 7 is out of order",
    DATA + SEQUENCE: "amqp-sequence section at byte 7 is out of order",
    VALUE + VALUE: "amqp-value section at byte 6 is out of order",
    FOOTER + FOOTER: "footer section",
    DATA + FOOTER + DATA: "data section at byte 13 is out of order",
    DATA + DELIVERY_ANNOTATIONS + DATA: "data section at byte 17 is out of order",
    DELIVERY_ANNOTATIONS + DATA + DELIVERY_ANNOTATIONS: "delivery-annotations section",
    "41": "byte 0 is 0x41",
    "00": "no content",
    "00 53": "no content",
    "00 53 75": "no content",
    "00 53 75 a0 05 41": "ends beyond",
    "00 53 75 b0 00000005 41": "ends beyond",
    "00 53 75 b0 00": "ends beyond",
    "00 53 75 a1 01 41": "the data at byte 0 has content of type 0xa1",
    "00 53 73 c1 01 00": "the properties at byte 0 has content of type 0xc1",
    "00 53 74 45": "the application-properties at byte 0 has content of type 0x45",
    "00 53 10 45": "none of a message's sections",
    "00 a3 01 78 45": "none of a message's sections",
    "00 45 45": "none of a message's sections",
    "00 53 77 00 53": "ends beyond",
    DATA + "ff": "byte 7 is 0xff",
}


@pytest.mark.parametrize(("wire", "reason"), REFUSED.items())
def test_what_is_not_a_message_is_a_decode_error_of_one_line(wire: str, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason) as caught:
        split(as_bytes(wire))
    assert "\n" not in str(caught.value)


def test_headers_and_properties_survive_the_wire() -> None:
    header = Header(durable=True, priority=9, ttl=60_000, first_acquirer=False, delivery_count=3)
    assert decode_header(encode_header(header)) == header
    assert decode_header(b"") == Header()
    properties = Properties(
        message_id=UUID_1,
        user_id=b"u",
        to="t",
        subject="s",
        reply_to="r",
        correlation_id=7,
        content_type="text/plain",
        content_encoding="utf-8",
        absolute_expiry_time=2,
        creation_time=1,
        group_id="g",
        group_sequence=5,
        reply_to_group_id="rg",
    )
    raw = encode_properties(properties)
    assert decode_properties(raw) == properties
    assert encode(Timestamp(2)) + encode(Timestamp(1)) in raw
    assert encode(Symbol("text/plain")) + encode(Symbol("utf-8")) in raw
    assert encode(ULong(7)) in raw
    assert decode_properties(b"") == Properties()


@pytest.mark.parametrize("message_id", ["m", 0, 2**63, UUID_1, b"\x01"])
def test_message_ids_keep_their_type(message_id: Any) -> None:
    properties = Properties(message_id=message_id, correlation_id=message_id)
    assert decode_properties(encode_properties(properties)) == properties


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("00 53 73 c0 02 01 41", "properties.message_id: True is not a message id"),
        ("00 53 73 c0 03 01 54 01", "properties.message_id: 1 is not a message id"),
        ("00 53 73 c0 02 01 a1", "ends beyond"),
        ("00 53 73 c0 04 01 a1 01 ff", "not UTF-8"),
        ("00 53 70 45", "is not a properties section"),
        ("00 53 99 45", "is not a properties section"),
        ("00 53 73 c0 0f 0e" + "40" * 14, "properties has 14 fields"),
    ],
)
def test_bad_properties_are_a_decode_error(raw: str, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        decode_properties(as_bytes(raw))


def test_map_sections_write_the_keys_their_section_wants() -> None:
    annotations = encode_map_section(MESSAGE_ANNOTATIONS, {"a": 1, ULong(5): Int(2)})
    assert annotations == as_bytes("00 53 72 c1 0a 04 a3 01 61 55 01 53 05 54 02")
    assert decode_map(annotations) == {"a": 1, 5: 2}
    application = encode_map_section(APPLICATION_PROPERTIES, {Symbol("k"): 2})
    assert application == as_bytes(APPLICATION)
    assert decode_map(b"") == {}


def test_a_batch_yields_the_messages_in_its_data_sections() -> None:
    messages = [encode_message(data=b"x" * size) for size in (0, 1, 254, 300)]
    body = b"".join(encode(Described(ULong(0x75), message)) for message in messages)
    assert list(data_sections(split(as_bytes(ANNOTATIONS) + body).body)) == messages
    assert list(data_sections(b"")) == []
    with pytest.raises(DecodeError, match="amqp-value section among its data"):
        list(data_sections(as_bytes(VALUE)))


def test_the_builder_makes_whole_messages() -> None:
    wire = encode_message(
        header=Header(ttl=5),
        delivery_annotations={"x-opt-lock-token": UUID_1},
        message_annotations={"x": UInt(1)},
        properties=Properties(correlation_id="c"),
        application_properties={"statusCode": Int(200), "errorCondition": Symbol("amqp:x")},
        value={"sequence-numbers": [1, 2]},
    )
    sections = split(wire)
    assert join(sections) == wire
    assert decode_header(sections.header).ttl == 5
    assert decode_map(sections.delivery_annotations) == {"x-opt-lock-token": UUID_1}
    assert decode_properties(sections.properties).correlation_id == "c"
    status = decode_map(sections.application_properties)["statusCode"]
    assert (type(status), status) == (Int, 200)
    assert decode_value(sections.body) == {"sequence-numbers": [1, 2]}
    assert split(encode_message(value=None)).body == as_bytes("00 53 77 40")
    assert encode_message(data=b"AB") == as_bytes(DATA)
    assert encode_message() == b""


def test_a_message_of_the_python_sdk_is_read() -> None:
    theirs = pyamqp.Message(
        header=pyamqp.Header(True, 4, 60_000, None, None),
        message_annotations={"x-opt-partition-key": "k"},
        properties=pyamqp.Properties(
            **(dict.fromkeys(pyamqp.Properties._fields) | {"message_id": "m", "group_id": "s"})
        ),
        application_properties={"a": 1, "b": "two"},
        delivery_annotations={"d": 1},
        data=[b"one", b"two"],
    )
    sections = split(bytes(pyamqp_encode.encode_payload(bytearray(), theirs)))
    assert decode_header(sections.header) == Header(durable=True, priority=4, ttl=60_000)
    assert decode_map(sections.message_annotations) == {"x-opt-partition-key": "k"}
    assert decode_map(sections.delivery_annotations) == {"d": 1}
    assert decode_properties(sections.properties) == Properties(message_id="m", group_id="s")
    assert decode_map(sections.application_properties) == {"a": 1, "b": "two"}
    assert list(data_sections(sections.body)) == [b"one", b"two"]


def test_the_python_sdk_reads_our_message() -> None:
    theirs = pyamqp_decode.decode_payload(
        memoryview(
            encode_message(
                header=Header(ttl=5, delivery_count=2),
                message_annotations={"x-opt-sequence-number": 9},
                properties=Properties(message_id="m", creation_time=5),
                application_properties={"k": 2},
                data=b"AB",
            )
        )
    )
    assert theirs.header is not None
    assert (theirs.header.ttl, theirs.header.delivery_count) == (5, 2)
    assert theirs.message_annotations == {b"x-opt-sequence-number": 9}
    assert theirs.properties is not None
    assert (theirs.properties.message_id, theirs.properties.creation_time) == (b"m", 5)
    assert theirs.application_properties == {b"k": 2}
    assert list(theirs.data or []) == [b"AB"]


def test_a_footer_may_stand_before_the_body_as_rhea_writes_it() -> None:
    early = split(as_bytes(PROPERTIES + FOOTER + DATA + DATA))
    assert early == split(as_bytes(PROPERTIES + DATA + DATA + FOOTER))
    assert early.footer == as_bytes(FOOTER)
