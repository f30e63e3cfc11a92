"""Looks into the backlog queues for sessions that are bound to them (SPEC 3, strict order).

The shell of `session_order`: it peeks, with receivers of the SDK that never receive, and only while
a session is bound whose entity takes messages again; and once when a queue is found, for what an
earlier process left there. Only where a message belongs and its session are read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from twinbus.errors import MissingRightError
from twinbus.namespace.namespace import KEEP_ALIVE_OFF
from twinbus.pairing.core.classify import FailureMeaning, meaning_of
from twinbus.pairing.core.events import Route
from twinbus.pairing.core.session_order import SessionKey, SessionOrder, SessionPeek
from twinbus.pairing.sdk.sender_pool import SenderCloser, SenderPool, attempt

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

    from twinbus.pairing.sending.client import PairedClient

__all__ = ["SessionScan"]

log = logging.getLogger("twinbus.pairing")

PAGE: Final = 250
PAGES_AT_ONCE: Final = 4
PAGE_PAUSE_S: Final = 0.25
"""A long backlog is looked through at no more than 4,000 messages a second: the SDK spends the
application's time on each. What is drained meanwhile need not be looked at."""

SOON_S: Final = 0.1
LATEST_S: Final = 2.0
"""Between two looks: the first while sessions become free, twice as long after each look that freed
none, up to the second."""

FAILED_S: Final = 5.0
"""After a look that failed."""

FIRST_LOOK_S: Final = 1.5
"""Pairing waits so long for the first looks; a longer backlog is read on in the background, and
sends of its sessions are diverted meanwhile."""

LOOKS_AT_ONCE: Final = 8
"""Queues that are looked into at the same time."""


