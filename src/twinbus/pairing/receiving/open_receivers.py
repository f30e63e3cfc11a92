"""The receivers that a processor has open, and its calls that wait for messages or a session.

A stop ends the calls that wait, and leaves the receivers open for settlements.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from twinbus.pairing.receiving.handling import Receiver, line_of
from twinbus.pairing.sdk.sdk_cleanup import SdkCleanup, cancel_until_done

log = logging.getLogger("twinbus.processor")

T = TypeVar("T")

LAST_RECEIVE_S: Final = 0.5
"""How long a stop waits for a receive in flight before it cancels it. A message that is on its way
when it is cancelled may stay locked, so a receive that brings messages may end by itself."""

CLOSE_S: Final = 10.0
"""How long closing one receiver may take. The SDK takes about a second."""


class StopRequested(Exception):
    """The processor stops, so a call that waits for messages was not made or was cancelled."""


class OpenReceivers:
    """Opens and closes the receivers of one processor."""

    def __init__(self, name: str, get_receiver: Callable[..., Any]) -> None:
        self._name = name
        self._get_receiver = get_receiver
        self._open: dict[Receiver, SdkCleanup] = {}
        self._calls: set[asyncio.Task[Any]] = set()
        self._stopped = False

    async def open(self, options: dict[str, Any], limit_s: float) -> Receiver:
        """Return a new receiver whose link is open."""
        receiver: Receiver = self._get_receiver(**options)
        self._open[receiver] = SdkCleanup(receiver)
        try:
            await self.call(receiver.__aenter__(), limit_s)
        except BaseException:
            await self.close(receiver)
            raise
        return receiver

    async def call(self, work: Coroutine[Any, Any, T], limit_s: float) -> T:
        """Await a call that waits for the service: StopRequested ends it, or TimeoutError."""
        if self._stopped:
            work.close()
            raise StopRequested
        call = asyncio.create_task(work, name=f"wait for messages of {self._name}")
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        try:
            await asyncio.wait({call}, timeout=limit_s)
        finally:
            if not call.done():
                await cancel_until_done(call)
        if call.done() and not call.cancelled():
            return call.result()
        if self._stopped:
            raise StopRequested
        raise TimeoutError(f"no answer within {limit_s:g} s")

    async def stop_calls(self) -> None:
        """Let no call begin, and end those that wait."""
        self._stopped = True
        if self._calls:
            await asyncio.wait(self._calls, timeout=LAST_RECEIVE_S)
        await asyncio.gather(*(cancel_until_done(call) for call in tuple(self._calls)))

    async def close(self, receiver: Receiver) -> None:
        """Close a receiver, and what one of the SDK leaves behind when its connection was lost."""
        cleanup = self._open.pop(receiver)
        await cleanup.stop_keep_alive()
        try:
            async with asyncio.timeout(CLOSE_S):
                await receiver.close()
        except Exception as error:  # noqa: BLE001  # the service notices that it is gone
            log.debug("%s: closing a receiver: %s", self._name, line_of(error))
        await cleanup.stop_keep_alive()
        cleanup.abort_sockets()

    async def close_all(self) -> None:
        await asyncio.gather(*(self.close(receiver) for receiver in tuple(self._open)))
