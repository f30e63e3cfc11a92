"""Bytes to values. Whatever the peer sends, the answer is a value or a `DecodeError`.

`skip` finds the end of a value without decoding it, so a body of any size is cheap to copy.

One reader per format code, in a table of 256. A reader gets the offset behind its code byte and the
nesting depth, and returns the value and the next offset. Readers may run off the end of the buffer:
`decode` turns the IndexError or struct.error into a DecodeError, at no cost when all is well.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from uuid import UUID

from twinbus.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal,
    DecodeError,
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

Wire = bytes | memoryview
Reader = Callable[[Wire, int, int], tuple[Any, int]]

NESTING_MAX: Final = 32
"""Deepest nesting of lists, maps, arrays and descriptors. Service Bus itself needs about six;
without a bound a few kilobytes of brackets would exhaust the interpreter's stack."""

ZERO_WIDTH_COUNT_MAX: Final = 64
"""Most elements of an array whose elements take no bytes. Ten bytes could otherwise claim 2^32
nulls. No client is known to send such an array at all."""

ALIKE_KEYS_MAX: Final = 64
"""Most keys of one map whose hashes equal that of another key. A peer can choose thousands of
uuids with one hash, and each would be compared with all the others. Texts hash at random."""

_U32 = struct.Struct(">I").unpack_from


MALFORMED: Final = (IndexError, struct.error, UnicodeDecodeError)
"""What readers raise on bad bytes besides DecodeError; every caller catches these as well."""


def malformed(error: Exception, data: Wire) -> DecodeError:
    """The DecodeError that stands for one of `MALFORMED`."""
    if isinstance(error, UnicodeDecodeError):
        return DecodeError(f"a text is not UTF-8: {error.reason} at byte {error.start} of it")
    return DecodeError(f"a value ends beyond the {len(data)} bytes")


def decode(data: Wire, offset: int = 0) -> tuple[Any, int]:
    """The value that begins at `offset`, and the offset behind it."""
    try:
        return READERS[data[offset]](data, offset + 1, 0)
    except MALFORMED as error:
        raise malformed(error, data) from None


def skip(data: Wire, offset: int) -> int:
    """The offset behind the value at `offset`, without building it."""
    try:
        width = WIDTHS[data[offset]]
        if width > 0:
            end = offset + width
        elif width == SIZE_OF_1:
            end = offset + 2 + data[offset + 1]
        else:
            return skip_many(data, offset, 1)
    except IndexError:
        end = len(data) + 1
    if end > len(data):
        raise DecodeError(f"the value at byte {offset} ends beyond the {len(data)} bytes")
    return end


def skip_many(data: Wire, offset: int, count: int) -> int:
    """The offset behind the `count` values that begin at `offset`, without building them."""
    start = offset
    try:
        while count:
            code = data[offset]
            width = WIDTHS[code]
            if width > 0:
                offset += width
            elif width == SIZE_OF_1:
                offset += 2 + data[offset + 1]
            elif width == _SIZE_OF_4:
                offset += 5 + _U32(data, offset + 1)[0]
            elif code == 0:
                # A descriptor and its value follow: one value more than there seemed to be.
                offset += 1
                count += 2
            else:
                _unknown(data, offset + 1)
            count -= 1
    except (IndexError, struct.error):
        offset = len(data) + 1
    if offset > len(data):
        raise DecodeError(f"the value at byte {start} ends beyond the {len(data)} bytes")
    return offset


SIZE_OF_1, _SIZE_OF_4, _NO_WIDTH = -1, -4, 0


def _width_of(code: int) -> int:
    """Bytes of a value with its code byte, or where its size is found.

    The high half of a code gives it, also for codes that no type has yet.
    """
    if code >= 0xA0:
        return _SIZE_OF_4 if code & 0x10 else SIZE_OF_1
    return {4: 1, 5: 2, 6: 3, 7: 5, 8: 9, 9: 17}.get(code >> 4, _NO_WIDTH)


WIDTHS: Final = tuple(_width_of(code) for code in range(256))
"""By format code; positive: of a fixed-width value, its code byte included."""


def _unknown(data: Wire, offset: int, depth: int = 0) -> tuple[Any, int]:
    at = offset - 1
    raise DecodeError(f"byte {at} is 0x{data[at]:02x}, which is no AMQP format code")


def _constant(value: object) -> Reader:
    return lambda data, offset, depth: (value, offset)


