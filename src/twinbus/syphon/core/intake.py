"""The messages that a pump has received and not settled, and how many more it may receive.

link      up to 3/4 of the messages, by the credit of the backlog queue
fetched   up to 1/4, deferred messages that are received by sequence number

`Settlements` decides each message once. While the queue cannot be reached, decisions are kept and
sent later; a release needs no request then, because the lock ends by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from twinbus.syphon.core.actions import Action, Complete, DeadLetter, Defer, Release
from twinbus.transfer.unpacking import LOCK_LONGEST_S, LOCK_SHORTEST_S, BacklogMessage

FETCH_SHARE: Final = 4
"""1/4 of the messages in flight may be deferred ones."""

REMEMBERED_MAX: Final = 10_000
"""Messages that the primary has and whose completion is unconfirmed; the oldest are dropped."""

SIZE_AT_FIRST: Final = 16 * 1024
"""Expected size of the first message, in bytes."""

RENEW_AFTER: Final = 0.5
"""Share of the lock duration after which a lock is renewed; the rest is for a second attempt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IntakeLimits:
    """How much a pump may have in flight, and how long it waits for an answer."""

    messages: int = 4_000
    """Messages received and not settled."""
    sent: int = 2_000
    """Those of them that were sent to the primary; a crash can duplicate at most as many."""
    size_bytes: int = 16 * 1024 * 1024
    """The same in bytes; only messages larger than any before can exceed it."""
    answer_s: float = 30.0
    """Time limit of an accept, an attach or a settlement."""

    def __post_init__(self) -> None:
        least = self.messages < FETCH_SHARE or self.sent < 1 or self.size_bytes < 1
        if least or self.answer_s <= 0:
            raise ValueError(
                f"limits must be at least {FETCH_SHARE} messages, 1 sent, 1 byte and a positive "
                f"time; got {self.messages}, {self.sent}, {self.size_bytes} and {self.answer_s}"
            )


