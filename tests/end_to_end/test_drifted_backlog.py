"""Backlog queues that somebody made by hand, and a pair that may not read their description.

Real processes: both namespaces are `twinbus serve`, and `twinbus syphon drain` moves the backlog.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.contract.pairs import drain_all, quick
from tests.official_sdk import administration
from tests.processes import ServedBroker, run_twinbus
from twinbus import Namespace, pair_namespaces
from twinbus.pair import Pair
from twinbus.pairing.core.backlog import backlog_paths

pytestmark = pytest.mark.end_to_end

ENTITIES = ("orders", "bills")
QUEUES = backlog_paths("contoso", 3)
RULES = ("--rule", "sender:k:Send", "--rule", "both:k:Send,Listen")
SENDERS_MAX = 60
"""By then one of them has chosen a given queue of two, unless chance is out to get us."""


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[ServedBroker]:
    (tmp_path / "primary").mkdir()
    with ServedBroker(tmp_path / "primary", "contoso", ephemeral=True) as served:
        with administration(served.connection_string()) as admin:
            for entity in ENTITIES:
                admin.create_queue(entity)
        yield served


@pytest.fixture
def secondary(tmp_path: Path) -> Iterator[ServedBroker]:
    (tmp_path / "secondary").mkdir()
    with ServedBroker(
        tmp_path / "secondary", "contoso-dr", ephemeral=True, options=RULES
    ) as served:
        yield served


@asynccontextmanager
async def paired(
    primary: ServedBroker, secondary: ServedBroker, rule: str, **options: Any
) -> AsyncIterator[Pair]:
    """A pair without the Manage right, whose entities have failed over."""
    side = Namespace.from_connection_string(primary.connection_string(), "contoso")
    other = secondary.connection_string(rule=rule, key="k")
    settings = quick(create_backlog_queues=False, attempt_timeout=15.0, **options)
    async with pair_namespaces(side, other, settings) as pair:
        for entity in ENTITIES:
            pair.force_failover(entity)
        yield pair


def moved_home(primary: ServedBroker, secondary: ServedBroker) -> dict[str, Any]:
    """Move the backlog to the primary by the command; its report."""
    sides = {
        "TWINBUS_PRIMARY": primary.connection_string(),
        "TWINBUS_SECONDARY": secondary.connection_string(),
    }
    command = ("syphon", "drain", "--label", "contoso", "--output", "json")
    done = run_twinbus(*command, environment=sides)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


async def test_duplicate_detection_drops_nothing_and_ids_come_home(
    primary: ServedBroker, secondary: ServedBroker
) -> None:
    (queue,) = backlog_paths("contoso", 1)
    with administration(secondary.connection_string()) as admin:
        admin.create_queue(queue, requires_duplicate_detection=True)
        async with paired(primary, secondary, "sender", backlog_queue_count=1) as pair:
            for entity in ENTITIES:
                async with pair.get_queue_sender(entity) as sender:
                    await sender.send_messages(ServiceBusMessage(entity, message_id="7"))
                    await sender.send_messages(
                        [ServiceBusMessage(entity, message_id=name) for name in ("7", "8")]
                    )
        stored = admin.get_queue_runtime_properties(queue).active_message_count
    assert stored == 6

    await asyncio.to_thread(moved_home, primary, secondary)
    for entity in ENTITIES:
        home = await drain_all(primary.connection_string(), [entity])
        assert sorted((m.message_id, str(m)) for m in home) == [
            ("7", entity),
            ("7", entity),
            ("8", entity),
        ]
        assert all(not message.application_properties for message in home)


async def test_a_queue_that_requires_sessions_is_found_by_a_refused_send(
    primary: ServedBroker, secondary: ServedBroker
) -> None:
    wrong, sound = backlog_paths("contoso", 2)
    with administration(secondary.connection_string()) as admin:
        admin.create_queue(wrong, requires_session=True)
        admin.create_queue(sound)
        async with paired(primary, secondary, "sender") as pair:
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


async def test_with_listen_sessions_and_forwarding_are_found_at_pairing(
    primary: ServedBroker, secondary: ServedBroker
) -> None:
    sessions, forwards, sound = QUEUES
    with administration(secondary.connection_string()) as admin:
        admin.create_queue("elsewhere")
        admin.create_queue(sessions, requires_session=True)
        admin.create_queue(forwards, forward_to="elsewhere")
        admin.create_queue(sound)
    async with paired(primary, secondary, "both", backlog_queue_count=3) as pair:
        assert pair.backlog_queues == (sound,)
        found = pair.status().backlog_queues
        assert "session" in found[sessions].reason
        assert "forward" in found[forwards].reason
        assert not {"sessions", "forwarding"} & set(found[sound].not_verified)
    async with paired(primary, secondary, "sender", backlog_queue_count=3) as pair:
        assert pair.backlog_queues == QUEUES
        found = pair.status().backlog_queues
        assert {"sessions", "forwarding"} <= set(found[forwards].not_verified)
        assert "not verified" in str(found[forwards])
