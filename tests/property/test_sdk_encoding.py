"""Our encoder of messages to send writes what the SDK's own writes, for every message it takes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import Message
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import given
from hypothesis import strategies as st

from twinbus.pairing.sdk import encoding
from twinbus.pairing.sdk.encoding import BATCH_FORMAT, SINGLE_FORMAT, encoded
from twinbus.transfer.sdk import to_backlog_message, with_message_id, with_property

BATCH_BYTES = 1_000_000

LONG_TEXTS = st.sampled_from([0, 130, 255, 256])
TEXTS = st.text(max_size=30) | LONG_TEXTS.map("x".__mul__) | LONG_TEXTS.map("ü".__mul__)
SHORT_TEXTS = st.text(max_size=9)
NAMES = TEXTS | TEXTS.map(str.encode)
NUMBERS = (
    st.integers(-(2**31) - 2, 2**31 + 2)
    | st.sampled_from([-129, -128, 0, 127, 128, 255, 256, 2**32 - 1, 2**32, 2**63])
)  # fmt: skip
DATES = st.builds(
    datetime.replace,
    st.datetimes(),
    tzinfo=st.sampled_from([None, UTC, timezone(timedelta(hours=-5))]),
)
TYPED = st.sampled_from(
    [
        {"TYPE": "TIMESTAMP", "VALUE": 1_700_000_000_000},
        {"TYPE": "TIMESTAMP", "VALUE": "now"},
        {"TYPE": "TIMESTAMP", "VALUE": 1, "MORE": 2},
        {"TYPE": "LONG", "VALUE": 5},
        {"TYPE": "STRING"},
        ({"TYPE": "SYMBOL", "VALUE": b"com.microsoft:timespan"}, {"TYPE": "LONG", "VALUE": 7}),
        {"a": 1},
        Decimal("-12.5"),
    ]
)
SIMPLE = st.one_of(
    st.none(), st.booleans(), NUMBERS, st.floats(), NAMES, st.binary(max_size=9), st.uuids(), DATES,
    TYPED,
)  # fmt: skip
VALUES = SIMPLE | st.lists(SIMPLE, max_size=3)
IDS = st.one_of(st.none(), NAMES, st.uuids(), st.integers(0, 2**64), st.just(True))
MAPS = st.none() | st.dictionaries(NAMES, VALUES, max_size=4)
ANNOTATIONS = st.none() | st.dictionaries(
    st.one_of(
        NAMES,
        st.integers(0, 300),
        st.sampled_from([b"x-opt-partition-key", b"x-opt-scheduled-enqueue-time"]),
        st.sampled_from([b"x-opt-enqueued-time", b"x-opt-locked-until"]),
    ),
    VALUES,
    max_size=4,
)
TTL_MS = st.none() | st.sampled_from([0, 1, 60_000, 922_337_203_685_477, 2**32]) | NUMBERS
HEADERS = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "durable": st.none() | st.booleans() | st.just(1),
        "priority": st.none() | st.integers(0, 256),
        "time_to_live": TTL_MS,
        "first_acquirer": st.none() | st.booleans(),
        "delivery_count": st.none() | st.integers(-1, 300),
    },
)
FIELDS = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "message_id": IDS,
        "user_id": st.none() | st.binary(max_size=4) | st.just("me"),
        "to": st.none() | NAMES,
        "subject": st.none() | NAMES | st.just(5),
        "reply_to": st.none() | NAMES,
        "correlation_id": IDS,
        "content_type": st.none() | NAMES,
        "content_encoding": st.none() | NAMES,
        "absolute_expiry_time": st.none() | st.integers(0, 2**41) | st.just(5.5),
        "creation_time": st.none() | st.integers(0, 2**41),
        "group_id": st.none() | NAMES,
        "group_sequence": st.none() | NUMBERS,
        "reply_to_group_id": st.none() | NAMES,
    },
)
BODIES = st.one_of(
    st.fixed_dictionaries({"data_body": st.one_of(NAMES, st.lists(NAMES, max_size=3))}),
    st.fixed_dictionaries({"value_body": VALUES}),
    st.fixed_dictionaries({"sequence_body": st.lists(SIMPLE, max_size=3)}),
)
SECTIONS = st.fixed_dictionaries(
    {"properties": FIELDS, "header": HEADERS, "application_properties": MAPS},
    optional={"annotations": ANNOTATIONS, "delivery_annotations": MAPS, "footer": MAPS},
)
ANNOTATED = st.builds(lambda body, more: AmqpAnnotatedMessage(**body, **more), BODIES, SECTIONS)
ARGUMENTS = st.fixed_dictionaries(
    {"body": st.none() | NAMES},
    optional={
        "application_properties": MAPS,
        "session_id": st.none() | SHORT_TEXTS,
        "message_id": st.none() | SHORT_TEXTS,
        "scheduled_enqueue_time_utc": st.none() | DATES,
        "time_to_live": st.none() | st.timedeltas(timedelta(0), timedelta(days=10_000)),
        "content_type": st.none() | TEXTS,
        "correlation_id": IDS,
        "subject": st.none() | TEXTS,
        "to": st.none() | TEXTS,
        "reply_to": st.none() | TEXTS,
        "reply_to_session_id": st.none() | SHORT_TEXTS,
    },
)


def made(arguments: dict[str, Any], has_key: bool) -> ServiceBusMessage:
    key = arguments.get("session_id") if has_key else None
    return ServiceBusMessage(**arguments, partition_key=key)


PLAIN = st.builds(made, ARGUMENTS, st.booleans())
MESSAGES = PLAIN | ANNOTATED


@pytest.fixture(autouse=True, scope="module")
def one_moment() -> Any:
    """A message with a time to live gets the time at which it is encoded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.mktime", lambda _: 1_795_000_000.0)
        yield


