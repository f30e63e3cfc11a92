"""Converts message objects of azure-servicebus to the backlog form; makes copies.

The code uses the attributes of the objects, not their classes, so that it does not import azure. In
the SDK a dict of TYPE and VALUE states the AMQP type of a value, and a tuple of descriptor and
value is a described value.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from twinbus.amqp.types import Described, Timestamp, ULong
from twinbus.errors import ReservedPropertyError
from twinbus.servicebus.names import PARTITION_KEY, SCHEDULED_TIME
from twinbus.transfer.aliases import (
    RESERVED_NAMES,
    Aliases,
    MessageId,
    lifetime_ms,
    replaceable_id,
)

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def to_backlog_message(message: Any, path: str, *, now_ms: int, own_id: str | None = None) -> Any:
    """Return a copy in backlog form, an AmqpAnnotatedMessage; the message is not changed.

    `message` is a ServiceBusMessage or an AmqpAnnotatedMessage; `own_id` replaces the id of one
    that has one. Raise ReservedPropertyError if a property has the name of an alias,
    BacklogGuardError if the syphon could not restore the message.
    """
    source = _annotated(message)
    custom = dict(source.application_properties or {})
    for name in custom:
        if _text(name) in RESERVED_NAMES:
            raise ReservedPropertyError(_text(name))
    result = _copied(source)
    result.application_properties = custom
    session_id = _take_session(result)
    aliases = Aliases(
        path=path,
        session_id=session_id,
        time_to_live_ms=_take_time_to_live(result, now_ms),
        scheduled_ms=_take_scheduled(result),
        partition_key_is_session=_take_partition_key(result, session_id),
        message_id=_replace_id(result, own_id),
    )
    aliases.require_restorable()
    custom |= {name: _sdk_value(value) for name, value in aliases.as_properties().items()}
    return result


def with_message_id(message: Any, message_id: str) -> Any:
    """Return a copy with this id, an AmqpAnnotatedMessage; the message is not changed."""
    result = _copied(_annotated(message))
    if result.properties is None:
        # The class of the message creates the properties.
        result.properties = type(result)(
            value_body=None, properties={"message_id": None}
        ).properties
    result.properties.message_id = message_id
    return result


def with_property(message: Any, name: str, value: str) -> Any:
    """Return a copy with this application property, an AmqpAnnotatedMessage.

    It replaces a property of the same name; the message is not changed.
    """
    source = _annotated(message)
    result = _copied(source)
    custom = source.application_properties or {}
    result.application_properties = {key: one for key, one in custom.items() if _text(key) != name}
    result.application_properties[name] = value
    return result


def _annotated(message: Any) -> Any:
    raw = getattr(message, "raw_amqp_message", message)
    if not hasattr(raw, "delivery_annotations"):
        raise TypeError(
            "only a ServiceBusMessage or an AmqpAnnotatedMessage can be diverted; "
            f"got {type(message).__name__}"
        )
    return raw


def _copied(source: Any) -> Any:
    """Return a copy that shares the body, and no part that will be changed."""
    result = _twin(source)
    result.header = _twin(source.header)
    result.properties = _twin(source.properties)
    result.annotations = dict(source.annotations) if source.annotations else source.annotations
    return result


def _twin(source: Any) -> Any:
    """Return a shallow copy of a plain SDK object, four times as fast as `copy.copy`."""
    if source is None:
        return None
    result = object.__new__(type(source))
    result.__dict__.update(source.__dict__)
    return result


def _replace_id(message: Any, own_id: str | None) -> MessageId | None:
    if own_id is None or message.properties is None:
        return None
    replaced = replaceable_id(message.properties.message_id)
    if replaced is not None:
        message.properties.message_id = own_id
    return replaced


def _take_session(message: Any) -> str | None:
    session_id = message.properties.group_id if message.properties is not None else None
    if session_id is None:
        return None
    message.properties.group_id = None
    return _text(session_id)


def _take_time_to_live(message: Any, now_ms: int) -> int | None:
    header, properties = message.header, message.properties
    ttl_ms = header.time_to_live if header is not None else None
    expiry = properties.absolute_expiry_time if properties is not None else None
    if ttl_ms is None and expiry is not None:
        creation = properties.creation_time
        ttl_ms = lifetime_ms(int(expiry), now_ms if creation is None else int(creation))
    if ttl_ms is None:
        return None
    if header is not None:
        header.time_to_live = None
    if expiry is not None:
        properties.absolute_expiry_time = properties.creation_time = None
    return int(ttl_ms)


def _take_scheduled(message: Any) -> int | None:
    key, value = _annotation(message, SCHEDULED_TIME)
    if isinstance(value, dict):
        value = value.get("VALUE")
    if isinstance(value, datetime):
        # A date without a zone is in UTC, as in the SDK.
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        value = (aware - EPOCH) // timedelta(milliseconds=1)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    del message.annotations[key]
    return int(value)


def _take_partition_key(message: Any, session_id: str | None) -> bool:
    key, value = _annotation(message, PARTITION_KEY)
    if session_id is None or value is None or _text(value) != session_id:
        return False
    del message.annotations[key]
    return True


def _annotation(message: Any, name: str) -> tuple[Any, Any]:
    """Return the annotation's key as the message has it, text or bytes, and its value."""
    annotations = message.annotations or {}
    for key in (name.encode(), name):
        if annotations.get(key) is not None:
            return key, annotations[key]
    return None, None


def _sdk_value(value: object) -> object:
    """Return a value with its AMQP type in the form that the SDK encodes."""
    if isinstance(value, Described):
        descriptor = {"TYPE": "SYMBOL", "VALUE": str(value.descriptor).encode()}
        return descriptor, {"TYPE": "LONG", "VALUE": value.value}
    if isinstance(value, Timestamp):
        return {"TYPE": "TIMESTAMP", "VALUE": int(value)}
    if isinstance(value, ULong):
        return {"TYPE": "ULONG", "VALUE": int(value)}
    return value


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
