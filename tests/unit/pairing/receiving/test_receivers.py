"""The receivers of a pair: how often they read the mark of a twin, together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from twinbus.client.administration import NotAnswered
from twinbus.client.connection import Environment
from twinbus.client.request_node import ConnectionLost
from twinbus.ledger import NullLedger
from twinbus.namespace.namespace import Namespace
from twinbus.options import SendAvailabilityOptions
from twinbus.pairing.observing.recording import Recorder
from twinbus.pairing.receiving.mark_watch import READ_MARK_S, MarkWatch, NotReadable
from twinbus.pairing.receiving.receivers import PairedReceivers
from twinbus.testing.virtual_time import run_virtual


def namespace(name: str) -> Namespace:
    text = f"Endpoint=sb://{name}.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=v"
    return Namespace.from_connection_string(text)


class World:
    def __init__(self, twins: Any = "*") -> None:
        self.readings: list[tuple[str, str]] = []
        self.answer: bool | None = True
        self.is_reachable = True
        sides = namespace("contoso"), namespace("contoso-backup")
        self.receivers = PairedReceivers(
            *sides,
            SendAvailabilityOptions(twins=twins),
            Recorder(NullLedger(), *sides),
            environment=Environment(is_marked=self.is_marked),
        )

    async def is_marked(self, endpoint: Any, path: str, label: str, requests: Any) -> bool | None:
        self.readings.append((path, label))
        await asyncio.sleep(1.0)
        if not self.is_reachable:
            raise NotAnswered("no answer")
        return self.answer

    def watch(self) -> MarkWatch:
        read = self.receivers._mark_seen_at
        return MarkWatch(lambda after: read("orders", after), asyncio.get_running_loop())


def test_the_receivers_of_an_entity_share_one_reading_of_its_mark() -> None:
    async def story() -> None:
        world = World()
        watches = [world.watch() for _ in range(50)]
        await asyncio.gather(*(watch.require() for watch in watches))
        assert world.readings == [("orders", "contoso")]
        await asyncio.sleep(READ_MARK_S)
        await asyncio.gather(*(watch.still_holds() for watch in watches))
        assert len(world.readings) == 2

    run_virtual(story())


def test_a_mark_that_was_read_before_a_link_ended_is_read_again() -> None:
    async def story() -> None:
        world = World()
        first, second = world.watch(), world.watch()
        await first.require()
        await asyncio.sleep(10)
        second.link_ended()
        world.answer = False
        with pytest.raises(NotReadable):
            await second.require()
        assert await first.still_holds() is None, "it reads the mark again in its own time"

    run_virtual(story())


@pytest.mark.parametrize(("twins", "is_read"), [(("orders",), True), ("*", False)])
def test_without_the_right_to_read_marks_only_a_named_twin_is_read(
    twins: Any, is_read: bool
) -> None:
    async def story() -> None:
        world = World(twins)
        world.answer = None
        if is_read:
            await world.watch().require()
        else:
            with pytest.raises(NotReadable, match="Manage"):
                await world.watch().require()

    run_virtual(story())


def test_a_namespace_that_does_not_answer_is_not_one_without_the_mark() -> None:
    async def story() -> None:
        world = World()
        world.is_reachable = False
        with pytest.raises(ConnectionLost):
            await world.watch().require()

    run_virtual(story())
