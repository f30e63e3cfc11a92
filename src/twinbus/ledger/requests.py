"""Records the requests that Azure bills where they are made, so that none is missed.

docs/costs.md states the rules.

    with recording_to(ledger): ...           requests of this block and of the tasks it starts
    BilledRequests(namespace).made(...)      called by the code that sends a request

A request to the `$management` node of an entity, to the administration API, or for the lock of a
session is one record. Messages that are sent, received and settled have records of their own. A
token put to `$cbs` is not billed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from copy import copy
from functools import cache
from typing import Any, Final, Protocol

from twinbus.ledger.record import LedgerError
from twinbus.ledger.writer import NullLedger, open_ledger

LEDGER_VARIABLE: Final = "TWINBUS_LEDGER"

ACCEPT_SESSION: Final = "accept-session"

APPLICATION: Final = "application"
CONSUMER: Final = "consumer"
"""The causes of what the senders and the receivers of an application do."""

_RENEWALS: Final = frozenset({"renew-lock", "renew-session-lock"})


class RequestLedger(Protocol):
    """A LedgerWriter, or one that keeps nothing."""

    def record(self, operation: str, *, at_ms: int | None = None, **fields: object) -> None:
        """Write one record."""


_ledger: ContextVar[RequestLedger | None] = ContextVar("twinbus_ledger", default=None)


@contextlib.contextmanager
def recording_to(ledger: RequestLedger | None) -> Iterator[None]:
    """Record the requests of this block, and of its tasks and threads; None: as outside of it."""
    token = _ledger.set(ledger or _ledger.get())
    try:
        yield
    finally:
        _ledger.reset(token)


class BilledRequests:
    """The records of requests to one namespace."""

    def __init__(
        self,
        namespace: str,
        *,
        cause: str = "administration",
        side: str | None = None,
        pair: str | None = None,
        client: str | None = None,
        ledger: RequestLedger | None = None,
    ) -> None:
        """`ledger`: None for that of `recording_to`, or else of `$TWINBUS_LEDGER`.

        `pair` is the name of the pair, for requests about entities of the application: the path
        of a backlog queue has the label. `client` is the client of a gateway.
        """
        self.ledger = ledger or current_ledger()
        self.fields: dict[str, Any] = {
            "cause": cause,
            "pair": pair,
            "namespace": namespace,
            "side": side,
            "client": client,
        }
        """What all records have in common."""
        self._place = "entity" if cause in (CONSUMER, APPLICATION) else "backlog_queue"

    def of_client(self, client: str | None) -> BilledRequests:
        """Return the records of one client of a gateway; None: these."""
        if client is None:
            return self
        one = copy(self)
        one.fields = {**self.fields, "client": client}
        return one

    def made(
        self, path: str | None, request: str, error: str | None = None, *, is_known: bool = True
    ) -> None:
        """Record one request. `error`: why it failed; `is_known`: it was answered."""
        operation = "renew" if request in _RENEWALS else "manage"
        outcome = "ok" if error is None else "failed" if is_known else "unknown"
        where: dict[str, Any] = {self._place: path}
        self.ledger.record(operation, outcome=outcome, error=error, **where, **self.fields)


def current_ledger() -> RequestLedger:
    """Return the ledger of `recording_to`; outside of it that of `$TWINBUS_LEDGER`, if any."""
    return _ledger.get() or _opened(os.environ.get(LEDGER_VARIABLE, ""))


@cache
def _opened(directory: str) -> RequestLedger:
    # A URL names the ledger of Spark jobs: a process cannot write to it.
    with contextlib.suppress(LedgerError):
        return open_ledger(directory)
    return NullLedger()
