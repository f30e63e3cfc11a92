"""Composite types: a described list whose fields have names, kinds and an order.

A `FieldType` reads a value at an offset and checks its type, so that a decoded performative holds
what its annotations say. It writes a Python value as the type that AMQP gives the field, so that
callers use plain ints and strings. Null is None for every type.

`define` ties a dataclass to its descriptor and to the kinds of its fields; `read_composite` and
`write_composite` then work for all of them. Lists are written in full length, never trimmed: SDK
7.14 indexes fields by position and fails on a trimmed list. On reading any length is taken.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final

from twinbus.amqp import encoding
from twinbus.amqp.decoding import READERS, Wire, decode
from twinbus.amqp.types import Array, DecodeError, Described, EncodeError

_U32 = struct.Struct(">I").unpack_from

NULL: Final = b"\x40"


@dataclasses.dataclass(slots=True)
class FieldType:
    name: str
    accepts: Callable[[Any], bool]
    write_value: Callable[[Any], bytes]

    def read(self, data: Wire, offset: int) -> tuple[Any, int]:
        """The field's value at `offset` and the offset behind it."""
        value, end = READERS[data[offset]](data, offset + 1, 0)
        if value is not None and not self.accepts(value):
            raise DecodeError(f"{value!r:.80} is not a {self.name}")
        return value, end

    def write(self, value: object) -> bytes:
        """The field's encoding, null for None."""
        if value is None:
            return NULL
        try:
            return self.write_value(value)
        except (struct.error, TypeError, AttributeError, OverflowError, UnicodeEncodeError):
            raise EncodeError(f"{value!r:.80} cannot be written as {self.name}") from None


class Multiple(FieldType):
    """Symbols: on the wire null, one symbol or an array of them; here None or a list of str."""

    __slots__ = ()

    def read(self, data: Wire, offset: int) -> tuple[Any, int]:
        value, end = FieldType.read(self, data, offset)
        return ([value] if isinstance(value, str) else value), end


def _is_symbols(value: object) -> bool:
    if isinstance(value, Array):
        return all(isinstance(item, str) for item in value)
    return isinstance(value, str)


