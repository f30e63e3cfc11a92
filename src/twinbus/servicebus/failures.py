"""What a failure says about an entity: one table of AMQP conditions, one of exception classes.

Every part of Twinbus speaks of failures in these meanings (docs/failures.md). Two kinds of
exception are judged by more than their class: one with an AMQP condition, and one that wraps
another. Our own client raises `NamespaceFailure`, which carries its meaning.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from twinbus.servicebus import conditions

Outcome = Literal["ok", "failed", "unknown"]


class FailureMeaning(Enum):
    """What a failure says about an entity, for sends, diverts, pings and forwards alike."""

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
        """Whether a backlog queue with this error is pulled from the rotation."""
        return self in (UNREACHABLE, NOT_FOUND, DISABLED, QUOTA)

    @property
    def unusable(self) -> bool:
        """Whether a ping with this error makes its entity UNUSABLE, unless `diverted_on` holds."""
        return self in (NOT_FOUND, DISABLED)

    def diverted_on(self, causes: Collection[str]) -> bool:
        """Whether the option `divert_on` with these causes makes it evidence for a failover.

        A ping that ends so leaves its entity FAILED_OVER (docs/failures.md).
        """
        return DIVERT_CAUSES.get(self) in causes


UNREACHABLE, BUSY, UNAUTHORIZED, NOT_FOUND, DISABLED, QUOTA, MESSAGE, STALE, OTHER = FailureMeaning

DivertCause = Literal["disabled", "full", "throttled"]

DIVERT_CAUSES: Final[dict[FailureMeaning, DivertCause]] = {
    DISABLED: "disabled",
    QUOTA: "full",
    BUSY: "throttled",
}
"""What else may count: the entity answers, and takes no message. Each has a name in `divert_on`."""


@dataclass(frozen=True, slots=True)
class FailureRow:
    """One line of the tables in docs/failures.md."""

    meaning: FailureMeaning
    reason: str


NO_ANSWER: Final = FailureRow(UNREACHABLE, "no answer within the attempt timeout")
ENTITY_DISABLED: Final = FailureRow(DISABLED, "an administrator disabled the entity")
BAD_ARGUMENT: Final = FailureRow(MESSAGE, "a bad argument")
_REFUSED: Final = FailureRow(MESSAGE, "the request was refused")
_RECEIVING: Final = FailureRow(OTHER, "concerns receiving; no send raises it")
_TOO_BUSY: Final = "throttling is an answer; sending elsewhere would evade the quota"

CONDITIONS: Final[dict[str, FailureRow]] = {
    conditions.INTERNAL_ERROR: FailureRow(UNREACHABLE, "an internal error of the service"),
    "amqp:client-error": FailureRow(
        UNREACHABLE, "the SDK itself sets it when its connection is gone"
    ),
    conditions.TIMEOUT: NO_ANSWER,
    conditions.NOT_FOUND: FailureRow(NOT_FOUND, "the entity does not exist"),
    conditions.RESOURCE_DELETED: FailureRow(NOT_FOUND, "the entity was deleted"),
    conditions.ENTITY_DISABLED: ENTITY_DISABLED,
    conditions.UNAUTHORIZED: FailureRow(UNAUTHORIZED, "a right must be granted"),
    conditions.AUTH_FAILED: FailureRow(UNAUTHORIZED, "the credential must be repaired"),
    conditions.RESOURCE_LIMIT: FailureRow(QUOTA, "the entity is full"),
    conditions.SERVER_BUSY: FailureRow(BUSY, "throttling is an answer"),
    conditions.MESSAGE_SIZE: FailureRow(MESSAGE, "the message is too large"),
    conditions.NOT_ALLOWED: FailureRow(MESSAGE, "not allowed on such an entity"),
    conditions.NOT_IMPLEMENTED: FailureRow(MESSAGE, "the service has no such operation"),
    conditions.DECODE_ERROR: FailureRow(MESSAGE, "the service cannot decode the message"),
    conditions.INVALID_FIELD: BAD_ARGUMENT,
    conditions.PRECONDITION_FAILED: _REFUSED,
    conditions.REQUEST_REFUSED: _REFUSED,
    conditions.ARGUMENT_INVALID: BAD_ARGUMENT,
    conditions.ARGUMENT_OUT_OF_RANGE: BAD_ARGUMENT,
}
"""The meaning of each AMQP condition."""

CLASSES: Final[dict[str, FailureRow]] = {
    # azure.servicebus.exceptions
    "OperationTimeoutError": NO_ANSWER,
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
    "MessagingEntityDisabledError": ENTITY_DISABLED,
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
    "TimeoutError": NO_ANSWER,
    "ConnectionError": FailureRow(UNREACHABLE, "the connection was refused, reset or aborted"),
    "EOFError": FailureRow(UNREACHABLE, "the connection ended in the middle"),
    "FileNotFoundError": FailureRow(OTHER, "a file of this machine, not the entity"),
    "PermissionError": FailureRow(OTHER, "this machine forbids it, not the entity"),
    "OSError": FailureRow(UNREACHABLE, "no route, no such host, or no TLS"),
    "TypeError": BAD_ARGUMENT,
    "ValueError": FailureRow(MESSAGE, "a bad argument, or a sender that was closed"),
    "Exception": FailureRow(OTHER, "of no known kind, so no evidence of an outage"),
    "BaseException": FailureRow(OTHER, "the caller stops: a cancellation, an interrupt"),
}
"""Every exception class by name, so that no package of Azure is imported here. The lookup follows
the bases, the most derived first: every exception has a row, and an unknown one its base's."""

