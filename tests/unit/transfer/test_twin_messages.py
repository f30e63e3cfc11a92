"""A message of a twin on its way home: what is removed, what restarts, and what is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from twinbus.amqp.message import (
    Header,
    Properties,
    decode_header,
    decode_map,
    decode_properties,
    encode_message,
    split,
)
from twinbus.amqp.types import Symbol, Timestamp
from twinbus.servicebus.twins import DIVERTED, DivertMark
from twinbus.transfer.twin_messages import FOREIGN, TwinUnpacker
from twinbus.transfer.unpacking import EXPIRED, MALFORMED, BacklogMessage

NOW_MS = 1_800_000_000_000
SENT_MS = NOW_MS - 60_000
DAY_MS = 86_400_000
MARK = DivertMark("contoso", SENT_MS - 5_000).text()


def delivery(
    custom: dict[str, Any] | None = None,
    *,
    ttl_ms: int | None = None,
    annotations: dict[Any, Any] | None = None,
    **properties: Any,
) -> bytes:
    """A message as a twin delivers it."""
    marks = {
        Symbol("x-opt-sequence-number"): 7,
        Symbol("x-opt-enqueued-time"): Timestamp(SENT_MS),
        Symbol("x-opt-locked-until"): Timestamp(NOW_MS + 30_000),
        **(annotations or {}),
    }
    return encode_message(
        header=Header(durable=True, ttl=ttl_ms, delivery_count=2),
        message_annotations=marks,
        properties=Properties(message_id="m-1", **properties),
        application_properties={"mine": 1, DIVERTED: MARK} if custom is None else custom,
        data=b"body",
    )


def unpacked(payload: bytes, **settings: Any) -> BacklogMessage:
    return TwinUnpacker("Orders", "contoso", **settings).unpack(payload, b"token", NOW_MS)


def test_the_mark_and_what_the_broker_added_are_removed_and_the_rest_is_kept() -> None:
    key = {Symbol("x-opt-partition-key"): "p", Symbol("x-opt-scheduled-enqueue-time"): Timestamp(5)}
    message = unpacked(delivery(annotations=key, group_id="session 3", correlation_id="c"))
    home = split(message.wire)
    assert decode_map(home.application_properties) == {"mine": 1}
    assert decode_map(home.message_annotations) == key
    assert decode_properties(home.properties) == Properties(
        message_id="m-1", group_id="session 3", correlation_id="c"
    )
    assert decode_header(home.header) == Header(durable=True)
    assert (message.path, message.destination, message.message_id) == ("Orders", "orders", "m-1")
    assert (message.sequence_number, message.enqueued_ms, message.lock_s) == (7, SENT_MS, 30.0)
    assert message.fault is None
    assert not message.is_left


def test_a_message_without_a_mark_goes_home_as_it_is() -> None:
    message = unpacked(delivery({"mine": "x-twinbus-diverted"}))
    assert decode_map(split(message.wire).application_properties) == {"mine": "x-twinbus-diverted"}
    assert message.fault is None


@pytest.mark.parametrize(
    "value", ["fabrikam", "fabrikam;unanswered=5", 3, "", "contoso;unanswered=x"]
)
def test_a_mark_that_is_not_ours_is_left_to_the_consumers(value: object) -> None:
    message = unpacked(delivery({DIVERTED: value}))
    assert message.fault is not None
    assert message.fault[0] == FOREIGN
    assert "message m-1 (sequence number 7)" in message.fault[1]
    assert message.is_left
    assert message.wire == b""


@pytest.mark.parametrize("payload", [b"", b"\x00", b"\x00\x53\x70\xc0\x05\x01", delivery()[:-3]])
def test_bytes_that_are_no_message_are_left_to_the_consumers(payload: bytes) -> None:
    message = unpacked(payload)
    if message.fault is not None:
        assert message.fault[0] == MALFORMED
        assert message.is_left


def test_with_the_policy_full_the_whole_time_to_live_starts_again_at_home() -> None:
    expiry = {
        "absolute_expiry_time": Timestamp(SENT_MS + 90_000),
        "creation_time": Timestamp(SENT_MS),
    }
    found: list[dict[str, Any]] = [{}, expiry]
    for dates in found:
        home = split(unpacked(delivery(ttl_ms=90_000, **dates)).wire)
        assert decode_header(home.header).ttl == 90_000
        assert decode_properties(home.properties) == Properties(message_id="m-1")


def test_a_time_to_live_beyond_the_header_gets_new_dates() -> None:
    long_ms = 100 * DAY_MS
    payload = delivery(
        ttl_ms=0xFFFF_FFFF,
        absolute_expiry_time=Timestamp(SENT_MS + long_ms),
        creation_time=Timestamp(SENT_MS),
    )
    for remaining_ttl, left_ms in ((False, long_ms), (True, long_ms - 60_000)):
        home = split(unpacked(payload, remaining_ttl=remaining_ttl).wire)
        properties = decode_properties(home.properties)
        assert properties.absolute_expiry_time == NOW_MS + left_ms
        assert properties.creation_time == NOW_MS


def test_with_the_policy_remaining_the_age_is_taken_off() -> None:
    home = split(unpacked(delivery(ttl_ms=90_000), remaining_ttl=True).wire)
    assert decode_header(home.header).ttl == 30_000


def test_an_expired_message_is_dead_lettered_with_its_reason() -> None:
    message = unpacked(delivery(ttl_ms=60_000), remaining_ttl=True)
    assert message.fault == (EXPIRED, "its time to live of 60 s ended in the twin")
    assert not message.is_left


def test_a_message_without_a_time_to_live_keeps_a_creation_time_of_its_own() -> None:
    home = split(unpacked(delivery(creation_time=Timestamp(5)), remaining_ttl=True).wire)
    assert decode_properties(home.properties).creation_time == 5
