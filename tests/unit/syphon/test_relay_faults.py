"""Faults of a relay: unforeseen errors, and connections that hang."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import warnings
from collections.abc import Callable
from typing import ClassVar

import pytest

from tests.unit.syphon.core.pump_world import World
from tests.unit.syphon.core.test_pump import opened, running
from twinbus.client.administration import NotAnswered, counts_of, list_backlog_queues
from twinbus.client.connection import Environment, NamespaceConnection
from twinbus.client.request_node import RequestRefused
from twinbus.errors import SyphonError
from twinbus.ledger import NullLedger
from twinbus.namespace.access import endpoint_of
from twinbus.syphon.core.actions import Action
from twinbus.syphon.core.destination import (
    ATTACH_ANSWER_S,
    ATTACHED_SOON_S,
    BACKOFF_JITTER,
    FIRST_BACKOFF_S,
)
from twinbus.syphon.core.pump import IntakeLimits, Pump
from twinbus.syphon.draining import drain
from twinbus.syphon.lease import Leases
from twinbus.syphon.relay import Relay

KEY = "SharedAccessKeyName=a;SharedAccessKey=b"
TYPO = f"Endpoint=sb://contoso..servicebus.windows.net;{KEY}"
PATIENCE_S = 10.0


def nobody_there() -> str:
    """A connection string at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    return f"Endpoint=sb://127.0.0.1:{port};{KEY};UseDevelopmentEmulator=true;"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.01)


async def test_a_host_that_can_be_none_is_told_of_on_both_sides() -> None:
    place = endpoint_of(TYPO)
    relay = Relay(place, place, "queue", pump=Pump(), ledger=NullLedger())
    relay.start()
    await until(lambda: len(relay.problems) == 2)
    await relay.close()
    assert "contoso cannot be reached" in relay.problems["primary"]
    assert "contoso cannot be reached" in relay.problems["secondary"]


async def test_a_host_that_can_be_none_has_no_counts_and_no_queues() -> None:
    with pytest.raises(NotAnswered, match="contoso does not answer"):
        await counts_of(endpoint_of(TYPO), "queue")
    with pytest.raises(SyphonError, match="contoso cannot be reached"):
        await list_backlog_queues(endpoint_of(TYPO))


class BrokenConnection(NamespaceConnection):
    """Fails when it is opened, in a way that nobody expects; each try is noted."""

    tries: ClassVar[list[None]] = []

    async def open(self) -> None:
        self.tries.append(None)
        raise RuntimeError("nobody expects this")


BROKEN = Environment(connect=BrokenConnection)


async def test_a_side_that_fails_unexpectedly_is_told_of_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    BrokenConnection.tries.clear()
    place = endpoint_of(TYPO)
    relay = Relay(place, place, "queue", pump=Pump(), ledger=NullLedger(), environment=BROKEN)
    with caplog.at_level(logging.ERROR, "twinbus.syphon"):
        relay.start()
        await until(lambda: len(BrokenConnection.tries) >= 4)
        await relay.close()
    assert set(relay.problems) == {"primary", "secondary"}
    assert "nobody expects this" in relay.problems["primary"]
    assert any(record.exc_info for record in caplog.records), "with its traceback"


async def test_leases_that_fail_unexpectedly_are_told_of() -> None:
    queue = "contoso/x-servicebus-transfer/0"

    leases = Leases(endpoint_of(TYPO), [queue], lambda *_: None, environment=BROKEN)
    leases.start()
    await until(lambda: "nobody expects this" in (leases.problem(queue) or ""))
    await leases.close()


async def test_a_drain_whose_pump_fails_ends_with_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Pump, now: float) -> list[Action]:
        raise AssertionError("a mistake of ours")

    monkeypatch.setattr(Pump, "tick", fail)
    place = nobody_there()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(
            SyphonError, match=r"queue: the syphon itself failed.*a mistake of ours"
        ):
            await drain(place, place, ["queue"], idle_s=0.1)


async def test_a_request_that_fails_unexpectedly_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise RuntimeError("nobody expects this")

    with caplog.at_level(logging.ERROR, "twinbus.syphon"):
        place = endpoint_of(TYPO)
        relay = Relay(place, place, "queue", pump=Pump(), ledger=NullLedger())
        relay.requests.start(fail())
        await until(lambda: bool(caplog.records))
        await relay.close()
    assert "queue: a background task failed" in caplog.text


async def test_a_request_that_is_cancelled_before_its_first_turn_is_not_warned_of() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        place = endpoint_of(TYPO)
        relay = Relay(place, place, "queue", pump=Pump(), ledger=NullLedger())
        relay.requests.start(relay.requests.find_deferred())
        await relay.close()
        gc.collect()
    assert [str(one.message) for one in caught] == []


@pytest.mark.virtual_time
async def test_a_backlog_queue_that_is_gone_for_good_is_not_tried_every_few_seconds() -> None:
    tries: list[str] = []

    class Refuses(NamespaceConnection):
        """Opens at once, and knows no queue."""

        async def open(self) -> None: ...

        async def authorize(self, path: str) -> bool:
            tries.append(path)
            raise RequestRefused(f"there is no queue {path}", 404, "amqp:not-found")

    place, refuses = endpoint_of(nobody_there()), Environment(connect=Refuses)
    relay = Relay(place, place, "queue", pump=Pump(), ledger=NullLedger(), environment=refuses)
    relay.start()
    await asyncio.sleep(3_600.0)
    assert relay.problems == {"secondary": "there is no queue queue"}
    assert 60 <= tries.count("queue") <= 130
    await relay.close()


