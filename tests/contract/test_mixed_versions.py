"""Backlogs and leases of the version before are drained by this one, and the other way round.

`backlog_of_12099b0.json` holds what commit 12099b0 wrote: for each of the messages below the bytes
that the SDK sends to the primary (`sent`) and those of its copy in the backlog (`diverted`). This
made it, run with that commit installed:

    def wire(message):
        annotated = getattr(message, "raw_amqp_message", message)
        outgoing = PyamqpTransport.to_outgoing_amqp_message(annotated)
        return bytes(encode_payload(bytearray(), outgoing)).hex()

    {name: {"path": path, "sent": wire(message),
            "diverted": wire(to_backlog_message(message, path, now_ms=0))}
     for name, (path, message) in MESSAGES.items()}
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from azure.servicebus import ServiceBusMessage as Message
from azure.servicebus.amqp import AmqpAnnotatedMessage

from tests.contract.corpus import SESSION
from tests.contract.roads import QUEUE, SESSIONS, TOPIC, Roads, running_roads
from tests.end_to_end.raw_client import Refused
from tests.official_sdk import administration
from tests.simulation.sdk import wire_of
from twinbus.amqp.message import (
    Properties,
    decode_header,
    decode_map,
    decode_properties,
    encode_message,
    split,
)
from twinbus.amqp.types import Described, Timestamp
from twinbus.client.connection import ANSWER_S
from twinbus.namespace.access import endpoint_of
from twinbus.pairing.core.backlog import lease_path
from twinbus.status.document import LEASED
from twinbus.syphon.lease import Leases
from twinbus.transfer.sdk import to_backlog_message

pytestmark = pytest.mark.contract

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


@pytest.fixture
def roads() -> Iterator[Roads]:
    with running_roads() as made:
        yield made


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
