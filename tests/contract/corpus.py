"""Messages with every property, annotation, body kind and AMQP type, for tests of fidelity.

`sdk_messages` are what the official SDK can send. `raw_messages` are what other clients send and
the SDK cannot: types it has no name for, and encodings that mean the same as shorter ones.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal as PyDecimal
from typing import Any
from uuid import UUID

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from twinbus.amqp import encoding
from twinbus.amqp.encoding import encode
from twinbus.amqp.message import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    SEQUENCE,
    VALUE,
    Header,
    Properties,
    encode_header,
    encode_map_section,
    encode_properties,
)
from twinbus.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Float32,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

GUID = UUID("00112233-4455-6677-8899-aabbccddeeff")
SESSION = "line 7"
"""The session of every message that has one."""


def typed(kind: str, value: object) -> dict[str, object]:
    """A value with its AMQP type, as the SDK lets one say it."""
    return {"TYPE": kind, "VALUE": value}


SDK_SIMPLE: dict[str, Any] = {
    "null": None,
    "true": True,
    "false": False,
    "ubyte": typed("UBYTE", 255),
    "ushort": typed("USHORT", 65_535),
    "uint-zero": typed("UINT", 0),
    "uint-small": typed("UINT", 200),
    "uint": typed("UINT", 2**32 - 1),
    "ulong-zero": typed("ULONG", 0),
    "ulong-small": typed("ULONG", 9),
    "ulong": typed("ULONG", 2**64 - 1),
    "byte": typed("BYTE", -128),
    "short": typed("SHORT", -32_768),
    "int-small": typed("INT", -3),
    "int": typed("INT", -(2**31)),
    "long-small": typed("LONG", 5),
    "long": typed("LONG", -(2**63)),
    "float": typed("FLOAT", 0.5),
    "double": 1e300,
    "timestamp": typed("TIMESTAMP", 1_700_000_000_123),
    "uuid": GUID,
    # Plain bytes would become a string: the SDK decodes them among application properties.
    "binary": typed("BINARY", b"\x00\xff"),
    "string": "käse, 乳酪 and 🧀",
    "string-long": "y" * 300,
    "symbol": typed("SYMBOL", b"a-symbol"),
    "decimal128": PyDecimal("12.5"),
}
"""Each simple type that the SDK has a name for, at an end of its range where it has one."""

SDK_COMPOUND: dict[str, Any] = {
    "list": [1, "two", None, [typed("UBYTE", 3)]],
    "map": {"k": typed("LONG", 2**40), "deep": {"er": 1.5}},
    "array": typed("ARRAY", [typed("LONG", 1), typed("LONG", 2)]),
    "described": (typed("SYMBOL", b"x:described"), typed("LONG", 7)),
}


def sdk_messages(later: datetime, *, readable: bool = False) -> list[Any]:
    """Messages for an entity without sessions; `later` is when the scheduled one comes.

    With `readable`, only what the SDK itself can read again: not the decimals that it writes.
    """
    simple = {k: v for k, v in SDK_SIMPLE.items() if not (readable and isinstance(v, PyDecimal))}
    # An application property that is null is none to the SDK's receiver.
    many: dict[Any, Any] = {name: value for name, value in simple.items() if value is not None}
    return [
        ServiceBusMessage(b"bytes", message_id="data"),
        ServiceBusMessage(b"", message_id="empty"),
        ServiceBusMessage("x" * 70_000, message_id="several frames"),
        AmqpAnnotatedMessage(
            data_body=[b"one ", b"", b"x" * 300], properties={"message_id": "several data sections"}
        ),
        AmqpAnnotatedMessage(
            value_body={**simple, **SDK_COMPOUND}, properties={"message_id": "value"}
        ),
        AmqpAnnotatedMessage(value_body="text", properties={"message_id": "value, text"}),
        AmqpAnnotatedMessage(
            sequence_body=[list(simple.values()), list(SDK_COMPOUND.values()), []],
            properties={"message_id": "sequences"},
        ),
        ServiceBusMessage(
            "all simple types", message_id="application properties", application_properties=many
        ),
        AmqpAnnotatedMessage(
            data_body=b"annotated",
            properties={"message_id": "annotations"},
            annotations={f"x-opt-mine-{k}": v for k, v in {**many, **SDK_COMPOUND}.items()},
            delivery_annotations={"x-opt-hop": 3},
            footer={"x-signature": b"\x01\x02", "x-count": typed("ULONG", 2)},
            header={"durable": True, "priority": 7},
        ),
        AmqpAnnotatedMessage(
            data_body=b"all properties",
            properties={
                "message_id": "properties",
                "user_id": b"someone",
                "to": "there",
                "subject": "subject",
                "reply_to": "here",
                "correlation_id": GUID,
                "content_type": "text/plain",
                "content_encoding": "br",
                "creation_time": 1_600_000_000_000,
                "group_sequence": 12,
                "reply_to_group_id": "answers",
            },
        ),
        AmqpAnnotatedMessage(data_body=b"u", properties={"message_id": GUID}),
        AmqpAnnotatedMessage(data_body=b"n", properties={"message_id": 2**63 + 1}),
        ServiceBusMessage(
            "traced",
            message_id="trace",
            application_properties={"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"},
        ),
        ServiceBusMessage("with a key", message_id="key", partition_key="p"),
        ServiceBusMessage("for hours", message_id="ttl", time_to_live=timedelta(hours=2)),
        ServiceBusMessage("for weeks", message_id="ttl, long", time_to_live=timedelta(days=49)),
        ServiceBusMessage("later", message_id="scheduled", scheduled_enqueue_time_utc=later),
        ServiceBusMessage(
            "later, and not for ever",
            message_id="scheduled, ttl",
            scheduled_enqueue_time_utc=later,
            time_to_live=timedelta(days=3),
            application_properties={"n": 1},
            subject="s",
        ),
    ]


def sdk_session_messages() -> list[Any]:
    """Messages of one session."""
    return [
        ServiceBusMessage("one", message_id="session", session_id=SESSION),
        ServiceBusMessage(
            "two", message_id="session is key", session_id=SESSION, partition_key=SESSION
        ),
        ServiceBusMessage(
            "three",
            message_id="session, all else",
            session_id=SESSION,
            reply_to_session_id="r",
            time_to_live=timedelta(minutes=90),
            application_properties={"n": 1, "s": "x" * 300},
            content_type="application/json",
        ),
    ]


SIMPLE: dict[str, object] = {
    "null": None,
    "boolean": True,
    "ubyte": UByte(1),
    "ushort": UShort(2),
    "uint": UInt(3),
    "ulong": ULong(4),
    "byte": Byte(-5),
    "short": Short(-6),
    "int": Int(-7),
    "long": -8,
    "float": Float32(1.5),
    "double": 2.5,
    "decimal32": Decimal(0x74, bytes(range(4))),
    "decimal64": Decimal(0x84, bytes(range(8))),
    "decimal128": Decimal(0x94, bytes(range(16))),
    "char": Char("🧀"),
    "timestamp": Timestamp(-1),
    "uuid": GUID,
    "binary": b"\x00",
    "string": "s",
    "symbol": Symbol("t"),
    "described": Described(Symbol("com.microsoft:uri"), "sb://somewhere/"),
    "described by number": Described(ULong(0x468C00000004), 3),
}
COMPOUND: dict[str, object] = {
    "list": [None, True, Int(1), "x", []],
    "map": {"a": {Symbol("b"): [1.5]}, 7: None},
    "array of long": Array([1, 2, 3]),
    "array of symbol": Array([Symbol("a"), Symbol("b")]),
    "array of none": Array([], 0xB3),
    "array of described": Array([1, 2], 0x81, Symbol("com.microsoft:timespan")),
    "array of arrays": Array([Array([1]), Array([2, 3])]),
}

WIDE_DESCRIPTOR = b"\x00\x80" + bytes(7)
"""A section's code as a ulong of eight bytes, the last of which follows."""


