"""Deliveries, their locks, and the outcomes of settlement.

A lock stands for one unsettled delivery. It ends once: settled by its token, or expired. In a queue
with sessions a message's lock lives as long as its session's, so only plain locks have deadlines.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from twinbus.amqp.encoding import encode
from twinbus.broker.descriptions import (
    MAX_DELIVERY_COUNT_LIMIT,
    QueueDescription,
    SubscriptionDescription,
)
from twinbus.broker.engine.deadlines import Deadlines
from twinbus.broker.journal import StoredMessage
from twinbus.broker.refusals import ArgumentOutOfRange

REASON = "DeadLetterReason"
ERROR_DESCRIPTION = "DeadLetterErrorDescription"

# The reasons that Azure writes into a message it dead-letters by itself.
EXPIRED = "TTLExpiredException"
DELIVERED_TOO_OFTEN = "MaxDeliveryCountExceeded"
TOO_MANY_HOPS = "MaxTransferHopCountExceeded"
NO_SESSION_ID = "Session id is null."
FILTER_FAILED = "FilterException"
CANNOT_FORWARD = "ForwardingRefused"

OVERRIDE_BYTES_MAX = 64 * 1024
"""Properties that receivers give to a message, all together: as many as its sender may in Azure."""


class SettlementOutcome(Enum):
    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"
    DEAD_LETTER = "dead-letter"
    RELEASE = "release"
    """Ready again, without counting as a failed delivery."""


class Delivery(NamedTuple):
    message: StoredMessage
    lock_token: bytes
    locked_until_ms: int
    payload: bytes | None = None
    """Only of a message received and deleted: the store no longer has it."""


class Locks:
    """The deliveries of one queue that are not settled yet, by lock token."""

    __slots__ = ("_deliveries", "deadlines")

    def __init__(self) -> None:
        self._deliveries: dict[bytes, Delivery] = {}
        self.deadlines: Deadlines[bytes] = Deadlines(self._expiry_of)

    def __len__(self) -> int:
        return len(self._deliveries)

    def _expiry_of(self, token: bytes) -> int:
        delivery = self._deliveries.get(token)
        return 0 if delivery is None else delivery.locked_until_ms

    def add(
        self,
        messages: list[StoredMessage],
        fresh: Callable[[], bytes],
        until_ms: int,
        *,
        timed: bool,
    ) -> list[Delivery]:
        """Lock messages under fresh tokens; `timed` locks expire by themselves."""
        held = self._deliveries
        make = Delivery._make  # half the cost of the constructor, and this is the hot path
        deliveries = []
        for message in messages:
            message.lock_token = token = fresh()
            delivery = held[token] = make((message, token, until_ms, None))
            deliveries.append(delivery)
        if timed:
            self.deadlines.add_all(until_ms, [delivery.lock_token for delivery in deliveries])
        return deliveries

    def get(self, token: bytes) -> Delivery | None:
        """The delivery that the token locks, if it still does."""
        return self._deliveries.get(token)

    def hold(self, tokens: list[bytes], now_ms: int) -> bool:
        held = self._deliveries
        try:
            return all(held[token].locked_until_ms > now_ms for token in tokens)
        except KeyError:
            return False

    def renew(self, token: bytes, until_ms: int) -> None:
        self._deliveries[token] = self._deliveries[token]._replace(locked_until_ms=until_ms)
        self.deadlines.add(until_ms, token)

    def remove(self, token: bytes) -> StoredMessage:
        """End a lock; return its message."""
        message = self._deliveries.pop(token).message
        message.lock_token = None
        return message

    def clear(self) -> None:
        """End every lock at once, when the queue is deleted."""
        for token in list(self._deliveries):
            self.remove(token)


def dead_letter_description(parent: QueueDescription | SubscriptionDescription) -> QueueDescription:
    """The settings of an entity's dead-letter queue: no sessions, no expiry, no delivery limit."""
    return QueueDescription(
        lock_duration_ms=parent.lock_duration_ms,
        max_delivery_count=MAX_DELIVERY_COUNT_LIMIT,
        status=parent.status,
        forward_to=parent.forward_dead_letters_to,
    )


def require_bounded(changes: dict[str, object], reason: str | None, text: str | None) -> None:
    """Raise if what receivers give to a message is too much."""
    own = {name: value for name, value in ((REASON, reason), (ERROR_DESCRIPTION, text)) if value}
    size_bytes = len(encode({**changes, **own}))
    if size_bytes > OVERRIDE_BYTES_MAX:
        raise ArgumentOutOfRange(
            f"the properties that receivers gave to the message have {size_bytes} bytes, the limit "
            f"is {OVERRIDE_BYTES_MAX}; give it shorter ones"
        )
