"""The AMQP type system: golden bytes and bad input; tests/property has every value."""

from __future__ import annotations

import struct
from enum import IntEnum
from uuid import UUID

import pytest

from twinbus.amqp.decoding import NESTING_MAX, ZERO_WIDTH_COUNT_MAX, decode, skip
from twinbus.amqp.encoding import encode
from twinbus.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal,
    DecodeError,
    Described,
    EncodeError,
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

UUID_1 = UUID("00112233-4455-6677-8899-aabbccddeeff")

CANONICAL: list[tuple[str, object]] = [
    ("40", None),
    ("41", True),
    ("42", False),
    ("50 ff", UByte(255)),
    ("60 ffff", UShort(65535)),
    ("43", UInt(0)),
    ("52 ff", UInt(255)),
    ("70 00000100", UInt(256)),
    ("44", ULong(0)),
    ("53 01", ULong(1)),
    ("80 0000000000000100", ULong(256)),
    ("51 80", Byte(-128)),
    ("61 8000", Short(-32768)),
    ("54 ff", Int(-1)),
    ("71 00000080", Int(128)),
    ("55 80", -128),
    ("55 7f", 127),
    ("81 0000000000000080", 128),
    ("81 8000000000000000", -(2**63)),
    ("72 3fc00000", Float32(1.5)),
    ("82 3ff8000000000000", 1.5),
    ("73 0001f600", Char("\U0001f600")),
    ("83 0000018bcfe56800", Timestamp(1_700_000_000_000)),
    ("83 ffffffffffffffff", Timestamp(-1)),
    ("98 00112233445566778899aabbccddeeff", UUID_1),
    ("74 01020304", Decimal(0x74, bytes([1, 2, 3, 4]))),
    ("84 0102030405060708", Decimal(0x84, bytes(range(1, 9)))),
    ("94 000102030405060708090a0b0c0d0e0f", Decimal(0x94, bytes(range(16)))),
    ("a0 03 010203", b"\x01\x02\x03"),
    ("a0 00", b""),
    ("a1 02 c3a9", "é"),
    ("a3 02 6869", Symbol("hi")),
    ("45", []),
    ("c0 04 02 54 01 40", [Int(1), None]),
    ("c0 02 01 45", [[]]),
    ("c1 01 00", {}),
    ("c1 07 02 a3 02 6869 55 05", {Symbol("hi"): 5}),
    ("00 a3 01 78 40", Described(Symbol("x"), None)),
    ("00 53 24 45", Described(ULong(0x24), [])),
    ("e0 12 02 81 0000000000000001 ffffffffffffffff", Array([1, -1], 0x81)),
    ("e0 07 02 a3 02 6869 01 61", Array([Symbol("hi"), Symbol("a")], 0xB3)),
    ("e0 02 00 70", Array([], 0x70)),
    ("e0 02 03 40", Array([None, None, None], 0x40)),
    ("e0 04 02 56 01 00", Array([True, False], 0x56)),
    ("e0 07 02 00 53 05 50 01 02", Array([UByte(1), UByte(2)], 0x50, ULong(5))),
]

WIDER: list[tuple[str, object]] = [
    ("56 00", False),
    ("56 01", True),
    ("52 00", UInt(0)),
    ("70 00000005", UInt(5)),
    ("80 0000000000000001", ULong(1)),
    ("71 00000001", Int(1)),
    ("81 0000000000000001", 1),
    ("b0 00000001 41", b"A"),
    ("b1 00000001 41", "A"),
    ("b3 00000001 41", Symbol("A")),
    ("c0 01 00", []),
    ("d0 00000005 00000001 40", [None]),
    ("d1 00000006 00000002 43 40", {UInt(0): None}),
    ("e0 03 01 52 05", Array([UInt(5)], 0x70)),
    ("e0 02 02 41", Array([True, True], 0x56)),
    ("e0 02 01 45", Array([[]], 0xD0)),
    ("e0 01 00", Array([], 0x40)),
    ("f0 0000000d 00000001 b3 00000004 61626364", Array([Symbol("abcd")], 0xB3)),
]


def as_bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


@pytest.mark.parametrize(("wire", "value"), CANONICAL)
def test_the_smallest_encoding_is_written_and_read(wire: str, value: object) -> None:
    data = as_bytes(wire)
    assert encode(value) == data
    assert decode(data) == (value, len(data))
    assert encode(decode(data)[0]) == data


@pytest.mark.parametrize(("wire", "value"), WIDER)
def test_wider_encodings_are_read_as_the_same_value(wire: str, value: object) -> None:
    data = as_bytes(wire)
    read, end = decode(data)
    assert (read, type(read), end) == (value, type(value), len(data))
    assert encode(read) == encode(value)
    assert skip(b"\x99" + data + b"\x41", 1) == len(data) + 1


def test_sizes_change_to_four_bytes_where_one_no_longer_holds_them() -> None:
    assert encode("x" * 255)[:2] == b"\xa1\xff"
    assert encode("x" * 256)[:5] == b"\xb1\x00\x00\x01\x00"
    assert encode([None] * 254)[:3] == bytes((0xC0, 255, 254))
    assert encode([None] * 255)[:9] == struct.pack(">BII", 0xD0, 259, 255)
    assert encode({"k": b"x" * 300})[0] == 0xD1
    assert encode(Array(["x" * 300, "y"]))[0] == 0xF0


