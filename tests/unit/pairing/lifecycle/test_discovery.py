"""The search for backlog queues in virtual time: when it runs, what it reports, when it is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
)
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)

from twinbus.errors import BacklogUnavailableError, MissingRightError
from twinbus.pairing.core.backlog import lease_path
from twinbus.pairing.core.failover import ForceFailover
from twinbus.pairing.lifecycle import attaching
from twinbus.pairing.lifecycle.discovery import Discovery
from twinbus.pairing.observing.events import PairEvent
from twinbus.servicebus.failures import refusing_setting
from twinbus.servicebus.names import board_path
from twinbus.testing.fake_sdk import FakePair, hangs

pytestmark = pytest.mark.virtual_time

HOUR_S = 3_600.0
MINUTES = [60.0 * number for number in range(1, 61)]


class FakeAdministration:
    """An administration client over queues in memory; it keeps the time of each call."""

    def __init__(self) -> None:
        self.queues: dict[str, str] = {}
        """Status by path."""
        self.error: Exception | None = None
        """What every listing raises."""
        self.races: list[str] = []
        """Queues that another process creates just before ours, and a third deletes."""
        self.listed_at: list[float] = []
        self.created: list[str] = []

    async def __aenter__(self) -> FakeAdministration:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is open."""

    def list_queues(self) -> FakeAdministration:
        return self

    def by_page(self) -> FakeAdministration:
        return self

    continuation_token = None

    async def __anext__(self) -> AsyncIterator[Any]:
        self.listed_at.append(asyncio.get_running_loop().time())
        if self.error is not None:
            raise self.error

        async def page() -> AsyncIterator[Any]:
            for path in list(self.queues):
                yield await self.get_queue(path)

        return page()

    async def get_queue(self, path: str) -> Any:
        if path not in self.queues:
            raise ResourceNotFoundError("no such queue")
        blank = dict.fromkeys(
            """max_size_in_megabytes max_delivery_count default_message_time_to_live
            auto_delete_on_idle lock_duration enable_batched_operations
            requires_duplicate_detection requires_session enable_partitioning forward_to
            forward_dead_lettered_messages_to""".split()
        )
        settings = {**blank, "dead_lettering_on_message_expiration": True}
        return SimpleNamespace(name=path, status=self.queues[path], **settings)

    async def create_queue(self, path: str, **_: Any) -> Any:
        if path in self.races:
            self.races.remove(path)
            raise ResourceExistsError("there is one")
        self.queues[path] = "Active"
        self.created.append(path)
        return await self.get_queue(path)


class SearchWorld:
    """A fake pair without backlog queues, and its discovery."""

    def __init__(self, admin: FakeAdministration, **options: Any) -> None:
        self.pair = FakePair(**options)
        self.state = self.pair.client.state
        self.state.environment = replace(self.state.environment, administer=lambda _: admin)
        self.admin = admin
        self.paths = list(self.state.paths)
        for path in self.paths:
            self.state.rotation.leave_out(path, "")
            self.state.rotation._left_out.pop(path, None)
        self.events: list[PairEvent] = []
        self.state.listeners.on_event(self.events.append)
        self.handed_over: list[list[str]] = []
        self.refuses_hand_over = 0
        self.discovery = Discovery(self.state, self._found)
        self._began = self.pair.now

    async def _found(self, queues: list[str]) -> None:
        if self.refuses_hand_over:
            self.refuses_hand_over -= 1
            raise MissingRightError("strict session order needs the Listen right")
        self.handed_over.append(queues)

    def told(self) -> list[tuple[str, Any]]:
        """Kind and subject of each event about the backlog so far; they are forgotten."""
        found = [event.as_dict() for event in self.events]
        self.events.clear()
        return [
            (name, each.get("queue", each.get("protected")))
            for each in found
            if (name := each["event"]).startswith(("Backlog", "Protection", "Right"))
        ]

    @property
    def searched_at(self) -> list[float]:
        """Seconds from the start to each search with Manage; they are forgotten."""
        found = [round(at - self._began, 3) for at in self.admin.listed_at]
        self.admin.listed_at.clear()
        return found


@asynccontextmanager
async def world(
    admin: FakeAdministration | None = None, **options: Any
) -> AsyncIterator[SearchWorld]:
    admin = admin or FakeAdministration()
    made = SearchWorld(admin, **options)
    await made.discovery.start()
    try:
        yield made
    finally:
        await made.discovery.close()


