"""Backlog queues that the retired .NET library left behind are drained (SPEC 4).

The fixtures are messages as that library wrote them: its alias names, a TimeSpan as the described
type `com.microsoft:timespan` in ticks, a DateTime as an AMQP timestamp, a DateTimeOffset as
`com.microsoft:datetime-offset`, TimeSpan.MaxValue where there was no time to live, and its own
marks among the annotations. The first is spelled out as bytes, so that our codec is no judge in
its own cause.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from tests.contract.roads import QUEUE, SESSIONS, Roads, running_roads
from tests.end_to_end.raw_client import RawReceiver
from twinbus.amqp.message import (
    Header,
    Properties,
    decode_header,
    decode_map,
    decode_properties,
    encode_message,
    split,
)
from twinbus.amqp.types import Described, Int, Symbol, Timestamp, ULong

pytestmark = pytest.mark.contract

TICKS_PER_S = 10_000_000
MAX_VALUE = 2**63 - 1
"""TimeSpan.MaxValue in ticks."""
EPOCH_TICKS = 621_355_968_000_000_000
HOUR_MS = 3_600_000
DUE_MS = int(time.time() * 1000) - 5_000
"""A scheduled time that has come: what the old library kept is due long since."""
BODY = b"\x40\x06string\x08\x33http://schemas.microsoft.com/2003/10/Serialization/\x99\x05hello"
"""What DataContractSerializer wrote for a string: nothing here may look into it."""


def timespan(ticks: int) -> Described:
    return Described(Symbol("com.microsoft:timespan"), ticks)


def datetime_offset(unix_ms: int) -> Described:
    return Described(Symbol("com.microsoft:datetime-offset"), EPOCH_TICKS + unix_ms * 10_000)


def legacy(message_id: str, **aliases: object) -> bytes:
    """A backlog message with these aliases, as the library sent it over AMQP."""
    return encode_message(
        header=Header(durable=True, priority=4),
        message_annotations={"x-opt-via-partition-key": "v"},
        properties=Properties(message_id=message_id, content_type="application/xml"),
        application_properties={
            "Priority": Int(3),
            "Elapsed": timespan(15),
            "Home": Described(Symbol("com.microsoft:uri"), "http://example.org/"),
            **{f"x-ms-{name}": value for name, value in aliases.items()},
        },
        data=BODY,
    )


SPELLED_OUT = bytes.fromhex(
    "005370c00705" + "41" + "5004" + "40" + "40" + "43"  # header: durable, priority 4, no ttl
    + "005373c00f01a10c" + b"spelled out!".hex()  # properties: the message id alone
    + "005374c1" + "63" + "08"  # application properties: 8 items in 0x63 bytes
    + "a10e" + b"x-ms-sessionid".hex() + "a106" + b"line 7".hex()
    + "a10f" + b"x-ms-timetolive".hex()
    + "00a316" + b"com.microsoft:timespan".hex() + "81" + (90 * TICKS_PER_S).to_bytes(8).hex()
    + "a109" + b"x-ms-path".hex() + "a105" + b"calls".hex()
    + "a101" + b"n".hex() + "5405"
    + "005375a0" + f"{len(BODY):02x}" + BODY.hex()
)  # fmt: skip


class Restored(NamedTuple):
    """What a message must be at its destination."""

    session_id: str | None = None
    ttl_ms: int | None = None
    scheduled_ms: int | None = None


GOOD: dict[str, tuple[dict[str, object], Restored]] = {
    "path alone": ({"path": QUEUE}, Restored()),
    "path in capitals": ({"path": "ORDERS"}, Restored()),
    "timespan": (
        {"path": QUEUE, "timetolive": timespan(3_600 * TICKS_PER_S)},
        Restored(ttl_ms=HOUR_MS),
    ),
    "timespan, less than a millisecond": (
        {"path": QUEUE, "timetolive": timespan(3_600 * TICKS_PER_S - 9_999)},
        Restored(ttl_ms=HOUR_MS),
    ),
    "timespan, max": ({"path": QUEUE, "timetolive": timespan(MAX_VALUE)}, Restored()),
    "timespan, plain ticks": (
        {"path": QUEUE, "timetolive": 3_600 * TICKS_PER_S},
        Restored(ttl_ms=HOUR_MS),
    ),
    "timespan, unsigned ticks": (
        {"path": QUEUE, "timetolive": ULong(3_600 * TICKS_PER_S)},
        Restored(ttl_ms=HOUR_MS),
    ),
    "timestamp": (
        {"path": QUEUE, "scheduledenqueuetimeutc": Timestamp(DUE_MS)},
        Restored(scheduled_ms=DUE_MS),
    ),
    "datetime-offset": (
        {"path": QUEUE, "scheduledenqueuetimeutc": datetime_offset(DUE_MS)},
        Restored(scheduled_ms=DUE_MS),
    ),
    "plain milliseconds": (
        {"path": QUEUE, "scheduledenqueuetimeutc": DUE_MS},
        Restored(scheduled_ms=DUE_MS),
    ),
    "nulls": (
        {"path": QUEUE, "sessionid": None, "timetolive": None, "scheduledenqueuetimeutc": None},
        Restored(),
    ),
    "everything": (
        {
            "sessionid": "line 7",
            "timetolive": timespan(3_600 * TICKS_PER_S),
            "scheduledenqueuetimeutc": Timestamp(DUE_MS),
            "path": SESSIONS,
        },
        Restored("line 7", HOUR_MS, DUE_MS),
    ),
}

BAD: dict[str, tuple[dict[str, object], str, str]] = {
    "no path": ({"sessionid": "s"}, "MissingDestination", "x-ms-path"),
    "empty path": ({"path": ""}, "MissingDestination", "x-ms-path"),
    "path, request node": (
        {"path": f"{QUEUE}/$management"},
        "InvalidDestination",
        "orders/$management",
    ),
    "path, number": ({"path": 7}, "AliasTypeUnknown", "x-ms-path is 7"),
    "path, uuid": ({"path": UUID(int=1)}, "AliasTypeUnknown", "UUID"),
    "session, number": ({"path": QUEUE, "sessionid": 7}, "AliasTypeUnknown", "x-ms-sessionid"),
    "ttl, text": (
        {"path": QUEUE, "timetolive": "01:00:00"},
        "AliasTypeUnknown",
        "x-ms-timetolive is '01:00:00' (str), not a timespan",
    ),
    "ttl, negative": ({"path": QUEUE, "timetolive": timespan(-1)}, "AliasValueInvalid", "-1"),
    "schedule, past 64 bits": (
        {"path": QUEUE, "scheduledenqueuetimeutc": ULong(2**64 - 1)},
        "AliasValueInvalid",
        "18446744073709551615",
    ),
    "ttl, real": ({"path": QUEUE, "timetolive": 1.5}, "AliasTypeUnknown", "1.5"),
    "ttl, other description": (
        {"path": QUEUE, "timetolive": Described(Symbol("com.microsoft:uri"), "x")},
        "AliasTypeUnknown",
        "com.microsoft:uri",
    ),
    "schedule, text": (
        {"path": QUEUE, "scheduledenqueuetimeutc": "2026-01-01"},
        "AliasTypeUnknown",
        "x-ms-scheduledenqueuetimeutc",
    ),
    "schedule, timespan": (
        {"path": QUEUE, "scheduledenqueuetimeutc": timespan(5)},
        "AliasTypeUnknown",
        "not a timestamp",
    ),
    "schedule, offset of text": (
        {
            "path": QUEUE,
            "scheduledenqueuetimeutc": Described(Symbol("com.microsoft:datetime-offset"), "x"),
        },
        "AliasTypeUnknown",
        "not a timestamp",
    ),
}


@pytest.fixture
def roads() -> Iterator[Roads]:
    with running_roads() as made:
        yield made


async def all_of(receiver: RawReceiver, count: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for _ in range(count):
        delivery = await receiver.receive()
        assert delivery is not None, f"only these came: {sorted(found)}"
        found[delivery.key] = delivery.payload
    return found


def restored(payload: bytes) -> Restored:
    sections = split(payload)
    annotations = decode_map(sections.message_annotations)
    return Restored(
        decode_properties(sections.properties).group_id,
        decode_header(sections.header).ttl,
        annotations.get("x-opt-scheduled-enqueue-time"),
    )


async def test_what_the_net_library_left_behind_arrives_as_its_senders_meant_it(
    roads: Roads,
) -> None:
    messages = [legacy(name, **aliases) for name, (aliases, _) in GOOD.items()]
    await roads.put_in_backlog([*messages, SPELLED_OUT])
    stats = await roads.syphoned()
    assert (stats.forwarded, stats.dead_lettered) == (len(GOOD) + 1, 0)
    found = {
        **await roads.received(QUEUE, len(GOOD) - 1),
        **await roads.received(SESSIONS, 2),
    }
    spelled_out = found.pop("spelled out!")
    assert {name: restored(wire) for name, wire in found.items()} == {
        name: expected for name, (_, expected) in GOOD.items()
    }
    for wire in found.values():
        sections = split(wire)
        assert sections.body.endswith(BODY)
        assert decode_map(sections.application_properties) == {
            "Priority": 3,
            "Elapsed": timespan(15),
            "Home": Described(Symbol("com.microsoft:uri"), "http://example.org/"),
        }
        assert decode_map(sections.message_annotations)["x-opt-via-partition-key"] == "v"
        assert decode_properties(sections.properties).content_type == "application/xml"
    assert restored(spelled_out) == Restored("line 7", 90_000)
    assert decode_map(split(spelled_out).application_properties) == {"n": 5}
    assert split(spelled_out).body.endswith(BODY)


async def test_an_alias_of_the_wrong_type_is_dead_lettered_with_a_reason(roads: Roads) -> None:
    await roads.put_in_backlog([legacy(name, **aliases) for name, (aliases, *_) in BAD.items()])
    stats = await roads.syphoned()
    assert (stats.forwarded, stats.dead_lettered) == (0, len(BAD))
    async with roads.client(roads.secondary) as client:
        receiver = await client.receiver(f"{roads.backlog[0]}/$DeadLetterQueue", credit=100)
        found = await all_of(receiver, len(BAD))
    for name, (_, reason, words) in BAD.items():
        properties: dict[Any, Any] = decode_map(split(found[name]).application_properties)
        assert properties["DeadLetterReason"] == reason, name
        assert words in properties["DeadLetterErrorDescription"], name
