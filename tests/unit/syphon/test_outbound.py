"""What a relay makes of the primary's answers to an attach, and of their absence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.syphon.core.test_pump import running
from twinbus.client.request_node import ConnectionLost, RequestRefused
from twinbus.ledger import NullLedger
from twinbus.syphon.bookkeeping import Bookkeeper
from twinbus.syphon.core.actions import Action, CloseDestination, DeadLetter, GrantCredit, Reconnect
from twinbus.syphon.outbound import DestinationLinks


class FakeSession:
    def __init__(self, attach_sender: Callable[..., object]) -> None:
        self.attach_sender = attach_sender


class FakeConnection:
    """A connection whose authorizations end as a test says."""

    def __init__(self, authorize: Callable[[], bool], *, is_lost: bool = False) -> None:
        self._authorize = authorize
        self.asked: list[str] = []
        self.lost = asyncio.get_running_loop().create_future()
        if is_lost:
            self.lost.set_result("gone")
        self.session = FakeSession(self._attach_sender)

    async def authorize(self, path: str) -> bool:
        return self._authorize()

    async def session_with_room(self) -> object:
        return self.session

    def _attach_sender(self, name: str, **_: object) -> object:
        self.asked.append(name.partition("-syphon")[0])
        return SimpleNamespace(owner=None)

    def flush(self) -> None:
        """Nothing."""


async def attach(
    authorize: Callable[[], bool],
    *,
    heard_s_later: float | None = None,
    is_lost: bool = False,
    grace_s: float = 3_600.0,
) -> tuple[list[Action], list[str]]:
    """What the pump then wants of one attach to orders, and the links that are asked for.

    `heard_s_later`: the primary answered for another destination meanwhile.
    """
    world = running(grace_s=grace_s)
    world.store("orders")
    world.deliver()
    if heard_s_later is not None:
        world.pump.attached("letters", 0, world.now + heard_s_later)
    wanted: list[Action] = []
    books = Bookkeeper(NullLedger(), "contoso", "second", "queue")
    outbound = DestinationLinks(world.pump, books, wanted.extend, time.monotonic)
    connection: Any = FakeConnection(authorize, is_lost=is_lost)
    outbound.connection = connection
    await outbound.attach("orders")
    return wanted, connection.asked


def refused(status: int) -> Callable[[], bool]:
    def refuse() -> bool:
        raise RequestRefused("$cbs: because", status, "")

    return refuse


def no_answer() -> bool:
    raise ConnectionLost("$cbs of contoso did not answer for 15 s")


async def test_a_token_that_is_not_answered_ends_the_connection_if_nobody_else_is() -> None:
    wanted, asked = await attach(no_answer)
    assert Reconnect("primary", "$cbs of contoso did not answer for 15 s") in wanted
    assert asked == []


async def test_a_token_that_is_not_answered_holds_its_destination_if_others_are() -> None:
    wanted, _ = await attach(no_answer, heard_s_later=1.0)
    assert CloseDestination("orders") in wanted
    assert not any(isinstance(action, Reconnect) for action in wanted)


async def test_a_token_for_a_missing_entity_says_that_it_is_missing() -> None:
    wanted, asked = await attach(refused(404), grace_s=0.0)
    assert [a.reason for a in wanted if isinstance(a, DeadLetter)] == ["DestinationNotFound"]
    assert asked == []


@pytest.mark.parametrize("status", [0, 401, 403, 500, 503])
async def test_any_other_refusal_of_a_token_holds_the_destination(status: int) -> None:
    wanted, asked = await attach(refused(status), grace_s=0.0)
    assert not any(isinstance(action, DeadLetter) for action in wanted)
    assert GrantCredit(0) in wanted
    assert asked == []


async def test_a_line_that_is_lost_meanwhile_is_no_fault_of_the_destination() -> None:
    assert await attach(no_answer, is_lost=True) == ([], [])


async def test_a_link_is_asked_for_once_it_is_allowed() -> None:
    assert await attach(lambda: True) == ([], ["orders"])
