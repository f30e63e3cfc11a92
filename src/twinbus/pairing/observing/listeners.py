"""Who listens to a pair's events. Telling never waits, whatever a listener does.

Each stream has a buffer of its own. When it is full the oldest event goes, and the listener is told
how many went; a callback is called at once, on the pair's event loop, and must be quick.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Self
from weakref import WeakSet

from twinbus.pairing.core.announcements import EventsDropped, PairEvent

__all__ = ["EventStream", "Listeners"]

log = logging.getLogger("twinbus.pairing")

BUFFER_MAX: Final = 1_000
"""Events that wait for one listener. An outage of a thousand entities at once fits; a listener that
is further behind wants the status, not history."""


class Listeners:
    """The streams and callbacks of one pair."""

    def __init__(self) -> None:
        # Weak: a stream that its listener dropped must not be filled for ever.
        self._streams: WeakSet[EventStream] = WeakSet()
        self._callbacks: dict[object, Callable[[PairEvent], None]] = {}
        self.dropped = 0
        """Events that were not told to a listener who was too slow."""
        self.ended = False

    def tell(self, event: PairEvent) -> None:
        """Tell everyone; returns at once, and no listener's error comes back."""
        for stream in self._streams:
            self.dropped += stream.put(event)
        for callback in tuple(self._callbacks.values()):
            try:
                callback(event)
            except Exception:
                log.exception("a listener failed at %s; it stays registered", event)

    def stream(self, buffer: int = BUFFER_MAX) -> EventStream:
        """A stream of what happens from now on; it ends with `end`."""
        if not buffer >= 1:
            raise ValueError(f"the buffer of a listener is a number from 1; got {buffer!r}")
        stream = EventStream(buffer, self._streams.discard)
        if self.ended:
            stream.end()
        else:
            self._streams.add(stream)
        return stream

    def on_event(self, callback: Callable[[PairEvent], None]) -> Callable[[], None]:
        """Have `callback` called with each event; the answer ends that."""
        if not callable(callback):
            raise TypeError(f"a listener is a callable (event) -> None; got {callback!r}")
        key = object()
        self._callbacks[key] = callback
        return lambda: self._callbacks.pop(key, None) and None

    def end(self) -> None:
        """Nothing more will happen: every stream ends when its buffer is empty."""
        self.ended = True
        for stream in tuple(self._streams):
            stream.end()
        self._streams.clear()
        self._callbacks.clear()


class EventStream:
    """What happens to a pair, for one listener: `async for event in stream`."""

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
                return EventsDropped(at=time.time(), count=missed)
            if self._waiting:
                return self._waiting.popleft()
            if self._is_over:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()

    async def aclose(self) -> None:
        """Stop listening; what waits in the buffer is let go."""
        self._waiting.clear()
        self._missed = 0
        self.end()
        self._forget(self)

    def put(self, event: PairEvent) -> int:
        """Take an event in; how many older ones had to go for it."""
        dropped = 0
        if len(self._waiting) >= self._buffer:
            self._waiting.popleft()
            self._missed += 1
            dropped = 1
        self._waiting.append(event)
        self._news.set()
        return dropped

    def end(self) -> None:
        """No event comes after those that wait."""
        self._is_over = True
        self._news.set()
