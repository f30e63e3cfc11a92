"""What identifies a message in a raw delivery."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from twinbus.amqp.message import Header, Properties, encode_message
from twinbus.amqp.types import Symbol, ULong
from twinbus.servicebus.names import ENQUEUED_TIME, SEQUENCE_NUMBER
from twinbus.transfer import identity
from twinbus.transfer.identity import NUMBER_MAX, read_head, read_identity

NUMBER = Symbol(SEQUENCE_NUMBER)


def read_names(data: bytes) -> tuple[str | None, int | None]:
    """What is read with the head of the message; without one it is the same."""
    found = identity.read_names(data, read_head(data))
    assert identity.read_names(data, None) == found
    return found


def message(message_id: Any = "m-1", **annotations: Any) -> bytes:
    return encode_message(
        message_annotations={Symbol(ENQUEUED_TIME): 5, **annotations},
        properties=Properties(message_id=message_id),
        data=b"body",
    )


def test_a_message_is_named_by_its_id_and_its_sequence_number() -> None:
    assert read_names(message(**{NUMBER: 7})) == ("m-1", 7)
    assert read_names(message(UUID(int=1), **{NUMBER: 7})) == (str(UUID(int=1)), 7)
    assert read_names(message(None, **{NUMBER: 7})) == (None, 7)
    assert read_names(message()) == ("m-1", None)
    assert read_names(encode_message(data=b"body")) == (None, None)


def test_a_message_is_not_named_by_the_layout_of_another_one_of_its_size() -> None:
    other = Symbol(SEQUENCE_NUMBER[:-1] + "s")
    for number in (1 << 40, 1 << 41, 1 << 42):
        assert read_names(message(**{NUMBER: number})) == ("m-1", number)
        assert read_names(message(**{other: number})) == ("m-1", None)
        assert read_names(message("m-2", **{NUMBER: number, Symbol("a"): 1})) == ("m-2", number)
        assert read_names(message("m-2", **{Symbol("a"): 1, NUMBER: number})) == ("m-2", number)


@pytest.mark.parametrize("number", [True, "7", None, ULong(NUMBER_MAX + 1), -1])
def test_a_sequence_number_that_no_service_gives_is_left_out(number: Any) -> None:
    assert read_names(message(**{NUMBER: number})) == ("m-1", None)


def test_bytes_that_are_no_message_have_no_names() -> None:
    whole = message(**{NUMBER: 7})
    assert read_names(b"") == (None, None)
    for cut in range(1, len(whole)):
        read_names(whole[:cut])
        read_names(whole[:cut] + bytes([whole[cut] ^ 0xFF]) + whole[cut + 1 :])


@pytest.mark.parametrize(
    "message_id", ["m-1", b"m-1", UUID(int=1), ULong(3), ULong(300), "m" * 300]
)
@pytest.mark.parametrize("data", [b"body", b"body" * 100, None])
def test_stamps_that_the_caller_has_read_give_the_same_identity(message_id: Any, data: Any) -> None:
    whole = encode_message(
        header=Header(delivery_count=0),
        message_annotations={NUMBER: 7, Symbol(ENQUEUED_TIME): 5, Symbol("x-opt-other"): "o" * 300},
        properties=Properties(message_id=message_id, subject="s"),
        data=data,
    )
    found = read_identity(whole, with_mark=False)
    assert found is not None
    assert (found.number, found.enqueued_ms, found.message_id) == (7, 5, message_id)
    assert type(found.message_id) is type(message_id)
    assert read_identity(whole, with_mark=False, stamps=(7, 5)) == found


@pytest.mark.parametrize("properties", [None, Properties(), Properties(subject="s")])
def test_a_message_without_an_id_has_no_identity(properties: Any) -> None:
    annotations = {NUMBER: 7, Symbol(ENQUEUED_TIME): 5}
    whole = encode_message(message_annotations=annotations, properties=properties, data=b"body")
    assert read_identity(whole, with_mark=False) is None
    assert read_identity(whole, with_mark=False, stamps=(7, 5)) is None
