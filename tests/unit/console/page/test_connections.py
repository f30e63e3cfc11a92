"""Strangers at a page: they have some room, and nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from twinbus.console.page.connections import STRANGERS_MAX, Strangers, page_config

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Silent:
    """A connection that says nothing."""

    def __init__(self) -> None:
        self.is_ended = False

    def end(self) -> None:
        self.is_ended = True


def test_a_new_stranger_ends_the_oldest_one_of_the_address_that_has_most() -> None:
    strangers, honest = Strangers(most=10), Silent()
    strangers.enter("honest", honest)
    attacking = [Silent() for _ in range(30)]
    for number, one in enumerate(attacking):
        strangers.enter(f"attacker-{number % 2}", one)
    assert not honest.is_ended
    assert [one.is_ended for one in attacking] == [True] * 21 + [False] * 9
    for one in attacking:
        strangers.leave("attacker-0", one)
        strangers.leave("attacker-1", one)
    strangers.leave("honest", honest)
    assert strangers._by_host == {}
    assert strangers._count == 0


def test_a_connection_with_a_token_is_no_stranger_any_more() -> None:
    strangers, operator = Strangers(most=2), Silent()
    strangers.enter("here", operator)
    strangers.leave("here", operator)
    for _ in range(5):
        strangers.enter("here", Silent())
    assert not operator.is_ended


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """As `Guard` does for a request with a valid token."""
    scope["state"]["trust"]()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


@asynccontextmanager
async def page() -> AsyncIterator[int]:
    config, state = page_config(answer, None), ServerState()
    kind: Any = config.http_protocol_class
    server = await asyncio.get_running_loop().create_server(
        lambda: kind(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_three_hundred_silent_connections_keep_nobody_out() -> None:
    async with page() as port, asyncio.timeout(60):
        operator = await asyncio.open_connection("127.0.0.1", port)
        operator[1].write(REQUEST)
        assert b"200" in await operator[0].readline()
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
        # The oldest are ended, and the operator comes in with a new connection and the old one.
        for reader, _ in silent[: 300 - STRANGERS_MAX]:
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(REQUEST)
            assert b"200" in await reader.readline()
            writer.close()
        for _, writer in silent:
            writer.close()
        operator[1].close()