def outcome(encode: Callable[[], Any]) -> Any:
    """The bytes and the message format; or the error."""
    try:
        return encode()
    except Exception as error:  # noqa: BLE001  # the SDK's encoder raises what its code meets
        return repr(error)


def by_sdk(message: Any) -> tuple[bytes, int]:
    raw = getattr(message, "raw_amqp_message", message)
    one = PyamqpTransport.to_outgoing_amqp_message(raw)
    return bytes(encode_payload(bytearray(), one)), SINGLE_FORMAT


def batch_of(messages: list[Any]) -> ServiceBusMessageBatch:
    batch = ServiceBusMessageBatch(BATCH_BYTES)
    for message in messages:
        batch.add_message(message)
    return batch


def batch_by_sdk(messages: list[Any]) -> tuple[bytes, int]:
    return bytes(encode_payload(bytearray(), Message(*batch_of(messages)._message))), BATCH_FORMAT


def both(message: Any) -> tuple[Any, Any]:
    # Ours first, and each has its own: the SDK's encoder changes the message.
    other = copy.deepcopy(message)
    return outcome(lambda: encoded(message)), outcome(lambda: by_sdk(other))


@given(PLAIN)
def test_a_message(message: ServiceBusMessage) -> None:
    ours, sdks = both(message)
    assert ours == sdks


@given(ANNOTATED)
def test_an_annotated_message(message: AmqpAnnotatedMessage) -> None:
    ours, sdks = both(message)
    assert ours == sdks


@given(st.lists(MESSAGES, min_size=1, max_size=4))
def test_a_list_and_a_batch(messages: list[Any]) -> None:
    others = copy.deepcopy(messages)
    ours, sdks = outcome(lambda: encoded(messages)), outcome(lambda: batch_by_sdk(others))
    assert ours == sdks
    if isinstance(sdks, tuple):
        assert encoded(batch_of(others)) == sdks


@given(PLAIN)
def test_copies_with_an_id_a_mark_and_aliases(message: ServiceBusMessage) -> None:
    copies = [with_message_id(message, "id"), with_property(message, "x-twinbus-divert", "1")]
    try:
        copies.append(to_backlog_message(message, "orders", now_ms=1_795_000_000_000))
    except Exception:  # noqa: BLE001  # not every message can be diverted
        assert len(copies) == 2
    for one in copies:
        ours, sdks = both(one)
        assert ours == sdks


def test_a_usual_message_is_not_left_to_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    message = ServiceBusMessage(
        "body",
        message_id="1",
        session_id="s",
        partition_key="s",
        subject="created",
        correlation_id="c",
        content_type="text/plain",
        to="t",
        reply_to="r",
        reply_to_session_id="rs",
        time_to_live=timedelta(minutes=5),
        scheduled_enqueue_time_utc=datetime(2030, 1, 1, tzinfo=UTC),
        application_properties={"a": "text", b"b": b"bytes", "c": 1, "d": True, "e": 2.5},
    )
    expected = by_sdk(copy.deepcopy(message)), batch_by_sdk(copy.deepcopy([message, message]))
    monkeypatch.setattr(encoding, "encode_payload", None)
    assert (encoded(message), encoded([message, message])) == expected
    assert message.application_properties[b"b"] == b"bytes"  # type: ignore[index]  # not changed


def test_a_span_of_each_message_is_the_sdks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """An application that has asked azure.core for spans gets them, and the trace context."""

    def traced(message: Any, **_: Any) -> Any:
        return PyamqpTransport.update_message_app_properties(message, "traceparent", "00-1-2-00")

    monkeypatch.setattr(encoding, "_is_tracing_enabled", lambda: True)
    monkeypatch.setattr(encoding, "_trace_message", traced)
    for payload in (ServiceBusMessage("x"), [ServiceBusMessage("x")]):
        assert b"traceparent\xa1\x0900-1-2-00" in encoded(payload)[0]
