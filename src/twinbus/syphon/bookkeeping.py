"""Writes the operations of a relay to the ledger, and the outages of both sides to the log.

One record for each message received, forwarded and settled, for the bill and the audit,
and one for each empty poll. The connection records its requests (`twinbus.ledger.requests`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from twinbus.servicebus.names import BACKLOG_MARK
from twinbus.syphon.core.actions import Complete, DeadLetter, Defer
from twinbus.transfer.unpacking import BacklogMessage

_OPERATIONS: Final[dict[object, str]] = {DeadLetter: "dead_letter", Defer: "defer"}
"""A released message costs nothing and has no record."""


Shared = tuple[tuple[str, object], ...]
"""The fields that the records of several messages share, with their values."""

Row = tuple[str | None, int, int, int | None]
"""One message: id, bytes that the operation carried, sequence number, latency in us if known.

A message is larger when it is received, with the annotations of its delivery, than when it is sent.
A settlement carries no message."""


class RelayLedger(Protocol):
    """A ledger: a LedgerWriter, or one that keeps nothing.

    If it has `record_deliveries`, the records of many messages are written with one cheap call. If
    it has `keeps_records = False`, no records of messages are written.
    """

    def record(self, operation: str, *, at_ms: int | None = None, **fields: object) -> None:
        """Write one record."""


class Bookkeeper:
    """Writes the records of one backlog queue, or of one twin."""

    def __init__(self, ledger: RelayLedger, primary: str, secondary: str, queue: str) -> None:
        """`primary` and `secondary` are the labels of the namespaces."""
        self.pair = None if BACKLOG_MARK in queue.lower() else f"{primary}+{secondary}"
        """The name of the pair, for a twin: the path of a backlog queue has the label."""
        self._record = ledger.record
        self._record_many: Callable[[str, Shared, int | None, list[Row]], None] = getattr(
            ledger, "record_deliveries", self._record_each
        )
        self._keeps: bool = getattr(ledger, "keeps_records", True)
        self._primary = primary
        self._secondary = secondary
        self._queue = queue

    def received(self, messages: list[BacklogMessage], now_ms: int) -> None:
        if self._keeps:
            for path, some in _by_path(messages):
                shared = self._shared(path, self._secondary, "secondary")
                rows: list[Row] = [
                    (p.message_id, p.size_bytes, p.sequence_number, None) for p in some
                ]
                self._record_many("backlog_receive", shared, now_ms, rows)

    def polled(self) -> None:
        """Record a poll that found nothing."""
        fields = dict(self._shared("", self._secondary, "secondary"))
        self._record("backlog_receive", at_ms=None, **fields | {"cause": "poll"})

    def forwarded(self, messages: list[BacklogMessage], now: float, now_ms: int) -> None:
        if self._keeps:
            for path, some in _by_path(messages):
                shared = self._shared(path, self._primary, "primary")
                rows: list[Row] = [
                    (p.message_id, len(p.wire), p.sequence_number, int((now - p.sent_at) * 1e6))
                    for p in some
                ]
                self._record_many("forward", shared, now_ms, rows)

    def not_forwarded(self, message: BacklogMessage, error: str, *, is_known: bool) -> None:
        """Record a failed forward. `is_known` is false if the answer was lost."""
        fields = dict(self._shared(message.path, self._primary, "primary", error)) | {
            "message_id": message.message_id,
            "sequence_number": message.sequence_number,
            "size_bytes": len(message.wire),
            "outcome": "failed" if is_known else "unknown",
        }
        self._record("forward", at_ms=None, **fields)

    def settled(self, messages: list[BacklogMessage], error: str | None = None) -> None:
        """Record that the backlog queue settled messages, or refused to with `error`."""
        if not self._keeps:
            return
        completed: list[BacklogMessage] = []
        for message in messages:
            outcome = message.outcome
            if outcome is Complete:
                completed.append(message)
            elif (operation := _OPERATIONS.get(type(outcome))) is not None:
                shared = self._shared(message.path, self._secondary, "secondary", error)
                self._record_many(operation, shared, None, _settled_rows([message]))
        for path, some in _by_path(completed):
            shared = self._shared(path, self._secondary, "secondary", error)
            self._record_many("complete", shared, None, _settled_rows(some))

    def _shared(self, path: str, namespace: str, side: str, error: str | None = None) -> Shared:
        pair = () if self.pair is None else (("pair", self.pair),)
        return (
            ("cause", "syphon"),
            *pair,
            ("namespace", namespace),
            ("side", side),
            ("entity", path or None),
            ("backlog_queue", self._queue),
            ("outcome", "ok" if error is None else "failed"),
            ("error", error),
        )

    def _record_each(
        self, operation: str, shared: Shared, at_ms: int | None, rows: list[Row]
    ) -> None:
        for message_id, size_bytes, sequence_number, latency_us in rows:
            fields = {
                **dict(shared),
                "message_id": message_id,
                "sequence_number": sequence_number,
                "size_bytes": size_bytes,
                "latency_us": latency_us,
            }
            self._record(operation, at_ms=at_ms, **fields)


def _by_path(messages: list[BacklogMessage]) -> Iterable[tuple[str, list[BacklogMessage]]]:
    if len({message.path for message in messages}) <= 1:
        return [(messages[0].path, messages)] if messages else []
    found: dict[str, list[BacklogMessage]] = {}
    for message in messages:
        found.setdefault(message.path, []).append(message)
    return found.items()


def _settled_rows(messages: list[BacklogMessage]) -> list[Row]:
    return [(p.message_id, 0, p.sequence_number, None) for p in messages]


log = logging.getLogger("twinbus.syphon")

SAME_OUTAGE_S: Final = 60.0
"""Losses of several relays within this time are one outage."""


class OutageLog:
    """The sides that the relays of one process have lost."""

    def __init__(self) -> None:
        self._lost_at: dict[str, dict[str, float]] = {"primary": {}, "secondary": {}}
        """By side and backlog queue, when it was lost."""
        self._warned_at = dict.fromkeys(self._lost_at, float("-inf"))

    def lost(self, side: str, queue: str, reason: str, now: float) -> None:
        """Note that a relay lost a side, or did not get it back."""
        lost_at = self._lost_at[side]
        level = logging.DEBUG
        if queue not in lost_at and now >= self._warned_at[side] + SAME_OUTAGE_S:
            level = logging.WARNING
            self._warned_at[side] = now
        lost_at.setdefault(queue, now)
        log.log(level, "the %s is lost, reconnecting: %s [%s]", side, reason, queue)

    def ended(self, queue: str) -> None:
        """Forget a relay that was closed: it does not get back what it has lost."""
        for lost_at in self._lost_at.values():
            lost_at.pop(queue, None)

    def back(self, side: str, queue: str, now: float) -> None:
        since = self._lost_at[side].pop(queue, None)
        if since is not None and not self._lost_at[side]:
            self._warned_at[side] = float("-inf")
            log.warning("the %s is back after %.0f s", side, now - since)
