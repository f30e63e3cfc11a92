"""What a pump has taken in and not yet settled: how much that is, and how much more it may be.

link      up to 3/4 of the messages, by the credit that the backlog queue was given
fetched   up to 1/4, deferred messages that are received by number
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from twinbus.syphon.core.backlog_message import BacklogMessage

__all__ = ["Intake", "IntakeLimits"]

FETCH_SHARE: Final = 4
"""One in so many of the messages in flight may be ones that were deferred."""

REMEMBERED_MAX: Final = 10_000
"""Messages that the primary has and whose completion is not known. The oldest are forgotten."""

SIZE_AT_FIRST: Final = 16 * 1024
"""Expected of a message as long as none was seen, in bytes."""

RENEW_AFTER: Final = 0.5
"""Of a lock's time; the other half is left for a renewal that takes long, or is tried twice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IntakeLimits:
    """How much a pump may have under way, and how long it waits for an answer."""

    messages: int = 2_000
    """Received and not yet settled: also the most that a crash can duplicate."""
    size_bytes: int = 16 * 1024 * 1024
    """The same in bytes; exceeded only by messages larger than those seen before."""
    answer_s: float = 30.0
    """An accept, an attach or a settlement that takes longer will not come."""

    def __post_init__(self) -> None:
        if self.messages < FETCH_SHARE or self.size_bytes < 1 or self.answer_s <= 0:
            raise ValueError(
                f"limits must be at least {FETCH_SHARE} messages, 1 byte and a positive time; "
                f"got {self.messages}, {self.size_bytes} and {self.answer_s}"
            )


class Intake:
    """The messages of one backlog queue that are under way, and the credit for more."""

    __slots__ = (
        "_fetch_window",
        "_fetched",
        "_largest_bytes",
        "_limit_bytes",
        "_limit_messages",
        "_link_window",
        "_live",
        "_remembered",
        "credit",
        "fetching",
        "on_removed",
        "size_bytes",
    )

    def __init__(self, limits: IntakeLimits) -> None:
        self.credit = 0
        """Messages that the backlog queue may still send."""
        self.fetching = 0
        """Deferred messages that were asked for and have not come."""
        self.size_bytes = 0
        self.on_removed: Callable[[BacklogMessage], None] | None = None
        """Told of each message that is not here any more, whatever became of it."""
        self._live: dict[bytes, BacklogMessage] = {}
        """By lock token; the one whose lock is next to renew comes first."""
        self._limit_bytes = limits.size_bytes
        self._largest_bytes = SIZE_AT_FIRST
        self._limit_messages = limits.messages
        self._fetch_window = limits.messages // FETCH_SHARE
        self._link_window = limits.messages - self._fetch_window
        self._fetched = 0
        self._remembered: dict[tuple[int, int], None] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[BacklogMessage]:
        return iter(self._live.values())

    def __contains__(self, message: BacklogMessage) -> bool:
        return message.lock_token in self._live

    def add(self, message: BacklogMessage, now: float) -> bool:
        """A message came; whether it is so large that the credit must be thought over."""
        assert message.lock_token not in self._live, message
        self._live[message.lock_token] = message
        self.size_bytes += message.size_bytes
        # Sinks slowly, so that one large message does not narrow the window for ever.
        expected = self._largest_bytes
        self._largest_bytes = max(1, message.size_bytes, expected - (expected >> 6))
        if message.is_deferred:
            self._fetched += 1
        elif self.credit:
            self.credit -= 1
        message.received_at = now
        message.renew_at = now + message.lock_s * RENEW_AFTER
        return message.size_bytes > expected

    def forget(self, message: BacklogMessage) -> bool:
        """The message is settled, or no longer ours; false if that was known."""
        if self._live.pop(message.lock_token, None) is None:
            return False
        self.size_bytes -= message.size_bytes
        if message.is_deferred:
            self._fetched -= 1
        if message.accepted and self._remembered:
            self._remembered.pop(message.identity, None)
        if self.on_removed is not None:
            self.on_removed(message)
        return True

    # Credit

    def limit_to(self, messages: int) -> None:
        """Take in no more than so many at once, and never more than the limit."""
        messages = min(messages, self._limit_messages)
        self._fetch_window = max(1, messages // FETCH_SHARE)
        self._link_window = max(1, messages - self._fetch_window)

    def wanted(self) -> int:
        """How many more messages the backlog queue may send."""
        room = self._room_by_bytes()
        return max(0, min(self._link_window - (len(self._live) - self._fetched), room))

    def is_worth_a_frame(self, wanted: int) -> bool:
        """Whether the credit is so far from what is wanted that the queue should be told."""
        most = min(self._link_window, max(1, self._limit_bytes // self._largest_bytes))
        return wanted - self.credit >= max(1, most // 8) or wanted < self.credit // 2

    def fetch_room(self) -> int:
        """How many deferred messages may be asked for."""
        room = min(self._fetch_window - self._fetched, self._room_by_bytes())
        return max(0, room - self.fetching)

    def _room_by_bytes(self) -> int:
        room = (self._limit_bytes - self.size_bytes) // self._largest_bytes
        # A message larger than all that is allowed must get through, alone.
        return room if self._live else max(1, room)

    # Locks

    def first_renewal_at(self) -> float | None:
        """When the first lock is to be renewed."""
        return next((message.renew_at for message in self), None)

    def due(self, now: float) -> list[BacklogMessage]:
        """The messages whose locks are to be renewed by now."""
        due: list[BacklogMessage] = []
        for message in self:
            if message.renew_at > now:
                break
            due.append(message)
        return due

    def renew_later(self, message: BacklogMessage, at: float) -> None:
        """Have a message come up again at that time, if it is still here."""
        if self._live.pop(message.lock_token, None) is not None:
            message.renew_at = at
            self._live[message.lock_token] = message

    # Memory

    def remember(self, message: BacklogMessage) -> None:
        """The primary has this one, but the backlog queue will deliver it again."""
        self._remembered[message.identity] = None
        if len(self._remembered) > REMEMBERED_MAX:
            del self._remembered[next(iter(self._remembered))]

    def recall(self, message: BacklogMessage) -> bool:
        """Whether the primary has this one already; asked once."""
        if not self._remembered or message.identity not in self._remembered:
            return False
        del self._remembered[message.identity]
        return True
