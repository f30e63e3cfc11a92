"""What a pair tells its listeners and metrics, and what it forgets."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import replace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    ServiceBusQuotaExceededError,
)

from tests.unit.pairing.sending.test_client import message
from tests.unit.pairing.sending.test_raising import status_of
from twinbus.errors import PairClosedError
from twinbus.pairing.core.failover import ForceFailover, MarkHealthy, SendFailed
from twinbus.pairing.core.sides import PairSides
from twinbus.pairing.observing.events import (
    BacklogQueueFound,
    BacklogQueuePulled,
    BacklogQueueReturned,
    EntityChanged,
    EventsDropped,
    Listeners,
    PairEvent,
    PingEnded,
    ProtectionChanged,
)
from twinbus.pairing.observing.metrics import MeasuredPair, PairCollector
from twinbus.pairing.sending.entity_monitor import EntityMonitors
from twinbus.status.document import EntityState, TwinContents, short_queue_list
from twinbus.status.receiving import (
    OTHERS,
    ProcessorStatus,
    ReceiverStatus,
    ReceivingSideStatus,
)
from twinbus.testing.fake_sdk import FakePair, accepts, hangs, refuses

pytestmark = pytest.mark.virtual_time


QUEUE = "contoso/x-servicebus-transfer/"


def ping(number: int) -> PingEnded:
    return PingEnded(at=float(number), path="orders", answered=True, error="", seconds=0.1)


async def rest_of(stream: Any) -> list[PairEvent]:
    return [event async for event in stream]


async def test_a_stream_tells_what_happened_since_it_was_opened_and_ends_with_the_pair() -> None:
    listeners = Listeners()
    listeners.tell(ping(0))
    stream = listeners.stream()
    listeners.tell(ping(1))
    reader = asyncio.create_task(rest_of(stream))
    await asyncio.sleep(1)
    listeners.tell(ping(2))
    listeners.end()
    assert await reader == [ping(1), ping(2)]
    assert await rest_of(listeners.stream()) == []


async def test_a_slow_listener_loses_the_oldest_is_told_how_many_and_holds_up_nobody() -> None:
    listeners = Listeners()
    slow, quick = listeners.stream(3), listeners.stream()
    for number in range(10):
        listeners.tell(ping(number))
    listeners.end()
    dropped, *kept = await rest_of(slow)
    assert isinstance(dropped, EventsDropped)
    assert dropped.count == 7
    assert kept == [ping(7), ping(8), ping(9)]
    assert len(await rest_of(quick)) == 10
    assert listeners.dropped == 7


async def test_a_stream_that_its_listener_dropped_is_filled_no_more() -> None:
    def _with_one(listeners: Listeners) -> Any:
        stream = listeners.stream(1)
        listeners.tell(ping(0))
        return stream

    listeners = Listeners()
    async for _ in _with_one(listeners):
        break
    stream = listeners.stream(1)
    await stream.aclose()
    for number in range(5):
        listeners.tell(ping(number))
    assert listeners.dropped == 0
    assert await rest_of(stream) == []


async def test_a_callback_that_fails_is_logged_and_the_others_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listeners, told = Listeners(), list[PairEvent]()

    def fails(_: PairEvent) -> None:
        raise RuntimeError("no room")

    listeners.on_event(fails)
    stop = listeners.on_event(told.append)
    listeners.tell(ping(1))
    stop()
    stop()
    listeners.tell(ping(2))
    assert told == [ping(1)]
    assert "a listener failed" in caplog.text


async def test_wrong_use_of_listeners_gets_one_line() -> None:
    with pytest.raises(ValueError, match="a number from 1; got 0"):
        Listeners().stream(0)
    with pytest.raises(TypeError, match=r"callable \(event\) -> None"):
        Listeners().on_event(None)  # type: ignore[arg-type]


async def test_an_outage_as_its_events_tell_it() -> None:
    world = FakePair(retry_total=0)
    stream = world.client.state.listeners.stream()
    world.primary.behaviour = refuses
    await world.client.get_queue_sender("orders").send_messages(message(), timeout=30)
    await asyncio.sleep(61)
    world.primary.behaviour = accepts
    await asyncio.sleep(60)
    await world.client.close()
    world.client.state.listeners.end()
    told = await rest_of(stream)
    changes = [(e.before, e.after, e.reason) for e in told if isinstance(e, EntityChanged)]
    assert changes == [
        ("healthy", "suspect", "a send failed"),
        ("suspect", "failed over", "no success for 10 s"),
        ("failed over", "healthy", "the ping was answered"),
    ]
    assert changes[0][0] is EntityState.HEALTHY
    pings = [(e.path, e.answered, e.error) for e in told if isinstance(e, PingEnded)]
    assert pings == [("orders", False, "ConnectionRefusedError: refused"), ("orders", True, "")]
    assert world.client.state.pings == {"answered": 1, "failed": 1, "dropped": 0}
    assert world.client.state.diverts.count == 1
    for event in told:
        plain = event.as_dict()
        assert json.loads(json.dumps(plain)) == plain
        assert plain["event"] == type(event).__name__


async def test_a_ping_without_an_answer_has_a_reason() -> None:
    world = FakePair(retry_total=0)
    world.primary.behaviour = refuses
    await world.client.get_queue_sender("orders").send_messages(message(), timeout=30)
    world.primary.behaviour = hangs
    await asyncio.sleep(300)
    assert world.client.entity("orders").status().last_error == "TimeoutError: no answer in time"


async def test_the_status_counts_down_to_what_happens_next() -> None:
    world = FakePair(retry_total=0)
    entity = world.client.entity("orders")

    def times() -> list[Any]:
        status = entity.status()
        return [status.fails_over_in_s, status.next_ping_in_s]

    assert [*times(), entity.status().last_error_at] == [None, None, None]
    began = time.time()
    entity.tell(SendFailed(counts=True, error="refused"))
    await asyncio.sleep(4)
    assert times() == [pytest.approx(6.0), None]
    error_at = entity.status().last_error_at
    assert error_at is not None
    # The loop's clock is virtual, and the date is not.
    assert error_at == pytest.approx(began - 4, abs=60)
    await asyncio.sleep(7)
    assert times() == [None, pytest.approx(59.0)]
    world.primary.behaviour = hangs
    await asyncio.sleep(60)
    assert times() == [None, 0.0]
    entity.tell(MarkHealthy())
    assert times() == [None, None]


async def test_a_pulled_queue_tells_of_its_return_when_its_rest_is_over() -> None:
    async def is_full(_: Any) -> None:
        raise ServiceBusQuotaExceededError(message="full")

    world = FakePair()
    stream = world.client.state.listeners.stream()
    world.secondary.by_entity[QUEUE + "0"] = is_full
    world.client.entity("orders").tell(ForceFailover())
    await world.client.get_queue_sender("orders").send_messages(message())
    await asyncio.sleep(29.9)
    status = world.client.state.rotation.pulled(world.now)
    assert set(status) == {QUEUE + "0"}
    await asyncio.sleep(0.2)
    await world.client.close()
    world.client.state.listeners.end()
    queues = [e for e in await rest_of(stream) if not isinstance(e, EntityChanged)]
    pulled, returned = queues
    assert isinstance(pulled, BacklogQueuePulled)
    assert (pulled.queue, pulled.rest_s) == (QUEUE + "0", 30.0)
    assert "full" in pulled.reason
    assert isinstance(returned, BacklogQueueReturned)
    assert returned.queue == QUEUE + "0"


async def test_a_pulled_queue_that_takes_a_late_message_returns_at_once_and_once() -> None:
    world = FakePair()
    told: list[PairEvent] = []
    world.client.state.listeners.on_event(told.append)
    world.client.state.pull(QUEUE + "1", "busy")
    world.client.state.pull(QUEUE + "1", "busy")
    world.client.state.divert_succeeded(QUEUE + "1")
    world.client.state.divert_succeeded(QUEUE + "1")
    await asyncio.sleep(100)
    assert [type(event) for event in told] == [BacklogQueuePulled, BacklogQueueReturned]


async def test_a_pair_that_closes_while_a_queue_rests_leaves_no_timer() -> None:
    world = FakePair()
    told: list[PairEvent] = []
    world.client.state.pull(QUEUE + "1", "busy")
    await world.client.close()
    world.client.state.listeners.on_event(told.append)
    await asyncio.sleep(100)
    assert told == []


async def test_a_closed_secondary_leaves_the_pair_unprotected_and_sends_use_the_primary() -> None:
    world = FakePair(retry_total=0)
    world.client.state.check_protection("found")
    told: list[PairEvent] = []
    world.client.state.listeners.on_event(told.append)
    world.client.entity("orders").tell(ForceFailover())
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(message(1))
    await world.client.close_secondary("the secondary is closed")
    lost = told[-1]
    assert isinstance(lost, ProtectionChanged)
    assert (lost.protected, lost.reason) == (False, "the secondary is closed")
    await sender.send_messages(message(2))
    world.primary.behaviour = refuses
    with pytest.raises(ConnectionRefusedError):
        await sender.send_messages(message(3))
    assert [name for name, _ in world.primary.took] == ["orders"]
    assert len(world.secondary.took) == 1
    assert world.client.entity("orders").raised == 1


async def test_a_divert_that_waits_for_a_sender_is_rerouted_when_the_secondary_closes() -> None:
    world = FakePair(retry_total=0, backlog_queue_count=1)

    async def slow(_: Any) -> None:
        await asyncio.sleep(1.0)

    world.secondary.behaviour = slow
    world.client.entity("orders").tell(ForceFailover())
    sender = world.client.get_queue_sender("orders")
    calls = asyncio.gather(*(sender.send_messages(message(n), timeout=20) for n in range(12)))
    await asyncio.sleep(0.5)
    await world.client.close_secondary("the secondary is closed")
    await calls
    # 2 were under way, opening a link, and may end; the others never had a sender.
    assert (len(world.secondary.took), len(world.primary.took)) == (2, 10)


async def test_calls_that_wait_carry_their_ids_when_the_pair_closes() -> None:
    world = FakePair(failover_interval=3600.0, retry_backoff_factor=100.0)
    world.primary.behaviour = refuses
    sender = world.client.get_queue_sender("orders")
    call = asyncio.create_task(sender.send_messages(message(7)))
    await asyncio.sleep(1)
    await world.client.close()
    with pytest.raises(PairClosedError, match="the pair was closed") as caught:
        await call
    assert caught.value.message_ids == ("7",)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the pair logged, all of it warnings."""
    mine = [record for record in caplog.records if record.name == "twinbus.pairing"]
    told = [record for record in mine if record.levelno >= logging.INFO]
    assert {record.levelname for record in told} == {"WARNING"}
    return [record.getMessage() for record in told]


