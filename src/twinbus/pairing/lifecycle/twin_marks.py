"""Reads the marks of twins in the secondary, for as long as the pair lives (docs/options.md).

`pairing.core.twins` says which marks are to be read, and when. Nothing is read unless the option
`twins` lists an entity that has, or had lately, a sender.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from twinbus.client.twins import marked_paths
from twinbus.errors import error_text
from twinbus.ledger.requests import BilledRequests
from twinbus.namespace.access import endpoint_of

if TYPE_CHECKING:
    from twinbus.pairing.sending.shared_state import SharedState

log = logging.getLogger("twinbus.pairing")

SINGLE_MAX: Final = 10
"""Marks that are read one by one; for more the namespace is listed, a hundred with a request."""

READS_AT_ONCE: Final = 4

Marks = Mapping[str, bool | None]
"""For each path whether it is marked; None: the credential may not read that."""


class TwinMarks:
    """Reads marks when they are due, from `start` to `close`."""

    def __init__(
        self,
        state: SharedState,
        read: Callable[[Sequence[str]], Awaitable[Marks]] | None = None,
    ) -> None:
        """`read` returns the marks of these paths, or raises if the secondary does not answer."""
        self._state = state
        self._read = read or self._read_marks
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failure = ""

    def start(self) -> None:
        if self._state.options.twins is not None:
            self._state.on_twins = self._woken.set
            self._task = asyncio.create_task(self._run(), name="read the marks of twins")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _run(self) -> None:
        state = self._state
        while True:
            self._woken.clear()
            due = state.twins.due(state.now)
            if due:
                await self._read_due(due)
                continue
            at = state.twins.next_at
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(None if at == math.inf else at):
                    await self._woken.wait()

    async def _read_due(self, paths: Sequence[str]) -> None:
        state = self._state
        try:
            marks = await self._read(paths)
        except Exception as error:  # noqa: BLE001  # it is logged, and read again
            reason = error_text(error)
            if not self._failure:
                log.warning("%s: marks of twins could not be read: %s", state.primary.label, reason)
            self._failure = reason
            for path in paths:
                state.twins.not_read(path, reason, state.now, state.jitter())
            return
        self._failure = ""
        for path in paths:
            state.twin_was_read(path, marks[path])

    async def _read_marks(self, paths: Sequence[str]) -> Marks:
        state, label = self._state, self._state.primary.label
        endpoint = endpoint_of(state.secondary)
        requests = BilledRequests(endpoint.label, side="secondary", ledger=state.recorder.ledger)
        if len(paths) > SINGLE_MAX:
            listed = await marked_paths(endpoint, label, requests)
            if listed is not None:
                return {path: path.lower() in listed for path in paths}
        # A credential that may not list the namespace may still read single entities.
        gate = asyncio.Semaphore(READS_AT_ONCE)

        async def one(path: str) -> bool | None:
            async with gate:
                return await state.environment.is_marked(endpoint, path, label, requests)

        return dict(zip(paths, await asyncio.gather(*map(one, paths)), strict=True))