CONDITION_OF: Final[dict[FailureMeaning, str]] = {
    NOT_FOUND: conditions.NOT_FOUND,
    DISABLED: conditions.ENTITY_DISABLED,
    UNAUTHORIZED: conditions.UNAUTHORIZED,
    QUOTA: conditions.RESOURCE_LIMIT,
    BUSY: conditions.SERVER_BUSY,
    MESSAGE: conditions.NOT_ALLOWED,
    # Every SDK sends again after these, as after a send that was not answered.
    UNREACHABLE: conditions.TIMEOUT,
    STALE: conditions.TIMEOUT,
    OTHER: conditions.TIMEOUT,
}
"""The condition for a client, of a failure that has none of its own."""

JUDGED_BY_CONDITION: Final = frozenset({"ServiceBusError", "ServiceBusConnectionError"})
"""The plain error, and the one into which the SDK turns every fault of a connection, also of one
that the service closed because of a configuration error, which must not count."""

EXPIRED_HERE: Final = "TokenExpired"
"""What the SDK raises by its own clock when a link was idle past the end of its token: it renews
tokens only while a link is used, in the last tenth of their life."""

TOKEN_REFUSALS: Final = frozenset({"TokenAuthFailure", EXPIRED_HERE})
"""Errors that the SDK wraps when the namespace refused its token. The wrapper does not show it:
with a `custom_endpoint_address` it is a ServiceBusConnectionError, as for a broken connection."""

CREDENTIAL_FAILURE: Final = "ClientAuthenticationError"
"""What a credential raises when it has no token, and what `CredentialUnavailableError` of
azure.identity derives from. It may only wrap that the token service cannot be reached."""

NETWORK_TEXTS: Final = (
    "failed to resolve", "failed to establish a new connection", "cannot connect to host",
    "name resolution", "name or service not known", "nodename nor servname", "no route to host",
    "network is unreachable", "connection refused", "connection reset", "connection aborted",
    "connection timed out", "read timed out", "max retries exceeded",
)  # fmt: skip
"""What azure.core and its transports say of a broken network. A chain of credentials keeps only the
texts of its credentials' errors."""

ENTRA_REFUSAL: Final = "aadsts"
"""Every refusal of Microsoft Entra has a code that begins so: then the token service answered."""

MISSING_STATUS: Final = 404
"""Azure's answer to a token for an entity that does not exist, where the token has rights."""

SERVER_FAULTS: Final = 500
"""A status from here on is an internal error of the namespace, not a bad token."""

NO_CONNECTION: Final = "Failed to initiate the connection"
"""The SDK's error text when there was no connection to send on."""

ANSWER_MIN_S: Final = 0.25
"""A call that waited for its link or for a sender, and had less than this left for the answer, is
no evidence: a send to Azure may take a tenth of a second or two."""

WRAPPED_DEPTH_MAX: Final = 4
"""Levels of wrapped exceptions that are followed. The SDK wraps once."""


class CutShort(TimeoutError):
    """The caller's own timeout left too little for an answer: no evidence against the entity."""


class OpeningCutShort(CutShort):
    """The caller's own timeout ended while the link was opening; nothing was sent."""


class NamespaceFailure(Exception):
    """A namespace refused what our own client sent, or did not answer."""

    def __init__(
        self, text: str, meaning: FailureMeaning, condition: str = "", *, may_be_stored: bool
    ) -> None:
        """`condition` is the namespace's own; "": it gave none."""
        super().__init__(text)
        self.meaning = meaning
        self.condition = condition
        self.may_be_stored = may_be_stored
        """A message was sent, and this is no answer to it."""


def own_failure(error: BaseException) -> NamespaceFailure | None:
    """The failure of our own client that an error is, or that it translates for the caller."""
    for one in (error, error.__cause__):
        if isinstance(one, NamespaceFailure):
            return one
    return None


def of_condition(
    condition: str | None, unknown: FailureMeaning = FailureMeaning.OTHER
) -> FailureMeaning:
    """The meaning of an AMQP condition; `unknown` for one that has no row."""
    row = CONDITIONS.get(condition or "")
    return unknown if row is None else row.meaning


SERVICE_DETACHES: Final = frozenset({"", conditions.DETACH_FORCED, conditions.CONNECTION_FORCED})
"""Conditions with which a service that goes away closes links; CONDITIONS has the others."""


