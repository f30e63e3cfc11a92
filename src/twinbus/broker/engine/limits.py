"""What a client's things cost: memory, in bytes, and operations, in credits per second.

An entity's quota bounds the memory. Its constants are upper estimates for CPython on a 64-bit
machine; a unit test compares them with what CPython allocates.

Credits are counted as in the Standard tier of Azure Service Bus. Each second begins with the same
number. A message sent, received or peeked costs 1, each evaluation of a topic's filter 1 more, an
administration request 10. With no credit left, requests are answered server-busy until the next
second. An operation that begins with a credit left is carried out whole; what it overdraws is
missing in the next second.
"""

from __future__ import annotations

from dataclasses import fields
from sys import getsizeof

from twinbus.amqp.budgets import value_bytes
from twinbus.broker.descriptions import RuleDescription
from twinbus.broker.journal import SessionState, StoredMessage
from twinbus.broker.refusals import ServerBusy

MESSAGE_BYTES = 800
"""A message: entry, id, numbers, places in tables, and once its lock and timer."""

PLAIN_ID_LENGTH = 64
"""Characters of an id that are covered by `MESSAGE_BYTES`; a UUID has 36."""

MESSAGE_ID_BYTES = 220
"""A remembered id without its text: time, places in tables."""

SESSION_BYTES = 1_700
"""A session that has ready messages or is held, without its id."""

STATE_BYTES = 320
"""A session's state without its id and content."""

RULE_BYTES = 2_500
"""A rule without its texts and values."""

EXPRESSION_BYTES = 160
"""Each character of an expression, compiled."""


def is_plain(message: StoredMessage) -> bool:
    """Whether `MESSAGE_BYTES` covers the message."""
    return (
        message.session_id is None
        and message.overrides is None
        and len(message.message_id or "") <= PLAIN_ID_LENGTH
    )


def extra_bytes(message: StoredMessage) -> int:
    """The memory of a message beyond `MESSAGE_BYTES`; its payload stays on disk."""
    size = 0 if message.message_id is None else getsizeof(message.message_id)
    if message.session_id is not None:
        size += getsizeof(message.session_id)
    if message.overrides is not None:
        size += value_bytes(message.overrides)
    return size


def message_id_bytes(message_id: str) -> int:
    """The memory of an id that duplicate detection remembers."""
    return MESSAGE_ID_BYTES + getsizeof(message_id)


def state_bytes(session_id: str, state: SessionState | None) -> int:
    """The memory of a session's state; 0 where there is none."""
    if state is None:
        return 0
    return STATE_BYTES + getsizeof(session_id) + getsizeof(state.content)


def rule_bytes(rule: RuleDescription) -> int:
    size = RULE_BYTES + getsizeof(rule.name)
    for part in (rule.filter, rule.action):
        for field in fields(part) if part is not None else ():
            value = getattr(part, field.name)
            size += value_bytes(value)
            if field.name == "expression":
                size += EXPRESSION_BYTES * len(value)
    return size


ADMINISTRATION_COST = 10
PERIOD_MS = 1000

THROTTLED = (
    "The request was terminated because the entity is being throttled. Error code: 50009. Please"
    " wait 2 seconds and try again."
)


class CreditAccount:
    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._left = per_s
        self._period = 0
        self.throttled = 0
        """Requests that were answered server-busy."""

    def left(self, now_ms: int) -> float:
        """Credits left in this second; less than 1: requests are refused."""
        period = now_ms // PERIOD_MS
        if period != self._period:
            # A clock that was set back begins a new second too.
            passed = max(1, period - self._period)
            self._left = min(self._per_s, self._left + passed * self._per_s)
            self._period = period
        return self._left

    def spend(self, cost: int, now_ms: int) -> None:
        self._left = self.left(now_ms) - cost

    def require(self, cost: int, now_ms: int) -> None:
        """Subtract the cost of a request; `ServerBusy` if no credit is left."""
        if self.left(now_ms) < 1:
            self.throttled += 1
            raise ServerBusy(THROTTLED)
        self._left -= cost

    @staticmethod
    def wait_ms(now_ms: int) -> int:
        return PERIOD_MS - now_ms % PERIOD_MS