async def test_while_every_queue_is_in_use_no_search_runs() -> None:
    async with world() as made:
        label = made.state.primary.label
        assert made.admin.created == [*made.paths, board_path(label), lease_path(label)]
        assert made.discovery.searching is None
        await asyncio.sleep(48 * HOUR_S)
        assert made.searched_at == [0.0]
        assert made.handed_over == [made.paths]


async def test_a_disabled_queue_is_searched_every_minute_of_an_hour_then_less(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "twinbus")
    admin = FakeAdministration()
    async with world(admin) as made:
        first, *_ = made.paths
        await made.discovery.close()
        admin.queues[first] = "Disabled"
        admin.listed_at.clear()
    admin.created.clear()
    caplog.clear()
    async with world(admin) as made:
        assert made.told() == events_without(made, first)
        await asyncio.sleep(2 * HOUR_S)
        searched = made.searched_at
        assert searched[:61] == [0.0, *MINUTES]
        waits = [after - before for before, after in pairwise(searched[60:])]
        assert waits == sorted(waits)
        assert 60 < waits[-1] <= 120
        await asyncio.sleep(22 * HOUR_S)
        assert len(made.searched_at) < 300
        assert "1 of 3 backlog queues are not in use" in str(made.discovery.searching)
        # Found the same each time: no event, no line.
        assert made.told() == []
        assert len([r for r in caplog.records if "left out" in r.message]) == 1

        admin.queues[first] = "Active"
        await asyncio.sleep(301)
        assert made.told() == [("BacklogQueueFound", first)]
        assert made.discovery.searching is None
        assert len([r for r in caplog.records if r.message.startswith(f"{first}: found")]) == 1
        made.admin.listed_at.clear()
        await asyncio.sleep(24 * HOUR_S)
        assert made.searched_at == []


def events_without(made: SearchWorld, left_out: str) -> list[tuple[str, Any]]:
    """The events of a start that leaves one queue out."""
    found: list[tuple[str, Any]] = [
        ("BacklogQueueFound", path) for path in made.paths if path != left_out
    ]
    return [("BacklogQueueLeftOut", left_out), found[0], ("ProtectionChanged", True), *found[1:]]


async def test_a_secondary_that_does_not_answer_is_searched_every_5_s_for_ten_minutes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    admin = FakeAdministration()
    admin.error = ServiceRequestError("no route")
    async with world(admin) as made:
        assert "no route" in (made.discovery.searching or "")
        await asyncio.sleep(HOUR_S)
        searched = made.searched_at
        assert searched[:121] == [5.0 * number for number in range(121)]
        assert searched[121:124] == [660.0, 720.0, 780.0]
        admin.error = None
        await asyncio.sleep(60)
        assert made.discovery.searching is None
        assert made.told()[-1] == ("BacklogQueueFound", made.paths[-1])
    assert len([r for r in caplog.records if "no route" in r.message]) == 1


async def test_a_queue_that_diverts_find_deleted_is_made_again_at_once() -> None:
    async with world() as made:
        await asyncio.sleep(HOUR_S)
        made.told()
        first = made.paths[0]
        del made.admin.queues[first]

        async def is_gone(_: Any) -> None:
            if first not in made.admin.queues:
                raise MessagingEntityNotFoundError(message="gone")

        made.pair.secondary.by_entity[first] = is_gone
        made.pair.client.entity("orders").tell(ForceFailover())
        await made.pair.client.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
        assert made.pair.secondary.took[-1][0] == made.paths[1]
        await asyncio.sleep(1)
        assert made.searched_at == [0.0, HOUR_S]
        assert made.state.rotation.is_in(first, made.state.now)
        assert [name for name, _ in made.told()] == [
            "BacklogQueuePulled", "BacklogQueueFound",
        ]  # fmt: skip
        # The syphon of a queue goes on when the queue is there again.
        assert made.handed_over == [made.paths]
        await asyncio.sleep(HOUR_S)
        assert made.searched_at == []
        assert made.told() == []


async def test_a_divert_and_an_administration_that_contradict_each_other_cost_no_more() -> None:
    async with world() as made:
        await asyncio.sleep(HOUR_S)
        made.admin.listed_at.clear()
        for _ in range(600):
            made.state.on_queue_lost(made.paths[0], is_refusal=False)
            await asyncio.sleep(0.1)
        # It is there, says the list: it stays, and is searched once a minute while diverts fail.
        assert made.state.rotation.is_in(made.paths[0], made.state.now)
        assert len(made.searched_at) <= 2


