"""What a failure says about the entity: one table, by the class of the exception (SPEC 3).

An exception is looked up by the names of its classes, the most derived first, so this module does
not import azure, and an unknown subclass is judged as its base class. Two kinds of exception are
judged by more than their class: one with an AMQP condition, and one that wraps another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from twinbus.errors import error_text
from twinbus.options import Verdict


class FailureMeaning(Enum):
    """What an exception says about an entity, for sends, diverts and pings alike."""

    UNREACHABLE = "cannot be reached or cannot answer"
    BUSY = "answers that it is busy"
    UNAUTHORIZED = "answers that this application has no access"
    NOT_FOUND = "does not exist"
    DISABLED = "is disabled"
    QUOTA = "is full"
    MESSAGE = "refuses this message or this call"
    STALE = "was not asked: the token of the link has expired, and a new link gets a new one"
    OTHER = "nothing"

    @property
    def counts(self) -> bool:
        """Whether it is evidence for a failover."""
        return self is UNREACHABLE

    @property
    def retried(self) -> bool:
        """Whether waiting may help. All other errors go to the caller at once."""
        return self in (UNREACHABLE, BUSY, STALE)

    @property
    def pulls_queue(self) -> bool:
        """Whether a backlog queue with this error is pulled from the rotation (SPEC 3)."""
        return self in (UNREACHABLE, NOT_FOUND, DISABLED, QUOTA)

    @property
    def unusable(self) -> bool:
        """Whether a ping with this error makes its entity UNUSABLE (SPEC 5)."""
        return self in (NOT_FOUND, DISABLED)


UNREACHABLE, BUSY, UNAUTHORIZED, NOT_FOUND, DISABLED, QUOTA, MESSAGE, STALE, OTHER = FailureMeaning


@dataclass(frozen=True, slots=True)
class FailureRow:
    """One line of the table in docs/failures.md."""

    meaning: FailureMeaning
    reason: str


_TIMEOUT = FailureRow(UNREACHABLE, "no answer within the attempt timeout")
_RECEIVING = FailureRow(OTHER, "concerns receiving; no send raises it")
_TOO_BUSY = "throttling is an answer; sending elsewhere would evade the quota"
_DISABLED = FailureRow(DISABLED, "an administrator disabled the entity")
_BAD_ARGUMENT = FailureRow(MESSAGE, "a bad argument")

TABLE: Final[dict[str, FailureRow]] = {
    # azure.servicebus.exceptions
    "OperationTimeoutError": _TIMEOUT,
    "ServiceBusConnectionError": FailureRow(
        UNREACHABLE, "the connection broke, or the link was detached without a configuration error"
    ),
    "ServiceBusCommunicationError": FailureRow(UNREACHABLE, "no connection can be made"),
    "ServiceBusServerBusyError": FailureRow(BUSY, _TOO_BUSY),
    "ServiceBusAuthenticationError": FailureRow(
        UNAUTHORIZED, "the credential must be repaired; a failover would hide that"
    ),
    "ServiceBusAuthorizationError": FailureRow(
        UNAUTHORIZED, "a right must be granted; a failover would hide that"
    ),
    "MessagingEntityNotFoundError": FailureRow(
        NOT_FOUND, "the namespace answers that the entity does not exist"
    ),
    "MessagingEntityDisabledError": _DISABLED,
    "MessagingEntityAlreadyExistsError": FailureRow(
        OTHER, "an answer to a creation; no send raises it"
    ),
    "ServiceBusQuotaExceededError": FailureRow(
        QUOTA, "the entity answers that it is full; its receivers must catch up"
    ),
    "MessageSizeExceededError": FailureRow(MESSAGE, "the message is too large for any entity"),
    "MessageAlreadySettled": _RECEIVING,
    "MessageLockLostError": _RECEIVING,
    "MessageNotFoundError": FailureRow(
        MESSAGE, "a scheduled message to cancel does not exist; the entity answered"
    ),
    "SessionLockLostError": _RECEIVING,
    "SessionCannotBeLockedError": _RECEIVING,
    "AutoLockRenewFailed": _RECEIVING,
    "AutoLockRenewTimeout": _RECEIVING,
    "ServiceBusError": FailureRow(
        UNREACHABLE, "plain: counts with the condition internal-error or none"
    ),
    # azure.core.exceptions, which fetching a token raises
    "ServiceRequestError": FailureRow(UNREACHABLE, "the token service cannot be reached"),
    "ServiceResponseError": FailureRow(UNREACHABLE, "the answer of the token service broke off"),
    "ClientAuthenticationError": FailureRow(
        UNAUTHORIZED, "the credential is invalid; one that wraps a network failure counts like it"
    ),
    "HttpResponseError": FailureRow(OTHER, "an answer over HTTP, so the service is up"),
    "AzureError": FailureRow(OTHER, "of no known kind, so no evidence of an outage"),
    # Python's own
    "TimeoutError": _TIMEOUT,
    "ConnectionError": FailureRow(UNREACHABLE, "the connection was refused, reset or aborted"),
    "EOFError": FailureRow(UNREACHABLE, "the connection ended in the middle"),
    "FileNotFoundError": FailureRow(OTHER, "a file of this machine, not the entity"),
    "PermissionError": FailureRow(OTHER, "this machine forbids it, not the entity"),
    "OSError": FailureRow(UNREACHABLE, "no route, no such host, or no TLS"),
    "TypeError": _BAD_ARGUMENT,
    "ValueError": FailureRow(MESSAGE, "a bad argument, or a sender that was closed"),
    "Exception": FailureRow(OTHER, "of no known kind, so no evidence of an outage"),
    "BaseException": FailureRow(OTHER, "the caller stops: a cancellation, an interrupt"),
}
"""Every class by name. Lookup follows the bases, so every exception has a row."""

CONDITIONS: Final[dict[str, FailureRow]] = {
    "amqp:internal-error": FailureRow(UNREACHABLE, "an internal error of the service"),
    "amqp:client-error": FailureRow(
        UNREACHABLE, "the SDK itself sets it when its connection is gone"
    ),
    "amqp:not-found": FailureRow(NOT_FOUND, "the entity does not exist"),
    "amqp:resource-deleted": FailureRow(NOT_FOUND, "the entity was deleted"),
    "com.microsoft:entity-disabled": _DISABLED,
    "amqp:unauthorized-access": FailureRow(UNAUTHORIZED, "a right must be granted"),
    "com.microsoft:auth-failed": FailureRow(UNAUTHORIZED, "the credential must be repaired"),
    "amqp:resource-limit-exceeded": FailureRow(QUOTA, "the entity is full"),
    "com.microsoft:server-busy": FailureRow(BUSY, "throttling is an answer"),
    "amqp:link:message-size-exceeded": FailureRow(MESSAGE, "the message is too large"),
    "amqp:not-allowed": FailureRow(MESSAGE, "not allowed on such an entity"),
    "amqp:not-implemented": FailureRow(MESSAGE, "the service has no such operation"),
    "amqp:decode-error": FailureRow(MESSAGE, "the service cannot decode the message"),
    "amqp:invalid-field": _BAD_ARGUMENT,
    "amqp:precondition-failed": FailureRow(MESSAGE, "the request was refused"),
    "com.microsoft:precondition-failed": FailureRow(MESSAGE, "the request was refused"),
    "com.microsoft:argument-error": _BAD_ARGUMENT,
    "com.microsoft:argument-out-of-range": _BAD_ARGUMENT,
}
"""The meaning of the AMQP condition of an exception that is judged by it."""

JUDGED_BY_CONDITION = frozenset({"ServiceBusError", "ServiceBusConnectionError"})
"""The plain error, and the one into which the SDK turns every fault of a connection, also of one
that the service closed because of a configuration error, which must not count."""

EXPIRED_HERE = "TokenExpired"
"""What the SDK raises by its own clock when a link was idle past the end of its token: it renews
tokens only while a link is used, in the last tenth of their life."""

TOKEN_REFUSALS = frozenset({"TokenAuthFailure", EXPIRED_HERE})
"""Errors that the SDK wraps when the namespace refused its token. The wrapper does not show it:
with a `custom_endpoint_address` it is a ServiceBusConnectionError, as for a broken connection."""

CREDENTIAL_FAILURE = "ClientAuthenticationError"
"""What a credential raises when it has no token, and what `CredentialUnavailableError` of
azure.identity derives from. It may only wrap that the token service cannot be reached."""

NETWORK_TEXTS = (
    "failed to resolve", "failed to establish a new connection", "cannot connect to host",
    "name resolution", "name or service not known", "nodename nor servname", "no route to host",
    "network is unreachable", "connection refused", "connection reset", "connection aborted",
    "connection timed out", "read timed out", "max retries exceeded",
)  # fmt: skip
"""What azure.core and its transports say of a broken network. A chain of credentials keeps only the
texts of its credentials' errors."""

