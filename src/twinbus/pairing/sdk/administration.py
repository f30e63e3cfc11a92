"""Finds the backlog queues in the secondary and creates missing ones (docs/production.md).

Existing queues are listed, in one call unless the namespace holds hundreds of them. The meaning of
each answer for a pair is decided here, once: `MissingRightError` for a right,
`SecondaryUnreachable` when the administration does not answer, a reason for one queue that cannot
be used.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)

from twinbus.client.connection import MACHINE, Environment
from twinbus.namespace.address import is_loopback
from twinbus.namespace.tokens import expiry_of, refusal_error, utc_text
from twinbus.pairing.core.backlog import (
    BOARD,
    LEASE_LOCK_S,
    OLD_LEASE_LOCK_S,
    WANTED,
    BacklogDescription,
    Drift,
    board_flaws,
    drift_of,
)
from twinbus.servicebus.failures import refused_token
from twinbus.servicebus.names import parse_backlog_path

if TYPE_CHECKING:
    from azure.servicebus.aio.management import ServiceBusAdministrationClient
    from azure.servicebus.management import QueueProperties

    from twinbus.namespace.namespace import Namespace
    from twinbus.pairing.observing.recording import Recorder

T = TypeVar("T")

CALLS_AT_ONCE: Final = 8
"""Administration calls in flight. Azure throttles a namespace that gets many more."""

LIST_PAGES_MAX: Final = 3
"""Pages of 100 queues. Listing a secondary with more queues to its end could take a minute; queues
not found by then are requested by name."""

FOREVER: Final = "P10675199DT2H48M5.4775807S"
"""The largest duration, as the service writes it."""

_NOT_CONNECTED: Final = re.compile(r"Cannot connect to host \S+ ssl:\S+ \[(.*)\]")

FORBIDDEN: Final = 403
BUSY: Final = 429
SERVER_FAULTS: Final = 500


class SecondaryUnreachable(Exception):
    """The secondary's administration does not answer, or answers with a server error."""