async def test_one_line_of_the_log_for_each_change_in_a_persons_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def is_gone(_: Any) -> None:
        raise MessagingEntityNotFoundError(message="no such queue")

    caplog.set_level(logging.DEBUG, "twinbus.pairing")
    world = FakePair(retry_total=0)
    world.primary.behaviour = refuses
    await world.client.get_queue_sender("orders").send_messages(message(), timeout=30)
    world.primary.behaviour = is_gone
    await asyncio.sleep(61)
    world.primary.behaviour = accepts
    await asyncio.sleep(61)
    world.client.state.pull(QUEUE + "0", "full")
    world.client.state.pull(QUEUE + "1", "full")
    world.client.entity("orders").tell(ForceFailover())
    world.client.state.pull(QUEUE + "2", "full")
    world.client.entity("news").tell(ForceFailover())
    await asyncio.sleep(31)
    world.client.entity("orders").tell(MarkHealthy())
    await world.client.close()
    assert lines(caplog) == [
        (
            "orders: healthy -> suspect (a send failed), failing over in 10 s unless one succeeds;"
            " ConnectionRefusedError: refused"
        ),
        f"orders: suspect -> failed over (no success for 10 s), diverting to {QUEUE}{{0,1,2}}",
        (
            "orders: failed over -> unusable (MessagingEntityNotFoundError: no such queue),"
            " sends raise until a ping is answered"
        ),
        "orders: unusable -> healthy (the ping was answered), sending to the primary again",
        f"{QUEUE}0: pulled for 30 s (full)",
        f"{QUEUE}1: pulled for 30 s (full)",
        f"orders: healthy -> failed over (forced), diverting to {QUEUE}2",
        f"{QUEUE}2: pulled for 30 s (full)",
        (
            "news: healthy -> failed over (forced), and every backlog queue is pulled:"
            " sends wait for one"
        ),
        *(f"{QUEUE}{index}: back in the rotation" for index in range(3)),
        "orders: failed over -> healthy (marked healthy), sending to the primary again",
    ]


