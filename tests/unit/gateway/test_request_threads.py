"""Blocking requests: some at once, and none that the end of the process waits for."""

from __future__ import annotations

import asyncio
import threading

import pytest

from twinbus.gateway.request_threads import RequestThreads


async def test_work_returns_or_raises_and_so_many_are_under_way_at_once() -> None:
    threads, go, begun = RequestThreads(2, "test-request"), threading.Event(), []

    def work(number: int) -> int:
        begun.append((number, threading.current_thread().daemon))
        go.wait(60)
        if number == 2:
            raise OSError("no answer")
        return number

    tasks = [asyncio.create_task(threads.run(work, number)) for number in range(4)]
    while len(begun) < 2:  # noqa: ASYNC110  # threads
        await asyncio.sleep(0.001)
    # A client that goes away does not free the thread.
    tasks[0].cancel()
    await asyncio.sleep(0.01)
    assert begun == [(0, True), (1, True)]
    go.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1::2] == [1, 3]
    with pytest.raises(OSError, match="no answer"):
        await tasks[2]
