"""The fake SDK over the simulated network: links of clients, and an administration client.

It raises what the real one raises, and encodes messages with the real one's own encoder.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.error import TokenAuthFailure
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from tests.simulation.machine import PROCESS, Process
from tests.simulation.network import Wire, WireRefused, reject, resolve
from tests.simulation.truth import CALL, Deed
from twinbus.amqp.message import decode_map, split
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.journal import StoredMessage
from twinbus.broker.messages.rendering import render
from twinbus.broker.refusals import EntityAlreadyExists, EntityNotFound, Refusal, ServerBusy
from twinbus.namespace.namespace import Namespace
from twinbus.servicebus.names import PING_CONTENT_TYPE
from twinbus.testing.fake_sdk import FakeClient, FakeLink, LinkRole

if TYPE_CHECKING:
    from tests.simulation.world import World

BATCH_BYTES: Final = 3_000
"""What a batch may have. Small, so that batches that grow by their aliases must be split."""

_QUIET: Final = logging.getLogger("tests.simulation.sdk")

_CERTIFICATES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

_ERRORS: Final[dict[str, Callable[..., ServiceBusError]]] = {
    "amqp:not-found": MessagingEntityNotFoundError,
    "com.microsoft:entity-disabled": MessagingEntityDisabledError,
    "amqp:resource-limit-exceeded": ServiceBusQuotaExceededError,
    "com.microsoft:server-busy": ServiceBusServerBusyError,
    "amqp:link:message-size-exceeded": MessageSizeExceededError,
    "amqp:unauthorized-access": ServiceBusAuthorizationError,
}


def wire_of(message: Any) -> bytes:
    """An AmqpAnnotatedMessage as the SDK sends it."""
    outgoing = PyamqpTransport.to_outgoing_amqp_message(message)
    return bytes(encode_payload(bytearray(), outgoing))


class Encoder:
    """`wire_of`, which remembers: a message is encoded for each attempt, and by the checkers."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, bytes]] = {}

    def __call__(self, message: Any) -> bytes:
        """A message as the SDK sends it; it is kept alive, for its address is the key."""
        annotated = getattr(message, "raw_amqp_message", message)
        known = self._known.get(id(annotated))
        if known is None:
            known = self._known[id(annotated)] = annotated, wire_of(annotated)
        return known[1]


def _http_error(refusal: Refusal) -> HttpResponseError:
    error = HttpResponseError(refusal.description)
    error.status_code = refusal.status
    return error


def _sdk_error(refusal: Refusal) -> ServiceBusError:
    kind = _ERRORS.get(refusal.condition)
    if kind is None:
        return ServiceBusError(refusal.description, condition=refusal.condition)
    return kind(message=refusal.description)


class SimSide(Namespace):
    """A namespace as a user gives it to a pair; its clients lead into the simulation."""

    world: World

    async def resolve(self) -> None:
        """The simulated network has no names to look up."""

    def client(self, **options: Any) -> Any:
        """A client without retries, for which the pair must ask."""
        assert options["retry_total"] == 0
        process = PROCESS.get()
        assert process is not None
        world, side = self.world, self.label

        def connect(path: str, role: LinkRole) -> FakeLink:
            return SimLink(world, process, side, path, role)

        return FakeClient(connect)

    def certificates(self) -> ssl.SSLContext:
        """Some that nobody shows to anybody: loading the real ones takes longer than a world."""
        return _CERTIFICATES


class _Caller:
    """One connection, on which one thing is asked at a time."""

    def __init__(self, world: World, process: Process, side: str) -> None:
        self.process = process
        self.loop = process.loop
        self.wire = Wire(world.network, process, world.namespaces[side], self._broken)
        self.broken: str | None = None
        self._pending: asyncio.Future[Any] | None = None

    async def ask(self, operation: Callable[[], Any]) -> Any:
        """The namespace's answer; Refusal, ConnectionError, or never."""
        if self.broken is not None:
            raise ConnectionResetError(self.broken)
        answer = self._pending = self.loop.create_future()

        def at_namespace() -> None:
            try:
                result = operation()
            except Refusal as refusal:
                error = refusal
                self.wire.to_client(lambda: reject(answer, error))
            else:
                self.wire.to_client(lambda: resolve(answer, result))

        self.wire.to_namespace(at_namespace)
        try:
            return await answer
        finally:
            self._pending = None

    def _broken(self, reason: str) -> None:
        self.broken = reason
        if self._pending is not None:
            reject(self._pending, ConnectionResetError(reason))


