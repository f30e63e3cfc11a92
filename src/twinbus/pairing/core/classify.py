"""What a failure says about the entity: one table, by the class of the exception (SPEC 3).

An exception is looked up by the names of its classes, the most derived first, so that nothing of
azure is imported here and an unknown subclass is judged as what it derives from. Two kinds of
exception are judged by more than their class: one that carries an AMQP condition, and one that the
SDK made only to wrap another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from twinbus.options import Verdict

__all__ = ["CONDITIONS", "TABLE", "FailureMeaning", "FailureRow", "classify", "judge", "meaning_of"]


class FailureMeaning(Enum):
    """What an exception tells of an entity, for sends, diverts and pings alike."""

    UNREACHABLE = "cannot be reached or cannot answer"
    BUSY = "answers, and asks for patience"
    UNAUTHORIZED = "answers, and does not let this application in"
    NOT_FOUND = "does not exist"
    DISABLED = "is disabled"
    QUOTA = "is full"
    MESSAGE = "refuses this message or this call for what it is"
    OTHER = "nothing"

    @property
    def counts(self) -> bool:
        """Evidence for a failover."""
        return self is FailureMeaning.UNREACHABLE

    @property
    def retried(self) -> bool:
        """Waiting may help. All else goes to the caller at once: it will be no truer later."""
        return self in (FailureMeaning.UNREACHABLE, FailureMeaning.BUSY)

    @property
    def pulls_queue(self) -> bool:
        """A backlog queue that says this is pulled from the rotation (SPEC 3, Diverting)."""
        return self in _OF_THE_QUEUE

    @property
    def unusable(self) -> bool:
        """A ping that ends so makes its entity UNUSABLE (SPEC 5)."""
        return self in (FailureMeaning.NOT_FOUND, FailureMeaning.DISABLED)


_OF_THE_QUEUE = frozenset(
    {
        FailureMeaning.UNREACHABLE,
        FailureMeaning.NOT_FOUND,
        FailureMeaning.DISABLED,
        FailureMeaning.QUOTA,
    }
)


@dataclass(frozen=True, slots=True)
class FailureRow:
    """One line of the table in the docs."""

    meaning: FailureMeaning
    reason: str


_RECEIVING = "is about receiving; no send raises it"

TABLE: Final[dict[str, FailureRow]] = {
    # azure.servicebus.exceptions
    "OperationTimeoutError": FailureRow(
        FailureMeaning.UNREACHABLE, "no answer within the attempt's time"
    ),
    "ServiceBusConnectionError": FailureRow(
        FailureMeaning.UNREACHABLE,
        "the connection broke, or the link was detached without a reason in us",
    ),
    "ServiceBusCommunicationError": FailureRow(
        FailureMeaning.UNREACHABLE, "no connection can be made"
    ),
    "ServiceBusServerBusyError": FailureRow(
        FailureMeaning.BUSY, "throttling is an answer; sending elsewhere would only dodge the quota"
    ),
    "ServiceBusAuthenticationError": FailureRow(
        FailureMeaning.UNAUTHORIZED, "a credential to mend; the secondary is no way round it"
    ),
    "ServiceBusAuthorizationError": FailureRow(
        FailureMeaning.UNAUTHORIZED, "a right to grant; the secondary is no way round it"
    ),
    "MessagingEntityNotFoundError": FailureRow(
        FailureMeaning.NOT_FOUND, "the namespace answers that there is no such entity"
    ),
    "MessagingEntityDisabledError": FailureRow(
        FailureMeaning.DISABLED, "somebody switched the entity off"
    ),
    "MessagingEntityAlreadyExistsError": FailureRow(
        FailureMeaning.OTHER, "an answer to a creation; no send raises it"
    ),
    "ServiceBusQuotaExceededError": FailureRow(
        FailureMeaning.QUOTA, "the entity answers that it is full; its receivers must catch up"
    ),
    "MessageSizeExceededError": FailureRow(
        FailureMeaning.MESSAGE, "too large here is too large everywhere"
    ),
    "MessageAlreadySettled": FailureRow(FailureMeaning.OTHER, _RECEIVING),
    "MessageLockLostError": FailureRow(FailureMeaning.OTHER, _RECEIVING),
    "MessageNotFoundError": FailureRow(
        FailureMeaning.MESSAGE, "a scheduled message to cancel is not there; the entity answered"
    ),
    "SessionLockLostError": FailureRow(FailureMeaning.OTHER, _RECEIVING),
    "SessionCannotBeLockedError": FailureRow(FailureMeaning.OTHER, _RECEIVING),
    "AutoLockRenewFailed": FailureRow(FailureMeaning.OTHER, _RECEIVING),
    "AutoLockRenewTimeout": FailureRow(FailureMeaning.OTHER, _RECEIVING),
    "ServiceBusError": FailureRow(
        FailureMeaning.UNREACHABLE, "plain: counts with the condition internal-error or none"
    ),
    # azure.core.exceptions, which fetching a token raises
    "ServiceRequestError": FailureRow(
        FailureMeaning.UNREACHABLE, "the token service cannot be reached"
    ),
    "ServiceResponseError": FailureRow(
        FailureMeaning.UNREACHABLE, "the token service's answer broke off"
    ),
    "ClientAuthenticationError": FailureRow(
        FailureMeaning.UNAUTHORIZED, "the token service answers that the credential is not good"
    ),
    "HttpResponseError": FailureRow(
        FailureMeaning.OTHER, "an answer over HTTP, so that something answers"
    ),
    "AzureError": FailureRow(FailureMeaning.OTHER, "of no known kind, so no evidence of an outage"),
    # Python's own
    "TimeoutError": FailureRow(FailureMeaning.UNREACHABLE, "no answer within the attempt's time"),
    "ConnectionError": FailureRow(
        FailureMeaning.UNREACHABLE, "the connection was refused, reset or aborted"
    ),
    "EOFError": FailureRow(FailureMeaning.UNREACHABLE, "the connection ended in the middle"),
    "FileNotFoundError": FailureRow(FailureMeaning.OTHER, "a file of this machine, not the entity"),
    "PermissionError": FailureRow(FailureMeaning.OTHER, "this machine forbids it, not the entity"),
    "OSError": FailureRow(
        FailureMeaning.UNREACHABLE, "no route, no such host, no TLS: not reached"
    ),
    "TypeError": FailureRow(FailureMeaning.MESSAGE, "a bad argument"),
    "ValueError": FailureRow(FailureMeaning.MESSAGE, "a bad argument, or a sender that was closed"),
    "Exception": FailureRow(FailureMeaning.OTHER, "of no known kind, so no evidence of an outage"),
    "BaseException": FailureRow(
        FailureMeaning.OTHER, "the caller stops: a cancellation, an interrupt"
    ),
}
"""Every class by name. Looked up along the bases, so that each exception meets some row."""

CONDITIONS: Final[dict[str, FailureRow]] = {
    "amqp:internal-error": FailureRow(FailureMeaning.UNREACHABLE, "the service failed inside"),
    "amqp:client-error": FailureRow(
        FailureMeaning.UNREACHABLE,
        "made by the SDK itself when its connection is gone: none, in truth",
    ),
    "amqp:not-found": FailureRow(FailureMeaning.NOT_FOUND, "there is no such entity"),
    "amqp:resource-deleted": FailureRow(FailureMeaning.NOT_FOUND, "the entity was deleted"),
    "com.microsoft:entity-disabled": FailureRow(
        FailureMeaning.DISABLED, "somebody switched the entity off"
    ),
    "amqp:unauthorized-access": FailureRow(FailureMeaning.UNAUTHORIZED, "a right to grant"),
    "com.microsoft:auth-failed": FailureRow(FailureMeaning.UNAUTHORIZED, "a credential to mend"),
    "amqp:resource-limit-exceeded": FailureRow(FailureMeaning.QUOTA, "the entity is full"),
    "com.microsoft:server-busy": FailureRow(FailureMeaning.BUSY, "throttling is an answer"),
    "amqp:link:message-size-exceeded": FailureRow(FailureMeaning.MESSAGE, "too large"),
    "amqp:not-allowed": FailureRow(FailureMeaning.MESSAGE, "not allowed on such an entity"),
    "amqp:not-implemented": FailureRow(
        FailureMeaning.MESSAGE, "the service does not do such things"
    ),
    "amqp:decode-error": FailureRow(FailureMeaning.MESSAGE, "the service cannot read the message"),
    "amqp:invalid-field": FailureRow(FailureMeaning.MESSAGE, "a bad argument"),
    "amqp:precondition-failed": FailureRow(FailureMeaning.MESSAGE, "refused for what it asks"),
    "com.microsoft:precondition-failed": FailureRow(
        FailureMeaning.MESSAGE, "refused for what it asks"
    ),
    "com.microsoft:argument-error": FailureRow(FailureMeaning.MESSAGE, "a bad argument"),
    "com.microsoft:argument-out-of-range": FailureRow(FailureMeaning.MESSAGE, "a bad argument"),
}
"""What a condition says of an exception that is judged by it."""

JUDGED_BY_CONDITION = frozenset({"ServiceBusError", "ServiceBusConnectionError"})
"""The plain error, and the one into which the SDK turns every fault of a connection: also one that
the service closed for a reason of configuration, which must not count."""

TOKEN_REFUSALS = frozenset({"TokenAuthFailure", "TokenExpired"})
"""What the SDK wraps when the namespace did not take its token. The wrapper does not tell: with a
`custom_endpoint_address` it is a ServiceBusConnectionError, as for a connection that is gone."""

SERVER_FAULTS = 500
"""A status from here on says that the namespace failed inside, not that the token is bad."""

WRAPPED_DEPTH_MAX = 4
"""How far to look inside an exception that wraps another. The SDK wraps once."""


def classify(error: BaseException) -> Verdict:
    """Whether a failed attempt counts towards a failover: the built-in answer."""
    return Verdict.COUNTS if meaning_of(error).counts else Verdict.IGNORED


def judge(
    error: BaseException, own: Callable[[BaseException], object] | None
) -> tuple[Verdict, str]:
    """The verdict of the user's own classifier, if there is one, and what is wrong with that one.

    One that raises, or answers with something else than a Verdict, is replaced by the built-in
    table: in an outage a mistake in it must cost neither the failover nor the send's own error.
    """
    if own is None:
        return classify(error), ""
    kind = type(error).__name__
    try:
        verdict = own(error)
    except Exception as mistake:  # noqa: BLE001  # whatever it is, it is not the send's
        wrong = f"raised {type(mistake).__name__}: {mistake} on {kind}"
    else:
        if isinstance(verdict, Verdict):
            return verdict, ""
        wrong = f"returned {verdict!r} for {kind}, not Verdict.COUNTS or Verdict.IGNORED"
    return classify(error), f"options.classify {wrong}; the built-in table judges instead"


def meaning_of(error: BaseException) -> FailureMeaning:
    """What a failed attempt says about its entity."""
    for _ in range(WRAPPED_DEPTH_MAX):
        wrapped = getattr(error, "inner_exception", None)
        if type(wrapped).__name__ in TOKEN_REFUSALS:
            status = getattr(wrapped, "status_code", None)
            is_fault = isinstance(status, int) and status >= SERVER_FAULTS
            return FailureMeaning.UNREACHABLE if is_fault else FailureMeaning.UNAUTHORIZED
        name = _known_name(error)
        meaning = TABLE[name].meaning
        if name not in JUDGED_BY_CONDITION:
            return meaning
        condition = _condition_of(error)
        if condition:
            return _meaning_with_condition(name, condition)
        # An AMQP error of the SDK's own has no class in the table: its wrapper says more.
        if not isinstance(wrapped, BaseException) or _known_name(wrapped) == "Exception":
            return meaning
        error = wrapped
    return FailureMeaning.OTHER


def _meaning_with_condition(name: str, condition: str) -> FailureMeaning:
    row = CONDITIONS.get(condition)
    if row is not None:
        return row.meaning
    # An unknown condition on a broken connection (detach-forced, socket-error, ...) names no
    # configuration; on the plain error it is the service's answer to what was asked.
    return FailureMeaning.OTHER if name == "ServiceBusError" else TABLE[name].meaning


def _known_name(error: BaseException) -> str:
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in TABLE)


def _condition_of(error: BaseException) -> str:
    """The AMQP condition that the SDK keeps on its errors as text, bytes or an enum of bytes."""
    condition = getattr(error, "_condition", None)
    if isinstance(condition, Enum):
        condition = condition.value
    if isinstance(condition, bytes):
        return condition.decode("ascii", "replace")
    return condition if isinstance(condition, str) else ""
