"""Python values that keep their AMQP type, and what goes wrong between the two.

Plain Python stands for the common types: None null, bool boolean, int long, float double, str
string, bytes binary, uuid.UUID uuid, list list, dict map. The classes here are the other types;
each behaves as the plain value it extends: `UInt(5) == 5`, a `Symbol` is found in a dict of str.

    AmqpError
     +- DecodeError   the peer sent bytes that are not AMQP 1.0
     '- EncodeError   our own value has no AMQP form
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from twinbus.servicebus import conditions


class AmqpError(Exception):
    """Something that is not AMQP 1.0."""


class DecodeError(AmqpError):
    """Bytes of the peer that are not a valid encoding; one line says where and why."""

    condition = conditions.DECODE_ERROR


class EncodeError(AmqpError):
    """A value of ours that AMQP cannot carry, for its type or its range."""


# Unsigned integers of 8, 16, 32 and 64 bits, then signed ones of 8, 16 and 32 bits.
class UByte(int):
    __slots__ = ()


class UShort(int):
    __slots__ = ()


class UInt(int):
    __slots__ = ()


class ULong(int):
    __slots__ = ()


class Byte(int):
    __slots__ = ()


class Short(int):
    __slots__ = ()


class Int(int):
    __slots__ = ()


class Timestamp(int):
    """Milliseconds since the unix epoch, signed."""

    __slots__ = ()


class Float32(float):
    __slots__ = ()


class Char(str):
    __slots__ = ()


class Symbol(str):
    """A name from a constrained domain."""

    __slots__ = ()


@dataclass(slots=True, unsafe_hash=True)
class Decimal:
    """A decimal number that nothing here computes with: its format code and its bytes as sent."""

    code: int
    data: bytes


@dataclass(slots=True, unsafe_hash=True)
class Described:
    """A value with a descriptor that gives it a further meaning."""

    descriptor: object
    value: object


class Array(list[object]):
    """A list whose elements share one AMQP type, named by `code`, and one `descriptor` if any.

    `code` is the widest format code of that type (0x81 for long, 0xb3 for symbol). Left out, it
    follows from the first element; an array without elements needs it, or it is one of nulls.
    Equal to a list of equal elements.
    """

    __slots__ = ("code", "descriptor")

    def __init__(
        self, items: Iterable[object] = (), code: int | None = None, descriptor: object = None
    ) -> None:
        super().__init__(items)
        self.code = code
        self.descriptor = descriptor

    def __repr__(self) -> str:
        code = "" if self.code is None else f", 0x{self.code:02x}"
        descriptor = "" if self.descriptor is None else f", {self.descriptor!r}"
        return f"Array({list.__repr__(self)}{code}{descriptor})"
