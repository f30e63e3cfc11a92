"""Values to bytes, each in its smallest form."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

from twinbus.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal,
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

Writer = Callable[[Any], bytes]


def encode(value: object) -> bytes:
    """The smallest encoding of a value; EncodeError if its type or its range has none."""
    try:
        return write(value)
    except (struct.error, OverflowError, UnicodeEncodeError, TypeError, AttributeError) as error:
        raise EncodeError(f"{value!r:.200} cannot be written as AMQP: {error}") from error


def write(value: object) -> bytes:
    """As `encode`, for use inside other writers: errors come as they are."""
    writer = WRITERS.get(type(value))
    return writer(value) if writer is not None else _writer_of(value)(value)


def _writer_of(value: object) -> Writer:
    """The writer of the nearest base class: an IntEnum is a long, an OrderedDict a map."""
    for base in type(value).__mro__:
        if base in WRITERS:
            return WRITERS[base]
    raise EncodeError(f"{value!r:.200} is a {type(value).__name__}, which has no AMQP type")


def _fixed(code: int, layout: str) -> Writer:
    pack = struct.Struct(">B" + layout).pack

    def write_fixed(value: int | float) -> bytes:
        return pack(code, value)

    return write_fixed


def _with_compact(compact: int, low: int, high: int, wide: Writer) -> Writer:
    """The compact code with one byte for values within [low, high], else the wide writer."""

    def write_integer(value: int) -> bytes:
        if low <= value <= high:
            return bytes((compact, value & 0xFF))
        return wide(value)

    return write_integer


_uint_above_0 = _with_compact(0x52, 1, 255, _fixed(0x70, "I"))
_ulong_above_0 = _with_compact(0x53, 1, 255, _fixed(0x80, "Q"))


def uint(value: int) -> bytes:
    return _uint_above_0(value) if value else b"\x43"


def ulong(value: int) -> bytes:
    return _ulong_above_0(value) if value else b"\x44"


def _variable(compact: int, wide: int, data: bytes) -> bytes:
    size = len(data)
    if size < 256:
        return bytes((compact, size)) + data
    return bytes((wide,)) + size.to_bytes(4, "big") + data


def binary(value: bytes | bytearray | memoryview) -> bytes:
    return _variable(0xA0, 0xB0, bytes(value))


def string(value: str) -> bytes:
    return _variable(0xA1, 0xB1, value.encode())


def symbol(value: str) -> bytes:
    return _variable(0xA3, 0xB3, value.encode())


def compound(compact: int, wide: int, count: int, content: bytes) -> bytes:
    """A list, map or array around its encoded content."""
    size = len(content)
    if size < 255 and count < 256:
        return bytes((compact, size + 1, count)) + content
    return struct.pack(">BII", wide, size + 4, count) + content


def list_of(items: list[bytes]) -> bytes:
    """A list of values that are encoded already."""
    if not items:
        return b"\x45"
    return compound(0xC0, 0xD0, len(items), b"".join(items))


def _list(value: Iterable[object]) -> bytes:
    return list_of([write(item) for item in value])


def _map(value: dict[Any, Any]) -> bytes:
    items = [write(part) for entry in value.items() for part in entry]
    return compound(0xC1, 0xD1, len(items), b"".join(items))


def symbolic_map(value: dict[Any, Any]) -> bytes:
    """A map whose str keys are written as symbols, as AMQP's `fields` and `annotations` want."""
    items: list[bytes] = []
    for key, item in value.items():
        items.append(symbol(key) if isinstance(key, str) else write(key))
        items.append(write(item))
    return compound(0xC1, 0xD1, len(items), b"".join(items))


def _array(value: Array) -> bytes:
    code = value.code
    if code is None:
        code = _code_of(value[0]) if value else 0x40
    elements = [_ELEMENTS[code](item) for item in value]
    if code in _COMPACT and all(len(element) < 256 for element in elements):
        code = _COMPACT[code]
        parts = [bytes((len(element),)) + element for element in elements]
    elif code in _COMPACT:
        parts = [len(element).to_bytes(4, "big") + element for element in elements]
    else:
        parts = elements
    head = b"" if value.descriptor is None else b"\x00" + write(value.descriptor)
    return compound(0xE0, 0xF0, len(value), head + bytes((code,)) + b"".join(parts))


