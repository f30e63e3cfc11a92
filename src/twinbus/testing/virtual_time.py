"""Virtual time: a clock that drives one state machine, and an asyncio event loop.

    clock, entity = VirtualClock(), EntityFailover(failover_interval_s=10, ping_interval_s=60)
    entity.handle(SendFailed(counts=True), clock.now)
    assert clock.run(entity, until=10.0) == [(10.0, Divert())]

    async def outage() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(3600)
        return loop.time() - began

    assert run_virtual(outage()) == 3600

When nothing is ready, the loop moves time to the next timer. It does not wait for sockets or
threads: what a test starts there sees time jump.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Protocol, TypeVar, cast

from twinbus.pairing.core.failover import TimerFired

FIRINGS_MAX = 1_000_000
"""Timers in one run. A machine that asks for more in a test has stopped making progress."""


class Machine(Protocol):
    """A state machine with time: it takes events, and says when it wants to be called next."""

    @property
    def timer_at(self) -> float | None:
        """When the machine wants a `TimerFired`; None: it waits for nothing."""

    def handle(self, event: Any, now: float) -> Sequence[object]:
        """Take one event at time `now`; return what the shell must do, in order."""


class VirtualClock:
    """A clock that moves only when told to, and fires the timers it passes."""

    __slots__ = ("now",)

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __repr__(self) -> str:
        return f"VirtualClock(now={self.now:g})"

    def advance(self, seconds: float) -> float:
        """Move on without firing anything; the new time."""
        assert seconds >= 0, f"time does not go back, not by {seconds} s"
        self.now += seconds
        return self.now

    def run(
        self, machine: Machine, until: float, *, announcements: bool = False
    ) -> list[tuple[float, object]]:
        """What `machine` wanted done on the way to `until`, and when: a timeline.

        Announcements (actions whose class has `announces = True`: there for logs and listeners,
        nothing to perform) are left out unless asked for.
        """
        assert until >= self.now, f"time does not go back, not from {self.now} to {until}"
        timeline: list[tuple[float, object]] = []
        for _ in range(FIRINGS_MAX):
            due = machine.timer_at
            if due is None or due > until:
                self.now = until
                return timeline
            # A timer armed for a moment that has passed fires now: a shell cannot do better.
            self.now = max(self.now, due)
            timeline += [
                (self.now, action)
                for action in machine.handle(TimerFired(), self.now)
                if announcements or not getattr(action, "announces", False)
            ]
        raise AssertionError(f"{machine!r} asked for {FIRINGS_MAX} timers before {until}")


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
