"""Says when the syphon of a pair looks for twins that hold messages.

At the times at which it lists backlog queues (`pairing.core.secondary`), and when an entity is
healthy again: from then on what is left in its twin can come home.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from twinbus.errors import error_text
from twinbus.pairing.core.secondary import LIST_BUSY_S, ListingTimes
from twinbus.pairing.observing.events import EntityChanged, PairEvent
from twinbus.status.document import EntityState

if TYPE_CHECKING:
    from twinbus.pairing.sending.shared_state import SharedState

log = logging.getLogger("twinbus.pairing")


class TwinListing:
    """Calls `search` again and again, from `start` to `close`."""

    def __init__(
        self,
        state: SharedState,
        search: Callable[[], Awaitable[None]],
        changed: Callable[[str, bool], None],
    ) -> None:
        """`changed` gets the path of each entity that changes, and whether it is healthy now."""
        self._state = state
        self._search = search
        self._changed = changed
        self._times = ListingTimes()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._end_listening: Callable[[], None] = lambda: None
        self._failure = ""

    def start(self) -> None:
        """Begin to listen and to list; an entity may have failed over before."""
        self._end_listening = self._state.listeners.on_event(self._on_event)
        for entity in self._state.monitors.all():
            if entity.failover.state is not EntityState.HEALTHY:
                self._changed(entity.path, False)
        self._task = asyncio.create_task(self._run(), name="search for twins")

    async def close(self) -> None:
        self._end_listening()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    def _on_event(self, event: PairEvent) -> None:
        if isinstance(event, EntityChanged):
            is_healthy = event.after is EntityState.HEALTHY
            self._changed(event.path, is_healthy)
            if is_healthy:
                self._woken.set()

    async def _run(self) -> None:
        while True:
            if self._is_due():
                self._times.searched(self._state.now)
                await self._search_once()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LIST_BUSY_S):
                    await self._woken.wait()

    def _is_due(self) -> bool:
        now, was_woken = self._state.now, self._woken.is_set()
        self._woken.clear()
        entities = self._state.monitors.all()
        is_down = any(entity.failover.state is not EntityState.HEALTHY for entity in entities)
        self._times.observe(is_down=is_down, moved=0, now=now)
        return was_woken or now >= self._times.due_at(now)

    async def _search_once(self) -> None:
        try:
            await self._search()
        except Exception as error:  # noqa: BLE001  # it is logged, and the search must go on
            reason = error_text(error)
            if reason != self._failure:
                label = self._state.primary.label
                log.warning("%s: the search for twins failed (%s)", label, reason)
            self._failure = reason
        else:
            self._failure = ""
