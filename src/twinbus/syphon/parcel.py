"""One message on its way from a backlog queue to where it belongs, and how it is unpacked.

Pure. Only the sections that change are looked into; the body is never touched (SPEC 4).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from twinbus.amqp.message import join, split
from twinbus.amqp.types import DecodeError, decode
from twinbus.errors import TransferError
from twinbus.transfer import Aliases, aliases_of, from_backlog_sections, without_delivery_marks
from twinbus.transfer.splice import entries_of, field_value, fields_of

__all__ = ["EXPIRED", "MALFORMED", "Parcel", "unpack"]

MALFORMED: Final = "MalformedMessage"
EXPIRED: Final = "TimeToLiveExpired"

LOCK_UNKNOWN_S: Final = 30.0
"""Taken for the lock's length where the delivery does not say: the default is 60 s in Azure, 30 s
in most people's queues."""

LOCK_SHORTEST_S: Final = 2.0
"""A clock that runs ahead of the broker's must not make us renew without a pause."""

_SEQUENCE: Final = b"x-opt-sequence-number"
_ENQUEUED: Final = b"x-opt-enqueued-time"
_LOCKED: Final = b"x-opt-locked-until"


class Parcel:
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
        return f"<parcel {self.sequence_number} to {self.path or 'nowhere'}>"

    @property
    def identity(self) -> tuple[int, int]:
        """What the same message has again when the queue delivers it again.

        The number alone would take a queue that was deleted and made anew for the old one.
        """
        return self.sequence_number, self.enqueued_ms


def unpack(
    payload: bytes, lock_token: bytes, now_ms: int, *, remaining_ttl: bool = False
) -> Parcel:
    """The parcel in a delivery; what cannot be brought anywhere has a `fault`."""
    parcel = Parcel(lock_token, len(payload))
    try:
        sections = split(payload)
        _read_marks(parcel, sections.message_annotations, now_ms)
        bounds = fields_of(sections.properties)
        found = field_value(sections.properties, bounds, 0)
        parcel.message_id = None if found is None else str(found)
        shortened = _shortened(parcel, aliases_of(sections), now_ms) if remaining_ttl else None
        restored, aliases = from_backlog_sections(
            without_delivery_marks(sections), now_ms=now_ms, aliases=shortened
        )
        parcel.wire = join(restored)
    except TransferError as error:
        parcel.fault = (error.reason, str(error))
        return parcel
    except DecodeError as error:
        parcel.fault = (MALFORMED, f"the message cannot be read: {error}")
        return parcel
    parcel.path = aliases.path.strip("/")
    parcel.destination = parcel.path.lower()
    return parcel


def _read_marks(parcel: Parcel, raw: bytes, now_ms: int) -> None:
    """What the broker wrote on the delivery: its number, its age, and how long it is locked."""
    for key, _, value_at, _ in entries_of(raw):
        if key == _SEQUENCE:
            parcel.sequence_number = _number(decode(raw, value_at)[0])
        elif key == _ENQUEUED:
            parcel.enqueued_ms = _number(decode(raw, value_at)[0])
        elif key == _LOCKED:
            lock_s = (_number(decode(raw, value_at)[0]) - now_ms) / 1000
            parcel.lock_s = max(lock_s, LOCK_SHORTEST_S)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


class _Expired(TransferError):
    reason = EXPIRED


def _shortened(parcel: Parcel, aliases: Aliases, now_ms: int) -> Aliases:
    """The aliases with what is left of the time to live (SPEC 6)."""
    if aliases.time_to_live_ms is None or not parcel.enqueued_ms:
        return aliases
    left_ms = aliases.time_to_live_ms - max(0, now_ms - parcel.enqueued_ms)
    if left_ms <= 0:
        raise _Expired(
            f"its time to live of {aliases.time_to_live_ms / 1000:g} s ended in the backlog, "
            f"{-left_ms / 1000:.0f} s before the syphon came to it"
        )
    return replace(aliases, time_to_live_ms=left_ms)
