"""The broker's view of the ledger: its own operations, beside the records of its clients.

Every record has `view` "broker", the name of the namespace, the path of the entity, and of a
message its id, size and sequence number there. Names and paths are the broker's own: a message in
the backlog is in `contoso/x-servicebus-transfer/3`, whatever it is on its way to. One record for
each message:

    send         accepted (outcome ok): stored, to be acknowledged. `state` is "scheduled"
                 for one that waits for its time, "duplicate" for one that duplicate detection
                 dropped. Or refused (outcome failed), and `error` says why; then nothing was kept
    ping         a ping was answered
    receive      delivered to a receiver, to be settled; once for each delivery
    complete     gone, settled by its receiver; received and deleted is `receive` and `complete`
    abandon      given back by its receiver, which had failed with it
    release      given back by its receiver, which had not handed it out. `state` "left": the
                 receiver of its session left and had not settled it
    defer        deferred by its receiver
    dead_letter  moved to the entity's dead-letter queue, by its receiver or by the broker; `error`
                 has the reason ("TTLExpiredException" for one that expired there)
    expire       gone: it expired, and the entity does not dead-letter expired messages
    forward      came from another entity of the namespace by auto-forwarding; "duplicate" as above
    manage       `state` "cancelled": a scheduled message, gone. `state` "deleted": the entity, with
                 all that was in it
    state        without an entity: "serving" at the start, "stopped" at an orderly end. Behind
                 "serving", "recovered" for each backlog queue that holds messages, with their
                 count in `lines`, then one without an entity, with the count of all of them

A message whose lock ends by itself has no record; its next `receive` shows it.
Records are written once the change is on disk and before the client gets its answer, so a `kill -9`
loses nothing that a client knows; "serving" without a "stopped" before it shows such an end. What
the broker finds on its disk at its next start closes that gap: the store is the truth again.
Records that could not be written are counted.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinbus.errors import BrokerStartError
from twinbus.ledger import LedgerError, LedgerWriter
from twinbus.ledger.record import ERROR_LENGTH_MAX
from twinbus.servicebus.names import BACKLOG_MARK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinbus.broker.engine.engine_log import LoggedOperation


def open_view_ledger(directory: Path | str) -> LedgerWriter:
    """A writer for the views of all namespaces; BrokerStartError where it could not write."""
    try:
        writer = LedgerWriter(directory)
    except LedgerError as error:
        raise BrokerStartError(str(error)) from error
    try:
        writer.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BrokerStartError(f"no ledger can be kept in {writer.directory}: {reason}") from error
    if not os.access(writer.directory, os.W_OK | os.X_OK):
        raise BrokerStartError(
            f"no ledger can be kept in {writer.directory}: it may not be written to; name another"
        )
    return writer


class BrokerView:
    def __init__(self, ledger: LedgerWriter, namespace: str) -> None:
        self._ledger = ledger
        self._namespace = namespace

    @property
    def unrecorded(self) -> int:
        """Records that the ledger could not take, of all this process's namespaces."""
        return self._ledger.unrecorded

    def opened(self, held: Mapping[str, int]) -> None:
        """Record a start, and how many messages are in each queue, by its path."""
        self._record_state("serving")
        backlog = {path: count for path, count in held.items() if BACKLOG_MARK in path.lower()}
        for path, count in backlog.items():
            if count:
                self._record_state("recovered", entity=path, lines=count)
        self._record_state("recovered", lines=sum(backlog.values()))

    def closed(self) -> None:
        """Record an orderly end: no record is missing."""
        self._record_state("stopped")

    def write(self, operations: Sequence[LoggedOperation]) -> None:
        for at_ms, operation, entity, state, error, is_done, rows in operations:
            shared = (
                ("namespace", self._namespace),
                ("entity", entity),
                ("outcome", "ok" if is_done else "failed"),
                ("error", None if error is None else error[:ERROR_LENGTH_MAX]),
                ("state", state),
                ("view", "broker"),
            )
            self._ledger.record_deliveries(operation, shared, at_ms, rows)
        # At once, not later by the writer's thread: clients must not know more than the ledger.
        self._ledger.flush()

    def _record_state(
        self, state: str, *, entity: str | None = None, lines: int | None = None
    ) -> None:
        where: dict[str, Any] = {"namespace": self._namespace, "entity": entity, "lines": lines}
        self._ledger.record("state", state=state, view="broker", **where)
