"""Messages of the SDK into the backlog and back, as copies, and what goes over the wire."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage

from bench.sdk_restoring import from_backlog_message
from twinbus.amqp import message as wire
from twinbus.amqp.message import Properties, Sections, decode_map, split
from twinbus.amqp.types import Described, Symbol, Timestamp
from twinbus.errors import ReservedPropertyError
from twinbus.transfer.aliases import RESERVED_NAMES, Aliases
from twinbus.transfer.sdk import to_backlog_message, with_message_id
from twinbus.transfer.sections import aliases_of, from_backlog_sections

NOW_MS = 1_800_000_000_000
WHEN = datetime(2030, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC)
WHEN_MS = int(WHEN.timestamp() * 1000)
TTL_ALIAS = Described(Symbol("com.microsoft:timespan"), 90_000 * 10_000)


def on_the_wire(message: Any) -> Sections:
    """The sections that the SDK would send for a message."""
    annotated = getattr(message, "raw_amqp_message", message)
    return split(
        bytes(encode_payload(bytearray(), PyamqpTransport.to_outgoing_amqp_message(annotated)))
    )


def received(sections: Sections) -> AmqpAnnotatedMessage:
    """What an SDK receiver makes of sections."""
    return AmqpAnnotatedMessage(message=decode_payload(memoryview(wire.join(sections))))


def sdk_message() -> ServiceBusMessage:
    return ServiceBusMessage(
        b"body",
        session_id="session 1",
        message_id="id 1",
        partition_key="session 1",
        time_to_live=timedelta(seconds=90),
        scheduled_enqueue_time_utc=WHEN,
        application_properties={"colour": "red", b"size": 5},
    )


def test_through_the_sdk_the_aliases_have_the_same_types_on_the_wire() -> None:
    backlog = on_the_wire(to_backlog_message(sdk_message(), "orders", now_ms=0))
    properties = decode_map(backlog.application_properties)
    assert properties["x-ms-timetolive"] == TTL_ALIAS
    assert type(properties["x-ms-timetolive"].descriptor) is Symbol
    assert type(properties["x-ms-timetolive"].value) is int
    assert type(properties["x-ms-scheduledenqueuetimeutc"]) is Timestamp
    assert aliases_of(backlog) == Aliases(
        path="orders",
        session_id="session 1",
        time_to_live_ms=90_000,
        scheduled_ms=WHEN_MS,
        partition_key_is_session=True,
    )
    assert wire.decode_header(backlog.header).ttl is None
    assert wire.decode_properties(backlog.properties) == Properties(message_id="id 1")
    assert decode_map(backlog.message_annotations) == {}


def test_the_applications_own_message_is_not_changed() -> None:
    for message in (sdk_message(), sdk_message().raw_amqp_message):
        annotated = getattr(message, "raw_amqp_message", message)
        before = repr(vars(annotated))
        to_backlog_message(message, "orders", own_id="other", now_ms=0)
        assert repr(vars(annotated)) == before


def test_the_raw_road_back_meets_the_sdks_road_there() -> None:
    original = sdk_message()
    backlog = on_the_wire(to_backlog_message(original, "orders", now_ms=0))
    back, _ = from_backlog_sections(backlog, now_ms=NOW_MS)
    sent = on_the_wire(original)
    assert wire.decode_header(back.header) == wire.decode_header(sent.header)
    assert decode_map(back.message_annotations) == decode_map(sent.message_annotations)
    assert decode_map(back.application_properties) == decode_map(sent.application_properties)
    assert back.body == sent.body


def test_an_sdk_receiver_can_restore_what_it_received() -> None:
    backlog = received(on_the_wire(to_backlog_message(sdk_message(), "orders", now_ms=0)))
    back, aliases = from_backlog_message(backlog)
    assert aliases.path == "orders"
    assert back.header.time_to_live == 90_000
    assert back.properties.group_id == "session 1"
    assert back.annotations == {
        b"x-opt-partition-key": "session 1",
        b"x-opt-scheduled-enqueue-time": WHEN,
    }
    assert back.application_properties == {b"colour": b"red", b"size": 5}


def test_bodies_of_every_kind_are_shared_as_they_are() -> None:
    for body in (
        {"value_body": {"a": [1, None]}},
        {"sequence_body": [[1, 2]]},
        {"data_body": [b""]},
    ):
        original = AmqpAnnotatedMessage(**body)
        copy = to_backlog_message(original, "orders", now_ms=0)
        assert copy.body_type == original.body_type
        assert on_the_wire(copy).body == on_the_wire(original).body


def test_restoring_makes_the_parts_that_a_bare_message_lacks() -> None:
    aliases = Aliases(path="p", session_id="s", time_to_live_ms=5, scheduled_ms=WHEN_MS)
    bare = AmqpAnnotatedMessage(data_body=b"x", application_properties=aliases.as_properties())
    back, _ = from_backlog_message(bare)
    assert (back.header.time_to_live, back.properties.group_id) == (5, "s")
    assert (bare.header, bare.properties, bare.annotations) == (None, None, None)


def test_a_date_without_a_zone_is_utc_and_typed_values_are_understood() -> None:
    forms: list[object] = [
        WHEN.replace(tzinfo=None),
        WHEN,
        WHEN_MS,
        {"TYPE": "TIMESTAMP", "VALUE": WHEN_MS},
        {"TYPE": "TIMESTAMP", "VALUE": WHEN},
        {"TYPE": "LONG", "VALUE": WHEN_MS},
    ]
    for form in forms:
        keys: list[Any] = ["x-opt-scheduled-enqueue-time", b"x-opt-scheduled-enqueue-time"]
        for key in keys:
            message = AmqpAnnotatedMessage(data_body=b"x", annotations={key: form})
            copy = to_backlog_message(message, "orders", now_ms=0)
            assert from_backlog_message(copy)[1].scheduled_ms == WHEN_MS
            assert not copy.annotations


@pytest.mark.parametrize("message", [{"body": "x"}, "x", None, 5])
def test_what_is_no_message_is_refused(message: object) -> None:
    with pytest.raises(TypeError, match=type(message).__name__):
        to_backlog_message(message, "orders", now_ms=0)


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_a_reserved_name_is_refused_as_text_and_as_bytes(name: str) -> None:
    keys: list[Any] = [name, name.encode()]
    for key in keys:
        message = ServiceBusMessage("body", application_properties={key: "mine"})
        with pytest.raises(ReservedPropertyError, match=name):
            to_backlog_message(message, "orders", now_ms=0)


def test_a_message_gets_an_id_in_a_copy() -> None:
    original = AmqpAnnotatedMessage(data_body=b"x")
    copied = with_message_id(original, "given")
    assert copied.properties.message_id == "given"
    assert original.properties is None
    assert list(copied.body) == [b"x"]
