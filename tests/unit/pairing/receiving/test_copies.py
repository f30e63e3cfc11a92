"""Second copies: completed without being handed out only when every condition holds."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from twinbus.amqp.message import Properties, encode_message
from twinbus.amqp.types import Timestamp
from twinbus.pairing.core.sides import Side
from twinbus.pairing.receiving.copies import CLOCK_ERROR_MS, Copy, SecondCopies, read_copy
from twinbus.servicebus.names import ENQUEUED_TIME, SEQUENCE_NUMBER
from twinbus.servicebus.twins import DIVERTED, DivertMark

SINCE_MS = 1_700_000_000_000


def primary(
    number: int = 1, message_id: str = "a", body: bytes = b"x", enqueued_ms: int = SINCE_MS
) -> Copy:
    return Copy(Side.PRIMARY, number, message_id, body, enqueued_ms, None)


def twin(
    number: int = 1, message_id: str = "a", body: bytes = b"x", since_ms: int | None = SINCE_MS
) -> Copy:
    return Copy(Side.SECONDARY, number, message_id, body, SINCE_MS + 9_000, since_ms)


def complete(copies: SecondCopies, copy: Copy) -> None:
    copies.handed_out(copy.place)
    copies.completed(copy)


@pytest.mark.parametrize(("first", "second"), [(primary(), twin()), (twin(), primary())])
def test_the_second_copy_is_found_in_both_orders_and_only_once(first: Copy, second: Copy) -> None:
    copies = SecondCopies()
    assert not copies.is_second(first)
    complete(copies, first)
    assert copies.expects(second.side)
    assert copies.is_second(second)
    copies.gone(second.place)
    assert not copies.is_second(second._replace(number=2))


def test_a_copy_that_was_not_completed_suppresses_nothing() -> None:
    copies = SecondCopies()
    copies.handed_out(primary().place)
    assert not copies.is_second(twin())


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(twin(message_id="b"), id="another id"),
        pytest.param(twin(body=b"y"), id="a reused id with another body"),
        pytest.param(twin(since_ms=None), id="without an unanswered attempt"),
        pytest.param(twin(since_ms=SINCE_MS + CLOCK_ERROR_MS + 1), id="older than the attempt"),
        pytest.param(primary(number=2), id="the same id on the same side"),
    ],
)
def test_everything_else_is_handed_out(second: Copy) -> None:
    copies = SecondCopies()
    complete(copies, primary())
    assert not copies.is_second(second)


def test_a_twin_without_an_unanswered_attempt_suppresses_nothing() -> None:
    copies = SecondCopies()
    complete(copies, twin(since_ms=None))
    assert not copies.is_second(primary())


def test_a_message_that_was_handed_out_and_abandoned_is_handed_out_again() -> None:
    copies = SecondCopies()
    copies.handed_out(twin().place)  # and abandoned, or its lock was lost
    complete(copies, primary())
    assert not copies.is_second(twin())


def test_a_second_copy_whose_completion_was_lost_is_suppressed_again_and_uses_one_match() -> None:
    copies = SecondCopies()
    complete(copies, primary(number=1))
    complete(copies, primary(number=2))
    assert copies.is_second(twin(number=7))
    assert copies.is_second(twin(number=7))
    assert copies.is_second(twin(number=8))
    assert not copies.is_second(twin(number=9))


@pytest.mark.parametrize("other", [twin(message_id="b"), twin(body=b"y"), twin(since_ms=None)])
def test_another_message_with_the_number_of_a_second_copy_is_handed_out(other: Copy) -> None:
    """Its completion was lost, then the entity was deleted, and made again: it counts from 1."""
    copies = SecondCopies()
    complete(copies, primary())
    assert copies.is_second(twin())
    assert other.place == twin().place
    assert not copies.is_second(other)


def test_as_many_copies_of_the_primary_are_suppressed_as_attempts_were_not_answered() -> None:
    copies = SecondCopies()
    complete(copies, twin()._replace(attempts=2))
    assert copies.is_second(primary(number=1))
    assert copies.is_second(primary(number=2))
    assert not copies.is_second(primary(number=3))


def test_a_second_copy_in_the_twin_tells_of_further_ones_in_the_primary() -> None:
    copies, second = SecondCopies(), twin()._replace(attempts=2)
    complete(copies, primary(number=1))
    assert copies.is_second(second)
    copies.second_completed(second)
    assert copies.is_second(primary(number=2))
    assert not copies.is_second(primary(number=3))


def test_memory_is_bounded_and_the_oldest_is_forgotten() -> None:
    copies = SecondCopies(copies_max=2)
    for number in range(3):
        complete(copies, primary(number, message_id=str(number)))
    assert not copies.is_second(twin(message_id="0"))
    assert copies.is_second(twin(message_id="1"))


def wire(message_id: object = "a", properties: Any = None, body: bytes = b"x") -> bytes:
    return encode_message(
        message_annotations={SEQUENCE_NUMBER: 5, ENQUEUED_TIME: Timestamp(SINCE_MS)},
        properties=Properties(message_id=message_id),  # type: ignore[arg-type]
        application_properties=properties,
        data=body,
    )


MARK = {DIVERTED: DivertMark("contoso", SINCE_MS).text()}


def test_a_copy_is_read_from_the_message() -> None:
    first = read_copy(Side.PRIMARY, wire(), "contoso")
    second = read_copy(Side.SECONDARY, wire(properties=MARK), "contoso")
    assert first is not None
    assert second is not None
    assert first.key == second.key
    assert (second.number, second.enqueued_ms) == (5, SINCE_MS)
    assert second.unanswered_since_ms == SINCE_MS


@pytest.mark.parametrize(
    ("side", "data"),
    [
        pytest.param(Side.PRIMARY, wire(message_id=None), id="no id"),
        pytest.param(Side.SECONDARY, wire(), id="no mark"),
        pytest.param(
            Side.SECONDARY, wire(properties={DIVERTED: "contoso"}), id="every attempt was answered"
        ),
        pytest.param(
            Side.SECONDARY,
            wire(properties={DIVERTED: DivertMark("fabrikam", SINCE_MS).text()}),
            id="another pair's mark",
        ),
        pytest.param(Side.PRIMARY, b"\x00\x53", id="not a message"),
    ],
)
def test_a_message_without_a_possible_second_copy_is_not_compared(side: Side, data: bytes) -> None:
    assert read_copy(side, data, "contoso") is None


def test_an_id_is_not_equal_to_one_of_another_type() -> None:
    text = UUID(int=7)
    one = read_copy(Side.PRIMARY, wire(message_id=text), "contoso")
    other = read_copy(Side.SECONDARY, wire(message_id=str(text), properties=MARK), "contoso")
    assert one is not None
    assert other is not None
    assert one.key != other.key