def _fixed(layout: str, make: Callable[[Any], object] | None) -> Reader:
    packing = struct.Struct(layout)
    unpack, width = packing.unpack_from, packing.size

    def read_plain(data: Wire, offset: int, depth: int) -> tuple[Any, int]:
        return unpack(data, offset)[0], offset + width

    def read(data: Wire, offset: int, depth: int) -> tuple[Any, int]:
        assert make is not None
        return make(unpack(data, offset)[0]), offset + width

    return read_plain if make is None else read


def _boolean(data: Wire, offset: int, depth: int) -> tuple[Any, int]:
    value = data[offset]
    if value > 1:
        raise DecodeError(f"the boolean at byte {offset} is 0x{value:02x}, neither 0 nor 1")
    return value == 1, offset + 1


def _char(data: Wire, offset: int, depth: int) -> tuple[Any, int]:
    (point,) = _U32(data, offset)
    if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
        raise DecodeError(
            f"the char at byte {offset} is 0x{point:x}, which is no Unicode character"
        )
    return Char(chr(point)), offset + 4


def _extent32(data: Wire, offset: int) -> tuple[int, int]:
    start = offset + 4
    end: int = start + _U32(data, offset)[0]
    if end > len(data):
        raise _too_long(offset, end, data)
    return start, end


def _too_long(offset: int, end: int, data: Wire) -> DecodeError:
    return DecodeError(f"the value at byte {offset - 1} claims to end at byte {end} of {len(data)}")


def _opaque(width: int, make: Callable[[bytes], object]) -> Reader:
    def read(data: Wire, offset: int, depth: int) -> tuple[Any, int]:
        end = offset + width
        if end > len(data):
            raise _too_long(offset, end, data)
        return make(bytes(data[offset:end])), end

    return read


def _binary8(data: Wire, offset: int, depth: int) -> tuple[Any, int]:
    start = offset + 1
    end = start + data[offset]
    if end > len(data):
        raise _too_long(offset, end, data)
    return bytes(data[start:end]), end


def _string8(data: Wire, offset: int, depth: int) -> tuple[Any, int]:
    start = offset + 1
    end = start + data[offset]
    if end > len(data):
        raise _too_long(offset, end, data)
    return str(data[start:end], "utf-8"), end


def _symbol8(data: Wire, offset: int, depth: int) -> tuple[Any, int]:
    # AMQP says ASCII, but the SDKs send annotation names of users in UTF-8; accept both.
    text, end = _string8(data, offset, depth)
    return Symbol(text), end


def _variable32(make: Callable[[Wire], object]) -> Reader:
    def read(data: Wire, offset: int, depth: int) -> tuple[Any, int]:
        start, end = _extent32(data, offset)
        return make(data[start:end]), end

    return read


def _compound_head(data: Wire, offset: int, wide: bool, depth: int) -> tuple[int, int, int]:
    """Count, offset of the first element, offset behind the last: all inside the buffer."""
    if depth >= NESTING_MAX:
        raise DecodeError(f"the value at byte {offset - 1} is nested deeper than {NESTING_MAX}")
    if wide:
        start, end = _extent32(data, offset)
        (count,), first = _U32(data, start), start + 4
    else:
        start = offset + 1
        end = start + data[offset]
        if end > len(data):
            raise _too_long(offset, end, data)
        count, first = data[start], start + 1
    if first > end:
        raise DecodeError(f"the compound at byte {offset - 1} has no room for its count")
    return count, first, end


def _elements(data: Wire, count: int, offset: int, end: int, depth: int) -> list[Any]:
    if count > end - offset:
        raise DecodeError(f"{count} elements are claimed in the {end - offset} bytes at {offset}")
    items = []
    for _ in range(count):
        value, offset = READERS[data[offset]](data, offset + 1, depth)
        items.append(value)
    if offset != end:
        raise DecodeError(f"the elements end at byte {offset}, their compound at {end}")
    return items


def _list(wide: bool) -> Reader:
    def read(data: Wire, offset: int, depth: int) -> tuple[Any, int]:
        count, first, end = _compound_head(data, offset, wide, depth)
        return _elements(data, count, first, end, depth + 1), end

    return read


def _map(wide: bool) -> Reader:
    def read(data: Wire, offset: int, depth: int) -> tuple[Any, int]:
        count, first, end = _compound_head(data, offset, wide, depth)
        items = _elements(data, count, first, end, depth + 1)
        if count % 2:
            raise DecodeError(f"the map at byte {offset - 1} has a key without a value")
        keys = items[::2]
        try:
            # Few keys are quickly compared, so common maps need no count.
            if len(keys) > ALIKE_KEYS_MAX and _alike(keys) > ALIKE_KEYS_MAX:
                raise DecodeError(f"the map at byte {offset - 1} has keys that all hash alike")
            entries = dict(zip(keys, items[1::2], strict=True))
        except TypeError:
            raise DecodeError(f"the map at byte {offset - 1} has a compound key") from None
        if len(entries) * 2 != count:
            raise DecodeError(f"the map at byte {offset - 1} has the same key twice")
        return entries, end

    return read


