"""What the sides of a receiver have brought: which of it is kept when one of them fails."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from twinbus.pairing.core.sides import Side
from twinbus.pairing.receiving import inbox as inbox_module
from twinbus.pairing.receiving.inbox import Inbox
from twinbus.testing.virtual_time import run_virtual


class Link:
    def __init__(self) -> None:
        self.is_open = True


class Delivered:
    """A delivery, as far as an inbox uses it."""

    settled = False

    def __init__(self, link: Link, number: int) -> None:
        self.link = link
        self.lock_token = UUID(int=number)
        self.outcome: Any = None

    def mark_second_copy(self) -> None:
        """Its line in the ledger says so."""


class OneSide:
    """A side of a receiver, as far as an inbox uses it."""

    is_session = False
    credit = 0

    def __init__(self, side: Side) -> None:
        self.side = side
        self.connection = side
        self.settings = type("Settings", (), {"path": "orders"})
        self.has_ended = False
        self.released: list[Any] = []

    def want(self, credit: int) -> None:
        self.credit = credit

    def release(self, delivery: Any) -> None:
        self.released.append(delivery)

    async def close(self, buffered: list[Any], timeout_s: float) -> None:
        self.has_ended = True
        self.released += buffered


class Owner:
    def on_opened(self, side: Any, link: Any) -> None: ...

    def on_failed(self, side: Any) -> None: ...


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, prefetch: int = 10) -> None:
        self.inbox = Inbox(Owner(), prefetch=prefetch)
        self.primary, self.twin = OneSide(Side.PRIMARY), OneSide(Side.SECONDARY)
        self.inbox.sides = [self.primary, self.twin]  # type: ignore[list-item]
        self.renewed: list[tuple[Side, list[UUID]]] = []
        self.answers_after_s = 0.0
        monkeypatch.setattr(inbox_module, "renew_locks", self.renew_locks)

    async def renew_locks(self, connection: Any, path: str, tokens: list[UUID]) -> dict[UUID, int]:
        self.renewed.append((connection, tokens))
        await asyncio.sleep(self.answers_after_s)
        return dict.fromkeys(tokens, 1)

    def bring(self, side: Any, link: Link, number: int) -> Delivered:
        delivery = Delivered(link, number)
        self.inbox.on_deliveries(side, [delivery])  # type: ignore[list-item]
        return delivery

    def fail(self, side: Any) -> None:
        self.inbox.on_failed(side)

    @property
    def buffered(self) -> int:
        return len(self.inbox._entries)

    async def taken(self) -> list[Any]:
        now = asyncio.get_running_loop().time()
        return [entry.delivery for entry in await self.inbox.take(10, now)]


def test_messages_of_a_lost_link_are_handed_out_if_they_are_still_locked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world, link = World(monkeypatch), Link()
        delivery = world.bring(world.primary, link, 1)
        link.is_open = False
        world.fail(world.primary)
        assert world.buffered == 0
        await asyncio.sleep(0)
        assert await world.taken() == [delivery]
        await world.inbox.close()

    run_virtual(story())


def test_a_side_that_fails_does_not_touch_what_the_other_one_has_brought(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its locks are renewed in its own namespace; another one does not know them."""

    async def story() -> None:
        world, link = World(monkeypatch), Link()
        delivery = world.bring(world.primary, link, 1)
        link.is_open = False
        world.fail(world.primary)
        await asyncio.sleep(0)
        world.fail(world.twin)
        await asyncio.sleep(0)
        assert world.renewed == [(Side.PRIMARY, [delivery.lock_token])]
        assert +world.inbox._buffered == {Side.PRIMARY: 1}
        assert await world.taken() == [delivery]
        await world.inbox.close()

    run_virtual(story())


def test_what_a_side_brought_is_released_when_it_must_not_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world, link = World(monkeypatch), Link()
        kept, given_back = world.bring(world.primary, link, 1), world.bring(world.twin, link, 2)
        world.inbox.give_back(world.twin)  # type: ignore[arg-type]
        assert world.twin.released == [given_back]
        assert +world.inbox._buffered == {Side.PRIMARY: 1}
        assert await world.taken() == [kept]
        await world.inbox.close()

    run_virtual(story())


