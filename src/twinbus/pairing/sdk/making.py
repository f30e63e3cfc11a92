"""Makes the SDK's objects of a received message without its constructors, which take half the time.

Their attributes are set at once. That is done only if the SDK in use sets exactly those that are
known here, which a specimen shows before the first message; else its constructors do it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiveMode
from azure.servicebus._pyamqp.message import Header, Message, Properties
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType
from azure.servicebus.amqp._amqp_message import AmqpMessageHeader, AmqpMessageProperties

Frame = tuple[None, int | None, bytes]
"""What the SDK reads of a transfer: the delivery id and the tag."""

_PEEK_LOCK: Final = ServiceBusReceiveMode.PEEK_LOCK
_DELETES: Final = ServiceBusReceiveMode.RECEIVE_AND_DELETE
_DATA: Final = AmqpMessageBodyType.DATA

_new: Final[Any] = object.__new__


def received_object(
    receiver: Any,
    decoded: Message,
    frame: Frame | None,
    mode: ServiceBusReceiveMode = _PEEK_LOCK,
    **how: Any,
) -> ServiceBusReceivedMessage:
    """Return the object that the SDK's constructor makes of a decoded message.

    `how` are the SDK's own: lock_token, is_deferred_message, is_peeked_message.
    """
    if how or frame is None or not decoded.data or not is_known():
        return _constructed(receiver, decoded, frame, mode, **how)
    return _made(receiver, decoded, frame, mode)


def _constructed(
    receiver: Any, decoded: Message, frame: Any, mode: ServiceBusReceiveMode, **how: Any
) -> ServiceBusReceivedMessage:
    return ServiceBusReceivedMessage(
        decoded, receive_mode=mode, frame=frame, receiver=receiver, **how
    )


def _made(
    receiver: Any, decoded: Message, frame: Frame, mode: ServiceBusReceiveMode
) -> ServiceBusReceivedMessage:
    """The object of a message that came by a transfer, with a body of data."""
    header, delivery, annotations, properties, application, data, _, _, footer = decoded
    raw = _new(AmqpAnnotatedMessage)
    raw.__dict__ = {
        "_encoding": "UTF-8",
        "_data_body": list(data),  # type: ignore[arg-type]
        "_sequence_body": None,
        "_value_body": None,
        "_properties": None if properties is None else _properties(properties),
        "_header": None if header is None else _header(header),
        "_footer": footer,
        "_annotations": annotations,
        "_delivery_annotations": delivery,
        "_application_properties": application,
        "_body_type": _DATA,
    }
    made: ServiceBusReceivedMessage = _new(ServiceBusReceivedMessage)
    made.__dict__ = {
        "_amqp_transport": PyamqpTransport,
        "_encoding": "UTF-8",
        "_uamqp_message": None,
        "_message": decoded,
        "_raw_amqp_message": raw,
        "_settled": mode == _DELETES,
        "_delivery_tag": frame[2],
        "_delivery_id": frame[1],
        "_received_lock_token": None,
        "_received_timestamp_utc": datetime.now(UTC),
        "_is_deferred_message": False,
        "_is_peeked_message": False,
        "auto_renew_error": None,
        "_receiver": receiver,
        "_expiry": None,
    }
    return made


def _properties(given: Properties) -> Any:
    (
        message_id, user_id, to, subject, reply_to, correlation_id, content_type, content_encoding,
        absolute_expiry_time, creation_time, group_id, group_sequence, reply_to_group_id,
    ) = given  # fmt: skip
    made = _new(AmqpMessageProperties)
    made.__dict__ = {
        "message_id": message_id,
        "user_id": user_id,
        "to": to,
        "subject": subject,
        "reply_to": reply_to,
        "correlation_id": correlation_id,
        "content_type": content_type,
        "content_encoding": content_encoding,
        "creation_time": creation_time,
        "absolute_expiry_time": absolute_expiry_time,
        "group_id": group_id,
        "group_sequence": group_sequence,
        "reply_to_group_id": reply_to_group_id,
    }
    return made


def _header(given: Header) -> Any:
    durable, priority, time_to_live, first_acquirer, delivery_count = given
    made = _new(AmqpMessageHeader)
    made.__dict__ = {
        "delivery_count": delivery_count,
        "time_to_live": time_to_live,
        "first_acquirer": first_acquirer,
        "durable": durable,
        "priority": priority,
    }
    return made


def parts_of(message: ServiceBusReceivedMessage) -> list[list[tuple[str, Any]]]:
    """The attributes of a message and of its parts, in order, but for when it was received."""
    found: list[list[tuple[str, Any]]] = []
    for part in (
        message,
        message.raw_amqp_message,
        message.raw_amqp_message.properties,
        message.raw_amqp_message.header,
    ):
        attributes = {} if part is None else vars(part)
        found.append([(name, _compared(value)) for name, value in attributes.items()])
    return found


def _compared(value: Any) -> Any:
    # The parts are compared by themselves, and each message has a time of its own.
    is_part = isinstance(value, AmqpAnnotatedMessage | AmqpMessageProperties | AmqpMessageHeader)
    return type(value) if is_part or isinstance(value, datetime) else value


@cache
def is_known() -> bool:
    """Whether the SDK's constructors set the attributes that are set here."""
    # Each value is another one, so that none may be exchanged for its neighbour.
    specimen = Message(
        Header(*range(5)), {b"a": 1}, {b"b": 2}, Properties(*range(13)), {b"c": 3}, [b"d"],
        None, None, {b"e": 4},
    )  # fmt: skip
    receiver, frame = object(), (None, 7, b"tag")
    try:
        ours = _made(receiver, specimen, frame, _PEEK_LOCK)
        theirs = _constructed(receiver, specimen, frame, _PEEK_LOCK)
        return parts_of(ours) == parts_of(theirs)
    except Exception:  # noqa: BLE001  # another SDK: it may raise anything
        return False
