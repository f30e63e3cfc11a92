"""Holds locks of sessions that stand for rights which one program has at a time.

    locks = SessionLocks(secondary, {name: address}, on_change, terms); locks.start()
    ...; locks.holds(name) -> True while this process has the right
    await locks.close()

One connection for all locks, one link for each: it holds the lock of a named session, which needs
no messages. If the link or the connection is lost, the lock is lost at once: the service gives the
session to the next receiver. The service can lose the connection before this process notices it.
So the holder asks for signs of life (a flow with echo, which is not billed), and no lock is valid
without one.

A program that is cut off may act for a while after the service gave its lock to another one. So who
acts alone leaves a mark in the session's state, which tells the next holder whether it has to wait
(`lock_validity`). A program that dies at any point leaves the mark of one that acts.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from twinbus.amqp.events import Attached, Detached, Event
from twinbus.amqp.link import ReceiverLink
from twinbus.amqp.performatives import Source, Target
from twinbus.amqp.types import Symbol
from twinbus.client.connection import ANSWER_S, MACHINE, Environment, NamespaceConnection
from twinbus.client.lock_validity import (
    LOCK_ASSUMED_S,
    PROOF_S,
    SILENCE_S,
    STANDBY_SHARE,
    STOPPED_MARK,
    LockAddress,
    LockValidity,
    acting_mark,
    handover_s,
    relied_on_s,
    wait_s,
)
from twinbus.client.request_node import ConnectionLost, RequestRefused
from twinbus.ledger.requests import ACCEPT_SESSION, BilledRequests, RequestLedger
from twinbus.namespace.access import Endpoint
from twinbus.servicebus.conditions import NOT_FOUND, SESSION_TAKEN
from twinbus.servicebus.failures import MISSING_STATUS
from twinbus.servicebus.names import EPOCH_TICKS, SESSION_FILTER, SESSION_LOCKED_UNTIL, TICKS_PER_MS

RETRY_S: Final = 1.0
"""Mean pause after a lost lock or connection."""

STOP_S: Final = 2.0
"""The longest time that a close takes to say that this program has stopped."""

GIVEN_BACK: Final = "it was given back"
NOT_RENEWED: Final = "it was not renewed in time"
NOT_REQUESTED: Final = "it was not requested yet"

_link_numbers = itertools.count(1)


def often(is_taken: bool, lock_s: float) -> float:
    """The pauses of a program that waits for each lock: it takes over soon."""
    return STANDBY_SHARE * lock_s if is_taken else RETRY_S


@dataclass(frozen=True, slots=True)
class LockTerms:
    """How a program treats locks that it does not get."""

    taken: str
    """The beginning of the problem of a lock that another program has."""
    log: logging.Logger
    level: int = logging.WARNING
    """Of the log line for a lock that is not held for another reason."""
    pause_s: Callable[[bool, float], float] = often
    """The mean pause before the next attempt, from whether another program has the lock, and the
    lock duration. All pauses vary by half."""
    reconnect_s: float = RETRY_S
    """The mean pause after a connection that ended or could not be opened."""
    alone: bool = True
    """Only one program may act on a lock at a time. Else one that is cut off may act beside the
    next holder, and there are no marks and no waits."""


class _Lock:
    """One lock and the link that holds it."""

    def __init__(self, name: str, address: LockAddress) -> None:
        self.name = name
        self.address = address
        self.validity = LockValidity()
        self.lock_s = LOCK_ASSUMED_S
        """Lock duration as the accept showed it on our clock; a renewal extends it by as much."""
        self.granted_at = 0.0
        """When the present lock was requested."""
        self.announce_at = 0.0
        """When the right may be used, once the lock is granted."""
        self.is_marked = False
        """The session's state says that this program acts, or needs not to."""
        self.is_announced = False
        self.has_stopped = False
        """It is given back, and nothing that was done with it is left without an answer."""
        self.is_taken = False
        """Another program had it at an attempt since this one could use it."""
        self.link_name = ""
        self.answer: asyncio.Future[ReceiverLink] | None = None
        self.ended: asyncio.Future[str] | None = None
        self.problem = NOT_REQUESTED
        self.task: asyncio.Task[None] | None = None


