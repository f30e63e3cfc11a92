"""Finds the end of an encoded value without decoding it, so a body of any size is cheap to copy."""

from __future__ import annotations

import struct
from typing import Final

from twinbus.amqp.types import DecodeError

Wire = bytes | memoryview

_U32 = struct.Struct(">I").unpack_from


def skip(data: Wire, offset: int) -> int:
    """The offset behind the value at `offset`, without building it."""
    try:
        width = WIDTHS[data[offset]]
        if width > 0:
            end = offset + width
        elif width == _SIZE_OF_1:
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
            elif width == _SIZE_OF_1:
                offset += 2 + data[offset + 1]
            elif width == _SIZE_OF_4:
                offset += 5 + _U32(data, offset + 1)[0]
            elif code == 0:
                # A descriptor and its value follow: one value more than there seemed to be.
                offset += 1
                count += 2
            else:
                raise unknown_code(code, offset)
            count -= 1
    except (IndexError, struct.error):
        offset = len(data) + 1
    if offset > len(data):
        raise DecodeError(f"the value at byte {start} ends beyond the {len(data)} bytes")
    return offset


_SIZE_OF_1, _SIZE_OF_4, _NO_WIDTH = -1, -4, 0


def _width_of(code: int) -> int:
    """Bytes of a value with its code byte, or where its size is found.

    The high half of a code gives it, also for codes that no type has yet.
    """
    if code >= 0xA0:
        return _SIZE_OF_4 if code & 0x10 else _SIZE_OF_1
    return {4: 1, 5: 2, 6: 3, 7: 5, 8: 9, 9: 17}.get(code >> 4, _NO_WIDTH)


WIDTHS: Final = tuple(_width_of(code) for code in range(256))
"""By format code; positive: of a fixed-width value, its code byte included."""


def unknown_code(code: int, offset: int) -> DecodeError:
    """The error for a byte that begins no value."""
    return DecodeError(f"byte {offset} is 0x{code:02x}, which is no AMQP format code")
