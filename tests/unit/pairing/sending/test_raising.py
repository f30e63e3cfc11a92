"""Calls that raise, arguments that are refused, and entities that a pair forgets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusServerBusyError,
)

import twinbus
from twinbus import Namespace, blocking
from twinbus.errors import BacklogUnavailableError, PairClosedError
from twinbus.namespace.address import ConnectionString
from twinbus.pairing.core.failover import ForceFailover, Freeze, MarkHealthy
from twinbus.pairing.core.sides import PairSides
from twinbus.pairing.core.status import backlog_status
from twinbus.pairing.observing.metrics import MeasuredPair, PairCollector
from twinbus.pairing.sending.entity_monitor import UNUSED_MAX, EntityMonitors
from twinbus.pairing.sending.sender import PairedSender
from twinbus.status.document import PairStatus
from twinbus.status.judgement import judgement_of
from twinbus.status.reading import read_status
from twinbus.testing.fake_sdk import FakePair, hangs, refuses

pytestmark = pytest.mark.virtual_time


def raises(error: Exception) -> Callable[[Any], Awaitable[None]]:
    async def behaviour(_: Any) -> None:
        raise error

    return behaviour


def status_of(world: FakePair) -> PairStatus:
    state = world.client.state
    return PairStatus(
        primary="sb://contoso",
        secondary="sb://dr",
        protected=True,
        searching=None,
        entities={entity.path: entity.status() for entity in state.monitors.all()},
        backlog_queues=backlog_status(state.rotation, state.paths, state.now),
    )


def samples(world: FakePair) -> dict[str, float]:
    sides = PairSides(syphon=False)
    measured = MeasuredPair(world.client.state, sides, lambda: status_of(world))
    families = list(PairCollector(measured).collect())
    names = ("twinbus_safe", "twinbus_entity_raising")
    return {
        sample.labels.get("entity", ""): sample.value
        for family in families
        if family.name in names
        for sample in family.samples
    }


async def send(sender: PairedSender) -> None:
    await sender.send_messages(ServiceBusMessage("x"), timeout=30)


async def send_list(sender: PairedSender) -> None:
    await sender.send_messages([ServiceBusMessage("x"), ServiceBusMessage("y")], timeout=30)


async def make_batch(sender: PairedSender) -> None:
    await sender.create_message_batch()


@pytest.mark.parametrize("call", [send, send_list, make_batch])
@pytest.mark.parametrize(
    "error",
    [
        MessagingEntityNotFoundError(message="gone TrackingId:abc_B, Timestamp:2026"),
        MessagingEntityDisabledError(message="gone"),
        ServiceBusAuthenticationError(message="gone"),
        ServiceBusServerBusyError(message="gone"),
    ],
)
async def test_what_raises_and_stays_healthy_is_raising_for_a_minute(
    call: Callable[[PairedSender], Awaitable[None]], error: Exception
) -> None:
    world = FakePair(retry_total=1, retry_backoff_factor=0.01)
    sender = world.client.get_queue_sender("orders")
    world.primary.behaviour = raises(error)
    for _ in range(3):
        with pytest.raises(type(error)):
            await call(sender)
    assert world.state() == "healthy"
    status = status_of(world)
    assert status.entities["orders"].raising == 3
    # What another process reads from the control socket means the same.
    for found in (judgement_of(status, 0.0), judgement_of(read_status(status.as_dict()), 0.0)):
        why = f"(3 calls in the last minute: {type(error).__name__}: gone)"
        assert found.attention == [f"raising: orders {why}"]
        assert not found.is_safe
        assert found.sends == f"sends are NOT safe: those to orders raise {why}"
        assert found.states == {"orders": ["raising"]}
    assert "RAISING, 3 calls" in str(status)
    assert samples(world) == {"": 0, "orders": 3}
    await asyncio.sleep(61)
    assert judgement_of(status_of(world), 0.0).concerns == ()
    assert samples(world) == {"": 1}


async def test_callers_that_give_up_on_an_entity_that_stores_nothing() -> None:
    world = FakePair(failover_interval=3_600.0)
    sender = world.client.get_queue_sender("orders")
    await send(sender)
    world.primary.behaviour = hangs
    for _ in range(6):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(send(sender), 2)
    entity = world.client.entity("orders").status()
    assert (entity.raised, entity.raising) == (6, 3)
    assert not judgement_of(status_of(world), 0.0).is_safe


async def test_a_message_that_is_refused_says_nothing_about_an_entity_that_stores_others() -> None:
    world = FakePair(retry_total=0)
    sender = world.client.get_queue_sender("orders")
    takes, refuses_it = world.primary.behaviour, raises(MessageSizeExceededError(message="large"))
    for second in range(12):
        world.primary.behaviour = refuses_it if second % 4 else takes
        if second % 4:
            with pytest.raises(MessageSizeExceededError):
                await send(sender)
        else:
            await send(sender)
        found = judgement_of(status_of(world), 0.0)
        assert (found.is_safe, found.concerns) == (True, ())
        await asyncio.sleep(1)
    assert world.client.entity("orders").status().raised == 9
    # Where every message is refused, the entity takes none: that is told.
    world.primary.behaviour = refuses_it
    for _ in range(8):
        with pytest.raises(MessageSizeExceededError):
            await send(sender)
        await asyncio.sleep(1)
    assert not judgement_of(status_of(world), 0.0).is_safe


async def test_errors_of_before_a_failover_do_not_make_the_diverted_entity_raising() -> None:
    world = FakePair(failover_interval=10.0, retry_total=0)
    sender = world.client.get_queue_sender("orders")
    world.primary.behaviour = refuses
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            await sender.send_messages(ServiceBusMessage("x"), timeout=1)
    assert judgement_of(status_of(world), 0.0).states == {"orders": ["suspect", "raising"]}
    await asyncio.sleep(11)
    await send(sender)
    found = judgement_of(status_of(world), 0.0)
    assert (found.states, found.is_safe) == ({"orders": ["failed over"]}, True)
    world.secondary.behaviour = refuses
    with pytest.raises(BacklogUnavailableError):
        await send(sender)
    assert judgement_of(status_of(world), 0.0).states == {"orders": ["failed over", "raising"]}


MESSAGE = ServiceBusMessage("x", message_id="1")


@pytest.mark.parametrize("given", [MESSAGE, [MESSAGE]], ids=["one", "list"])
@pytest.mark.parametrize("closed", ["sender", "pair"])
async def test_an_error_of_what_was_closed_has_the_ids(given: Any, closed: str) -> None:
    world = FakePair()
    sender = world.client.get_queue_sender("orders")
    await (sender.close() if closed == "sender" else world.client.close())
    kind, text = (ValueError, "sender") if closed == "sender" else (PairClosedError, "pair")
    at = datetime(2030, 1, 1, tzinfo=UTC)
    for call in (sender.send_messages, lambda each: sender.schedule_messages(each, at)):
        with pytest.raises(kind, match=f"the {text}.* was closed") as caught:
            await call(given)
        assert caught.value.message_ids == ("1",)  # type: ignore[attr-defined]
        # As the SDK's sender raises it.
        assert isinstance(caught.value, ValueError)


async def test_what_is_no_message_has_no_id() -> None:
    world = FakePair()
    sender = world.client.get_queue_sender("orders")
    await sender.close()
    with pytest.raises(ValueError, match="was closed") as caught:
        await sender.send_messages(7)  # type: ignore[arg-type]
    assert caught.value.message_ids == ()  # type: ignore[attr-defined]


async def test_a_sender_closed_while_a_call_waits_for_its_retry_says_so() -> None:
    world = FakePair(retry_backoff_factor=5.0, failover_interval=3600.0)
    world.primary.behaviour = refuses
    sender = world.client.get_queue_sender("orders")
    waiting = asyncio.create_task(sender.send_messages(MESSAGE))
    await asyncio.sleep(1.0)
    await sender.close()
    with pytest.raises(ValueError, match="the sender to orders was closed") as caught:
        await waiting
    assert caught.value.message_ids == ("1",)  # type: ignore[attr-defined]


STRING = "Endpoint=sb://{}.example/;SharedAccessKeyName=Root;SharedAccessKey=s3cret"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *((name, "must be a text that is not") for name in (None, 7, b"orders", "", "//")),
        *(
            (name, "is not the path of a queue or topic")
            for name in ("orders ", "a" * 261, "orders/$management", "$cbs", "a//b")
        ),
    ],
)
async def test_a_name_that_no_entity_can_have_is_refused(name: Any, said: str) -> None:
    world = FakePair()
    for make in (world.client.get_queue_sender, world.client.get_topic_sender):
        with pytest.raises(ValueError, match=said):
            make(name)


@pytest.mark.parametrize("wrong", ["10", timedelta(seconds=10), [10], Decimal(10)])
async def test_a_timeout_is_a_number(wrong: Any) -> None:
    world = FakePair()
    sender = world.client.get_queue_sender("orders")
    message, at = ServiceBusMessage("x"), datetime(2030, 1, 1, tzinfo=UTC)
    for call in (
        lambda: sender.send_messages(message, timeout=wrong),
        lambda: sender.send_messages([message], timeout=wrong),
        lambda: sender.schedule_messages(message, at, timeout=wrong),
        lambda: sender.cancel_scheduled_messages(1, timeout=wrong),
    ):
        with pytest.raises(TypeError, match="the timeout must be a number of seconds or None; got"):
            await call()
    assert world.primary.took == []


async def test_unknown_keywords_warn_as_in_the_sdk() -> None:
    world = FakePair()
    sender = world.client.get_queue_sender("orders")
    calls: list[Callable[..., Awaitable[Any]]] = [
        partial(sender.send_messages, ServiceBusMessage("x")),
        partial(sender.schedule_messages, [], datetime(2030, 1, 1, tzinfo=UTC)),
        partial(sender.cancel_scheduled_messages, []),
    ]
    for call in calls:
        with pytest.warns(UserWarning, match="Unsupported keyword args: {'colour': 'red'}") as told:
            await call(colour="red")
        assert told[0].filename == __file__
    assert len(world.primary.took) == 1


async def test_a_connection_string_of_one_entity_has_senders_to_that_entity_only() -> None:
    world = FakePair()
    world.client.state.primary.parts = ConnectionString.parse(
        STRING.format("contoso") + ";EntityPath=orders"
    )
    world.client.get_queue_sender("orders")
    for make in (world.client.get_queue_sender, world.client.get_topic_sender):
        with pytest.raises(ValueError, match=r"for 'orders' \(EntityPath\).* no sender to 'bills'"):
            make("bills")
    assert [entity.path for entity in world.client.state.monitors.all()] == ["orders"]


def test_a_secondary_needs_a_connection_string_of_the_namespace() -> None:
    primary = Namespace.from_connection_string(STRING.format("a"))
    for pair_namespaces in (twinbus.pair_namespaces, blocking.pair_namespaces):
        with pytest.raises(ValueError, match=r"secondary is for 'orders' \(EntityPath\)"):
            pair_namespaces(primary, STRING.format("b") + ";EntityPath=orders")
    # What was refused is not in use.
    primary.claim()


@pytest.mark.parametrize("options", [{}, {"ledger": "x"}, "", 0])
async def test_options_are_of_their_class(options: Any) -> None:
    primary, secondary = (Namespace.from_connection_string(STRING.format(x)) for x in ("a", "b"))
    text = "options must be SendAvailabilityOptions or None; got"
    with pytest.raises(TypeError, match=text):
        async with twinbus.pair_namespaces(primary, secondary, options):
            pass
    with (
        pytest.raises(TypeError, match=text),
        blocking.pair_namespaces(primary, secondary, options),
    ):
        pass
    # What was refused is not in use.
    for side in (primary, secondary):
        side.claim()


KEPT = 3


def small_world() -> FakePair:
    world = FakePair()
    world.client.state.monitors = EntityMonitors(KEPT)
    return world


async def send_to(world: FakePair, path: str) -> None:
    async with world.client.get_queue_sender(path) as sender:
        await sender.send_messages(ServiceBusMessage("x", message_id="1"))


def paths(world: FakePair) -> list[str]:
    return [entity.path for entity in world.client.state.monitors.all()]


async def test_reply_queues_are_forgotten_and_their_totals_are_kept() -> None:
    world = FakePair()
    for number in range(UNUSED_MAX + 200):
        await send_to(world, f"reply-{number}")
    watched = world.client.state.monitors
    entities, totals = watched.numbers()
    assert len(entities) == UNUSED_MAX
    assert (totals.entities, totals.sent) == (200, 200)
    assert [entities[0].path, entities[-1].path] == ["reply-200", f"reply-{UNUSED_MAX + 199}"]


async def test_an_entity_in_use_held_or_not_healthy_is_kept() -> None:
    world = small_world()
    open_sender = world.client.get_queue_sender("open")
    for path in ("again", "frozen", "forced"):
        await send_to(world, path)
    world.client.entity("frozen").tell(Freeze())
    world.client.entity("forced").tell(ForceFailover())
    again = world.client.get_queue_sender("again")
    for number in range(10):
        await send_to(world, f"other-{number}")
    kept = {"open", "again", "frozen", "forced"}
    assert kept < set(paths(world))
    assert len(paths(world)) == len(kept) + KEPT
    # When the last one needs them no more, they go too.
    await open_sender.close()
    await again.close()
    world.client.entity("forced").tell(MarkHealthy())
    for number in range(10, 20):
        await send_to(world, f"other-{number}")
    assert set(paths(world)) == {"frozen", "other-17", "other-18", "other-19"}


async def test_an_entity_that_changes_after_it_was_forgotten_does_not_come_back() -> None:
    """A sender of it may have been closed while an attempt was under way."""
    world = small_world()
    late = world.client.entity("late")
    world.client.state.monitors.release(late)
    for number in range(KEPT):
        await send_to(world, f"other-{number}")
    late.tell(ForceFailover())
    late.tell(MarkHealthy())
    for number in range(2 * KEPT):
        await send_to(world, f"another-{number}")
    assert paths(world) == ["another-3", "another-4", "another-5"]
    await late.close()


async def test_an_entity_that_was_used_last_is_forgotten_last() -> None:
    world = small_world()
    for path in ("a", "b", "c", "a", "d"):
        await send_to(world, path)
    assert paths(world) == ["a", "c", "d"]
    # It begins anew; nothing is lost of what was counted.
    await send_to(world, "B")
    entities, totals = world.client.state.monitors.numbers()
    assert totals.sent + sum(entity.sent for entity in entities) == 6


async def test_an_entity_that_heals_after_its_sender_was_closed_is_forgotten_in_time() -> None:
    world = small_world()
    world.primary.by_entity["late"] = refuses
    sender = world.client.get_queue_sender("late")
    await sender.send_messages(ServiceBusMessage("x"), timeout=60)
    await sender.close()
    for number in range(10):
        await send_to(world, f"other-{number}")
    assert "late" in paths(world)
    del world.primary.by_entity["late"]
    await asyncio.sleep(100.0)
    for number in range(10, 20):
        await send_to(world, f"other-{number}")
    assert "late" not in paths(world)
    assert world.client.state.monitors.forgotten.diverted == 1
