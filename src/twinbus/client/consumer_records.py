"""The ledger lines of what consumers receive and settle on one entity of one namespace.

    records = connection.records(path)           # None: there is no ledger
    names = records.received(data)               # one line for each message that was delivered
    records.settled("complete", names)           # and one for each settlement, with its result

Lines of one turn of the event loop are written together. A message that is not handed out has a
line of its release, also if the release could not be sent: nobody got that delivery.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from twinbus.client.outcomes import DEFERRED, RELEASE, SettlingOutcome
from twinbus.client.request_node import LinkEnded
from twinbus.ledger.record import ERROR_LENGTH_MAX
from twinbus.ledger.requests import ACCEPT_SESSION, BilledRequests
from twinbus.servicebus import conditions
from twinbus.servicebus.failures import NamespaceFailure
from twinbus.transfer.identity import Head, MessageNames, read_head, read_names

SECOND_COPY: Final = "second_copy"
"""State of the completion of a message that was not handed out, for its other copy was."""

RELEASED: Final = "release"
"""The operation of giving back what was not handed out."""

LEFT: Final = "left"
"""State of a release that nobody asked for: who had the message went, or could not settle it."""

DELETED: Final = "deleted"
"""State of a receive that completed the message too: no settlement follows."""

NOT_SETTLED: Final = "its receiver was closed and had not settled it"

NO_FREE_SESSION: Final = (conditions.TIMEOUT, conditions.SESSION_TAKEN)
"""Why an entity gives no session: none is free, or another receiver has it."""

NO_NAMES: Final[MessageNames] = (None, None)

OPERATIONS: Final = {
    "completed": "complete",
    "abandoned": "abandon",
    DEFERRED: "defer",
    "suspended": "dead_letter",
}
"""The ledger's operation of each status of `update-disposition`."""

_Row = tuple[str | None, int, int | None, int | None]
_Kind = tuple[str, str, str | None, str | None]
"""Operation, outcome, error and state."""

_RECEIVED: Final[_Kind] = ("receive", "ok", None, None)
_RECEIVED_AND_DELETED: Final[_Kind] = ("receive", "ok", None, DELETED)


class DeliveryLedger(Protocol):
    """A ledger that takes the lines of many messages at once."""

    def record_deliveries(
        self,
        operation: str,
        shared: tuple[tuple[str, object], ...],
        at_ms: int | None,
        deliveries: list[_Row],
    ) -> None: ...


class ConsumerRecords:
    """Writes the lines of one entity; belongs to an event loop."""

    def __init__(
        self,
        ledger: DeliveryLedger,
        requests: BilledRequests,
        entity: str,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._record = ledger.record_deliveries
        self._requests = requests
        self._entity = entity
        self._shared = (*requests.fields.items(), ("entity", entity))
        self._call_soon = loop.call_soon
        self._kinds: dict[_Kind, tuple[tuple[str, object], ...]] = {}
        self._rows: dict[_Kind, list[_Row]] = {}
        """The lines of this turn."""
        self._is_write_due = False

    def received(
        self, data: bytes, *, head: Head | None = None, is_deleted: bool = False
    ) -> MessageNames:
        """Note a message that was delivered; return what its settlement is recorded with.

        `head` is what was read of it already. `is_deleted`: the service keeps no copy of it
        (receive and delete).
        """
        names = read_names(data, head or read_head(data))
        kind = _RECEIVED_AND_DELETED if is_deleted else _RECEIVED
        self._add(kind, (names[0], len(data), names[1], None))
        return names

    def settled(
        self,
        operation: str,
        names: MessageNames,
        error: str | None = None,
        *,
        is_known: bool = True,
        state: str | None = None,
    ) -> None:
        """Note a settlement; `error` is why it failed, `is_known` whether it was answered."""
        row = (names[0], 0, names[1], None)
        if error is None:
            self._add((operation, "ok", None, state), row)
        else:
            outcome = "failed" if is_known else "unknown"
            self._add((operation, outcome, error[:ERROR_LENGTH_MAX], state), row)

    def left(self, names: MessageNames, why: str = NOT_SETTLED) -> None:
        """Note that who had this message has not settled it, and will not: nothing was sent."""
        self.settled(RELEASED, names, why, state=LEFT)

    def accepted_session(self) -> None:
        """Note a request for the lock of a session that was granted."""
        self._requests.made(self._entity, ACCEPT_SESSION)

    def refused_session(self, condition: str, text: str) -> None:
        """Note a request for a session that was not granted; without a condition: not answered."""
        # That none is free is an answer, like that of a receive which finds nothing.
        error = None if condition in NO_FREE_SESSION else condition or text[:ERROR_LENGTH_MAX]
        self._requests.made(self._entity, ACCEPT_SESSION, error, is_known=bool(condition))

    def gather(self) -> None:
        """The caller notes what the service answered, and calls `write` then."""
        self._is_write_due = True

    def write(self) -> None:
        """Write what was noted; called at the end of each turn, and when a link ends."""
        self._is_write_due = False
        noted, self._rows = self._rows, {}
        for kind, rows in noted.items():
            self._record(kind[0], self._shared_of(kind), None, rows)

    def _shared_of(self, kind: _Kind) -> tuple[tuple[str, object], ...]:
        """What the lines of one kind have in common; kept for those that did not fail."""
        kept = self._kinds.get(kind)
        if kept is not None:
            return kept
        _, outcome, error, state = kind
        made = (*self._shared, ("outcome", outcome), ("error", error), ("state", state))
        if error is None:
            self._kinds[kind] = made
        return made

    def _add(self, kind: _Kind, row: _Row) -> None:
        rows = self._rows.get(kind)
        if rows is not None:
            rows.append(row)
            return
        if not self._is_write_due:
            self._is_write_due = True
            self._call_soon(self.write)
        self._rows[kind] = [row]


def records_of(
    requests: BilledRequests | None, entity: str, loop: asyncio.AbstractEventLoop
) -> ConsumerRecords | None:
    """Return the records of an entity with the fields of `requests`; None: nothing keeps them."""
    ledger: Any = None if requests is None else requests.ledger
    if requests is None or not hasattr(ledger, "record_deliveries"):
        return None
    return ConsumerRecords(ledger, requests, entity, loop)


def operation_of(outcome: SettlingOutcome) -> str:
    """Return the ledger's operation of a settlement."""
    return RELEASED if outcome is RELEASE else OPERATIONS[outcome.status]


def result_of(error: Exception | None) -> tuple[str | None, bool]:
    """Return why a settlement on a link failed, and whether it was answered."""
    if error is None:
        return None, True
    condition = error.condition if isinstance(error, NamespaceFailure) else ""
    is_known = isinstance(error, NamespaceFailure) and not isinstance(error, LinkEnded)
    return condition or str(error) or type(error).__name__, is_known