def of_detach(condition: str, in_flight: int) -> FailureMeaning:
    """What a detach says to each of the deliveries that were on their way on the link.

    One of them may be its reason, and clients of a gateway share the link. So a condition that
    names no fault of the service is no evidence for an outage: a client that sends such a message
    again and again would fail the entity over for all. And it is the message's own fault only
    where no other one was on its way.
    """
    meaning = of_condition(condition, UNREACHABLE if condition in SERVICE_DETACHES else OTHER)
    return OTHER if meaning is MESSAGE and in_flight > 1 else meaning


def of_token_status(status: object) -> FailureMeaning:
    """The meaning of the status with which a namespace refused a token."""
    if status == MISSING_STATUS:
        return NOT_FOUND
    return UNREACHABLE if isinstance(status, int) and status >= SERVER_FAULTS else UNAUTHORIZED


def of_error(error: BaseException) -> FailureMeaning:
    """What the exception of a failed attempt says about its entity."""
    if isinstance(error, NamespaceFailure):
        return error.meaning
    for _ in range(WRAPPED_DEPTH_MAX):
        wrapped = getattr(error, "inner_exception", None)
        if type(wrapped).__name__ == EXPIRED_HERE:
            return STALE
        if type(wrapped).__name__ in TOKEN_REFUSALS:
            return of_token_status(getattr(wrapped, "status_code", None))
        name = _known_name(error)
        meaning = CLASSES[name].meaning
        if name == CREDENTIAL_FAILURE and _wraps_network_failure(error):
            return UNREACHABLE
        if name not in JUDGED_BY_CONDITION:
            return meaning
        condition = condition_of(error)
        if condition:
            # On a broken connection an unknown condition (detach-forced, socket-error, ...) is no
            # configuration error; on the plain error it is the service's answer to the request.
            return of_condition(condition, OTHER if name == "ServiceBusError" else meaning)
        # The SDK's own AMQP errors have no class in the table: the wrapper says more.
        if not isinstance(wrapped, BaseException) or _known_name(wrapped) == "Exception":
            return meaning
        error = wrapped
    return OTHER


def refusing_setting(error: BaseException, queue: str) -> str | None:
    """The setting for which a queue refuses every diverted message, or every plain receiver.

    It is `sessions` or `forwarding`; None: the error has another reason. The service has one
    condition for both and for faults of a message, so its text decides.
    """
    text = str(error).lower().replace(queue.lower(), "")
    if "auto-forwarding" in text:
        return "forwarding"
    if condition_of(error) != conditions.NOT_ALLOWED:
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
            return CLASSES[name].meaning is UNREACHABLE
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


def _known_name(error: BaseException) -> str:
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in CLASSES)


def is_answer(error: BaseException) -> bool:
    """Whether a failure is an answer of the entity, not silence or a broken connection."""
    meaning = of_error(error)
    if meaning is UNREACHABLE:
        return condition_of(error) == conditions.INTERNAL_ERROR
    return meaning is not OTHER


def is_timeout(error: BaseException) -> bool:
    """Whether a failure is the silence of its entity."""
    return _is(error, "OperationTimeoutError", conditions.TIMEOUT)


def is_too_large(error: BaseException) -> bool:
    """Whether an entity, or its link, refused messages for their size."""
    return _is(error, "MessageSizeExceededError", conditions.MESSAGE_SIZE)


def _is(error: BaseException, sdk_class: str, condition: str) -> bool:
    if isinstance(error, NamespaceFailure):
        return error.condition == condition
    return _known_name(error) == sdk_class


def kind_of(error: BaseException) -> str:
    """How an attempt failed, in two words at most, for people; one of a few fixed texts."""
    meaning = of_error(error)
    if meaning is not UNREACHABLE:
        return _KINDS.get(meaning, "other failure")
    if is_timeout(error) or isinstance(error, TimeoutError):
        return "timeout"
    return "internal error" if is_answer(error) else "connection error"


_KINDS: Final = {BUSY: "busy answer", DISABLED: "disabled answer", QUOTA: "full answer"}


def outcome_of(error: BaseException | None) -> Outcome:
    """Whether the call was carried out; "failed" needs an answer, or no connection at all."""
    if error is None:
        return "ok"
    if (own := own_failure(error)) is not None:
        return "unknown" if own.may_be_stored else "failed"
    if isinstance(error, ConnectionRefusedError) or NO_CONNECTION in str(error):
        return "failed"
    if isinstance(error.__cause__, OpeningCutShort):
        return "failed"
    is_cancelled = type(error).__name__ == "CancelledError"
    return "unknown" if is_cancelled or of_error(error) is UNREACHABLE else "failed"


def condition_of(error: BaseException) -> str:
    """The AMQP condition of an error; "": it has none.

    The SDK keeps it on its errors as text, bytes or an enum of bytes.
    """
    if isinstance(error, NamespaceFailure):
        return error.condition
    condition = getattr(error, "_condition", None)
    if isinstance(condition, Enum):
        condition = condition.value
    if isinstance(condition, bytes):
        return condition.decode("ascii", "replace")
    return condition if isinstance(condition, str) else ""
