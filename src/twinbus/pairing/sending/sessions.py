"""Strict session order: routes messages by session, and scans the backlog for bound sessions.

A bound session goes to its own backlog queue. A call with messages of several sessions goes to the
primary as it is. If one of them is bound, or the entity has failed over, it becomes one call for
each session, in order (docs/failures.md).

The scan peeks, with receivers of the SDK that never receive: while a session is bound whose entity
takes messages again, and once when a queue is found, for what an earlier process left there. It
reads only the entity path and the session of a message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from twinbus.errors import MissingRightError, error_text
from twinbus.pairing.core.backlog import KeptChoice
from twinbus.pairing.core.failover import Route
from twinbus.pairing.core.session_order import Diversion, QueueScan, SessionKey, SessionOrder
from twinbus.pairing.sdk.pooled_sender import Peeker, SenderCloser
from twinbus.pairing.sdk.sender_pool import SenderPool
from twinbus.servicebus.failures import FailureMeaning, of_error
from twinbus.status.document import EntityState

if TYPE_CHECKING:
    from twinbus.pairing.sending.entity_monitor import EntityMonitor
    from twinbus.pairing.sending.shared_state import SharedState

SPLIT: Final = "one call for each session"
"""In place of a queue, for a call with messages of several sessions."""

FREE_WAIT_S: Final = 1.0
"""How long a send may wait for its session to be drained before it is diverted once more."""


class CallSessions(KeptChoice):
    """The sessions of one call: entity and backlog as its messages see them."""

    __slots__ = ("_backlog", "_failover", "_keys", "_order", "_scan", "key")

    def __init__(
        self,
        scan: SessionScan,
        entity: EntityMonitor,
        sessions: Iterable[str | None],
        backlog: KeptChoice,
    ) -> None:
        """`sessions` has each once, and None for messages without; those use `backlog`."""
        self._failover = entity.failover
        self._scan, self._order, self._rotation = scan, scan.order, scan.rotation
        self._keys = keys = [
            None if session is None else SessionKey.of(entity.path, session) for session in sessions
        ]
        self._backlog = backlog
        self.key = keys[0] if len(keys) == 1 else None
        """The session of all messages; None: they have none, or several."""

    @property
    def _is_bound(self) -> bool:
        return any(key is not None and self._order.is_bound(key) for key in self._keys)

    @property
    def state(self) -> EntityState:
        return self._failover.state

    @property
    def failover_at(self) -> float | None:
        return self._failover.failover_at

    @property
    def may_try(self) -> bool:
        """Never for a session: it would overtake its messages in the backlog."""
        return self._failover.may_try and self._keys == [None]

    @property
    def route(self) -> Route:
        """Bound sessions go to the backlog, all others where the entity's state leads."""
        route = self._failover.route
        return Route.BACKLOG if route is Route.PRIMARY and self._is_bound else route

    @property
    def protected(self) -> bool:
        """Whether there is a queue; a bound session has one, though it may not be usable."""
        return self._is_bound or self._rotation.protected

    def choose(self, now: float, tried: Collection[str] = ()) -> str | None:
        """The session's queue while it can be used, never another; `SPLIT` for several sessions."""
        if len(self._keys) > 1:
            return SPLIT
        if self.key is None:
            return self._backlog.choose(now, tried)
        queue = self._order.queue_of(self.key)
        return queue if queue not in tried and self._rotation.is_in(queue, now) else None

    def resting(self, now: float, tried: Collection[str] = ()) -> str | None:
        """Any pulled queue for messages without a session; a session uses no other queue."""
        return self._backlog.resting(now, tried) if self.key is None else None

    @property
    def outlasts_refusals(self) -> bool:
        """A session may use no other queue, so a refusal of its queue is raised."""
        return self.key is None

    def may_return(self, now: float, tried: Collection[str] = ()) -> bool:
        """A session waits for its own queue, unless the queue refuses messages."""
        if self.key is None:
            return self._backlog.may_return(now, tried)
        queue = self._order.queue_of(self.key)
        return queue not in tried and not self._rotation.is_refusing(queue, now)

    @property
    def is_lost(self) -> bool:
        """Whether the secondary is lost; a call of several sessions is split first."""
        return len(self._keys) == 1 and self._backlog.is_lost

    async def wait_until_free(self, ends_at: float) -> None:
        """Wait a moment for the session to return to the primary where that is near."""
        now = self._scan.now
        is_back = self._failover.route is Route.PRIMARY
        if self.key is not None and is_back and self._order.worth_waiting(self.key, now):
            wait_s = min(FREE_WAIT_S, (ends_at - now) / 2)
            await self._scan.wait_until_free(self.key, now + wait_s)

    def begin_divert(self) -> None:
        assert self.key is not None
        self._order.begin_divert(self.key)

    def end_divert(self, ended: Diversion) -> None:
        assert self.key is not None
        self._order.end_divert(self.key, ended, self._scan.now)
        if self._failover.route is Route.PRIMARY:
            self._scan.wake()


