"""Events that a pair announces, and its listeners. Announcing never waits for a listener.

    async for event in pair.events():
        match event:
            case EntityChanged(path=path, after="failed over"): ...

Times (`at`) are unix seconds. Each stream has a buffer of its own. When it is full the oldest event
is dropped, and the listener gets the number of dropped events. A callback is called at once, on the
pair's event loop, and must be quick.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self
from weakref import WeakSet

from twinbus.pairing.core.sides import Side
from twinbus.status.document import EntityState, SideState


@dataclass(frozen=True, kw_only=True)
class PairEvent:
    """A change of a pair, and its time."""

    at: float = field(default_factory=time.time)

    def as_dict(self) -> dict[str, Any]:
        """The event as plain JSON data, its class under `event`."""
        plain = {name: _plain(value) for name, value in asdict(self).items()}
        return {"event": type(self).__name__, **plain}


@dataclass(frozen=True, kw_only=True)
class EntityChanged(PairEvent):
    """An entity of the primary changed its state from `before` to `after`."""

    path: str
    before: EntityState
    after: EntityState
    reason: str


@dataclass(frozen=True, kw_only=True)
class EntityHeld(PairEvent):
    """A person forced or froze an entity, or ended that."""

    path: str
    forced: bool
    frozen: bool


@dataclass(frozen=True, kw_only=True)
class GuardWarned(PairEvent):
    """The primary stored a message that no backlog queue would take; once for each guard."""

    path: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class PingEnded(PairEvent):
    """A ping was answered (`error` is empty) or failed."""

    path: str
    answered: bool
    error: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class BacklogQueueFound(PairEvent):
    """A backlog queue is in the rotation; `drift` lists settings that differ from ours."""

    queue: str
    drift: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BacklogQueueLeftOut(PairEvent):
    """A backlog queue is not available, or must not be used."""

    queue: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class RightMissing(PairEvent):
    """The credential of the secondary has not, or no longer, a right that the pair needs.

    Backlog queues in use stay in use, and the search goes on. At pairing it is an error.
    """

    reason: str


@dataclass(frozen=True, kw_only=True)
class BacklogQueuePulled(PairEvent):
    """A backlog queue failed and is pulled for all senders of the pair, for `rest_s` seconds."""

    queue: str
    reason: str
    rest_s: float


@dataclass(frozen=True, kw_only=True)
class BacklogQueueReturned(PairEvent):
    """A pulled queue may be used again: its time is over, or it answered a probe or a message.

    Only the next diverted message shows whether it works, unless it stored one after all.
    """

    queue: str


@dataclass(frozen=True, kw_only=True)
class TwinChanged(PairEvent):
    """The twin of an entity is used from now on, or is not: diverts go to the backlog then.

    It is used when its mark was read, or came back after a failure; it is not used when it has no
    mark, or failed and is pulled. `is_verified`: its mark was read.
    """

    path: str
    is_used: bool
    is_verified: bool = False
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ProtectionChanged(PairEvent):
    """The pair has its first backlog queue, or has lost its last one (UNPROTECTED)."""

    protected: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class SideChanged(PairEvent):
    """A side of the pair was closed or faulted."""

    side: Side
    before: SideState
    after: SideState
    reason: str


@dataclass(frozen=True, kw_only=True)
class EventsDropped(PairEvent):
    """This listener was too slow: `count` events, older than the next one, were dropped."""

    count: int


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


log = logging.getLogger("twinbus.pairing")

BUFFER_MAX: Final = 1_000
"""Events that wait for one listener: an outage of a thousand entities at once fits. A listener
further behind should read the status."""


class Listeners:
    def __init__(self) -> None:
        # Weak: a stream that its listener has dropped must not be filled for ever.
        self._streams: WeakSet[EventStream] = WeakSet()
        self._callbacks: dict[object, Callable[[PairEvent], None]] = {}
        self.dropped = 0
        """Events dropped because a listener was too slow."""
        self.ended = False

    def tell(self, event: PairEvent) -> None:
        """Announce an event to all listeners; never waits and never raises a listener's error."""
        for stream in self._streams:
            self.dropped += stream.put(event)
        for callback in tuple(self._callbacks.values()):
            try:
                callback(event)
            except Exception:
                log.exception("a listener failed at %s; it stays registered", event)

    def stream(self, buffer: int = BUFFER_MAX) -> EventStream:
        """A stream of the events from now on; it ends with `end`."""
        if not buffer >= 1:
            raise ValueError(f"the buffer of a listener is a number from 1; got {buffer!r}")
        stream = EventStream(buffer, self._streams.discard)
        if self.ended:
            stream.end()
        else:
            self._streams.add(stream)
        return stream

    def on_event(self, callback: Callable[[PairEvent], None]) -> Callable[[], None]:
        """Call `callback` with each event; return a function that ends that."""
        if not callable(callback):
            raise TypeError(f"a listener is a callable (event) -> None; got {callback!r}")
        key = object()
        self._callbacks[key] = callback
        return lambda: self._callbacks.pop(key, None) and None

    def end(self) -> None:
        """End every stream when its buffer is empty; no event follows."""
        self.ended = True
        for stream in tuple(self._streams):
            stream.end()
        self._streams.clear()
        self._callbacks.clear()


class EventStream:
    """The events of a pair for one listener: `async for event in stream`."""

    def __init__(self, buffer: int, forget: Callable[[EventStream], None]) -> None:
        self._waiting: deque[PairEvent] = deque()
        self._buffer = buffer
        self._forget = forget
        self._missed = 0
        self._is_over = False
        self._news = asyncio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PairEvent:
        while True:
            if self._missed:
                missed, self._missed = self._missed, 0
                return EventsDropped(count=missed)
            if self._waiting:
                return self._waiting.popleft()
            if self._is_over:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()

    async def aclose(self) -> None:
        """Stop listening and drop the events in the buffer."""
        self._waiting.clear()
        self._missed = 0
        self.end()
        self._forget(self)

    def put(self, event: PairEvent) -> int:
        """Add an event; return the number of older ones dropped for it."""
        dropped = 0
        if len(self._waiting) >= self._buffer:
            self._waiting.popleft()
            self._missed += 1
            dropped = 1
        self._waiting.append(event)
        self._news.set()
        return dropped

    def end(self) -> None:
        self._is_over = True
        self._news.set()
