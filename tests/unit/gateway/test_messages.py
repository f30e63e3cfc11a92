"""A delivery as the gateway sends it, its errors, and what it reads of a request."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from azure.servicebus.exceptions import OperationTimeoutError

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
from twinbus.broker.links.context import LinkClient
from twinbus.broker.refusals import MalformedMessage, MessageTooLarge
from twinbus.client.connection import NamespaceConnection
from twinbus.client.in_flight import Wire
from twinbus.client.request_node import ConnectionLost, DeliveryRejected, LinkEnded, RequestRefused
from twinbus.errors import (
    BacklogGuardError,
    BacklogMessageTooLargeError,
    BacklogUnavailableError,
    EntityUnusableError,
    ReservedPropertyError,
)
from twinbus.gateway import messages as messages_module
from twinbus.gateway.administration import RequestThreads
from twinbus.gateway.messages import READ_AT_ONCE, EncodedMessages
from twinbus.gateway.relay import refusal_of
from twinbus.gateway.sending import EACH_BYTES, PendingSends
from twinbus.namespace.access import Endpoint
from twinbus.servicebus.conditions import UNAUTHORIZED
from twinbus.servicebus.failures import CONDITIONS, FailureMeaning, of_error, outcome_of
from twinbus.servicebus.names import BATCH_MESSAGES_MAX
from twinbus.servicebus.twins import DIVERTED, DivertMark
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


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_rejection_means_what_its_condition_says_and_reaches_the_client(condition: str) -> None:
    error = DeliveryRejected("why", condition)
    assert of_error(error) is CONDITIONS[condition].meaning
    assert refusal_of(error).condition == condition
    assert "why" in refusal_of(error).description


BUSY = "com.microsoft:server-busy"


@pytest.mark.parametrize(
    ("error", "meaning", "condition", "outcome"),
    [
        # The ledger must not say "failed" of a message that the primary may have stored.
        (LinkEnded("reset", was_sent=True), "UNREACHABLE", "com.microsoft:timeout", "unknown"),
        (ConnectionLost("refused"), "UNREACHABLE", "com.microsoft:timeout", "failed"),
        (LinkEnded("off", "com.microsoft:entity-disabled"), "DISABLED", None, "failed"),
        (LinkEnded("idle", "amqp:link:detach-forced"), "UNREACHABLE", None, "unknown"),
        (LinkEnded("too much", BUSY, was_sent=True), "BUSY", BUSY, "unknown"),
        (LinkEnded("too much", BUSY), "BUSY", BUSY, "failed"),
        (RequestRefused("no such queue", 404, ""), "NOT_FOUND", "amqp:not-found", "failed"),
        (RequestRefused("no", 401, ""), "UNAUTHORIZED", None, "failed"),
        (RequestRefused("no", 0, "amqp:resource-limit-exceeded"), "QUOTA", None, "failed"),
    ],
)
def test_an_error_of_the_primary_has_a_meaning_a_condition_and_an_outcome(
    error: Exception, meaning: str, condition: str | None, outcome: str
) -> None:
    assert (of_error(error), outcome_of(error)) == (FailureMeaning[meaning], outcome)
    assert condition is None or refusal_of(error).condition == condition


async def test_a_broken_namespace_and_a_silent_token_service_count() -> None:
    assert of_error(RequestRefused("broken", 503, "")) is FailureMeaning.UNREACHABLE
    for cause, meaning, condition in (
        (TimeoutError(), FailureMeaning.UNREACHABLE, "com.microsoft:timeout"),
        (PermissionError("no such secret"), FailureMeaning.UNAUTHORIZED, UNAUTHORIZED),
    ):
        tokens = SimpleNamespace(who="the credential")
        endpoint = SimpleNamespace(
            label="east", host="east", token=AsyncMock(side_effect=cause), tokens=tokens
        )
        connection = NamespaceConnection(cast("Endpoint", endpoint), lambda _: None)
        with pytest.raises(RequestRefused) as caught:
            await connection.authorize("orders")
        assert of_error(caught.value) is meaning
        assert refusal_of(caught.value).condition == condition


def test_errors_of_the_pair_have_a_condition_that_clients_know() -> None:
    assert refusal_of(EntityUnusableError("gone")).condition == "amqp:not-found"
    # After this one an SDK does not retry.
    assert refusal_of(BacklogGuardError("reserved")).condition == "amqp:not-allowed"
    full = BacklogUnavailableError("none", primary_error=None, queue_errors={})
    assert refusal_of(full).condition == "com.microsoft:timeout"
    assert refusal_of(OperationTimeoutError()).condition == "com.microsoft:timeout"


class Client:
    """A connection that keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def pause_reading(self) -> None:
        self.told.append("stop")

    def resume_reading(self) -> None:
        self.told.append("read")