async def in_sdk_words(caller: _Caller, operation: Callable[[], Any]) -> Any:
    """The namespace's answer, or the error that the SDK makes of what came instead."""
    try:
        return await caller.ask(operation)
    except Refusal as refusal:
        raise _sdk_error(refusal) from refusal
    except ConnectionError as error:
        raise ServiceBusConnectionError(message=str(error)) from error


class SimLink:
    """A link of a fake client, over a simulated wire of its own."""

    batch_bytes = BATCH_BYTES

    def __init__(
        self, world: World, process: Process, side: str, path: str, role: LinkRole
    ) -> None:
        self._world, self._process, self._side, self._path = world, process, side, path
        self._role = role
        self._namespace = world.namespaces[side]
        self._caller: _Caller | None = None

    @property
    def is_cut_off(self) -> bool:
        """Whether the peer has hung up."""
        return self._caller is not None and self._caller.broken is not None

    async def open(self) -> None:
        await self._open()

    async def send(self, payload: Any) -> None:
        """Return when the namespace has stored it."""
        if isinstance(payload, ServiceBusMessageBatch):
            messages = list(payload._messages)
        else:
            messages = list(payload) if isinstance(payload, list | tuple) else [payload]
        wires = [self._world.encoded(message) for message in messages]
        if sum(map(len, wires)) > BATCH_BYTES:
            raise MessageSizeExceededError(message=f"more than {BATCH_BYTES} bytes")
        deed = self._deed(messages[0])
        caller = await self._open()
        await in_sdk_words(caller, lambda: self._namespace.send(self._path, wires, deed))
        deed.answered = True

    async def peek(self, count: int, first: int) -> list[Any]:
        """Messages from that number on, as far as a look needs them."""

        def peek() -> list[Any]:
            self._namespace.charge(1)
            queue = self._namespace.engine.receive_source(self._path)
            found = queue.peek(first, count, self._namespace.now_ms())
            return [self._seen(queue.entity_id, message) for message in found]

        answer: list[Any] = await in_sdk_words(await self._open(), peek)
        return answer

    async def close(self) -> None:
        """Let the connection go."""
        if self._caller is not None:
            self._caller.wire.cut()

    def _deed(self, first: Any) -> Deed:
        who = self._process.name
        if getattr(first, "content_type", None) == PING_CONTENT_TYPE:
            return Deed("ping", who, self._path)
        kind = "send" if self._side == self._world.primary.name else "divert"
        call = CALL.get()
        deed = Deed(kind, who, self._path, call)
        self._world.truth.deeds.append(deed)
        if call is not None:
            call.deeds.append(deed)
        return deed

    async def _open(self) -> _Caller:
        if self._caller is None:
            self._caller = caller = _Caller(self._world, self._process, self._side)
            try:
                await caller.wire.open()
            except WireRefused as error:
                raise ServiceBusConnectionError(
                    message=f"Failed to initiate the connection due to exception: {error}"
                ) from error
            if self._role == "sender":
                if self._namespace is self._world.primary and self._world.plan.opening_s:
                    await asyncio.sleep(self._world.plan.opening_s)
                await self._attach(caller)
        return self._caller

    async def _attach(self, caller: _Caller) -> None:
        """Open the link; the token for a missing entity is refused, as by `$cbs`."""
        try:
            await in_sdk_words(caller, lambda: self._namespace.attach_sender(self._path))
        except MessagingEntityNotFoundError as error:
            refused = TokenAuthFailure(404, str(error).encode())  # type: ignore[no-untyped-call]
            raise PyamqpTransport.create_servicebus_exception(_QUIET, refused) from error

    def _seen(self, entity_id: int, message: StoredMessage) -> Any:
        payload = self._namespace.store.payload(entity_id, message.sequence_number)
        custom = split(render(payload, message)).application_properties
        return SimpleNamespace(
            sequence_number=message.sequence_number,
            application_properties=decode_map(custom) if custom else {},
        )


