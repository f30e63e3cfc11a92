"""Threads for blocking requests: so many at once, and the end of the process waits for none."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class RequestThreads:
    """Runs blocking work on daemon threads of its own.

    Python waits at its end for the threads of an ordinary pool: a primary that hangs would delay
    the exit of the gateway by the time limit of a request.
    """

    def __init__(self, at_once: int, name: str) -> None:
        self._name = name
        self._free = asyncio.Semaphore(at_once)

    async def run(self, work: Callable[..., T], *given: Any) -> T:
        """What the work returns or raises; it waits while too many others are under way."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[T] = loop.create_future()

        def tell(result: T | None, error: BaseException | None) -> None:
            # Not before the thread is free, even if the client has gone long ago.
            self._free.release()
            if ended.cancelled():
                return
            if error is not None:
                ended.set_exception(error)
            else:
                ended.set_result(result)  # type: ignore[arg-type]

        def perform() -> None:
            result, failure = None, None
            try:
                result = work(*given)
            except BaseException as error:  # noqa: BLE001  # it belongs to the one who waits
                failure = error
            with contextlib.suppress(RuntimeError):  # The loop has ended meanwhile.
                loop.call_soon_threadsafe(tell, result, failure)

        threading.Thread(target=perform, name=self._name, daemon=True).start()
        return await ended
