"""One message on its way from a backlog queue to where it belongs."""

from __future__ import annotations

from typing import Final

__all__ = ["LOCK_SHORTEST_S", "BacklogMessage"]

LOCK_UNKNOWN_S: Final = 30.0
"""Taken for the lock's length where the delivery does not say: the default is 60 s in Azure, 30 s
in most people's queues."""

LOCK_SHORTEST_S: Final = 2.0
"""A clock that runs ahead of the broker's must not make us renew without a pause."""


class BacklogMessage:
    """One received delivery: what the pump decides by, and what the relay needs to act."""

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
        """Of the delivery as it came: what the in-flight bound counts."""
        self.sequence_number = 0
        self.enqueued_ms = 0
        self.message_id: str | None = None
        self.path = ""
        self.destination = ""
        """The path in lower case: entity paths are compared so."""
        self.session: str | None = None
        """The session that it had, and will have again."""
        self.wire = b""
        """The restored message; emptied once the primary has it."""
        self.fault: tuple[str, str] | None = None
        """Reason and description, when the message cannot be brought anywhere."""
        self.lock_s = LOCK_UNKNOWN_S
        self.is_deferred = False
        """It was received by number, and goes back to the deferred ones if it is let go."""
        self.epoch = 0
        self.delivery_id = -1
        """Of the source link of that epoch; -1: it can only be settled by its lock token."""
        self.received_at = 0.0
        self.renew_at = 0.0
        self.sent_at = 0.0
        self.settling_at = 0.0
        self.accepted = False
        """The primary has it."""
        self.outcome: object = None
        """What was decided about the source delivery; set once."""

    def __repr__(self) -> str:
        return f"<message {self.sequence_number} to {self.path or 'nowhere'}>"

    @property
    def identity(self) -> tuple[int, int]:
        """What the same message has again when the queue delivers it again.

        The number alone would take a queue that was deleted and made anew for the old one.
        """
        return self.sequence_number, self.enqueued_ms