def _code_of(item: object) -> int:
    for base in type(item).__mro__:
        if base in _ARRAY_CODES:
            return _ARRAY_CODES[base]
    raise EncodeError(f"{item!r:.200} cannot be the first element of an array without a code")


def _null_element(item: None) -> bytes:
    if item is not None:
        raise EncodeError(f"{item!r:.200} is not null, in an array of nulls")
    return b""


def _raw(item: bytes) -> bytes:
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(item)
    raise EncodeError(f"{item!r:.200} is not bytes, in an array of binaries")


def _wide_compound(write_items: Callable[[Any], list[bytes]]) -> Writer:
    """Without a code byte and with wide size and count, as elements of one array must all be."""

    def write_element(item: Any) -> bytes:
        items = write_items(item)
        content = b"".join(items)
        return struct.pack(">II", len(content) + 4, len(items)) + content

    return write_element


def _array_element(item: Array) -> bytes:
    encoded = _array(item)
    if encoded[0] == 0xF0:
        return encoded[1:]
    return struct.pack(">II", encoded[1] + 3, encoded[2]) + encoded[3:]


_COMPACT: Final = {0xB0: 0xA0, 0xB1: 0xA1, 0xB3: 0xA3}

_ELEMENTS: Final[dict[int, Writer]] = {
    **{
        code: struct.Struct(">" + layout).pack
        for code, layout in {
            0x50: "B", 0x51: "b", 0x56: "?", 0x60: "H", 0x61: "h", 0x70: "I", 0x71: "i",
            0x72: "f", 0x80: "Q", 0x81: "q", 0x82: "d", 0x83: "q",
        }.items()
    },
    **dict.fromkeys((0x74, 0x84, 0x94), attrgetter("data")),
    0x40: _null_element,
    0x73: lambda item: struct.pack(">I", ord(item)),
    0x98: attrgetter("bytes"),
    0xB0: _raw,
    0xB1: str.encode,
    0xB3: str.encode,
    0xD0: _wide_compound(lambda item: [write(part) for part in item]),
    0xD1: _wide_compound(lambda item: [write(part) for entry in item.items() for part in entry]),
    0xF0: _array_element,
}  # fmt: skip

_ARRAY_CODES: Final[dict[type, int]] = {
    type(None): 0x40, bool: 0x56, UByte: 0x50, Byte: 0x51, UShort: 0x60, Short: 0x61, UInt: 0x70,
    Int: 0x71, Float32: 0x72, Char: 0x73, ULong: 0x80, int: 0x81, float: 0x82, Timestamp: 0x83,
    UUID: 0x98, bytes: 0xB0, str: 0xB1, Symbol: 0xB3, list: 0xD0, dict: 0xD1, Array: 0xF0,
}  # fmt: skip

WRITERS: Final[dict[type, Writer]] = {
    type(None): lambda value: b"\x40",
    bool: lambda value: b"\x41" if value else b"\x42",
    int: _with_compact(0x55, -128, 127, _fixed(0x81, "q")),
    float: _fixed(0x82, "d"),
    str: string,
    bytes: binary,
    bytearray: binary,
    memoryview: binary,
    UUID: lambda value: b"\x98" + value.bytes,
    list: _list,
    tuple: _list,
    dict: _map,
    UByte: _fixed(0x50, "B"),
    UShort: _fixed(0x60, "H"),
    UInt: uint,
    ULong: ulong,
    Byte: _fixed(0x51, "b"),
    Short: _fixed(0x61, "h"),
    Int: _with_compact(0x54, -128, 127, _fixed(0x71, "i")),
    Timestamp: _fixed(0x83, "q"),
    Float32: _fixed(0x72, "f"),
    Char: lambda value: struct.pack(">BI", 0x73, ord(value)),
    Symbol: symbol,
    Decimal: lambda value: bytes((value.code,)) + value.data,
    Described: lambda value: b"\x00" + write(value.descriptor) + write(value.value),
    Array: _array,
}
