"""A message that was diverted and syphoned is, to the byte, one that was sent straight.

Both roads are real: a pair that was told to fail over, or a client of another make, two brokers,
the syphon. What arrives is compared section by section as raw bytes. Only these may differ: the
broker's own marks, the order of annotations, how many bytes the head of the application
properties takes (they grew and shrank on the way), and, as SPEC 4 has it, the two times that the
SDK derives from a time to live.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.contract.corpus import raw_messages, sdk_messages, sdk_session_messages
from tests.contract.pairs import quick
from tests.contract.roads import QUEUE, SESSIONS, TOPIC, Roads, running_roads
from twinbus import pair_namespaces
from twinbus.amqp.message import join, split
from twinbus.transfer.sections import (
    DELIVERY_MARKS,
    NULL,
    entries_of,
    fields_of,
    to_backlog_sections,
)

pytestmark = pytest.mark.contract

DUE_S = 3.0
"""How far ahead the scheduled messages lie: past the time that all are sent in."""

MARKS = {name.encode() for name in DELIVERY_MARKS}
TTL, ABSOLUTE_EXPIRY, CREATION = 2, 8, 9


def facts(payload: bytes) -> dict[str, Any]:
    """The raw bytes of all that a message's sender decided, part by part."""
    sections = split(payload)
    raw, custom = sections.message_annotations, sections.application_properties
    lives = _field(sections.header, TTL) != NULL
    return {
        "header": [_field(sections.header, place) for place in range(3)],
        "delivery annotations": sections.delivery_annotations,
        "annotations": {
            raw[start:value_at]: raw[value_at:end]
            for key, start, value_at, end in entries_of(raw)
            if key not in MARKS
        },
        "properties": [
            NULL if lives and place in (ABSOLUTE_EXPIRY, CREATION) else field
            for place, field in enumerate(_fields(sections.properties))
        ],
        "application properties": [custom[start:end] for _, start, _, end in entries_of(custom)],
        "body": sections.body,
        "footer": sections.footer,
    }


def _fields(raw: bytes) -> list[bytes]:
    bounds = fields_of(raw)
    found = [raw[start:end] for start, end in itertools.pairwise(bounds)]
    # A field that is left out at the end of a list is null: AMQP knows no difference.
    return found + [NULL] * (13 - len(found))


def _field(raw: bytes, place: int) -> bytes:
    return _fields(raw)[place]


@pytest.fixture
def roads() -> Iterator[Roads]:
    with running_roads() as made:
        yield made


async def received(roads: Roads, entity: str, count: int) -> dict[str, dict[str, Any]]:
    """What an entity holds, by message id."""
    return {key: facts(wire) for key, wire in (await roads.received(entity, count)).items()}


@pytest.mark.parametrize("entity", [QUEUE, TOPIC])
async def test_everything_that_the_sdk_can_send_arrives_as_if_sent_straight(
    roads: Roads, entity: str
) -> None:
    later = datetime.now(UTC) + timedelta(seconds=DUE_S)
    count = len(sdk_messages(later))
    await roads.straight(entity, sdk_messages(later))
    straight = await received(roads, entity, count)
    await roads.diverted(entity, sdk_messages(later))
    stats = await roads.syphoned()
    assert (stats.forwarded, stats.dead_lettered) == (count, 0)
    assert await received(roads, entity, count) == straight


async def test_messages_of_a_session_arrive_as_if_sent_straight(roads: Roads) -> None:
    count = len(sdk_session_messages())
    await roads.straight(SESSIONS, sdk_session_messages())
    straight = await received(roads, SESSIONS, count)
    await roads.diverted(SESSIONS, sdk_session_messages())
    await roads.syphoned()
    diverted = await received(roads, SESSIONS, count)
    assert diverted == straight
    assert list(diverted) == list(straight), "in another order"


async def test_what_only_other_clients_send_arrives_as_if_sent_straight(roads: Roads) -> None:
    """Types that the SDK has no name for, and encodings that it would not choose."""

    messages = raw_messages()
    async with (
        roads.client(roads.primary) as primary,
        roads.client(roads.secondary) as secondary,
        pair_namespaces(roads.primary, roads.secondary, quick()),
    ):
        sender = await primary.sender(QUEUE)
        backlog = await secondary.sender(roads.backlog[0])
        for wire in messages.values():
            await sender.room()
            await sender.send(wire)
            await backlog.room()
            await backlog.send(join(to_backlog_sections(split(wire), QUEUE, now_ms=0)))
    straight = await received(roads, QUEUE, len(messages))
    for name, wire in messages.items():
        assert straight[name] == facts(wire), name
    stats = await roads.syphoned()
    assert (stats.forwarded, stats.dead_lettered) == (len(messages), 0)
    assert await received(roads, QUEUE, len(messages)) == straight
