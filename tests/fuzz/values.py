"""Values of every AMQP type, integers at the edges of their types."""

from __future__ import annotations

import math
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

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
from twinbus.servicebus.names import DATE_MAX_MS, DATE_MIN_MS, EPOCH_TICKS, FOREVER_MS


def _edges(*bits: int) -> list[int]:
    found = {0, 1, -1}
    for each in bits:
        found |= {(1 << each) - 1, 1 << each, -(1 << each), -(1 << each) - 1}
    return sorted(found)


def _typed(kind: Any, low: int, high: int) -> list[Any]:
    inside = [number for number in EDGES if low <= number <= high]
    return [kind(number) for number in {low, high, *inside}]


MEANT = (DATE_MIN_MS, DATE_MAX_MS, FOREVER_MS, EPOCH_TICKS, 1_800_000_000_000, 4000, 4001, 60_000)
"""Numbers at which this code itself decides something."""

EDGES = sorted(
    {
        *_edges(7, 8, 15, 16, 31, 32, 62, 63, 64),
        *(number + step for number in MEANT for step in (-1, 0, 1)),
    }
)

INTEGERS: tuple[Any, ...] = (
    *_typed(UByte, 0, 2**8 - 1),
    *_typed(UShort, 0, 2**16 - 1),
    *_typed(UInt, 0, 2**32 - 1),
    *_typed(ULong, 0, 2**64 - 1),
    *_typed(Byte, -(2**7), 2**7 - 1),
    *_typed(Short, -(2**15), 2**15 - 1),
    *_typed(Int, -(2**31), 2**31 - 1),
    *_typed(int, -(2**63), 2**63 - 1),
    *_typed(Timestamp, -(2**63), 2**63 - 1),
)
OTHERS: tuple[Any, ...] = (
    *(None, True, False, 0.0, -0.0, 1e308, 0.5, Float32(1.0), math.inf, -math.inf, math.nan),
    *("", "x", "a" * 200, "\x00", "\U0001f600", "$cbs", "orders/$management", "amqps://[x"),
    *(b"", b"\x00", b"\xff" * 16, b"x" * 300, Symbol("s"), Symbol(""), Char("c")),
    *(UUID(int=0), UUID(int=2**128 - 1), Decimal(0x74, b"\x01" * 4), Decimal(0x94, b"\x01" * 16)),
    *([], {}, Array([]), Array([1, 2]), Array([Symbol("a")])),
)
integers = st.sampled_from(INTEGERS)
scalars = st.one_of(integers, st.sampled_from(OTHERS))
TIMESPAN, MOMENT = Symbol("com.microsoft:timespan"), Symbol("com.microsoft:datetime-offset")
_descriptors = st.sampled_from((TIMESPAN, MOMENT, Symbol("com.microsoft:uri"), ULong(0x24), 2.5))
_keys = st.sampled_from(("k", "", Symbol("k"), 5, b"k", UUID(int=3), Timestamp(1)))
described = st.builds(Described, _descriptors, scalars)
ANY_VALUE = st.one_of(
    integers,
    scalars,
    described,
    st.lists(scalars, max_size=3),
    st.dictionaries(_keys, scalars, max_size=3),
)
"""Any value that a client can put anywhere."""
