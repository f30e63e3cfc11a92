"""The SDK's exceptions that a pair raises itself: callers catch what the plain SDK would raise."""

from __future__ import annotations

from typing import Final

from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
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
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from twinbus.client.request_node import DeliveryRejected, RequestRefused
from twinbus.errors import ScheduleUnknownError
from twinbus.servicebus import conditions
from twinbus.servicebus.failures import (
    MISSING_STATUS,
    CutShort,
    FailureMeaning,
    NamespaceFailure,
    OpeningCutShort,
    is_answer,
    is_timeout,
    of_error,
    outcome_of,
    own_failure,
    refused_token,
)

UNAUTHORIZED_STATUS: Final = 401


def timed_out(text: str) -> OperationTimeoutError:
    return OperationTimeoutError(message=text)


def too_large(path: str, limit_bytes: int, size_bytes: int) -> MessageSizeExceededError:
    return MessageSizeExceededError(
        message=f"{path} takes {limit_bytes} bytes and got {size_bytes}; send less at a time"
    )


def is_lost_connection(error: Exception) -> bool:
    """Whether a connection ended that may have carried the message."""
    is_known = isinstance(error, ServiceBusError | NamespaceFailure) and not is_timeout(error)
    return is_known and outcome_of(error) == "unknown"


def is_refusal(error: Exception) -> bool:
    """Whether an entity answered a request with this error, so that it carried nothing out."""
    return is_answer(error) and not isinstance(error, ServiceBusConnectionError)


def is_unanswered(error: Exception) -> bool:
    """Whether a message that was sent may be stored: this is no answer to it."""
    if outcome_of(error) != "unknown":
        return False
    # Our own client knows whether an answer was one to the message.
    return own_failure(error) is not None or not is_refusal(error)


class ScheduleTimedOutError(ScheduleUnknownError, OperationTimeoutError):
    """No answer came in time: also the SDK's error, which callers of its sender catch."""

    def __init__(self, text: str) -> None:
        OperationTimeoutError.__init__(self, message=text)
        self.message_ids = ()


def translated(error: Exception, path: str, timeout_s: float) -> Exception:
    """The error as the SDK would raise it: our own timeout, and a token that was refused.

    Azure refuses the token for an entity that does not exist; the SDK takes that for a bad
    credential. Every other error is returned as it is.
    """
    refused = refused_token(error)
    if refused is not None:
        is_missing = of_error(error) is FailureMeaning.NOT_FOUND
        kind = MessagingEntityNotFoundError if is_missing else ServiceBusAuthenticationError
        inner: Exception = getattr(error, "inner_exception", error)
        return kind(message=f"{path}: {refused}", error=inner)
    if type(error) is OpeningCutShort:
        text = f"the link to {path} did not open within {timeout_s:g} s; it goes on opening"
    elif isinstance(error, CutShort):
        text = f"{path} did not answer in the {error} that were left of the timeout"
    elif type(error) is TimeoutError:
        text = f"{path} did not answer within {timeout_s:g} s"
    else:
        return error
    late = timed_out(text)
    late.__cause__ = error
    return late


_CLASSES: Final[dict[str, type[ServiceBusError]]] = {
    conditions.NOT_FOUND: MessagingEntityNotFoundError,
    conditions.RESOURCE_DELETED: MessagingEntityNotFoundError,
    conditions.UNAUTHORIZED: ServiceBusAuthorizationError,
    conditions.AUTH_FAILED: ServiceBusAuthorizationError,
    conditions.ENTITY_DISABLED: MessagingEntityDisabledError,
    conditions.RESOURCE_LIMIT: ServiceBusQuotaExceededError,
    conditions.SERVER_BUSY: ServiceBusServerBusyError,
    conditions.MESSAGE_SIZE: MessageSizeExceededError,
    conditions.MESSAGE_LOCK_LOST: MessageLockLostError,
    conditions.MESSAGE_NOT_FOUND: MessageNotFoundError,
    conditions.SESSION_LOCK_LOST: SessionLockLostError,
    conditions.SESSION_TAKEN: SessionCannotBeLockedError,
    conditions.TIMEOUT: OperationTimeoutError,
    conditions.DETACH_FORCED: ServiceBusConnectionError,
}
"""The SDK's exception for each condition; every other one is a plain ServiceBusError."""


def sdk_error(error: Exception, path: str) -> Exception:
    """Return a failure of our own client as the SDK would raise it, with the same condition."""
    if isinstance(error, TimeoutError):
        return _caused(OperationTimeoutError(message=f"{path} did not answer in time"), error)
    if not isinstance(error, NamespaceFailure):
        return error
    text, condition = str(error), error.condition or None
    is_lost = error.meaning is FailureMeaning.UNREACHABLE
    if isinstance(error, RequestRefused) and error.status == UNAUTHORIZED_STATUS:
        kind: type[ServiceBusError] = ServiceBusAuthenticationError
        if is_lost:
            # Its condition says that there is no token, not that the token service is away.
            kind, condition = ServiceBusConnectionError, None
    elif isinstance(error, RequestRefused) and error.status == MISSING_STATUS and not condition:
        kind = MessagingEntityNotFoundError
    elif condition in _CLASSES:
        kind = _CLASSES[condition]
    else:
        # An internal error of the service is its answer, and no broken connection.
        is_answered = isinstance(error, DeliveryRejected | RequestRefused) and condition
        kind = ServiceBusConnectionError if is_lost and not is_answered else ServiceBusError
    if kind is ServiceBusError:
        return _caused(ServiceBusError(text, condition=condition), error)
    return _caused(kind(message=text, condition=condition), error)


def _caused(raised: Exception, cause: Exception) -> Exception:
    raised.__cause__ = cause
    return raised
