"""What all simulated parts run on: one event loop in virtual time, and processes that can die.

A process is whatever was started with its name in the context: its tasks, and the timers they set.
Killed, it is cut off from the network first, so that nothing which its tasks still do while they
end can reach anybody; then its tasks and timers are gone, and with them all that it knew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, cast

from twinbus.testing import VirtualLoop

if TYPE_CHECKING:
    from tests.simulation.network import Wire

KILL_ROUNDS = 200
"""Turns of the loop that the tasks of a killed process get to end in."""


TICK_S = 1e-6
"""The least by which a timer moves time on."""


class SimLoop(VirtualLoop):
    """An event loop in virtual time that knows whose each task is."""

    def __init__(self) -> None:
        super().__init__(now=0.0)
        self.set_task_factory(_owned)  # type: ignore[arg-type]  # any keywords, in typeshed not

    def call_at(  # type: ignore[override]  # typeshed ties the arguments to the callback
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Set a timer.

        asyncio runs a timer up to a nanosecond early, and a program that finds it too early sets it
        again. A real clock moves on meanwhile; virtual time would stand still for ever.
        """
        if self.now < when:
            when = max(when, self.now + TICK_S)
        return super().call_at(when, callback, *args, context=context)

    def timers_of(self, process: Process) -> list[asyncio.TimerHandle]:
        """The timers that a process has set and that are still to come."""
        scheduled = cast("list[asyncio.TimerHandle]", self._scheduled)  # type: ignore[attr-defined]
        return [
            handle
            for handle in scheduled
            if not handle.cancelled() and _is_of(handle._context, process)  # type: ignore[attr-defined]
        ]


def _is_of(context: Context, process: Process) -> bool:
    # What is on its way to a process is the network's.
    return context is not process.arrivals and context.get(PROCESS) is process


def _owned(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    task = asyncio.Task(coro, loop=loop, **options)
    process = PROCESS.get()
    if process is not None:
        process.tasks[task] = None
    return task


class Process:
    """One process of one of the programs, from its start to its end."""

    def __init__(self, loop: SimLoop, name: str, number: int) -> None:
        self.loop = loop
        self.name = name
        self.number = number
        self.alive = True
        self.tasks: dict[asyncio.Task[Any], None] = {}
        """In the order in which they were made, so that a killing is the same each time."""
        self.wires: dict[Wire, None] = {}
        self.arrivals = copy_context()
        """In which what comes over the network is handled."""
        self.arrivals.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return f"<{self.name}, start {self.number}>"

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something as this process."""
        context = copy_context()
        context.run(PROCESS.set, self)
        return context.run(self.loop.create_task, work)

    @property
    def live_tasks(self) -> list[asyncio.Task[Any]]:
        """What has not ended."""
        return [task for task in self.tasks if not task.done()]

    async def kill(self) -> None:
        """End it as kill -9 does: nothing that it had in mind is done any more."""
        self.alive = False
        for wire in list(self.wires):
            wire.hit("the process was killed")
            wire.cut()
        for _ in range(KILL_ROUNDS):
            live = self.live_tasks
            if not live:
                break
            for task in live:
                task.cancel()
            await asyncio.sleep(0)
        assert not self.live_tasks, f"{self} does not die: {self.live_tasks}"
        for task in self.tasks:
            if not task.cancelled():
                # Asyncio must not complain of errors that nobody is left to see.
                task.exception()
        for timer in self.loop.timers_of(self):
            timer.cancel()
        self.tasks.clear()


PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)
NOBODY = Context()
"""In which the network and the namespaces set their timers: they outlive any process."""
