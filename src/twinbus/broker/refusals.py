"""Refusals: exceptions that carry the AMQP condition for the client.

Core code raises a `Refusal`; the AMQP shell turns it into a rejected delivery, a detach or a
management status, the administration shell into an HTTP status. The condition decides which
exception of the official SDK the user gets, so each one here is a condition that SDK knows.
"""

from __future__ import annotations


class Refusal(Exception):
    """A request that the broker will not carry out, and why."""

    condition = "amqp:internal-error"
    status = 500
    """HTTP status, which is also the status code of a management response."""
    is_tracked = False
    """Whether the shell adds a TrackingId to the text, which the broker's log shows too."""

    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.description = description


class EntityNotFound(Refusal):
    condition, status = "amqp:not-found", 404
    is_tracked = True

    @classmethod
    def of(cls, path: str, why: str) -> EntityNotFound:
        """In Azure's words: the JavaScript SDK tells a missing entity only by this text."""
        return cls(f"The messaging entity {path!r} could not be found: {why}.")


class EntityAlreadyExists(Refusal):
    condition, status = "com.microsoft:entity-already-exists", 409


class EntityDisabled(Refusal):
    condition, status = "com.microsoft:entity-disabled", 403


class QuotaExceeded(Refusal):
    condition, status = "amqp:resource-limit-exceeded", 403


class MessageTooLarge(Refusal):
    condition, status = "amqp:link:message-size-exceeded", 413


class NotAllowed(Refusal):
    condition, status = "amqp:not-allowed", 400


class NotSupported(Refusal):
    condition, status = "amqp:not-implemented", 501


class ArgumentInvalid(Refusal):
    condition, status = "com.microsoft:argument-error", 400


class ArgumentOutOfRange(Refusal):
    condition, status = "com.microsoft:argument-out-of-range", 400


class MessageNotFound(Refusal):
    condition, status = "com.microsoft:message-not-found", 404


class MessageLockLost(Refusal):
    condition, status = "com.microsoft:message-lock-lost", 410


class SessionLockLost(Refusal):
    condition, status = "com.microsoft:session-lock-lost", 410


class SessionCannotBeLocked(Refusal):
    condition, status = "com.microsoft:session-cannot-be-locked", 410


class OperationTimedOut(Refusal):
    condition, status = "com.microsoft:timeout", 408


class ServerBusy(Refusal):
    condition, status = "com.microsoft:server-busy", 503
    is_tracked = True


class Unauthorized(Refusal):
    condition, status = "amqp:unauthorized-access", 401
    is_tracked = True

    @classmethod
    def lacking(cls, right: str, resource: str, why: str = "") -> Unauthorized:
        """In Azure's words: the right that the client's tokens do not grant."""
        return cls(
            f"Unauthorized access. {right!r} claim(s) are required to perform this operation. "
            f"Resource: {resource!r}.{why}"
        )


class LinkExpired(Refusal):
    """The token behind an open link has expired; as Azure detaches such a link."""

    condition, status = "amqp:link:detach-forced", 401
    is_tracked = True

    def __init__(self, link_name: str, refusal: Unauthorized) -> None:
        super().__init__(
            f"The link {link_name!r} is force detached. Code: RenewToken. "
            f"Details: {refusal.description}"
        )


class MalformedMessage(Refusal):
    condition, status = "amqp:decode-error", 400


def entity_full(kind: str, path: str, held: int, most: int, advice: str) -> QuotaExceeded:
    """The refusal of an entity that is full, in Azure's words."""
    return QuotaExceeded(
        f"The maximum entity size has been reached or exceeded for {kind}: {path!r}. "
        f"Size of entity in bytes:{held}, Max entity size in bytes: {most}. "
        f"QuotaType: EntitySize; {advice}"
    )
