"""A transaction: sends and settlements that are applied together or not at all.

    open --commit: every check passes, then everything is applied in one call--> committed
      '----commit: a check fails, nothing has changed---------------------------> rolled back

Until then the messages are only here: nobody can receive them, they have no number and no place in
the history of duplicate detection. A settled message keeps its lock, which can still be lost.

Pure. Between the first and the last change of `commit` nothing else runs, so the changes are in one
batch of the journal, which is on disk as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from twinbus.amqp.budgets import value_bytes
from twinbus.broker.engine.directory import Entity
from twinbus.broker.engine.limits import MESSAGE_BYTES
from twinbus.broker.engine.namespace import BrokerNamespace
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import RequestedSettlement, SettlementOutcome
from twinbus.broker.messages.incoming import Incoming
from twinbus.broker.refusals import NotAllowed, QuotaExceeded, Refusal, TransactionRolledBack
from twinbus.servicebus.names import address_key, entity_of

OPERATIONS_MAX = 100
"""Messages sent and settled in one transaction, as in Azure."""

ABANDON = SettlementOutcome.ABANDON


class _Send(NamedTuple):
    target: Entity
    batch: Sequence[Incoming]


class _Settle(NamedTuple):
    queue: Queue
    wanted: RequestedSettlement


class BrokerTransaction:
    def __init__(self, namespace: BrokerNamespace) -> None:
        self._namespace = namespace
        self._work: list[_Send | _Settle] = []
        self._settled: dict[bytes, _Settle] = {}
        """By lock token."""
        self._final: dict[bytes, _Settle] = {}
        """Those that the receiver cannot settle again: a rollback abandons them."""
        self.operation_count = 0
        self.size_bytes = 0
        """Bytes of the messages and properties that wait here."""
        self.entity: str | None = None
        """The queue or topic of the first operation, to which all others must belong."""
        self._failure: Refusal | None = None

    def __repr__(self) -> str:
        return f"<transaction of {self.operation_count} operations, first on {self.entity!r}>"

    def send(
        self, target: Entity, batch: Sequence[Incoming], now_ms: int, *, through: str | None = None
    ) -> None:
        """Send a batch at the commit; raises a `Refusal` if it could not be sent now.

        `through` is the path of the entity that the operation counts for, where it is another.
        """
        entity = self._entity_of(target.path if through is None else through)
        self._require_place(len(batch))
        self._namespace.admit_all(target, batch, now_ms)
        size_bytes = sum(each.size_bytes for each in batch)
        self._add(_Send(target, batch), entity, len(batch), size_bytes)

    def settle(
        self, queue: Queue, wanted: RequestedSettlement, now_ms: int, *, is_final: bool = False
    ) -> None:
        """Settle a delivery at the commit; raises a `Refusal` if it could not be settled now.

        `is_final`: the receiver has settled for its part, so a rollback abandons the message.
        """
        step = self._settled.get(wanted.lock_token)
        if step is None:
            entity = self._entity_of(queue.path)
            self._require_place(1)
            queue.check_settlement(wanted, now_ms)
            step = self._settled[wanted.lock_token] = _Settle(queue, wanted)
            self._add(step, entity, 1, _added_bytes(wanted))
        elif step.wanted.outcome is not wanted.outcome:
            raise NotAllowed(
                f"the transaction settles this message already ({step.wanted.outcome.value}); "
                "settle each message once"
            )
        if is_final:
            self._final[wanted.lock_token] = step

    def doom(self, refusal: Refusal) -> None:
        """Let the commit fail: an operation was refused."""
        self._failure = self._failure or refusal

    def commit(self, now_ms: int) -> None:
        """Apply everything; `TransactionRolledBack` if that cannot be, and nothing has changed.

        Any other exception may have left a part of it in memory and in the journal, which must not
        be committed to disk.
        """
        try:
            if self._failure is not None:
                raise self._failure
            self._check(now_ms)
        except Refusal as refusal:
            raise TransactionRolledBack(
                f"The transaction was rolled back: {refusal.description}"
            ) from refusal
        for step in self._work:
            if isinstance(step, _Send):
                self._namespace.take_admitted(step.target, step.batch, now_ms)
            else:
                step.queue.settle_checked(step.wanted, now_ms)

    def roll_back(self, now_ms: int) -> None:
        """Give back what the receiver cannot settle again; it keeps the locks of the rest."""
        for token, step in self._final.items():
            with suppress(Refusal):  # The lock was lost: then the message is back already.
                step.queue.settle(token, ABANDON, now_ms, session_id=step.wanted.session_id)

    def _check(self, now_ms: int) -> None:
        """Raise unless every step could be applied now, after all those before it."""
        sends: dict[Entity, list[Incoming]] = {}
        memory_bytes = 0
        for step in self._work:
            if isinstance(step, _Send):
                sends.setdefault(step.target, []).extend(step.batch)
                continue
            step.queue.check_settlement(step.wanted, now_ms, reserved_memory_bytes=memory_bytes)
            memory_bytes += _added_bytes(step.wanted)
        for target, batch in sends.items():
            self._namespace.admit_all(target, batch, now_ms, memory_bytes)
            memory_bytes += MESSAGE_BYTES * len(batch)

    def _add(self, step: _Send | _Settle, entity: str, count: int, size_bytes: int) -> None:
        self._work.append(step)
        self.entity = entity
        self.operation_count += count
        self.size_bytes += size_bytes

    def _entity_of(self, path: str) -> str:
        """The queue or topic of an operation; raises if it is not the one of the transaction."""
        entity = address_key(entity_of(path))
        if self.entity is not None and entity != self.entity:
            raise NotAllowed(
                "Local transactions cannot span multiple top-level entities such as queue or "
                f"topic. The transaction began on {self.entity!r}; {path!r} is not a part of it."
            )
        return entity

    def _require_place(self, count: int) -> None:
        if self.operation_count + count > OPERATIONS_MAX:
            raise QuotaExceeded(
                f"Cannot send or settle more than {OPERATIONS_MAX} messages in a single "
                f"transaction; it has {self.operation_count}, and {count} would be added."
            )


def _added_bytes(wanted: RequestedSettlement) -> int:
    return value_bytes(wanted.overrides) if wanted.overrides else 0