@dataclass(slots=True)
class Findings:
    """The result of a search in the secondary."""

    usable: list[str] = field(default_factory=list)
    """Queues to divert to."""
    drained: list[str] = field(default_factory=list)
    """Queues to drain: the usable ones, and existing ones that must not be used."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Queues that are not available or must not be used, and why."""
    drift: dict[str, tuple[Drift, ...]] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)
    """Queues that did not exist before."""
    not_verified: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For each queue the settings that could not be read."""


class BacklogAdministration:
    """Administration calls of one namespace; an async context manager."""

    def __init__(
        self,
        namespace: Namespace,
        recorder: Recorder,
        *,
        timeout_s: float,
        environment: Environment = MACHINE,
    ) -> None:
        self._namespace = namespace
        self._environment = environment
        self._recorder = recorder
        self._timeout_s = timeout_s
        self._stack = AsyncExitStack()
        self._gate = asyncio.Semaphore(CALLS_AT_ONCE)
        self._seen: dict[str, BacklogDescription] = {}
        """Queues of any kind that a listing has shown, by their paths in lower case."""
        self._client: ServiceBusAdministrationClient

    async def __aenter__(self) -> Self:
        client = self._environment.administer(self._namespace)
        self._client = await self._stack.enter_async_context(client)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def find_or_create(
        self, paths: Iterable[str], findings: Findings, *, accept_drift: bool
    ) -> None:
        """Find existing queues and create the rest; `findings` grows as answers come in.

        MissingRightError, SecondaryUnreachable: further calls would fail the same way.
        """
        wanted = {path.lower(): path for path in paths}
        if not wanted:
            return
        there, is_all = await self._list(wanted)
        for path, found in there.items():
            _judge(path, found, findings, accept_drift=accept_drift)
        try:
            async with asyncio.TaskGroup() as group:
                for path in wanted.values():
                    if path not in there:
                        work = self._ensure(path, findings, accept_drift, may_exist=not is_all)
                        group.create_task(work)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def backlog_queues(self, label: str) -> list[str]:
        """Every backlog queue of a label by index, those beyond a pair's own number too."""
        found: list[tuple[int, str]] = []
        pages: Any = self._client.list_queues().by_page()
        for _ in range(LIST_PAGES_MAX):
            for queue in await self._call(None, lambda: _next_page(pages)):
                place = parse_backlog_path(queue.name)
                if place is not None and place[0].lower() == label.lower():
                    found.append((place[1], queue.name))
            if pages.continuation_token is None:
                break
        return [path for _, path in sorted(found)]

    async def ensure_lease_queue(self, path: str) -> None:
        """Create the queue on whose sessions leases are held, unless it exists.

        One that an earlier version created gets the longer lock of today.
        """
        lock = timedelta(seconds=LEASE_LOCK_S)
        try:
            found = await self._call(path, lambda: _get_queue(self._client, path))
            if found.lock_duration == timedelta(seconds=OLD_LEASE_LOCK_S):
                found.lock_duration = lock
                await self._call(path, lambda: self._client.update_queue(found))
        except ResourceNotFoundError:
            with contextlib.suppress(ResourceExistsError):
                create = partial(self._client.create_queue, path, requires_session=True)
                await self._call(path, partial(create, lock_duration=lock))

    async def ensure_ping_leases(self, path: str) -> None:
        """Create the lease queue unless it exists; a pair can do without it."""
        if path.lower() not in self._seen:
            with contextlib.suppress(HttpResponseError, SecondaryUnreachable):
                await self.ensure_lease_queue(path)

    async def ensure_board(self, path: str) -> tuple[str, ...]:
        """Create the notice board unless it exists; return why it cannot be used, if so."""
        try:
            found = self._seen.get(path.lower()) or await self._get(path)
            if found is not None:
                return board_flaws(found)
            with contextlib.suppress(ResourceExistsError):
                await self._call(path, partial(create_board, self._client, path))
        except (HttpResponseError, SecondaryUnreachable) as error:
            return (first_line(error),)
        return ()

    async def _list(self, wanted: dict[str, str]) -> tuple[dict[str, BacklogDescription], bool]:
        """The wanted queues that exist, and whether the list is complete."""
        there: dict[str, BacklogDescription] = {}
        pages: Any = self._client.list_queues().by_page()
        for _ in range(LIST_PAGES_MAX):
            for found in await self._call(None, lambda: _next_page(pages)):
                self._seen[found.name.lower()] = description_of(found)
                path = wanted.get(found.name.lower())
                if path is not None:
                    there[path] = self._seen[found.name.lower()]
            if pages.continuation_token is None or len(there) == len(wanted):
                return there, True
        return there, False

    async def _ensure(
        self, path: str, findings: Findings, accept_drift: bool, *, may_exist: bool
    ) -> None:
        async with self._gate:
            try:
                found = await self._get(path) if may_exist else None
                found = found or await self._create(path, findings)
            except HttpResponseError as error:
                findings.left_out[path] = first_line(error)
                return
        _judge(path, found, findings, accept_drift=accept_drift)

    async def _get(self, path: str) -> BacklogDescription | None:
        try:
            return description_of(await self._call(path, lambda: _get_queue(self._client, path)))
        except ResourceNotFoundError:
            return None

    async def _create(self, path: str, findings: Findings) -> BacklogDescription:
        create = partial(create_backlog_queue, self._client, path)
        try:
            created = await self._call(path, create)
        except ResourceExistsError:
            # Another process created it first (docs/production.md).
            found = await self._get(path)
            if found is not None:
                return found
            # And it was deleted since. If that happens again, the next search creates it.
            created = await self._call(path, create)
        findings.created.append(path)
        return description_of(created)

    async def _call(self, path: str | None, call: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        began = loop.time()
        error: BaseException | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                return await call()
        except BaseException as caught:
            error = caught
            raise self._judged(caught, path) from caught
        finally:
            self._recorder.managed("secondary", began, loop.time(), error=error, queue=path)

    def _judged(self, error: BaseException, path: str | None) -> BaseException:
        """What a failed call means for the pair; the error itself if it is about one queue."""
        endpoint = self._namespace.endpoint
        status = getattr(error, "status_code", None)
        # The service also forbids one queue too many; after a listing the credential is good.
        is_forbidden = status == FORBIDDEN and path is None
        if isinstance(error, ClientAuthenticationError) or is_forbidden:
            return refusal_error(
                endpoint,
                str(error),
                f"creating backlog queues in {endpoint} needs the Manage right, and the"
                f" credential was refused ({self._why_refused(error)}); grant it, or have an"
                " administrator run `twinbus backlog create` and pair with"
                " create_backlog_queues=False",
            )
        if isinstance(error, ServiceRequestError | ServiceResponseError | TimeoutError | OSError):
            why = first_line(error) or f"no answer within {self._timeout_s:g} s"
            return SecondaryUnreachable(f"{endpoint}: {why}{self._tls_hint()}")
        if isinstance(status, int) and (status >= SERVER_FAULTS or status == BUSY or path is None):
            return SecondaryUnreachable(f"{endpoint}: {first_line(error)}")
        if isinstance(error, AzureError) and not isinstance(error, HttpResponseError):
            return SecondaryUnreachable(f"{endpoint}: {first_line(error)}")
        return error

    def _tls_hint(self) -> str:
        """What a person who pairs with a broker on this machine usually forgot."""
        if self._namespace.emulator or not is_loopback(self._namespace.host):
            return ""
        return (
            " (TLS was tried; the connection string of a broker without a certificate, and of the"
            " emulator, ends with UseDevelopmentEmulator=true)"
        )

    def _why_refused(self, error: BaseException) -> str:
        """The service's text, or ours for an expired signature, which the service just refuses."""
        ends = expiry_of(self._namespace.signature or "")
        if ends is not None and ends <= time.time():
            return f"its shared access signature expired at {utc_text(ends)}, give a new one"
        return first_line(error)


def _judge(path: str, found: BacklogDescription, findings: Findings, *, accept_drift: bool) -> None:
    """Add an existing queue to the findings: usable or left out, and drained either way."""
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


async def _next_page(pages: Any) -> list[QueueProperties]:
    return [queue async for queue in await anext(pages)]


async def _get_queue(client: ServiceBusAdministrationClient, path: str) -> QueueProperties:
    """A queue's properties; HttpResponseError if it is missing, or another entity has its name."""
    try:
        return await client.get_queue(path)
    except AttributeError:
        # The client raises this for a topic where it expects a queue.
        raise HttpResponseError(f"{path} is no queue: another entity has its name") from None


async def create_backlog_queue(
    client: ServiceBusAdministrationClient, path: str
) -> QueueProperties:
    """Create a queue with the settings of docs/production.md, and no others."""
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


async def create_board(client: ServiceBusAdministrationClient, path: str) -> QueueProperties:
    """Create the notice board with the settings of docs/production.md, and no others."""
    return await client.create_queue(
        path,
        max_size_in_megabytes=BOARD.max_size_mb,
        max_delivery_count=BOARD.max_delivery_count,
        default_message_time_to_live=timedelta(milliseconds=BOARD.default_ttl_ms),
        auto_delete_on_idle=FOREVER,
        lock_duration=timedelta(milliseconds=BOARD.lock_duration_ms),
        dead_lettering_on_message_expiration=BOARD.dead_letter_on_expiration,
        enable_batched_operations=BOARD.enable_batched_operations,
    )


def description_of(found: QueueProperties) -> BacklogDescription:
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


def first_line(error: BaseException) -> str:
    """The first line of an error's text; the text of an HTTP answer repeats itself on several."""
    refused = refused_token(error)
    text = refused or str(getattr(error, "message", None) or error).strip()
    # The HTTP library's own words for a connection that is not made.
    return _NOT_CONNECTED.sub(r"\1", text.splitlines()[0]) if text else ""
