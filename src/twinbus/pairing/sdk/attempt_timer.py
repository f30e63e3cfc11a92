"""Bounds every attempt of a client in time, with one timer for all of them.

A timer for each attempt would cost a healthy send as much as its line in the ledger. So all
attempts in progress are in one set, and one timer is armed for the earliest time at which one of
them may have to end; a send that ends in time, as nearly all do, never touches it.

The timer also repeats lost cancellations. The SDK waits in `asyncio.wait_for` five times a
second, which in Python 3.11 can swallow a cancellation that comes at the wrong moment: an attempt
that was cancelled and goes on is cancelled again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

CANCEL_AGAIN_S: Final = 0.05
"""Time between two cancellations of a call of the SDK that has missed the first."""

CHECK_INTERVAL_S: Final = 0.25
"""How long a swallowed cancellation may go unnoticed. Four checks a second cost nothing, and an
attempt that ends sooner is never checked."""


class TimedAttempt:
    """One attempt in progress: its task, its deadline, and how often we cancelled it."""

    __slots__ = ("cancelling_before", "deadline", "on_check", "own_cancels", "task")

    def __init__(self) -> None:
        self.on_check: Callable[[], None] | None = None
        """Called at each check that finds the attempt in progress; a quick one rarely is."""
        self.task: asyncio.Task[object] | None = None
        self.deadline = 0.0
        self.cancelling_before = 0
        self.own_cancels = 0

    def cancel(self) -> None:
        """Cancel the attempt on our own behalf."""
        assert self.task is not None
        self.own_cancels += 1
        self.task.cancel()

    @property
    def is_cancelled(self) -> bool:
        """Whether other code has cancelled the task since the attempt began."""
        assert self.task is not None
        return self.task.cancelling() - self.own_cancels > self.cancelling_before


class AttemptTimer:
    """All attempts of one client that are in progress."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._attempts: dict[TimedAttempt, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def begin(self, attempt: TimedAttempt, now: float, timeout_s: float) -> None:
        """Time an attempt of the current task that begins now; `end` it whatever happens."""
        task = asyncio.current_task(self._loop)
        assert task is not None
        attempt.task = task
        attempt.deadline = deadline = now + timeout_s
        # A task that was cancelled and goes on, to clean up, may send while it does.
        attempt.cancelling_before = task.cancelling()
        attempt.own_cancels = 0
        self._attempts[attempt] = None
        if self._timer is None or deadline < self._due:
            self._arm(min(deadline, now + CHECK_INTERVAL_S))

    def end(self, attempt: TimedAttempt) -> tuple[bool, bool]:
        """Whether the time was over, and whether other code has cancelled the task."""
        self._attempts.pop(attempt, None)
        task, own_cancels = attempt.task, attempt.own_cancels
        assert task is not None
        attempt.task = None
        if not own_cancels:
            return False, task.cancelling() > attempt.cancelling_before
        for _ in range(own_cancels):
            task.uncancel()
        return True, task.cancelling() > attempt.cancelling_before

    def close(self) -> None:
        """Leave no timer behind, unless an attempt that could not be ended still goes on."""
        if self._timer is not None and not self._attempts:
            self._timer.cancel()
            self._timer = None

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_at(due, self._check)

    def _check(self) -> None:
        self._timer = None
        if not self._attempts:
            return
        now = self._loop.time()
        due = now + CHECK_INTERVAL_S
        for attempt in self._attempts:
            if now >= attempt.deadline or attempt.is_cancelled:
                attempt.cancel()
                due = min(due, now + CANCEL_AGAIN_S)
                continue
            due = min(due, attempt.deadline)
            if attempt.on_check is not None:
                attempt.on_check()
        self._arm(due)
