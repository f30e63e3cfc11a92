"""The operations of the engine, for the broker's view of the ledger: one row for each message.

Pure, and present only if the broker writes a ledger; without one the engine pays one check a batch.
The shell takes the rows at the end of the tick and writes them when the tick's commit is on disk.
`twinbus.broker.ledger_view` describes each operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from twinbus.broker.journal import StoredMessage

if TYPE_CHECKING:
    from twinbus.broker.messages.incoming import Incoming

Row = tuple[str | None, int, int | None, int | None]
"""Message id, size in bytes, sequence number, and the duration, which the broker does not know."""

_What = tuple[int, str, str, str | None, str | None, bool]


class LoggedOperation(NamedTuple):
    at_ms: int
    operation: str
    entity: str
    state: str | None
    error: str | None
    is_done: bool
    """False: it was refused, and `error` says why."""
    rows: list[Row]


class EngineLog:
    """Collects operations until the shell takes them."""

    __slots__ = ("_last", "_operations", "_rows")

    def __init__(self) -> None:
        self._operations: list[LoggedOperation] = []
        self._last: _What | None = None
        self._rows: list[Row] = []
        """Rows of the last operation; the next is often the same operation again."""

    def note(
        self,
        operation: str,
        entity: str,
        messages: Iterable[StoredMessage],
        now_ms: int,
        *,
        state: str | None = None,
        error: str | None = None,
    ) -> None:
        """Note an operation on stored messages, under the numbers they have now."""
        rows: list[Row] = [(m.message_id, m.size_bytes, m.sequence_number, None) for m in messages]
        if rows:
            self._add((now_ms, operation, entity, state, error, True), rows)

    def sent(
        self,
        entity: str,
        incoming: Incoming,
        stored: StoredMessage | None,
        now_ms: int,
        *,
        is_duplicate: bool,
    ) -> None:
        """Note an accepted message; `stored` is it as the entity keeps it, if it does."""
        if incoming.is_ping:
            self._add((now_ms, "ping", entity, None, None, True), (_row_of(incoming),))
            return
        number = None if stored is None else stored.sequence_number
        state = "duplicate" if is_duplicate else None
        if stored is not None and stored.scheduled_for_ms > now_ms:
            state = "scheduled"
        row = (incoming.message_id, incoming.size_bytes, number, None)
        self._add((now_ms, "send", entity, state, None, True), (row,))

    def refused(self, entity: str, batch: Sequence[Incoming], error: str, now_ms: int) -> None:
        """Note refused messages; an empty batch is one that could not be decoded."""
        rows = [_row_of(incoming) for incoming in batch] or [(None, 0, None, None)]
        self._add((now_ms, "send", entity, None, error, False), rows)

    def deleted(self, entity: str, now_ms: int) -> None:
        self._add((now_ms, "manage", entity, "deleted", None, True), ((None, 0, None, None),))

    def take(self) -> list[LoggedOperation]:
        """Return and clear the operations noted since the last call."""
        operations, self._operations, self._last = self._operations, [], None
        return operations

    def _add(self, what: _What, rows: Iterable[Row]) -> None:
        if what == self._last:
            self._rows.extend(rows)
            return
        self._last, self._rows = what, [*rows]
        self._operations.append(LoggedOperation(*what, self._rows))


def _row_of(incoming: Incoming) -> Row:
    return incoming.message_id, incoming.size_bytes, None, None
