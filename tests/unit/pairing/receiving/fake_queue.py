"""A queue in memory and its receivers, with the methods of the SDK's that a processor uses."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from azure.servicebus.exceptions import OperationTimeoutError


@dataclass(eq=False)
class FakeMessage:
    message_id: str | None
    locked_until_utc: datetime | None = None
    delivery_count: int = 0
    sequence_number: int = 1
    lock_token: UUID | None = field(default_factory=uuid4)


@dataclass(eq=False)
class FakeSession:
    session_id: str
    queue: FakeQueue

    @property
    def locked_until_utc(self) -> datetime:
        return self.queue.until()

    async def renew_lock(self, **_: Any) -> datetime:
        return await self.queue.renewed(self.session_id)


class FakeQueue:
    """Messages that wait, and what became of them."""

    def __init__(self, *ids: str, lock_s: float = 30.0) -> None:
        self.waiting: deque[FakeMessage] = deque(FakeMessage(name) for name in ids)
        self.sessions: dict[str, deque[FakeMessage]] = {}
        self.lock_s = lock_s
        self.settled: list[tuple[str | None, str]] = []
        self.renewals: list[tuple[str | None, float]] = []
        self.wanted: list[int] = []
        self.receivers: list[FakeReceiver] = []
        self.receive_error: Callable[[], Exception | None] = lambda: None
        self.renew_error: Callable[[], Exception | None] = lambda: None
        self.settle_error: Callable[[], Exception | None] = lambda: None
        self.before_receive: Callable[[], Awaitable[None]] | None = None
        self.changed = asyncio.Event()

    @property
    def now(self) -> float:
        """Seconds since the start of the virtual loop."""
        return asyncio.get_running_loop().time() - 1_000.0

    def until(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.lock_s)

    def put(self, *ids: str) -> None:
        self.waiting.extend(FakeMessage(name) for name in ids)
        self.changed.set()

    def put_session(self, session_id: str, *ids: str) -> None:
        self.sessions.setdefault(session_id, deque()).extend(FakeMessage(name) for name in ids)
        self.changed.set()

    async def renewed(self, name: str | None) -> datetime:
        self.renewals.append((name, round(self.now, 1)))
        if error := self.renew_error():
            raise error
        return self.until()

    def get_receiver(self, session_id: Any = None, max_wait_time: float = 0.0) -> FakeReceiver:
        receiver = FakeReceiver(self, wants_session=session_id is not None, wait_s=max_wait_time)
        self.receivers.append(receiver)
        return receiver


class FakeReceiver:
    def __init__(self, queue: FakeQueue, *, wants_session: bool, wait_s: float) -> None:
        self._queue = queue
        self._wants_session = wants_session
        self._wait_s = wait_s
        self.session: FakeSession | None = None
        self.closed_at: float | None = None

    async def __aenter__(self) -> FakeReceiver:
        queue = self._queue
        if error := queue.receive_error():
            raise error
        if self._wants_session:
            taken = {r.session.session_id for r in queue.receivers if r.session and not r.closed_at}
            free = [name for name, left in queue.sessions.items() if left and name not in taken]
            if not free:
                await asyncio.sleep(self._wait_s)
                raise OperationTimeoutError(message="no session")
            self.session = FakeSession(free[0], queue)
        return self

    async def close(self) -> None:
        self.closed_at = self._queue.now

    async def receive_messages(
        self, max_message_count: int | None = 1, max_wait_time: float | None = None
    ) -> list[Any]:
        queue, count = self._queue, max_message_count or 1
        queue.wanted.append(count)
        if queue.before_receive is not None:
            await queue.before_receive()
        if error := queue.receive_error():
            raise error
        source = queue.waiting if self.session is None else queue.sessions[self.session.session_id]
        if not source:
            queue.changed.clear()
            try:
                await asyncio.wait_for(queue.changed.wait(), max_wait_time)
            except TimeoutError:
                return []
        found = [source.popleft() for _ in range(min(count, len(source)))]
        for message in found:
            message.locked_until_utc = queue.until() if self.session is None else None
        return found

    async def _settle(self, message: FakeMessage, how: str) -> None:
        assert self.closed_at is None, "the receiver was closed"
        assert message.lock_token is not None, "the message was settled already"
        await asyncio.sleep(0)
        if error := self._queue.settle_error():
            raise error
        message.lock_token = None
        self._queue.settled.append((message.message_id, how))

    async def complete_message(self, message: Any) -> None:
        await self._settle(message, "completed")

    async def abandon_message(self, message: Any) -> None:
        await self._settle(message, "abandoned")

    async def defer_message(self, message: Any) -> None:
        await self._settle(message, "deferred")

    async def dead_letter_message(
        self, message: Any, reason: str | None = None, error_description: str | None = None
    ) -> None:
        await self._settle(message, f"dead-lettered: {reason}, {error_description}")

    async def renew_message_lock(self, message: Any, **_: Any) -> datetime:
        return await self._queue.renewed(message.message_id)
