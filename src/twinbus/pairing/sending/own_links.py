"""Carries the SDK's messages over links of our own client instead of the SDK's senders.

All senders of a pair share one connection to each namespace, and those of one entity one link, on
which many messages are in flight. Messages, batches, exceptions and limits are the SDK's own.

The link bounds each message by the attempt timeout. A call with less time gives up sooner, and its
message may still be answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError

from twinbus.client.in_flight import Wire
from twinbus.client.links import UpstreamConnection, UpstreamLink
from twinbus.client.request_node import ConnectionLost, LinkEnded
from twinbus.client.sending.scheduling import cancel_scheduled, schedule
from twinbus.pairing.sdk.encoding import (
    BATCH_FORMAT,
    SINGLE_FORMAT,
    encoded,
    list_bytes,
    message_writer,
    schedule_request,
    too_large,
)
from twinbus.pairing.sdk.failures import sdk_error
from twinbus.pairing.sdk.sender_pool import CARRIED_OUT
from twinbus.servicebus.failures import ANSWER_MIN_S, CutShort, NamespaceFailure, OpeningCutShort
from twinbus.servicebus.names import BATCH_ALLOWANCE

if TYPE_CHECKING:
    from datetime import datetime

    from azure.servicebus import ServiceBusMessage

    from twinbus.client.in_flight import Done
    from twinbus.namespace.namespace import Namespace
    from twinbus.pairing.sending.shared_state import SharedState

T = TypeVar("T")

SLOW_S: Final = 0.25
"""An attempt that takes longer is slow: the backlog may be needed soon."""

SETTINGS_S: Final = 1.0
"""How long it may take until a change of the SDK's settings for traces is noticed."""


