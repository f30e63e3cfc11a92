"""Memory that the engine keeps for a client's things, in bytes. An entity's quota bounds it.

The constants are upper estimates for CPython on a 64-bit machine; a unit test compares them with
what CPython allocates.
"""

from __future__ import annotations

from dataclasses import fields
from sys import getsizeof

from twinbus.amqp.types import Described
from twinbus.broker.descriptions import RuleDescription
from twinbus.broker.journal import SessionState, StoredMessage

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

_ENTRY_BYTES = 120
"""A place in a map or a list, and what the container itself needs."""


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
    """The memory of a rule, compiled."""
    size = RULE_BYTES + getsizeof(rule.name)
    for part in (rule.filter, rule.action):
        for field in fields(part) if part is not None else ():
            value = getattr(part, field.name)
            size += value_bytes(value)
            if field.name == "expression":
                size += EXPRESSION_BYTES * len(value)
    return size


def value_bytes(value: object) -> int:
    """The memory of an AMQP value; maps and lists with all they hold."""
    if isinstance(value, dict):
        entries = [*value, *value.values()]
    elif isinstance(value, (list, tuple)):
        entries = [*value]
    elif isinstance(value, Described):
        entries = [value.descriptor, value.value]
    else:
        return getsizeof(value)
    return getsizeof(None) + sum(_ENTRY_BYTES + value_bytes(each) for each in entries)
