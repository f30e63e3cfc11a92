"""A namespace for one test, in the test's own process: its queues, its outages, what was sent.

with LocalNamespace() as namespace:
    namespace.create_queue("orders")
    application = Application(namespace.connection_string)
    with namespace.outage("hang"):
        application.order("order 1")
    assert [str(message) for message in namespace.sent("orders")] == ["order 1"]
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Protocol, Self

from azure.core.pipeline.transport import AioHttpTransport, RequestsTransport
from azure.servicebus.aio.management import (
    ServiceBusAdministrationClient as AsyncAdministrationClient,
)
from azure.servicebus.management import ServiceBusAdministrationClient

from twinbus.amqp.decoding import decode
from twinbus.amqp.message import DATA, data_sections, decode_map, decode_properties, section_at
from twinbus.broker.embedded import EmbeddedBroker
from twinbus.broker.engine.engine_log import EngineLog
from twinbus.broker.faults import Fault
from twinbus.broker.journal import StoredMessage
from twinbus.broker.messages.incoming import Incoming
from twinbus.options import SendAvailabilityOptions
from twinbus.servicebus.names import BACKLOG_MARK
from twinbus.testing.outages import OutageKind, misbehaving


@dataclass(frozen=True, slots=True)
class SentMessage:
    """One message as its sender sent it; `str()` is its body as text."""

    entity: str
    body: Any
    """Bytes, or the value of a message with an AMQP value or sequence."""
    message_id: str | None
    session_id: str | None = None
    subject: str | None = None
    correlation_id: str | None = None
    content_type: str | None = None
    application_properties: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        body = self.body
        return body.decode(errors="replace") if isinstance(body, bytes) else str(body)


class SentLog(EngineLog):
    """Keeps every accepted message, in order, also after a receiver has taken it."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[tuple[str, Incoming]] = []
        self._changed = threading.Condition()

    def sent(
        self,
        entity: str,
        incoming: Incoming,
        stored: StoredMessage | None,
        now_ms: int,
        *,
        is_duplicate: bool,
    ) -> None:
        """Keep a message, unless it is a ping or duplicate detection drops it."""
        if incoming.is_ping or is_duplicate:
            return
        with self._changed:
            self._kept.append((entity, incoming))
            self._changed.notify_all()

    def deleted(self, entity: str, now_ms: int) -> None:
        """Keep what was sent to an entity that is gone."""

    def messages(
        self, accepts: Callable[[str], bool], count: int, timeout_s: float
    ) -> list[SentMessage]:
        """Return the messages of these entities; wait until there are `count` of them.

        AssertionError if there are fewer after `timeout_s`.
        """
        ends = time.monotonic() + timeout_s
        with self._changed:
            while True:
                found = [kept for kept in self._kept if accepts(kept[0].lower())]
                left_s = ends - time.monotonic()
                if len(found) >= count or left_s <= 0:
                    break
                self._changed.wait(left_s)
        messages = [_message(*kept) for kept in found]
        if len(messages) < count:
            texts = ", ".join(repr(str(message)[:60]) for message in messages[:10])
            raise AssertionError(
                f"{len(messages)} of {count} messages were sent within {timeout_s:g} s: {texts}"
            )
        return messages


def _message(entity: str, incoming: Incoming) -> SentMessage:
    sections = incoming.sections
    properties = decode_properties(sections.properties)
    correlation_id = properties.correlation_id
    return SentMessage(
        entity=entity,
        body=_body(sections.body),
        message_id=incoming.message_id,
        session_id=incoming.session_id,
        subject=properties.subject,
        correlation_id=None if correlation_id is None else str(correlation_id),
        content_type=incoming.content_type,
        application_properties=decode_map(sections.application_properties),
    )


def _body(raw: bytes) -> Any:
    if not raw:
        return b""
    code, content = section_at(raw, 0)
    return b"".join(data_sections(raw)) if code == DATA else decode(raw, content)[0]


WAIT_S: Final = 30.0
"""How long a test waits for messages that another thread or process sends. A busy machine is slow;
a test that passes does not wait for its end."""

_QUICK: Final = SendAvailabilityOptions(
    backlog_queue_count=1,
    failover_interval=0.5,
    ping_primary_interval=1.0,
    attempt_timeout=2.0,
    enable_syphon=True,
    syphon_poll=5.0,
)


