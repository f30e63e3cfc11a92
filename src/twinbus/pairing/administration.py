"""Backlog queues in the secondary: looked for, created where they are missing (SPEC 2.3 to 2.5).

Over the SDK's administration client; with `UseDevelopmentEmulator` over plain HTTP on the port of
the namespace. What each answer means for a pair is decided here, once: `MissingRightError` for a
right, `SecondaryUnreachable` when nobody answers, a reason in words for one queue that cannot be
had.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.core.pipeline.transport import AioHttpTransport
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from twinbus.errors import MissingRightError
from twinbus.pairing.backlog import WANTED, BacklogDescription, Drift, drift_of

if TYPE_CHECKING:
    from azure.servicebus.management import QueueProperties

    from twinbus.pairing.namespaces import Namespace
    from twinbus.pairing.recording import Recorder

__all__ = ["BacklogAdministration", "Findings", "SecondaryUnreachable"]

CALLS_AT_ONCE: Final = 8
"""Administration calls in flight. Azure throttles a namespace that is asked for much more."""

FOREVER: Final = "P10675199DT2H48M5.4775807S"
"""The largest duration, as the service writes it."""

FORBIDDEN: Final = (401, 403)
SERVER_FAULTS: Final = 500


class SecondaryUnreachable(Exception):
    """Nobody answers for the secondary's administration, or only with a fault of its own."""


@dataclass(slots=True)
class Findings:
    """What a look at the secondary brought."""

    usable: list[str] = field(default_factory=list)
    """Queues to divert to."""
    drained: list[str] = field(default_factory=list)
    """Queues to drain: these, and those that are there but must not be used."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Queues that cannot be had or must not be used, and why."""
    drift: dict[str, tuple[Drift, ...]] = field(default_factory=dict)


