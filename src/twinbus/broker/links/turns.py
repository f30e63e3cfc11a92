"""Turns: how long one client may keep the event loop before the others come.

What one read of a connection brings is handled in slices. A client whose input takes longer waits
for its next turn, and nothing more is read from it meanwhile:

    read --slice--> done
             '--slice is over--> in the queue --one slice in each step of the loop--> done

So what other connections bring is handled between two slices, however much one client sends, and no
slice comes before a step that hands changes to the writer. The changes of one delivery are still
made in one step: only what has to be known before, such as the messages of a batch and the rules
that take them, is worked out in slices.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import Final, TypeVar

from twinbus.amqp.budgets import Budget

SLICE_S: Final = 0.0002
"""A send of a neighbour takes some steps of the loop until it is answered, and a slice may come
before each. With the step that crosses its end, a slice takes half as much again; a send of the
neighbour's own takes half of it."""

PREPARING_MAX: Final = 4
"""Deliveries that are worked out in slices at a time, in all connections: the messages of one may
take some megabytes of memory."""

BLOCKED: Final = True
"""What a step says that must wait for another client; the slice ends with it."""

UNCHANGED: Final = False
"""What a step says that has only worked something out: there is nothing to answer or to store."""

Steps = Generator[bool | None, None, None]
"""Work that may be interrupted wherever it yields."""

T = TypeVar("T")


def at_once(work: Generator[object, None, T]) -> T:
    """Do such work without an interruption."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result


class Turns:
    """The clients of a process part whose input is not handled yet, in the order of their turns."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] | None = None,
        *,
        gives_way: Callable[[], bool] = lambda: False,
        once_packed: Callable[[Callable[[], None]], bool] = lambda _: False,
    ) -> None:
        """`gives_way`: whether a step is due that hands changes to the writer; it comes first.

        `once_packed` is given what to call once the writer leaves the interpreter to the loop, and
        returns false if it does now: side by side both take several times as long.
        """
        self._loop = loop
        self.clock = clock or _clock_of(loop)
        self._gives_way, self._once_packed = gives_way, once_packed
        self._waiting: deque[Callable[[], bool]] = deque()
        self._is_due = False
        self.preparing = 0
        """Deliveries that are worked out in slices."""
        self.is_closed = False
        """What waits is dropped."""

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, go_on: Callable[[], bool]) -> None:
        """Call `go_on` in a later step of the loop, again and again until it returns false."""
        self._waiting.append(go_on)
        self._schedule()

    async def done(self, work: Generator[object, None, T]) -> T:
        """Do such work in slices, each in its turn, and return its result."""
        ended: asyncio.Future[T] = self._loop.create_future()

        def go_on() -> bool:
            ends_at = self.clock() + SLICE_S
            try:
                while not ended.done():
                    next(work)
                    if self.clock() >= ends_at:
                        return True
            except StopIteration as stop:
                ended.set_result(stop.value)
            except Exception as error:  # noqa: BLE001  # it belongs to who waits
                ended.set_exception(error)
            return False

        self.wait(go_on)
        return await ended

    def prepare(self, work: Generator[None, None, T]) -> Generator[bool | None, None, T]:
        """Do such work, once few enough others do: its results are kept between slices."""
        while self.preparing >= PREPARING_MAX:
            yield BLOCKED
        with self._prepared(), closing(work):
            while True:
                try:
                    next(work)
                except StopIteration as done:
                    result: T = done.value
                    return result
                yield UNCHANGED

    def close(self) -> None:
        """Handle nothing more: the store is closed next."""
        self.is_closed = True

    @contextmanager
    def _prepared(self) -> Iterator[None]:
        self.preparing += 1
        try:
            yield
        finally:
            self.preparing -= 1

    def _schedule(self) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._is_due = False
        if self._gives_way():
            self._schedule()
            return
        if self._once_packed(self._schedule):
            return
        go_on = self._waiting.popleft()
        try:
            if go_on():
                self._waiting.append(go_on)
        finally:
            self._schedule()


def _clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    # The time of uvloop stands still during a step. That of a simulated loop is the one to take.
    return time.perf_counter if type(loop).__module__.startswith("uvloop") else loop.time


class Input:
    """What one client has sent and is not handled yet."""

    __slots__ = (
        "_budget",
        "_handle",
        "_held_bytes",
        "_turns",
        "_unread",
        "_work",
        "has_changed",
    )

    def __init__(self, turns: Turns, budget: Budget, handle: Callable[[bytes], Steps]) -> None:
        """`handle` is the work for bytes that came; `budget` counts those that wait."""
        self._turns = turns
        self._budget = budget
        self._handle = handle
        self._unread: deque[bytes] = deque()
        self._work: Steps | None = None
        self._held_bytes = 0
        self.has_changed = False
        """Whether a slice did more than work something out; set back by who has answered it."""

    def add(self, data: bytes) -> None:
        """Take bytes after those that wait."""
        self._unread.append(data)

    def work(self) -> bool:
        """Handle what came for one slice; true if more is left.

        After an exception nothing is left. `BudgetExceeded` if too many bytes wait.
        """
        clock = self._turns.clock
        ends_at = clock() + SLICE_S
        try:
            if self._turns.is_closed:
                self.drop()
            while self._work is not None or self._unread:
                work = self._work
                if work is None:
                    work = self._work = self._handle(self._unread.popleft())
                for state in work:
                    self.has_changed = self.has_changed or state is None
                    if state is BLOCKED or clock() >= ends_at:
                        return True
                self._work, self.has_changed = None, True
        except BaseException:
            self.drop()
            raise
        self._give_back()
        return False

    def hold(self, size_bytes: int) -> None:
        """Count bytes that wait; `BudgetExceeded` if they are too many."""
        self._budget.take(size_bytes)
        self._held_bytes += size_bytes

    def drop(self) -> None:
        """Forget what is not handled."""
        work, self._work = self._work, None
        if work is not None:
            work.close()
        self._unread.clear()
        self._give_back()

    def _give_back(self) -> None:
        if self._held_bytes:
            self._budget.give_back(self._held_bytes)
            self._held_bytes = 0
