"""Delivers a queue's messages to its consumers in turn, and free sessions to those that wait.

The engine reports queues that have ready messages. At the end of each loop tick `run` gives them to
the links that have credit, a few messages to each in turn, so that no consumer starves another.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from twinbus.broker.engine.queue import Queue

log = logging.getLogger("twinbus.broker")

TURN = 32
"""Messages one consumer gets before the next has its turn."""


class Consumer(Protocol):
    """A receiver of one queue, as the dispatcher uses it."""

    queue: Queue

    def take_next_session(self, now_ms: int) -> bool:
        """Try to lock the next free session; true when the consumer no longer waits for one."""

    def deliver(self, limit: int, now_ms: int) -> int:
        """Send up to `limit` messages; returns how many."""


class Dispatcher:
    """Delivers messages to the consumers of a namespace's queues."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        # Ordered, with a cheap removal: a client that leaves may have had thousands of links.
        self._consumers: dict[Queue, OrderedDict[Consumer, None]] = {}
        self._waiting: dict[Queue, OrderedDict[Consumer, None]] = {}
        self._ready: dict[Queue, None] = {}

    def ready(self, queue: Queue) -> None:
        if queue not in self._ready:
            self._ready[queue] = None
            self._wake()

    def add(self, link: Consumer) -> None:
        self._consumers.setdefault(link.queue, OrderedDict())[link] = None

    def wait_for_session(self, link: Consumer) -> None:
        self._waiting.setdefault(link.queue, OrderedDict())[link] = None

    def receiver_count(self, queue: Queue) -> int:
        """Open receivers of a queue, and those that wait for a session."""
        return len(self._consumers.get(queue, ())) + len(self._waiting.get(queue, ()))

    def remove(self, link: Consumer) -> None:
        for table in (self._consumers, self._waiting):
            links = table.get(link.queue)
            if links is not None and link in links:
                del links[link]
                if not links:
                    del table[link.queue]

    def run(self, now_ms: int) -> None:
        """Deliver from every ready queue, within the credit of its consumers."""
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
            link = next(iter(waiting))
            if not link.take_next_session(now_ms):
                return
            waiting.pop(link, None)
        self._waiting.pop(queue, None)

    def _deliver(self, queue: Queue, now_ms: int) -> None:
        consumers = self._consumers.get(queue)
        idle = 0
        while consumers and idle < len(consumers):
            link = next(iter(consumers))
            consumers.move_to_end(link)
            # A full turn may mean that there is more; less means no message or no credit left.
            idle = 0 if link.deliver(TURN, now_ms) == TURN else idle + 1
