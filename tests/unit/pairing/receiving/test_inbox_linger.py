"""The buffer of a receiver in virtual time: what arrives between two calls."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from twinbus.pairing.core.sides import Side
from twinbus.pairing.receiving.inbox import Inbox
from twinbus.pairing.receiving.side import LINGER_S
from twinbus.testing.virtual_time import run_virtual


class Source:
    """A side that brings what the test says."""

    side = Side.PRIMARY
    credit = 0

    def __init__(self) -> None:
        self.released: list[Any] = []

    def want(self, credit: int) -> None:
        self.credit = max(self.credit, credit)

    def release(self, delivery: Any) -> None:
        self.released.append(delivery)


def inbox_of(source: Source) -> Inbox:
    inbox = Inbox(SimpleNamespace(on_opened=None, on_failed=None))
    inbox.sides = [source]  # type: ignore[list-item]
    return inbox


def arrives(inbox: Inbox, source: Any, name: str) -> Any:
    delivery: Any = SimpleNamespace(name=name, settled=False)
    inbox.on_deliveries(source, [delivery])
    return delivery


def test_what_arrives_just_after_a_call_is_for_the_next_one() -> None:
    async def story() -> None:
        source = Source()
        inbox = inbox_of(source)
        loop = asyncio.get_running_loop()
        assert await inbox.take(5, loop.time() + 1) == []
        delivery = arrives(inbox, source, "a")
        [entry] = await inbox.take(1, loop.time() + 1)
        assert entry.delivery is delivery
        await asyncio.sleep(2 * LINGER_S)
        assert source.released == []

    run_virtual(story())


def test_what_no_call_takes_soon_is_released() -> None:
    async def story() -> None:
        source = Source()
        inbox = inbox_of(source)
        loop = asyncio.get_running_loop()
        assert await inbox.take(5, loop.time() + 1) == []
        first, second = arrives(inbox, source, "a"), arrives(inbox, source, "b")
        [entry] = await inbox.take(1, loop.time() + 1)
        assert entry.delivery is first
        await asyncio.sleep(2 * LINGER_S)
        assert source.released == [second]
        assert inbox.buffered_of(source) == 0  # type: ignore[arg-type]

    run_virtual(story())
