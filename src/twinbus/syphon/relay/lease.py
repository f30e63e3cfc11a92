"""Holds the leases of backlog queues, so that each queue has one pump at a time (SPEC 6).

    leases = Leases(secondary, queues, on_change); leases.start()
    ...; leases.holds(queue) -> True while this process may pump it
    await leases.close()

One connection for all leases, one link for each: it holds the lock of a named session, which needs
no messages. If the link or the connection is lost, the lease is lost at once: the service gives the
session to the next receiver.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Callable, Iterable
from typing import Final

from twinbus.amqp.events import Attached, Detached, Event
from twinbus.amqp.link import ReceiverLink
from twinbus.amqp.performatives import Source, Target
from twinbus.amqp.types import Symbol
from twinbus.namespace.endpoint import Endpoint
from twinbus.syphon.connection.namespace_connection import (
    ANSWER_S,
    ConnectionLost,
    NamespaceConnection,
    RequestRefused,
)
from twinbus.syphon.core.lease_validity import (
    LEASE_LOCK_S,
    LeaseAddress,
    LeaseValidity,
    lease_address,
)

log = logging.getLogger("twinbus.syphon")

RETRY_S: Final = 1.0
"""Mean pause between two attempts to acquire a lease; it varies by half of it."""

SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
LOCKED_UNTIL: Final = Symbol("com.microsoft:locked-until-utc")
TAKEN: Final = "com.microsoft:session-cannot-be-locked"
NOT_FOUND: Final = "amqp:not-found"
WAITING: Final = "another syphon has the lease"
GIVEN_BACK: Final = "it was given back"
TICKS_PER_S: Final = 10_000_000
EPOCH_TICKS: Final = 621_355_968_000_000_000
"""The unix epoch in .NET ticks since the year 1."""

_link_numbers = itertools.count(1)


class _Lease:
    """One queue's lease and the link that holds it."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.address: LeaseAddress = lease_address(queue)
        self.validity = LeaseValidity()
        self.lock_s = LEASE_LOCK_S
        """Lock duration; a renewal extends the lock by as much."""
        self.is_announced = False
        self.answer: asyncio.Future[ReceiverLink] | None = None
        self.ended: asyncio.Future[str] | None = None
        self.problem = "it was not requested yet"


