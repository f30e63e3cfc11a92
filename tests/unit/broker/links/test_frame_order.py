"""Frames of a client in one read, in many reads, and before the answer that they depend on."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.broker.fakes import facts
from tests.unit.broker.links.joined import new_server
from tests.unit.broker.links.one_client import (
    EARLY_RECEIVING,
    EARLY_SENDING,
    LAST,
    RECEIVING,
    SENDING,
    Action,
    OneClient,
    check_before_the_answer,
    early,
    outcome_of,
    pairs,
)

PAIRS = pairs([*RECEIVING, *SENDING, *LAST])


async def run(actions: tuple[Action, ...], *, is_one_read: bool) -> object:
    server = new_server()
    outcome = await outcome_of(OneClient(server, server), actions, is_one_read=is_one_read)
    await server.close()
    return outcome


@pytest.mark.parametrize("pair", PAIRS, ids=[f"{a.__name__}-{b.__name__}" for a, b in PAIRS])
def test_two_frames_in_one_read_do_what_they_do_in_two(pair: tuple[Action, Action]) -> None:
    in_one = asyncio.run(run(pair, is_one_read=True))
    assert in_one == asyncio.run(run(pair, is_one_read=False))


@pytest.mark.parametrize("end", [OneClient.detach_receiver, *LAST])
async def test_settlements_right_before_the_end_of_their_link_count(end: Action) -> None:
    """rhea and the .NET SDK settle and close without waiting for an answer."""
    server = new_server()
    world = OneClient(server, server)
    actions = (OneClient.accept, OneClient.release, OneClient.abandon, end)
    await outcome_of(world, actions, is_one_read=True)
    left = facts(world.queue, server.now_ms())
    assert [(number, count) for number, _, _, count in left] == [(2, 0), (3, 1)]
    assert len(world.queue.states.locks) == 0
    await server.close()


EARLY = early([*EARLY_RECEIVING, *EARLY_SENDING])


@pytest.mark.virtual_time
@pytest.mark.parametrize("actions", EARLY, ids=["-".join(a.__name__ for a in e) for e in EARLY])
async def test_frames_before_the_answer_are_kept_or_refused(actions: tuple[Action, ...]) -> None:
    server = new_server()
    await check_before_the_answer(OneClient(server, server), actions)
    await server.close()
