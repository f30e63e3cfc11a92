"""Requests to a node that are not answered in time, in virtual time."""

from __future__ import annotations

import asyncio
import weakref

import pytest

from twinbus.amqp.budgets import Budget
from twinbus.amqp.message import Properties, encode_message
from twinbus.broker.refusals import QuotaExceeded
from twinbus.gateway import node_requests
from twinbus.gateway.node_requests import UnansweredRequests

pytestmark = pytest.mark.virtual_time

ANSWER_S = 5.0


def answer(request_id: str) -> bytes:
    return encode_message(properties=Properties(correlation_id=request_id))


class World:
    def __init__(self, held: Budget | None = None) -> None:
        self.requests = UnansweredRequests(ANSWER_S, held)
        self.given_up: list[tuple[str, float]] = []

    def ask(self, request_id: str, size_bytes: int = 0) -> None:
        def give_up() -> None:
            self.given_up.append((request_id, asyncio.get_running_loop().time() - self.began))

        self.requests.add("node", request_id, give_up, size_bytes)

    async def __aenter__(self) -> World:
        self.began = asyncio.get_running_loop().time()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.requests.close()


async def test_each_request_has_its_time_and_an_answer_in_time_is_handed_on() -> None:
    async with World() as world:
        world.ask("a")
        await asyncio.sleep(1)
        world.ask("b")
        world.ask("c")
        await asyncio.sleep(1)
        assert world.requests.answered("node", answer("b"))
        await asyncio.sleep(10)
        assert world.given_up == [("a", 5.0), ("c", 6.0)]


async def test_an_answer_that_comes_too_late_is_dropped_once() -> None:
    async with World() as world:
        world.ask("a")
        await asyncio.sleep(ANSWER_S)
        assert not world.requests.answered("node", answer("a"))
        world.ask("a")  # A client may use an id again.
        assert world.requests.answered("node", answer("a"))
        await asyncio.sleep(10)
        assert len(world.given_up) == 1


async def test_what_belongs_to_no_request_is_handed_on() -> None:
    async with World() as world:
        assert world.requests.answered("node", answer("a"))
        assert world.requests.answered("node", b"\x00")
        assert world.requests.answered("node", encode_message(data=b"x"))


async def test_late_answers_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_requests, "GIVEN_UP_MAX", 2)
    async with World() as world:
        for name in "abc":
            world.ask(name)
        await asyncio.sleep(ANSWER_S)
        assert [world.requests.answered("node", answer(name)) for name in "abc"] == [
            True,
            False,
            False,
        ]


async def test_nothing_is_given_up_after_the_client_has_gone() -> None:
    world = World()
    async with world:
        world.ask("a")
    await asyncio.sleep(10)
    assert world.given_up == []


async def test_a_client_has_some_requests_without_an_answer_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_requests, "UNANSWERED_MAX", 2)
    async with World() as world:
        world.ask("a")
        world.ask("b")
        with pytest.raises(QuotaExceeded, match="2 requests of this connection have no answer"):
            world.ask("c")
        assert world.requests.answered("node", answer("a"))
        world.ask("c")
        await asyncio.sleep(ANSWER_S)
        assert [name for name, _ in world.given_up] == ["b", "c"]
        world.ask("d")


async def test_what_requests_take_counts_until_they_are_answered_given_up_or_left() -> None:
    held = Budget("this connection", "bytes", 5_000)
    async with World(held) as world:
        world.ask("a", size_bytes=1_000)
        world.ask("b", size_bytes=500)
        before = held.used
        assert before > 1_500
        with pytest.raises(QuotaExceeded, match="this connection has more than 5000 bytes"):
            world.ask("c", size_bytes=4_000)
        assert held.used == before
        world.ask("b", size_bytes=500)  # The later one stands for both.
        assert held.used == before
        assert world.requests.answered("node", answer("a"))
        assert held.used == before // 2 - 250
        await asyncio.sleep(ANSWER_S)
        assert held.used == 0
        world.ask("d")
    assert held.used == 0


class Kept:
    """What a request keeps."""

    def clear(self) -> None:
        """It is given up."""


async def test_a_request_that_was_answered_is_kept_no_longer() -> None:
    """A client that asks for much, and gets quick answers, would fill the memory."""
    async with World() as world:
        kept = Kept()
        there = weakref.ref(kept)
        world.requests.add("node", "a", kept.clear)
        del kept
        assert there() is not None
        assert world.requests.answered("node", answer("a"))
        assert there() is None
