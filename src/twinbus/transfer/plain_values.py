"""Reads what nearly all sections of messages hold: texts, bytes, numbers and null. Pure.

    found = annotations_in(data, start, end, is_wide)   # of a map whose count is at `start`
    values = values_in(data, start, end, is_wide)       # of a list or map

Both raise `Uncommon`, or one of `UNREADABLE`, for everything else, malformed bytes included: a
general decoder reads that. Texts are bytes, as they are on the wire.

The annotations of a queue's messages differ only in their numbers: what is learned from the first
one reads the others. `is_wide` is `WIDE` or 0.
"""

from __future__ import annotations

import struct
from typing import Any, Final
from uuid import UUID

WIDE: Final = 0x10
"""Set in the form of a list or map whose size and count have four bytes each."""

_U32: Final = struct.Struct(">I").unpack_from

_CONSTANTS: Final[dict[int, Any]] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
_SHORT_BYTES: Final = frozenset((0xA0, 0xA1, 0xA3))
_TEXTS: Final = frozenset((0xA1, 0xA3))
_LONG_BYTES: Final = frozenset((0xB0, 0xB1, 0xB3))
_FORMATS: Final = {
    0x50: "B", 0x51: "b", 0x52: "B", 0x53: "B", 0x54: "b", 0x55: "b", 0x60: "H", 0x61: "h",
    0x70: "I", 0x71: "i", 0x72: "f", 0x80: "Q", 0x81: "q", 0x82: "d", 0x83: "q",
}  # fmt: skip
"""Struct formats of numbers."""
_NUMBERS: Final[dict[int, tuple[Any, int]]] = {
    code: (struct.Struct(f">{form}").unpack_from, 1 + struct.calcsize(f">{form}"))
    for code, form in _FORMATS.items()
}
"""How a number is read, and its bytes with its format code."""

_BOOLEAN, _UUID = 0x56, 0x98
_NULL: Final = 0x40
_NULLS: Final = bytes((_NULL,)) * 16
"""How properties nearly always end."""

LEARNED_MAX: Final = 256
"""Layouts that are remembered; past that all are forgotten and learned again."""


class Uncommon(Exception):
    """A value that a general decoder is to read."""


UNREADABLE: Final = (Uncommon, IndexError, struct.error, TypeError, ValueError)


class _Layout:
    """Where the values stand in maps of one size; the bytes between them are the same in each."""

    __slots__ = ("_between", "_keys", "_unpack", "_uuids")

    def __init__(self, form: str, raw: bytes, keys: list[bytes], uuids: list[bytes]) -> None:
        self._unpack = struct.Struct(form).unpack_from
        self._between = self._unpack(raw)[::2]
        self._keys = keys
        self._uuids = uuids
        """The keys whose values are uuids."""

    @classmethod
    def of(cls, raw: bytes, is_wide: int) -> _Layout | None:
        """The layout of a map that was decoded; None: not all of its values have a fixed size."""
        form, at, before = ">", 4 if is_wide else 1, 0
        keys: list[bytes] = []
        uuids: list[bytes] = []
        while at < len(raw):
            start = at + 2
            at = start + raw[start - 1]
            is_uuid = raw[at] == _UUID
            kind = "16s" if is_uuid else _FORMATS.get(raw[at])
            key = raw[start:at]
            if raw[start - 2] not in _TEXTS or kind is None or key in keys:
                return None
            keys.append(key)
            if is_uuid:
                uuids.append(keys[-1])
            form += f"{at + 1 - before}s{kind}"
            at = before = at + 1 + struct.calcsize(f">{kind}")
        return cls(form, raw, keys, uuids) if keys else None

    def read(self, data: bytes, start: int) -> dict[Any, Any] | None:
        """Return the map whose count is at `start`; None: it is another one of the same size."""
        parts = self._unpack(data, start)
        if parts[::2] != self._between:
            return None
        found = dict(zip(self._keys, parts[1::2], strict=True))
        for key in self._uuids:
            found[key] = UUID(bytes=found[key])
        return found


_layouts: Final[dict[tuple[int, int], _Layout | None]] = {}
"""By the size of a map and whether it is wide; None: the first one of that size has none."""


def annotations_in(data: bytes, start: int, end: int, is_wide: int) -> dict[Any, Any]:
    """Return the annotations whose count is at `start`, and learn how they are laid out."""
    key = end - start, is_wide
    layout = _layouts.get(key)
    if layout is not None and (found := layout.read(data, start)) is not None:
        return found
    found = map_in(data, start, end, is_wide)
    if key not in _layouts:
        if len(_layouts) >= LEARNED_MAX:
            _layouts.clear()
        _layouts[key] = _Layout.of(data[start:end], is_wide)
    return found


def map_in(data: bytes, start: int, end: int, is_wide: int) -> dict[Any, Any]:
    values = values_in(data, start, end, is_wide)
    return dict(zip(values[::2], values[1::2], strict=True))


def values_in(data: bytes, offset: int, end: int, is_wide: int) -> list[Any]:
    """The values of a list or map whose count is at `offset`."""
    if is_wide:
        count = _U32(data, offset)[0]
        offset += 4
    else:
        count = data[offset]
        offset += 1
    if count > end - offset:
        raise Uncommon
    values: list[Any] = []
    for left in range(count, 0, -1):
        code = data[offset]
        if code == _NULL and end - offset == left and data[offset:end] == _NULLS[:left]:
            values += [None] * left
            return values
        if code in _SHORT_BYTES:
            start = offset + 2
            offset = start + data[start - 1]
            values.append(data[start:offset])
        elif code in _CONSTANTS:
            offset += 1
            values.append(_CONSTANTS[code])
        elif code in _NUMBERS:
            unpack, width = _NUMBERS[code]
            values.append(unpack(data, offset + 1)[0])
            offset += width
        elif code in _LONG_BYTES:
            start = offset + 5
            offset = start + _U32(data, offset + 1)[0]
            values.append(data[start:offset])
        elif code == _BOOLEAN:
            values.append(data[offset + 1] == 1)
            offset += 2
        elif code == _UUID:
            values.append(UUID(bytes=data[offset + 1 : offset + 17]))
            offset += 17
        else:
            raise Uncommon
    if offset != end:
        raise Uncommon
    return values
