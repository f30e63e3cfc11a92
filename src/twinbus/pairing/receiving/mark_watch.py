"""Whether a receiver may read a twin: its mark is read before a link is opened, and again later.

A person can take the mark away at any time, or delete the twin and make another queue of that name.
Then it may have traffic of its own, and must not be drained (docs/twins.md).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final

from twinbus.errors import error_text
from twinbus.servicebus.failures import FailureMeaning, NamespaceFailure

log = logging.getLogger("twinbus.receiving")

READ_MARK_S: Final = 300.0
"""Time between two readings of a mark, and pause after a namesake without one: each reading is a
billed request."""

READ_AGAIN_S: Final = 30.0
"""Time after a reading that was not answered, while a link is open."""

ReadMark = Callable[[float], Awaitable[float]]
"""Returns when the mark was last seen, which is after the given time of the event loop; raises
NotReadable, or another NamespaceFailure if the namespace does not answer."""


class NotReadable(NamespaceFailure):
    """An entity of the secondary is not a twin, and is not read."""

    def __init__(self, text: str) -> None:
        super().__init__(text, FailureMeaning.NOT_FOUND, may_be_stored=False)


class MarkWatch:
    """The mark of one twin, for one side of a receiver."""

    def __init__(self, read: ReadMark | None, loop: asyncio.AbstractEventLoop) -> None:
        """`read` None: the entity needs no mark."""
        self._read = read
        self._loop = loop
        self._due_at = -math.inf
        self._ended_at = -math.inf

    def link_ended(self) -> None:
        """A link ended: the entity may have been deleted, and made again without the mark."""
        self._ended_at = self._due_at = self._loop.time()

    async def require(self) -> None:
        """Return if a link may be opened; raise NotReadable, or why that is not known."""
        now = self._loop.time()
        if self._read is not None and now >= self._due_at:
            seen_at = await self._read(max(self._ended_at, now - READ_MARK_S))
            self._due_at = seen_at + READ_MARK_S

    async def still_holds(self) -> NotReadable | None:
        """Return why an open link must be closed; None: it may stay.

        A namespace that does not answer changes nothing.
        """
        try:
            await self.require()
        except NotReadable as error:
            return error
        except (NamespaceFailure, TimeoutError) as error:
            log.info("the mark of a twin was not read: %s", error_text(error))
            self._due_at = self._loop.time() + READ_AGAIN_S
        return None