class BacklogAdministration:
    """Administration calls of one namespace; an async context manager."""

    def __init__(self, namespace: Namespace, recorder: Recorder, *, timeout_s: float) -> None:
        self._namespace = namespace
        self._recorder = recorder
        self._timeout_s = timeout_s
        self._stack = AsyncExitStack()
        self._gate = asyncio.Semaphore(CALLS_AT_ONCE)
        self._client: ServiceBusAdministrationClient

    async def __aenter__(self) -> Self:
        client = _administration_client(self._namespace)
        self._client = await self._stack.enter_async_context(client)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def find_or_create(
        self, paths: Iterable[str], findings: Findings, *, accept_drift: bool
    ) -> None:
        """Take what is there and create the rest; `findings` grows as answers come in.

        MissingRightError, SecondaryUnreachable: no use to go on asking.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for path in paths:
                    group.create_task(self._have(path, findings, accept_drift=accept_drift))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _have(self, path: str, findings: Findings, *, accept_drift: bool) -> None:
        async with self._gate:
            try:
                found = await self._get(path) or await self._create(path)
            except HttpResponseError as error:
                findings.left_out[path] = _in_words(error)
                return
        drift = drift_of(found)
        if drift:
            findings.drift[path] = drift
        dangers = [str(one) for one in drift if one.unsafe]
        findings.drained.append(path)
        if dangers and not accept_drift:
            findings.left_out[path] = "; ".join(dangers)
        else:
            findings.usable.append(path)
            findings.left_out.pop(path, None)

    async def _get(self, path: str) -> BacklogDescription | None:
        try:
            return _description(await self._call(path, lambda: self._client.get_queue(path)))
        except ResourceNotFoundError:
            return None

    async def _create(self, path: str) -> BacklogDescription:
        try:
            created = await self._call(path, lambda: _create_as_wanted(self._client, path))
        except ResourceExistsError:
            # Another process was quicker, and it has what we want (SPEC 2.3).
            created = await self._call(path, lambda: self._client.get_queue(path))
        return _description(created)

    async def _call(self, path: str, call: Callable[[], Awaitable[Any]]) -> QueueProperties:
        loop = asyncio.get_running_loop()
        began = loop.time()
        error: BaseException | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                return await call()  # type: ignore[no-any-return]
        except BaseException as caught:
            error = caught
            raise self._judged(caught) from caught
        finally:
            self._recorder.managed("secondary", began, loop.time(), error=error, queue=path)

    def _judged(self, error: BaseException) -> BaseException:
        """What an error of one call means for the pair; itself where it is about one queue."""
        endpoint = self._namespace.endpoint
        status = getattr(error, "status_code", None)
        if isinstance(error, ClientAuthenticationError) or status in FORBIDDEN:
            return MissingRightError(
                f"creating backlog queues in {endpoint} needs the Manage right, and the credential"
                f" does not have it ({_in_words(error)}); grant it, or have an administrator run"
                " `twinbus backlog create` and pair with create_backlog_queues=False"
            )
        if isinstance(error, ServiceRequestError | ServiceResponseError | TimeoutError | OSError):
            why = _in_words(error) or f"no answer within {self._timeout_s:g} s"
            return SecondaryUnreachable(f"{endpoint}: {why}")
        if isinstance(status, int) and status >= SERVER_FAULTS:
            return SecondaryUnreachable(f"{endpoint}: {_in_words(error)}")
        if isinstance(error, AzureError) and not isinstance(error, HttpResponseError):
            return SecondaryUnreachable(f"{endpoint}: {_in_words(error)}")
        return error


class _PlainHttp(AioHttpTransport):  # type: ignore[misc]  # untyped in azure-core
    """The SDK's transport without TLS: its administration client has https built in."""

    async def send(self, request: Any, **config: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return await super().send(request, **config)


def _administration_client(namespace: Namespace) -> ServiceBusAdministrationClient:
    options: dict[str, Any] = {"retry_total": 0}
    if namespace.emulator:
        options["transport"] = _PlainHttp()
    text = namespace.connection_string
    if text is None:
        named_key = getattr(namespace.credential, "named_key", None)
        if named_key is None:
            host = namespace.fully_qualified_namespace
            return ServiceBusAdministrationClient(host, namespace.credential, **options)
        # The administration client knows a named key only from a connection string.
        name, key = named_key
        text = f"Endpoint=sb://{namespace.host}/;SharedAccessKeyName={name};SharedAccessKey={key}"
    return ServiceBusAdministrationClient.from_connection_string(text, **options)


async def _create_as_wanted(client: ServiceBusAdministrationClient, path: str) -> QueueProperties:
    """Create a queue with the settings of SPEC 2.3, and no others."""
    return await client.create_queue(
        path,
        max_size_in_megabytes=WANTED.max_size_mb,
        max_delivery_count=WANTED.max_delivery_count,
        default_message_time_to_live=FOREVER,
        auto_delete_on_idle=FOREVER,
        lock_duration=timedelta(milliseconds=WANTED.lock_duration_ms),
        dead_lettering_on_message_expiration=WANTED.dead_letter_on_expiration,
        enable_batched_operations=WANTED.enable_batched_operations,
    )


def _description(found: QueueProperties) -> BacklogDescription:
    def ms(value: Any, default: int) -> int:
        return value // timedelta(milliseconds=1) if isinstance(value, timedelta) else default

    return BacklogDescription(
        max_size_mb=found.max_size_in_megabytes or WANTED.max_size_mb,
        max_delivery_count=found.max_delivery_count or WANTED.max_delivery_count,
        default_ttl_ms=ms(found.default_message_time_to_live, WANTED.default_ttl_ms),
        auto_delete_on_idle_ms=ms(found.auto_delete_on_idle, WANTED.auto_delete_on_idle_ms),
        lock_duration_ms=ms(found.lock_duration, WANTED.lock_duration_ms),
        dead_letter_on_expiration=bool(found.dead_lettering_on_message_expiration),
        enable_batched_operations=found.enable_batched_operations is not False,
        requires_duplicate_detection=bool(found.requires_duplicate_detection),
        requires_session=bool(found.requires_session),
        enable_partitioning=bool(found.enable_partitioning),
        forward_to=found.forward_to or None,
        forward_dead_letters_to=found.forward_dead_lettered_messages_to or None,
        status=str(getattr(found.status, "value", found.status) or WANTED.status),
    )


def _in_words(error: BaseException) -> str:
    """The first line of an error: an answer over HTTP repeats itself over several."""
    text = str(getattr(error, "message", None) or error).strip()
    return text.splitlines()[0] if text else ""
