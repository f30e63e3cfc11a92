"""What a relay asks of its backlog queue and has to wait for; each answer goes to the pump.

An errand whose connection is lost ends without a word: the pump hears of the loss from the relay,
and asks again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from twinbus.syphon.connection.namespace_connection import NamespaceConnection
from twinbus.syphon.connection.request_node import ConnectionLost, RequestRefused
from twinbus.syphon.core.actions import Action
from twinbus.syphon.core.backlog_message import BacklogMessage
from twinbus.syphon.core.pump import Pump
from twinbus.syphon.relay.bookkeeping import Bookkeeper
from twinbus.syphon.relay.queue_requests import QueueRequests

__all__ = ["QueueAnswers"]

log = logging.getLogger("twinbus.syphon")

LOCK_LOST: Final = "com.microsoft:message-lock-lost"
DEAD_LETTER_ARGUMENTS: Final = ("deadletter-reason", "deadletter-description")


class QueueAnswers:
    """The errands of one relay; `line` is where they go, None while there is no connection."""

    def __init__(
        self,
        pump: Pump,
        books: Bookkeeper,
        perform: Callable[[list[Action]], None],
        unpack: Callable[[bytes, bytes, int], BacklogMessage],
        queue: str,
    ) -> None:
        self.line: NamespaceConnection | None = None
        self._pump = pump
        self._books = books
        self._do = perform
        self._unpack = unpack
        self._queue = queue

    async def settle(self, parcels: list[BacklogMessage], status: str, words: list[str]) -> None:
        """Settle by lock token: for messages that did not come over the present link.

        `words` are the reason and the description of a dead letter.
        """
        if self.line is None:
            return
        self._books.managed()
        requests = QueueRequests(self.line, self._queue)
        arguments = dict(zip(DEAD_LETTER_ARGUMENTS, words, strict=False))
        told = await requests.settle(parcels, status, arguments)
        self._books.settled(told.done)
        self._books.settled(told.lost, LOCK_LOST)
        if told.refusal is not None:
            self._books.settled(told.rest, _said(told.refusal))
            log.warning("%s: %d not %s: %s", self._queue, len(told.rest), status, told.refusal)
        now = time.monotonic()
        self._do(self._pump.settled(told.done, now))
        # Nobody asks again for the rest: they are delivered anew when their locks end.
        self._do(self._pump.settle_failed(told.lost + told.rest, now))

    async def renew(self, parcels: list[BacklogMessage]) -> None:
        """Renew locks before they end."""
        if self.line is None:
            return
        told = await QueueRequests(self.line, self._queue).renew(parcels)
        self._books.renewed(None if told.refusal is None else _said(told.refusal))
        if told.refusal is not None:
            # Their locks run on, and the pump asks again before they end.
            log.warning("%s: %d not renewed: %s", self._queue, len(told.rest), told.refusal)
        now = time.monotonic()
        self._do(self._pump.renewed(told.done, now))
        self._do(self._pump.lock_lost(told.lost, now))

    async def fetch(self, numbers: list[int]) -> None:
        """Receive deferred messages by number."""
        if self.line is None:
            return
        try:
            fetched, refused = await QueueRequests(self.line, self._queue).fetch(numbers)
        except ConnectionLost as error:
            log.warning("%s: deferred messages %s: %s", self._queue, numbers[:5], error)
            self._do(self._pump.fetched(numbers, time.monotonic(), failed=True))
            return
        if refused:
            log.warning("%s: deferred messages %s cannot be had now", self._queue, refused[:5])
        now_ms = time.time_ns() // 1_000_000
        for message, lock_token in fetched:
            parcel = self._unpack(message, lock_token, now_ms)
            parcel.is_deferred = True
            self._books.received([parcel], now_ms)
            self._do(self._pump.received(parcel, time.monotonic()))
        self._do(self._pump.fetched(numbers, time.monotonic(), failed=bool(refused)))

    async def survey(self, start: int) -> None:
        """Peek one page, for strict session order."""
        await self._peek(start, self._pump.peeked_for_order)

    async def look_ahead(self, start: int) -> None:
        """Peek one page behind what waits for held destinations."""
        await self._peek(start, self._pump.looked_ahead)

    async def _peek(self, start: int, tell: Callable[..., list[Action]]) -> None:
        if self.line is None:
            return
        self._books.managed()
        page, failed = [], False
        try:
            requests = QueueRequests(self.line, self._queue)
            page = await requests.peek(start, time.time_ns() // 1_000_000)
        except (ConnectionLost, RequestRefused) as error:
            log.warning("%s: peeking from %d on: %s", self._queue, start, error)
            failed = True
        self._do(tell(page, time.monotonic(), failed=failed))

    async def look(self, *, to_the_end: bool = True) -> None:
        """Peek for deferred messages."""
        if self.line is None:
            return
        self._books.managed()
        try:
            requests = QueueRequests(self.line, self._queue)
            found, is_all = await requests.find_deferred(
                time.time_ns() // 1_000_000, to_the_end=to_the_end
            )
        except RequestRefused as error:
            log.warning("%s: looking for deferred messages: %s", self._queue, error)
            return
        self._do(self._pump.found_deferred(found, time.monotonic(), is_all=is_all))


def _said(refusal: RequestRefused) -> str:
    """A refusal as the ledger has it."""
    return refusal.condition or f"status {refusal.status}"
