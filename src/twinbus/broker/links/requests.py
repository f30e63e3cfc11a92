"""Request and response over two links: `$cbs`, where tokens are put, and each `$management` node.

A client sends requests on one link and reads the responses on another of the same session. The
response goes to the link whose target is the request's reply-to, else to the one on the same node.

A request to `$management` has the application properties operation and associated-link-name, its
response has statusCode, statusDescription and errorCondition; the body of each is a map.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from twinbus.amqp.events import DeliveryArrived
from twinbus.amqp.link import Link, LinkState, ReceiverLink
from twinbus.amqp.message import (
    Properties,
    Sections,
    decode_map,
    decode_properties,
    decode_value,
    encode_message,
    split,
)
from twinbus.amqp.performatives import (
    ACCEPTED_BYTES,
    Coordinator,
    TransactionalState,
    encode_state,
)
from twinbus.amqp.types import DecodeError, Int, Symbol
from twinbus.broker.engine.limits import CreditAccount
from twinbus.broker.engine.namespace import BrokerNamespace
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import RequestedSettlement
from twinbus.broker.engine.topic import Topic
from twinbus.broker.faults import Fault, Stage
from twinbus.broker.links.context import (
    CBS,
    LinkClient,
    LinkOwner,
    PeerContext,
    ReplyLink,
    rejected,
)
from twinbus.broker.links.turns import Steps, at_once
from twinbus.broker.refusals import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    EntityNotFound,
    MalformedMessage,
    NotAllowed,
    NotSupported,
    Refusal,
)
from twinbus.broker.sas import LISTEN
from twinbus.servicebus.names import MANAGEMENT_SUFFIX

T = TypeVar("T")

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
    settle: Callable[[Queue, RequestedSettlement, int], None] | None = None
    """Settles as part of a transaction; present if the request is one."""

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

    __slots__ = ("arguments", "link_name", "operation", "sections")

    def __init__(self, sections: Sections) -> None:
        """Read a request; `MalformedMessage` if it cannot be read."""
        self.sections = sections
        headers = decoded(decode_map, sections.application_properties)
        body = decoded(decode_value, sections.body) if sections.body else {}
        if not isinstance(body, dict):
            raise MalformedMessage("The body of a management request must be a map.")
        self.arguments: dict[str, Any] = {str(name): value for name, value in body.items()}
        self.operation = text_of(headers.get("operation")) or ""
        self.link_name = text_of(headers.get("associated-link-name"))

    def get(self, name: str) -> Any:
        """The argument as it was sent; None if it was not."""
        return self.arguments.get(name)

    def text(self, name: str) -> str:
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
        given = type(self.get(name)).__name__ if name in self.arguments else "nothing"
        return ArgumentInvalid(f"{name} of {self.operation} must be {expected}; got {given}.")


def correlation_id(sections: Sections) -> Any:
    """The id that the response must bear, in the request's own AMQP type."""
    return decoded(decode_properties, sections.properties).message_id


def sections_of(payload: bytes) -> Sections:
    """The sections of a request; `MalformedMessage` if they cannot be told apart."""
    return decoded(split, payload)


def decoded(decode: Callable[[bytes], T], raw: bytes) -> T:
    try:
        return decode(raw)
    except DecodeError as error:
        raise MalformedMessage(f"The request cannot be read: {error}") from error


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


CREDIT = 100
CBS_REQUEST_BYTES_MAX = 32 * 1024
"""A request on $cbs: a token of at most 8,192 characters and a few short properties."""

REQUEST_BYTES_MAX = 2 * 1024 * 1024
"""A request on `$management`: scheduling of a batch of 1 MB, which Azure Premium takes, with its
envelope; more if the entity takes larger messages."""

SCHEDULE = "com.microsoft:schedule-message"

LONG_REQUEST_BYTES = 1024
"""A request of more may schedule so many messages that it is read in slices."""

ReadAhead = Callable[[bytes], Generator[None, None, ManagementRequest | None]]
"""Reads a request in steps; None: it cannot be read, which is said where it is performed."""

Response = bytes | Generator[None, None, bytes] | None
"""None: it comes later. A generator: it is worked out in steps."""


