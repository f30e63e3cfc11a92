"""A namespace under test: scratch entities, clients, and answers in a form that can be compared.

`twinbus verify` and `twinbus doctor` use it. It also keeps the frames of the namespace as text:
those of the SDK's clients, and those of raw connections.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import partial
from typing import Any, Final, Self

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceNotFoundError,
)
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.exceptions import ServiceBusError

from twinbus.amqp.connection import Connection
from twinbus.amqp.events import Closed, Ended, Event
from twinbus.amqp.frames import decode_performative
from twinbus.amqp.types import DecodeError
from twinbus.client.connection import NamespaceConnection
from twinbus.errors import TwinbusError, error_text
from twinbus.ledger.requests import BilledRequests
from twinbus.namespace.access import endpoint_of
from twinbus.namespace.administration_client import administration_client
from twinbus.namespace.namespace import KEEP_ALIVE_OFF, Namespace, bounds
from twinbus.servicebus.failures import condition_of, refused_token

PREFIX: Final = "twinbus-verify-"
"""All scratch entities of `verify` have it; `clean` deletes what has it."""

IDLE: Final = timedelta(minutes=30)
"""The service itself deletes what a killed run left after this time."""

ANSWER_S: Final = 20.0
ROOT_RULE: Final = "RootManageSharedAccessKey"
FRAMES_MAX: Final = 400
HEADER_BYTES: Final = 8

_SIZE_AND_OFFSET: Final = struct.Struct(">IB")


_VARIABLE: Final = (
    (re.compile(r"\s*(For more information|To know more)[^.]*\.[^ ]*"), ""),
    (re.compile(r"(TrackingId|SystemTracker|Timestamp|Reference|Tracking)\s*:\s*[^,\s)']+"), ""),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "ID"),
    (re.compile(r"\b(sb|amqps?|https?)://[^/\s'\",]+"), r"\1://HOST"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*Z?"), "TIME"),
    (re.compile(r"[\s,.]+(?=[\s,.])"), ""),
)
"""Parts of an answer that differ from run to run, and what stands for them."""

Observed = Mapping[str, Any]
"""Plain JSON data: what the namespace answered, by the name of the question."""


class ForeignEntities(TwinbusError):
    """A namespace has entities of others, which an intrusive check could disturb."""


class ScratchNamespace:
    """One namespace and its scratch entities; an async context manager that deletes them."""

    def __init__(
        self,
        namespace: Namespace,
        prefix: str = PREFIX,
        *,
        is_traced: bool = False,
        idle: timedelta = IDLE,
    ) -> None:
        """`idle`: when the service deletes an entity that a killed run left."""
        self.namespace = namespace
        self.label = prefix + secrets.token_hex(4)
        """The beginning of the names of its entities."""
        self.idle = idle
        self.link_idle_s: float | None = None
        """When the tier detaches an idle link."""
        self.left_behind: list[str] = []
        """What could not be deleted, and why."""
        self.frames = FrameLog() if is_traced else None
        self._made: dict[str, str] = {}
        self._own_keys: list[str] = []

    async def __aenter__(self) -> Self:
        if self.frames is not None:
            self.frames.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self.frames is not None:
            self.frames.stop()
        async with self.administration() as admin:
            for path, kind in self._made.items():
                try:
                    async with asyncio.timeout(ANSWER_S):
                        await getattr(admin, f"delete_{kind}")(path)
                except ResourceNotFoundError:
                    pass
                except (AzureError, OSError) as error:
                    where = f"{path} in {self.namespace.endpoint}"
                    self.left_behind.append(f"{where} ({error_text(error)})")

    def administration(self) -> ServiceBusAdministrationClient:
        """The SDK's administration client, to be entered and left; the ledger has its requests."""
        return administration_client(self.namespace, BilledRequests(self.namespace.label))

    def path(self, name: str) -> str:
        return f"{self.label}-{name}"

    async def queue(self, name: str, **settings: Any) -> str:
        path = self.to_be_deleted(name)
        async with self.administration() as admin:
            with self._not_made_if_refused(path):
                await admin.create_queue(path, auto_delete_on_idle=self.idle, **settings)
        return path

    async def topic(self, name: str, subscription: str, **settings: Any) -> str:
        path = self.to_be_deleted(name, "topic")
        async with self.administration() as admin:
            with self._not_made_if_refused(path):
                await admin.create_topic(path, auto_delete_on_idle=self.idle)
            await admin.create_subscription(path, subscription, **settings)
        return path

    @contextmanager
    def _not_made_if_refused(self, path: str) -> Iterator[None]:
        """Without the right to create an entity there is none, and its deletion is refused too."""
        try:
            yield
        except ClientAuthenticationError:
            del self._made[path]
            raise

    def to_be_deleted(self, name: str, kind: str = "queue") -> str:
        """Return the path of an entity that the caller creates; it is deleted at the end."""
        path = self.path(name)
        self._made[path] = kind
        return path

    def with_key(self, name: str | None, key: str) -> Namespace:
        """The namespace by another key; no report will have the key.

        None: the name of the key that the run itself uses.
        """
        self._own_keys.append(key)
        parts = self.namespace.parts
        name = name or getattr(parts, "key_name", None) or ROOT_RULE
        text = f"Endpoint={self.namespace.endpoint};SharedAccessKeyName={name}"
        text += f";SharedAccessKey={key}"
        if self.namespace.emulator:
            text += ";UseDevelopmentEmulator=true"
        return Namespace.from_connection_string(text, **self.namespace.sdk_options)

    @asynccontextmanager
    async def client(self, namespace: Namespace | None = None) -> AsyncIterator[Any]:
        """A client without retries; if the namespace is traced, its frames are kept."""
        options = {**bounds(ANSWER_S), "logging_enable": self.frames is not None}
        async with (namespace or self.namespace).client(**options) as client:
            yield client

    @asynccontextmanager
    async def link(
        self, kind: str, path: str, namespace: Namespace | None = None, **options: Any
    ) -> AsyncIterator[Any]:
        """A `sender` or `receiver` of a queue with its own client; its first call attaches."""
        async with self.client(namespace) as client:
            link = getattr(client, f"get_queue_{kind}")(path, **KEEP_ALIVE_OFF, **options)
            try:
                yield link
            finally:
                await link.close()

    def connection(self, on_event: Callable[[Event], None]) -> NamespaceConnection:
        """A connection without the SDK, for what the SDK cannot ask; its frames are kept too.

        `on_event` also gets the end of the connection or of a session.
        """
        keep = (lambda line: None) if self.frames is None else self.frames.keep
        protocol = partial(TracedConnection, keep=keep, on_end=on_event)
        return NamespaceConnection(endpoint_of(self.namespace), on_event, protocol=protocol)

    async def send(
        self, path: str, *messages: ServiceBusMessage, namespace: Namespace | None = None
    ) -> Observed:
        """Send messages one by one; the answer to the last, or the first refusal."""
        async with self.link("sender", path, namespace) as sender:
            return await self.answer(_each(sender, messages))

    async def answer(self, asked: Awaitable[Any]) -> Observed:
        """What a call of the SDK ended with, in a form that can be compared."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await asked
        except TimeoutError:
            return {"error": "no answer"}
        except (AzureError, ServiceBusError, ValueError, OSError) as error:
            return self.refusal(error)
        return {"error": None}

    def refusal(self, error: BaseException) -> Observed:
        inner = getattr(error, "inner_exception", None)
        condition: Any = condition_of(error) or getattr(inner, "condition", None)
        status = error.status_code if isinstance(error, HttpResponseError) else None
        if isinstance(condition, bytes):
            condition = condition.decode()
        return {
            "error": type(error).__name__,
            "condition": None if condition is None else str(getattr(condition, "value", condition)),
            "status": status,
            "text": self.settled(refused_token(error) or str(error)),
        }

    def settled(self, text: str) -> str:
        """A text without what differs from run to run: ids, times, hosts and scratch names."""
        text = " ".join(text.split()).replace(self.label, "SCRATCH")
        for pattern, stands in _VARIABLE:
            text = pattern.sub(stands, text)
        return text.strip(" ,.")

    def secrets(self) -> list[str]:
        """The keys and signatures of the namespace, which no report may have."""
        parts, credential = self.namespace.parts, self.namespace.credential
        named = getattr(credential, "named_key", None)
        found = [self.namespace.signature, getattr(parts, "key", None)]
        return [*filter(None, found), *([named[1]] if named else []), *self._own_keys]


async def _each(sender: Any, messages: tuple[ServiceBusMessage, ...]) -> None:
    for message in messages:
        await sender.send_messages(message)


@dataclass(frozen=True, slots=True)
class Check:
    """One question to a namespace, and what it costs to ask."""

    name: str
    asks: str
    operations: int
    """Billed operations that it makes at most."""
    run: Callable[[ScratchNamespace], Awaitable[Observed]]
    is_intrusive: bool = False
    """Whether it could disturb other users of the namespace."""


async def entities_of(namespace: Namespace) -> list[tuple[str, str]]:
    """The kind (queue or topic) and the path of every entity."""
    async with administration_client(namespace) as admin:
        queues = [("queue", one.name) async for one in admin.list_queues()]
        return queues + [("topic", one.name) async for one in admin.list_topics()]


async def require_no_foreign_entities(namespace: Namespace) -> None:
    """ForeignEntities unless every entity is a scratch entity."""
    foreign = [path for _, path in await entities_of(namespace) if not path.startswith(PREFIX)]
    if foreign:
        raise ForeignEntities(
            f"{namespace.endpoint} has {len(foreign)} entities that are not ours ({foreign[0]!r}"
            " is one); an intrusive check could disturb them: give an empty namespace"
        )


async def clean(namespace: Namespace) -> list[str]:
    """Delete every scratch entity that a killed run left; return their paths."""
    found = [(kind, path) for kind, path in await entities_of(namespace) if path.startswith(PREFIX)]
    async with administration_client(namespace) as admin:
        for kind, path in found:
            with suppress(ResourceNotFoundError):
                await getattr(admin, f"delete_{kind}")(path)
    return [path for _, path in found]


class FrameLog(logging.Handler):
    """Keeps the last frames: what the SDK logs, and what other connections hand over."""

    _FRAMES: Final = logging.getLogger("azure.servicebus")

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._lines: deque[str] = deque(maxlen=FRAMES_MAX)
        self._before = logging.NOTSET

    def start(self) -> None:
        self._before = self._FRAMES.level
        self._FRAMES.setLevel(logging.DEBUG)
        self._FRAMES.addHandler(self)

    def stop(self) -> None:
        self._FRAMES.removeHandler(self)
        self._FRAMES.setLevel(self._before)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith(("->", "<-")):
            self.keep(text)

    def keep(self, text: str) -> None:
        self._lines.append(text)

    def take(self) -> tuple[str, ...]:
        lines = tuple(self._lines)
        self._lines.clear()
        return lines


class TracedConnection(Connection):
    """Hands each frame of both directions to `keep`, and the end of the connection to `on_end`."""

    def __init__(
        self,
        *given: Any,
        keep: Callable[[str], None],
        on_end: Callable[[Event], None],
        **options: Any,
    ) -> None:
        super().__init__(*given, **options)
        self._keep = keep
        self._on_end = on_end
        self._sent, self._heard = FrameText("->"), FrameText("<-")

    def receive(self, data: bytes, now_ms: int) -> Iterator[list[Event]]:
        for line in self._heard.lines(data):
            self._keep(line)
        for events in super().receive(data, now_ms):
            for event in events:
                if isinstance(event, Closed | Ended):
                    self._on_end(event)
            yield events

    def take_output(self, now_ms: int) -> bytes:
        data = super().take_output(now_ms)
        for line in self._sent.lines(data):
            self._keep(line)
        return data


class FrameText:
    """Splits the bytes of one direction into frames, and says in a line what each is.

    Payloads are left out, because that of a token is a secret.
    """

    def __init__(self, arrow: str) -> None:
        self._arrow = arrow
        self._rest = b""

    def lines(self, data: bytes) -> Iterator[str]:
        """The frames that these bytes complete; keep-alive frames are left out."""
        data = self._rest + data
        while len(data) >= HEADER_BYTES:
            if data.startswith(b"AMQP"):
                size = offset = HEADER_BYTES
                yield f"{self._arrow} protocol header {data[4:HEADER_BYTES].hex()}"
            else:
                size, words = _SIZE_AND_OFFSET.unpack_from(data)
                offset = words * 4
                if size < HEADER_BYTES:
                    # No frame. The connection ends for the same reason.
                    yield f"{self._arrow} {data[:HEADER_BYTES].hex()}, which starts no frame"
                    size = len(data)
                elif len(data) < size:
                    break
                elif offset < size:
                    yield f"{self._arrow} {_text(data[offset:size])}"
            data = data[size:]
        self._rest = data


def _text(body: bytes) -> str:
    try:
        performative, end = decode_performative(body)
    except DecodeError:
        return f"a frame of {len(body)} bytes that cannot be decoded"
    given = ((one.name, getattr(performative, one.name)) for one in fields(performative))
    named = ", ".join(f"{name}={value!r}" for name, value in given if value is not None)
    payload = f" and {len(body) - end} bytes" if end < len(body) else ""
    return f"{type(performative).__name__}({named}){payload}"