class SessionLocks:
    """The locks that this process holds or waits for."""

    def __init__(
        self,
        endpoint: Endpoint,
        addresses: Mapping[str, LockAddress],
        on_change: Callable[[str, bool], None],
        terms: LockTerms,
        ledger: RequestLedger | None = None,
        environment: Environment = MACHINE,
    ) -> None:
        """`on_change` is called with the name of a lock and whether it is held now."""
        self._endpoint = endpoint
        self._environment = environment
        self._now = environment.since_boot
        self._requests = BilledRequests(
            endpoint.label, cause="lease", side="secondary", ledger=ledger
        )
        self._lock_s: dict[str, float] = {}
        """By queue, the lock duration in its description, if it could be read."""
        self._proven_at = float("-inf")
        """When the last sign of life was asked for that came."""
        self._got_one = asyncio.Event()
        """Set when a lock is acquired that another program had: others may be free too."""
        self._locks = {name: _Lock(name, address) for name, address in addresses.items()}
        self._added = asyncio.Event()
        self._on_change = on_change
        self._terms = terms
        self._mark = acting_mark(uuid4().hex)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to acquire the locks, and keep trying."""
        self._task = asyncio.create_task(self._keep(), name="session locks")

    async def close(self, unfinished: Collection[str] = ()) -> None:
        """Release the locks; others can acquire them at once, and act: this program has stopped.

        What it did with the locks named in `unfinished` may still take effect: their next holders
        wait, as after a program that was cut off.
        """
        task, self._task = self._task, None
        if task is None:
            return
        # In their order: a group would cancel them in one that is never the same.
        stopping = []
        for lock in self._locks.values():
            if lock.task is not None and lock.name not in unfinished:
                lock.has_stopped = True
                lock.task.cancel()
                stopping.append(lock.task)
        try:
            if stopping:
                await asyncio.wait(stopping)
        finally:
            # Also if this close is given up: else the locks would be held for ever.
            task.cancel()
        await asyncio.wait({task})

    def add(self, name: str, address: LockAddress) -> None:
        """Acquire one more lock, and keep trying."""
        assert name not in self._locks
        self._locks[name] = _Lock(name, address)
        self._added.set()

    def remove(self, name: str) -> None:
        """Release one lock."""
        lock = self._locks.pop(name)
        if lock.task is not None:
            lock.task.cancel()

    def holds(self, name: str) -> bool:
        """Return whether this process has the lock now."""
        now, lock = self._now(), self._locks[name]
        if not lock.is_announced or now >= self._proven_at + SILENCE_S:
            return False
        return lock.validity.holds(now)

    def problem(self, name: str) -> str | None:
        """Return why the lock is not held; None: it is held."""
        return None if self.holds(name) else self._locks[name].problem

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
                    for path in {lock.address.queue for lock in self._locks.values()}:
                        group.create_task(self._read_lock(path))
                    group.create_task(self._prove(connection))
                    await self._keep_each(connection, group)
            except* ConnectionLost as errors:
                reason = str(errors.exceptions[0])
            except* Exception as errors:
                # After any error, keep trying: nothing is done until the locks are held.
                self._terms.log.exception("keeping the leases failed")
                reason = f"{errors.exceptions[0]!r}"
            finally:
                for lock in self._locks.values():
                    lock.task = None
                    if lock.is_announced or reason != GIVEN_BACK:
                        self._lose(lock, reason)
                await connection.close()
            await asyncio.sleep(self._terms.reconnect_s * (0.5 + self._environment.chance()))

    async def _keep_each(self, connection: NamespaceConnection, group: asyncio.TaskGroup) -> None:
        """Hold each lock, those that are added later too."""
        while True:
            self._added.clear()
            for lock in self._locks.values():
                if lock.task is None:
                    lock.task = group.create_task(self._keep_one(connection, lock))
            await self._added.wait()

    async def _keep_one(self, connection: NamespaceConnection, lock: _Lock) -> None:
        """Hold one lock, and acquire it again when it is lost, until ConnectionLost."""
        while True:
            link: ReceiverLink | None = None
            try:
                await connection.authorize(lock.address.queue)
                link = await self._acquire(connection, lock)
                await self._read_mark(connection, lock)
                reason = await self._renew_for_ever(connection, lock)
            except RequestRefused as refusal:
                condition = NOT_FOUND if refusal.status == MISSING_STATUS else ""
                reason = self._reason_text(lock.address, condition, str(refusal))
            except asyncio.CancelledError:
                await self._say_stopped(connection, lock)
                raise
            finally:
                if link is not None:
                    link.detach()
                    connection.flush()
            self._lose(lock, reason)
            lock_s = self._lock_s.get(lock.address.queue, LOCK_ASSUMED_S)
            mean_s = self._terms.pause_s(lock.is_taken, lock_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(mean_s * (0.5 + self._environment.chance())):
                    await self._got_one.wait()

    async def _read_lock(self, path: str) -> None:
        """Read the lock duration of the lease queue, for the leases that are held on it."""
        lock_s = await self._environment.lock_duration_s(self._endpoint, path, self._requests)
        if lock_s is None:
            return
        self._lock_s[path] = lock_s
        for lock in self._locks.values():
            if lock.address.queue == path and lock.validity.holds(self._now()):
                lock.validity.granted(lock.granted_at, lock_s)
                lock.announce_at = min(lock.announce_at, self._now() + handover_s(lock_s))

    async def _prove(self, connection: NamespaceConnection) -> None:
        """Keep the proof fresh that the service still serves this connection."""
        while True:
            asked_at, flows = self._now(), connection.flows
            held = [lock for lock in self._locks.values() if lock.validity.holds(asked_at)]
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

    async def _renew(self, connection: NamespaceConnection, lock: _Lock) -> None:
        await self._ask(connection, lock, "renew-session-lock")

    async def _ask(
        self, connection: NamespaceConnection, lock: _Lock, operation: str, **arguments: object
    ) -> dict[str, Any]:
        """Request something that the holder of the lock may."""
        body = {"session-id": lock.address.session, **arguments}
        return await connection.request(
            lock.address.queue, operation, body, link_name=lock.link_name
        )

    async def _read_mark(self, connection: NamespaceConnection, lock: _Lock) -> None:
        """Decide when the right may be used, by what its last holder has left."""
        if not self._terms.alone:
            lock.is_marked, lock.announce_at = True, self._now()
            return
        answer = await self._ask(connection, lock, "get-session-state")
        mark, described_s = answer.get("session-state"), self._lock_s.get(lock.address.queue)
        lock.is_marked = mark == self._mark
        lock.announce_at = self._now() + wait_s(mark, self._mark, described_s)

    async def _write_mark(self, connection: NamespaceConnection, lock: _Lock, mark: bytes) -> None:
        await self._ask(connection, lock, "set-session-state", **{"session-state": mark})

    async def _say_stopped(self, connection: NamespaceConnection, lock: _Lock) -> None:
        """Leave the mark of a program that has stopped, if this one has."""
        if not (lock.has_stopped and self._terms.alone and lock.is_announced):
            return
        self._lose(lock, GIVEN_BACK)
        asking = asyncio.create_task(self._write_mark(connection, lock, STOPPED_MARK))
        try:
            await asyncio.wait({asking}, timeout=STOP_S)
        finally:
            asking.cancel()
        # Without the mark the next holder waits.
        await asyncio.gather(asking, return_exceptions=True)

    async def _acquire(self, connection: NamespaceConnection, lock: _Lock) -> ReceiverLink:
        """Return the link that holds the session lock; RequestRefused says why it cannot be had."""
        if connection.lost.done():
            raise ConnectionLost(connection.lost.result())
        loop = asyncio.get_running_loop()
        lock.answer, lock.ended = loop.create_future(), loop.create_future()
        name = f"{lock.address.queue}-{lock.address.session}-{next(_link_numbers)}"
        lock.link_name = name
        asked_at = self._now()
        link = connection.session.attach_receiver(
            name,
            source=Source(
                address=lock.address.queue, filter={Symbol(SESSION_FILTER): lock.address.session}
            ),
            target=Target(address=name),
        )
        link.owner = lock
        connection.flush()
        answers: set[asyncio.Future[object]] = {lock.answer, lock.ended, connection.lost}  # type: ignore[arg-type]
        try:
            await asyncio.wait(answers, timeout=ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # It was asked for, and counts.
            text = "given up before the attach was answered"
            self._requests.made(lock.address.queue, ACCEPT_SESSION, text, is_known=False)
            raise
        if lock.answer.done():
            self._requests.made(lock.address.queue, ACCEPT_SESSION)
            lock.lock_s = _lock_left_s(lock.answer.result(), self._environment.wall_ns())
            self._grant(lock, asked_at)
            lock.announce_at = float("inf")
            if lock.is_taken:
                got_one, self._got_one = self._got_one, asyncio.Event()
                got_one.set()
            return link
        text = lock.ended.result() if lock.ended.done() else "the attach was not answered"
        # That another program has it is an answer like that of a receive which finds nothing.
        is_taken, is_known = text.startswith(self._terms.taken), lock.ended.done()
        lock.is_taken = lock.is_taken or is_taken
        error = None if is_taken else text
        self._requests.made(lock.address.queue, ACCEPT_SESSION, error, is_known=is_known)
        if connection.lost.done():
            raise ConnectionLost(connection.lost.result())
        link.detach()
        raise RequestRefused(text, 0, "")

    def _grant(self, lock: _Lock, asked_at: float) -> None:
        """Extend a lease whose lock was requested at `asked_at`."""
        lock.granted_at = asked_at
        lock_s = relied_on_s(lock.lock_s, self._lock_s.get(lock.address.queue))
        lock.validity.granted(asked_at, lock_s)

    async def _renew_for_ever(self, connection: NamespaceConnection, lock: _Lock) -> str:
        """Renew the lease until it ends; return why it ended."""
        ended, validity = lock.ended, lock.validity
        assert ended is not None
        while True:
            due_at = validity.renew_at
            if not lock.is_announced:
                due_at = min(due_at, lock.announce_at)
            pause_s = max(0.0, due_at - self._now())
            either: set[asyncio.Future[str]] = {ended, connection.lost}
            await asyncio.wait(either, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            if connection.lost.done():
                raise ConnectionLost(connection.lost.result())
            if ended.done():
                return ended.result()
            asked_at = self._now()
            # A lapsed lease is lost even if the service renews the lock: the pump was stopped.
            if not validity.holds(asked_at):
                return NOT_RENEWED
            if not lock.is_announced and asked_at >= lock.announce_at:
                if not lock.is_marked:
                    await self._write_mark(connection, lock, self._mark)
                    lock.is_marked = True
                    continue  # It may be lost by now.
                lock.is_announced, lock.is_taken = True, False
                queue, session = lock.address
                self._terms.log.info("%s: leased, as session %s of %s", lock.name, session, queue)
                self._on_change(lock.name, True)
            if asked_at < validity.renew_at:
                continue  # It was announced, or its lock is longer than was known.
            try:
                async with asyncio.timeout(validity.ends_at - asked_at):
                    await self._renew(connection, lock)
            except TimeoutError:
                return NOT_RENEWED
            except RequestRefused as refusal:
                if refusal.condition:
                    return str(refusal)
                validity.not_renewed(self._now())
            else:
                if not validity.holds(self._now()):
                    return NOT_RENEWED
                self._grant(lock, asked_at)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Attached):
            lock, link = event.link.owner, event.link
            if isinstance(lock, _Lock) and isinstance(link, ReceiverLink):
                answer = lock.answer
                if link.source is not None and answer is not None and not answer.done():
                    answer.set_result(link)
        elif isinstance(event, Detached):
            lock = event.link.owner
            if isinstance(lock, _Lock) and lock.ended is not None and not lock.ended.done():
                condition = str(event.error.condition) if event.error else ""
                text = (event.error.description if event.error else None) or "the link was closed"
                lock.ended.set_result(self._reason_text(lock.address, condition, text))
                if lock.is_announced:
                    # At once, not when the task runs: nothing more may be sent.
                    self._lose(lock, text)

    def _lose(self, lock: _Lock, reason: str) -> None:
        lock.validity.lost()
        if reason != lock.problem:
            # Waiting for another program is normal; any other reason may need attention.
            is_usual = reason.startswith((self._terms.taken, GIVEN_BACK))
            level = logging.INFO if is_usual else self._terms.level
            self._terms.log.log(level, "%s: the lease is not held: %s", lock.name, reason)
        lock.problem = reason
        if lock.is_announced:
            lock.is_announced = False
            self._on_change(lock.name, False)

    def _reason_text(self, address: LockAddress, condition: str, text: str) -> str:
        if condition == SESSION_TAKEN:
            return f"{self._terms.taken} (session {address.session} of {address.queue})"
        if condition == NOT_FOUND:
            return (
                f"there is no lease queue {address.queue} in {self._endpoint.label}; create it with"
                " sessions required, or pair with session_order='strict' and the Manage right"
            )
        return text


def _lock_left_s(link: ReceiverLink, wall_ns: int) -> float:
    """Return the remaining duration of the lock that an attach granted, by our clock."""
    ticks = link.properties.get(SESSION_LOCKED_UNTIL)
    if not isinstance(ticks, int):
        return LOCK_ASSUMED_S
    return (ticks - EPOCH_TICKS) / TICKS_PER_MS / 1_000 - wall_ns / 1e9