class SessionScan:
    """The looks of one pair."""

    def __init__(self, client: PairedClient, order: SessionOrder, sdk: ServiceBusClient) -> None:
        """`sdk` leads to the secondary; it is the caller's to close."""
        self.order = order
        self._client = client
        self._sdk = sdk
        self._loop = asyncio.get_running_loop()
        self._closer = SenderCloser()
        self._pools: dict[str, SenderPool] = {}
        self._gate = asyncio.Semaphore(LOOKS_AT_ONCE)
        self._woken = asyncio.Event()
        self._freed: dict[asyncio.Future[None], None] = {}
        self._task: asyncio.Task[None] | None = None
        self._first: set[asyncio.Task[None]] = set()
        self._pause_s = SOON_S

    async def start(self, queues: Iterable[str]) -> None:
        """Look for what earlier processes left in queues that were found.

        MissingRightError if peeking is not allowed. What takes longer goes on in the background.
        """
        fresh = [queue for queue in queues if self.order.is_unread(queue)]
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="session census")
        if not fresh:
            return
        looks = [asyncio.create_task(self._first_look(queue)) for queue in fresh]
        self._first.update(looks)
        for look in looks:
            look.add_done_callback(self._first.discard)
        done, pending = await asyncio.wait(looks, timeout=FIRST_LOOK_S)
        for look in pending:
            look.add_done_callback(_note_end)
        errors = [error for look in done if (error := look.exception()) is not None]
        if errors:
            raise errors[0]

    async def close(self) -> None:
        """Stop looking, and close what was opened for it."""
        tasks = {*self._first, *([self._task] if self._task is not None else [])}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.gather(*(pool.close(0.0) for pool in self._pools.values()))
        await self._closer.wait()

    def wake(self) -> None:
        """Something changed: a session was bound, or an entity is back."""
        self._pause_s = SOON_S
        self._woken.set()

    async def freed(self, key: SessionKey, until: float) -> None:
        """Return when the session is free, or when the time has come."""
        self.wake()
        while self.order.is_bound(key) and self._loop.time() < until:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._freed[waiter] = None
            try:
                await asyncio.wait({waiter}, timeout=until - self._loop.time())
            finally:
                self._freed.pop(waiter, None)
                waiter.cancel()

    async def _run(self) -> None:
        while True:
            queues = self.order.to_look_at(self._is_back, self._loop.time())
            unread = [q for q in self._client.rotation.queues if self.order.is_unread(q)]
            if not queues and not unread and not len(self.order):
                self._woken.clear()
                await self._woken.wait()
                continue
            looks = [self._look_again(queue) for queue in queues]
            looks += [self._read_late(queue) for queue in unread]
            freed = await asyncio.gather(*looks)
            self._pause_s = SOON_S if any(freed) else min(LATEST_S, self._pause_s * 2)
            await self._rest(FAILED_S if None in freed else self._pause_s)

    async def _rest(self, pause_s: float) -> None:
        self._woken.clear()
        waiting = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.sleep(min(pause_s, SOON_S))
            await asyncio.wait({waiting}, timeout=max(0.0, pause_s - SOON_S))
        finally:
            waiting.cancel()

    def _is_back(self, path: str) -> bool:
        """Whether an entity that this pair sends to takes messages now."""
        entity = self._client.find_entity(path)
        return entity is not None and entity.failover.route is Route.PRIMARY

    async def _first_look(self, queue: str) -> None:
        try:
            await self._through(self.order.first_look(queue, self._loop.time()))
        except Exception as error:
            if meaning_of(error) is FailureMeaning.UNAUTHORIZED:
                raise MissingRightError(
                    f"strict session order looks into {queue} in {self._client.secondary.endpoint},"
                    f" which needs the Listen right, and the credential does not have it ({error})"
                ) from error
            log.warning(
                "%s could not be looked into (%s: %s): sessions that an earlier process left there"
                " are not known yet, and their sends use the primary",
                queue, type(error).__name__, error,
            )  # fmt: skip

    async def _read_late(self, queue: str) -> int | None:
        if any(not task.done() for task in self._first):
            return 0
        return await self._attempted(self.order.look(queue, self._loop.time()))

    async def _look_again(self, queue: str) -> int | None:
        return await self._attempted(self.order.look(queue, self._loop.time()))

    async def _attempted(self, look: SessionPeek) -> int | None:
        """How many sessions a look freed; None: it failed."""
        try:
            return await self._through(look)
        except Exception as error:  # noqa: BLE001  # whatever it is, the sessions stay bound
            log.info("%s could not be looked into: %s: %s", look.queue, type(error).__name__, error)
            return None

    async def _through(self, look: SessionPeek) -> int:
        """Look through a queue to its end; how many sessions are free by that."""
        start, pages = 1, 0
        try:
            async with self._gate:
                while page := await self._peek(look.queue, start):
                    self.order.saw(look, [_belonging(message) for message in page])
                    start = max(int(m.sequence_number or 0) for m in page) + 1
                    pages += 1
                    if pages % PAGES_AT_ONCE == 0:
                        await asyncio.sleep(PAGE_PAUSE_S)
        except BaseException:
            self.order.give_up(look)
            raise
        free = self.order.finish(look)
        if free:
            log.info("%s: %d sessions are drained and return to the primary", look.queue, len(free))
            for waiter in self._freed:
                if not waiter.done():
                    waiter.set_result(None)
        return len(free)

    async def _peek(self, queue: str, start: int) -> list[Any]:
        pool = self._pools.get(queue)
        if pool is None:
            make = partial(_Peeker, self._sdk, queue)
            pool = self._pools[queue] = SenderPool(make, self._closer)  # type: ignore[arg-type]
        conduit = pool.take()
        assert conduit is not None
        began, error = self._loop.time(), None

        async def peek(peeker: _Peeker) -> list[Any]:
            return await peeker.receiver.peek_messages(PAGE, sequence_number=start)

        try:
            return await attempt(pool, conduit, peek, self._client.policy.attempt_timeout_s)
        except BaseException as caught:
            error = caught
            raise
        finally:
            recorder, ended = self._client.recorder, self._loop.time()
            recorder.managed("secondary", began, ended, error=error, queue=queue, cause="failover")


class _Peeker:
    """A receiver of the SDK that only peeks, in the shape in which a pool opens and closes it."""

    def __init__(self, sdk: ServiceBusClient, queue: str) -> None:
        self.receiver: ServiceBusReceiver = sdk.get_queue_receiver(queue, **KEEP_ALIVE_OFF)
        # The SDK asks for one message more than it is to prefetch, as soon as its link is open, and
        # would lock one that the syphon waits for. One less than none asks for none.
        self.receiver._prefetch_count = -1

    async def create_message_batch(self) -> None:
        """Open the link, as a pool asks a sender to."""
        await self.receiver.__aenter__()

    async def close(self) -> None:
        await self.receiver.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.receiver, name)


def _belonging(message: Any) -> tuple[str, str | None]:
    """Entity path and session of a message in the backlog."""
    properties = message.application_properties or {}
    path = _text(properties, "x-ms-path")
    return path or "", _text(properties, "x-ms-sessionid")


def _text(properties: dict[Any, Any], name: str) -> str | None:
    found = properties.get(name.encode(), properties.get(name))
    if found is None:
        return None
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found)


def _note_end(task: asyncio.Task[None]) -> None:
    """Take an error that nobody waits for any more, and tell it to the log."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("%s", error)
