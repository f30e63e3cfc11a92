"""Turns of receivers: who gets the next messages of a queue.

A message is offered to receivers that can take one, not to all that are open: a client may have
30,000 receivers without credit, or as many that wait on sessions without messages, and a message
of another client must not cost a step for each of them.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from typing import Any, Protocol, TypeVar

from twinbus.broker.engine.queue import Queue

log = logging.getLogger("twinbus.broker")

K = TypeVar("K")

TURN = 32
"""Messages one consumer gets before the next has its turn."""


class Consumer(Protocol):
    """A receiver of one queue, as the dispatcher uses it."""

    queue: Queue
    session_id: str | None
    """The session that it receives from, once it has one."""

    @property
    def can_take(self) -> bool:
        """Whether it has credit and room; it asks again when that comes back."""

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
        self._able: dict[Queue, OrderedDict[Consumer, None]] = {}
        """Consumers that could take a message when they were last served; next turn first."""
        self._asking: dict[Queue, dict[Consumer, None]] = {}
        """Consumers that are served once though no message came: they gave credit, or drain."""
        self._of_session: dict[tuple[Queue, str], dict[Consumer, None]] = {}
        self._ready: dict[Queue, None] = {}

    def ready(self, queue: Queue) -> None:
        """Serve the receivers of a queue in this tick: it has messages, or its state changed."""
        # Without a receiver there is nothing to do in a tick, and it would end with a commit.
        is_heard = queue in self._consumers or queue in self._waiting or queue.requires_session
        if is_heard and queue not in self._ready:
            self._ready[queue] = None
            self._wake()

    def ask(self, link: Consumer) -> None:
        """Serve this consumer in this tick: it takes messages, or waits to be told of none."""
        if link in self._consumers.get(link.queue, ()):
            self._asking.setdefault(link.queue, {})[link] = None
            self.ready(link.queue)

    def add(self, link: Consumer) -> None:
        self._consumers.setdefault(link.queue, OrderedDict())[link] = None
        if link.session_id is not None:
            self._of_session.setdefault((link.queue, link.session_id), {})[link] = None
        self.ask(link)

    def wait_for_session(self, link: Consumer) -> None:
        self._waiting.setdefault(link.queue, OrderedDict())[link] = None

    def receiver_count(self, queue: Queue) -> int:
        """Open receivers of a queue, and those that wait for a session."""
        return len(self._consumers.get(queue, ())) + len(self._waiting.get(queue, ()))

    def remove(self, link: Consumer) -> None:
        queue = link.queue
        _take_out(self._consumers, queue, link)
        _take_out(self._waiting, queue, link)
        _take_out(self._able, queue, link)
        _take_out(self._asking, queue, link)
        if link.session_id is not None:
            _take_out(self._of_session, (queue, link.session_id), link)

    def run(self, now_ms: int) -> None:
        """Deliver from every ready queue, within the credit of its consumers."""
        while self._ready:
            queue, _ = self._ready.popitem()
            try:
                self._grant_sessions(queue, now_ms)
                if queue.requires_session:
                    self._deliver_sessions(queue, now_ms)
                else:
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
        asking = self._asking.pop(queue, {})
        for link in asking:
            self._note_able(link)
        able, idle = self._able.get(queue, OrderedDict()), 0
        while idle < len(able) and queue.concerns_receivers:
            link = next(iter(able))
            able.move_to_end(link)
            asking.pop(link, None)
            sent = link.deliver(TURN, now_ms)
            if not link.can_take:
                _take_out(self._able, queue, link)
            # A full turn may mean that there is more; less of one that can take means no message.
            if sent == TURN:
                idle = 0
            elif link in able:
                idle += 1
        for link in asking:
            link.deliver(TURN, now_ms)

    def _deliver_sessions(self, queue: Queue, now_ms: int) -> None:
        """Serve the consumers whose sessions got messages, and those that ask."""
        turns = self._asking.pop(queue, {})
        if queue.refuses_receivers:
            turns.update(self._consumers.get(queue, {}))
        for session_id in queue.sessions.take_fed():
            turns.update(self._of_session.get((queue, session_id), {}))
        while turns:
            link = next(iter(turns))
            del turns[link]
            if link.deliver(TURN, now_ms) == TURN:
                turns[link] = None
            elif link.can_take and queue.sessions.has_ready(link.session_id):
                # A fault or a limit of the namespace is in the way: it is served with the next.
                self._asking.setdefault(queue, {})[link] = None

    def _note_able(self, link: Consumer) -> None:
        if link.can_take:
            self._able.setdefault(link.queue, OrderedDict())[link] = None


def _take_out(table: MutableMapping[K, Any], key: K, link: Consumer) -> None:
    found = table.get(key)
    if found is not None and link in found:
        del found[link]
        if not found:
            del table[key]
