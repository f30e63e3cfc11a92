"""An event loop for other threads: answers, errors, interrupts, the end of the thread, forks."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from twinbus.blocking.loop_thread import LoopThread, _Work
from twinbus.blocking.promise import Promise
from twinbus.errors import PairingError

LIMIT_S = 60.0


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    before = set(threading.enumerate())
    thread = LoopThread("under test")
    yield thread
    thread.stop()
    assert set(threading.enumerate()) <= before


def interrupt_main() -> None:
    """Ctrl-C: the kernel gives it to the main thread, which here waits."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_it_starts_with_the_first_call_and_all_calls_share_one_loop(
    loop_thread: LoopThread,
) -> None:
    async def where() -> tuple[asyncio.AbstractEventLoop, str]:
        return asyncio.get_running_loop(), threading.current_thread().name

    assert "under test" not in [thread.name for thread in threading.enumerate()]
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: loop_thread.run(where), range(40)))
    assert len(found) == 1
    assert {name for _, name in found} == {"under test"}


def test_errors_and_context_variables_cross_the_border(loop_thread: LoopThread) -> None:
    trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace", default="none")

    async def fails() -> None:
        raise KeyError(trace.get())

    trace.set("mine")
    with pytest.raises(KeyError, match="mine"):
        loop_thread.run(fails)
    assert loop_thread.call(lambda: 5) == 5


def test_an_interrupted_caller_has_its_work_cancelled_and_over_when_it_raises(
    loop_thread: LoopThread,
) -> None:
    history: list[str] = []

    async def long() -> None:
        try:
            history.append("began")
            interrupt_main()
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            history.append("cancelled")
            raise

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        loop_thread.run(long)
    assert history == ["began", "cancelled"]
    assert time.monotonic() - began < LIMIT_S
    assert loop_thread.call(lambda: len(asyncio.all_tasks())) == 2


def test_work_that_is_interrupted_before_it_began_never_begins(loop_thread: LoopThread) -> None:
    begun: list[str] = []
    stands_still = threading.Event()

    async def work() -> None:
        begun.append("work")

    def question(_: Promise[None]) -> None:
        begun.append("question")

    def busy() -> None:
        """Keep the loop from running what the main thread hands in, until it has given up."""
        loop: Any = asyncio.get_running_loop()
        stands_still.set()
        # First the work comes, then its cancellation.
        for count, act in ((1, interrupt_main), (2, lambda: None)):
            ends = time.monotonic() + LIMIT_S
            while len(loop._ready) < count:
                if time.monotonic() > ends:
                    return
                time.sleep(0.001)
            act()

    calls = partial(loop_thread.run, work), partial(loop_thread.ask, question)
    for call in calls:
        stands_still.clear()
        loop_thread.call(lambda: asyncio.get_running_loop().call_later(0.0, busy))
        assert stands_still.wait(LIMIT_S)
        with pytest.raises(KeyboardInterrupt):
            call()
    assert begun == []


def test_a_question_is_answered_from_the_loop_without_a_task(loop_thread: LoopThread) -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="none")
    name.set("mine")

    def soon(answer: Promise[tuple[str, int]]) -> None:
        found = name.get(), len(asyncio.all_tasks())
        asyncio.get_running_loop().call_soon(answer.set_result, found)

    def refuses(answer: Promise[None]) -> None:
        raise KeyError("refused")

    assert loop_thread.ask(soon) == ("mine", 1)
    with pytest.raises(KeyError, match="refused"):
        loop_thread.ask(refuses)


def test_whoever_answers_an_interrupted_caller_finds_that_it_gave_up(
    loop_thread: LoopThread,
) -> None:
    asked: list[Promise[None]] = []

    def never(answer: Promise[None]) -> None:
        asked.append(answer)
        interrupt_main()

    with pytest.raises(KeyboardInterrupt):
        loop_thread.ask(never)
    assert [answer.cancelled() for answer in asked] == [True]


def test_stop_ends_those_who_wait_and_later_calls_say_so(loop_thread: LoopThread) -> None:
    async def forever() -> None:
        await asyncio.sleep(600)

    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(loop_thread.run, forever) for _ in range(4)]
        while loop_thread.call(lambda: len(asyncio.all_tasks())) < 6:
            time.sleep(0.01)
        loop_thread.stop()
        loop_thread.stop()
        for answer in waiting:
            with pytest.raises(PairingError, match="closed"):
                answer.result(LIMIT_S)
    with pytest.raises(PairingError, match="closed"):
        loop_thread.run(forever)
    loop_thread.finish(forever)


def test_no_caller_is_left_waiting_when_it_is_stopped_under_load() -> None:
    async def nothing() -> int:
        return 1

    def hammer(thread: LoopThread) -> str:
        while True:
            try:
                thread.run(nothing)
            except PairingError:
                return "told"

    for _ in range(20):
        thread = LoopThread("hammered")
        with ThreadPoolExecutor(6) as pool:
            told = [pool.submit(hammer, thread) for _ in range(6)]
            time.sleep(0.01)
            thread.stop()
            assert [answer.result(LIMIT_S) for answer in told] == ["told"] * 6


def test_a_call_on_its_own_thread_is_refused_instead_of_waiting_for_itself(
    loop_thread: LoopThread,
) -> None:
    def inside() -> None:
        loop_thread.call(lambda: None)

    with pytest.raises(PairingError, match="another thread"):
        loop_thread.call(inside)


def test_it_can_be_used_inside_a_coroutine_which_then_blocks(loop_thread: LoopThread) -> None:
    async def outer() -> int:
        return loop_thread.call(lambda: 7)

    assert asyncio.run(outer()) == 7


def test_after_a_fork_the_child_is_told_and_the_parent_goes_on(loop_thread: LoopThread) -> None:
    async def nothing() -> None:
        pass

    loop_thread.run(nothing)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            loop_thread.run(nothing)
        except PairingError as error:
            os.write(writing, str(error).encode())
        loop_thread.finish(nothing)
        loop_thread.stop()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert "after the fork" in pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    loop_thread.run(nothing)


def test_work_that_came_too_late_for_the_loop_is_told_when_the_thread_ends(
    loop_thread: LoopThread,
) -> None:
    async def nothing() -> None:
        pass

    loop_thread.run(nothing)
    # As if it had been handed in between the loop's last turn and its end.
    late = _Work(nothing)
    loop_thread._items.add(late)
    loop_thread.stop()
    with pytest.raises(PairingError, match="closed"):
        late.result.result()