def raw_messages() -> dict[str, bytes]:
    """Encoded messages by message id, none of which has a session, a lifetime or a schedule."""
    data = _section(DATA, b"body")
    all_values = {**SIMPLE, **COMPOUND}
    marked = {Symbol(f"x-opt-{name}"): value for name, value in all_values.items()}
    made = {
        "types in properties": (
            encode_map_section(APPLICATION_PROPERTIES, {**SIMPLE, "array": Array([1, 2])}),
            data,
        ),
        "types in a value": (_section(VALUE, all_values),),
        "types in sequences": (
            _section(SEQUENCE, list(SIMPLE.values())),
            _section(SEQUENCE, list(COMPOUND.values())),
        ),
        "value, null": (_section(VALUE, None),),
        "value, described": (_section(VALUE, Described(Symbol("a:b"), [1, {"k": Byte(1)}])),),
        "wide forms": (
            # A map of 32 bits with keys and values that would fit 8; a string of four size bytes.
            b"\x00\x53\x74" + b"\xd1" + _sized(b"\x00\x00\x00\x02" + _long_string("k") * 2),
            WIDE_DESCRIPTOR + b"\x75" + b"\xb0" + (4).to_bytes(4, "big") + b"wide",
        ),
        "a section by its name": (
            b"\x00" + encoding.symbol("amqp:data:binary") + encode(b"named"),
        ),
        "wide integers": (
            b"\x00\x53\x74" + b"\xc1\x0d\x02\xa1\x01n\x81" + bytes(7) + b"\x01",
            b"\x00\x53\x77\x70\x00\x00\x00\x05",
        ),
        "footer": (data, encode_map_section(FOOTER, marked)),
        "no body": (encode_map_section(APPLICATION_PROPERTIES, {"only": "properties"}),),
        "an alias's text in a value": (
            encode_map_section(APPLICATION_PROPERTIES, {"note": "see x-ms-path \xa1\x09x-ms-path"}),
            data,
        ),
        "255 bytes of properties": (
            encode_map_section(APPLICATION_PROPERTIES, {"k": "v" * 247}),
            data,
        ),
        "256 bytes of properties": (
            encode_map_section(APPLICATION_PROPERTIES, {"k": "v" * 248}),
            data,
        ),
    }
    messages = {
        name: encode_properties(Properties(message_id=name)) + b"".join(sections)
        for name, sections in made.items()
    }
    messages["marks"] = b"".join(
        (
            encode_header(Header(durable=False, priority=0)),
            encode_map_section(DELIVERY_ANNOTATIONS, {"x-opt-hop": UByte(9)}),
            encode_map_section(MESSAGE_ANNOTATIONS, marked),
            encode_properties(Properties(message_id="marks", correlation_id=b"\x00\x01")),
            data,
        )
    )
    return messages


def _section(code: int, value: object) -> bytes:
    return encode(Described(ULong(code), value))


def _long_string(text: str) -> bytes:
    return b"\xb1" + _sized(text.encode())


def _sized(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content
