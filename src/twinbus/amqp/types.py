"""The AMQP 1.0 type system: values that keep their type, and the two ways across the wire."""

from __future__ import annotations

from twinbus.amqp.decoding import NESTING_MAX, ZERO_WIDTH_COUNT_MAX, decode
from twinbus.amqp.encoding import encode
from twinbus.amqp.skipping import skip
from twinbus.amqp.values import (
    AmqpError,
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

__all__ = [
    "NESTING_MAX",
    "ZERO_WIDTH_COUNT_MAX",
    "AmqpError",
    "Array",
    "Byte",
    "Char",
    "Decimal",
    "DecodeError",
    "Described",
    "EncodeError",
    "Float32",
    "Int",
    "Short",
    "Symbol",
    "Timestamp",
    "UByte",
    "UInt",
    "ULong",
    "UShort",
    "decode",
    "encode",
    "skip",
]
