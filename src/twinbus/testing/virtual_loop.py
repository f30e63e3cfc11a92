"""An asyncio event loop in virtual time: when nothing is ready, time moves to the next timer.

    async def outage() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(3600)
        return loop.time() - began

    assert run_virtual(outage()) == 3600

Time does not wait for sockets or threads: what a test starts there sees time jump.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, Final, TypeVar, cast

__all__ = ["VirtualLoop", "run_virtual"]

T = TypeVar("T")

START_S: Final = 1_000.0
"""Not 0, so that a time that was never set is not taken for the present."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time moves only when nothing is ready to run."""

    def __init__(self, now: float = START_S) -> None:
        self.now = now
        self.jumps = 0
        """How often time has moved. A program that polls makes many jumps in a short time."""
        selector = _Sleepless(self, selectors.DefaultSelector())
        super().__init__(cast("selectors.BaseSelector", selector))

    def time(self) -> float:
        return self.now


class _Sleepless:
    """A selector that never sleeps: it moves the clock by what it would have waited."""

    def __init__(self, loop: VirtualLoop, inner: selectors.BaseSelector) -> None:
        self._loop, self._inner = loop, inner

    def select(self, timeout: float | None = None) -> Any:
        if timeout == 0:
            return ()
        ready = self._inner.select(0)
        if not ready:
            assert timeout is not None, "every task waits, and no timer is set: nothing can happen"
            self._loop.now += timeout
            self._loop.jumps += 1
        return ready

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time; return its result. No task may be left at its end."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(_alone(work))


async def _alone(work: Coroutine[Any, Any, T]) -> T:
    result = await work
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"tasks are left behind: {left}"
    return result
