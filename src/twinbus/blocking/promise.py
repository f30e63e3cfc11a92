"""The result of a call on a loop, for the one thread that waits for it.

It does what `concurrent.futures.Future` does here for a fraction of the time: a single lock, which
the loop releases with the result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Generic, TypeVar, cast

T = TypeVar("T")

FOR_EVER = -1.0


class Promise(Generic[T]):
    """A result, an error or a cancellation; the loop's thread gives it once."""

    __slots__ = ("_callback", "_error", "_is_cancelled", "_is_done", "_pending", "_value")

    def __init__(self) -> None:
        self._pending = threading.Lock()
        """Held until there is a result."""
        self._pending.acquire()
        self._is_done = self._is_cancelled = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._callback: Callable[[Promise[T]], object] | None = None

    def done(self) -> bool:
        """Whether it has ended."""
        return self._is_done

    def cancelled(self) -> bool:
        """Whether it was cancelled before it had a result."""
        return self._is_cancelled

    def set_result(self, value: T, /) -> None:
        self._end(value, None)

    def set_exception(self, error: BaseException, /) -> None:
        self._end(None, error)

    def cancel(self) -> None:
        if not self._is_done:
            self._is_cancelled = True
            self._end(None, CancelledError())

    def add_done_callback(self, callback: Callable[[Promise[T]], object], /) -> None:
        """Call this on the loop's thread at the end, if it has not ended; it takes one."""
        assert self._callback is None
        self._callback = callback

    def wait(self, limit_s: float = FOR_EVER) -> bool:
        """Return whether it has ended, within the limit."""
        if not self._pending.acquire(timeout=limit_s):
            return False
        self._pending.release()
        return True

    def result(self) -> T:
        """Wait for the result and return it, or raise the error."""
        self.wait()
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # The error's traceback must not hold it.
        return cast("T", self._value)

    def _end(self, value: T | None, error: BaseException | None) -> None:
        assert not self._is_done
        self._value, self._error, self._is_done = value, error, True
        self._pending.release()
        if self._callback is not None:
            self._callback(self)
