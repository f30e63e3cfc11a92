"""One message on its way from a backlog queue to where it belongs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LOCK_UNKNOWN_S: Final = 30.0
"""Assumed lock duration if the delivery does not state the end of its lock."""

LOCK_SHORTEST_S: Final = 5.0
"""The shortest lock that Service Bus grants. A lock that is shorter by our clock is not: our clock
is ahead of the service's."""

LOCK_LONGEST_S: Final = 60.0
"""The lock of the backlog queues that Twinbus creates, and the longest that is relied on. One that
is longer by our clock may be so, or our clock is behind the service's."""


@dataclass(slots=True, eq=False, repr=False)
class BacklogMessage:
    """One delivery of a backlog queue, with the state that pump and relay keep for it."""

    lock_token: bytes
    size_bytes: int
    """Size of the delivery as received; the limits count this size."""
    sequence_number: int = 0
    enqueued_ms: int = 0
    message_id: str | None = None
    path: str = ""
    destination: str = ""
    """The path in lower case, because entity paths are case-insensitive."""
    session: str | None = None
    """The session id of the original message."""
    wire: bytes = b""
    """The restored message, encoded; emptied once the primary has it."""
    fault: tuple[str, str] | None = None
    """Dead-letter reason and description if the message cannot be restored."""
    lock_s: float = LOCK_UNKNOWN_S
    is_deferred: bool = False
    """It was received by sequence number; if released, it is deferred again."""
    epoch: int = 0
    delivery_id: int = -1
    """On the source link of that epoch; -1: it can only be settled by its lock token."""
    received_at: float = 0.0
    renew_at: float = 0.0
    sent_at: float = 0.0
    settling_at: float = 0.0
    accepted: bool = False
    """The primary has it."""
    outcome: object = None
    """How the delivery is settled: an action, or the class `Complete`; set once."""

    def __repr__(self) -> str:
        return f"<message {self.sequence_number} to {self.path or 'nowhere'}>"

    @property
    def identity(self) -> tuple[int, int]:
        """Sequence number and enqueued time: the same for each delivery of a message.

        The number alone is not enough: a queue that was deleted and created again starts at 1.
        """
        return self.sequence_number, self.enqueued_ms
