"""Requests to a `$management` node and responses, as AMQP messages; what an operation may use.

request   application properties: operation, associated-link-name; body: a map of arguments
response  application properties: statusCode, statusDescription, errorCondition; body: a map
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from twinbus.amqp.message import (
    Properties,
    Sections,
    decode_map,
    decode_properties,
    decode_value,
    encode_message,
)
from twinbus.amqp.types import DecodeError, Int, Symbol
from twinbus.broker.engine.limits import CreditAccount
from twinbus.broker.engine.namespace import BrokerNamespace
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.topic import Topic
from twinbus.broker.refusals import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    MalformedMessage,
    NotAllowed,
    Refusal,
)
from twinbus.broker.sas import LISTEN

Body = dict[str, Any] | None
"""The body of a response; None is status 204, no content."""

ITEMS_MAX = 4000
"""Lock tokens, sequence numbers or messages in one request; Azure's limit for a batch delete."""

INT_MAX = 2**31 - 1
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
"""What a sequence number and a timestamp can be. An AMQP ulong can be more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ManagementContext:
    namespace: BrokerNamespace
    address: str
    """Of the entity: "orders", "topic/subscriptions/x", "orders/$deadletterqueue"."""
    require: Callable[[str], None]
    """Raises `Unauthorized` unless the client has the right on this entity."""
    holder: Callable[[str], object | None]
    """Who holds locks for the client's link of that name."""
    payload: Callable[[int, int], bytes]
    """The stored payload of a message, by entity id and sequence number."""
    new_message_id: Callable[[], str]
    track: Callable[[Refusal], None] = lambda _refusal: None
    """Adds a TrackingId to the text of a refusal."""
    credits: CreditAccount | None = None
    """Present if the namespace limits operations per second."""

    def queue(self) -> Queue:
        """The queue, subscription or dead-letter queue at the address, if the client may listen."""
        self.require(LISTEN)
        entity = self.namespace.resolve(self.address)
        if isinstance(entity, Topic):
            raise NotAllowed(
                f"{entity.path!r} is a topic and holds no messages to receive; use a subscription."
            )
        return entity


class ManagementRequest:
    """One request: what to do, with which arguments, and through which of the client's links."""

    __slots__ = ("_arguments", "link_name", "operation")

    def __init__(self, sections: Sections) -> None:
        """Read a request; `MalformedMessage` if it is none."""
        try:
            headers = decode_map(sections.application_properties)
            body = decode_value(sections.body) if sections.body else {}
        except DecodeError as error:
            raise MalformedMessage(f"The request cannot be read: {error}") from error
        if not isinstance(body, dict):
            raise MalformedMessage("The body of a management request must be a map.")
        self._arguments: dict[str, Any] = {str(name): value for name, value in body.items()}
        self.operation = text_of(headers.get("operation")) or ""
        self.link_name = text_of(headers.get("associated-link-name"))

    def get(self, name: str) -> Any:
        """The argument as it was sent; None if it was not."""
        return self._arguments.get(name)

    def text(self, name: str) -> str:
        """An argument that must be a string."""
        value = self.optional_text(name)
        if value is None:
            raise self._invalid(name, "a string")
        return value

    def optional_text(self, name: str) -> str | None:
        """An argument that may be absent or null."""
        value = self.get(name)
        if value is None:
            return None
        text = text_of(value)
        if text is None:
            raise self._invalid(name, "a string")
        return text

    def integer(self, name: str, default: int | None = None, minimum: int = LONG_MIN) -> int:
        """An argument that must be an integer; `default` stands for an absent one."""
        value = self.get(name)
        if value is None:
            value = default
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._invalid(name, "an integer")
        return self._within(name, int(value), minimum)

    def integers(self, name: str) -> list[int]:
        """An argument that must be an array of integers."""
        values = self.items(name)
        if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            raise self._invalid(name, "an array of integers")
        return [self._within(name, int(value), LONG_MIN) for value in values]

    def _within(self, name: str, value: int, minimum: int) -> int:
        if not minimum <= value <= LONG_MAX:
            raise ArgumentOutOfRange(
                f"{name} of {self.operation} must be from {minimum} to {LONG_MAX}, not {value}."
            )
        return value

    def lock_tokens(self) -> list[bytes]:
        """The argument lock-tokens, as the delivery tags they stand for.

        A delivery tag is the little-endian form of the GUID that requests carry as an AMQP uuid.
        """
        tokens = [_guid(value) for value in self.items("lock-tokens")]
        known = [token.bytes_le for token in tokens if token is not None]
        if len(known) != len(tokens):
            raise self._invalid("lock-tokens", "an array of uuids")
        return known

    def items(self, name: str) -> list[Any]:
        """An argument that must be a list or array, not empty, of bounded length."""
        values = self.get(name)
        if not isinstance(values, list) or not values:
            raise self._invalid(name, "a list that is not empty")
        if len(values) > ITEMS_MAX:
            raise ArgumentOutOfRange(
                f"{name} of {self.operation} has {len(values)} entries, the limit is {ITEMS_MAX}; "
                "send several requests."
            )
        return values

    def table(self, name: str) -> dict[str, Any]:
        """An argument that must be a map; absent or null is an empty one."""
        value = self.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._invalid(name, "a map")
        return {str(key): entry for key, entry in value.items()}

    def _invalid(self, name: str, expected: str) -> ArgumentInvalid:
        given = type(self.get(name)).__name__ if name in self._arguments else "nothing"
        return ArgumentInvalid(f"{name} of {self.operation} must be {expected}; got {given}.")


def correlation_id(sections: Sections) -> Any:
    """The id that the response must bear, in the request's own AMQP type."""
    try:
        return decode_properties(sections.properties).message_id
    except DecodeError as error:
        raise MalformedMessage(f"The properties of the request cannot be read: {error}") from error


def success(request_id: Any, body: dict[str, Any] | None) -> bytes:
    """The response to a successful request; without a body it is 204."""
    headers = {
        "statusCode": Int(204 if body is None else 200),
        "statusDescription": "No Content" if body is None else "OK",
    }
    return _response(request_id, headers, {} if body is None else body)


def failure(request_id: Any, refusal: Refusal) -> bytes:
    headers = {
        "statusCode": Int(refusal.status),
        "statusDescription": refusal.description,
        "errorCondition": Symbol(refusal.condition),
    }
    return _response(request_id, headers, {})


def _response(request_id: Any, headers: dict[str, Any], body: dict[str, Any]) -> bytes:
    properties = Properties(correlation_id=request_id)
    return encode_message(properties=properties, application_properties=headers, value=body)


def page(values: Iterable[Any], skip: int, top: int) -> list[Any]:
    return list(values)[skip : skip + top]


def text_of(value: object) -> str | None:
    """A string of the wire, which some SDKs send as binary; None if it is neither."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value) if isinstance(value, str) else None


def _guid(value: object) -> UUID | None:
    if isinstance(value, UUID):
        return value
    try:
        return UUID(str(value)) if isinstance(value, str) else None
    except ValueError:
        return None
