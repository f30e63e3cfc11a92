"""The pair of a process: all kombu connections of one process and one broker URL share it.

A worker forks, and neither threads nor connections survive a fork. So a pair starts with the first
send of a process, and a forked process begins with none.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus import ServiceBusMessage

from twinbus.blocking.loop_thread import LoopThread
from twinbus.blocking.pair import Pair, pair_namespaces
from twinbus.errors import error_text
from twinbus.kombu.receiving import TaskReceivers
from twinbus.namespace.administration_client import administration_client
from twinbus.namespace.namespace import Namespace, both_sides

if TYPE_CHECKING:
    from azure.servicebus.aio.management import ServiceBusAdministrationClient

    from twinbus.blocking.sender import PairedSender
    from twinbus.kombu.broker_settings import BrokerSettings

T = TypeVar("T")

log = logging.getLogger("twinbus.kombu")

PAUSE_FACTOR: Final = 6.0
PAUSE_MIN_S: Final = 1.0
"""After a try to create a queue that the administration did not answer, the pause before the next
is this many times as long as the try. So an outage costs senders at most a seventh of their time.
"""

LOCK: Final = "PT5M"
"""The longest lock that the service grants. A prefetched task waits that long without a renewal."""

FORBIDDEN: Final = (401, 403)


class ProcessPair:
    """Sends by a pair, and creates queues as far as the primary answers."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._pair: Pair | None = None
        self._senders: dict[str, PairedSender] = {}
        self._loop_thread = LoopThread("twinbus-kombu")
        self._known: set[str] = set()
        """Queues that exist, or that only an administrator may create."""
        self._ask_at = 0.0

    def send(self, queue: str, body: str, timeout_s: float | None = None) -> None:
        """Return when a task is stored, on the primary or in the backlog."""
        message = ServiceBusMessage(body)
        self._sender(queue).send_messages(
            message, timeout=timeout_s or self.settings.send_timeout_s
        )

    def receivers(self) -> TaskReceivers:
        """Return receivers from queues of the primary, for one kombu connection."""
        attempt_s = self.settings.options.attempt_timeout_s
        return TaskReceivers(self.settings.primary, self._loop_thread, attempt_s)

    def ensure_queue(self, queue: str) -> None:
        """Create a queue in the primary if it is missing; in an outage leave that for later."""
        began = time.monotonic()
        if queue in self._known or not self.settings.create_queues or began < self._ask_at:
            return
        try:
            with suppress(ResourceExistsError):
                self.administer(lambda admin: admin.create_queue(queue, lock_duration=LOCK))
        except (AzureError, OSError) as error:
            status = getattr(error, "status_code", None)
            if not isinstance(error, ClientAuthenticationError) and status not in FORBIDDEN:
                now = time.monotonic()
                self._ask_at = now + max(PAUSE_MIN_S, PAUSE_FACTOR * (now - began))
                log.info("%s: it cannot be created now (%s)", queue, error_text(error))
                return
            log.info("%s: no right to create it (%s)", queue, error_text(error))
        self._known.add(queue)

    def forget_queue(self, queue: str) -> None:
        """Create the queue again when it is declared the next time."""
        self._known.discard(queue)

    def queue_size(self, queue: str) -> int | None:
        """Return how many messages a queue has; None: it does not exist."""
        try:
            found = self.administer(lambda admin: admin.get_queue_runtime_properties(queue))
        except ResourceNotFoundError:
            return None
        return int(found.active_message_count or 0)

    def administer(self, work: Callable[[ServiceBusAdministrationClient], Awaitable[T]]) -> T:
        """Return the result of one call to the primary's administration, within an attempt."""

        async def call() -> T:
            async with asyncio.timeout(self.settings.options.attempt_timeout_s):
                async with administration_client(Namespace.of(self.settings.primary)) as admin:
                    return await work(admin)

        return self._loop_thread.run(call)

    def close(self) -> None:
        """Close the pair, waiting for what is in flight."""
        with self._lock:
            pair, self._pair = self._pair, None
            self._senders.clear()
        if pair is not None:
            pair.close()
        self._loop_thread.stop()

    def _sender(self, queue: str) -> PairedSender:
        sender = self._senders.get(queue)
        if sender is not None:
            return sender
        with self._lock:
            if self._pair is None:
                sides = both_sides(self.settings.primary, self.settings.secondary)
                pair = pair_namespaces(*sides, self.settings.options)
                pair.start()
                self._pair = pair
            return self._senders.setdefault(queue, self._pair.get_queue_sender(queue))


class _Pairs:
    """All pairs of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_key: dict[str, ProcessPair] = {}


_pairs = _Pairs()
_of_parents: list[Any] = []
"""What a forked process inherited. Kept, because freeing it could write to connections that belong
to the parent."""


def process_pair(settings: BrokerSettings) -> ProcessPair:
    """Return the pair of this process for these settings."""
    with _pairs.lock:
        return _pairs.by_key.setdefault(settings.key, ProcessPair(settings))


def close_process_pairs() -> None:
    """Close all pairs of this process; Python calls it at its end."""
    with _pairs.lock:
        pairs, _pairs.by_key = _pairs.by_key, {}
    for pair in pairs.values():
        pair.close()


def _begin_anew() -> None:
    """In a forked process: leave the parent's pairs alone; their locks may be held for ever."""
    global _pairs  # noqa: PLW0603
    _of_parents.append(_pairs)
    _pairs = _Pairs()


atexit.register(close_process_pairs)
os.register_at_fork(after_in_child=_begin_anew)
