"""A queue as a plain list: slow, and simple enough to be seen to be right.

Every rule of a queue is one loop over one list of messages. The property test makes the engine and
this model do the same things at the same times, and compares what they hold after each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ACTIVE, DEFERRED, SCHEDULED = 0, 1, 2


@dataclass
class Entry:
    """One message."""

    number: int
    message_id: str
    session_id: str | None
    ttl_ms: int
    state: int = ACTIVE
    expires_at_ms: int = 0
    scheduled_for_ms: int = 0
    delivery_count: int = 0
    token: bytes | None = None
    locked_until_ms: int = 0
    """Of a lock outside sessions."""

    def seen(self) -> tuple[object, ...]:
        """What can be observed of it."""
        return (
            self.number, self.message_id, self.session_id, self.state, self.delivery_count,
            self.token is not None, self.expires_at_ms,
        )  # fmt: skip


@dataclass
class QueueModel:
    """One queue; the caller tells it what the engine answered where the engine has a choice."""

    has_sessions: bool
    dead_letters_expired: bool
    window_ms: int
    """Of duplicate detection; 0: none."""
    lock_ms: int
    tries: int
    last_number: int = 0
    entries: list[Entry] = field(default_factory=list)
    dead: list[tuple[str, str, int]] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    """Ids of messages completed, cancelled or expired without a trace."""
    held: dict[str, tuple[object, int]] = field(default_factory=dict)
    states: dict[str, bytes] = field(default_factory=dict)
    seen_at_ms: dict[str, int] = field(default_factory=dict)

    def catch_up(self, now_ms: int) -> None:
        """Let time pass until now."""
        for entry in list(self.entries):
            if entry.token and not self.has_sessions and entry.locked_until_ms <= now_ms:
                self.give_back(entry, now_ms, counted=True)
        for session_id, (_, until_ms) in list(self.held.items()):
            if until_ms <= now_ms:
                self.free(session_id, now_ms, counted=True)
        waiting = [entry for entry in self.entries if entry.state == SCHEDULED]
        for entry in sorted(waiting, key=lambda each: (each.scheduled_for_ms, each.number)):
            if entry.scheduled_for_ms <= now_ms:
                self.entries.remove(entry)
                entry.state = ACTIVE
                entry.expires_at_ms = now_ms + entry.ttl_ms if entry.ttl_ms else 0
                self.append(entry)
        for entry in list(self.entries):
            if entry.state == ACTIVE and entry.token is None and self.is_expired(entry, now_ms):
                self.expire(entry)
        for message_id, at_ms in list(self.seen_at_ms.items()):
            if at_ms + self.window_ms <= now_ms:
                del self.seen_at_ms[message_id]

    def append(self, entry: Entry) -> None:
        """Add a message under the next number."""
        self.last_number += 1
        entry.number = self.last_number
        self.entries.append(entry)

    def is_expired(self, entry: Entry, now_ms: int) -> bool:
        """Whether its time to live is over."""
        return 0 < entry.expires_at_ms <= now_ms

    def expire(self, entry: Entry) -> None:
        """End a message whose time to live is over."""
        if self.dead_letters_expired:
            self.bury(entry, "TTLExpiredException")
        else:
            self.remove(entry)

    def bury(self, entry: Entry, reason: str) -> None:
        """Move a message to the dead letters."""
        self.entries.remove(entry)
        self.dead.append((entry.message_id, reason, entry.delivery_count))

    def remove(self, entry: Entry) -> None:
        """End a message for good."""
        self.entries.remove(entry)
        self.gone.append(entry.message_id)

    def give_back(self, entry: Entry, now_ms: int, *, counted: bool) -> None:
        """Unlock a message without an outcome."""
        entry.token = None
        entry.delivery_count += counted
        if counted and entry.delivery_count >= self.tries:
            self.bury(entry, "MaxDeliveryCountExceeded")
        elif entry.state == ACTIVE and self.is_expired(entry, now_ms):
            self.expire(entry)

    def free(self, session_id: str, now_ms: int, *, counted: bool) -> None:
        """End a session's lock."""
        del self.held[session_id]
        for entry in list(self.entries):
            if entry.token and entry.session_id == session_id:
                self.give_back(entry, now_ms, counted=counted)

    def ready(self, session_id: str | None) -> list[Entry]:
        """What can be delivered, in order."""
        return [
            entry
            for entry in sorted(self.entries, key=lambda each: each.number)
            if entry.state == ACTIVE and entry.token is None
            if not self.has_sessions or entry.session_id == session_id
        ]

    def available(self) -> set[str]:
        """Sessions that the next to ask may get."""
        ready = {entry.session_id for entry in self.entries if entry.state == ACTIVE}
        return {name for name in ready if name is not None and name not in self.held}

    def by_token(self, token: bytes) -> Entry | None:
        """The message that a token locks."""
        return next((entry for entry in self.entries if entry.token == token), None)

    def by_number(self, number: int) -> Entry | None:
        """The message with that number."""
        return next((entry for entry in self.entries if entry.number == number), None)

    def restart(self) -> None:
        """Lose what a crash loses: locks, and nothing else."""
        self.held.clear()
        for entry in self.entries:
            entry.token = None

    def next_deadline_ms(self, now_ms: int) -> int:
        """When time does something next; call after `catch_up`.

        A message that expired in a receiver's hands has nothing to wait for but its lock's end.
        """
        due = [until_ms for _, until_ms in self.held.values()]
        due += [at_ms + self.window_ms for at_ms in self.seen_at_ms.values()]
        for entry in self.entries:
            if entry.state == SCHEDULED:
                due.append(entry.scheduled_for_ms)
            if entry.token and not self.has_sessions:
                due.append(entry.locked_until_ms)
            if entry.state == ACTIVE and entry.expires_at_ms > now_ms:
                due.append(entry.expires_at_ms)
        return min(due, default=0)