async def test_a_right_that_goes_missing_later_is_an_event_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    admin = FakeAdministration()
    async with world(admin) as made:
        made.told()
        admin.error = ClientAuthenticationError("401")
        del admin.queues[made.paths[0]]
        made.state.pull(made.paths[0], "gone")
        await asyncio.sleep(200)
        events = made.told()
        assert events.count(("RightMissing", None)) == 1
        assert ("BacklogQueueLeftOut", made.paths[0]) not in events, "it is in use, and pulled"
        assert list(made.state.rotation.queues) == made.paths
        assert "needs the Manage right" in (made.discovery.searching or "")
        admin.error = None
        await asyncio.sleep(60)
        assert made.discovery.searching is None
        assert made.admin.created[-1] == made.paths[0]
    assert len([r for r in caplog.records if "needs the Manage right" in r.message]) == 1


async def test_at_pairing_a_missing_right_fails_at_once() -> None:
    admin = FakeAdministration()
    admin.error = ClientAuthenticationError("401")
    made = SearchWorld(admin)
    with pytest.raises(MissingRightError, match="Manage"):
        await made.discovery.start()
    assert made.pair.elapsed == 0


async def test_queues_whose_hand_over_failed_for_a_right_are_handed_over_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    admin = FakeAdministration()
    admin.error = ServiceRequestError("no route")
    async with world(admin) as made:
        made.refuses_hand_over = 3
        admin.error = None
        await asyncio.sleep(6)
        # They are in use, and no syphon drains them yet.
        assert list(made.state.rotation.queues) == made.paths
        assert made.handed_over == []
        assert "Listen" in (made.discovery.searching or "")
        await asyncio.sleep(200)
        assert made.handed_over == [made.paths]
        assert made.discovery.searching is None
        assert made.told().count(("RightMissing", None)) == 1
    assert len([r for r in caplog.records if "needs the Listen right" in r.message]) == 1


async def test_an_error_that_no_one_foresaw_ends_no_search(
    caplog: pytest.LogCaptureFixture,
) -> None:
    admin = FakeAdministration()
    admin.error = ServiceRequestError("no route")
    async with world(admin) as made:
        admin.error = RuntimeError("a bug")
        await asyncio.sleep(60)
        assert "a bug" in (made.discovery.searching or "")
        admin.error = None
        await asyncio.sleep(120)
        assert made.handed_over == [made.paths]
        assert made.discovery.searching is None
    assert len([r for r in caplog.records if r.exc_info and "a bug" in str(r.exc_info[1])]) == 1


async def test_a_race_that_is_lost_to_a_deleter_is_run_again() -> None:
    admin = FakeAdministration()
    admin.races = [f"contoso/x-servicebus-transfer/{index}" for index in (0, 1, 1)]
    async with world(admin) as made:
        # Once: made after all. Twice: the next search makes it.
        assert list(made.state.rotation.queues) == [made.paths[0], made.paths[2]]
        await asyncio.sleep(61)
        assert made.discovery.searching is None
        assert set(made.state.rotation.queues) == set(made.paths)


async def missing(_: Any) -> None:
    raise MessagingEntityNotFoundError(message="no such queue")


async def test_without_manage_a_queue_that_comes_later_is_found_within_a_minute() -> None:
    pair = SearchWorld(FakeAdministration(), create_backlog_queues=False)
    pair.state.environment = replace(pair.state.environment, administer=None)  # type: ignore[arg-type]
    pair.pair.secondary.behaviour = missing
    await pair.discovery.start()
    assert not pair.state.rotation.protected
    assert {name for name, _ in pair.told()} == {"BacklogQueueLeftOut"}
    await asyncio.sleep(90)
    pair.pair.secondary.behaviour = accepting
    await asyncio.sleep(60)
    assert pair.told() == [
        ("BacklogQueueFound", pair.paths[0]),
        ("ProtectionChanged", True),
        *(("BacklogQueueFound", path) for path in pair.paths[1:]),
    ]
    assert pair.discovery.searching is None
    opened = pair.pair.secondary.opened
    await asyncio.sleep(24 * HOUR_S)
    assert pair.pair.secondary.opened == opened
    await pair.discovery.close()


async def accepting(_: Any) -> None:
    """A queue that is there."""