def _unsigned(name: str, bits: int, write: Callable[[Any], bytes]) -> FieldType:
    limit = 1 << bits

    def accepts(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit

    return FieldType(name, accepts, write)


def _instance_of(cls: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, cls)


BOOLEAN: Final = FieldType(
    "boolean", _instance_of(bool), lambda value: b"\x41" if value else b"\x42"
)
UBYTE: Final = _unsigned("ubyte", 8, lambda value: bytes((0x50, value)))
USHORT: Final = _unsigned("ushort", 16, lambda value: struct.pack(">BH", 0x60, value))
UINT: Final = _unsigned("uint", 32, encoding.uint)
ULONG: Final = _unsigned("ulong", 64, encoding.ulong)
BINARY: Final = FieldType("binary", _instance_of(bytes), encoding.binary)
# Symbols and strings are taken for each other on reading: peers do mix them up.
STRING: Final = FieldType("string", _instance_of(str), encoding.string)
SYMBOL: Final = FieldType("symbol", _instance_of(str), encoding.symbol)
# Always an array, even of one: pyamqp iterates over what it reads here.
SYMBOLS: Final = Multiple(
    "symbol or array of symbols", _is_symbols, lambda value: encoding.write(Array(value, 0xB3))
)
FIELDS: Final = FieldType("map", _instance_of(dict), encoding.symbolic_map)
MAP: Final = FieldType("map", _instance_of(dict), encoding.write)
ANY: Final = FieldType("value", lambda _value: True, encoding.write)


@dataclasses.dataclass(slots=True)
class Layout:
    make: Callable[..., Any]
    name: str
    fields: tuple[Field, ...]
    head: bytes
    keeps_raw: bool


@dataclasses.dataclass(slots=True)
class Field:
    name: str
    kind: FieldType
    required: bool
    default: object
    """What null stands for."""


LAYOUTS: Final[dict[type, Layout]] = {}
_BY_DESCRIPTOR: Final[dict[object, Layout]] = {}


def define(cls: type, name: str, descriptor: int, *kinds: FieldType, required: str = "") -> None:
    """Make `cls`, a dataclass, known as the composite `name` with these kinds of fields, in order.

    `required` names the fields a peer must not leave out. Null reads as the dataclass default.
    """
    assert dataclasses.is_dataclass(cls)
    declared = [field for field in dataclasses.fields(cls) if field.name != "raw"]
    fields = tuple(
        Field(field.name, kind, field.name in required.split(), field.default)
        for field, kind in zip(declared, kinds, strict=True)
    )
    head, keeps_raw = bytes((0x00, 0x53, descriptor)), len(fields) < len(dataclasses.fields(cls))
    layout = LAYOUTS[cls] = Layout(cls, name, fields, head, keeps_raw)
    # A ulong or its symbol may describe it; ulongs equal ints, symbols strs.
    _BY_DESCRIPTOR[descriptor] = layout
    _BY_DESCRIPTOR[f"amqp:{name}:list"] = layout


def write_composite(value: object) -> bytes:
    """The full-length encoding of a composite; a terminus that was read is repeated as it was."""
    layout = LAYOUTS[type(value)]
    if layout.keeps_raw:
        raw: bytes | None = getattr(value, "raw", None)
        if raw is not None:
            return raw
    parts = [field.kind.write(getattr(value, field.name)) for field in layout.fields]
    if not parts:
        return layout.head + b"\x45"
    return layout.head + encoding.compound(0xC0, 0xD0, len(parts), b"".join(parts))


def read_composite(data: Wire, offset: int) -> tuple[Any, int]:
    """The composite at `offset` and the offset behind it; Described if it is an unknown one."""
    layout, start = _layout_at(data, offset)
    if layout is None:
        return decode(data, offset)
    count, first, end = _list_head(data, start)
    if count > len(layout.fields):
        raise DecodeError(
            f"{layout.name} has {count} fields, at most {len(layout.fields)} are known"
        )
    values: list[object] = []
    at = first
    for field in layout.fields:
        value = None
        if len(values) < count:
            try:
                value, at = field.kind.read(data, at)
            except DecodeError as error:
                raise DecodeError(f"{layout.name}.{field.name}: {error}") from None
        if value is None:
            if field.required:
                raise DecodeError(f"{layout.name}.{field.name} is missing")
            value = field.default
        values.append(value)
    if at != end:
        raise DecodeError(f"the fields of {layout.name} end at byte {at}, their list at {end}")
    composite = layout.make(*values)
    if layout.keeps_raw:
        composite.raw = bytes(data[offset:end])
    return composite, end


def _layout_at(data: Wire, offset: int) -> tuple[Layout | None, int]:
    if data[offset] != 0:
        raise DecodeError(
            f"byte {offset} is 0x{data[offset]:02x}, not the 0x00 of a described value"
        )
    if data[offset + 1] == 0x53:
        return _BY_DESCRIPTOR.get(data[offset + 2]), offset + 3
    descriptor, start = decode(data, offset + 1)
    known = isinstance(descriptor, (int, str))
    return (_BY_DESCRIPTOR.get(descriptor) if known else None), start


def _list_head(data: Wire, offset: int) -> tuple[int, int, int]:
    """Count, offset of the first field and offset behind the last of the list at `offset`."""
    code = data[offset]
    if code == 0xC0:
        count, first, end = data[offset + 2], offset + 3, offset + 2 + data[offset + 1]
    elif code == 0xD0:
        count, first = _U32(data, offset + 5)[0], offset + 9
        end = offset + 5 + _U32(data, offset + 1)[0]
    elif code == 0x45:
        return 0, offset + 1, offset + 1
    else:
        raise DecodeError(f"byte {offset} is 0x{code:02x}, not a list")
    if end > len(data) or first > end:
        raise DecodeError(f"the list at byte {offset} claims to end at byte {end} of {len(data)}")
    return count, first, end


class Nested(FieldType):
    """A field that is itself a composite, one of `classes`; Described too where `open_ended`."""

    __slots__ = ("_accepted",)

    def __init__(self, name: str, classes: Iterable[type], *, open_ended: bool = False) -> None:
        accepted = (*classes, Described) if open_ended else tuple(classes)
        super().__init__(name, lambda value: isinstance(value, accepted), _write_nested)
        self._accepted = frozenset(accepted)

    def read(self, data: Wire, offset: int) -> tuple[Any, int]:
        if data[offset] == NULL[0]:
            return None, offset + 1
        layout, _ = _layout_at(data, offset)
        # Checked before it is read: a peer cannot nest performatives in one another.
        if (Described if layout is None else layout.make) not in self._accepted:
            raise DecodeError(f"{'it' if layout is None else layout.name} is not a {self.name}")
        return read_composite(data, offset)


def _write_nested(value: object) -> bytes:
    return encoding.write(value) if isinstance(value, Described) else write_composite(value)
