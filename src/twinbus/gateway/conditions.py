"""AMQP conditions as errors that the failover core judges, and errors as conditions for clients."""

from __future__ import annotations

from typing import Final

from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from twinbus.broker.refusals import Refusal
from twinbus.client.links import DeliveryRejected, LinkEnded
from twinbus.client.request_node import MISSING_STATUS, ConnectionLost, RequestRefused
from twinbus.errors import (
    BacklogGuardError,
    BacklogMessageTooLargeError,
    EntityUnusableError,
    PairClosedError,
)
from twinbus.pairing.core.classify import SERVER_FAULTS, FailureMeaning, meaning_of
from twinbus.pairing.sending.recording import NO_CONNECTION, Unanswered

NOT_FOUND: Final = "amqp:not-found"
NOT_ALLOWED: Final = "amqp:not-allowed"
UNAUTHORIZED: Final = "amqp:unauthorized-access"
SERVER_BUSY: Final = "com.microsoft:server-busy"
TIMEOUT: Final = "com.microsoft:timeout"
DETACHED: Final = "amqp:link:detach-forced"

_ERRORS: Final[dict[str, type[ServiceBusError]]] = {
    NOT_FOUND: MessagingEntityNotFoundError,
    "com.microsoft:entity-disabled": MessagingEntityDisabledError,
    UNAUTHORIZED: ServiceBusAuthorizationError,
    "com.microsoft:auth-failed": ServiceBusAuthenticationError,
    "amqp:resource-limit-exceeded": ServiceBusQuotaExceededError,
    SERVER_BUSY: ServiceBusServerBusyError,
    "amqp:link:message-size-exceeded": MessageSizeExceededError,
    TIMEOUT: OperationTimeoutError,
}
"""The SDK's error for a condition, as its own clients would raise it."""

_CONDITIONS: Final[dict[FailureMeaning, str]] = {
    FailureMeaning.NOT_FOUND: NOT_FOUND,
    FailureMeaning.DISABLED: "com.microsoft:entity-disabled",
    FailureMeaning.UNAUTHORIZED: UNAUTHORIZED,
    FailureMeaning.QUOTA: "amqp:resource-limit-exceeded",
    FailureMeaning.BUSY: SERVER_BUSY,
    FailureMeaning.MESSAGE: NOT_ALLOWED,
    # Every SDK sends again after these, as after a send that was not answered.
    FailureMeaning.UNREACHABLE: TIMEOUT,
    FailureMeaning.STALE: TIMEOUT,
}
"""The condition for a failure that has none of its own."""


class UpstreamRefusal(Refusal):
    """A refusal of the primary, handed on with its condition and text."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.condition = condition


def upstream_error(error: Exception) -> Exception:
    """An error of the client's links as the failover core judges it; others as they are."""
    made: ServiceBusError
    match error:
        case ConnectionLost():
            made = unreachable(str(error))
        case RequestRefused():
            made = refused(error)
        case DeliveryRejected():
            made = rejection(error.condition, str(error))
        case LinkEnded():
            made = detached(error.condition, str(error))
            if error.was_sent:
                made.__cause__ = Unanswered()
                return made
        case _:
            return error
    made.__cause__ = error
    return made


def rejection(condition: str, text: str) -> ServiceBusError:
    """The error for a delivery that a namespace rejected, or a link that it refused."""
    kind = _ERRORS.get(condition)
    if kind is None:
        return ServiceBusError(text, condition=condition)
    made = kind(message=text)
    made._condition = condition
    return made


def detached(condition: str, text: str) -> ServiceBusError:
    """The error for what was in flight on a link that ended; "": its connection was lost."""
    if condition in _ERRORS:
        return rejection(condition, text)
    return ServiceBusConnectionError(message=text, condition=condition or None)


def refused(error: RequestRefused) -> ServiceBusError:
    """The error for a token that a namespace refused, or that the credential did not give."""
    if error.status == MISSING_STATUS:
        return MessagingEntityNotFoundError(message=str(error))
    if error.status >= SERVER_FAULTS or (error.__cause__ and meaning_of(error.__cause__).counts):
        # As for a pair: the namespace is broken, or its token service cannot be reached.
        return unreachable(str(error))
    return rejection(error.condition or UNAUTHORIZED, str(error))


def unreachable(reason: str) -> ServiceBusConnectionError:
    """The error for a send without a connection: nothing was sent."""
    return ServiceBusConnectionError(message=f"{NO_CONNECTION}: {reason}")


def refusal_of(error: Exception) -> Refusal:
    """The refusal for the client of a send that failed; it has the upstream's own condition."""
    if isinstance(error, Refusal):
        return error
    condition = getattr(error, "_condition", None)
    if isinstance(error, BacklogMessageTooLargeError | MessageSizeExceededError):
        condition = "amqp:link:message-size-exceeded"
    elif isinstance(error, BacklogGuardError):
        # A retry would have the same result, so no condition after which SDKs retry.
        condition = NOT_ALLOWED
    elif isinstance(error, EntityUnusableError):
        condition = NOT_FOUND
    elif isinstance(error, PairClosedError):
        condition = SERVER_BUSY
    if not isinstance(condition, str) or not condition:
        condition = _CONDITIONS.get(meaning_of(error), TIMEOUT)
    return UpstreamRefusal(condition, str(error))