async def test_an_unprotected_failover_says_where_sends_go(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = FakePair()
    for path in world.client.state.paths:
        world.client.state.rotation.leave_out(path, "not there")
    world.client.entity("orders").tell(ForceFailover())
    await world.client.close()
    assert lines(caplog) == [
        (
            "orders: healthy -> failed over (forced), and there is no backlog queue: sends still"
            " go to the primary"
        )
    ]


def test_many_queues_are_named_in_one_line() -> None:
    queues = [f"{QUEUE}{number}" for number in range(100)]
    assert short_queue_list(queues[3:4]) == QUEUE + "3"
    assert short_queue_list(queues) == QUEUE + "{0,1,2,3,4,5,6,7,...,99}"
    assert BacklogQueueFound(at=1.0, queue="q", drift=("a",)).as_dict()["drift"] == ["a"]


def stored(collector: PairCollector) -> dict[str, float]:
    """Messages stored on the primary, by entity."""
    [family] = [each for each in collector.collect() if each.name == "twinbus_messages_stored"]
    return {
        sample.labels["entity"]: sample.value
        for sample in family.samples
        if sample.labels["route"] == "primary"
    }


async def test_messages_in_twins_have_a_route_of_their_own() -> None:
    world = FakePair(twins=["orders"])
    state = world.client.state
    measured = MeasuredPair(state, PairSides(syphon=False), lambda: status_of(world))
    collector = PairCollector(measured)

    def by_route() -> dict[str, float]:
        [family] = [each for each in collector.collect() if each.name == "twinbus_messages_stored"]
        return {sample.labels["route"]: sample.value for sample in family.samples}

    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(ServiceBusMessage("x"))
    state.twin_was_read("orders", True)
    world.client.entity("orders").tell(ForceFailover())
    await sender.send_messages(ServiceBusMessage("x"))
    await sender.send_messages(ServiceBusMessage("x", session_id="s"))
    await sender.send_messages(ServiceBusMessage("x"))
    assert by_route() == {"primary": 1, "backlog": 1, "twin": 2}
    await world.client.close()


async def test_receivers_processors_and_twins_have_series_by_entity_and_not_by_receiver() -> None:
    world = FakePair()
    side = ReceivingSideStatus(states={"open": 2, "reconnecting": 1}, delivered=9, reopened=3)
    found = replace(
        status_of(world),
        receivers={
            "orders": ReceiverStatus(path="orders", sides={"primary": side}, second_copies=1)
        },
        processors={"orders": ProcessorStatus(path="orders", running=1, handled=5, failed=2)},
        twins={
            "orders": TwinContents(waiting=4),
            "events/Subscriptions/a": TwinContents(waiting=1, consumers_only="a subscription"),
            "unknown": TwinContents(),
        },
    )
    measured = MeasuredPair(world.client.state, PairSides(syphon=False), lambda: found)
    samples = {
        (sample.name, *(text for name, text in sample.labels.items() if name != "pair")): (
            sample.value
        )
        for family in PairCollector(measured).collect()
        for sample in family.samples
        if family.name.startswith(("twinbus_receiver", "twinbus_processor", "twinbus_twin_"))
    }
    assert samples == {
        ("twinbus_receivers", "orders", "primary", "open"): 2,
        ("twinbus_receivers", "orders", "primary", "waiting"): 0,
        ("twinbus_receivers", "orders", "primary", "reconnecting"): 1,
        ("twinbus_receivers", "orders", "primary", "not read"): 0,
        ("twinbus_receiver_messages_total", "orders", "primary"): 9,
        ("twinbus_receiver_links_reopened_total", "orders", "primary", "ended"): 3,
        ("twinbus_receiver_links_reopened_total", "orders", "primary", "silent"): 0,
        ("twinbus_receiver_second_copies_total", "orders"): 1,
        ("twinbus_processors_running", "orders"): 1,
        ("twinbus_processor_messages_total", "orders", "handled"): 5,
        ("twinbus_processor_messages_total", "orders", "failed"): 2,
        ("twinbus_processor_messages_total", "orders", "dead_lettered"): 0,
        ("twinbus_twin_messages", "orders", "syphon"): 4,
        ("twinbus_twin_messages", "events/Subscriptions/a", "consumers"): 1,
    }
    await world.client.close()


async def test_a_failover_to_a_twin_says_so(caplog: pytest.LogCaptureFixture) -> None:
    world = FakePair(twins=["orders"])
    world.client.get_queue_sender("orders")
    world.client.state.twin_was_read("orders", True)
    world.client.entity("orders").tell(ForceFailover())
    assert "orders: healthy -> failed over (forced), diverting to its twin" in caplog.text
    await world.client.close()


async def test_a_forgotten_entity_keeps_its_series_and_the_total_is_right() -> None:
    world = FakePair()
    state = world.client.state
    state.monitors = EntityMonitors(1)
    measured = MeasuredPair(state, PairSides(syphon=False), lambda: status_of(world))
    collector = PairCollector(measured, entities_max=2)

    async def send_to(path: str) -> None:
        async with world.client.get_queue_sender(path) as sender:
            await sender.send_messages(ServiceBusMessage("x"))

    await send_to("a")
    await send_to("a")
    assert stored(collector) == {"a": 2}
    await send_to("b")
    assert stored(collector) == {"a": 2, "b": 1}
    await send_to("c")
    assert stored(collector) == {"a": 2, "b": 1, OTHERS: 1}
    await send_to("a")
    assert stored(collector) == {"a": 3, "b": 1, OTHERS: 1}
    # What came and went between two scrapes is in the total.
    await send_to("d")
    await send_to("b")
    await send_to("c")
    assert stored(collector) == {"a": 3, "b": 1, OTHERS: 4}
    assert len(state.monitors.all()) == 1
