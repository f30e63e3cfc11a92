"""The pair's shells in virtual time: timers, pings, waking, leases, closing, the ledger."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from twinbus.errors import (
    EntityUnusableError,
    PairingError,
    PartialDivertError,
    ScheduleUnavailableError,
)
from twinbus.options import Verdict
from twinbus.pairing.core.failover import ForceFailover, Freeze, MarkHealthy, OthersRecovered
from twinbus.testing.fake_sdk import Behaviour, FakePair, accepts, hangs, refuses

pytestmark = pytest.mark.virtual_time

QUEUE = "contoso/x-servicebus-transfer/"


def message(number: int = 1) -> ServiceBusMessage:
    return ServiceBusMessage("x", message_id=str(number))


async def test_a_patient_send_to_a_dead_primary_is_diverted_when_the_interval_is_over() -> None:
    world = FakePair()
    world.primary.behaviour = refuses
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(message(), timeout=60)
    assert world.elapsed == 10.0
    assert [name for name, _ in world.secondary.took] == [QUEUE + "0"]
    # Attempts at 0, then after 1.6, 3.2 and 6.4 s of back-off: the last would come too late.
    sends = world.ledger.of("send", "outcome", "message_id")
    assert sends == [("failed", "1")] * 3
    assert world.ledger.of("divert", "outcome", "backlog_queue") == [("ok", QUEUE + "0")]
    assert world.ledger.of("state", "state") == [("suspect",), ("failed over",)]


@pytest.mark.parametrize("behaviour", [hangs, refuses], ids=["hangs", "refuses"])
async def test_a_send_without_a_timeout_is_diverted_too(behaviour: Behaviour) -> None:
    world = FakePair(failover_interval=60.0)
    world.primary.behaviour = behaviour
    await world.client.get_queue_sender("orders").send_messages(message())
    assert 60.0 <= world.elapsed <= 70.0
    assert [name for name, _ in world.secondary.took] == [QUEUE + "0"]


async def test_a_schedule_without_a_timeout_does_not_wait_for_a_failover_that_would_end_it() -> (
    None
):
    """Only the primary gives sequence numbers: retries until the failover would lead to none."""
    world = FakePair(failover_interval=3600.0)
    world.primary.behaviour = refuses
    sender = world.client.get_queue_sender("orders")
    with pytest.raises(ConnectionRefusedError):
        await sender.schedule_messages(message(), datetime(2030, 1, 1, tzinfo=UTC))
    assert world.elapsed <= 36.2


async def test_a_hanging_primary_costs_each_attempt_its_bound_and_the_outcome_is_unknown() -> None:
    world = FakePair(retry_total=0)
    world.primary.behaviour = hangs
    sender = world.client.get_queue_sender("orders")
    with pytest.raises(OperationTimeoutError, match="within 5 s") as caught:
        await sender.send_messages(message(7))
    assert world.elapsed == 5.0
    assert caught.value.message_ids == ("7",)  # type: ignore[attr-defined]
    assert world.ledger.of("send", "outcome") == [("unknown",)]


async def test_no_call_outlives_its_timeout_however_many_wait_for_a_sender() -> None:
    world = FakePair(failover_interval=3600.0)
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(message())
    world.primary.behaviour = hangs
    calls = [sender.send_messages(message(n), timeout=7) for n in range(40)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, OperationTimeoutError) for result in results)
    assert world.elapsed == 7.0


async def test_callers_that_wait_for_a_sender_are_diverted_when_the_entity_fails_over() -> None:
    world = FakePair(failover_interval=6.0)
    sender = world.client.get_queue_sender("orders")
    world.primary.behaviour = hangs
    calls = asyncio.gather(*(sender.send_messages(message(n), timeout=60) for n in range(40)))
    # At 5 s the two links have not opened, and all callers know. Two open a link again after the
    # back-off, at 6.6 s, when the others are diverted 6 s after the first failure.
    await asyncio.sleep(11.1)
    assert len(world.secondary.took) == 38
    await calls
    assert world.elapsed == 11.6
    assert len(world.secondary.took) == 40


async def test_each_sender_of_the_sdk_serves_one_call_at_a_time_and_is_used_again() -> None:
    async def slow(sent: Any) -> None:
        await asyncio.sleep(0.0 if sent is None else 1.0)

    world = FakePair()
    world.primary.behaviour = slow
    sender = world.client.get_queue_sender("orders")
    await asyncio.gather(*(sender.send_messages(message(n)) for n in range(16)))
    assert (world.primary.opened, world.primary.busiest) == (8, 8)
    await sender.send_messages(message())
    assert world.primary.opened == 8
    await world.client.close()
    assert world.primary.closed == 8


async def test_a_crowd_does_not_open_a_sender_each_while_one_that_is_open_can_serve_them() -> None:
    async def opens_slowly(sent: Any) -> None:
        await asyncio.sleep(0.5 if sent is None else 0.001)

    world = FakePair()
    world.primary.behaviour = opens_slowly
    sender = world.client.get_queue_sender("orders")
    await asyncio.gather(*(sender.send_messages(message(n)) for n in range(40)))
    assert world.primary.opened == 2
    assert world.elapsed == 0.52


async def test_pings_start_an_interval_after_the_failover_and_an_answer_heals_at_once() -> None:
    world = FakePair(failover_interval=0.0)
    world.primary.behaviour = refuses
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(message())
    assert world.state() == "failed over"
    await asyncio.sleep(130)
    assert world.ledger.of("ping", "outcome") == [("failed",)] * 2
    world.primary.behaviour = accepts
    await asyncio.sleep(60)
    assert world.state() == "healthy"
    ((name, ping),) = world.primary.took
    assert (name, ping.content_type) == ("orders", "application/vnd.ms-servicebus-ping")
    await asyncio.sleep(300)
    assert len(world.ledger.of("ping", "outcome")) == 3


async def test_a_link_ping_sends_nothing() -> None:
    world = FakePair(failover_interval=0.0, ping_mode="link")
    world.primary.behaviour = refuses
    await world.client.get_queue_sender("orders").send_messages(message())
    world.primary.behaviour = accepts
    await asyncio.sleep(61)
    assert world.state() == "healthy"
    assert world.primary.took == []


async def test_an_entity_that_is_gone_is_unusable_until_a_ping_is_answered() -> None:
    async def is_gone(_: Any) -> None:
        raise MessagingEntityNotFoundError(message="no such queue")

    world = FakePair(failover_interval=0.0)
    world.primary.behaviour = refuses
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(message())
    world.primary.behaviour = is_gone
    await asyncio.sleep(61)
    with pytest.raises(EntityUnusableError, match="no such queue") as caught:
        await sender.send_messages(message(2))
    assert caught.value.message_ids == ("2",)
    world.primary.behaviour = accepts
    await asyncio.sleep(61)
    await sender.send_messages(message(3))
    assert world.state() == "healthy"


@pytest.mark.parametrize("behaviour", [hangs, refuses], ids=["hangs", "refuses"])
async def test_of_all_calls_one_tries_a_primary_that_is_said_to_be_back_and_all_are_stored(
    behaviour: Behaviour,
) -> None:
    world = FakePair(failover_interval=0.0)
    world.primary.behaviour = behaviour
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(message(), timeout=20)
    entity, before = world.client.entity("orders"), world.now
    entity.tell(OthersRecovered())
    calls = [sender.send_messages(message(n), timeout=8) for n in range(2, 12)]
    await asyncio.gather(*calls)
    assert world.now - before <= 4.0
    assert len(world.secondary.took) == 11
    assert len(world.ledger.of("send", "outcome")) == 2
    assert world.state() == "failed over"
    world.primary.behaviour = accepts
    await sender.send_messages(message(12), timeout=8)
    assert len(world.primary.took) == 0
    entity.tell(OthersRecovered())
    await sender.send_messages(message(13), timeout=8)
    assert (world.state(), len(world.primary.took)) == ("healthy", 1)


async def test_a_schedule_is_not_tried_for_others() -> None:
    world = FakePair(failover_interval=0.0)
    world.primary.behaviour = refuses
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(message(), timeout=20)
    world.client.entity("orders").tell(OthersRecovered())
    with pytest.raises(ScheduleUnavailableError):
        await sender.schedule_messages(message(), datetime(2030, 1, 1, tzinfo=UTC))
    assert world.client.entity("orders").failover.may_try


UNWILLING: dict[str, type[Exception]] = {
    "disabled": MessagingEntityDisabledError,
    "full": ServiceBusQuotaExceededError,
    "throttled": ServiceBusServerBusyError,
}


def answers(kind: Any) -> Behaviour:
    async def refuse(_: Any) -> None:
        raise kind(message="the primary answers")

    return refuse


@pytest.mark.parametrize("cause", UNWILLING)
async def test_what_takes_no_message_is_diverted_only_by_the_option(cause: str) -> None:
    refuse = answers(UNWILLING[cause])
    plain = FakePair()
    plain.primary.behaviour = refuse
    with pytest.raises(UNWILLING[cause]):
        await plain.client.get_queue_sender("orders").send_messages(message(), timeout=60)
    assert plain.state() == "healthy"
    others = FakePair(divert_on={*UNWILLING} - {cause})
    others.primary.behaviour = refuse
    with pytest.raises(UNWILLING[cause]):
        await others.client.get_queue_sender("orders").send_messages(message(), timeout=60)
    assert others.state() == "healthy"
    world = FakePair(divert_on={cause})
    world.primary.behaviour = refuse
    sender = world.client.get_queue_sender("orders")
    with pytest.raises(UNWILLING[cause]):
        await sender.send_messages(message(), timeout=1)
    assert world.state() == "suspect"
    await sender.send_messages(message(), timeout=60)
    assert (world.elapsed, world.state()) == (10.0, "failed over")
    assert len(world.secondary.took) == 1
    # Pings that find the same keep it there, and the first that is answered ends it.
    await asyncio.sleep(125)
    assert world.ledger.of("ping", "outcome") == [("failed",)] * 2
    assert world.state() == "failed over"
    world.primary.behaviour = accepts
    await asyncio.sleep(60)
    assert world.state() == "healthy"


async def test_what_is_deleted_is_unusable_whatever_may_be_diverted() -> None:
    world = FakePair(failover_interval=0.0, divert_on=[*UNWILLING])
    world.primary.behaviour = answers(MessagingEntityDisabledError)
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(message())
    world.primary.behaviour = answers(MessagingEntityNotFoundError)
    await asyncio.sleep(61)
    assert world.state() == "unusable"
    world.primary.behaviour = answers(MessagingEntityDisabledError)
    await asyncio.sleep(61)
    assert world.state() == "failed over"


async def test_a_ping_that_hangs_is_bounded_and_dropped_when_the_entity_is_marked_healthy() -> None:
    world = FakePair(failover_interval=0.0)
    world.primary.behaviour = hangs
    entity = world.client.entity("orders")
    entity.tell(ForceFailover())
    await asyncio.sleep(62)
    entity.tell(MarkHealthy())
    await asyncio.sleep(0.1)
    assert world.ledger.of("ping", "outcome") == [("unknown",)]
    assert world.state() == "healthy"


async def test_a_bad_backlog_queue_is_pulled_for_all_senders_and_another_is_used() -> None:
    async def is_full(_: Any) -> None:
        raise ServiceBusQuotaExceededError(message="full")

    world = FakePair()
    world.secondary.by_entity[QUEUE + "0"] = is_full
    world.client.entity("orders").tell(ForceFailover())
    world.client.entity("news").tell(ForceFailover())
    await world.client.get_queue_sender("orders").send_messages(message(1))
    await world.client.get_topic_sender("news").send_messages(message(2))
    assert [name for name, _ in world.secondary.took] == [QUEUE + "1"] * 2
    assert world.ledger.of("divert", "outcome", "message_id") == [
        ("failed", "1"),
        ("ok", "1"),
        ("ok", "2"),
    ]
    assert "full" in world.client.state.rotation.absences(world.now)[QUEUE + "0"]
    await asyncio.sleep(31)
    assert world.client.state.rotation.absences(world.now) == {}


async def test_waiting_for_a_hanging_backlog_queue_ends_when_others_have_found_it_bad() -> None:
    world = FakePair()
    world.secondary.by_entity[QUEUE + "0"] = hangs
    world.client.entity("orders").tell(ForceFailover())
    sender = world.client.get_queue_sender("orders")
    await asyncio.gather(*(sender.send_messages(message(n), timeout=30) for n in range(40)))
    assert world.elapsed == 5.0
    assert {name for name, _ in world.secondary.took} == {QUEUE + "1"}


async def test_a_split_batch_that_is_stored_in_part_says_which_part() -> None:
    async def small_only(sent: Any) -> None:
        if isinstance(sent, list) and len(sent) > 2:
            raise MessageSizeExceededError(message="too large")
        ids = [m.properties.message_id for m in (sent if isinstance(sent, list) else [sent])]
        if "4" in ids:
            raise ValueError("a message that nobody takes")

    world = FakePair()

    async def opens(sent: Any) -> None:
        if sent is not None:
            await small_only(sent)

    world.secondary.behaviour = opens
    world.client.entity("orders").tell(ForceFailover())
    with pytest.raises(PartialDivertError) as caught:
        await world.client.get_queue_sender("orders").send_messages(
            [message(n) for n in range(1, 5)]
        )
    assert caught.value.stored_ids == ("1", "2")
    assert caught.value.not_stored_ids == ("3", "4")


async def test_the_users_own_classifier_is_asked() -> None:
    async def odd(_: Any) -> None:
        raise RuntimeError("odd")

    def counts(error: BaseException) -> Verdict:
        return Verdict.COUNTS if isinstance(error, RuntimeError) else Verdict.IGNORED

    world = FakePair(failover_interval=0.0, classify=counts)
    world.primary.behaviour = odd
    await world.client.get_queue_sender("orders").send_messages(message())
    assert world.state() == "failed over"


async def test_a_frozen_entity_wakes_those_who_wait_and_fails_over_no_more() -> None:
    world = FakePair(retry_total=0)
    world.primary.behaviour = refuses
    call = asyncio.create_task(
        world.client.get_queue_sender("orders").send_messages(message(), timeout=60)
    )
    await asyncio.sleep(1)
    world.client.entity("orders").tell(Freeze())
    with pytest.raises(ConnectionRefusedError):
        await call
    assert world.elapsed == 1.0


async def test_closing_ends_calls_that_wait_and_leaves_no_timer() -> None:
    world = FakePair(failover_interval=3600.0)
    world.primary.behaviour = refuses
    sender = world.client.get_queue_sender("orders")
    call = asyncio.create_task(sender.send_messages(message(), timeout=3000))
    await asyncio.sleep(1)
    await world.client.close()
    with pytest.raises(PairingError, match="closed"):
        await call
    loop: Any = asyncio.get_running_loop()
    assert [timer for timer in loop._scheduled if not timer.cancelled()] == []


async def test_a_pair_that_is_closed_while_failed_over_says_so_once() -> None:
    world = FakePair(failover_interval=0.0)
    world.primary.by_entity["orders"] = refuses
    async with world.client.get_queue_sender("orders") as orders:
        await orders.send_messages(message())
    async with world.client.get_queue_sender("news") as news:
        await news.send_messages(message())
    await world.client.stop_watching()
    await world.client.close()
    assert world.ledger.of("state", "entity", "state", "error") == [
        ("orders", "failed over", "a send failed"),
        ("orders", "closed", "the pair was closed, the entity was failed over"),
    ]


async def test_a_cancelled_call_gives_up_its_sender_and_is_recorded_as_unknown() -> None:
    world = FakePair()
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(message(1))
    world.primary.behaviour = hangs
    call = asyncio.create_task(sender.send_messages(message(2)))
    await asyncio.sleep(1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert world.ledger.of("send", "message_id", "outcome") == [("1", "ok"), ("2", "unknown")]
    assert world.state() == "healthy"
    world.primary.behaviour = accepts
    await sender.send_messages(message(3))
    assert world.primary.opened == 2


async def test_a_sender_of_the_sdk_that_swallows_a_cancellation_is_still_left_in_time() -> None:
    async def stubborn(_: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    world = FakePair(retry_total=0)
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(message())
    world.primary.behaviour = stubborn
    with pytest.raises(OperationTimeoutError):
        await sender.send_messages(message())
    assert world.elapsed == 5.05


async def test_unprotected_sends_use_the_primary_whatever_its_state() -> None:
    world = FakePair(failover_interval=0.0, retry_total=1)
    for path in world.client.state.paths:
        world.client.state.rotation.leave_out(path, "not found yet")
    world.primary.behaviour = refuses
    sender = world.client.get_queue_sender("orders")
    with pytest.raises(ConnectionRefusedError):
        await sender.send_messages(message())
    world.primary.behaviour = accepts
    await sender.send_messages(message())
    assert world.state() == "healthy"


async def test_a_sender_has_the_identifier_of_its_links(monkeypatch: pytest.MonkeyPatch) -> None:
    world = FakePair()
    made = []
    make = world.client._primary_sdk.get_queue_sender

    def note(name: str, **options: Any) -> Any:
        made.append(options["client_identifier"])
        return make(name, **options)

    monkeypatch.setattr(world.client._primary_sdk, "get_queue_sender", note)
    named = world.client.get_queue_sender("orders", client_identifier="me")
    unnamed = world.client.get_queue_sender("orders")
    for sender in (named, unnamed):
        await sender.send_messages(ServiceBusMessage("x"))
    assert named.client_identifier == "me"
    assert unnamed.client_identifier.startswith("SBSender-")
    assert made == [named.client_identifier, unnamed.client_identifier]
