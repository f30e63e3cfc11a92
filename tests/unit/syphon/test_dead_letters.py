"""Dead letters: which are meant, what goes back, how one is shown; and the end of a drain."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from twinbus.amqp.encoding import encode
from twinbus.amqp.message import (
    DELIVERY_ANNOTATIONS,
    MESSAGE_ANNOTATIONS,
    Header,
    Properties,
    Sections,
    decode_map,
    decode_properties,
    encode_header,
    encode_map_section,
    encode_message,
    join,
    split,
)
from twinbus.amqp.types import Described, Float32, Int, Symbol, Timestamp, ULong
from twinbus.client.connection import MACHINE
from twinbus.client.peeked_message import PeekedMessage, as_json, read_peeked
from twinbus.console.backlog.dead_letters import LettersOptions
from twinbus.console.output import WrongUse
from twinbus.errors import SyphonError
from twinbus.syphon import draining as draining_module
from twinbus.syphon.draining import _until_empty
from twinbus.syphon.host import SyphonHost
from twinbus.syphon.replaying import DeadLetterFilter, for_replay
from twinbus.transfer.sections import to_backlog_sections
from twinbus.transfer.unpacking import unpack

pytestmark = pytest.mark.virtual_time

NOW_MS = 1_800_000_000_000
QUEUE = "contoso/x-servicebus-transfer/3"
SENT = split(
    encode_message(
        header=Header(durable=True, ttl=60_000),
        properties=Properties(message_id="m-1", group_id="s", correlation_id=UUID(int=1)),
        application_properties={"n": Int(5)},
        data=b"body",
    )
)


def dead_letter(sent: Sections = SENT, path: str = "orders", **extra: object) -> bytes:
    """A message as its backlog queue's dead-letter queue delivers it."""
    sections = to_backlog_sections(sent, path, now_ms=0)
    custom = decode_map(sections.application_properties)
    custom |= {"DeadLetterReason": "DestinationNotFound", "DeadLetterErrorDescription": "no orders"}
    marks = {
        "x-opt-sequence-number": 4711,
        "x-opt-enqueued-time": Timestamp(NOW_MS),
        "x-opt-message-state": Int(0),
        "x-opt-deadletter-source": QUEUE,
    }
    sections.header = encode_header(Header(durable=True, delivery_count=2))
    sections.delivery_annotations = encode_map_section(
        DELIVERY_ANNOTATIONS, {"x-opt-lock-token": UUID(int=9)}
    )
    sections.message_annotations = encode_map_section(MESSAGE_ANNOTATIONS, marks)
    sections.application_properties = encode_map_section(0x74, {**custom, **extra})
    return join(sections)


def test_a_replayed_message_is_restored_as_if_it_had_never_been_dead() -> None:
    sent = join(SENT)
    first = unpack(join(to_backlog_sections(SENT, "orders", now_ms=0)), b"t", NOW_MS)
    again = unpack(for_replay(dead_letter()), b"t", NOW_MS)
    assert again.path == "orders"
    assert again.fault is None
    assert again.wire == first.wire
    assert split(again.wire).body == split(sent).body
    assert decode_map(split(again.wire).application_properties) == {"n": 5}


def test_a_replay_has_an_id_of_its_own_in_the_backlog_and_the_message_keeps_its_own() -> None:
    copy = for_replay(dead_letter(), "0" * 32)
    assert decode_properties(split(copy).properties).message_id == "0" * 32
    assert read_peeked(QUEUE, copy).message_id == "m-1"
    again = unpack(copy, b"t", NOW_MS)
    assert again.message_id == "m-1"
    assert decode_properties(split(again.wire).properties).message_id == "m-1"


def test_each_replay_is_counted_and_the_reason_goes() -> None:
    wire = dead_letter()
    for count in range(1, 4):
        wire = for_replay(wire)
        letter = read_peeked(QUEUE, wire)
        assert letter.replays == count
        assert letter.reason is None
        assert letter.description is None
        assert letter.message_id == "m-1"


def test_a_count_of_replays_that_somebody_made_up_is_bounded() -> None:
    made_up: dict[str, Any] = {"x-twinbus-replays": ULong(2**64 - 1)}
    copy = for_replay(dead_letter(**made_up))
    assert read_peeked(QUEUE, copy).replays == 2**31 - 1
    assert read_peeked(QUEUE, for_replay(copy)).replays == 2**31 - 1


def test_a_letter_tells_all_that_is_known_of_it() -> None:
    letter = read_peeked(QUEUE, dead_letter())
    assert letter.summary() == {
        "queue": QUEUE,
        "sequence_number": 4711,
        "message_id": "m-1",
        "path": "orders",
        "session_id": "s",
        "reason": "DestinationNotFound",
        "description": "no orders",
        "enqueued_at": "2027-01-15T08:00:00.000+00:00",
        "delivery_count": 2,
        "replays": 0,
        "size_bytes": len(dead_letter()),
        "problem": None,
    }
    document = json.loads(json.dumps(letter.document()))
    assert document["time_to_live_ms"] == 60_000
    assert document["body_base64"] == "Ym9keQ=="
    assert document["properties"]["correlation_id"] == str(UUID(int=1))
    assert document["application_properties"]["n"] == 5


