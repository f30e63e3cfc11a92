"""The codec against anything: every value comes back, no bytes can do more than be refused."""

from __future__ import annotations

import dataclasses
import math
import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp import performatives
from twinbus.amqp.composites import read_composite
from twinbus.amqp.decoding import MALFORMED, decode, skip
from twinbus.amqp.encoding import encode
from twinbus.amqp.frames import decode_performative, encode_frame
from twinbus.amqp.performatives import (
    Accepted,
    Disposition,
    Error,
    Flow,
    Modified,
    Rejected,
    Released,
    Transfer,
)
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


def integers(make: Any, bits: int, *, signed: bool) -> st.SearchStrategy[Any]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.integers(low, high).map(make)


SCALARS: dict[int, st.SearchStrategy[Any]] = {
    0x50: integers(UByte, 8, signed=False),
    0x51: integers(Byte, 8, signed=True),
    0x56: st.booleans(),
    0x60: integers(UShort, 16, signed=False),
    0x61: integers(Short, 16, signed=True),
    0x70: integers(UInt, 32, signed=False),
    0x71: integers(Int, 32, signed=True),
    0x72: st.floats(width=32).map(Float32),
    0x73: st.characters(exclude_categories=["Cs"]).map(Char),
    0x74: st.binary(min_size=4, max_size=4).map(lambda data: Decimal(0x74, data)),
    0x80: integers(ULong, 64, signed=False),
    0x81: integers(int, 64, signed=True),
    0x82: st.floats(),
    0x83: integers(Timestamp, 64, signed=True),
    0x84: st.binary(min_size=8, max_size=8).map(lambda data: Decimal(0x84, data)),
    0x94: st.binary(min_size=16, max_size=16).map(lambda data: Decimal(0x94, data)),
    0x98: st.uuids(),
    0xB0: st.binary(max_size=300),
    0xB1: st.text(max_size=300),
    0xB3: st.text(max_size=300).map(Symbol),
}
scalars = st.one_of(st.none(), *SCALARS.values())
keys = st.one_of(st.text(), st.text().map(Symbol), st.uuids(), st.binary())
descriptors = st.one_of(SCALARS[0x80], SCALARS[0xB3])


