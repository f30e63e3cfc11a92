"""Diverts to twins in virtual time: what arrives, what is marked, and where it goes else."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from twinbus.errors import BacklogUnavailableError
from twinbus.pairing.core.failover import ForceFailover, MarkHealthy
from twinbus.pairing.core.twins import READ_AGAIN_S, READ_EVERY_S
from twinbus.pairing.lifecycle.twin_marks import TwinMarks
from twinbus.pairing.observing.events import TwinChanged
from twinbus.pairing.sending.sender import PairedSender
from twinbus.servicebus.twins import DIVERTED, read_divert_mark
from twinbus.testing.fake_sdk import FakePair, hangs, refuses

pytestmark = pytest.mark.virtual_time

QUEUE = "contoso/x-servicebus-transfer/0"


class TwinPair(FakePair):
    """A fake pair whose entity `orders` has a twin, as far as `mark` says."""

    def __init__(self, *, mark: bool | None = True, **options: Any) -> None:
        super().__init__(**{"twins": ["orders"], **options})
        self.events: list[Any] = []
        self.client.state.listeners.on_event(self.events.append)
        self.sender: PairedSender = self.client.get_queue_sender("orders")
        self.client.state.twin_was_read("orders", mark)

    def fail_over(self) -> None:
        self.client.entity("orders").tell(ForceFailover())

    @property
    def places(self) -> list[str]:
        return [path for path, _ in self.secondary.took]

    @property
    def marks(self) -> list[Any]:
        """What the messages in the twin say of themselves."""
        payloads = [payload for path, payload in self.secondary.took if path == "orders"]
        return [
            read_divert_mark(message.application_properties[DIVERTED])
            for payload in payloads
            for message in (payload if isinstance(payload, list) else [payload])
        ]


def message(number: int = 1, **more: Any) -> ServiceBusMessage:
    return ServiceBusMessage("x", message_id=str(number), **more)


async def test_a_diverted_message_is_in_the_twin_as_it_is_with_the_label() -> None:
    pair = TwinPair()
    pair.fail_over()
    due = datetime.now(UTC) + timedelta(hours=1)
    given = message(
        time_to_live=timedelta(minutes=5),
        scheduled_enqueue_time_utc=due,
        partition_key="p",
        application_properties={"color": "red"},
    )
    await pair.sender.send_messages(given)
    [(place, copy)] = pair.secondary.took
    assert place == "orders"
    raw = given.raw_amqp_message
    assert copy.application_properties == {"color": "red", DIVERTED: "contoso"}
    assert copy.annotations == raw.annotations
    assert copy.properties.message_id == "1"
    assert copy.header.time_to_live == 300_000
    assert [*copy.body] == [b"x"]
    assert raw.application_properties == {"color": "red"}, "the caller's object is not changed"
    assert pair.ledger.of("divert", "outcome", "entity", "backlog_queue") == [
        ("ok", "orders", "orders")
    ]
    entity = pair.client.entity("orders")
    assert (entity.diverted, entity.twinned) == (1, 1)
    await pair.client.close()


async def test_an_attempt_without_an_answer_is_in_the_mark_and_a_refused_one_is_not() -> None:
    async def silent(payload: Any) -> None:
        if payload is not None:
            await hangs(payload)

    for behaviour, is_unanswered in ((silent, True), (hangs, False), (refuses, False)):
        pair, began_ms = TwinPair(), time.time() * 1_000
        pair.primary.behaviour = behaviour
        await pair.sender.send_messages(message(), timeout=60)
        [mark] = pair.marks
        assert mark.label == "contoso"
        # A link that never opened carried nothing.
        assert (mark.unanswered_since_ms is not None) is is_unanswered, behaviour
        if is_unanswered:
            # Virtual seconds have passed since, of which the wall clock knows nothing.
            assert mark.unanswered_since_ms <= began_ms
            assert mark.unanswered_since_ms > began_ms - 60_000
            outcomes = pair.ledger.of("send", "outcome")
            assert mark.attempts == len(outcomes) > 1
        await pair.client.close()


async def test_a_message_diverted_without_an_attempt_is_not_ambiguous() -> None:
    async def silent(payload: Any) -> None:
        if payload is not None:
            await hangs(payload)

    pair = TwinPair()
    pair.primary.behaviour = silent
    await pair.sender.send_messages(message(1), timeout=60)
    await pair.sender.send_messages(message(2), timeout=60)
    assert [mark.unanswered_since_ms is not None for mark in pair.marks] == [True, False]
    await pair.client.close()


@pytest.mark.parametrize("first", [ServiceBusServerBusyError(), None])
async def test_an_attempt_on_an_open_link_that_is_answered_is_not_ambiguous(
    first: Exception | None,
) -> None:
    """The road of nearly all messages: the first attempt is made outside of the call."""
    pair = TwinPair()
    await pair.sender.send_messages(message(0))

    async def once(payload: Any) -> None:
        pair.fail_over()
        raise first or TimeoutError

    pair.primary.behaviour = once
    await pair.sender.send_messages(message(1), timeout=60)
    [mark] = pair.marks
    assert (mark.unanswered_since_ms is not None) is (first is None)
    await pair.client.close()


async def test_a_twin_without_a_mark_is_never_written_to() -> None:
    pair = TwinPair(mark=False)
    pair.fail_over()
    await pair.sender.send_messages(message())
    assert pair.places == [QUEUE]
    # Its mark is gone.
    pair.client.state.twin_was_read("orders", True)
    await pair.sender.send_messages(message(2))
    pair.client.state.twin_was_read("orders", False)
    await pair.sender.send_messages(message(3))
    assert pair.places == [QUEUE, "orders", QUEUE]
    changes = [event for event in pair.events if isinstance(event, TwinChanged)]
    assert [event.is_used for event in changes] == [False, True, False]
    await pair.client.close()


async def test_before_its_mark_was_read_the_backlog_takes_all() -> None:
    pair = FakePair(twins=["orders"])
    sender = pair.client.get_queue_sender("orders")
    pair.client.entity("orders").tell(ForceFailover())
    await sender.send_messages(message())
    assert [path for path, _ in pair.secondary.took] == [QUEUE]
    assert pair.client.entity("orders").twinned == 0
    await pair.client.close()


async def test_entities_that_are_not_listed_use_the_backlog() -> None:
    pair = TwinPair()
    other = pair.client.get_topic_sender("events")
    pair.client.entity("events").tell(ForceFailover())
    await other.send_messages(message())
    assert pair.places == [QUEUE]
    await pair.client.close()


@pytest.mark.parametrize("allowed", [False, True])
async def test_messages_with_sessions_use_the_twin_only_if_the_options_say_so(
    allowed: bool,
) -> None:
    pair = TwinPair(twins_with_sessions=allowed)
    pair.fail_over()
    await pair.sender.send_messages(message(1, session_id="s"))
    await pair.sender.send_messages([message(2), message(3, session_id="s")])
    await pair.sender.send_messages(message(4))
    first = "orders" if allowed else QUEUE
    assert pair.places == [first, first, "orders"]
    if allowed:
        assert pair.secondary.took[0][1].properties.group_id == "s"
    await pair.client.close()


@pytest.mark.parametrize(
    "error", [ServiceBusQuotaExceededError(), MessagingEntityNotFoundError()], ids=["full", "gone"]
)
async def test_a_twin_that_does_not_take_a_message_is_pulled_and_comes_back(
    error: Exception,
) -> None:
    pair = TwinPair()

    async def fails(_: Any) -> None:
        raise error

    pair.secondary.by_entity["orders"] = fails
    pair.fail_over()
    await pair.sender.send_messages(message(1))
    await pair.sender.send_messages(message(2))
    assert pair.places == [QUEUE, QUEUE]
    tried = pair.ledger.of("divert", "outcome", "backlog_queue")
    assert tried == [("failed", "orders"), ("ok", QUEUE), ("ok", QUEUE)]
    [status] = [pair.client.state.twins.status("orders", pair.now)]
    assert status is not None
    assert (status.state, status.verified) == ("pulled", True)
    del pair.secondary.by_entity["orders"]
    await asyncio.sleep(30)
    await pair.sender.send_messages(message(3))
    assert pair.places == [QUEUE, QUEUE, "orders"]
    changes = [event.is_used for event in pair.events if isinstance(event, TwinChanged)]
    assert changes == [True, False, True]
    await pair.client.close()


async def test_a_silent_twin_costs_two_attempts_and_is_pulled() -> None:
    pair = TwinPair()
    pair.secondary.by_entity["orders"] = hangs
    pair.fail_over()
    for number in range(3):
        await pair.sender.send_messages(message(number), timeout=60)
    assert pair.places == [QUEUE] * 3
    assert pair.elapsed <= 12
    assert "orders" in pair.client.state.rotation.pulled(pair.now)
    await pair.client.close()


async def test_hasty_callers_leave_a_silent_twin() -> None:
    pair = TwinPair()
    await pair.sender.send_messages(message())
    pair.fail_over()
    await pair.sender.send_messages(message(1))
    pair.secondary.by_entity["orders"] = hangs
    for number in range(2):
        with pytest.raises(BacklogUnavailableError, match="orders"):
            await pair.sender.send_messages(message(number), timeout=1)
    await pair.sender.send_messages(message(4), timeout=1)
    assert pair.places == ["orders", QUEUE]
    await pair.client.close()


async def test_a_batch_too_large_for_the_twin_goes_in_halves_with_the_same_mark() -> None:
    pair = TwinPair()

    async def silent(payload: Any) -> None:
        if payload is not None:
            await hangs(payload)

    async def takes_two(payload: Any) -> None:
        if isinstance(payload, list) and len(payload) > 2:
            raise MessageSizeExceededError

    pair.primary.behaviour = silent
    pair.secondary.by_entity["orders"] = takes_two
    await pair.sender.send_messages([message(number) for number in range(4)], timeout=60)
    assert pair.places == ["orders", "orders"]
    assert len({mark.unanswered_since_ms for mark in pair.marks}) == 1
    assert pair.marks[0].unanswered_since_ms is not None
    assert pair.client.entity("orders").twinned == 4
    await pair.client.close()


async def test_a_message_too_large_for_the_twin_goes_to_the_backlog() -> None:
    pair = TwinPair()
    pair.client.state.twin_limits.learn("orders", 1_024, 1_024)
    pair.fail_over()
    await pair.sender.send_messages(ServiceBusMessage(b"x" * 2_000))
    await pair.sender.send_messages(message())
    assert pair.places == [QUEUE, "orders"]
    assert pair.client.state.limits.smallest is None, "the limit of a twin is its own"
    await pair.client.close()


async def test_a_message_received_from_a_twin_can_be_sent_on_and_gets_a_mark_of_its_own() -> None:
    pair = TwinPair()
    pair.fail_over()
    old: dict[Any, Any] = {DIVERTED.encode(): b"fabrikam;unanswered=5", b"color": "red"}
    await pair.sender.send_messages(
        AmqpAnnotatedMessage(
            data_body=b"x", properties={"message_id": "1"}, application_properties=old
        )
    )
    [(_, copy)] = pair.secondary.took
    assert copy.application_properties == {b"color": "red", DIVERTED: "contoso"}
    await pair.client.close()


async def test_a_closed_secondary_has_no_twin() -> None:
    pair = TwinPair()
    pair.fail_over()
    await pair.client.close_secondary("closed")
    assert pair.client.state.rotation.twins == ()
    pair.client.state.twin_was_read("orders", True)
    assert pair.client.state.rotation.twins == ()
    await pair.client.close()


async def test_an_entity_that_is_back_keeps_no_connection_to_its_twin() -> None:
    pair = TwinPair()
    pair.fail_over()
    await pair.sender.send_messages(message())
    opened, closed = pair.secondary.opened, pair.secondary.closed
    assert opened > closed
    pair.client.entity("orders").tell(MarkHealthy())
    await asyncio.sleep(1)
    assert pair.secondary.closed == opened
    await pair.client.close()


async def test_the_twins_of_forgotten_entities_are_forgotten() -> None:
    pair = TwinPair(twins="*")
    pair.client.state.monitors._unused_max = 3
    for number in range(6):
        sender = pair.client.get_queue_sender(f"reply-{number}")
        pair.client.state.twin_was_read(f"reply-{number}", True)
        await sender.close()
    assert pair.client.state.rotation.twins == ("orders", "reply-3", "reply-4", "reply-5")
    await pair.client.close()


async def test_marks_are_read_when_a_sender_is_made_and_again_in_time() -> None:
    pair = FakePair(twins=["orders", "e*"])
    reads: list[tuple[float, list[str]]] = []
    answers: dict[str, bool | None] = {"orders": True, "events": None}
    is_silent = False

    async def read(paths: Any) -> dict[str, bool | None]:
        reads.append((pair.elapsed, [*paths]))
        if is_silent:
            raise ConnectionError("silent")
        return {path: answers[path] for path in paths}

    def used() -> list[str]:
        return [*pair.client.state.rotation.twins]

    marks = TwinMarks(pair.client.state, read)
    marks.start()
    await asyncio.sleep(5)
    assert reads == []
    sender = pair.client.get_queue_sender("orders")
    pair.client.get_topic_sender("events")
    pair.client.get_queue_sender("payments")
    await asyncio.sleep(READ_EVERY_S + 1)
    assert reads == [(5.0, ["orders", "events"]), (5.0 + READ_EVERY_S, ["orders", "events"])]
    assert used() == ["orders"]
    # A failure of the twin has its mark read; without an answer it stays in use, and is read again.
    is_silent = True

    async def gone(_: Any) -> None:
        raise MessagingEntityNotFoundError

    pair.secondary.by_entity["orders"] = gone
    await asyncio.sleep(60)
    pair.client.entity("orders").tell(ForceFailover())
    await sender.send_messages(message())
    await asyncio.sleep(1)
    assert reads[2:] == [(66.0 + READ_EVERY_S, ["orders"])]
    await asyncio.sleep(READ_AGAIN_S)
    assert len(reads) == 4
    assert used() == ["orders"]
    is_silent, answers["orders"] = False, False
    await asyncio.sleep(READ_AGAIN_S)
    assert used() == []
    await marks.close()
    await pair.client.close()


async def test_without_the_option_nothing_is_read() -> None:
    pair = FakePair()
    marks = TwinMarks(pair.client.state)
    marks.start()
    assert pair.client.get_queue_sender("orders").target.twin is None
    assert marks._task is None
    await marks.close()
    await pair.client.close()
