"""A delivery as the gateway sends it: the client's own bytes, an id, and the backlog form."""

from __future__ import annotations

import pytest

from twinbus.amqp.message import (
    BATCH_FORMAT,
    Properties,
    data_sections,
    decode_map,
    decode_properties,
    encode_message,
    split,
)
from twinbus.amqp.types import Symbol
from twinbus.broker.refusals import MalformedMessage
from twinbus.client.links import Wire
from twinbus.errors import BacklogMessageTooLargeError, ReservedPropertyError
from twinbus.gateway.messages import EncodedMessages
from twinbus.transfer.sections import from_backlog_sections

LIMIT = 256 * 1024


def encoded(key: str | None, body: bytes = b"x", **fields: object) -> bytes:
    return encode_message(
        properties=Properties(message_id=key, **fields),  # type: ignore[arg-type]
        data=body,
    )


def batch_of(*parts: bytes) -> bytes:
    return b"".join(b"\x00\x53\x75\xb0" + len(part).to_bytes(4) + part for part in parts)


def read(data: bytes, message_format: int = 0, *, has_own_ids: bool = False) -> EncodedMessages:
    return EncodedMessages.of(data, message_format, "orders", LIMIT, has_own_ids=has_own_ids)


def message_id(data: bytes) -> object:
    return decode_properties(split(data).properties).message_id


def test_a_message_with_an_id_keeps_every_byte() -> None:
    data = encoded("mine", b"body", group_id="s")
    messages = read(data)
    assert messages.payload == Wire(data, 0)
    assert messages.ids == ("mine",)
    assert messages.by_session() == {"s": [0]}


def test_a_message_without_an_id_gets_one_and_keeps_the_rest() -> None:
    messages = read(encoded(None, b"body", subject="hello"))
    sections = split(messages.payload.data)
    properties = decode_properties(sections.properties)
    assert (properties.message_id, properties.subject) == (messages.ids[0], "hello")
    assert len(messages.ids[0]) == 32
    assert sections.body == split(encoded("other", b"body")).body


def test_a_batch_stays_a_batch_and_gets_ids_only_where_they_are_missing() -> None:
    whole = batch_of(encoded("a"), encoded("b"))
    assert read(whole, BATCH_FORMAT).payload == Wire(whole, BATCH_FORMAT)
    messages = read(batch_of(encoded("a"), encoded(None)), BATCH_FORMAT)
    parts = [bytes(part) for part in data_sections(split(messages.payload.data).body)]
    assert messages.payload.message_format == BATCH_FORMAT
    assert [message_id(part) for part in parts] == list(messages.ids)
    assert parts[0] == encoded("a")


def test_the_backlog_form_has_the_destination_and_comes_back_whole() -> None:
    messages = read(batch_of(encoded("a", group_id="s"), encoded("b")), BATCH_FORMAT)
    diverted = messages.diverted(LIMIT)
    parts = [bytes(part) for part in data_sections(split(diverted.data).body)]
    for part, original in zip(parts, (encoded("a", group_id="s"), encoded("b")), strict=True):
        restored, aliases = from_backlog_sections(split(part), now_ms=0)
        assert aliases.path == "orders"
        assert decode_properties(restored.properties) == decode_properties(
            split(original).properties
        )


def test_every_retry_of_a_divert_has_the_same_id_of_its_own() -> None:
    messages = read(encoded("mine"), has_own_ids=True)
    first, second = messages.diverted(LIMIT), messages.diverted(None)
    assert first == second
    assert message_id(first.data) != "mine"


def test_a_part_s_envelope_has_the_session_and_partition_key_of_all_its_messages() -> None:
    key = Symbol("x-opt-partition-key")
    wires = [
        encode_message(
            message_annotations={key: of},
            properties=Properties(message_id=name, group_id=of),
            data=b"x",
        )
        for name, of in (("a", "s"), ("b", "t"), ("c", "s"))
    ]
    messages = read(batch_of(*wires), BATCH_FORMAT)
    found = []
    for part in (*messages.parts(), *messages.halves()):
        envelope = split(part.payload.data)
        annotations = decode_map(envelope.message_annotations)
        found.append((decode_properties(envelope.properties).group_id, annotations.get(key)))
    assert found == [("s", "s"), ("t", "t"), ("s", "s"), (None, None)]


def test_halves_and_sessions_share_the_messages_out() -> None:
    parts = [encoded(key, group_id=session) for key, session in ("ax", "by", "cx")]
    messages = read(batch_of(*parts), BATCH_FORMAT)
    assert [half.ids for half in messages.halves()] == [("a",), ("b", "c")]
    assert [part.ids for part in messages.parts()] == [("a", "c"), ("b",)]


def test_messages_that_no_backlog_queue_takes_are_suspects_with_a_flaw() -> None:
    reserved = encode_message(
        properties=Properties(message_id="r"),
        application_properties={"x-ms-path": "mine"},
        data=b"",
    )
    [flaw] = read(reserved).flaws(LIMIT)
    assert isinstance(flaw, ReservedPropertyError)
    large = read(encoded("large", b"x" * LIMIT))
    [flaw] = large.flaws(LIMIT)
    assert isinstance(flaw, BacklogMessageTooLargeError)
    with pytest.raises(BacklogMessageTooLargeError):
        large.diverted(LIMIT)
    assert read(encoded("small")).suspects == []


def test_a_flaw_is_found_for_every_size_that_could_not_be_diverted() -> None:
    """Also where the copy's own id is what makes it too large."""
    key = "k" * 128
    grown = len(read(encoded(key), has_own_ids=True).diverted(None).data) - len(encoded(key))
    for room in range(-8, 9):
        body = bytes(LIMIT - grown - len(encoded(key, b"x" * 256)) + 256 + room)
        messages = read(encoded(key, body), has_own_ids=True)
        is_too_large = len(messages.diverted(None).data) > LIMIT
        assert bool(messages.flaws(LIMIT)) == is_too_large, room


def test_a_batch_may_exceed_the_limit_of_its_messages_a_little_until_it_is_refused() -> None:
    messages = read(batch_of(encoded("a", b"x" * 600), encoded("b", b"x" * 600)), BATCH_FORMAT)
    assert messages.refused_size(1_000, was_sent=False) is None
    assert messages.refused_size(1_000, was_sent=True) == len(messages.payload.data)
    assert read(encoded("a", b"x" * 1_100)).refused_size(1_000, was_sent=False) is not None


@pytest.mark.parametrize(("data", "form"), [(b"\x00\x53", 0), (b"junk", 0), (b"", BATCH_FORMAT)])
def test_what_cannot_be_read_is_refused(data: bytes, form: int) -> None:
    with pytest.raises(MalformedMessage):
        read(data, form)
