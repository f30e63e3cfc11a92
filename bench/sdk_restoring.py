"""Restores backlog messages as objects of azure-servicebus, for pumps built on the official SDK.

Twinbus itself restores raw AMQP sections (`twinbus.transfer.sections`). In the SDK a dict of TYPE
and VALUE states the AMQP type of a value, and a tuple of descriptor and value is a described value.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from twinbus.amqp.types import Described, Symbol, Timestamp
from twinbus.servicebus.names import PARTITION_KEY, SCHEDULED_TIME
from twinbus.transfer.aliases import RESERVED_KEYS, Aliases

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def from_backlog_message(message: Any) -> tuple[Any, Aliases]:
    """Return the original message, as an AmqpAnnotatedMessage, and the aliases it had."""
    source = getattr(message, "raw_amqp_message", message)
    custom = source.application_properties or {}
    aliases = Aliases.read({_text(name): _plain_value(value) for name, value in custom.items()})
    result = _twin(source)
    result.header, result.properties = _twin(source.header), _twin(source.properties)
    kept = {name: value for name, value in custom.items() if name not in RESERVED_KEYS}
    result.application_properties = kept or None
    annotations = dict(source.annotations or {})
    is_identified = aliases.message_id is not None or aliases.session_id is not None
    if is_identified and result.properties is None:
        # The class of the message creates the parts that are missing.
        result.properties = type(source)(
            value_body=None, properties={"message_id": None}
        ).properties
    if aliases.message_id is not None:
        result.properties.message_id = aliases.message_id
    if aliases.session_id is not None:
        result.properties.group_id = aliases.session_id
        if aliases.partition_key_is_session:
            annotations[PARTITION_KEY.encode()] = aliases.session_id
    if aliases.time_to_live_ms is not None:
        # The SDK derives the absolute expiry from it when the copy is sent.
        if result.header is None:
            result.header = type(source)(value_body=None, header={"durable": None}).header
        result.header.time_to_live = aliases.time_to_live_ms
    if aliases.scheduled_ms is not None:
        scheduled = EPOCH + timedelta(milliseconds=aliases.scheduled_ms)
        annotations[SCHEDULED_TIME.encode()] = scheduled
    result.annotations = annotations or None
    return result, aliases


def _twin(source: Any) -> Any:
    """Return a shallow copy of a plain SDK object, four times as fast as `copy.copy`."""
    if source is None:
        return None
    result = object.__new__(type(source))
    result.__dict__.update(source.__dict__)
    return result


def _plain_value(value: Any) -> object:
    """Return a value as our codec reads it, from any form that the SDK uses."""
    match value:
        case bytes():
            return _text(value)
        case datetime():
            return Timestamp((value - EPOCH) // timedelta(milliseconds=1))
        case {"TYPE": "TIMESTAMP", "VALUE": int(moment)}:
            return Timestamp(moment)
        case {"TYPE": "SYMBOL", "VALUE": name}:
            return Symbol(_text(name))
        case {"TYPE": _, "VALUE": plain}:
            return plain
        case (descriptor, described):
            return Described(_plain_value(descriptor), _plain_value(described))
    return value


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