class SentMessages(Protocol):
    """The type of the fixture `sent_messages`."""

    def __call__(self, path: str, count: int = 0, *, timeout: float = WAIT_S) -> list[SentMessage]:
        """Return what was sent, as `LocalNamespace.sent` does."""


class LocalNamespace:
    """A namespace in memory, served on a free port of localhost for a `with` block."""

    def __init__(self, name: str = "contoso") -> None:
        self.name = name
        self._broker = EmbeddedBroker(name, test_clock=True)
        self._log = SentLog()

    def __enter__(self) -> Self:
        self._broker.start()
        self._broker.log_sends(self._log)
        return self

    def __exit__(self, *exc: object) -> None:
        self._broker.stop()

    def __repr__(self) -> str:
        return f"LocalNamespace({self.name!r})"

    @property
    def connection_string(self) -> str:
        """What to give to a Service Bus client; it has all rights."""
        return self._broker.connection_string()

    @property
    def client_options(self) -> dict[str, Any]:
        """Further keywords for `ServiceBusClient`; none, see `ProxiedNamespace`."""
        return {}

    def create_queue(self, path: str) -> None:
        """Create a queue; `twinbus.testing.administration` creates those with other settings."""
        self._broker.create_queue(path)

    def create_topic(self, path: str, *subscriptions: str) -> None:
        """Create a topic and subscriptions that take every message."""
        self._broker.create_topic(path, subscriptions)

    def sent(self, path: str, count: int = 0, *, timeout: float = WAIT_S) -> list[SentMessage]:
        """Return the messages that a queue or topic accepted so far, in order.

        Also those that a receiver has taken since. With `count` it waits until there are that many
        and raises AssertionError after `timeout` seconds. It works in an outage too.
        """
        wanted = path.lower()
        return self._log.messages(lambda entity: entity == wanted, count, timeout)

    def diverted(self, count: int = 0, *, timeout: float = WAIT_S) -> list[SentMessage]:
        """Return the messages that all backlog queues accepted so far, as `sent` does."""
        return self._log.messages(lambda entity: BACKLOG_MARK in entity, count, timeout)

    @contextmanager
    def outage(self, kind: OutageKind | Fault, entity: str | None = None) -> Iterator[None]:
        """Misbehave for the block, all entities or one.

        kill: connections are dropped and refused; messages stay. hang: no answer. throttle: sends
        are rejected as server-busy. refuse: links and sends are rejected with an internal error.
        A `Fault` says the same in detail, for example `Fault(kind="delay", delay_ms=200)`.
        """
        with misbehaving(self._broker, kind, entity):
            yield

    def advance(self, by: timedelta) -> None:
        """Move the namespace's clock on: locks, schedules, times to live and tokens end with it.

        So do duplicate windows and idle links. The clock of the test and its clients stays.
        """
        self._broker.advance(by)


@dataclass(frozen=True, slots=True)
class LocalPair:
    """Two namespaces for a paired application, and options that make a failover quick."""

    primary: LocalNamespace
    """With TWINBUS_UPSTREAM a `ProxiedNamespace`, which cannot create entities."""
    secondary: LocalNamespace
    options: SendAvailabilityOptions = field(default=_QUICK)
    """An entity fails over after half a second, is pinged each second, and a syphon runs."""

    def diverted(self, count: int = 0, *, timeout: float = WAIT_S) -> list[SentMessage]:
        """Return the messages that went to a backlog queue, as `LocalNamespace.sent` does."""
        return self.secondary.diverted(count, timeout=timeout)


def administration(connection_string: str, **sdk_options: Any) -> ServiceBusAdministrationClient:
    """Return the SDK's administration client for a broker without TLS.

    It has `https` built in, so its transport sends plain HTTP. Without retries unless
    `retry_total`.
    """
    options = {"retry_total": 0, **sdk_options, "transport": _PlainRequests()}
    return ServiceBusAdministrationClient.from_connection_string(connection_string, **options)


def async_administration(connection_string: str, **sdk_options: Any) -> AsyncAdministrationClient:
    """Return the same for asyncio."""
    options = {"retry_total": 0, **sdk_options, "transport": _PlainAioHttp()}
    return AsyncAdministrationClient.from_connection_string(connection_string, **options)


class _PlainRequests(RequestsTransport):  # type: ignore[misc]  # untyped in azure-core
    def send(self, request: Any, **config: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return super().send(request, **config)


class _PlainAioHttp(AioHttpTransport):  # type: ignore[misc]  # untyped in azure-core
    async def send(self, request: Any, **config: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return await super().send(request, **config)
