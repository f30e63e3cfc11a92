"""The sides of a pair and its events, for code without asyncio."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from twinbus.blocking.loop_thread import LoopThread
from twinbus.errors import PairClosedError
from twinbus.pairing.core.announcements import PairEvent
from twinbus.pairing.lifecycle.closing import PairSide as CoreSide
from twinbus.pairing.observing.listeners import EventStream as CoreStream
from twinbus.status.document import SideState

T = TypeVar("T")


class PairSide:
    """One namespace of a pair, to be closed or faulted by hand."""

    def __init__(
        self, core: CoreSide, loop_thread: LoopThread, on_end: Callable[[], None] = lambda: None
    ) -> None:
        """`on_end` closes what is open outside the core, once the side is closed or faulted."""
        self.endpoint = core.endpoint
        self._core = core
        self._loop_thread = loop_thread
        self._on_end = on_end

    def __repr__(self) -> str:
        return repr(self._core)

    @property
    def state(self) -> SideState:
        """open, closed or faulted. A namespace that cannot be reached is open."""
        return self._core.state

    @property
    def reason(self) -> str:
        """Why it is not open; empty while it is."""
        return self._core.reason

    def close(self) -> None:
        """Close this side: later calls that need it raise; calls in flight may end.

        Idempotent. Where the syphon runs, the other side must follow within 5 seconds, or it is
        faulted (docs/observability.md).
        """
        self._loop_thread.finish(self._core.close)
        self._on_end()

    def fault(self, error: BaseException) -> None:
        """Declare that this side must not be used: later calls that need it raise.

        `error` is the cause of what they raise; the first fault stays. Where the syphon runs, the
        other side must follow within 5 seconds, or it is faulted too (docs/observability.md).
        """
        self._loop_thread.call(lambda: self._core.fault(error))
        self._on_end()


class EventStream:
    """The events of a pair for one listener: `for event in stream`, on a thread of its own."""

    def __init__(self, core: CoreStream, loop_thread: LoopThread) -> None:
        self._core = core
        self._loop_thread = loop_thread

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PairEvent:
        try:
            try:
                return self._loop_thread.run(self._core.__anext__)
            except PairClosedError:
                # The loop has ended, so nothing can be awaited; the buffer still has its events.
                return _without_waiting(self._core.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        """Stop listening and drop the events in the buffer."""
        try:
            self._loop_thread.run(self._core.aclose)
        except PairClosedError:
            _without_waiting(self._core.aclose())


def _without_waiting(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that has nothing left to await, without an event loop."""
    try:
        work.send(None)
    except StopIteration as result:
        value: T = result.value
        return value
    work.close()
    raise StopAsyncIteration
