"""Holds the leases of backlog queues, so that each queue has one pump at a time.

    leases = Leases(secondary, queues, on_change); leases.start()
    ...; leases.holds(queue) -> True while this process may pump it
    await leases.close()

One connection for all leases, one link for each: it holds the lock of a named session, which needs
no messages. If the link or the connection is lost, the lease is lost at once: the service gives the
session to the next receiver. The service can lose the connection before this process notices it.
So the holder asks for signs of life (a flow with echo, which is not billed), and no lease is valid
without one.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from twinbus.amqp.events import Attached, Detached, Event
from twinbus.amqp.link import ReceiverLink
from twinbus.amqp.performatives import Source, Target
from twinbus.amqp.types import Symbol
from twinbus.client.connection import ANSWER_S, MACHINE, Environment, NamespaceConnection
from twinbus.client.request_node import ConnectionLost, RequestRefused
from twinbus.ledger.requests import ACCEPT_SESSION, BilledRequests, RequestLedger
from twinbus.namespace.access import Endpoint
from twinbus.servicebus.conditions import NOT_FOUND, SESSION_TAKEN
from twinbus.servicebus.failures import MISSING_STATUS
from twinbus.servicebus.names import EPOCH_TICKS, SESSION_FILTER, SESSION_LOCKED_UNTIL, TICKS_PER_MS
from twinbus.status.document import LEASED
from twinbus.syphon.core.lease_validity import (
    LOCK_ASSUMED_S,
    PROOF_S,
    SILENCE_S,
    STANDBY_SHARE,
    LeaseAddress,
    LeaseValidity,
    handover_s,
    lease_address,
    relied_on_s,
)

log = logging.getLogger("twinbus.syphon")

RETRY_S: Final = 1.0
"""Mean pause after a lost lease or connection; it varies by half of it."""

GIVEN_BACK: Final = "it was given back"

_link_numbers = itertools.count(1)


class _Lease:
    """One queue's lease and the link that holds it."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.address: LeaseAddress = lease_address(queue)
        self.validity = LeaseValidity()
        self.lock_s = LOCK_ASSUMED_S
        """Lock duration as the accept showed it on our clock; a renewal extends it by as much."""
        self.granted_at = 0.0
        """When the present lock was requested."""
        self.announce_at = 0.0
        """When the queue may be pumped, once the lease is granted."""
        self.is_announced = False
        self.is_taken = False
        """Another syphon had it at an attempt since this one could pump."""
        self.proven_at = float("inf")
        """The last sign of life while this syphon had it; inf: this is the first attempt."""
        self.link_name = ""
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
        ledger: RequestLedger | None = None,
        environment: Environment = MACHINE,
    ) -> None:
        """`on_change` is called with a backlog queue and whether it may be pumped now."""
        self._endpoint = endpoint
        self._environment = environment
        self._now = environment.since_boot
        self._requests = BilledRequests(
            endpoint.label, cause="lease", side="secondary", ledger=ledger
        )
        self._lock_s: dict[str, float] = {}
        """By lease queue, the lock duration in its description, if it could be read."""
        self._proven_at = float("-inf")
        """When the last sign of life was asked for that came."""
        self._got_one = asyncio.Event()
        """Set when a lease is acquired that another syphon had: others may be free too."""
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
        now, lease = self._now(), self._leases[queue]
        if not lease.is_announced or now >= self._proven_at + SILENCE_S:
            return False
        return lease.validity.holds(now)

    def problem(self, queue: str) -> str | None:
        """Return why the lease is not held; None: it is held."""
        return None if self.holds(queue) else self._leases[queue].problem

    async def _keep(self) -> None:
        while True:
            connection = self._environment.connect(
                self._endpoint, self._on_event, requests=self._requests
            )
            reason = GIVEN_BACK
            try:
                asked_at = self._now()
                await connection.open()
                self._proven_at = asked_at
                self._lock_s.clear()
                async with asyncio.TaskGroup() as group:
                    for path in {lease.address.queue for lease in self._leases.values()}:
                        group.create_task(self._read_lock(path))
                    group.create_task(self._prove(connection))
                    for lease in self._leases.values():
                        group.create_task(self._keep_one(connection, lease))
            except* ConnectionLost as errors:
                reason = str(errors.exceptions[0])
            except* Exception as errors:
                # After any error, keep trying: the pumps stop until the leases are held.
                log.exception("keeping the leases failed")
                reason = f"{errors.exceptions[0]!r}"
            finally:
                for lease in self._leases.values():
                    if lease.is_announced or reason != GIVEN_BACK:
                        self._lose(lease, reason)
                await connection.close()
            await asyncio.sleep(RETRY_S * (0.5 + self._environment.chance()))

    async def _keep_one(self, connection: NamespaceConnection, lease: _Lease) -> None:
        """Hold one lease, and acquire it again when it is lost, until ConnectionLost."""
        while True:
            link: ReceiverLink | None = None
            try:
                await connection.authorize(lease.address.queue)
                link = await self._acquire(connection, lease)
                reason = await self._renew_for_ever(connection, lease)
            except RequestRefused as refusal:
                condition = NOT_FOUND if refusal.status == MISSING_STATUS else ""
                reason = _reason_text(self._endpoint, lease.address, condition, str(refusal))
            finally:
                if link is not None:
                    link.detach()
                    connection.flush()
            self._lose(lease, reason)
            mean_s = RETRY_S
            if lease.is_taken:
                mean_s = STANDBY_SHARE * self._lock_s.get(lease.address.queue, LOCK_ASSUMED_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(mean_s * (0.5 + self._environment.chance())):
                    await self._got_one.wait()

    async def _read_lock(self, path: str) -> None:
        """Read the lock duration of the lease queue, for the leases that are held on it."""
        lock_s = await self._environment.lock_duration_s(self._endpoint, path, self._requests)
        if lock_s is None:
            return
        self._lock_s[path] = lock_s
        for lease in self._leases.values():
            if lease.address.queue == path and lease.validity.holds(self._now()):
                lease.validity.granted(lease.granted_at, lock_s)

    async def _prove(self, connection: NamespaceConnection) -> None:
        """Keep the proof fresh that the service still serves this connection."""
        while True:
            asked_at, flows = self._now(), connection.flows
            held = [lease for lease in self._leases.values() if lease.validity.holds(asked_at)]
            if held:
                connection.echo()
            await asyncio.wait({connection.lost}, timeout=PROOF_S)
            if connection.lost.done():
                raise ConnectionLost(connection.lost.result())
            is_alive = not held or connection.flows != flows
            if not is_alive:
                # A service may ignore an echo. It does not ignore a request, which is billed.
                asked_at = self._now()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._proven_at + SILENCE_S - asked_at):
                        with suppress(RequestRefused):
                            await self._renew(connection, held[0])
                        is_alive = True
            if is_alive:
                self._proven_at = asked_at
            elif self._now() >= self._proven_at + SILENCE_S:
                raise ConnectionLost(f"{self._endpoint.label} was silent for {SILENCE_S:g} s")

    async def _renew(self, connection: NamespaceConnection, lease: _Lease) -> None:
        await connection.request(
            lease.address.queue,
            "renew-session-lock",
            {"session-id": lease.address.session},
            link_name=lease.link_name,
        )

    async def _acquire(self, connection: NamespaceConnection, lease: _Lease) -> ReceiverLink:
        """Return the link that holds the session lock; RequestRefused says why it cannot be had."""
        if connection.lost.done():
            raise ConnectionLost(connection.lost.result())
        loop = asyncio.get_running_loop()
        lease.answer, lease.ended = loop.create_future(), loop.create_future()
        name = f"{lease.address.queue}-{lease.address.session}-{next(_link_numbers)}"
        lease.link_name = name
        asked_at = self._now()
        link = connection.session.attach_receiver(
            name,
            source=Source(
                address=lease.address.queue, filter={Symbol(SESSION_FILTER): lease.address.session}
            ),
            target=Target(address=name),
        )
        link.owner = lease
        connection.flush()
        answers: set[asyncio.Future[object]] = {lease.answer, lease.ended, connection.lost}  # type: ignore[arg-type]
        await asyncio.wait(answers, timeout=ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
        if lease.answer.done():
            self._requests.made(lease.address.queue, ACCEPT_SESSION)
            lease.lock_s = _lock_left_s(lease.answer.result(), self._environment.wall_ns())
            wait_s = handover_s(self._grant(lease, asked_at))
            if lease.is_taken:
                got_one, self._got_one = self._got_one, asyncio.Event()
                got_one.set()
            elif asked_at <= lease.proven_at + wait_s:
                # At the first attempt, or if no standby can have begun to pump since.
                wait_s = 0.0
            lease.announce_at = self._now() + wait_s
            return link
        text = lease.ended.result() if lease.ended.done() else "the attach was not answered"
        # That another syphon has it is an answer like that of a receive which finds nothing.
        is_taken, is_known = text.startswith(LEASED), lease.ended.done()
        lease.is_taken = lease.is_taken or is_taken
        error = None if is_taken else text
        self._requests.made(lease.address.queue, ACCEPT_SESSION, error, is_known=is_known)
        if connection.lost.done():
            raise ConnectionLost(connection.lost.result())
        link.detach()
        raise RequestRefused(text, 0, "")

    def _grant(self, lease: _Lease, asked_at: float) -> float:
        """Extend a lease whose lock was requested at `asked_at`; return the lock duration."""
        lease.granted_at = asked_at
        lock_s = relied_on_s(lease.lock_s, self._lock_s.get(lease.address.queue))
        lease.validity.granted(asked_at, lock_s)
        return lock_s

    async def _renew_for_ever(self, connection: NamespaceConnection, lease: _Lease) -> str:
        """Renew the lease until it ends; return why it ended."""
        ended, validity = lease.ended, lease.validity
        assert ended is not None
        while True:
            due_at = validity.renew_at
            if not lease.is_announced:
                due_at = min(due_at, lease.announce_at)
            wait_s = max(0.0, due_at - self._now())
            either: set[asyncio.Future[str]] = {ended, connection.lost}
            await asyncio.wait(either, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if connection.lost.done():
                raise ConnectionLost(connection.lost.result())
            if ended.done():
                return ended.result()
            asked_at = self._now()
            if not lease.is_announced and asked_at >= lease.announce_at:
                lease.is_announced, lease.is_taken = True, False
                queue, session = lease.address
                log.info("%s: leased, as session %s of %s", lease.queue, session, queue)
                self._on_change(lease.queue, True)
            if asked_at < validity.renew_at:
                continue  # It was announced, or its lock is longer than was known.
            remaining_s = validity.ends_at - asked_at
            if remaining_s <= 0:
                return "it was not renewed in time"
            try:
                async with asyncio.timeout(remaining_s):
                    await self._renew(connection, lease)
            except TimeoutError:
                return "it was not renewed in time"
            except RequestRefused as refusal:
                if refusal.condition:
                    return str(refusal)
                validity.not_renewed(self._now())
            else:
                # A lapsed lease is lost even if the service renewed the lock: the pump was stopped.
                if not validity.holds(self._now()):
                    return "it was not renewed in time"
                self._grant(lease, asked_at)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Attached):
            lease, link = event.link.owner, event.link
            if isinstance(lease, _Lease) and isinstance(link, ReceiverLink):
                answer = lease.answer
                if link.source is not None and answer is not None and not answer.done():
                    answer.set_result(link)
        elif isinstance(event, Detached):
            lease = event.link.owner
            if isinstance(lease, _Lease) and lease.ended is not None and not lease.ended.done():
                condition = str(event.error.condition) if event.error else ""
                text = (event.error.description if event.error else None) or "the link was closed"
                lease.ended.set_result(_reason_text(self._endpoint, lease.address, condition, text))
                if lease.is_announced:
                    # At once, not when the task runs: nothing more may be sent.
                    self._lose(lease, text)

    def _lose(self, lease: _Lease, reason: str) -> None:
        lease.validity.lost()
        if reason != lease.problem:
            # Waiting for another syphon is normal; any other reason needs attention.
            is_usual = reason.startswith((LEASED, GIVEN_BACK))
            level = logging.INFO if is_usual else logging.WARNING
            log.log(level, "%s: the lease is not held: %s", lease.queue, reason)
        lease.problem = reason
        if not lease.is_announced:
            lease.proven_at = min(lease.proven_at, self._proven_at)
        else:
            lease.is_announced = False
            lease.proven_at = self._proven_at
            self._on_change(lease.queue, False)


def _lock_left_s(link: ReceiverLink, wall_ns: int) -> float:
    """Return the remaining duration of the lock that an attach granted, by our clock."""
    ticks = link.properties.get(SESSION_LOCKED_UNTIL)
    if not isinstance(ticks, int):
        return LOCK_ASSUMED_S
    return (ticks - EPOCH_TICKS) / TICKS_PER_MS / 1_000 - wall_ns / 1e9


def _reason_text(endpoint: Endpoint, address: LeaseAddress, condition: str, text: str) -> str:
    if condition == SESSION_TAKEN:
        return f"{LEASED} (session {address.session} of {address.queue})"
    if condition == NOT_FOUND:
        return (
            f"there is no lease queue {address.queue} in {endpoint.label}; create it with sessions"
            " required, or pair with session_order='strict' and the Manage right"
        )
    return text
