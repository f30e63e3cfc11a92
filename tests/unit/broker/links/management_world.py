"""A client of `$management` for tests: asks as the SDK asks, and reads as the SDK reads."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from typing import Any

from azure.servicebus._common import mgmt_handlers
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import Message
from azure.servicebus._pyamqp.message import Properties as SdkProperties
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport as Sdk

from twinbus.amqp.message import (
    Properties,
    Sections,
    decode_map,
    decode_value,
    encode_message,
    split,
)
from twinbus.amqp.types import Int, Timestamp
from twinbus.broker.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.namespace import BrokerNamespace
from twinbus.broker.engine.queue import Queue
from twinbus.broker.links.management import handle
from twinbus.broker.links.requests import ManagementContext
from twinbus.broker.messages.incoming import parse
from twinbus.broker.refusals import Unauthorized
from twinbus.broker.storage.store import MemoryStore

NOW_MS = 1_700_000_000_000
LINK = "the-receiver"
SUBSCRIPTION = "news/Subscriptions/all"


class World:
    """A namespace with one entity of each kind, and a client that may do everything."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        numbers = itertools.count(1)
        self.namespace = BrokerNamespace(
            "test",
            self.store,
            lambda: next(numbers).to_bytes(16, "big"),
            notify=lambda queue: None,
            deleted=lambda path: None,
        )
        self.namespace.create_queue("orders", QueueDescription(), NOW_MS)
        sessions = QueueDescription(requires_session=True)
        self.namespace.create_queue("talks", sessions, NOW_MS)
        self.namespace.create_topic("news", TopicDescription(), NOW_MS)
        self.namespace.create_subscription("news", "all", SubscriptionDescription(), NOW_MS)
        self.holder = object()
        self.missing_right = ""
        self.now_ms = NOW_MS

    def queue(self, address: str = "orders") -> Queue:
        entity = self.namespace.resolve(address)
        assert isinstance(entity, Queue)
        return entity

    def send(self, body: bytes = b"x", address: str = "orders", **properties: Any) -> int:
        """Enqueue a message; returns its sequence number."""
        incoming = parse(wire(body, **properties), lambda: "assigned")
        stored = self.queue(address).enqueue(incoming, self.now_ms)
        assert stored is not None
        return stored.sequence_number

    def require(self, right: str) -> None:
        if right == self.missing_right:
            raise Unauthorized(f"{right} is missing")

    def respond(self, request: Sections, address: str = "orders") -> bytes:
        context = ManagementContext(
            namespace=self.namespace,
            address=address,
            require=self.require,
            holder={LINK: self.holder}.get,
            payload=self.store.payload,
            new_message_id=lambda: "assigned",
        )
        return handle(request, context, self.now_ms)

    def ask(
        self,
        operation: str,
        body: dict[str, Any],
        handler: Callable[..., Any] = mgmt_handlers.default,
        address: str = "orders",
        link: str = LINK,
    ) -> Any:
        """Send what the SDK would send, and give the answer to the SDK's handler."""
        request_id = uuid.uuid4()
        request = Message(
            value=body,
            properties=SdkProperties(message_id=request_id, reply_to="here"),
            application_properties={
                b"associated-link-name": link,
                b"com.microsoft:server-timeout": Sdk.AMQP_UINT_VALUE(60_000),
                "operation": f"com.microsoft:{operation}",
                "type": b"entity-mgmt",
            },
        )
        encoded = bytearray()
        encode_payload(encoded, request)
        response: Any = decode_payload(memoryview(self.respond(split(bytes(encoded)), address)))
        assert response.properties[5] == request_id
        headers = response.application_properties
        return handler(
            headers[b"statusCode"], response, headers[b"statusDescription"], amqp_transport=Sdk
        )

    def status(self, operation: str, body: object, address: str = "orders") -> tuple[int, Any, Any]:
        """Status, error condition and body of a request in our own encoding."""
        headers = {"operation": f"com.microsoft:{operation}", "associated-link-name": LINK}
        request = encode_message(
            properties=Properties(message_id="1"), application_properties=headers, value=body
        )
        response = split(self.respond(split(request), address))
        told = decode_map(response.application_properties)
        assert type(told["statusCode"]) is Int
        return told["statusCode"], told.get("errorCondition"), decode_value(response.body)


def wire(body: bytes = b"x", at_ms: int = 0, **properties: Any) -> bytes:
    annotations = {"x-opt-scheduled-enqueue-time": Timestamp(at_ms)} if at_ms else {}
    return encode_message(
        properties=Properties(**properties), message_annotations=annotations, data=body
    )
