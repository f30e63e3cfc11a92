"""Notices survive the way as bytes; foreign bytes give valid notices only, or none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.fleet.core.notices import (
    DATA_BYTES_MAX,
    EPOCH_MAX,
    KIND_LENGTH_MAX,
    KINDS_MAX,
    NOTICES_MAX,
    SINCE_MAX_S,
    Notice,
    decode,
    encode,
    is_host_id,
)
from twinbus.servicebus.names import ENTITY_NAME_MAX, is_entity_name

HOST = "0123456789abcdef"
ORDERS = Notice("Orders", HOST, 1_700_000_000.0, ("timeout 3", "connection 1"), 4)

VALID: dict[str, Any] = {
    "entity": "orders",
    "host": HOST,
    "since": 1.5,
    "kinds": ["timeout 3"],
    "epoch": 1,
    "recovered": False,
}

names = st.sampled_from(["orders", "Orders/eu.1", "a-b_c~d", "o" * ENTITY_NAME_MAX])
notices = st.builds(
    Notice,
    entity=names,
    host=st.integers(0, 2**64 - 1).map(lambda number: f"{number:016x}"),
    since=st.floats(0, SINCE_MAX_S),
    kinds=st.lists(
        st.text("abcdefghij 0123456789", min_size=1, max_size=KIND_LENGTH_MAX), max_size=KINDS_MAX
    ).map(tuple),
    epoch=st.integers(0, EPOCH_MAX),
    recovered=st.booleans(),
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=5,
)


def whole(*documents: object, **changes: object) -> bytes:
    return json.dumps({"v": 1, "notices": documents} | changes).encode()


@settings(max_examples=50)
@given(st.lists(notices, max_size=6))
def test_what_is_encoded_is_decoded_unchanged(several: list[Notice]) -> None:
    assert decode(encode(several)) == several


@settings(max_examples=50)
@given(st.binary(max_size=200) | st.lists(anything, max_size=3).map(lambda x: whole(*x)))
def test_foreign_bytes_give_valid_notices_or_none(data: bytes) -> None:
    for notice in decode(data):
        assert is_entity_name(notice.entity)
        assert is_host_id(notice.host)


@settings(max_examples=50)
@given(st.sampled_from(sorted(VALID)), anything, notices)
def test_a_bad_notice_never_harms_its_neighbours(field: str, value: object, good: Notice) -> None:
    neighbour = json.loads(encode([good]))["notices"][0]
    found = decode(whole(neighbour, VALID | {field: value}, neighbour))
    assert [found[0], found[-1]] == [good, good]


@pytest.mark.parametrize(
    "change",
    [
        {"entity": "orders/$management"},
        {"entity": "o" * (ENTITY_NAME_MAX + 1)},
        {"entity": ""},
        {"entity": None},
        {"host": "0123456789ABCDEF"},
        {"host": HOST + "0"},
        {"host": HOST + "\n"},
        {"host": 17},
        {"since": True},
        {"since": -1},
        {"since": SINCE_MAX_S + 1},
        {"since": float("nan")},
        {"since": float("inf")},
        {"since": 10**400},
        {"epoch": -1},
        {"epoch": 1.5},
        {"epoch": True},
        {"epoch": EPOCH_MAX + 1},
        {"kinds": "timeout 3"},
        {"kinds": ["x"] * (KINDS_MAX + 1)},
        {"kinds": ["x" * (KIND_LENGTH_MAX + 1)]},
        {"kinds": ["\x1b[2J"]},
        {"kinds": [""]},
        {"kinds": [3]},
        {"recovered": 1},
    ],
)
def test_a_field_out_of_its_range_makes_the_notice_invalid(change: dict[str, object]) -> None:
    assert len(decode(whole(VALID))) == 1
    assert decode(whole(VALID | change)) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b"1" * 5_000,
        b'{"v":1',
        whole(VALID, v=2),
        whole(VALID, v=True, notices=None),
        whole(VALID) + b" " * DATA_BYTES_MAX,
    ],
)
def test_bytes_of_another_form_give_no_notice(data: bytes) -> None:
    assert decode(data) == []


def test_a_field_of_a_later_version_does_not_count() -> None:
    assert len(decode(whole(VALID | {"later": {"a": 1}}, later=2))) == 1


def test_the_number_of_notices_is_bounded_both_ways() -> None:
    longest = Notice(
        "o" * ENTITY_NAME_MAX,
        HOST,
        SINCE_MAX_S,
        ('"' * KIND_LENGTH_MAX,) * KINDS_MAX,
        EPOCH_MAX,
        recovered=True,
    )
    data = encode([longest] * (NOTICES_MAX + 1))
    assert len(data) <= DATA_BYTES_MAX
    assert decode(data) == [longest] * NOTICES_MAX
    assert len(decode(whole(*[VALID] * (NOTICES_MAX + 1)))) == NOTICES_MAX


def test_encoding_leaves_out_what_nobody_would_accept() -> None:
    nameless = Notice("orders/$management", HOST, 1.0, (), 1)
    wordy = Notice("orders", HOST, 1.0, ("a\x1bé" + "b" * 60, *"cdefgh"), 1)
    assert decode(encode([nameless, wordy])) == [
        Notice("orders", HOST, 1.0, ("a" + "b" * (KIND_LENGTH_MAX - 1), *"cdef"), 1)
    ]


def test_entities_are_compared_in_any_case() -> None:
    assert ORDERS.entity_key == "orders"