class OwnLinks:
    """The link to one entity, for one sender; a `SenderCarrier`.

    `take` gives the object itself: it has the methods of an SDK sender that an attempt calls.
    """

    def __init__(
        self,
        connection: UpstreamConnection,
        path: str,
        on_open: Callable[[int, int], None] | None = None,
    ) -> None:
        """`on_open` gets the limits that a link reports; the first one of an entity counts."""
        self.path = path
        self.closed = False
        self.on_slow: Callable[[], None] | None = None
        self.on_open_failed: Callable[[Exception], None] | None = None
        self.jitter: Callable[[], float] | None = None
        """Not used: the connection itself is kept alive."""
        self._connection = connection
        self._loop = connection.loop
        self._attempt_timeout_s = connection.answer_s
        self._links = connection.pool(path, on_open)
        self._links.users += 1
        self._write = message_writer()
        self._ask_again_at = self._loop.time() + SETTINGS_S
        self._in_use = 0
        self._unused: asyncio.Event | None = None
        self._opening: asyncio.Task[None] | None = None
        self._opening_until = 0.0
        """An opening that has not ended by then has failed, whatever its callers' timeouts."""
        self._is_wanted = False
        """Whether a call has waited for the present opening."""
        self._waiting = 0
        """Calls that wait for it now."""

    @property
    def limit_bytes(self) -> int | None:
        return self._links.limit_bytes

    @property
    def batch_limit_bytes(self) -> int | None:
        return self._links.batch_limit_bytes

    def take_ready(self, now: float) -> OwnLinks | None:
        """Return the object itself if its link is open."""
        return self if self._links.is_ready and not self.closed else None

    def take(self) -> OwnLinks:
        assert not self.closed
        return self

    async def lease(self, until: float, is_wanted: Callable[[], bool]) -> OwnLinks | None:
        """Return the object itself: many calls share the link, and none waits for another."""
        return self if is_wanted() else None

    async def send_ready(
        self, pooled: OwnLinks, message: ServiceBusMessage, now: float, timeout_s: float
    ) -> None:
        """Send one message on the open link; the short form of `attempt`."""
        self._in_use += 1
        slow = None if self.on_slow is None else self._loop.call_later(SLOW_S, self.on_slow)
        try:
            if now >= self._ask_again_at:
                self._ask_again_at, self._write = now + SETTINGS_S, message_writer()
            wire, link = Wire(self._single(message), SINGLE_FORMAT), self._links.link
            if timeout_s < self._attempt_timeout_s or link is None:
                await self._send(wire, timeout_s)
                return
            # As `_send`, written out: nearly all messages take this road.
            answer: asyncio.Future[None] = self._loop.create_future()
            done: Done = partial(_end, answer)
            link.send(wire, done)
            try:
                await answer
            except BaseException as error:
                _given_up(link, done, answer, error)
                raise
        except NamespaceFailure as error:
            raise sdk_error(error, self.path) from error
        finally:
            if slow is not None:
                slow.cancel()
            self._in_use -= 1
            if self._unused is not None and not self._in_use:
                self._unused.set()

    async def attempt(
        self,
        pooled: OwnLinks,
        operation: Callable[[Any], Awaitable[T]],
        timeout_s: float,
        *,
        is_late: bool = False,
    ) -> T:
        """Open the link unless it is open, and carry out one operation.

        TimeoutError after `timeout_s`; OpeningCutShort if the link was still opening then and had
        time left; CutShort if the opening, or the call before if it `is_late`, left too little.
        """
        until, left_s = self._loop.time() + timeout_s, timeout_s if is_late else math.inf
        self._in_use += 1
        slow = None if self.on_slow is None else self._loop.call_later(SLOW_S, self.on_slow)
        try:
            if not self._links.is_ready:
                await self._open(until)
                left_s = until - self._loop.time()
            async with asyncio.timeout_at(until):
                return await operation(self)
        except NamespaceFailure as error:
            raise sdk_error(error, self.path) from error
        except CutShort:
            raise
        except TimeoutError as error:
            if timeout_s < self._attempt_timeout_s and left_s < ANSWER_MIN_S:
                raise CutShort(f"{left_s:.2g} s") from error
            raise
        finally:
            if slow is not None:
                slow.cancel()
            self._in_use -= 1
            if self._unused is not None and not self._in_use:
                self._unused.set()

    # The operations of an attempt, as the SDK's sender has them

    async def send_messages(self, payload: Any) -> None:
        """Send a message, a list or a batch; return when the namespace has accepted it."""
        if isinstance(payload, list):
            envelope, body = list_bytes(payload)
            limit_bytes = self.batch_limit_bytes
            if limit_bytes is not None and len(body) > limit_bytes:
                text = f"ServiceBusMessageBatch has reached its size limit: {limit_bytes}"
                raise MessageSizeExceededError(message=text)
            wire, allowance = Wire(envelope + body, BATCH_FORMAT), BATCH_ALLOWANCE
        elif isinstance(payload, ServiceBusMessageBatch):
            wire, allowance = Wire(*encoded(payload)), BATCH_ALLOWANCE
        else:
            wire, allowance = Wire(self._single(payload), SINGLE_FORMAT), 0
        if self.limit_bytes is not None and len(wire.data) > self.limit_bytes + allowance:
            # The namespace would end the link, with all other messages that it carries.
            raise too_large(self.path, len(wire.data), self.limit_bytes)
        await self._send(wire)

    async def create_message_batch(
        self, max_size_in_bytes: int | None = None
    ) -> ServiceBusMessageBatch:
        """An empty batch of the size that the link takes."""
        limit_bytes = self.batch_limit_bytes
        if max_size_in_bytes and limit_bytes is not None and max_size_in_bytes > limit_bytes:
            raise ValueError(
                f"Max message size: {max_size_in_bytes} is too large, acceptable max batch size"
                f" is: {limit_bytes} bytes."
            )
        return ServiceBusMessageBatch(max_size_in_bytes or limit_bytes)

    async def schedule_messages(self, payload: Any, schedule_time_utc: datetime) -> list[int]:
        """Schedule messages; return their sequence numbers."""
        messages = schedule_request(payload, schedule_time_utc)
        with self._request():
            connection = await self._connection.opened()
            return await schedule(connection, self.path, messages, _recorded_by_the_call)

    async def cancel_scheduled_messages(self, sequence_numbers: int | list[int]) -> None:
        """Cancel scheduled messages."""
        numbers = [sequence_numbers] if isinstance(sequence_numbers, int) else sequence_numbers
        with self._request():
            connection = await self._connection.opened()
            await cancel_scheduled(connection, self.path, numbers, _recorded_by_the_call)

    @contextlib.contextmanager
    def _request(self) -> Iterator[None]:
        try:
            yield
        except ConnectionLost as error:
            # It may have been carried out.
            raise LinkEnded(str(error), was_sent=True) from error

    def _single(self, message: Any) -> bytes:
        try:
            return self._write(message)
        except UnicodeDecodeError:
            raise
        except Exception as error:
            # As the SDK says it.
            raise ServiceBusError(f"Handler failed: {error}.", error=error) from error

    async def _send(self, wire: Wire, timeout_s: float = math.inf) -> None:
        link = self._links.link
        if link is None:  # It ended in the moment after it was opened.
            raise LinkEnded(f"{self.path}: the link ended")
        answer: asyncio.Future[None] = self._loop.create_future()
        done: Done = partial(_end, answer)
        link.send(wire, done)
        timer = None
        if timeout_s < self._attempt_timeout_s:  # Else the link itself is the bound.
            timer = self._loop.call_later(timeout_s, _end, answer, TimeoutError())
        try:
            await answer
        except BaseException as error:
            _given_up(link, done, answer, error)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    # Opening and closing

    def open_ahead(self) -> None:
        """Begin to open the link; a failure shows when it is used."""
        if not self.closed and not self._links.is_ready:
            self._begin_opening(self._loop.time() + self._attempt_timeout_s)

    async def _open(self, until: float) -> None:
        """Wait until the link is open, or raise why it is not."""
        opening = self._begin_opening(until)
        self._is_wanted = True
        self._waiting += 1
        try:
            await asyncio.wait({opening}, timeout=max(0.0, until - self._loop.time()))
        finally:
            self._waiting -= 1
        if opening.cancelled():
            raise LinkEnded(f"{self.path}: the sender was closed")
        if opening.done():
            opening.result()
        elif until < self._opening_until:
            raise OpeningCutShort
        else:
            raise TimeoutError

    def _begin_opening(self, until: float) -> asyncio.Task[None]:
        if self._opening is None or self._opening.done():
            now = self._loop.time()
            limit_s = max(until - now, self._attempt_timeout_s)
            self._opening_until, self._is_wanted = now + limit_s, False
            self._opening = asyncio.create_task(self._opened(limit_s))
            self._opening.add_done_callback(self._opening_ended)
        return self._opening

    async def _opened(self, limit_s: float) -> None:
        async with asyncio.timeout(limit_s):
            await self._links.open()

    def _opening_ended(self, opening: asyncio.Task[None]) -> None:
        error = None if opening.cancelled() else opening.exception()
        is_unheard = self._is_wanted and not self._waiting and not self.closed
        if isinstance(error, Exception) and is_unheard and self.on_open_failed is not None:
            self.on_open_failed(sdk_error(error, self.path))

    def invalidate(self) -> None:
        """Use the present link no more; what it carries may still be answered."""
        self._links.invalidate()

    def wake_all(self) -> None:
        """Nothing waits for a sender here."""

    async def close(self, limit_s: float) -> None:
        """Take no more calls; wait up to `limit_s` for those that are under way."""
        if self.closed:
            return
        self.closed = True
        if self._opening is not None:
            self._opening.cancel()
        if self._in_use:
            self._unused = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._unused.wait()
        self._links.release()


