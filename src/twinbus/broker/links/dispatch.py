"""Who gets the next message: a queue's consumers in turn, and receivers that wait for a session.

The engine says which queues have something to give; at the end of each loop tick `run` hands it to
the links that have credit, a few messages to each in turn, so that no consumer starves another.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from twinbus.broker.engine.queue import Queue

if TYPE_CHECKING:
    from twinbus.broker.links.receiving import ReceivingLink

log = logging.getLogger("twinbus.broker")

TURN = 32
"""Messages one consumer gets before the next has its turn."""


class Dispatcher:
    """The consumers of a namespace's queues."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._consumers: dict[Queue, deque[ReceivingLink]] = {}
        self._waiting: dict[Queue, deque[ReceivingLink]] = {}
        self._ready: dict[Queue, None] = {}

    def ready(self, queue: Queue) -> None:
        """Note that a queue may have something to give."""
        if queue not in self._ready:
            self._ready[queue] = None
            self._wake()

    def add(self, link: ReceivingLink) -> None:
        """Let a link take part in its queue's deliveries."""
        self._consumers.setdefault(link.queue, deque()).append(link)

    def wait_for_session(self, link: ReceivingLink) -> None:
        """Let a link wait for the next session of its queue that is free."""
        self._waiting.setdefault(link.queue, deque()).append(link)

    def remove(self, link: ReceivingLink) -> None:
        """Forget a link, wherever it stands."""
        for table in (self._consumers, self._waiting):
            links = table.get(link.queue)
            if links is not None and link in links:
                links.remove(link)
                if not links:
                    del table[link.queue]

    def run(self, now_ms: int) -> None:
        """Deliver from every queue that has something to give, as far as credit goes."""
        while self._ready:
            queue, _ = self._ready.popitem()
            try:
                self._grant_sessions(queue, now_ms)
                self._deliver(queue, now_ms)
            except Exception:
                # The other queues have their turn; what was locked here comes back by itself.
                log.exception("%s: its messages could not be delivered", queue.path)

    def _grant_sessions(self, queue: Queue, now_ms: int) -> None:
        waiting = self._waiting.get(queue)
        while waiting:
            link = waiting[0]
            if not link.take_next_session(now_ms):
                return
            waiting.popleft()
        self._waiting.pop(queue, None)

    def _deliver(self, queue: Queue, now_ms: int) -> None:
        consumers = self._consumers.get(queue)
        idle = 0
        while consumers and idle < len(consumers):
            link = consumers[0]
            consumers.rotate(-1)
            # A full turn may mean that there is more; less, that there is not, or no credit.
            idle = 0 if link.deliver(TURN, now_ms) == TURN else idle + 1
