"""The link of a task: it ends when the driver closes it, and reports problems to the driver."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from twinbus.pipeline.drain import driver_link as links
from twinbus.pipeline.drain.driver_link import DriverLink, DriverListener


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - what is waited for is on another thread
            await asyncio.sleep(0.005)


def test_a_task_tells_its_problems_and_ends_when_it_is_released() -> None:
    async def run(post: DriverListener) -> None:
        async with DriverLink(post.address) as one, DriverLink(post.address) as two:
            one.report(("orders: full",))
            two.report(("orders: full", "events: disabled"))
            await until(lambda: set(post.problems) == {"orders: full", "events: disabled"})
            two.report(())
            await until(lambda: post.problems == ("orders: full",))
            released = asyncio.ensure_future(one.released())
            await asyncio.sleep(0.05)
            assert not released.done()
            post.release()
            async with asyncio.timeout(10):
                await released
                await two.released()
        async with DriverLink(post.address) as late, asyncio.timeout(10):
            await late.released()

    with DriverListener("127.0.0.1") as post:
        asyncio.run(run(post))
        assert post.attached == 0


def test_a_task_ends_when_its_driver_is_gone() -> None:
    async def run() -> None:
        post = DriverListener("127.0.0.1")
        with post:
            async with DriverLink(post.address) as link:
                await until(lambda: post.attached == 1)
                post.__exit__()
                async with asyncio.timeout(10):
                    await link.released()

    asyncio.run(run())


@pytest.mark.parametrize("line", [b"wrong\n", b"", b"x" * 100_000])
def test_a_stranger_is_not_listened_to(line: bytes) -> None:
    with DriverListener("127.0.0.1") as post:
        assert post.address is not None
        with socket.create_connection((post.address.host, post.address.port)) as stranger:
            stranger.settimeout(10)
            stranger.sendall(line)
            stranger.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
        assert post.attached == 0


def test_a_task_that_cannot_reach_the_driver_works_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "CONNECT_S", 0.2)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]

        async def run() -> None:
            with DriverListener("127.0.0.1") as post:
                assert post.address is not None
                address = replace(post.address, port=port)
            async with DriverLink(address) as link:
                link.report(("orders: full",))
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await link.released()

        began = time.monotonic()
        asyncio.run(run())
        assert time.monotonic() - began < 5


def test_a_driver_that_cannot_listen_goes_on_without() -> None:
    with DriverListener("driver.example", bind="203.0.113.1") as post:
        assert post.address is None
        post.release()
