"""Received messages are decoded and made as the SDK's own code does it, for any bytes."""

from __future__ import annotations

from typing import Any

from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiveMode
from azure.servicebus._pyamqp._decode import decode_payload
from hypothesis import example, given
from hypothesis import strategies as st

from tests.property.test_message_round_trip import headers, properties, simple, texts
from twinbus.amqp.encoding import encode
from twinbus.amqp.message import encode_message
from twinbus.amqp.types import Described, Symbol, ULong
from twinbus.pairing.sdk.decoding import decode_message
from twinbus.pairing.sdk.making import parts_of, received_object

BODIES = st.one_of(
    st.binary(max_size=300).map(lambda body: encode(Described(ULong(0x75), body))),
    simple.map(lambda value: encode(Described(ULong(0x77), value))),
    st.lists(simple, max_size=3).map(lambda values: encode(Described(ULong(0x76), values))),
    st.just(b""),
)
VALUES = st.one_of(simple, st.lists(simple, max_size=2), st.dictionaries(texts, simple, max_size=2))
MESSAGES = st.builds(
    lambda head, bodies: head + b"".join(bodies),
    st.builds(
        encode_message,
        header=st.none() | headers,
        delivery_annotations=st.dictionaries(texts.map(Symbol), simple, max_size=2),
        message_annotations=st.dictionaries(texts.map(Symbol), VALUES, max_size=5),
        properties=st.none() | properties,
        application_properties=st.dictionaries(texts, simple, max_size=5),
    ),
    st.lists(BODIES, max_size=2),
)


def outcome(decode: Any, data: Any) -> str:
    """The value as a text, which tells 1 from True and a NaN from none; or the error."""
    try:
        return repr(decode(data))
    except Exception as error:  # noqa: BLE001  # the SDK's decoder raises what its code meets
        return repr(error)


def both(data: bytes) -> tuple[str, str]:
    return outcome(decode_message, data), outcome(lambda one: decode_payload(memoryview(one)), data)


@given(MESSAGES)
def test_a_message_of_any_client(data: bytes) -> None:
    ours, sdks = both(data)
    assert ours == sdks


@given(MESSAGES, st.sampled_from(ServiceBusReceiveMode))
def test_the_object_of_a_message_has_what_the_sdk_gives_it(
    data: bytes, mode: ServiceBusReceiveMode
) -> None:
    try:
        decoded = decode_message(data)
    except Exception:  # noqa: BLE001  # there is no object then
        return
    receiver, frame = object(), (None, 7, b"tag")
    ours = received_object(receiver, decoded, frame, mode)
    theirs = ServiceBusReceivedMessage(decoded, mode, frame, receiver=receiver)  # type: ignore[arg-type]
    assert repr(parts_of(ours)) == repr(parts_of(theirs))


@given(MESSAGES, st.data())
def test_changed_and_cut_bytes(data: bytes, drawn: st.DataObject) -> None:
    both(data)  # What is learned from this one must not be applied to another one.
    changed = bytearray(data)
    for _ in range(drawn.draw(st.integers(0, 4)) if data else 0):
        changed[drawn.draw(st.integers(0, len(data) - 1))] = drawn.draw(st.integers(0, 255))
    ours, sdks = both(bytes(changed[: drawn.draw(st.integers(0, len(data)))]))
    assert ours == sdks


@given(st.binary(max_size=60))
@example(b"\x00\x53\x70\x45")
@example(b"\x00\x53\x72\xc1\x01\x00")
@example(b"\x00\x53\x72\xc1\x04\x01\xa3\x01a")
@example(b"\x00\x53\x73\xc0\x00")
@example(b"\x00\x53\x70\xc0\x07\x06\x40\x40\x40\x40\x40\x40")
@example(b"\x00\x53\x75\xa0\x05abc")
@example(b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xa0\x01w")
@example(b"\x00\xa3\x10amqp:data:binary\xa0\x01w")
def test_foreign_bytes(data: bytes) -> None:
    ours, sdks = both(data)
    assert ours == sdks