async def test_a_relay_that_ends_with_an_unanswered_message_says_so() -> None:
    place = endpoint_of(nobody_there())
    for is_answered in (False, True):
        world = opened(count=2)
        world.accept()
        if is_answered:
            world.accept()
            world.confirm(2)
        relay = Relay(place, place, "queue", pump=world.pump, ledger=NullLedger())
        await relay.close()
        assert relay.is_unfinished is not is_answered


def answer_all_but_hung(world: World) -> None:
    """Both namespaces answer all that they were asked, but for the attach to one destination."""
    world.deliver(100)
    if "orders" in world.attaching:
        world.attach("orders")
    world.accept(100)
    world.confirm(100)
    while world.fetches:
        world.answer_fetch()
    world.renew()


def test_one_entity_that_answers_no_attach_costs_its_own_link_and_not_the_others() -> None:
    world = running(limits=IntakeLimits(messages=40, answer_s=10))
    world.store("hung", 3)
    world.deliver(3)
    for _ in range(300):
        world.store("orders")
        world.tick(1.0)
        answer_all_but_hung(world)
    assert world.reconnects == []
    assert world.detached == ["hung"] * len(world.detached)
    assert 5 <= len(world.detached) <= 15, "it is tried again, with a growing pause"
    assert len(world.in_primary) == len(set(world.in_primary)) == 300, "nothing is sent twice"
    world.settle_everything()
    assert sorted(world.in_primary) == list(range(1, 304))


def test_an_entity_that_hangs_alone_costs_no_connection_on_which_a_token_was_granted() -> None:
    world = running(limits=IntakeLimits(messages=40, answer_s=10))
    world.store("hung")
    world.deliver()
    world.tick(1.0)
    world.perform(world.pump.authorized(world.now))
    world.tick(9.0)
    assert (world.detached, world.reconnects) == (["hung"], [])
    assert "not answered for 10 s" in world.pump.held["hung"]
    # The token lasts, so that nothing but the attach is asked for: now the line may be dead.
    world.tick(1.0)
    world.tick(10.0)
    assert (world.detached, world.reconnects) == (["hung"], ["primary"])


def test_a_token_that_is_not_answered_holds_one_destination_if_others_are_answered() -> None:
    world = opened(count=4)
    world.store("hung")
    world.deliver()
    world.tick(1.0)
    world.accept()
    world.perform(world.pump.unanswered("hung", "no token", world.now))
    assert world.pump.held == {"hung": "no token"}
    assert len(world.sent) == 3, "those of the others are where they were"
    assert world.pump.unanswered("hung", "no token", world.now) == [], "it is not waited for"


def test_an_entity_that_answers_no_attach_does_not_fill_the_window_of_the_others() -> None:
    world = running(limits=IntakeLimits(messages=40))
    for _ in range(150):
        world.store("hung")
        world.store("orders")
    arrived, deferred = {}, {}
    while world.now < 30.0:
        answer_all_but_hung(world)
        world.tick(0.1)
        arrived[round(world.now, 1)] = len(world.in_primary)
        deferred[round(world.now, 1)] = world.pump.deferred
    assert arrived[1.9] < 100, "the first attach has some time"
    assert arrived[10.0] == 150
    assert (world.reconnects, deferred[9.9]) == ([], 149), "one is tried"
    assert world.pump.held == {"hung": "an attach to hung was not answered for 10 s"}
    world.settle_everything()
    assert sorted(world.in_primary) == list(range(1, 301))


def test_an_entity_that_hung_is_asked_again_soon_after_it_works() -> None:
    world = running(limits=IntakeLimits(messages=40))
    world.store("hung")
    world.deliver()
    world.tick(ATTACHED_SOON_S)
    assert world.pump.held == {
        "hung": "an attach to hung is not answered; another follows after 10 s"
    }
    # It works again now. It never answers what it was asked while it hung.
    world.perform(world.pump.authorized(world.now))
    while not (world.detached and world.attaching):
        world.tick(0.1)
    assert world.now <= ATTACH_ANSWER_S + FIRST_BACKOFF_S * (1 + BACKOFF_JITTER) + 0.2
    world.attach("hung")
    world.settle_everything()
    assert world.in_primary == [1]
    assert world.pump.held == {}


def test_attaches_that_are_slow_for_everybody_have_nothing_deferred() -> None:
    world = running(limits=IntakeLimits(messages=40))
    world.store("orders", 10)
    world.store("letters", 10)
    world.deliver(20)
    for _ in range(50):
        world.tick(0.1)
    assert world.credit == 0
    world.attach("orders")
    world.attach("letters")
    assert len(world.sent) == 2, "one each, to begin with"
    world.accept(2)
    assert len(world.sent) == 8, "then three more for each that was answered, in both"
    world.accept(8)
    assert len(world.sent) == 10
    world.accept(10)
    world.confirm(20)
    assert (world.pump.deferred, world.pump.held) == (0, {})
    assert world.credit > 20