def test_an_array_takes_its_type_from_its_first_element() -> None:
    assert decode(encode(Array([UInt(1), UInt(2)])))[0].code == 0x70
    assert decode(encode(Array([Symbol("a")])))[0].code == 0xB3
    assert decode(encode(Array()))[0].code == 0x40


def test_subclasses_are_written_as_what_they_extend() -> None:
    class Level(IntEnum):
        HIGH = 3

    assert encode(Level.HIGH) == encode(3)
    assert encode((1, 2)) == encode([1, 2])
    assert encode(bytearray(b"ab")) == encode(memoryview(b"ab")) == encode(b"ab")


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        2**63,
        UInt(-1),
        UInt(2**32),
        UByte(256),
        ULong(2**64),
        Int(2**31),
        Float32(1e300),
        "\ud800",
        Char("ab"),
        Array([1, "two"]),
        Array(["one", 2]),
        Array([None, 1]),
        Array(["text"], 0xB0),
        Array([object()]),
        [1, {"k": object()}],
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_amqp_cannot_carry_is_an_encode_error(value: object) -> None:
    with pytest.raises(EncodeError, match=r"AMQP|array"):
        encode(value)


MALFORMED = {
    "": "ends beyond",
    "70 0000": "ends beyond",
    "00": "ends beyond",
    "00 53 24": "ends beyond",
    "98 0011": "claims to end",
    "94 00": "claims to end",
    "a1 05 41": "claims to end at byte 7 of 3",
    "b1 ffffffff 41": "claims to end",
    "a1 01 ff": "not UTF-8",
    "a3 01 ff": "not UTF-8",
    "b1 00000001 ff": "not UTF-8",
    "56 02": "neither 0 nor 1",
    "73 00110000": "no Unicode character",
    "73 0000d800": "no Unicode character",
    "c0 00 40": "no room for its count",
    "c0 05 01 40": "claims to end",
    "c0 02 05 40": "5 elements are claimed in the 1 bytes",
    "c0 03 01 40 40": "the elements end at byte 4, their compound at 5",
    "c0 02 01 50 01": "the elements end at byte 5, their compound at 4",
    "d0 00000004 ffffffff": "4294967295 elements",
    "d0 00000003 00000000": "claims to end|no room",
    "c1 02 01 40": "a key without a value",
    "c1 05 04 43 40 43 40": "the same key twice",
    "c1 03 02 45 40": "a compound key",
    "e0 02 ff 40": "claims 255 elements of 0x40",
    "f0 00000005 7fffffff 40": "claims 2147483647 elements of 0x40",
    "e0 03 05 50 01": "claims 5 elements of 0x50",
    "e0 04 01 50 01 02": "the elements end at byte 5, their array at 6",
    "e0 05 01 00 43 00 43": "elements of 0x00",
    "e0 03 01 99 01": "no AMQP format code",
    "99": "byte 0 is 0x99, which is no AMQP format code",
    "c0 02 01 01": "no AMQP format code",
}


@pytest.mark.parametrize(("wire", "reason"), MALFORMED.items())
def test_malformed_bytes_are_a_decode_error_of_one_line(wire: str, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason) as caught:
        decode(as_bytes(wire))
    assert "\n" not in str(caught.value)


def test_skip_refuses_what_ends_beyond_the_buffer_and_unknown_codes() -> None:
    for wire in ("", "70 0000", "00", "00 53 24", "a1 05 41", "b1 ffffffff", "c0", "d0 00 00"):
        with pytest.raises(DecodeError, match="ends beyond"):
            skip(as_bytes(wire), 0)
    with pytest.raises(DecodeError, match="0x01, which is no AMQP format code"):
        skip(b"\x00\x43\x01", 0)


def nested_lists(levels: int) -> bytes:
    data = b"\x45"
    for _ in range(levels - 1):
        data = struct.pack(">BII", 0xD0, len(data) + 4, 1) + data
    return data


def test_nesting_is_bounded_for_every_kind_of_bracket() -> None:
    value, _ = decode(nested_lists(NESTING_MAX))
    assert encode(value)
    bombs = [nested_lists(NESTING_MAX + 2), nested_lists(20_000), b"\x00" * 100_000]
    arrays = b"\x40"
    for _ in range(NESTING_MAX + 1):
        arrays = struct.pack(">BIIB", 0xF0, len(arrays) + 4, 1, arrays[0]) + arrays[1:]
    bombs.append(arrays)
    for bomb in bombs:
        with pytest.raises(DecodeError, match="nested deeper than 32"):
            decode(bomb)


def test_skipping_a_bomb_is_cheap_and_safe() -> None:
    assert skip(nested_lists(20_000), 0) == len(nested_lists(20_000))
    with pytest.raises(DecodeError):
        skip(b"\x00" * 100_000, 0)


def test_an_array_of_elements_without_width_is_bounded() -> None:
    most = struct.pack(">BIIB", 0xF0, 5, ZERO_WIDTH_COUNT_MAX, 0x43)
    assert decode(most)[0] == [0] * ZERO_WIDTH_COUNT_MAX
    with pytest.raises(DecodeError, match="claims 65 elements"):
        decode(struct.pack(">BIIB", 0xF0, 5, ZERO_WIDTH_COUNT_MAX + 1, 0x43))
