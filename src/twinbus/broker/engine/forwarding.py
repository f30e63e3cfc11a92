"""Auto-forwarding: a queue's ready messages move on to another entity as soon as it takes them.

A message leaves the source only when the destination has it; both are one change in the journal. A
destination that is missing, disabled or full leaves the messages where they are, in order, to be
tried again; one that will never take a message sends it to the source's dead-letter queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from twinbus.broker.engine.settlement import (
    CANNOT_FORWARD,
    NO_SESSION_ID,
    REASON,
    SWEEP_FACTOR,
    SWEEP_FLOOR,
    TOO_MANY_HOPS,
)
from twinbus.broker.journal import DamagedMessage, StoredMessage
from twinbus.broker.refusals import EntityDisabled, EntityNotFound, QuotaExceeded, Refusal
from twinbus.errors import StoreError

HOPS_MAX = 4
"""Queues a message may pass through by forwarding, as in Azure: longer chains are cycles."""

RETRY_MS = 1_000
"""Time between two tries of a destination that takes nothing; one cheap lookup each."""

AT_ONCE = 16
"""Messages moved within the send that brought one: it, and what a cycle makes of it."""

PASSING = (EntityNotFound, EntityDisabled, QuotaExceeded)
"""Refusals that an administrator or a receiver at the destination can end."""


class ForwardSource(Protocol):
    """The messages of the queue that forwards, as forwarding uses them."""

    path: str
    entity_id: int

    def is_ready(self, message: StoredMessage) -> bool: ...
    def forget_moved(self, message: StoredMessage) -> None: ...
    def give_up(
        self, message: StoredMessage, reason: str, text: str, now_ms: int, hops: int
    ) -> bool: ...
    def report(self, doing: str, error: Exception) -> None: ...


class ForwardTarget(Protocol):
    """An entity that can take over another's message."""

    @property
    def requires_session(self) -> bool:
        """Whether it takes only messages with a session id."""

    def take_over(self, source_id: int, message: StoredMessage, now_ms: int, hops: int) -> None:
        """Move the message here; if this raises, the message is still with its source.

        After a `Refusal` nothing has changed.
        """


Resolve = Callable[[str], ForwardTarget]
"""Finds an entity by its path; raises `EntityNotFound`."""


class Forwarding:
    __slots__ = (
        "_outbox",
        "_queue",
        "_resolve",
        "_running",
        "_sweep_at",
        "_target",
        "retry_at_ms",
    )

    def __init__(self, queue: ForwardSource, resolve: Resolve, target: str) -> None:
        self._queue = queue
        self._resolve = resolve
        self._target = target
        self._outbox: deque[tuple[StoredMessage, int]] = deque()
        """Messages to move, in order, each with the hops it has made."""
        self._sweep_at = SWEEP_FLOOR
        self._running = False
        self.retry_at_ms = 0
        """When to try again; 0: nothing waits."""

    @property
    def waiting(self) -> int:
        """How many messages wait, some that have left the queue included."""
        return len(self._outbox)

    def offer(self, message: StoredMessage, now_ms: int, hops: int) -> None:
        """Move a message that has become ready; behind those that still wait."""
        if len(self._outbox) > self._sweep_at and not self._running:
            self._sweep()
        self._outbox.append((message, hops))
        # A chain that leads back here adds to the work of the call that is under way.
        if not self._running and not self.retry_at_ms:
            self.run(now_ms, AT_ONCE)

    def refill(self, messages: Iterable[StoredMessage], now_ms: int) -> None:
        """Have all these moved, beginning at `now_ms`: after a restart or a change of settings."""
        self._outbox.extend((message, 0) for message in messages)
        self.retry_at_ms = now_ms if self._outbox else 0

    def run(self, now_ms: int, limit: int) -> int:
        """Move up to `limit` waiting messages; returns how many were dealt with."""
        assert not self._running, f"forwarding of {self._queue.path} ran into itself"
        outbox, count = self._outbox, 0
        self._running = True
        # Stays so if a message must wait, or if this raises.
        self.retry_at_ms = now_ms + RETRY_MS
        try:
            while outbox and count < limit:
                message, hops = outbox[0]
                count += 1
                if self._queue.is_ready(message) and not self._move(message, now_ms, hops):
                    break
                outbox.popleft()
            else:
                self.retry_at_ms = now_ms if outbox else 0
        finally:
            self._running = False
        return count

    def _sweep(self) -> None:
        """Forget messages that expired or were received behind one that waits."""
        self._outbox = deque(each for each in self._outbox if self._queue.is_ready(each[0]))
        self._sweep_at = max(SWEEP_FLOOR, SWEEP_FACTOR * len(self._outbox))

    def _move(self, message: StoredMessage, now_ms: int, hops: int) -> bool:
        """Move or dead-letter one message; false if it must wait."""
        if hops >= HOPS_MAX:
            text = f"The message was forwarded {HOPS_MAX} times, the most there may be."
            return self._queue.give_up(message, TOO_MANY_HOPS, text, now_ms, hops)
        if (message.overrides or {}).get(REASON) == TOO_MANY_HOPS:
            return True  # It ended a chain here. Sending it round again would never end.
        try:
            destination = self._resolve(self._target)
        except Refusal:
            return False
        try:
            destination.take_over(self._queue.entity_id, message, now_ms, hops + 1)
        except PASSING:
            return False
        except Refusal as refusal:
            no_session = destination.requires_session and message.session_id is None
            reason = NO_SESSION_ID if no_session else CANNOT_FORWARD
            return self._queue.give_up(message, reason, refusal.description, now_ms, hops)
        except DamagedMessage:
            # A topic's rules cannot judge it. It is set aside: its record stays on the disk.
            self._queue.forget_moved(message)
            return True
        except StoreError as error:
            self._queue.report(f"read a message to forward to {self._target!r}", error)
            return False
        except Exception as error:  # noqa: BLE001 - the messages behind it must move on
            self._queue.report(f"forward a message to {self._target!r}", error)
            text = f"Forwarding to {self._target!r} failed unexpectedly: {error}"
            return self._queue.give_up(message, CANNOT_FORWARD, text, now_ms, hops)
        self._queue.forget_moved(message)
        return True