def arrays(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def of(code: int, elements: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.builds(
            Array, st.lists(elements, max_size=6), st.just(code), st.none() | descriptors
        )

    compounds = {0xD0: st.lists(children, max_size=3), 0xD1: maps(children)}
    return st.one_of(of(0x40, st.none()), *(of(*entry) for entry in (SCALARS | compounds).items()))


def maps(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(keys, children, max_size=4)


values = st.recursive(
    scalars,
    lambda children: st.one_of(
        st.lists(children, max_size=5),
        maps(children),
        arrays(children),
        st.builds(Described, descriptors, children),
        st.lists(arrays(children), max_size=3).map(lambda items: Array(items, 0xF0)),
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same AMQP type all the way down; NaN is NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, Array) and (
        one.code != other.code or not same(one.descriptor, other.descriptor)
    ):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        pairs = zip(one.items(), other.items(), strict=False)
        return len(one) == len(other) and all(same(a, b) and same(c, d) for (a, c), (b, d) in pairs)
    if isinstance(one, Described):
        return same(one.descriptor, other.descriptor) and same(one.value, other.value)
    return bool(one == other)


@given(values, st.binary(max_size=5), st.binary(max_size=5))
def test_any_value_comes_back_with_its_type(value: Any, before: bytes, after: bytes) -> None:
    encoded = encode(value)
    data = before + encoded + after
    end = len(before) + len(encoded)
    for buffer in (data, memoryview(data), memoryview(bytearray(data))):
        read, offset = decode(buffer, len(before))
        assert same(read, value)
        assert offset == skip(buffer, len(before)) == end
    assert encode(decode(encoded)[0]) == encoded


@given(values, st.data())
def test_a_value_cut_short_is_refused(value: Any, data: st.DataObject) -> None:
    encoded = encode(value)
    cut = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
    for read in (decode, skip):
        try:
            read(cut, 0)
        except DecodeError:
            continue
        raise AssertionError("a cut value was taken for a whole one")


codes = [0x00, *range(0x40, 0x46), *range(0x50, 0x57), 0x60, 0x61, *range(0x70, 0x75)]
codes += [*range(0x80, 0x85), 0x94, 0x98, 0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3]
codes += [0xC0, 0xC1, 0xD0, 0xD1, 0xE0, 0xF0]
likely_bytes = st.lists(
    st.one_of(st.sampled_from(codes), st.integers(0, 12), st.integers(0, 255)), max_size=60
).map(bytes)
garbage = st.one_of(st.binary(max_size=60), likely_bytes)


@st.composite
def damaged(draw: st.DrawFn, sources: st.SearchStrategy[bytes]) -> bytes:
    """Valid bytes with a few of them changed: nearer to the edges than pure noise."""
    data = bytearray(draw(sources))
    for _ in range(draw(st.integers(1, 4))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


@given(st.one_of(garbage, damaged(values.map(encode))))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    try:
        value, end = decode(data)
    except DecodeError:
        return
    assert 0 < end <= len(data)
    assert skip(data, 0) == end
    again, _ = decode(encode(value))
    assert same(again, value)


uints = st.integers(0, 2**32 - 1)
texts = st.text(max_size=40)
fields_maps = st.dictionaries(texts, scalars.filter(lambda v: v == v), max_size=3)  # noqa: PLR0124
symbols = st.lists(texts, max_size=3)
errors = st.builds(Error, texts, st.none() | texts, st.none() | fields_maps)
states = st.one_of(
    st.none(),
    st.builds(Accepted),
    st.builds(Released),
    st.builds(Rejected, st.none() | errors),
    st.builds(Modified, st.booleans(), st.booleans(), st.none() | fields_maps),
    st.builds(Described, st.just(ULong(0x3F)), st.lists(st.binary(max_size=5), max_size=2)),
)
BY_ANNOTATION: dict[str, st.SearchStrategy[Any]] = {
    "str": texts,
    "str | None": st.none() | texts,
    "int": st.integers(0, 255) | uints,
    "int | None": st.none() | st.integers(0, 255),
    "bool": st.booleans(),
    "bytes | None": st.none() | st.binary(max_size=40),
    "list[str] | None": st.none() | symbols,
    "Map | None": st.none() | fields_maps,
    "dict[Any, Any] | None": st.none() | fields_maps,
    "Error | None": st.none() | errors,
    "DeliveryState | None": states,
}


def composites(cls: Any) -> st.SearchStrategy[Any]:
    drawn = {
        field.name: BY_ANNOTATION[field.type]
        for field in dataclasses.fields(cls)
        if field.name not in ("raw", "code") and field.type in BY_ANNOTATION
    }
    return st.builds(cls, **drawn)


BY_ANNOTATION["Source | None"] = st.none() | composites(performatives.Source)
BY_ANNOTATION["Target | Coordinator | None"] = st.one_of(
    st.none(), composites(performatives.Target), composites(performatives.Coordinator)
)
frames = st.one_of(
    *(composites(cls) for cls in performatives.Performative.__args__ if cls is not Transfer),
    composites(Transfer),
).filter(lambda frame: getattr(frame, "sasl_server_mechanisms", ()) is not None)


@given(frames, st.binary(max_size=20))
def test_any_performative_comes_back(frame: Any, payload: bytes) -> None:
    encoded = encode_frame(3, frame, payload)
    assert struct.unpack(">IBBH", encoded[:8]) == (len(encoded), 2, 0, 3)
    body = encoded[8:]
    read, offset = decode_performative(body)
    assert read == frame
    assert body[offset:] == payload
    assert encode_frame(3, read, payload) == encoded


hot = st.one_of(composites(Transfer), composites(Disposition), composites(Flow))
hot_bytes = hot.map(lambda frame: encode_frame(0, frame)[8:])


def general_way(body: bytes) -> object:
    try:
        return read_composite(body, 0)
    except (DecodeError, *MALFORMED):
        return None


@given(st.one_of(hot_bytes, damaged(hot_bytes)))
def test_shortcuts_read_what_the_general_way_reads_and_refuse_what_it_refuses(
    body: bytes,
) -> None:
    expected = general_way(body)
    try:
        assert decode_performative(body) == expected
    except DecodeError:
        if isinstance(expected, tuple):
            assert type(expected[0]) not in (Transfer, Disposition, Flow)


@given(st.one_of(garbage, damaged(frames.map(lambda frame: encode_frame(0, frame)[8:]))))
def test_any_bytes_are_a_performative_or_refused(body: bytes) -> None:
    try:
        performative, offset = decode_performative(body)
    except DecodeError:
        return
    assert 0 < offset <= len(body)
    assert decode_performative(encode_frame(0, performative)[8:])[0] == performative
