"""Threads that run the handlers of a processor for sync code."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from twinbus.blocking.loop_thread import LoopThread
from twinbus.blocking.processor import HandlerThreads, OnLoop

LIMIT_S = 30.0


def raising(error: BaseException) -> Callable[[], NoReturn]:
    def work() -> NoReturn:
        raise error

    return work


async def test_as_many_threads_run_as_handlers_wait_and_no_more() -> None:
    threads, barrier = HandlerThreads(3), threading.Barrier(3)
    names: set[int] = set()

    def work() -> None:
        names.add(threading.get_ident())
        assert threads.is_current
        barrier.wait(LIMIT_S)

    await asyncio.gather(*(threads.run(work) for _ in range(3)))
    assert len(names) == 3
    await asyncio.gather(*(threads.run(work) for _ in range(3)))
    assert len(names) == 3
    assert not threads.is_current
    threads.end()
    threads.end()


async def test_an_error_of_a_handler_reaches_the_one_who_waits_and_ends_no_thread() -> None:
    threads = HandlerThreads(1)
    with pytest.raises(ValueError, match="wrong"):
        await threads.run(raising(ValueError("wrong")))
    for error in (StopIteration(), SystemExit(3), KeyboardInterrupt()):
        with pytest.raises(RuntimeError, match=f"the handler raised {type(error).__name__}"):
            await threads.run(raising(error))
    await threads.run(lambda: None)
    threads.end()


async def test_a_handler_that_nobody_waits_for_any_more_runs_on() -> None:
    threads, go, ended = HandlerThreads(1), threading.Event(), threading.Event()

    def work() -> None:
        go.wait(LIMIT_S)
        ended.set()

    waiting = asyncio.create_task(threads.run(work))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go.set()
    await threads.run(lambda: None)
    assert ended.is_set()
    threads.end()


async def test_a_handler_has_the_context_of_its_task() -> None:
    threads, variable = HandlerThreads(1), contextvars.ContextVar[str]("trace")
    variable.set("a trace")
    seen: list[str] = []
    await threads.run(lambda: seen.append(variable.get()))
    assert seen == ["a trace"]
    threads.end()


def test_a_handler_calls_methods_of_asyncio_as_plain_ones() -> None:
    class Session:
        session_id = "a"

        async def get_state(self) -> bytes:
            return b"state"

    class Receiver:
        session: Any = Session()

        async def complete_message(self, message: str, *, twice: bool) -> str:
            return message * 2 if twice else message

    loop_thread = LoopThread("twinbus-test")
    receiver = OnLoop(Receiver(), loop_thread)
    try:
        assert receiver.complete_message("ab", twice=True) == "abab"
        assert (receiver.session.session_id, receiver.session.get_state()) == ("a", b"state")
        with pytest.raises(AttributeError):
            receiver.nonsense  # noqa: B018
    finally:
        loop_thread.stop()