@pytest.mark.parametrize(
    ("wanted", "is_meant"),
    [
        ({}, True),
        ({"path": "ORDERS"}, True),
        ({"path": "other"}, False),
        ({"reason": "destinationnotfound"}, True),
        ({"reason": "MessageTooLarge"}, False),
        ({"since_ms": NOW_MS}, True),
        ({"since_ms": NOW_MS + 1}, False),
        ({"sequence_numbers": {4711}, "path": "orders"}, True),
        ({"sequence_numbers": {4712}}, False),
        ({"path": "orders", "reason": "MessageTooLarge"}, False),
    ],
)
def test_every_part_of_a_filter_must_hold(wanted: dict[str, Any], is_meant: bool) -> None:
    letter = read_peeked(QUEUE, dead_letter())
    assert DeadLetterFilter(**wanted).matches(letter) is is_meant


def test_what_cannot_be_read_is_shown_with_the_problem() -> None:
    stray = read_peeked(QUEUE, encode_message(properties=Properties(message_id="m"), data=b"x"))
    assert stray.path is None
    assert "x-ms-path" in stray.problem
    broken: PeekedMessage = read_peeked(QUEUE, b"\x00\x53\x75\xa0\xff")
    assert "cannot be read" in broken.problem
    json.dumps(broken.document())
    assert not DeadLetterFilter(path="orders").matches(stray)


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        ({"k": [1, None]}, "value", {"k": [1, None]}),
        (b"\x01", "value", {"base64": "AQ=="}),
        (Timestamp(0), "value", "1970-01-01T00:00:00.000+00:00"),
        (Described(Symbol("a:b"), 2), "value", {"described": "a:b", "value": 2}),
        (float("nan"), "value", "nan"),
        (Float32(0.5), "value", 0.5),
    ],
)
def test_a_body_that_is_a_value_is_shown_as_json(value: object, kind: str, shown: object) -> None:
    wire = encode(Described(ULong(0x77), value))
    peeked = read_peeked(QUEUE, wire)
    assert (peeked.body_kind, peeked.body) == (kind, None)
    assert peeked.body_json is not None
    assert json.loads(peeked.body_json) == shown


def test_sequences_are_shown_as_lists() -> None:
    wire = b"".join(encode(Described(ULong(0x76), rows)) for rows in ([1, 2], ["a"]))
    peeked = read_peeked(QUEUE, wire)
    assert peeked.body_kind == "sequence"
    assert json.loads(peeked.body_json or "") == [[1, 2], ["a"]]


def test_a_time_that_is_no_date_stays_a_number() -> None:
    assert as_json(Timestamp(2**62)) == str(2**62)


def since_ms(text: str) -> int | None:
    secondary = "Endpoint=sb://dr.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b"
    return LettersOptions(secondary=secondary, since=text).selected()[1].since_ms


def test_since_is_a_time_or_an_age() -> None:
    assert since_ms("1970-01-01T00:01") == 60_000
    assert since_ms("1970-01-01T01:00+01:00") == 0
    for minutes in ("90m", "90 min"):
        found_ms = since_ms(minutes)
        assert found_ms is not None
        assert time.time() * 1000 - found_ms == pytest.approx(5_400_000, abs=60_000)
    with pytest.raises(WrongUse, match="'soon'"):
        since_ms("soon")


async def test_a_drain_ends_when_a_peek_finds_nothing_though_the_counts_said_so_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A message that is not counted yet, a secondary that is away, and an empty queue.
    peeks: list[list[str] | Exception] = [["late"], SyphonError("away"), []]

    async def nothing(*_: object) -> int:
        return 0

    @asynccontextmanager
    async def opened(_: object) -> AsyncIterator[None]:
        yield

    async def peek(*_: object, page: int) -> AsyncGenerator[str, None]:
        found = peeks.pop(0)
        if isinstance(found, Exception):
            raise found
        for message in found[:page]:
            yield message

    monkeypatch.setattr(draining_module, "_total", nothing)
    monkeypatch.setattr(draining_module, "open_connection", opened)
    monkeypatch.setattr(draining_module, "peek", peek)
    relay: Any = SimpleNamespace(queue="q", fault=None)
    host = SimpleNamespace(
        relays=[relay],
        queues=["q"],
        twins=[],
        only=None,
        secondary=None,
        in_flight=0,
        moved=0,
        environment=MACHINE,
    )
    await _until_empty(cast("SyphonHost", host), 0.01, None)
    assert peeks == []
