"""The sequence numbers of messages that come from a twin."""

from __future__ import annotations

import pytest

from twinbus.amqp.message import Sections, decode_map, encode_message, join, split
from twinbus.amqp.types import Symbol
from twinbus.servicebus.twins import SECONDARY_BIT
from twinbus.transfer.twin_numbers import with_secondary_number

NUMBER, ENQUEUED = Symbol("x-opt-sequence-number"), Symbol("x-opt-enqueued-time")


@pytest.mark.parametrize("number", [1, 127, 128, 2**40])
def test_bit_62_is_set_and_nothing_else_changes(number: int) -> None:
    before = encode_message(
        message_annotations={ENQUEUED: 5, NUMBER: number, Symbol("x-own"): "kept"},
        application_properties={"a": 1},
        data=b"body",
    )
    after = with_secondary_number(before)
    annotations = decode_map(split(after).message_annotations)
    assert annotations == {ENQUEUED: 5, NUMBER: number | SECONDARY_BIT, Symbol("x-own"): "kept"}
    changed, kept = split(after), split(before)
    changed.message_annotations = kept.message_annotations
    assert join(changed) == before
    assert with_secondary_number(after) == after


@pytest.mark.parametrize(
    "data",
    [
        encode_message(data=b"no annotations"),
        encode_message(message_annotations={ENQUEUED: 5}, data=b"no number"),
        encode_message(message_annotations={NUMBER: "seven"}, data=b"no number either"),
        join(Sections(message_annotations=b"\x00\x53\x72\xc1\x03\x02\xa3")),
        b"\x00",
        b"",
    ],
)
def test_a_message_without_a_number_that_can_be_read_stays_as_it_is(data: bytes) -> None:
    assert with_secondary_number(data) == data
