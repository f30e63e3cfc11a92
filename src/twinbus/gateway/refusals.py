"""What the gateway answers to its clients: the condition of a failure, and addresses it refuses."""

from __future__ import annotations

from twinbus.broker.refusals import NotAllowed, Refusal
from twinbus.errors import (
    BacklogGuardError,
    BacklogMessageTooLargeError,
    EntityUnusableError,
    PairClosedError,
)
from twinbus.servicebus import conditions
from twinbus.servicebus.failures import (
    CONDITION_OF,
    NamespaceFailure,
    is_too_large,
    of_condition,
    of_error,
)


class UpstreamRefusal(Refusal):
    """A refusal of the primary, handed on with its condition and text."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.condition = condition


def refusal_of(error: Exception) -> Refusal:
    """The refusal for the client of a send that failed; it has the namespace's own condition."""
    if isinstance(error, Refusal):
        return error
    condition, meaning = "", of_error(error)
    # Not the condition of a token that could not be fetched because its service is down.
    if isinstance(error, NamespaceFailure) and of_condition(error.condition, meaning) is meaning:
        condition = error.condition
    if isinstance(error, BacklogMessageTooLargeError) or is_too_large(error):
        condition = conditions.MESSAGE_SIZE
    elif isinstance(error, BacklogGuardError):
        # A retry would have the same result, so no condition after which SDKs retry.
        condition = conditions.NOT_ALLOWED
    elif isinstance(error, EntityUnusableError):
        condition = conditions.NOT_FOUND
    elif isinstance(error, PairClosedError):
        condition = conditions.SERVER_BUSY
    return UpstreamRefusal(condition or CONDITION_OF[meaning], str(error))


def require_plain(path: str) -> None:
    """Raise `NotAllowed` for a path that the primary might read as another one.

    A token may be for one entity only. `orders/../payments` begins with that entity, and the
    gateway's own credential would then reach `payments` at a server that resolves the path.
    """
    parts = path.split("/")
    if "%" in path or "\\" in path or any(part in {".", ".."} for part in parts) or "" in parts[1:]:
        raise NotAllowed(f"{path!r:.280} is no address of an entity or its nodes.")