class Intake:
    """The messages of one backlog queue in flight, and the credit for more."""

    def __init__(self, limits: IntakeLimits) -> None:
        self.credit = 0
        """Messages that the backlog queue may still send."""
        self.fetching = 0
        """Deferred messages requested by number that have not arrived."""
        self.size_bytes = 0
        self.on_removed: Callable[[BacklogMessage], None] | None = None
        """Called with each message that is removed, for any reason."""
        self._live: dict[bytes, BacklogMessage] = {}
        """By lock token, ordered by the time of the next renewal."""
        self._limit_bytes = limits.size_bytes
        self._largest_bytes = SIZE_AT_FIRST
        self._lock_most_s = LOCK_LONGEST_S
        self._limit_messages = limits.messages
        self._fetch_window = limits.messages // FETCH_SHARE
        self._link_window = limits.messages - self._fetch_window
        self._fetched = 0
        self.send_room = limits.sent
        """How many more messages may be sent for the first time."""
        self.remembered: dict[tuple[int, int], None] = {}
        """Identities of messages that the primary has and that the queue may deliver again."""
        self._highest = 0
        """The highest sequence number that was delivered: a lower one may be delivered again."""

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[BacklogMessage]:
        return iter(self._live.values())

    def __contains__(self, message: BacklogMessage) -> bool:
        return message.lock_token in self._live

    def add(self, message: BacklogMessage, now: float) -> bool:
        """Add a received message; return whether it is larger than the credit allowed for."""
        assert message.lock_token not in self._live, message
        self._live[message.lock_token] = message
        # Decays, so that one large message does not narrow the window for ever.
        # No calls of max() and min() here: this runs for every message.
        size, expected = message.size_bytes, self._largest_bytes
        decayed = expected - (expected >> 6)
        self._largest_bytes = size if size > decayed else decayed or 1
        if message.is_deferred:
            self._fetched += 1
        elif self.credit:
            self.credit -= 1
        message.received_at = now
        is_long = message.lock_s > self._lock_most_s
        if is_long:
            message.lock_s = self._lock_most_s
        message.renew_at = now + message.lock_s * RENEW_AFTER
        if message.sequence_number > self._highest:
            self._highest = message.sequence_number
        else:
            # The primary may have an earlier delivery of it, whose lock ended while its completion
            # was on a slow way, and nothing has said so yet.
            for other in self._live.values():
                if other.accepted and other.identity == message.identity:
                    self.remember(other)
                    break
        self.size_bytes += size
        return size > expected

    def forget(self, message: BacklogMessage) -> bool:
        """Remove a message that is settled or lost; return whether it was here."""
        if self._live.pop(message.lock_token, None) is None:
            return False
        self.size_bytes -= message.size_bytes
        if message.is_deferred:
            self._fetched -= 1
        if message.was_sent:
            self.send_room += 1
        if message.accepted and self.remembered:
            self.remembered.pop(message.identity, None)
        if self.on_removed is not None:
            self.on_removed(message)
        return True

    # Credit

    def limit_to(self, messages: int) -> None:
        """Receive at most this many messages at once, within the limit of `IntakeLimits`."""
        messages = min(messages, self._limit_messages)
        self._fetch_window = max(1, messages // FETCH_SHARE)
        self._link_window = max(1, messages - self._fetch_window)

    def wanted(self) -> int:
        """Return how many more messages the backlog queue may send."""
        room = self._room_by_bytes()
        return max(0, min(self._link_window - (len(self._live) - self._fetched), room))

    def is_worth_a_frame(self, wanted: int) -> bool:
        """Return whether the credit differs enough from `wanted` to tell the queue."""
        most = min(self._link_window, max(1, self._limit_bytes // self._largest_bytes))
        return wanted - self.credit >= max(1, most // 8) or wanted < self.credit // 2

    def fetch_room(self) -> int:
        """Return how many deferred messages may be requested."""
        room = min(self._fetch_window - self._fetched, self._room_by_bytes())
        return max(0, room - self.fetching)

    def _room_by_bytes(self) -> int:
        room = (self._limit_bytes - self.size_bytes) // self._largest_bytes
        # A message larger than the limit must get through, alone.
        return room if self._live else max(1, room)

    # Locks

    def due(self, now: float) -> list[BacklogMessage]:
        """Return the messages whose locks have to be renewed now."""
        due: list[BacklogMessage] = []
        for message in self:
            if message.renew_at > now:
                break
            due.append(message)
        return due

    def lock_was_lost(self) -> None:
        """Rely on shorter locks: one ended before it was renewed."""
        self._lock_most_s = max(LOCK_SHORTEST_S, self._lock_most_s / 2)

    def renew_later(self, message: BacklogMessage, at: float) -> None:
        """Schedule the next renewal of a message, if it is still here."""
        if self._live.pop(message.lock_token, None) is not None:
            message.renew_at = at
            self._live[message.lock_token] = message

    # Memory

    def remember(self, message: BacklogMessage) -> None:
        """Remember a message that the primary has and that the queue will deliver again."""
        self.remembered[message.identity] = None
        if len(self.remembered) > REMEMBERED_MAX:
            del self.remembered[next(iter(self.remembered))]


class Settlements:
    def __init__(self, intake: Intake) -> None:
        self.is_open = False
        """The backlog queue can be reached."""
        self.remembered = intake.remembered
        """Usually empty: a cheap question before `complete_known`."""
        self._intake = intake
        self._opened_at = 0.0

    def complete_known(self, message: BacklogMessage, now: float) -> list[Action] | None:
        """Complete a message that the primary has by an earlier delivery; None: it has it not."""
        if message.identity not in self.remembered:
            return None
        del self.remembered[message.identity]
        message.accepted = True
        return self.complete([message], now)

    def complete(self, messages: list[BacklogMessage], now: float) -> list[Action]:
        for message in messages:
            assert message.accepted, message
            message.outcome = Complete
            message.settling_at = now
            if message.received_at < self._opened_at:
                # It came over an earlier link, and its lock may have ended with that link. Then it
                # is delivered again before the queue refuses the completion.
                self._intake.remember(message)
        return [Complete(messages)] if self.is_open and messages else []

    def dead_letter(
        self, message: BacklogMessage, reason: str, description: str, now: float
    ) -> list[Action]:
        return self._decide(message, DeadLetter(message, reason, description), now)

    def defer(self, messages: list[BacklogMessage], now: float) -> list[Action]:
        """Defer messages, so that the queue delivers those after them."""
        return [a for message in messages for a in self._decide(message, Defer(message), now)]

    def release(self, messages: list[BacklogMessage], now: float) -> list[Action]:
        """Release messages, so that the queue delivers them again."""
        return [a for message in messages for a in self._decide(message, Release(message), now)]

    def close(self) -> None:
        """Forget what needs no settlement: the backlog queue cannot be reached."""
        self.is_open = False
        for message in [p for p in self._intake if isinstance(p.outcome, Release | Defer)]:
            self._intake.forget(message)

    def open(self, now: float) -> list[Action]:
        """Settle what is unconfirmed: the backlog queue can be reached again."""
        self.is_open = True
        self._opened_at = now
        actions = self.complete([p for p in self._intake if p.outcome is Complete], now)
        for message in self._intake:
            if isinstance(message.outcome, DeadLetter):
                message.settling_at = now
                actions.append(message.outcome)
        return actions

    def _decide(
        self, message: BacklogMessage, outcome: DeadLetter | Defer | Release, now: float
    ) -> list[Action]:
        assert message.outcome is None, message
        message.outcome = outcome
        message.settling_at = now
        if self.is_open:
            return [outcome]
        if not isinstance(outcome, DeadLetter):
            self._intake.forget(message)
        return []
