"""Requests to a node that are not answered in time, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from twinbus.amqp.message import Properties, encode_message
from twinbus.gateway import node_requests
from twinbus.gateway.node_requests import UnansweredRequests

pytestmark = pytest.mark.virtual_time

ANSWER_S = 5.0


def answer(request_id: str) -> bytes:
    return encode_message(properties=Properties(correlation_id=request_id))


class World:
    def __init__(self) -> None:
        self.requests = UnansweredRequests(ANSWER_S)
        self.given_up: list[tuple[str, float]] = []

    def ask(self, request_id: str) -> None:
        def give_up() -> None:
            self.given_up.append((request_id, asyncio.get_running_loop().time() - self.began))

        self.requests.add("node", request_id, give_up)

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
