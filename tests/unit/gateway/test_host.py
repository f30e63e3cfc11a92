"""What the gateway reads of an administration request before the primary gets it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from twinbus.broker.admin.atom import ATOM, CONNECT
from twinbus.broker.refusals import ArgumentInvalid
from twinbus.gateway.host import RequestThreads, _destinations


def entry(forward_to: str) -> bytes:
    return (
        f'<entry xmlns="{ATOM}"><content><QueueDescription xmlns="{CONNECT}">'
        f"<ForwardTo>{forward_to}</ForwardTo></QueueDescription></content></entry>"
    ).encode()


def test_the_entities_that_a_description_forwards_to() -> None:
    assert _destinations(b"") == []
    assert _destinations(entry("")) == []
    assert _destinations(entry(" sb://contoso/pay<!-- -->ments ")) == ["payments"]


def test_a_name_with_an_element_inside_is_refused() -> None:
    """The right would be that to `payments-archive`, and the primary forward to `payments`."""
    with pytest.raises(ArgumentInvalid, match="text without elements"):
        _destinations(entry("payments<x/>-archive"))


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