ENTRA_REFUSAL = "aadsts"
"""Every refusal of Microsoft Entra has a code that begins so: then the token service answered."""

MISSING_STATUS = 404
"""Azure's answer to a token for an entity that does not exist, where the token has rights."""

SERVER_FAULTS = 500
"""A status from here on is an internal error of the namespace, not a bad token."""

WRAPPED_DEPTH_MAX = 4
"""Levels of wrapped exceptions that are followed. The SDK wraps once."""


def classify(error: BaseException) -> Verdict:
    """Whether a failed attempt counts towards a failover: the built-in answer."""
    return Verdict.COUNTS if meaning_of(error).counts else Verdict.IGNORED


def judge(
    error: BaseException, own: Callable[[BaseException], object] | None
) -> tuple[Verdict, str]:
    """The verdict of the user's own classifier, if there is one, and a complaint about it.

    If the classifier raises or does not return a Verdict, the built-in table judges instead: a bug
    in it must cost neither the failover nor the send's own error.
    """
    if own is None:
        return classify(error), ""
    kind = type(error).__name__
    try:
        verdict = own(error)
    except Exception as mistake:  # noqa: BLE001  # whatever it is, it is not the send's
        wrong = f"raised {error_text(mistake)} on {kind}"
    else:
        if isinstance(verdict, Verdict):
            return verdict, ""
        wrong = f"returned {verdict!r} for {kind}, not Verdict.COUNTS or Verdict.IGNORED"
    return classify(error), f"options.classify {wrong}; the built-in table judges instead"


