"""Backlogs of the retired .NET library and of the version before are drained, and vice versa."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage as Message
from azure.servicebus.amqp import AmqpAnnotatedMessage

from tests.contract.corpus import SESSION
from tests.contract.roads import QUEUE, SESSIONS, TOPIC, Roads, running_roads
from tests.end_to_end.raw_client import RawReceiver, Refused
from tests.official_sdk import administration
from tests.simulation.sdk import wire_of
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
from twinbus.client.connection import ANSWER_S
from twinbus.namespace.access import endpoint_of
from twinbus.pairing.core.backlog import lease_path
from twinbus.status.document import LEASED
from twinbus.syphon.lease import Leases
from twinbus.transfer.sdk import to_backlog_message

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


DUE: Final = datetime(2026, 1, 1, tzinfo=UTC)

MESSAGES: Final[dict[str, tuple[str, Any]]] = {
    "plain": (QUEUE, Message("hello", message_id="plain")),
    "every property": (
        QUEUE,
        Message(
            "hello", message_id="every property", subject="s", to="t", reply_to="r",
            reply_to_session_id="rs", correlation_id="c", content_type="text/plain",
            partition_key="p", application_properties={"n": 5, "text": "x", "x-ms-other": "kept"},
        ),
    ),
    "time to live": (
        QUEUE,
        Message("hello", message_id="time to live", time_to_live=timedelta(days=3)),
    ),
    "scheduled": (
        QUEUE,
        Message("hello", message_id="scheduled", scheduled_enqueue_time_utc=DUE),
    ),
    "session": (SESSIONS, Message("hello", message_id="session", session_id=SESSION)),
    "session and its partition key": (
        SESSIONS,
        Message(
            "hello", message_id="session and its partition key", session_id=SESSION,
            partition_key=SESSION,
        ),
    ),
    "everything": (
        SESSIONS,
        Message(
            "hello", message_id="everything", session_id=SESSION, time_to_live=timedelta(hours=1),
            scheduled_enqueue_time_utc=DUE, application_properties={"n": 5},
        ),
    ),
    "topic": (TOPIC, Message(b"\x00\xff", message_id="topic", application_properties={"price": 7})),
    "value": (
        QUEUE,
        AmqpAnnotatedMessage(value_body={"k": [1, None, "x"]}, properties={"message_id": "value"}),
    ),
}  # fmt: skip

RECORDED: Final[dict[str, dict[str, str]]] = json.loads(
    (Path(__file__).parent / "backlog_of_12099b0.json").read_text()
)

UNDERSTOOD: Final[dict[str, type]] = {
    "x-ms-sessionid": str,
    "x-ms-timetolive": Described,
    "x-ms-scheduledenqueuetimeutc": Timestamp,
    "x-ms-path": str,
    "x-twinbus-partitionkey": bool,
}
"""The aliases that the version before restores, and their types."""

OLD_LOCK: Final = timedelta(seconds=30)
"""Lock duration with which the version before creates the lease queue."""


def meaning_of(payload: bytes) -> tuple[object, ...]:
    """Everything of a message but what a service or the SDK adds to it."""
    sections = split(payload)
    properties = decode_properties(sections.properties)
    annotations = decode_map(sections.message_annotations)
    names = [name for name in Properties.__dataclass_fields__ if not name.endswith("_time")]
    return (
        decode_header(sections.header).ttl,
        {name: getattr(properties, name) for name in names},
        [annotations.get(f"x-opt-{name}") for name in ("partition-key", "scheduled-enqueue-time")],
        sections.application_properties,
        sections.body,
    )


async def test_a_backlog_of_the_version_before_is_drained_as_its_senders_meant_it(
    roads: Roads,
) -> None:
    await roads.put_in_backlog([bytes.fromhex(one["diverted"]) for one in RECORDED.values()])
    stats = await roads.syphoned()
    assert (stats.forwarded, stats.dead_lettered) == (len(RECORDED), 0)
    found: dict[str, bytes] = {}
    for entity in (QUEUE, SESSIONS, TOPIC):
        count = sum(one["path"] == entity for one in RECORDED.values())
        found |= await roads.received(entity, count)
    assert sorted(found) == sorted(RECORDED)
    for name, one in RECORDED.items():
        assert meaning_of(found[name]) == meaning_of(bytes.fromhex(one["sent"])), name


@pytest.mark.parametrize("name", MESSAGES)
def test_this_version_diverts_a_message_in_the_very_bytes_of_the_version_before(name: str) -> None:
    path, message = MESSAGES[name]
    assert wire_of(to_backlog_message(message, path, now_ms=0)).hex() == RECORDED[name]["diverted"]


@pytest.mark.parametrize("name", MESSAGES)
def test_only_the_id_of_a_copy_is_beyond_the_version_before(name: str) -> None:
    """Such copies are made where the description of a backlog queue could not be read."""
    path, message = MESSAGES[name]
    wire = wire_of(to_backlog_message(message, path, own_id="0" * 32, now_ms=0))
    before = decode_map(split(bytes.fromhex(RECORDED[name]["sent"])).application_properties)
    aliases = {
        key: value
        for key, value in decode_map(split(wire).application_properties).items()
        if key not in before
    }
    assert aliases.pop("x-twinbus-messageid") == name
    assert aliases.keys() <= UNDERSTOOD.keys()
    assert all(isinstance(value, UNDERSTOOD[key]) for key, value in aliases.items())


async def test_a_message_of_a_later_version_is_dead_lettered_with_the_order_of_upgrades(
    roads: Roads,
) -> None:
    of_later = [
        encode_message(
            properties=Properties(message_id=where),
            application_properties=aliases,
            data=b"x",
        )
        for where, aliases in {
            "last": {"x-ms-path": QUEUE, "x-twinbus-format": 2},
            "first": {"x-twinbus-format": 2, "x-ms-path": QUEUE},
        }.items()
    ]
    of_this = encode_message(
        properties=Properties(message_id="format 1"),
        application_properties={"x-twinbus-format": 1, "x-ms-path": QUEUE},
        data=b"x",
    )
    # Between others, so that what the syphon learned of them does not hide it.
    plain = bytes.fromhex(RECORDED["plain"]["diverted"])
    await roads.put_in_backlog([plain, of_later[0], of_this, of_later[1]])
    stats = await roads.syphoned()
    assert (stats.forwarded, stats.dead_lettered) == (2, 2)
    assert sorted(await roads.received(QUEUE, 2)) == ["format 1", "plain"]
    async with roads.client(roads.secondary) as client:
        receiver = await client.receiver(f"{roads.backlog[0]}/$DeadLetterQueue", credit=10)
        for _ in of_later:
            letter = await receiver.receive()
            assert letter is not None
            properties = decode_map(split(letter.payload).application_properties)
            assert properties["DeadLetterReason"] == "BacklogFormatUnknown"
            assert "upgrade what runs the syphon" in properties["DeadLetterErrorDescription"]
            assert properties["x-twinbus-format"] == 2


async def test_the_leases_of_both_versions_exclude_each_other(roads: Roads) -> None:
    """The version before holds the lock of session `<index>` of `<label>/x-twinbus-lease`."""
    path = f"{roads.label}/x-twinbus-lease"
    assert lease_path(roads.label) == path
    with administration(roads.secondary) as admin:
        admin.create_queue(path, requires_session=True, lock_duration=OLD_LOCK)
    held = asyncio.Event()
    leases = Leases(
        endpoint_of(roads.secondary),
        roads.backlog,
        lambda queue, is_held: held.set() if is_held and queue == roads.backlog[0] else None,
    )
    async with roads.client(roads.secondary) as before:
        await before.receiver(path, credit=0, session="1")
        leases.start()
        try:
            async with asyncio.timeout(4 * ANSWER_S):
                await held.wait()
                while not (leases.problem(roads.backlog[1]) or "").startswith(LEASED):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert not leases.holds(roads.backlog[1])
            with pytest.raises(Refused) as refused:
                await before.receiver(path, credit=0, session="0")
            assert refused.value.condition == "com.microsoft:session-cannot-be-locked"
        finally:
            await leases.close()
