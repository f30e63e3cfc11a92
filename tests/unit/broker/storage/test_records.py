"""The record layout: what goes in comes out, keys sort as numbers do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp.types import Symbol, Timestamp, UInt
from twinbus.broker.journal import MessageState, SessionState, StoredMessage
from twinbus.broker.storage import records

TEXTS = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
TIMES = st.integers(min_value=-(2**62), max_value=2**62)
NUMBERS = st.integers(min_value=0, max_value=2**63 - 1)
OVERRIDES = st.none() | st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=50),
    max_size=4,
)
MESSAGES = st.builds(
    StoredMessage,
    NUMBERS,
    enqueued_at_ms=TIMES,
    size_bytes=NUMBERS,
    message_id=TEXTS,
    session_id=TEXTS,
    ttl_ms=TIMES,
    expires_at_ms=TIMES,
    scheduled_for_ms=TIMES,
    state=st.sampled_from(MessageState),
    delivery_count=st.integers(0, 2**31 - 1),
    enqueued_sequence_number=NUMBERS,
    dead_letter_source=TEXTS,
    overrides=OVERRIDES,
)


def fields(message: StoredMessage) -> dict[str, object]:
    return {name: getattr(message, name) for name in StoredMessage.__slots__}


@given(MESSAGES, st.binary(max_size=2000))
def test_a_message_and_its_payload_come_back_as_they_went(
    message: StoredMessage, payload: bytes
) -> None:
    record = records.message_head(message) + payload
    for data in (record, memoryview(record)):
        assert fields(records.unpack_message(message.sequence_number, data)) == fields(message)
        assert records.payload_of(data) == payload


def test_a_lock_is_never_stored() -> None:
    message = StoredMessage(1, enqueued_at_ms=1, size_bytes=1)
    message.lock_token = b"held"
    assert records.unpack_message(1, records.message_head(message)).lock_token is None


def test_overrides_keep_their_amqp_types() -> None:
    overrides: dict[str, object] = {"a": UInt(5), "b": Symbol("s"), "c": Timestamp(7), "d": 1.5}
    message = StoredMessage(1, enqueued_at_ms=1, size_bytes=1, overrides=overrides)
    got = records.unpack_message(1, records.message_head(message) + b"x").overrides
    assert got is not None
    assert {name: type(value) for name, value in got.items()} == {
        name: type(value) for name, value in overrides.items()
    }


@given(MESSAGES, MESSAGES)
def test_an_amendment_changes_state_count_and_overrides_and_nothing_else(
    before: StoredMessage, after: StoredMessage
) -> None:
    expected = fields(before) | {
        "state": after.state,
        "delivery_count": after.delivery_count,
        "overrides": after.overrides,
    }
    records.apply_amendment(before, records.pack_amendment(after))
    assert fields(before) == expected


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_message_keys_sort_by_entity_then_sequence_number(a: int, b: int, c: int, d: int) -> None:
    one, other = records.message_key(a, b), records.message_key(c, d)
    assert (one < other) == ((a, b) < (c, d))
    assert records.key_numbers(memoryview(one)) == (a, b)
    assert records.key_entity(one) == a
    assert one.startswith(records.entity_key(records.MESSAGE, a))


def test_names_of_any_length_make_short_and_different_keys() -> None:
    names = ["", "a", "b", "a" * 10_000, "a" * 10_001, "ä" * 500]
    keys = {records.named_key(records.SESSION, 7, name) for name in names}
    assert len(keys) == len(names)
    assert all(len(key) < 511 for key in keys), "LMDB takes keys of up to 511 bytes"


@given(st.text(st.characters(exclude_categories=["Cs"])), st.binary(), TIMES)
def test_session_states_and_message_ids_come_back(name: str, state: bytes, time_ms: int) -> None:
    kept = SessionState(state, time_ms)
    session = records.pack_session_state(name, kept)
    assert records.unpack_session_state(memoryview(session)) == (name, kept)
    duplicate = records.pack_duplicate(name, time_ms)
    assert records.unpack_duplicate(memoryview(duplicate)) == (name, time_ms)


def test_an_entity_comes_back() -> None:
    description: dict[str, object] = {"max_size_mb": 1024, "forward_to": None, "a": [[1, "x"]]}
    record = records.pack_json("queue", "Örders/a", description)
    assert records.unpack_json(memoryview(record)) == ["queue", "Örders/a", description]


def test_the_layout_is_pinned_so_that_old_stores_stay_readable() -> None:
    message = StoredMessage(
        3,
        enqueued_at_ms=1,
        size_bytes=2,
        message_id="m",
        session_id="",
        ttl_ms=3,
        expires_at_ms=4,
        scheduled_for_ms=5,
        state=MessageState.SCHEDULED,
        delivery_count=6,
        enqueued_sequence_number=7,
    )
    assert records.pack_format() == bytes.fromhex("03000000")
    assert records.message_key(2, 3) == b"M" + bytes(7) + b"\x02" + bytes(7) + b"\x03"
    assert records.message_head(message) + b"pay" == (
        b"".join(number.to_bytes(8, "little") for number in (1, 2, 3, 4, 5, 7))
        + b"\x02"
        + b"".join(number.to_bytes(4, "little") for number in (6, 2, 1, 0, 0))
        + b"mpay"
    )