def _alike(keys: list[Any]) -> int:
    """How many keys have the hash of another."""
    return len(keys) - len({hash(key) for key in keys})


def _described(data: Wire, offset: int, depth: int) -> tuple[Any, int]:
    if depth >= NESTING_MAX:
        raise DecodeError(f"the value at byte {offset - 1} is nested deeper than {NESTING_MAX}")
    descriptor, offset = READERS[data[offset]](data, offset + 1, depth + 1)
    value, offset = READERS[data[offset]](data, offset + 1, depth + 1)
    return Described(descriptor, value), offset


def _array(wide: bool) -> Reader:
    def read(data: Wire, offset: int, depth: int) -> tuple[Any, int]:
        at = offset - 1
        count, offset, end = _compound_head(data, offset, wide, depth)
        if count == 0 and offset == end:
            return Array((), 0x40), end  # some encoders leave out the constructor as well
        descriptor = None
        code = data[offset]
        if code == 0:
            descriptor, offset = READERS[data[offset + 1]](data, offset + 2, depth + 1)
            code = data[offset]
        offset += 1
        room = ZERO_WIDTH_COUNT_MAX if code in _ZERO_WIDTH else end - offset
        if code == 0 or count > room:
            raise DecodeError(f"the array at byte {at} claims {count} elements of 0x{code:02x}")
        reader, items = READERS[code], []
        for _ in range(count):
            value, offset = reader(data, offset, depth + 1)
            items.append(value)
        if offset != end:
            raise DecodeError(f"the elements end at byte {offset}, their array at {end}")
        return Array(items, WIDE_CODES.get(code, code), descriptor), end

    return read


_ZERO_WIDTH: Final = frozenset((0x40, 0x41, 0x42, 0x43, 0x44, 0x45))

WIDE_CODES: Final = {
    0x41: 0x56, 0x42: 0x56, 0x43: 0x70, 0x44: 0x80, 0x45: 0xD0, 0x52: 0x70, 0x53: 0x80, 0x54: 0x71,
    0x55: 0x81, 0xA0: 0xB0, 0xA1: 0xB1, 0xA3: 0xB3, 0xC0: 0xD0, 0xC1: 0xD1, 0xE0: 0xF0,
}  # fmt: skip
"""The widest format code of a type, by its compact ones: the one code that stands for the type."""

READERS: Final[list[Reader]] = [_unknown] * 256
for _code, _reader in {
    0x00: _described,
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(UInt(0)),
    0x44: _constant(ULong(0)),
    0x45: lambda data, offset, depth: ([], offset),
    0x50: _fixed(">B", UByte),
    0x51: _fixed(">b", Byte),
    0x52: _fixed(">B", UInt),
    0x53: _fixed(">B", ULong),
    0x54: _fixed(">b", Int),
    0x55: _fixed(">b", None),
    0x56: _boolean,
    0x60: _fixed(">H", UShort),
    0x61: _fixed(">h", Short),
    0x70: _fixed(">I", UInt),
    0x71: _fixed(">i", Int),
    0x72: _fixed(">f", Float32),
    0x73: _char,
    0x74: _opaque(4, partial(Decimal, 0x74)),
    0x80: _fixed(">Q", ULong),
    0x81: _fixed(">q", None),
    0x82: _fixed(">d", None),
    0x83: _fixed(">q", Timestamp),
    0x84: _opaque(8, partial(Decimal, 0x84)),
    0x94: _opaque(16, partial(Decimal, 0x94)),
    0x98: _opaque(16, lambda raw: UUID(bytes=raw)),
    0xA0: _binary8,
    0xA1: _string8,
    0xA3: _symbol8,
    0xB0: _variable32(bytes),
    0xB1: _variable32(lambda data: str(data, "utf-8")),
    0xB3: _variable32(lambda data: Symbol(data, "utf-8")),
    0xC0: _list(wide=False),
    0xC1: _map(wide=False),
    0xD0: _list(wide=True),
    0xD1: _map(wide=True),
    0xE0: _array(wide=False),
    0xF0: _array(wide=True),
}.items():
    READERS[_code] = _reader