async def test_small_messages_count_with_what_their_calls_take() -> None:
    """A million messages of ten bytes are ten megabytes, and gigabytes of calls."""
    client = Client()
    pending = PendingSends("gate", 60.0, bytes_max=1_000 * EACH_BYTES)
    share = pending.share_of(cast("LinkClient", client))
    for _ in range(1_000):
        pending.add(share, 10)
        if client.told:
            break
    # One client alone has half of the bound.
    assert client.told == ["stop"]
    assert 490 < pending.count <= 500
    while pending.count:
        pending.release(share, 10)
    assert (client.told, pending.size_bytes) == (["stop", "read"], 0)


def test_a_batch_of_more_messages_than_azure_standard_takes_is_refused_before_it_is_read() -> None:
    empty = b"\x00\x53\x75\xa0\x00"
    most = read(batch_of(*[empty] * BATCH_MESSAGES_MAX), BATCH_FORMAT)
    assert len(most) == BATCH_MESSAGES_MAX
    hostile = batch_of(*[empty] * 65_536)
    tracemalloc.start()
    try:
        with pytest.raises(MessageTooLarge, match="more than 4500 messages, which is the limit"):
            read(hostile, BATCH_FORMAT)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


async def test_work_returns_or_raises_and_so_many_are_under_way_at_once() -> None:
    threads, go, begun = RequestThreads(2, "test-request"), threading.Event(), []

    def work(number: int) -> int:
        begun.append((number, threading.current_thread().daemon))
        go.wait(60)
        if number == 2:
            raise OSError("no answer")
        return number

    tasks = [asyncio.create_task(threads.run(work, number)) for number in range(4)]
    while len(begun) < 2:  # noqa: ASYNC110  # threads
        await asyncio.sleep(0.001)
    # A client that goes away does not free the thread.
    tasks[0].cancel()
    await asyncio.sleep(0.01)
    assert begun == [(0, True), (1, True)]
    go.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1::2] == [1, 3]
    with pytest.raises(OSError, match="no answer"):
        await tasks[2]


def test_a_message_for_a_twin_keeps_every_byte_and_gains_one_property() -> None:
    data = encode_message(
        properties=Properties(message_id="1", group_id="s"),
        application_properties={"color": "red", DIVERTED: "old"},
        data=b"x",
    )
    wire = read(data).twinned(LIMIT, DivertMark("contoso", 7))
    assert wire.message_format == 0
    before, after = split(data), split(wire.data)
    assert decode_map(after.application_properties) == {
        "color": "red",
        DIVERTED: "contoso;unanswered=7",
    }
    for name in ("header", "message_annotations", "properties", "body", "footer"):
        assert getattr(after, name) == getattr(before, name)


def test_a_batch_for_a_twin_stays_a_batch_with_its_session() -> None:
    data = batch_of(encoded("1", group_id="s"), encoded("2", group_id="s"))
    wire = read(data, BATCH_FORMAT).twinned(LIMIT, DivertMark("contoso"))
    assert wire.message_format == BATCH_FORMAT
    envelope = split(wire.data)
    assert decode_properties(envelope.properties).group_id == "s"
    parts = [bytes(part) for part in data_sections(envelope.body)]
    assert [message_id(part) for part in parts] == ["1", "2"]
    for part in parts:
        assert decode_map(split(part).application_properties) == {DIVERTED: "contoso"}


def test_a_message_too_large_for_its_twin_is_refused_before_it_is_sent() -> None:
    with pytest.raises(BacklogMessageTooLargeError):
        read(encoded("1", b"x" * 1_000)).twinned(1_000, DivertMark("contoso"))


def test_a_batch_without_ids_is_read_and_written_again_some_messages_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: Counter[str] = Counter()

    def counted(name: str) -> None:
        original = getattr(messages_module, name)

        def call(*given: Any) -> Any:
            done[name] += 1
            return original(*given)

        monkeypatch.setattr(messages_module, name, call)

    for name in ("_read", "new_message_id", "join", "_is_suspect"):
        counted(name)
    batch = batch_of(*[encoded(None)] * 200)
    steps = EncodedMessages.reading(batch, BATCH_FORMAT, "orders", 1000, has_own_ids=True)
    most, read = 0, None
    while read is None:
        try:
            next(steps)
        except StopIteration as end:
            read = end.value
        most = max(most, *done.values(), 0)
        done.clear()
    assert len(read) == 200
    assert most == READ_AT_ONCE