log = logging.getLogger("twinbus.pairing")

PAGE: Final = 250
PAGES_AT_ONCE: Final = 4
PAGE_PAUSE_S: Final = 0.25
"""A long backlog is scanned at no more than 4,000 messages a second: the SDK spends the
application's time on each, and messages drained meanwhile need no scan."""

PAUSE_MIN_S: Final = 0.1
PAUSE_MAX_S: Final = 2.0
"""Time between two scans: the first while sessions become free, doubled after each scan that freed
none, up to the second."""

PAUSE_AFTER_FAILURE_S: Final = 5.0

FIRST_SCAN_S: Final = 1.5
"""Pairing waits this long for the first scans. A longer backlog is scanned on in the background;
meanwhile sends of its sessions are diverted."""

SCANS_AT_ONCE: Final = 8
"""Queues that are scanned at the same time."""


class SessionScan:
    def __init__(self, state: SharedState, order: SessionOrder) -> None:
        self.order = order
        self.rotation = state.rotation
        self._state = state
        self._loop = state.loop
        self._closer = SenderCloser()
        self._pools: dict[str, SenderPool] = {}
        self._gate = asyncio.Semaphore(SCANS_AT_ONCE)
        self._woken = asyncio.Event()
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._task: asyncio.Task[None] | None = None
        self._first_scans: set[asyncio.Task[None]] = set()
        self._pause_s = PAUSE_MIN_S

    @property
    def now(self) -> float:
        return self._loop.time()

    async def start(self, queues: Iterable[str]) -> None:
        """Scan queues that were found for messages of earlier processes.

        MissingRightError if peeking is not allowed. A long scan goes on in the background.
        """
        new = [queue for queue in queues if self.order.is_unscanned(queue)]
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="session scan")
        if not new:
            return
        scans = [asyncio.create_task(self._first_scan(queue)) for queue in new]
        self._first_scans.update(scans)
        for scan in scans:
            scan.add_done_callback(self._first_scans.discard)
        done, pending = await asyncio.wait(scans, timeout=FIRST_SCAN_S)
        for scan in pending:
            scan.add_done_callback(_log_error)
        errors = [error for scan in done if (error := scan.exception()) is not None]
        if errors:
            raise errors[0]

    async def close(self) -> None:
        """Stop scanning, and close what was opened for it."""
        tasks = {*self._first_scans, *([self._task] if self._task is not None else [])}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.gather(*(pool.close(0.0) for pool in self._pools.values()))
        await self._closer.wait()

    def wake(self) -> None:
        """Scan soon: a session was bound, or an entity is back."""
        self._pause_s = PAUSE_MIN_S
        self._woken.set()

    async def wait_until_free(self, key: SessionKey, until: float) -> None:
        self.wake()
        while self.order.is_bound(key) and self._loop.time() < until:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters[waiter] = None
            try:
                await asyncio.wait({waiter}, timeout=until - self._loop.time())
            finally:
                self._waiters.pop(waiter, None)
                waiter.cancel()

    async def _run(self) -> None:
        while True:
            queues = self.order.queues_to_scan(self._is_back, self._loop.time())
            unscanned = [q for q in self._state.rotation.queues if self.order.is_unscanned(q)]
            if not queues and not unscanned and not len(self.order):
                self._woken.clear()
                await self._woken.wait()
                continue
            scans = [self._scan_again(queue) for queue in queues]
            if all(task.done() for task in self._first_scans):
                scans += [self._scan_again(queue) for queue in unscanned]
            freed = await asyncio.gather(*scans)
            self._pause_s = PAUSE_MIN_S if any(freed) else min(PAUSE_MAX_S, self._pause_s * 2)
            await self._pause(PAUSE_AFTER_FAILURE_S if None in freed else self._pause_s)

    async def _pause(self, pause_s: float) -> None:
        """Sleep; `wake` ends it, but not before the shortest pause."""
        self._woken.clear()
        waiting = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.sleep(min(pause_s, PAUSE_MIN_S))
            await asyncio.wait({waiting}, timeout=max(0.0, pause_s - PAUSE_MIN_S))
        finally:
            waiting.cancel()

    def _is_back(self, path: str) -> bool:
        """Whether an entity that this pair sends to takes messages now."""
        entity = self._state.monitors.find(path)
        return entity is not None and entity.failover.route is Route.PRIMARY

    async def _first_scan(self, queue: str) -> None:
        try:
            await self._scan(self.order.begin_first_scan(queue, self._loop.time()))
        except Exception as error:
            if of_error(error) is FailureMeaning.UNAUTHORIZED:
                raise MissingRightError(
                    f"strict session order peeks into {queue} in {self._state.secondary.endpoint},"
                    f" which needs the Listen right, and the credential does not have it ({error})"
                ) from error
            log.warning(
                "%s could not be scanned (%s): sessions that an earlier process left there are not"
                " known yet, and their sends use the primary", queue, error_text(error),
            )  # fmt: skip

    async def _scan_again(self, queue: str) -> int | None:
        """The number of sessions that a scan freed; None: it failed."""
        try:
            return await self._scan(QueueScan(queue, self._loop.time()))
        except Exception as error:  # noqa: BLE001  # whatever it is, the sessions stay bound
            log.info("%s could not be scanned: %s", queue, error_text(error))
            return None

    async def _scan(self, scan: QueueScan) -> int:
        """Scan a queue to its end; return the number of sessions that this freed."""
        start, pages = 1, 0
        try:
            async with self._gate:
                while page := await self._peek(scan.queue, start):
                    self.order.add_page(scan, [_path_and_session(message) for message in page])
                    start = max(int(m.sequence_number or 0) for m in page) + 1
                    pages += 1
                    if pages % PAGES_AT_ONCE == 0:
                        await asyncio.sleep(PAGE_PAUSE_S)
        except BaseException:
            self.order.abandon_scan(scan)
            raise
        free = self.order.finish_scan(scan)
        if free:
            log.info("%s: %d sessions are drained and return to the primary", scan.queue, len(free))
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
        return len(free)

    async def _peek(self, queue: str, start: int) -> list[Any]:
        pool = self._pools.get(queue)
        if pool is None:
            make = partial(Peeker, self._state.secondary_sdk, queue)
            resolve = self._state.secondary.resolve
            pool = SenderPool(make, resolve, self._closer)  # type: ignore[arg-type]
            self._pools[queue] = pool
        pooled = pool.take()
        assert pooled is not None
        began, error = self._loop.time(), None

        async def peek(peeker: Peeker) -> list[Any]:
            return await peeker.receiver.peek_messages(PAGE, sequence_number=start)

        try:
            return await pool.attempt(pooled, peek, self._state.policy.attempt_timeout_s)
        except BaseException as caught:
            error = caught
            raise
        finally:
            recorder, ended = self._state.recorder, self._loop.time()
            recorder.managed("secondary", began, ended, error=error, queue=queue, cause="failover")


def _path_and_session(message: Any) -> tuple[str, str | None]:
    properties = message.application_properties or {}
    path = _text(properties, "x-ms-path")
    return path or "", _text(properties, "x-ms-sessionid")


def _text(properties: dict[Any, Any], name: str) -> str | None:
    found = properties.get(name.encode(), properties.get(name))
    if found is None:
        return None
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found)


def _log_error(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("%s", error)
