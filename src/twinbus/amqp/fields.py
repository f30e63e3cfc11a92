"""Field types of AMQP composites: how one field of a performative is read and written.

A `FieldType` reads a value at an offset and checks its type, so that a decoded performative holds
what its annotations say. It writes a Python value as the type that AMQP gives the field, so that
callers use plain ints and strings. Null is None for every type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from twinbus.amqp import encoding
from twinbus.amqp.decoding import READERS, Wire
from twinbus.amqp.types import Array, DecodeError, EncodeError

NULL: Final = b"\x40"


@dataclass(slots=True)
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


def _write_symbols(value: list[str]) -> bytes:
    # Always an array, even of one: pyamqp iterates over what it reads here.
    return encoding.write(Array(value, 0xB3))


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
SYMBOLS: Final = Multiple("symbol or array of symbols", _is_symbols, _write_symbols)
FIELDS: Final = FieldType("map", _instance_of(dict), encoding.symbolic_map)
MAP: Final = FieldType("map", _instance_of(dict), encoding.write)
ANY: Final = FieldType("value", lambda value: True, encoding.write)
