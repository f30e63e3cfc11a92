"""One message on its way from a backlog queue to where it belongs."""

from __future__ import annotations

from typing import Final

LOCK_UNKNOWN_S: Final = 30.0
"""Assumed lock duration if the delivery does not state the end of its lock."""

LOCK_SHORTEST_S: Final = 5.0
"""The shortest lock that Service Bus grants. A lock that is shorter by our clock is not: our clock
is ahead of the service's."""

LOCK_LONGEST_S: Final = 60.0
"""The lock of the backlog queues that Twinbus creates, and the longest that is relied on. One that
is longer by our clock may be so, or our clock is behind the service's."""


class BacklogMessage:
    """One delivery of a backlog queue, with the state that pump and relay keep for it."""

    __slots__ = (
        "accepted",
        "delivery_id",
        "destination",
        "enqueued_ms",
        "epoch",
        "fault",
        "is_deferred",
        "lock_s",
        "lock_token",
        "message_id",
        "outcome",
        "path",
        "received_at",
        "renew_at",
        "sent_at",
        "sequence_number",
        "session",
        "settling_at",
        "size_bytes",
        "wire",
    )

    def __init__(self, lock_token: bytes, size_bytes: int) -> None:
        self.lock_token = lock_token
        self.size_bytes = size_bytes
        """Size of the delivery as received; the limits count this size."""
        self.sequence_number = 0
        self.enqueued_ms = 0
        self.message_id: str | None = None
        self.path = ""
        self.destination = ""
        """The path in lower case, because entity paths are case-insensitive."""
        self.session: str | None = None
        """The session id of the original message."""
        self.wire = b""
        """The restored message, encoded; emptied once the primary has it."""
        self.fault: tuple[str, str] | None = None
        """Dead-letter reason and description if the message cannot be restored."""
        self.lock_s = LOCK_UNKNOWN_S
        self.is_deferred = False
        """It was received by sequence number; if released, it is deferred again."""
        self.epoch = 0
        self.delivery_id = -1
        """On the source link of that epoch; -1: it can only be settled by its lock token."""
        self.received_at = 0.0
        self.renew_at = 0.0
        self.sent_at = 0.0
        self.settling_at = 0.0
        self.accepted = False
        """The primary has it."""
        self.outcome: object = None
        """How the delivery is settled: an action, or the class `Complete`; set once."""

    def __repr__(self) -> str:
        return f"<message {self.sequence_number} to {self.path or 'nowhere'}>"

    @property
    def identity(self) -> tuple[int, int]:
        """Sequence number and enqueued time: the same for each delivery of a message.

        The number alone is not enough: a queue that was deleted and created again starts at 1.
        """
        return self.sequence_number, self.enqueued_ms