class Leases:
    """The leases that this process holds or waits for."""

    def __init__(
        self,
        endpoint: Endpoint,
        queues: Iterable[str],
        on_change: Callable[[str, bool], None],
    ) -> None:
        """`on_change` is called with a backlog queue and whether it may be pumped now."""
        self._endpoint = endpoint
        self._leases = {queue: _Lease(queue) for queue in queues}
        self._on_change = on_change
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to acquire the leases, and keep trying."""
        self._task = asyncio.create_task(self._keep(), name="syphon leases")

    async def close(self) -> None:
        """Release the leases; others can acquire them at once."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    def holds(self, queue: str) -> bool:
        """Return whether this process may pump the queue now."""
        return self._leases[queue].validity.holds(time.monotonic())

    def problem(self, queue: str) -> str | None:
        """Return why the lease is not held; None: it is held."""
        return None if self.holds(queue) else self._leases[queue].problem

    async def _keep(self) -> None:
        while True:
            connection = NamespaceConnection(self._endpoint, self._on_event)
            try:
                await connection.open()
                async with asyncio.TaskGroup() as group:
                    for lease in self._leases.values():
                        group.create_task(self._keep_one(connection, lease))
            except* ConnectionLost as errors:
                reason = str(errors.exceptions[0])
                for lease in self._leases.values():
                    self._lose(lease, reason)
            except* Exception as errors:
                # After any error, keep trying: the pumps stop until the leases are held.
                log.exception("keeping the leases failed")
                for lease in self._leases.values():
                    self._lose(lease, f"{errors.exceptions[0]!r}")
            finally:
                for lease in self._leases.values():
                    if lease.is_announced:
                        self._lose(lease, GIVEN_BACK)
                await connection.close()
            await asyncio.sleep(RETRY_S * (0.5 + random.random()))  # noqa: S311

    async def _keep_one(self, connection: NamespaceConnection, lease: _Lease) -> None:
        """Hold one lease, and acquire it again when it is lost, until ConnectionLost."""
        while True:
            link: ReceiverLink | None = None
            try:
                await connection.authorize(lease.address.queue)
                link = await self._acquire(connection, lease)
                reason = await self._renew_for_ever(connection, lease, link)
            except RequestRefused as refusal:
                reason = str(refusal)
            finally:
                if link is not None:
                    link.detach()
                    connection.flush()
            self._lose(lease, reason)
            await asyncio.sleep(RETRY_S * (0.5 + random.random()))  # noqa: S311

    async def _acquire(self, connection: NamespaceConnection, lease: _Lease) -> ReceiverLink:
        """Return the link that holds the session lock; RequestRefused says why it cannot be had."""
        if connection.lost.done():
            raise ConnectionLost(connection.lost.result())
        loop = asyncio.get_running_loop()
        lease.answer, lease.ended = loop.create_future(), loop.create_future()
        name = f"{lease.address.queue}-{lease.address.session}-{next(_link_numbers)}"
        asked_at = time.monotonic()
        link = connection.session.attach_receiver(
            name,
            source=Source(
                address=lease.address.queue, filter={SESSION_FILTER: lease.address.session}
            ),
            target=Target(address=name),
        )
        link.owner = lease
        connection.flush()
        answers: set[asyncio.Future[object]] = {lease.answer, lease.ended, connection.lost}  # type: ignore[arg-type]
        await asyncio.wait(answers, timeout=ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
        if lease.answer.done():
            lease.lock_s = _lock_s(lease.answer.result())
            lease.validity.granted(asked_at, lease.lock_s)
            self._report_held(lease)
            return link
        if connection.lost.done():
            raise ConnectionLost(connection.lost.result())
        link.detach()
        text = lease.ended.result() if lease.ended.done() else "the attach was not answered"
        raise RequestRefused(text, 0, "")

    async def _renew_for_ever(
        self, connection: NamespaceConnection, lease: _Lease, link: ReceiverLink
    ) -> str:
        """Renew the lease until it ends; return why it ended."""
        ended, validity = lease.ended, lease.validity
        assert ended is not None
        while True:
            wait_s = max(0.0, validity.renew_at - time.monotonic())
            either: set[asyncio.Future[str]] = {ended, connection.lost}
            await asyncio.wait(either, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if connection.lost.done():
                raise ConnectionLost(connection.lost.result())
            if ended.done():
                return ended.result()
            asked_at = time.monotonic()
            remaining_s = validity.ends_at - asked_at
            if remaining_s <= 0:
                return "it was not renewed in time"
            try:
                async with asyncio.timeout(remaining_s):
                    await connection.request(
                        lease.address.queue,
                        "renew-session-lock",
                        {"session-id": lease.address.session},
                        link_name=link.name,
                    )
            except TimeoutError:
                return "it was not renewed in time"
            except RequestRefused as refusal:
                if refusal.condition:
                    return str(refusal)
                validity.not_renewed(time.monotonic())
            else:
                # A lapsed lease is lost even if the service renewed the lock: the pump was stopped.
                if not validity.holds(time.monotonic()):
                    return "it was not renewed in time"
                validity.granted(asked_at, lease.lock_s)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Attached):
            lease, link = event.link.owner, event.link
            if isinstance(lease, _Lease) and isinstance(link, ReceiverLink):
                answered = link.source is not None and lease.answer is not None
                if answered and lease.answer is not None and not lease.answer.done():
                    lease.answer.set_result(link)
        elif isinstance(event, Detached):
            lease = event.link.owner
            if isinstance(lease, _Lease) and lease.ended is not None and not lease.ended.done():
                condition = str(event.error.condition) if event.error else ""
                text = (event.error.description if event.error else None) or "the link was closed"
                lease.ended.set_result(_reason_text(self._endpoint, lease.address, condition, text))
                if lease.is_announced:
                    # At once, not when the task runs: nothing more may be sent.
                    self._lose(lease, text)

    def _report_held(self, lease: _Lease) -> None:
        lease.is_announced = True
        log.info("%s: leased, as session %s of %s", lease.queue, lease.address[1], lease.address[0])
        self._on_change(lease.queue, True)

    def _lose(self, lease: _Lease, reason: str) -> None:
        lease.validity.lost()
        if reason != lease.problem:
            # Waiting for another syphon is normal; any other reason needs attention.
            is_usual = reason.startswith((WAITING, GIVEN_BACK))
            level = logging.INFO if is_usual else logging.WARNING
            log.log(level, "%s: the lease is not held: %s", lease.queue, reason)
        lease.problem = reason
        if lease.is_announced:
            lease.is_announced = False
            self._on_change(lease.queue, False)


def _lock_s(link: ReceiverLink) -> float:
    """Return the remaining duration of the lock that an attach granted, by our clock."""
    ticks = link.properties.get(LOCKED_UNTIL)
    if not isinstance(ticks, int):
        return LEASE_LOCK_S
    return (ticks - EPOCH_TICKS) / TICKS_PER_S - time.time()


def _reason_text(endpoint: Endpoint, address: LeaseAddress, condition: str, text: str) -> str:
    if condition == TAKEN:
        return f"{WAITING} (session {address.session} of {address.queue})"
    if condition == NOT_FOUND:
        return (
            f"there is no lease queue {address.queue} in {endpoint.label}; create it with sessions"
            " required, or pair with session_order='strict' and the Manage right"
        )
    return text
