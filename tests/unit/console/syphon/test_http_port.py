"""The port of a syphon's metrics: who may read what, and clients that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
from aiohttp import web

from twinbus.console.syphon.metrics import CLIENTS_MAX, CONNECTION_S, HttpAddress, HttpPort
from twinbus.errors import SyphonError
from twinbus.loops import fast_loop

T = TypeVar("T")

LOOPBACK = HttpAddress("127.0.0.1", 0)
EVERYWHERE = HttpAddress("0.0.0.0", 0)


def names(may_read_names: bool) -> web.Response:
    return web.Response(text="names\n") if may_read_names else web.Response(status=401, text="no")


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Run it on the loop of a command."""
    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        return runner.run(scenario)


@asynccontextmanager
async def serving(
    address: HttpAddress, token: str | None = None, connection_s: float = CONNECTION_S
) -> AsyncIterator[HttpPort]:
    port = HttpPort(address, token, {"/metrics": names}, connection_s)
    await port.start()
    try:
        yield port
    finally:
        await port.close()


async def ask(port: HttpPort, request: str) -> str:
    """Return the whole answer to raw bytes; empty: the connection was closed without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port.address.port)
    writer.write(request.encode("latin-1"))
    try:
        return (await reader.read()).decode()
    except ConnectionResetError:
        return ""
    finally:
        writer.close()


def get(*headers: str, target: str = "/metrics", method: str = "GET", host: str = "[::1]") -> str:
    return "\r\n".join([f"{method} {target} HTTP/1.1", f"Host: {host}", *headers, "", ""])


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9100", "127.0.0.1:9100"),
        ("localhost:9100", "127.0.0.1:9100"),
        ("0.0.0.0:0", "0.0.0.0:0"),
        ("[::1]:9100", "[::1]:9100"),
        ("metrics.example:9100", "metrics.example:9100"),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, address: str) -> None:
    assert str(HttpAddress.parse(text)) == address


@pytest.mark.parametrize(
    "text", ["", "host", ":9100", "host:", "host:99999", "a@b:1", "h:1/x", "70000", "::1:9100"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        HttpAddress.parse(text)


def test_who_may_read_names() -> None:
    async def scenario() -> None:
        async with serving(LOOPBACK) as port:
            assert (await ask(port, get())).endswith("\r\n\r\nnames\n")
            assert "200 OK" in await ask(port, get(host="LOCALHOST:9100"))
            # A page of another site that reaches the port by a name of its own.
            assert " 403 " in await ask(port, get(host="evil.example:9100"))
        async with serving(EVERYWHERE) as port:
            assert " 401 " in await ask(port, get("Authorization: Bearer "))
        async with serving(EVERYWHERE, "s3cret") as port:
            assert " 200 " in await ask(port, get("authorization: Bearer s3cret", host="x"))
            assert " 401 " in await ask(port, get("Authorization: Bearer s3cre"))
            assert "WWW-Authenticate: Bearer" in await ask(port, get())
        async with serving(LOOPBACK, "s3cret") as port:
            assert " 401 " in await ask(port, get("Authorization: Bearer \xff"))

    run(scenario())


def test_requests_that_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(LOOPBACK) as port:
            assert " 404 " in await ask(port, get(target="/"))
            assert " 405 " in await ask(port, get(method="POST"))
            assert " 400 " in await ask(port, "nonsense\r\n\r\n")
            assert (await ask(port, get(method="HEAD"))).endswith("\r\n\r\n")
            assert " 400 " in await ask(port, get(f"x: {'y' * 40_000}"))
            # One request for each connection.
            assert (await ask(port, get() * 2)).count(" 200 OK") == 1
            assert " 200 " in await ask(port, get(target="/metrics?x=1"))

    run(scenario())
    assert caplog.records == []


def test_clients_are_bounded_in_number() -> None:
    async def scenario() -> None:
        async with serving(LOOPBACK, connection_s=600.0) as port:
            # Connections are accepted in their order: the next one is one too many.
            place = "127.0.0.1", port.address.port
            slow = [await asyncio.open_connection(*place) for _ in range(CLIENTS_MAX)]
            assert await ask(port, get()) == ""
            reader, writer = slow[0]
            writer.write(get().encode())
            assert b" 200 " in await reader.read()
            assert " 200 " in await ask(port, get())
            # Closing the port ends the client that still says nothing.
            await port.close()
            assert await _rest(slow[1][0]) == b""
            for _, writer in slow:
                writer.close()

    run(scenario())


def test_a_client_that_sends_no_request_is_cut_off() -> None:
    async def scenario() -> None:
        async with serving(LOOPBACK, connection_s=0.05) as port:
            assert await ask(port, "GET /metrics HTTP/1.1\r\n") == ""

    run(scenario())


def test_a_client_that_does_not_take_its_answer_is_cut_off() -> None:
    large = web.Response(body=b"x" * (64 << 20))

    async def scenario() -> None:
        port = HttpPort(LOOPBACK, None, {"/metrics": lambda _: large}, connection_s=0.2)
        await port.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port.address.port)
        writer.write(get().encode())
        await asyncio.sleep(0.5)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(64 << 20)
        writer.close()
        await port.close()

    run(scenario())


def test_a_busy_port_is_one_clear_line() -> None:
    async def scenario() -> str:
        async with serving(LOOPBACK) as port:
            with pytest.raises(SyphonError) as refused:
                await HttpPort(port.address, None, {}).start()
            return str(refused.value)

    text = run(scenario())
    assert "\n" not in text
    assert "address already in use" in text.lower()
    assert "--metrics HOST:PORT" in text


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
