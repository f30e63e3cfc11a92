"""The clients of a command, and their errors as one line."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, cast

from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.exceptions import ServiceBusError

from twinbus.errors import MissingRightError, TwinbusError
from twinbus.ledger import NullLedger
from twinbus.ledger.requests import BilledRequests, current_ledger
from twinbus.namespace.administration_client import administration_client
from twinbus.namespace.namespace import Namespace
from twinbus.namespace.tokens import refusal_error
from twinbus.pairing.observing.recording import PairLedger, Recorder
from twinbus.pairing.sdk.administration import (
    BacklogAdministration,
    SecondaryUnreachable,
    first_line,
)
from twinbus.servicebus.failures import FailureMeaning, of_error

FORBIDDEN: Final = (401, 403)

CALL_S: Final = 20.0
"""Timeout of one administration call: a person waits longer than an application does."""


class UnreachableError(TwinbusError):
    """A namespace does not answer, or answers with an internal error."""


@asynccontextmanager
async def administration(
    namespace: Namespace, doing: str
) -> AsyncIterator[ServiceBusAdministrationClient]:
    """Yield the administration client of a namespace; `explained` translates its errors."""
    with explained(namespace, doing, "Manage"):
        async with administration_client(namespace, BilledRequests(namespace.label)) as client:
            yield client


@asynccontextmanager
async def creating(
    primary: Namespace, secondary: Namespace, doing: str, otherwise: str = ""
) -> AsyncIterator[BacklogAdministration]:
    """Yield what creates queues of a pair; `doing` and `otherwise` are for the error texts."""
    # The calls need no more of a ledger than `record`.
    ledger = cast("PairLedger", current_ledger())
    recorder = Recorder(ledger, primary, secondary, is_on=not isinstance(ledger, NullLedger))
    try:
        async with BacklogAdministration(secondary, recorder, timeout_s=CALL_S) as calls:
            yield calls
    except SecondaryUnreachable as error:
        raise UnreachableError(str(error)) from error
    except MissingRightError as error:
        raise refusal_error(
            secondary.endpoint,
            str(error.__cause__),
            f"{doing} in {secondary.endpoint} needs the Manage right, and this credential does"
            f" not have it; use one that does{otherwise}",
        ) from error


@contextmanager
def explained(namespace: Namespace, doing: str, right: str) -> Iterator[None]:
    """Translate what the SDK raises in the block; `doing` is a gerund, and needs `right`."""
    try:
        yield
    except (AzureError, ServiceBusError, OSError, ValueError) as error:
        raise _translated(error, namespace.endpoint, doing, right) from error


def _translated(error: Exception, endpoint: str, doing: str, right: str) -> TwinbusError:
    text = first_line(error) or type(error).__name__
    status = getattr(error, "status_code", None)
    meaning = of_error(error)
    if (
        isinstance(error, ClientAuthenticationError)
        or status in FORBIDDEN
        or meaning is FailureMeaning.UNAUTHORIZED
    ):
        return refusal_error(
            endpoint,
            f"{text} {error}",
            f"{doing} in {endpoint} needs the {right} right, and the credential is refused or"
            f" does not have it ({text})",
        )
    if meaning is FailureMeaning.UNREACHABLE and status is None:
        return UnreachableError(f"{endpoint} cannot be reached: {text}")
    return UnreachableError(f"{doing} in {endpoint} failed: {text}")
