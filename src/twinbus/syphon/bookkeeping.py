"""What a relay writes into the ledger: each operation on a backlog queue and on the primary.

One record for each message received, forwarded and completed, as the bill and the audit want it
(SPEC 8); one for each empty poll, request and renewal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from twinbus.syphon.actions import Complete, DeadLetter, Defer
from twinbus.syphon.parcel import Parcel

__all__ = ["Bookkeeper", "Ledger"]


_OPERATIONS: Final[dict[object, str]] = {
    Complete: "complete",
    DeadLetter: "dead_letter",
    Defer: "defer",
}
"""A message that is only given back costs nothing and is no record."""


class Ledger(Protocol):
    """Where records go: a LedgerWriter, or one that keeps nothing."""

    def record(self, operation: str, *, at_ms: int | None = None, **fields: object) -> None:
        """Note one operation."""


class Bookkeeper:
    """The records of one backlog queue."""

    __slots__ = ("_primary", "_queue", "_record", "_secondary")

    def __init__(self, ledger: Ledger, primary: str, secondary: str, queue: str) -> None:
        """`primary` and `secondary` are the labels of the namespaces."""
        self._record = ledger.record
        self._primary = primary
        self._secondary = secondary
        self._queue = queue

    def received(self, parcel: Parcel, now_ms: int) -> None:
        self._of_parcel("backlog_receive", parcel, at_ms=now_ms)

    def polled(self) -> None:
        self._at_source("backlog_receive", cause="poll", outcome="ok")

    def forwarded(self, parcels: Iterable[Parcel], now: float, now_ms: int) -> None:
        record, primary, queue = self._record, self._primary, self._queue
        for parcel in parcels:
            record(
                "forward",
                at_ms=now_ms,
                cause="syphon",
                namespace=primary,
                side="primary",
                entity=parcel.path,
                backlog_queue=queue,
                message_id=parcel.message_id,
                sequence_number=parcel.sequence_number,
                size_bytes=parcel.size_bytes,
                outcome="ok",
                latency_us=int((now - parcel.sent_at) * 1e6),
            )

    def not_forwarded(self, parcel: Parcel, error: str, *, is_known: bool) -> None:
        """`is_known` is false where the answer was lost: the primary may have it."""
        self._record(
            "forward",
            cause="syphon",
            namespace=self._primary,
            side="primary",
            entity=parcel.path,
            backlog_queue=self._queue,
            message_id=parcel.message_id,
            sequence_number=parcel.sequence_number,
            size_bytes=parcel.size_bytes,
            outcome="failed" if is_known else "unknown",
            error=error,
        )

    def settled(self, parcels: Iterable[Parcel], error: str | None = None) -> None:
        """What was decided about these was carried out, or refused with `error`."""
        outcome = "ok" if error is None else "failed"
        for parcel in parcels:
            kind = parcel.outcome if parcel.outcome is Complete else type(parcel.outcome)
            operation = _OPERATIONS.get(kind)
            if operation is not None:
                self._of_parcel(operation, parcel, outcome=outcome, error=error)

    def renewed(self, error: str | None = None) -> None:
        outcome = "ok" if error is None else "failed"
        self._at_source("renew", cause="syphon", outcome=outcome, error=error)

    def managed(self) -> None:
        """A peek, or a settlement by token."""
        self._at_source("manage", cause="syphon", outcome="ok")

    def _of_parcel(
        self,
        operation: str,
        parcel: Parcel,
        *,
        outcome: str = "ok",
        error: str | None = None,
        at_ms: int | None = None,
    ) -> None:
        self._record(
            operation,
            at_ms=at_ms,
            cause="syphon",
            namespace=self._secondary,
            side="secondary",
            entity=parcel.path or None,
            backlog_queue=self._queue,
            message_id=parcel.message_id,
            sequence_number=parcel.sequence_number,
            size_bytes=parcel.size_bytes,
            outcome=outcome,
            error=error,
        )

    def _at_source(
        self, operation: str, *, cause: str, outcome: str, error: str | None = None
    ) -> None:
        self._record(
            operation,
            cause=cause,
            namespace=self._secondary,
            side="secondary",
            backlog_queue=self._queue,
            outcome=outcome,
            error=error,
        )