def test_what_a_lost_link_brought_and_is_not_handed_out_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ledger has each delivery: without a line of its release it would be a duplicate."""

    async def story() -> None:
        world, link = World(monkeypatch), Link()
        lost, kept = world.bring(world.primary, link, 1), world.bring(world.primary, link, 2)

        async def renew_one(*_: Any) -> dict[UUID, int]:
            return {kept.lock_token: 1}

        monkeypatch.setattr(inbox_module, "renew_locks", renew_one)
        link.is_open = False
        world.fail(world.primary)
        await asyncio.sleep(0)
        assert world.primary.released == [lost]
        assert await world.taken() == [kept]
        world.answers_after_s = 10.0
        monkeypatch.setattr(inbox_module, "renew_locks", world.renew_locks)
        closed_over = world.bring(world.primary, link, 3)
        world.fail(world.primary)
        await asyncio.sleep(1)
        await world.inbox.close()
        assert world.primary.released == [lost, closed_over]

    run_virtual(story())


def test_the_messages_of_a_lost_session_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world, link = World(monkeypatch), Link()
        monkeypatch.setattr(world.primary, "is_session", True, raising=False)
        lost = world.bring(world.primary, link, 1)
        link.is_open = False
        world.fail(world.primary)
        assert world.primary.released == [lost]
        await world.inbox.close()

    run_virtual(story())


def test_a_side_that_was_closed_brings_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world, link = World(monkeypatch), Link()
        world.answers_after_s = 1.0
        world.bring(world.twin, link, 1)
        link.is_open = False
        world.fail(world.twin)
        await asyncio.sleep(0.5)
        await world.inbox.close_side(Side.SECONDARY)
        await asyncio.sleep(1)
        assert world.buffered == 0
        await world.inbox.close()

    run_virtual(story())


def test_a_call_that_is_cancelled_leaves_nothing_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world, link = World(monkeypatch, prefetch=0), Link()
        call = asyncio.create_task(world.inbox.take(2, None))
        await asyncio.sleep(1)
        delivery = world.bring(world.primary, link, 1)
        call.cancel()  # Before the call has taken what came.
        await asyncio.wait({call})
        assert call.cancelled()
        assert world.primary.released == [delivery]
        assert world.buffered == 0
        await world.inbox.close()

    run_virtual(story())


def test_what_comes_in_the_moment_in_which_a_call_ends_is_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world, link = World(monkeypatch, prefetch=0), Link()
        loop = asyncio.get_running_loop()
        until, found = loop.time() + 5, []
        loop.call_at(until, lambda: found.append(world.bring(world.primary, link, 1)))
        taken = await world.inbox.take(1, until)
        await asyncio.sleep(0)
        assert [entry.delivery for entry in taken] + world.primary.released == found
        assert world.buffered == 0
        await world.inbox.close()

    run_virtual(story())


class Copies:
    """Second copies, as far as an inbox uses them: what is in `seconds`."""

    def __init__(self) -> None:
        self.seconds: list[Any] = []

    def expects(self, side: Side) -> bool:
        return True

    def is_second(self, copy: Any) -> bool:
        return copy in self.seconds

    def second_completed(self, copy: Any) -> None: ...


def test_a_copy_that_is_completed_while_a_call_waits_for_more_is_not_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world, link, copies = World(monkeypatch), Link(), Copies()
        inbox: Any = world.inbox
        inbox._copies = copies
        monkeypatch.setattr(inbox, "_copy_of", lambda entry: entry.delivery)
        settled: list[Any] = []

        async def complete(entry: Any, copy: Any) -> None:
            settled.append(entry.delivery)

        monkeypatch.setattr(inbox, "_complete", complete)
        first, second = world.bring(world.twin, link, 1), world.bring(world.twin, link, 2)
        first.message_id = second.message_id = "id"  # type: ignore[attr-defined]
        loop = asyncio.get_running_loop()
        loop.call_later(0.1, copies.seconds.append, first)
        taken = await inbox.take(10, loop.time() + 5)
        assert [entry.delivery for entry in taken] == [second]
        await asyncio.sleep(0)
        assert settled == [first]
        await inbox.close()

    run_virtual(story())


def test_nothing_is_prefetched_before_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with the SDK: what is prefetched is locked, or deleted in receive and delete."""

    async def check() -> None:
        world = World(monkeypatch, prefetch=2)
        world.inbox.on_opened(world.primary, Link())  # type: ignore[arg-type]
        assert world.primary.credit == 0
        assert await world.inbox.take(1, until=asyncio.get_running_loop().time() + 1) == []
        assert world.primary.credit == 2

    run_virtual(check())
