"""Backlog queues that were made by hand, and a pair that may not read their description.

Real processes: `twinbus serve` has both namespaces, and `twinbus syphon drain` moves the backlog.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.contract.pairs import drain_all, quick
from tests.end_to_end.hand_made_world import ENTITIES, Sides
from tests.official_sdk import administration
from tests.processes import run_twinbus
from twinbus import Namespace, pair_namespaces
from twinbus.pair import Pair

pytestmark = pytest.mark.end_to_end

SENDERS_MAX = 60
"""By then one of them has chosen a given queue of two, unless chance is out to get us."""


@asynccontextmanager
async def paired(sides: Sides, rule: str, **options: Any) -> AsyncIterator[Pair]:
    """A pair without the Manage right, whose entities have failed over."""
    side = Namespace.from_connection_string(sides.primary, sides.label)
    settings = quick(create_backlog_queues=False, attempt_timeout=15.0, **options)
    async with pair_namespaces(side, sides.weak(rule), settings) as pair:
        for entity in ENTITIES:
            pair.get_queue_sender(entity)
            pair.force_failover(entity)
        yield pair


def move_home(sides: Sides) -> None:
    """Move the backlog to the primary by the command."""
    words = ("--primary", sides.primary, "--secondary", sides.secondary, "--label", sides.label)
    done = run_twinbus("syphon", "drain", *words)
    assert done.returncode == 0, done.stderr


async def test_duplicate_detection_drops_nothing_and_ids_come_home(sides: Sides) -> None:
    (queue,) = sides.queues(1)
    with administration(sides.secondary) as admin:
        admin.create_queue(queue, requires_duplicate_detection=True)
        async with paired(sides, "sender", backlog_queue_count=1) as pair:
            for entity in ENTITIES:
                async with pair.get_queue_sender(entity) as sender:
                    await sender.send_messages(ServiceBusMessage(entity, message_id="7"))
                    await sender.send_messages(
                        [ServiceBusMessage(entity, message_id=name) for name in ("7", "8")]
                    )
        stored = admin.get_queue_runtime_properties(queue).active_message_count
    assert stored == 6

    await asyncio.to_thread(move_home, sides)
    for entity in ENTITIES:
        home = await drain_all(sides.primary, [entity])
        assert sorted((m.message_id, str(m)) for m in home) == [
            ("7", entity),
            ("7", entity),
            ("8", entity),
        ]
        assert all(not message.application_properties for message in home)


async def test_a_queue_that_requires_sessions_is_found_by_a_refused_send(sides: Sides) -> None:
    wrong, sound = sides.queues(2)
    with administration(sides.secondary) as admin:
        admin.create_queue(wrong, requires_session=True)
        admin.create_queue(sound)
        async with paired(sides, "sender") as pair:
            assert list(pair.backlog_queues) == [wrong, sound]
            status = pair.status().backlog_queues[wrong]
            assert "sessions" in status.not_verified
            sent = 0
            for sent in range(1, SENDERS_MAX):
                # No call sees it: another queue takes the message.
                sender = pair.get_queue_sender("orders")
                await sender.send_messages(ServiceBusMessage(f"{sent}"))
                if list(pair.backlog_queues) == [sound]:
                    break
            status = pair.status().backlog_queues[wrong]
            assert status.state == "left out"
            assert "session" in status.reason
            assert pair.status().protected
            assert pair.status().searching
        assert admin.get_queue_runtime_properties(sound).active_message_count == sent


async def test_with_listen_sessions_and_forwarding_are_found_at_pairing(sides: Sides) -> None:
    sessions, forwards, sound = queues = sides.queues(3)
    with administration(sides.secondary) as admin:
        admin.create_queue("elsewhere")
        admin.create_queue(sessions, requires_session=True)
        admin.create_queue(forwards, forward_to="elsewhere")
        admin.create_queue(sound)
    async with paired(sides, "both", backlog_queue_count=3) as pair:
        assert pair.backlog_queues == (sound,)
        found = pair.status().backlog_queues
        assert "session" in found[sessions].reason
        assert "forward" in found[forwards].reason
        assert not {"sessions", "forwarding"} & set(found[sound].not_verified)
    async with paired(sides, "sender", backlog_queue_count=3) as pair:
        assert pair.backlog_queues == queues
        found = pair.status().backlog_queues
        assert {"sessions", "forwarding"} <= set(found[forwards].not_verified)
        assert "not verified" in str(found[forwards])