def meaning_of(error: BaseException) -> FailureMeaning:
    """What a failed attempt says about its entity."""
    for _ in range(WRAPPED_DEPTH_MAX):
        wrapped = getattr(error, "inner_exception", None)
        if type(wrapped).__name__ == EXPIRED_HERE:
            return STALE
        if type(wrapped).__name__ in TOKEN_REFUSALS:
            return _meaning_of_refused_token(getattr(wrapped, "status_code", None))
        name = _known_name(error)
        meaning = TABLE[name].meaning
        if name == CREDENTIAL_FAILURE and _wraps_network_failure(error):
            return UNREACHABLE
        if name not in JUDGED_BY_CONDITION:
            return meaning
        condition = _condition_of(error)
        if condition:
            return _meaning_with_condition(name, condition)
        # The SDK's own AMQP errors have no class in the table: the wrapper says more.
        if not isinstance(wrapped, BaseException) or _known_name(wrapped) == "Exception":
            return meaning
        error = wrapped
    return OTHER


def _meaning_of_refused_token(status: object) -> FailureMeaning:
    if status == MISSING_STATUS:
        return NOT_FOUND
    return UNREACHABLE if isinstance(status, int) and status >= SERVER_FAULTS else UNAUTHORIZED


def refusing_setting(error: BaseException, queue: str) -> str | None:
    """The setting for which a queue refuses every diverted message, or every plain receiver.

    It is `sessions` or `forwarding`; None: the error has another reason. The service has one
    condition for both and for faults of a message, so its text decides.
    """
    text = str(error).lower().replace(queue.lower(), "")
    if "auto-forwarding" in text:
        return "forwarding"
    if _condition_of(error) != "amqp:not-allowed":
        return None
    return "sessions" if "session" in text else "forwarding" if "forward" in text else None


def _wraps_network_failure(error: BaseException) -> bool:
    """Whether a credential has no token because the token service could not be reached."""
    text = str(error).lower()
    if ENTRA_REFUSAL in text:
        return False
    if any(known in text for known in NETWORK_TEXTS):
        return True
    cause = error.__cause__ or error.__context__
    for _ in range(WRAPPED_DEPTH_MAX):
        if cause is None:
            return False
        name = _known_name(cause)
        if name != CREDENTIAL_FAILURE:
            return TABLE[name].meaning is UNREACHABLE
        cause = cause.__cause__ or cause.__context__
    return False


def refused_token(error: BaseException) -> str | None:
    """Return the namespace's reason for refusing a token; None if the error is another one.

    The SDK says "Service Bus has encountered an error" and keeps the reason inside.
    """
    inside = getattr(error, "inner_exception", None)
    if type(inside).__name__ not in TOKEN_REFUSALS:
        return None
    said = getattr(inside, "status_description", None) or getattr(inside, "description", None)
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said or "refused")
    text = " ".join(text.split())
    is_missing = getattr(inside, "status_code", None) == MISSING_STATUS
    return text if is_missing else f"the token was not accepted: {text}"


def _meaning_with_condition(name: str, condition: str) -> FailureMeaning:
    row = CONDITIONS.get(condition)
    if row is not None:
        return row.meaning
    # On a broken connection an unknown condition (detach-forced, socket-error, ...) is no
    # configuration error; on the plain error it is the service's answer to the request.
    return OTHER if name == "ServiceBusError" else TABLE[name].meaning


def _known_name(error: BaseException) -> str:
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in TABLE)


def is_answer(error: BaseException) -> bool:
    """Whether a failure is an answer of the entity, not silence or a broken connection."""
    meaning = meaning_of(error)
    if meaning is UNREACHABLE:
        return _condition_of(error) == "amqp:internal-error"
    return meaning is not OTHER


def _condition_of(error: BaseException) -> str:
    """The AMQP condition that the SDK keeps on its errors as text, bytes or an enum of bytes."""
    condition = getattr(error, "_condition", None)
    if isinstance(condition, Enum):
        condition = condition.value
    if isinstance(condition, bytes):
        return condition.decode("ascii", "replace")
    return condition if isinstance(condition, str) else ""
