"""Messages of the gateway's clients that have no answer yet, and the calls that send them.

A hung namespace must not fill the memory: beyond a bound the gateway stops reading from clients
that send more, and the credit of each link is bounded by what it has in flight.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from twinbus.broker.links.context import LinkClient

log = logging.getLogger("twinbus.gateway")

PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Messages without an answer, of all clients. Beyond it the gateway stops reading from clients that
send more; it reads on when half of them have been answered."""

EACH_BYTES: Final = 4 * 1024
"""What a message without an answer takes besides its own bytes, about: 2 KB were measured for one
that the primary has and 6 to 7 KB for one with a call, its task and timer. Without this, small
messages would take many times the bound."""


class PendingSends:
    """The sends of all clients that have no answer yet."""

    def __init__(self, name: str, patience_s: float, bytes_max: int = PENDING_BYTES_MAX) -> None:
        """`patience_s`: how long a client's send may wait for a namespace to accept it."""
        self.loop = asyncio.get_running_loop()
        self.patience_s = patience_s
        self.bytes_max = bytes_max
        self.count = 0
        self.size_bytes = 0
        """About the memory that they take."""
        self.is_closing = False
        """Clients get no more credit."""
        self._name = name
        self._paused: set[LinkClient] = set()
        self._calls: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()

    def add(self, client: LinkClient, size_bytes: int) -> None:
        """Count a message that has no answer yet."""
        self.count += 1
        self.size_bytes += size_bytes + EACH_BYTES
        if self.size_bytes > self.bytes_max and client not in self._paused:
            self._paused.add(client)
            client.pause_reading()

    def release(self, size_bytes: int) -> None:
        """Count a message that was answered."""
        self.count -= 1
        self.size_bytes -= size_bytes + EACH_BYTES
        if self._paused and self.size_bytes <= self.bytes_max // 2 and not self.is_closing:
            paused, self._paused = self._paused, set()
            for client in paused:
                client.resume_reading()
        if self.is_closing and not self.count:
            self._empty.set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the work of a client's link to its end, whatever becomes of the client."""
        task = self.loop.create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._ended)

    async def drain(self, limit_s: float) -> None:
        """Return when everything was answered, or the time is over."""
        self.is_closing = True
        if self.count:
            log.info("%s: %d sends are in flight", self._name, self.count)
            await asyncio.wait({self.loop.create_task(self._empty.wait())}, timeout=limit_s)

    async def close(self) -> None:
        """Cancel what is left."""
        self.is_closing = True
        self._empty.set()
        for call in list(self._calls):
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: a send failed in the gateway", self._name, exc_info=error)
