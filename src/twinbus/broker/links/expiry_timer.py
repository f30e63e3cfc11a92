"""When the first token of a connection ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from twinbus.broker.links.context import PeerContext


class ExpiryTimer:
    """Calls back at the earliest of the times that it watches, and then watches none."""

    def __init__(self, context: PeerContext, on_expiry: Callable[[], None]) -> None:
        self._context = context
        self._on_expiry = on_expiry
        self._timer: asyncio.TimerHandle | None = None
        self._at_ms = 0

    def watch(self, until_ms: int) -> None:
        """Call back at that time, or sooner."""
        if self._timer is not None:
            if self._at_ms <= until_ms:
                return
            self._timer.cancel()
        self._at_ms = until_ms
        wait_s = max(0.0, (until_ms - self._context.now_ms()) / 1000)
        self._timer = self._context.loop.call_later(wait_s, self._end)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        self._timer = None
        self._on_expiry()