def test_the_setting_that_makes_a_queue_refuse_is_read_from_its_answer() -> None:
    queue = "session-forward/x-servicebus-transfer/0"
    refusal = "amqp:not-allowed"
    texts = {
        f"'{queue}' requires sessions: give the message a session id": "sessions",
        f"The SessionId was not set on a message, and it cannot be sent to '{queue}'.": "sessions",
        f"Cannot create a message receiver on '{queue}' with auto-forwarding enabled": "forwarding",
        f"'{queue}' does not take that": None,
    }
    for text, setting in texts.items():
        assert refusing_setting(ServiceBusError(text, condition=refusal), queue) == setting
    # Another condition is the message's own fault, or a right that is missing.
    assert (
        refusing_setting(ServiceBusError("session", condition="amqp:invalid-field"), queue) is None
    )
    assert (
        refusing_setting(ServiceBusAuthorizationError(message="Listen on session"), queue) is None
    )


class SessionQueue:
    """A queue that requires sessions: it takes links of senders, and no message."""

    def __init__(self) -> None:
        self.refusals = 0

    async def __call__(self, sent: Any) -> None:
        if sent is not None:
            self.refusals += 1
            raise ServiceBusError("it requires sessions", condition="amqp:not-allowed")


async def test_a_queue_that_refuses_for_a_session_is_tried_once_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def no_listen(*_: Any) -> Exception:
        return ServiceBusAuthorizationError(message="no Listen")

    monkeypatch.setattr(attaching, "receiver_error", no_listen)
    made = SearchWorld(FakeAdministration(), create_backlog_queues=False)
    first, queue = made.paths[0], SessionQueue()
    made.pair.secondary.by_entity[first] = queue
    await made.discovery.start()
    assert made.discovery.not_verified[first][:2] == ("sessions", "forwarding")
    made.told()
    made.state.environment = replace(made.state.environment, choose=min)
    made.pair.client.entity("orders").tell(ForceFailover())
    for _ in range(150):
        # No call sees it.
        await made.pair.client.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
        await asyncio.sleep(60)
    assert queue.refusals == 3
    assert len(made.pair.secondary.took) == 150
    told = made.told()
    assert told.count(("BacklogQueueLeftOut", first)) == 3
    assert told.count(("BacklogQueueFound", first)) == 2
    assert "session" in made.state.rotation.left_out[first]
    await made.discovery.close()


async def unauthorized(_: Any) -> None:
    raise ServiceBusAuthorizationError(message="Send is missing")


async def test_without_manage_queues_in_use_stay_when_the_right_to_send_goes() -> None:
    made = SearchWorld(FakeAdministration(), create_backlog_queues=False, retry_total=0)
    await made.discovery.start()
    made.told()
    made.pair.secondary.behaviour = unauthorized
    made.pair.client.entity("orders").tell(ForceFailover())
    sender = made.pair.client.get_queue_sender("orders")
    await asyncio.sleep(HOUR_S)
    with pytest.raises(BacklogUnavailableError, match="Send is missing"):
        await sender.send_messages(ServiceBusMessage("x"))
    await asyncio.sleep(200)
    assert made.told() == [("RightMissing", None)]
    assert list(made.state.rotation.queues) == made.paths
    assert "needs the Send right" in (made.discovery.searching or "")
    made.pair.secondary.behaviour = accepting
    await sender.send_messages(ServiceBusMessage("x"))
    await asyncio.sleep(60)
    assert made.discovery.searching is None
    await made.discovery.close()


async def test_without_manage_a_queue_that_hangs_does_not_keep_the_others_out() -> None:
    made = SearchWorld(FakeAdministration(), create_backlog_queues=False)
    first, *others = made.paths
    made.pair.secondary.by_entity[first] = hangs
    await made.discovery.start()
    assert list(made.state.rotation.queues) == others
    assert first in (made.discovery.searching or "")
    made.pair.secondary.by_entity.clear()
    await asyncio.sleep(10)
    assert made.discovery.searching is None
    await made.discovery.close()


async def test_without_manage_a_missing_right_fails_the_pairing_at_once() -> None:
    made = SearchWorld(FakeAdministration(), create_backlog_queues=False)
    made.pair.secondary.behaviour = unauthorized
    with pytest.raises(MissingRightError, match="needs the Send right"):
        await made.discovery.start()
    assert made.pair.elapsed == 0