class _Pages:
    """The one page of a list."""

    continuation_token = None

    def __init__(self, ask: Callable[[], Awaitable[list[Any]]]) -> None:
        self._ask = ask

    async def __anext__(self) -> AsyncIterator[Any]:
        found = await self._ask()

        async def page() -> AsyncIterator[Any]:
            for each in found:
                yield each

        return page()


class SimAdministration:
    """A ServiceBusAdministrationClient, as far as a pair uses it."""

    def __init__(self, world: World, side: str) -> None:
        process = PROCESS.get()
        assert process is not None
        self._world, self._process = world, process
        self._namespace = world.namespaces[side]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Every request had a connection of its own."""

    def list_queues(self) -> SimAdministration:
        """All queues, on one page."""
        return self

    def by_page(self) -> _Pages:
        return _Pages(lambda: self._ask(self._all))

    async def get_queue(self, path: str) -> Any:
        return await self._ask(lambda: self._get(path))

    async def get_metadata(self, path: str) -> str | None:
        """The UserMetadata of a queue or topic."""
        engine = self._namespace.engine

        def get() -> str | None:
            return engine.resolve(path).description.user_metadata

        found: str | None = await self._ask(get)
        return found

    async def create_queue(self, path: str, **options: Any) -> Any:
        """A queue with what the pair asks for: a backlog queue, or that of the leases."""
        wanted = QueueDescription(
            lock_duration_ms=options["lock_duration"] // timedelta(milliseconds=1),
            max_size_mb=options.get("max_size_in_megabytes", 1024),
            max_delivery_count=options.get("max_delivery_count", 10),
            dead_letter_on_expiration=options.get("dead_lettering_on_message_expiration", False),
            requires_session=options.get("requires_session", False),
        )

        def create() -> Any:
            self._namespace.engine.create_queue(path, wanted, self._namespace.now_ms())
            return self._get(path)

        return await self._ask(create)

    def _counted(self, operation: Callable[[], Any]) -> Callable[[], Any]:
        def work() -> Any:
            self._namespace.administered()
            return operation()

        return work

    def _all(self) -> list[Any]:
        return [self._get(queue.path) for queue in self._namespace.engine.queues()]

    def _get(self, path: str) -> Any:
        found = self._namespace.engine.get_queue(path).description
        assert isinstance(found, QueueDescription)
        return SimpleNamespace(
            name=path,
            max_size_in_megabytes=found.max_size_mb,
            max_delivery_count=found.max_delivery_count,
            default_message_time_to_live=timedelta.max,
            auto_delete_on_idle=timedelta.max,
            lock_duration=timedelta(milliseconds=found.lock_duration_ms),
            dead_lettering_on_message_expiration=found.dead_letter_on_expiration,
            enable_batched_operations=True,
            requires_duplicate_detection=found.requires_duplicate_detection,
            requires_session=found.requires_session,
            enable_partitioning=False,
            forward_to=None,
            forward_dead_lettered_messages_to=None,
            status=found.status,
        )

    async def _ask(self, operation: Callable[[], Any]) -> Any:
        caller = _Caller(self._world, self._process, self._namespace.name)
        try:
            await caller.wire.open()
            return await caller.ask(self._counted(operation))
        except WireRefused as error:
            raise ServiceRequestError(str(error)) from error
        except ConnectionError as error:
            raise ServiceResponseError(str(error)) from error
        except EntityNotFound as refusal:
            raise ResourceNotFoundError(refusal.description) from refusal
        except EntityAlreadyExists as refusal:
            raise ResourceExistsError(refusal.description) from refusal
        except ServerBusy as refusal:
            raise _http_error(refusal) from refusal
        finally:
            caller.wire.cut()