class RequestLink(LinkOwner):
    """The link on which a client sends requests to one node.

    `respond` returns the response, or None if it answers and settles the request later. Requests of
    a link with `read_ahead` are read and performed in slices.
    """

    def __init__(
        self,
        context: PeerContext,
        client: LinkClient,
        link: ReceiverLink,
        address: str,
        respond: Callable[..., Response],
        *,
        takes_transactions: bool = False,
        limit_bytes: int = CBS_REQUEST_BYTES_MAX,
        read_ahead: ReadAhead | None = None,
    ) -> None:
        """`takes_transactions`: `respond` also takes the id of a request's transaction.

        `limit_bytes` is for one request; `respond` takes what `read_ahead` gives for a long one.
        """
        self._limit_bytes = limit_bytes
        self._read_ahead = read_ahead
        self._context = context
        self._respond = respond
        self._takes_transactions = takes_transactions
        self._client = client
        self.link = link
        self.address = address.lower()
        self._entity_path = self.address.removesuffix(MANAGEMENT_SUFFIX)

    def attach(self) -> None:
        self.link.limit_bytes = self._limit_bytes
        self._client.budgets.room_for(self._limit_bytes)
        # Said of $cbs alone: Azure names no limit for a node of an entity.
        is_cbs = self.address == CBS
        self.link.accept(max_message_size=self._limit_bytes if is_cbs else 0)
        self.link.grant(CREDIT)

    def take_all(self, events: list[DeliveryArrived], now_ms: int) -> Steps | None:
        """Perform requests one after the other, some messages at a time; long ones are read so."""
        if self._read_ahead is not None:
            return self._take_in_turns(events, self._read_ahead)
        return super().take_all(events, now_ms)

    def _take_in_turns(self, events: list[DeliveryArrived], read_ahead: ReadAhead) -> Steps:
        for event in events:
            ahead = None
            if _is_long(event):
                ahead = yield from self._context.turns.prepare(read_ahead(event.payload))
            if self.link.owner is not self:
                return  # It was closed meanwhile, or the engine was replaced.
            for _ in self._take(event, self._context.now_ms(), ahead):
                yield None
                if self.link.owner is not self:
                    return
            yield None

    def take(self, event: DeliveryArrived, now_ms: int) -> None:
        """Perform a request, or the fault that applies to it."""
        at_once(self._take(event, now_ms, None))

    def _take(
        self, event: DeliveryArrived, now_ms: int, ahead: ManagementRequest | None
    ) -> Generator[None, None, None]:
        """The same in steps; `ahead`: what was read of the request."""
        faults = self._context.faults
        fault = None
        if faults and self.address != CBS:
            fault = faults.decide(_stage(event.payload), self._entity_path, now_ms)
        match fault.kind if fault is not None else None:
            case None | "refuse_send" | "throttle":
                yield from self._perform(event, now_ms, fault, ahead)
            case "delay":
                assert fault is not None
                self._client.later(fault.delay_ms, lambda: self._perform_late(event))
            case "drop_before_commit":
                self._client.drop()
            case "drop_after_commit":
                self._client.drop_after_commit()
                yield from self._perform(event, now_ms, None)
            case kind:
                assert kind == "hang", kind

    def _perform_late(self, event: DeliveryArrived) -> None:
        at_once(self._perform(event, self._context.now_ms(), None))
        self._client.touch()

    def _perform(
        self,
        event: DeliveryArrived,
        now_ms: int,
        fault: Fault | None,
        ahead: ManagementRequest | None = None,
    ) -> Generator[None, None, None]:
        """Answer a request; the response leaves when what it changed is on disk."""
        state, is_ended = ACCEPTED_BYTES, True
        response: Response
        try:
            request = sections_of(event.payload) if ahead is None else ahead.sections
            reply = self._reply_link(request)
            if fault is None:
                read = ahead or request
                response = self._respond(read, now_ms, *self._transaction_of(event))
                if isinstance(response, Generator):
                    response = yield from response
            else:
                response = failure(correlation_id(request), _FaultRefusal(fault))
            if response is None:
                is_ended = False
            else:
                reply.send(response)
            if reply.link.state is LinkState.CLOSED:
                self._client.replies.remove(reply)  # It had too many responses to keep.
        except Refusal as refusal:
            self._client.log_refusal(f"a request to {self.address!r}", refusal)
            state = encode_state(rejected(refusal))
        if is_ended and not event.settled:
            self.link.session.settle(event.delivery_id, event.delivery_id, state, as_receiver=True)
        if self.link.credit < CREDIT // 2:
            self.link.grant(CREDIT)

    def _transaction_of(self, event: DeliveryArrived) -> tuple[bytes, ...]:
        """The id of a request's transaction, if it is part of one."""
        if not isinstance(event.state, TransactionalState):
            return ()
        if not self._takes_transactions:
            raise NotSupported(f"A request to {self.address!r} cannot be part of a transaction.")
        return (event.state.txn_id,)

    def _reply_link(self, request: Sections) -> ReplyLink:
        reply_to = decoded(decode_properties, request.properties).reply_to
        wanted = None if reply_to is None else str(reply_to)
        reply = self._client.replies.find(self.link.session, wanted, self.address)
        if reply is None:
            raise EntityNotFound(f"no link on this session reads the responses of {self.address!r}")
        return reply


def require_address(link: Link, address: str) -> None:
    """Raise for a link that names no node, or asks for a new one."""
    terminus = link.source if link.sends else link.target
    if isinstance(terminus, Coordinator) or (address and not getattr(terminus, "dynamic", False)):
        return
    if getattr(terminus, "dynamic", False):
        raise NotSupported(
            "Nodes made on request (dynamic nodes, temporary queues and topics of JMS) are not"
            " supported. Create a queue, and name it in the address of the link."
        )
    if link.sends:
        raise EntityNotFound(
            "The link names no address to receive from. Subscriptions are found by their address,"
            " TOPIC/Subscriptions/NAME, not by the name of a link (durable subscribers of JMS)."
        )
    raise NotSupported(
        "The link names no address to send to. Open a link for each queue or topic (anonymous"
        " senders are not supported)."
    )


class _FaultRefusal(Refusal):
    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.description)
        self.condition = fault.condition
        self.status = 503


def _is_long(event: DeliveryArrived) -> bool:
    return len(event.payload) > LONG_REQUEST_BYTES


def _stage(payload: bytes) -> Stage:
    """Scheduling counts as a send, every other request as a receive."""
    try:
        headers = decode_map(split(payload).application_properties)
    except DecodeError:
        return "receive"
    return "send" if headers.get("operation") == SCHEDULE else "receive"
