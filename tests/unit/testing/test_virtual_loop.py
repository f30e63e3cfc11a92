"""The event loop in virtual time: waiting takes no time, and a deadlock is an error."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tests.unit.work import bounded_work
from twinbus.testing import VirtualLoop, run_virtual


def test_a_day_of_waiting_takes_no_time_and_comes_in_order() -> None:
    order: list[str] = []

    async def wait(name: str, hours: float) -> None:
        await asyncio.sleep(hours * 3600)
        order.append(name)

    async def work() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.gather(wait("late", 24), wait("early", 1), wait("between", 2))
        return loop.time() - began

    with bounded_work(1):
        assert run_virtual(work()) == 24 * 3600
    assert order == ["early", "between", "late"]


def test_waiting_for_what_never_comes_is_an_error() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    with pytest.raises(AssertionError, match="nothing can happen"):
        run_virtual(work())


def test_a_task_that_is_left_behind_is_an_error() -> None:
    async def work() -> asyncio.Task[None]:
        return asyncio.create_task(asyncio.sleep(5))

    with pytest.raises(AssertionError, match="left behind"):
        run_virtual(work())


def test_what_is_ready_on_a_socket_comes_before_time_moves() -> None:
    async def work() -> tuple[bytes, float]:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.send(b"here")
            began = loop.time()
            async with asyncio.timeout(60):
                return await loop.sock_recv(ours, 10), loop.time() - began

    assert run_virtual(work()) == (b"here", 0.0)


def test_jumps_count_how_often_time_moved() -> None:
    async def work(naps: int) -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        before = loop.jumps
        for _ in range(naps):
            await asyncio.sleep(0.1)
        return loop.jumps - before

    assert [run_virtual(work(naps)) for naps in (0, 1, 7)] == [0, 1, 7]
