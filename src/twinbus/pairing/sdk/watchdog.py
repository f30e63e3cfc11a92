"""Bounds every attempt of a client in time, with one timer for all of them.

A timer for each attempt would cost a healthy send as much as its line in the ledger. So attempts
that are under way stand in one set, and one timer is armed for the earliest moment at which one of
them may have to end; a send that ends in time, as nearly all do, never touches it.

It also sees to it that a cancellation is not lost. The SDK waits in `asyncio.wait_for` five times a
second, which in Python 3.11 can swallow a cancellation that comes at the wrong moment: what was
cancelled and goes on all the same is cancelled again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

__all__ = ["CANCEL_AGAIN_S", "LOOK_S", "Watch", "Watchdog"]

CANCEL_AGAIN_S: Final = 0.05
"""Between two cancellations of a call of the SDK that has missed the first."""

LOOK_S: Final = 0.25
"""How long a swallowed cancellation may go unseen. Four looks a second cost nothing, and an
attempt that ends sooner is never looked at."""


class Watch:
    """One attempt under way: whose task it is, when it must end, and how often it was told to."""

    __slots__ = ("before", "cancels", "deadline", "on_look", "task")

    def __init__(self) -> None:
        self.on_look: Callable[[], None] | None = None
        """Called at each look that finds the attempt under way; a quick one is hardly ever found.
        """
        self.task: asyncio.Task[object] | None = None
        self.deadline = 0.0
        self.before = 0
        self.cancels = 0

    def cancel(self) -> None:
        """Cancel the attempt on our own behalf."""
        assert self.task is not None
        self.cancels += 1
        self.task.cancel()

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody else wants the whole task to end since the attempt began."""
        assert self.task is not None
        return self.task.cancelling() - self.cancels > self.before


class Watchdog:
    """All attempts of one client that are under way."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._watched: dict[Watch, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def begin(self, watch: Watch, now: float, timeout_s: float) -> None:
        """Watch an attempt of the current task that begins now; `end` it whatever happens."""
        task = asyncio.current_task(self._loop)
        assert task is not None
        watch.task = task
        watch.deadline = deadline = now + timeout_s
        # A task that was cancelled and lives on, to say goodbye, may send while it does.
        watch.before = task.cancelling()
        watch.cancels = 0
        self._watched[watch] = None
        if self._timer is None or deadline < self._due:
            self._arm(min(deadline, now + LOOK_S))

    def end(self, watch: Watch) -> tuple[bool, bool]:
        """Whether time was over, and whether somebody else wants the task to end."""
        self._watched.pop(watch, None)
        task, cancels = watch.task, watch.cancels
        assert task is not None
        watch.task = None
        if not cancels:
            return False, task.cancelling() > watch.before
        for _ in range(cancels):
            task.uncancel()
        return True, task.cancelling() > watch.before

    def close(self) -> None:
        """Leave no timer behind, unless an attempt that nobody could end still goes on."""
        if self._timer is not None and not self._watched:
            self._timer.cancel()
            self._timer = None

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_at(due, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._watched:
            return
        now = self._loop.time()
        due = now + LOOK_S
        for watch in self._watched:
            if now >= watch.deadline or watch.is_cancelled:
                watch.cancel()
                due = min(due, now + CANCEL_AGAIN_S)
                continue
            due = min(due, watch.deadline)
            if watch.on_look is not None:
                watch.on_look()
        self._arm(due)
