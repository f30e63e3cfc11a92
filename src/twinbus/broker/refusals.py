"""Refusals: exceptions that carry the AMQP condition for the client.

Core code raises a `Refusal`; the AMQP shell turns it into a rejected delivery, a detach or a
management status, the administration shell into an HTTP status. The condition decides which
exception of the official SDK the user gets, so each one here is a condition that SDK knows.
"""

from __future__ import annotations

import re

from twinbus.servicebus import conditions

_HOST = re.compile(r"[A-Za-z0-9.:\[\]-]{1,260}", re.ASCII)


class Refusal(Exception):
    """A request that the broker will not carry out, and why."""

    condition = conditions.INTERNAL_ERROR
    status = 500
    """HTTP status, which is also the status code of a management response."""
    is_tracked = False
    """Whether the shell adds a TrackingId to the text, which the broker's log shows too."""

    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.description = description


class EntityNotFound(Refusal):
    condition, status = conditions.NOT_FOUND, 404
    is_tracked = True

    @classmethod
    def of(cls, path: str, why: str) -> EntityNotFound:
        """In Azure's words: the JavaScript SDK tells a missing entity only by this text."""
        return cls(f"The messaging entity {path!r} could not be found. {why[:1].upper()}{why[1:]}.")

    def name_host(self, namespace: str, host: str) -> None:
        """Name the entity by the host that the client dialled, as Azure does."""
        if _HOST.fullmatch(host):
            before, after = f"'sb://{namespace}/", f"'sb://{host}/"
            self.description = self.description.replace(before, after, 1)


class EntityAlreadyExists(Refusal):
    condition, status = conditions.ENTITY_EXISTS, 409


class EntityDisabled(Refusal):
    condition, status = conditions.ENTITY_DISABLED, 403


class QuotaExceeded(Refusal):
    condition, status = conditions.RESOURCE_LIMIT, 403


class MessageTooLarge(Refusal):
    condition, status = conditions.MESSAGE_SIZE, 413


class NotAllowed(Refusal):
    condition, status = conditions.NOT_ALLOWED, 400


class NotSupported(Refusal):
    condition, status = conditions.NOT_IMPLEMENTED, 501


class ArgumentInvalid(Refusal):
    condition, status = conditions.ARGUMENT_INVALID, 400


class ArgumentOutOfRange(Refusal):
    condition, status = conditions.ARGUMENT_OUT_OF_RANGE, 400


class MessageNotFound(Refusal):
    condition, status = conditions.MESSAGE_NOT_FOUND, 404


class MessageLockLost(Refusal):
    condition, status = conditions.MESSAGE_LOCK_LOST, 410


class SessionLockLost(Refusal):
    condition, status = conditions.SESSION_LOCK_LOST, 410


class SessionCannotBeLocked(Refusal):
    condition, status = conditions.SESSION_TAKEN, 410


class OperationTimedOut(Refusal):
    condition, status = conditions.TIMEOUT, 408


class ServerBusy(Refusal):
    condition, status = conditions.SERVER_BUSY, 503
    is_tracked = True


class Unauthorized(Refusal):
    condition, status = conditions.UNAUTHORIZED, 401
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

    condition, status = conditions.DETACH_FORCED, 401
    is_tracked = True

    def __init__(self, link_name: str, refusal: Unauthorized) -> None:
        super().__init__(
            f"The link {link_name!r} is force detached. Code: RenewToken. "
            f"Details: {refusal.description}"
        )


class MalformedMessage(Refusal):
    condition, status = conditions.DECODE_ERROR, 400


class TransactionRolledBack(Refusal):
    condition, status = conditions.TRANSACTION_ROLLBACK, 409


class TransactionTimedOut(Refusal):
    condition, status = conditions.TRANSACTION_TIMEOUT, 408


class UnknownTransaction(Refusal):
    condition, status = conditions.TRANSACTION_UNKNOWN, 404


def check_count(owner: str, what: str, count: int, limit: int | None, advice: str) -> None:
    """Refuse one more of what the owner already has as many of as the limit allows."""
    if limit is not None and count >= limit:
        raise QuotaExceeded(f"{owner} has {limit} {what}, which is the limit; {advice}")


def entity_full(kind: str, path: str, held: int, most: int, advice: str) -> QuotaExceeded:
    """The refusal of an entity that is full, in Azure's words."""
    return QuotaExceeded(
        f"The maximum entity size has been reached or exceeded for {kind}: {path!r}. "
        f"Size of entity in bytes:{held}, Max entity size in bytes: {most}. "
        f"QuotaType: EntitySize; {advice}"
    )