class OwnConnections:
    """The two connections of a pair with `links="own"`."""

    def __init__(self, state: SharedState) -> None:
        self._state = state
        self._connections: dict[int, UpstreamConnection] = {}

    def primary(self, path: str) -> OwnLinks:
        """What carries the messages of a new sender."""
        return OwnLinks(self._to(self._state.primary), path)

    def backlog(self, queue: str) -> OwnLinks:
        """What carries diverted messages to a backlog queue or a twin."""
        learn = partial(self._state.limits_of(queue).learn, queue)
        return OwnLinks(self._to(self._state.secondary), queue, learn)

    async def close_primary(self) -> None:
        await self._close(self._state.primary)

    async def close_secondary(self) -> None:
        await self._close(self._state.secondary)

    def _to(self, namespace: Namespace) -> UpstreamConnection:
        connection = self._connections.get(id(namespace))
        if connection is None:
            state = self._state
            connection = self._connections[id(namespace)] = UpstreamConnection(
                namespace, state.policy.attempt_timeout_s, state.environment.connect
            )
        return connection

    async def _close(self, namespace: Namespace) -> None:
        connection = self._connections.get(id(namespace))
        if connection is not None:
            await connection.close()


def _recorded_by_the_call(error: str | None, *, is_known: bool) -> None:
    """The call that makes a request records it, with its time."""


def _given_up(
    link: UpstreamLink, done: Done, answer: asyncio.Future[None], error: BaseException
) -> None:
    """A call ends with an error; raise if it was cancelled when its message was accepted."""
    link.withdraw(done)
    is_done = answer.done() and not answer.cancelled() and answer.exception() is None
    if is_done and isinstance(error, asyncio.CancelledError):
        raise asyncio.CancelledError(CARRIED_OUT) from error


def _end(answer: asyncio.Future[None], error: Exception | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(None)
    else:
        answer.set_exception(error)
